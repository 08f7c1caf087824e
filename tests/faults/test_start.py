"""The start of a process: folders that cannot be written, damaged caches, what it says, and signals at any moment."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from potentia.kernels.machine import jit

SOURCE = Path(__file__).parents[2] / "src"
#: One kernel, so that what has to be compiled is little.
CHECK = "from potentia.kernels.tables import first_bad_table as f; import numpy as np; " \
        "print(f(np.array([0., np.nan]), np.array([0]), np.array([2])))"  # fmt: skip

#: Message passing on a grid, whose kernels call others that are not inlined.
BITS = """
import hashlib
import numpy as np
import potentia as pt
graph, rng = pt.Graph.grid((12, 9), n_states=2), np.random.default_rng(0)
theta = {kind: rng.normal(size=(len(scope), *[2] * scope.shape[1])) for kind, scope in graph.scopes.items()}
found = pt.TRW(iterations=7, tol=0).infer(graph, theta).marginals
print(hashlib.sha256(found["node"].tobytes() + found["edge"].tobytes()).hexdigest())
"""


def run(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code], env=variables(**environment), capture_output=True, text=True, timeout=300
    )


def variables(**changes):
    """The environment of a child; None takes a variable away."""
    found = {**os.environ, "PYTHONPATH": str(SOURCE), **changes}
    return {key: str(value) for key, value in found.items() if value is not None}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A cache that holds the kernel of CHECK, to be copied by whoever changes it."""
    folder = tmp_path_factory.mktemp("kept")
    found = run(CHECK, NUMBA_CACHE_DIR=folder)
    assert (found.stdout.strip(), found.stderr) == ("(0, 1)", "")
    return folder


@pytest.fixture
def cache(kept, tmp_path):
    return shutil.copytree(kept, tmp_path / "cache")


def test_every_kernel_is_compiled_by_our_own_decorator():
    for path in (SOURCE / "potentia" / "kernels").glob("*.py"):
        used = {name for name in ("numba", "llvmlite") if name in path.read_text().split()}
        assert not used, f"{path.name}: {used} belong behind kernels/machine"


def test_a_kernel_that_hands_out_arrays_must_be_declared_to():
    # without reference counts their memory would be freed too early, or never
    kernel = jit.njit()(lambda values: (values[1:], 1))
    with pytest.raises(TypeError, match="allocates=True"):
        kernel(np.zeros(3))


def test_inference_runs_where_no_cache_can_be_written(tmp_path):
    shutil.copytree(SOURCE / "potentia", tmp_path / "potentia", ignore=shutil.ignore_patterns("__pycache__"))
    # a file in the place of a folder keeps even root from writing there
    blocked = tmp_path / "potentia" / "kernels" / "__pycache__"
    blocked.write_text("")
    scores = "{'node': [[1.0, 0.0]] * 2}"
    call = f"import potentia as pt; print(pt.LinearProgram().infer(pt.Graph.chain(2, n_states=2), {scores}).value)"
    found = run(call, PYTHONPATH=tmp_path, HOME=blocked, XDG_CACHE_HOME=blocked, NUMBA_CACHE_DIR=blocked)
    assert found.stdout == "2.0\n", found.stderr
    assert found.stderr.count("RuntimeWarning: no folder for compiled kernels can be written") == 1
    assert "Traceback" not in found.stderr


def test_a_folder_that_holds_current_kernels_need_not_be_writable(tmp_path, monkeypatch):
    assert jit.usable(tmp_path, "a")

    def refuse(**_):
        raise PermissionError

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert jit.usable(tmp_path, "a")
    assert not jit.usable(tmp_path, "b")


def test_compiled_kernels_are_dropped_when_any_source_has_changed(tmp_path):
    kept = tmp_path / "star.sweep-1.py311.1.nbc"
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "star.py").write_text("a = 1")
    (sources / "binary.py").write_text("b = 1")
    first = jit.digest(sources)
    assert jit.usable(tmp_path, first)
    kept.write_text("compiled")
    assert jit.usable(tmp_path, first)
    assert kept.exists()
    (sources / "binary.py").write_text("b = 2")
    assert jit.digest(sources) != first
    assert jit.usable(tmp_path, jit.digest(sources))
    assert not kept.exists()


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
@pytest.mark.parametrize("left", [0, 20])
def test_a_truncated_cache_file_is_compiled_again(cache, suffix, left):
    files = list(cache.rglob(f"tables.first_bad_table*.{suffix}"))
    assert files
    size = files[0].stat().st_size
    for file in files:
        file.write_bytes(file.read_bytes()[:left])
    found = run(CHECK, NUMBA_CACHE_DIR=cache)
    assert (found.stdout.strip(), found.stderr) == ("(0, 1)", "")
    assert files[0].stat().st_size == size


def test_a_process_that_compiles_has_the_bits_of_one_that_loads(tmp_path):
    compiled, loaded = (run(BITS, NUMBA_CACHE_DIR=tmp_path) for _ in range(2))
    assert len(compiled.stdout) == 65, compiled.stderr
    assert compiled.stdout == loaded.stdout


def test_kernels_are_loaded_without_what_compiles_them(kept):
    # Numba imports SciPy's linear algebra when it compiles, which takes longer than loading all kernels of a call
    code = f"{CHECK}; import sys; print('scipy.linalg' in sys.modules)"
    loaded = run(code, NUMBA_CACHE_DIR=kept)
    assert loaded.stdout.split("\n")[1] == "False", loaded.stderr


def test_importing_the_commands_is_light():
    heavy = ("scipy.linalg", "scipy.ndimage", "scipy.sparse", "sklearn", "matplotlib", "asyncio")
    run("import potentia")  # whether Numba is one that is known is found out once
    found = run(f"import sys, potentia.app.cli; print([m for m in {heavy} if m in sys.modules])")
    assert found.stdout == "[]\n", found.stderr


#: A chain is trained, saved, loaded and used.
CHAIN = """
import sys
import potentia as pt
model = pt.ChainCRF(max_iterations=2, delta=0).fit([[{"w": "a"}, {"w": "b", "n": 2.0}]] * 2, [["x", "y"], ["y", "x"]])
model.save(sys.argv[1])
loaded = pt.load(sys.argv[1])
assert loaded.predict_marginals([[{"w": "a"}]]) and loaded.predict([[{"w": "a"}]]) and loaded.k_best([[{"w": "a"}]], 2)
"""


def test_a_chain_loads_little(tmp_path):
    # of SciPy only what Numba imports, nothing of graphs, and none of the large optional libraries
    heavy = ("scipy.linalg", "scipy.sparse", "scipy.special", "sklearn", "matplotlib", "asyncio", "multiprocessing",
             "potentia.graph", "potentia.inference", "potentia.gradients", "potentia.potentials")  # fmt: skip
    code = f"import sys; sys.argv[1:] = [{str(tmp_path / 'model')!r}]\n{CHAIN}"
    run(code)  # kernels are compiled once
    found = run(f"{code}print([m for m in {heavy} if m in sys.modules])")
    assert found.stdout == "[]\n", found.stderr


def test_importing_the_package_alone_loads_no_kernels():
    found = run("import sys, potentia; print([m for m in ('numba', 'scipy') if m in sys.modules])")
    assert found.stdout == "[]\n", found.stderr


def test_compilation_is_announced_where_asked_for_and_only_when_there_is_some(tmp_path, kept):
    assert run(CHECK, NUMBA_CACHE_DIR=tmp_path, POTENTIA_VERBOSE=1).stderr == ANNOUNCED
    assert run(CHECK, NUMBA_CACHE_DIR=kept, POTENTIA_VERBOSE=1).stderr == ""


#: A process that waits this long before it speaks of compilation.
PATIENCE = "from potentia.kernels.machine import jit; jit._PATIENCE = {}; "
ANNOUNCED = "potentia: compiling kernels (once) ...\n"


@pytest.mark.parametrize(("seconds", "asked", "said"), [(0.0, None, ANNOUNCED), (0.01, None, ANNOUNCED), (0.0, 0, "")])
def test_compilation_is_announced_once_it_has_taken_long(tmp_path, seconds, asked, said):
    found = run(PATIENCE.format(seconds) + CHECK, NUMBA_CACHE_DIR=tmp_path, POTENTIA_VERBOSE=asked)
    assert (found.stdout, found.stderr) == ("(0, 1)\n", said)
    loaded = run(PATIENCE.format(seconds) + CHECK, NUMBA_CACHE_DIR=tmp_path, POTENTIA_VERBOSE=asked)
    assert (loaded.stdout, loaded.stderr) == ("(0, 1)\n", "")


def test_the_command_line_announces_compilation(tmp_path):
    model = tmp_path / "model.uai"
    model.write_text("MARKOV 1 2 1 1 0 2 0.3 0.7")
    command = ["infer", str(model), "--method", "linear_program"]
    code = PATIENCE.format(0.0) + f"from potentia.app.cli import main; main({command})"
    found = run(code, NUMBA_CACHE_DIR=tmp_path, POTENTIA_VERBOSE=None)
    assert found.stderr.count(ANNOUNCED) == 1


def test_compilation_does_not_count_against_a_time_limit(tmp_path):
    code = """
import time
import numpy as np
import potentia as pt
from potentia.inference.clock import Clock
from potentia.inference.map.task import SearchTask
from potentia.graph.scores import Scores
from potentia.kernels.machine.jit import compilation_seconds, njit
def kernel(values):
    return values[0]
kernel.__module__ = "potentia.kernels.kernel"
task = SearchTask(Scores(pt.Graph.chain(2, n_states=2), {}), Clock(1000.0, None), 0)
begun, compiled = time.monotonic(), compilation_seconds()
left = task.left
njit()(kernel)(np.zeros(1))
compiled = compilation_seconds() - compiled
now = task.left
took = time.monotonic() - begun
print(compiled > 0.0, left - now <= took - compiled)
"""
    found = run(code, NUMBA_CACHE_DIR=tmp_path)
    assert found.stdout == "True True\n", found.stderr


#: Fails where a class of Numba is not used as it is.
FAIL = """
def fail(where, name, error):
    own = getattr(where, name)
    def changed(self, *arguments, **named):
        if type(self).__module__.startswith("potentia."):
            raise error(name)
        return own(self, *arguments, **named)
    setattr(where, name, changed)
"""
#: Ways in which another Numba may differ: parts that are missing, take other arguments, or fail when they are used.
OTHER_NUMBAS = {
    "import": "import numba.core.caching as c; del c.CompileResultCacheImpl",
    "compiler": "from numba.core.compiler import CompilerBase as c; fail(c, 'compile_extra', TypeError)",
    "library": "from numba.core.codegen import JITCodeLibrary as c; fail(c, '__init__', AttributeError)",
    "linking": "from numba.core.codegen import CPUCodeLibrary as c; fail(c, '_finalize_final_module', KeyError)",
    "saving": "from numba.core.caching import FunctionCache as c; fail(c, 'save_overload', TypeError)",
    "vectors": "from llvmlite import ir; ir.VectorType.__init__ = None",
}


@pytest.mark.parametrize("way", OTHER_NUMBAS)
def test_a_numba_that_private_classes_do_not_fit_takes_the_plain_path(way, tmp_path):
    plain = "from potentia.kernels.machine.jit import PLAIN; print(PLAIN)"
    code = f"import numba\n{FAIL}\n{OTHER_NUMBAS[way]}\n{CHECK}\n{plain}"
    for _ in range(2):
        found = run(code, NUMBA_CACHE_DIR=tmp_path)
        assert found.stdout == "(0, 1)\nTrue\n", found.stderr
        assert found.stderr == ""


def test_the_plain_path_is_taken_where_asked_for_and_loads_what_it_compiled(tmp_path):
    loads = "from potentia.kernels.tables import first_bad_table as f; print(sum(f.stats.cache_hits.values()))"
    first, second = (run(f"{CHECK}\n{loads}", NUMBA_CACHE_DIR=tmp_path, POTENTIA_PLAIN=1) for _ in range(2))
    assert (first.stdout, second.stdout) == ("(0, 1)\n0\n", "(0, 1)\n1\n"), first.stderr + second.stderr


GRID = """
import numpy as np
import potentia as pt
for states in (STATES):
    graph, rng = pt.Graph.grid((3, 3), n_states=states), np.random.default_rng(0)
    theta = {kind: rng.normal(size=(len(scope), *[states] * scope.shape[1])) for kind, scope in graph.scopes.items()}
    for method in (METHODS):
        found = method.infer(graph, theta)
        tables = [found.variable_marginals, found.marginals["edge"]]
        labels = found.argmax() if 3 in (STATES) else found.mpm()
        print(found.value, *np.concatenate([np.ravel(table) for table in tables]), *labels)
"""


@pytest.mark.parametrize(
    ("way", "methods", "states"),
    [
        ("NUMBA_DISABLE_JIT", "pt.TRW(), pt.LoopyBP(), pt.MeanField(), pt.Exact()", "2, 3"),
        ("POTENTIA_PLAIN", "pt.TRW(),", "2,"),  # `make test-plain` runs most tests that way; this compiles little
    ],
    ids=["Python", "plain"],
)
def test_results_do_not_depend_on_the_compiler(way, methods, states):
    code = GRID.replace("METHODS", methods).replace("STATES", states)
    other, compiled = run(code, **{way: 1}), run(code, NUMBA_DISABLE_JIT=None, POTENTIA_PLAIN=None)
    assert other.stderr == ""
    lines = [[np.array(line.split(), dtype=float) for line in x.stdout.splitlines()] for x in (other, compiled)]
    assert len(lines[0]) == len(lines[1]) == methods.count("pt.") * len(re.findall(r"\d", states)), compiled.stderr
    for a, b in zip(*lines, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-9)


INT, TERM = signal.SIGINT, signal.SIGTERM


@pytest.mark.parametrize(("delay", "number"), [(0.1, INT), (0.1, TERM), (0.4, TERM), (0.8, INT), (1.5, TERM), (3, INT)])
def test_a_signal_at_any_moment_prints_one_line(tmp_path, number, delay):
    # an empty cache, so that late signals meet the compiler
    with subprocess.Popen(
        [sys.executable, "-m", "potentia", "warmup", "inference"],
        env=variables(NUMBA_CACHE_DIR=tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            wait_for_handlers(process)
            time.sleep(delay)
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    word = {INT: "interrupted", TERM: "terminated"}[number]
    said = [line for line in err.splitlines() if "compiling kernels of" not in line]
    assert (process.returncode, out, said) == (128 + number, "", [f"potentia: {word}"]), err


def wait_for_handlers(process):
    """Wait until a process catches SIGTERM, where the system tells: on a busy machine Python may be slow to start."""
    status = Path(f"/proc/{process.pid}/status")
    while status.exists() and process.poll() is None:
        caught = int(status.read_text().split("SigCgt:")[1].split()[0], 16)
        if caught >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.01)

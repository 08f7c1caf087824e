"""Memory is estimated before a fit, and more than there is gets one sentence."""

import math
import resource
from pathlib import Path

import numpy as np
import pytest

import potentia as pt
from potentia.base import resources
from potentia.learn.data import fit_bytes
from sample_images import noisy

POTENTIALS = {"node": pt.Linear(), "edge": pt.Linear()}


def test_a_fit_that_needs_more_than_there_is_gets_one_sentence(monkeypatch, tmp_path):
    examples = noisy(2)
    crf = pt.CRF(POTENTIALS, pt.IteratedLogistic(iterations=1, sweeps=2))
    monkeypatch.setenv("POTENTIA_MEMORY", "1e-4")  # of 1.3e-4, more than each layout takes
    with pytest.raises(
        pt.PotentiaError, match=r"2 examples needs about .* GB .*pt\.write_parts.*POTENTIA_MEMORY"
    ) as found:
        crf.fit(examples)
    assert "\n" not in str(found.value)
    assert not hasattr(crf, "potentials_")
    # parts are read one after another
    pt.write_parts(examples, tmp_path / "parts")
    crf.fit(pt.parts(tmp_path / "parts"))
    monkeypatch.setenv("POTENTIA_MEMORY", "inf")
    crf.fit(examples)
    for wrong in ("-1", "much", "nan"):
        monkeypatch.setenv("POTENTIA_MEMORY", wrong)
        with pytest.raises(pt.PotentiaError, match="POTENTIA_MEMORY must be a number of GB"):
            crf.fit(examples)


def test_the_estimate_grows_with_entries_parameters_and_different_graphs():
    size = 900
    same = noisy(4, (30, 30))
    other = [pt.Example(pt.Graph.grid((30, 30 + k), n_states=2), {}, np.zeros(30 * (30 + k), int)) for k in range(4)]
    bare = [pt.Example(same[0].graph, {}, e.labels) for e in same]
    assert fit_bytes(POTENTIALS, same) > 24 * 4 * (2 * size + 4 * 2 * 29 * 30)
    assert fit_bytes(POTENTIALS, other) > fit_bytes(POTENTIALS, bare)
    graph = pt.Graph.chain(3, n_states=100)
    wide = [pt.Example(graph, {"node": np.zeros((3, 10_000))}, [0, 1, 2])]
    assert fit_bytes(POTENTIALS, wide) > 1e6 * 8 * 20
    assert fit_bytes({**POTENTIALS, "node": pt.Boosting()}, wide) < 1e6 * 8


def test_what_is_available_is_the_least_of_machine_group_and_process(monkeypatch, tmp_path):
    monkeypatch.delenv("POTENTIA_MEMORY", raising=False)
    assert 0 < resources.available_memory() < 1e14
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    try:
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, before[1]))
        assert resources.available_memory() <= 2**30
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    group = Path("/proc/self/cgroup").read_text().splitlines()[-1].rpartition(":")[2].lstrip("/")
    folder = tmp_path / group
    folder.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(resources, "_GROUPS", tmp_path)
    assert resources._of_group() == math.inf
    (folder / "memory.max").write_text("max\n")
    (folder / "memory.current").write_text("5000000\n")
    assert resources._of_group() == math.inf
    (folder / "memory.max").write_text("8000000\n")
    assert resources._of_group() == 3e6
    (folder / "memory.stat").write_text("anon 1\ninactive_file 1000000\n")
    assert resources._of_group() == 4e6

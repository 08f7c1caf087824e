"""What commands share, and those that are not about the user's own data: demo, reproduce, report, bench, warmup."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ..base.resources import using_threads
from ..base.types import ConvergenceWarning, PotentiaError, printable
from ..learn.backends.connection import cluster
from .report.rows import Column, print_table


def whole_number(least: int = 1, most: int | None = None) -> Callable[[str], int]:
    """The type of an option that is a whole number."""
    wanted = "above zero" if least == 1 and most is None else f"from {least} to {most}"

    def number(text: str) -> int:
        """The text as a number; refuses others."""
        if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {wanted}")
        return int(text)

    return number


#: The type of an option that numbers what is random.
SEED = whole_number(0, 2**32 - 1)


def add_quiet_and_threads(parser: argparse.ArgumentParser) -> None:
    """The options of every command that may take long."""
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors (and --json)")
    parser.add_argument("--threads", type=whole_number(), metavar="N", help="number of threads (default: all cores)")


def plain(value: Any) -> Any:
    """Values as strict JSON has them: numbers that are not finite become null."""
    if isinstance(value, dict):
        return {key: plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_text(content: dict[str, Any]) -> str:
    """Strict JSON: numbers that are not finite become null."""
    return json.dumps(plain(content), allow_nan=False, default=str)


@contextmanager
def command_context(arguments: argparse.Namespace) -> Iterator[None]:
    """Keeps to --threads and --cluster, and turns warnings that fits have not converged into sentences.

    There are none with --quiet.
    """
    from threadpoolctl import threadpool_limits

    threads = using_threads(arguments.threads) if arguments.threads else nullcontext()
    where = getattr(arguments, "cluster", None)
    workers = cluster(where, threads=arguments.threads or 1) if where else nullcontext()
    with threads, threadpool_limits(arguments.threads), workers, warnings.catch_warnings():
        warnings.simplefilter("always", ConvergenceWarning)
        warnings.showwarning = lambda message, *_, **__: note(arguments, str(message))
        yield


def note(arguments: argparse.Namespace, text: str) -> None:
    """A sentence for the user that is no result."""
    if not arguments.quiet:
        print(f"potentia: {printable(text)}", file=sys.stderr)


def bar_shown(arguments: argparse.Namespace) -> bool:
    """Whether progress is shown: a bar in a terminal, lines elsewhere."""
    return not (arguments.quiet or arguments.json)


def show_facts(arguments: argparse.Namespace, title: str, facts: dict[str, Any]) -> None:
    """Facts as JSON or as a table, unless --quiet."""
    if arguments.json:
        print(json_text(facts))
    else:
        lines = [{"fact": key.replace("_", " "), "value": _shown(value)} for key, value in facts.items()]
        show_lines(arguments, title, lines)


def show_lines(arguments: argparse.Namespace, title: str, lines: list[dict[str, Any]]) -> None:
    """Lines as a table whose headings are their keys, unless --quiet; a first column of names is aligned left."""
    if not getattr(arguments, "quiet", False):
        columns = [Column(key, key, _shown) for key in lines[0]]
        if isinstance(next(iter(lines[0].values())), str):
            columns[0] = Column(columns[0].heading, columns[0].key)
        print_table(title, columns, lines)


def _shown(value: Any) -> str:
    """A fact's value in a table."""
    if isinstance(value, float):
        return "–" if value != value else f"{value:.4f}"
    if isinstance(value, dict):
        return ", ".join(f"{v} {key}" for key, v in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value[:12])) + (", ..." if len(value) > 12 else "")
    return str(value)


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` whose errors are one sentence instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and where help is, and exit with 2."""
        end = "" if message.endswith("?") else "."
        self.exit(2, f"{self.prog}: {message}{end} See `{self.prog} --help`.\n")

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """As in the base class, but a command refuses unknown options first, so that it can suggest another."""
        known = self._option_string_actions
        for given in () if args is None or self._subparsers else args:
            name = given.partition("=")[0]
            if given == "--":
                break
            if name.startswith("--") and not any(option.startswith(name) for option in known):
                self.error(f"unknown option {name}{did_you_mean(name, known)}")
        return super().parse_known_args(args, namespace)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse an unknown command or value, with a suggestion."""
        if action.choices is not None and value not in action.choices:
            what = "command" if isinstance(action, argparse._SubParsersAction) else "value"
            choices = [str(choice) for choice in action.choices]
            hint = did_you_mean(str(value), choices) or f", expected one of {', '.join(choices)}"
            error = f"unknown {what} {value!r}{hint}"
            raise argparse.ArgumentError(None if what == "command" else action, error)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """ ", did you mean ...?" with the most similar name, or nothing if none is similar."""
    close = get_close_matches(word, list(known), n=1)
    return f", did you mean {close[0]}?" if close else ""


#: What rows keep for the page only.
_FOR_THE_PAGE = ("history", "curves", "pictures", "couplings", "labels")


def add_options(command: str, parser: argparse.ArgumentParser) -> None:
    """The options of a command."""
    add = parser.add_argument
    if command == "demo":
        add("--out", type=Path, default=Path("demo"), metavar="DIR", help="folder for rows and page")
        add("--seed", type=SEED, default=0, help="seed of images, noise and the split of digits")
    elif command == "reproduce":
        names = getattr(_study_module("commands", needed=False), "NAMES", None)
        add("name", choices=names, metavar="name", help=", ".join(names or ["a study"]))
        add("--quick", action="store_true", help="a small version in under a minute")
        add("--full", action="store_true", help="all folds of cross-validation, where there are any")
        add("--out", type=Path, default=Path("results"), metavar="DIR", help="folder for rows and figures")
    elif command == "report":
        text = "a folder with rows.jsonl files, or a model that `potentia train` wrote"
        add("folder", type=Path, metavar="DIR", help=text)
        add("--out", type=Path, metavar="FILE", help="the page to write (default: report.html in DIR)")
    elif command == "annotate":
        add("folder", type=Path, metavar="DIR", help="folder of images (PNG, JPEG, TIFF, GIF), or one file")
        text = "folder for strokes/, masks/, classes.csv and model (default: DIR-annotations)"
        add("--out", type=Path, metavar="DIR", help=text)
        add("--classes", metavar="NAMES", help="names with commas between (default: background,object)")
        add("--palette", type=Path, metavar="FILE", help="lines value,name[,#rrggbb] of classes")
        add("--port", type=whole_number(1024, 65535), metavar="N", help="port of the page (default: any that is free)")
        add("--threads", type=whole_number(), metavar="N", help="number of threads (default: all cores)")
    elif command == "bench":
        add("--quick", action="store_true", help="smaller grids, fewer repetitions")
        add("--out", type=Path, metavar="FILE", help="also write the rows as JSON lines")
    else:
        add("part", nargs="*", metavar="PART", help=f"of {', '.join(_PARTS)}; default: all")
        add_quiet_and_threads(parser)


def _study_module(name: str, needed: bool = True) -> Any:
    """A module of the studies, which lie beside the library's sources in its repository; None if it may be missing."""
    try:
        return import_module(f"potentia_studies.{name}")
    except ModuleNotFoundError as missing:
        if missing.name != "potentia_studies":
            raise
    if needed:
        raise PotentiaError(
            "The studies and benchmarks are not part of the library: `pip install -e studies` in a clone of its "
            "repository installs them."
        )
    return None


def demo(arguments: argparse.Namespace) -> None:
    """Train CRFs on noisy images and label networks on digits, and write rows and report.html (one to two minutes).

    example: potentia demo --out demo
    """
    from . import demo as module
    from .report.rows import runs_table

    begun = time.perf_counter()
    say = say_to(sys.stderr, arguments)
    rows, path = module.run(arguments.out, arguments.seed, say=say, progress=not arguments.json)
    seconds = time.perf_counter() - begun
    if arguments.json:
        kept = {
            name: [{key: value for key, value in row.items() if key not in _FOR_THE_PAGE} for row in part]
            for name, part in rows.items()
        }
        print(json_text({"rows": kept, "report": str(path), "seconds": seconds}))
        return
    for name, part in rows.items():
        print_table(*runs_table(name, part))
        print(f"data: {part[0]['data']}\n")
    print(f"done in {seconds:.0f} s; open {path} in a browser")


def annotate(arguments: argparse.Namespace) -> None:
    """Label images by strokes: a page of this machine where labels follow each stroke; it saves masks and a model.

    example: potentia annotate photos --classes background,cell --out cells
    """
    from .annotate.server import serve

    if arguments.classes is not None and arguments.palette is not None:
        raise PotentiaError("--classes and --palette both name the classes: give one of them.")
    source = arguments.folder
    out = arguments.out or source.absolute().with_name(f"{source.absolute().stem}-annotations")
    names = [name.strip() for name in (arguments.classes or "").split(",") if name.strip()]

    def begun(address: str) -> None:
        if arguments.json:
            print(json_text({"address": address, "out": str(out)}), flush=True)
        else:
            print(f"{address}\nOpen this address in a browser of this machine; Ctrl-C ends.", flush=True)

    arguments.quiet = False
    with command_context(arguments):
        model = serve(source, out, arguments.palette, names, arguments.port or 0, begun)
    if not arguments.json:
        print(f"{model}: a model for `potentia predict`" if model else f"{out}: the strokes so far")


def report(arguments: argparse.Namespace) -> None:
    """One HTML page of all result rows under a folder: tables, curves, images, run facts.

    example: potentia report demo --out demo/report.html
    """
    from .own_data import report_source
    from .report.page import report as write

    source, studies = report_source(arguments.folder), _study_module("studies", needed=False)
    path = write(source, arguments.out, *([studies.report_tables, studies.complete_row] if studies else []))
    size = path.stat().st_size
    if arguments.json:
        print(json_text({"report": str(path), "bytes": size}))
    else:
        print(f"{path}: {size / 1e6:.1f} MB, open it in a browser")


def reproduce(arguments: argparse.Namespace) -> None:
    """Reproduce a table of a paper and show it next to the paper's; finished cells are not run again.

    example: potentia reproduce denoising --quick --out results
    """
    _study_module("commands").reproduce(arguments)


def bench(arguments: argparse.Namespace) -> None:
    """Measure the speed of inference, compared with two lower bounds on it measured in the same run.

    example: potentia bench --quick
    """
    _study_module("commands").bench(arguments)


def say_to(stream: Any, arguments: argparse.Namespace) -> Callable[[str], None]:
    """Prints a line to the stream, unless --json."""
    return lambda text: None if arguments.json else print(text, file=stream, flush=True)


def warmup(arguments: argparse.Namespace) -> None:
    """Compile the kernels of inference and training ahead of their first use, by running each on a tiny problem.

    They are kept in NUMBA_CACHE_DIR, beside the package, or in the user's cache, whichever can be written first;
    in an image run this as the user who installed the package. They fit the kind of processor they were compiled
    on: for a cluster of several kinds set NUMBA_CPU_NAME=generic (slower) or a folder per kind.

    example: potentia warmup
             potentia warmup inference
    """
    from ..kernels.machine.jit import FOLDER

    unknown = [part for part in arguments.part if part not in _PARTS]
    if unknown:
        raise PotentiaError(f"warmup has no part {unknown[0]!r}; its parts are {', '.join(_PARTS)}.")
    if FOLDER is None:
        raise PotentiaError("no folder for compiled kernels can be written; set NUMBA_CACHE_DIR to one that can.")
    begun = time.perf_counter()
    with command_context(arguments), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for part in arguments.part or _PARTS:
            note(arguments, f"compiling kernels of {part} ...")
            _PARTS[part](import_module("potentia"))
    kept = len(list(FOLDER.rglob("*.nbc")))
    facts = {"folder": str(FOLDER), "kernels": kept, "seconds": time.perf_counter() - begun}
    show_facts(arguments, "compiled kernels", facts)


def _problems(pt: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Small graphs with scores: of two and three states, with separate and shared tables, with a larger region."""
    rng = np.random.default_rng(0)
    for states in (2, 3):
        grid = pt.Graph.grid((12, 12), n_states=states)
        nodes = rng.standard_normal((grid.n_variables, states))
        yield grid, {"node": nodes, "edge": rng.standard_normal((len(grid.scopes["edge"]), states, states))}
        yield grid, {"node": nodes, "edge": rng.standard_normal((states, states))}
    triple = pt.Graph([2, 2, 2], {"node": [[0], [1], [2]], "triple": [[0, 1, 2]]})
    yield triple, {"node": rng.standard_normal((3, 2)), "triple": rng.standard_normal((1, 2, 2, 2))}


def _compile_inference(pt: Any) -> None:
    """Run each inference method on small models, which compiles its kernels."""
    for graph, theta in _problems(pt):
        forbidden = {kind: np.where(table < -1.5, -np.inf, table) for kind, table in theta.items()}
        for scores in (theta, forbidden):
            for method in (pt.TRW(), pt.LoopyBP(damping=0.5), pt.Smoothed(0.0), pt.MeanField()):
                result = method.infer(graph, scores)
                [*result.marginals.values()]
                result.argmax()
    grid = pt.Graph.grid((12, 12), n_states=3)
    for method in (pt.TRW(), pt.LoopyBP(damping=0.5), pt.Smoothed(0.0)):
        method.infer(grid, {"edge": pt.Potts(0.5)})
    chain = pt.Graph.chain(8, n_states=3)
    for exact in (pt.Exact(), pt.LinearProgram()):
        exact.infer(chain, {"node": np.zeros((8, 3)), "edge": None}).argmax()


def _compile_gradients(pt: Any) -> None:
    """Differentiate small models, which compiles the reverse kernels."""
    few = {"iterations": 5, "tol": 0}
    for graph, theta in _problems(pt):
        labels = np.zeros(graph.n_variables, dtype=np.int64)
        for loss in ("univariate_logistic", "clique_logistic"):
            for method in (pt.TRW(**few), pt.MeanField(**few)):
                pt.loss_and_gradient(loss, method, graph, theta, labels, gradient="truncated")
    grid, weights = pt.Graph.grid((12, 12), n_states=3), {"edge": pt.Potts(0.5)}
    labels = np.zeros(144, dtype=np.int64)
    pt.loss_and_gradient("univariate_logistic", pt.TRW(**few), grid, weights, labels)


def _compile_training(pt: Any) -> None:
    """Fit small models with each learner and potential."""
    examples = pt.datasets.denoising(2, (16, 16), seed=0)
    for make in (pt.Linear, pt.Boosting, pt.MLP):
        learner = pt.IteratedLogistic(epsilon=0.1, iterations=2)
        pt.CRF({"node": make(), "edge": make()}, learner).fit(examples).predict(examples)
    for other in (pt.MarginalRisk("univariate_logistic", iterations=2), pt.MaxMargin(iterations=2)):
        pt.CRF({"node": pt.Linear(), "edge": pt.Linear()}, other).fit(examples).predict(examples)


def _compile_multilabel(pt: Any) -> None:
    """Fit small networks of labels."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((40, 5))
    labels = (rows[:, :3] + 0.3 * rng.standard_normal((40, 3)) > 0).astype(int)
    for model in (pt.LMSBN(), pt.LMSBN(order="learned"), pt.LMBM()):
        model.fit(rows, labels).predict(rows)


#: What can be compiled, and how.
_PARTS: dict[str, Callable[[Any], None]] = {
    "inference": _compile_inference,
    "gradients": _compile_gradients,
    "training": _compile_training,
    "multilabel": _compile_multilabel,
}

#: The commands that are not about the user's own data, and their examples; --help shows their docstrings.
COMMANDS = {
    "demo": demo,
    "reproduce": reproduce,
    "report": report,
    "annotate": annotate,
    "bench": bench,
    "warmup": warmup,
}

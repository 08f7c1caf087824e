"""`potentia warmup`: compile kernels ahead of their first use, for images, clusters and services."""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...base.types import ConvergenceWarning, PotentiaError
from .common import add_quiet_and_threads, command_context, note, show_facts

TEXT = (
    "Compile the kernels of inference and training ahead of their first use, by running each on a tiny problem.\n"
    "They are kept in NUMBA_CACHE_DIR, beside the package, or in the user's cache, whichever can be written first;\n"
    "in an image run this as the user who installed the package. They fit the kind of processor they were compiled\n"
    "on: for a cluster of several kinds set NUMBA_CPU_NAME=generic (slower) or a folder per kind."
)
EXAMPLES = "potentia warmup\n         potentia warmup inference"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `potentia warmup`."""
    parser.add_argument("part", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    add_quiet_and_threads(parser)


def warmup(arguments: argparse.Namespace) -> None:
    """Run the parts and say where compiled kernels are."""
    from ...kernels.machine.jit import FOLDER

    unknown = [part for part in arguments.part if part not in PARTS]
    if unknown:
        raise PotentiaError(f"warmup has no part {unknown[0]!r}; its parts are {', '.join(PARTS)}.")
    if FOLDER is None:
        raise PotentiaError(
            "no folder for compiled kernels can be written; set NUMBA_CACHE_DIR to one that can."
        )
    begun = time.perf_counter()
    with command_context(arguments), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for part in arguments.part or PARTS:
            note(arguments, f"compiling kernels of {part} ...")
            PARTS[part]()
    kept = len(list(FOLDER.rglob("*.nbc")))
    show_facts(
        arguments,
        "compiled kernels",
        {"folder": str(FOLDER), "kernels": kept, "seconds": time.perf_counter() - begun},
    )


def _problems() -> Iterator[tuple[Any, dict[str, Any]]]:
    """Small graphs with scores: of two and three states, with separate and shared tables, with a larger region."""
    from ...graph.structure import Graph

    rng = np.random.default_rng(0)
    for states in (2, 3):
        grid = Graph.grid((12, 12), n_states=states)
        nodes = rng.standard_normal((grid.n_variables, states))
        yield grid, {"node": nodes, "edge": rng.standard_normal((len(grid.scopes["edge"]), states, states))}
        yield grid, {"node": nodes, "edge": rng.standard_normal((states, states))}
    triple = Graph([2, 2, 2], {"node": [[0], [1], [2]], "triple": [[0, 1, 2]]})
    yield triple, {"node": rng.standard_normal((3, 2)), "triple": rng.standard_normal((1, 2, 2, 2))}


def _inference() -> None:
    from ...graph.structure import Graph
    from ...inference.exact import Exact
    from ...inference.linear_program import LinearProgram
    from ...inference.mean_field import MeanField
    from ...inference.messages import TRW, LoopyBP, Smoothed
    from ...potentials import Potts

    for graph, theta in _problems():
        forbidden = {kind: np.where(table < -1.5, -np.inf, table) for kind, table in theta.items()}
        for scores in (theta, forbidden):
            for method in (TRW(), LoopyBP(damping=0.5), Smoothed(0.0), MeanField()):
                result = method.infer(graph, scores)
                [*result.marginals.values()]
                result.argmax()
    grid = Graph.grid((12, 12), n_states=3)
    for method in (TRW(), LoopyBP(damping=0.5), Smoothed(0.0)):
        method.infer(grid, {"edge": Potts(0.5)})
    chain = Graph.chain(8, n_states=3)
    for exact in (Exact(), LinearProgram()):
        exact.infer(chain, {"node": np.zeros((8, 3)), "edge": None}).argmax()


def _gradients() -> None:
    from ...gradients.entry import loss_and_gradient
    from ...graph.structure import Graph
    from ...inference.mean_field import MeanField
    from ...inference.messages import TRW
    from ...potentials import Potts

    for graph, theta in _problems():
        labels = np.zeros(graph.n_variables, dtype=np.int64)
        for loss in ("univariate_logistic", "clique_logistic"):
            for method in (TRW(iterations=5, tol=0), MeanField(iterations=5, tol=0)):
                loss_and_gradient(loss, method, graph, theta, labels, gradient="truncated")
    grid = Graph.grid((12, 12), n_states=3)
    weights = {"edge": Potts(0.5)}
    loss_and_gradient(
        "univariate_logistic", TRW(iterations=5, tol=0), grid, weights, np.zeros(144, dtype=np.int64)
    )


def _training() -> None:
    from ...features.datasets import denoising
    from ...learn.iterated import IteratedLogistic
    from ...learn.max_margin import MaxMargin
    from ...learn.risk import MarginalRisk
    from ...models.crf import CRF
    from ...potentials import MLP, Boosting, Linear

    examples = denoising(2, (16, 16), seed=0)
    for make in (Linear, Boosting, MLP):
        learner = IteratedLogistic(epsilon=0.1, iterations=2)
        CRF({"node": make(), "edge": make()}, learner).fit(examples).predict(examples)
    for other in (MarginalRisk("univariate_logistic", iterations=2), MaxMargin(iterations=2)):
        CRF({"node": Linear(), "edge": Linear()}, other).fit(examples).predict(examples)


def _multilabel() -> None:
    from ...models.multilabel.lmbm import LMBM
    from ...models.multilabel.lmsbn import LMSBN

    rng = np.random.default_rng(0)
    rows = rng.standard_normal((40, 5))
    labels = (rows[:, :3] + 0.3 * rng.standard_normal((40, 3)) > 0).astype(int)
    for model in (LMSBN(), LMSBN(order="learned"), LMBM()):
        model.fit(rows, labels).predict(rows)


#: What can be compiled, and how.
PARTS: dict[str, Callable[[], None]] = {
    "inference": _inference,
    "gradients": _gradients,
    "training": _training,
    "multilabel": _multilabel,
}

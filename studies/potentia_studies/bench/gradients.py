"""Loss and gradient through inference beside the same inference alone; memory of truncation; threads over a batch."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import potentia as pt
from potentia.app.report.rows import Column
from potentia.base.resources import one_blas_thread, using_threads
from potentia.learn.base import join_parameters
from potentia.learn.risk_objective import Risk, begin_potentials, open_parts

from .timing import Rows, Suite, best_times, in_fresh_process, peak_memory, random_theta

_SEED = 0


def _measure(quick: bool) -> Rows:
    """Univariate logistic loss with 20 TRW iterations, float64, on one thread unless stated otherwise."""
    grids = [((100, 100), 2), ((48, 64), 8)] + ([] if quick else [((100, 100), 21)])
    rows = [_one(shape, states, 0.5 if quick else 4.0) for shape, states in grids]
    rows.append(_batch(4 if quick else 16, 0.5 if quick else 10.0))
    if not quick:
        rows.append(in_fresh_process("potentia_studies.bench.gradients", "1000", "40"))
    return rows


def _problem(shape: tuple[int, int], states: int) -> tuple[pt.Graph, dict[str, Any], Any]:
    rng = np.random.default_rng(_SEED)
    graph = pt.Graph.grid(shape, n_states=states)
    return graph, random_theta(graph, rng), rng.integers(states, size=graph.n_variables)


def _one(shape: tuple[int, int], states: int, budget: float) -> dict[str, Any]:
    graph, theta, y = _problem(shape, states)
    one, two = (pt.TRW(iterations=20, tol=0, threads=threads) for threads in (1, 2))
    alone, both, shared = best_times(
        [
            lambda: one.infer(graph, theta),
            lambda: pt.loss_and_gradient("univariate_logistic", one, graph, theta, y),
            lambda: pt.loss_and_gradient("univariate_logistic", two, graph, theta, y),
        ],
        budget,
    )
    return {
        "what": f"grid {shape[0]}x{shape[1]}, {states} states, 20 TRW iterations",
        "inference_ms": 1e3 * alone,
        "gradient_ms": 1e3 * both,
        "ratio": both / alone,
        "speed_up": both / shared,
    }


def _batch(n: int, budget: float) -> dict[str, Any]:
    """The risk of n binary images of 100 x 100 and its gradient, on one thread and on two."""
    rng = np.random.default_rng(_SEED)
    graph = pt.Graph.grid((100, 100), n_states=2)
    sizes = {"node": graph.n_variables, "edge": len(graph.scopes["edge"])}
    examples = [
        pt.Example(graph, {k: rng.normal(size=(m, 3)) for k, m in sizes.items()}, rng.integers(2, size=10_000))
        for _ in range(n)
    ]

    def prepared(threads: int) -> Callable[[], None]:
        learner = pt.MarginalRisk(inference=pt.TRW(iterations=20, tol=0), threads=threads)
        potentials = {"node": pt.Linear(), "edge": pt.Linear()}
        data = learner.gather(examples, potentials)
        totals, states = open_parts(data, learner, n)
        begun = begin_potentials(data, None, states, potentials, False)
        risk = Risk(data, learner.ridge, totals, begun, states)
        point = join_parameters(risk.moving)

        def evaluate() -> None:
            with using_threads(threads):
                risk(point)

        return evaluate

    with one_blas_thread():
        one, two = best_times([prepared(1), prepared(2)], budget)
    return {"what": f"batch of {n} grids 100x100, 2 states: 2 threads", "gradient_ms": 1e3 * two, "speed_up": one / two}


def _large(side: int, iterations: int) -> dict[str, Any]:
    """Time and peak memory of one large binary grid."""
    graph, theta, y = _problem((side, side), 2)
    before = peak_memory()
    begun = time.perf_counter()
    pt.loss_and_gradient("univariate_logistic", pt.TRW(iterations=iterations, tol=0), graph, theta, y)
    return {
        "what": f"grid {side}x{side}, 2 states, {iterations} TRW iterations, whole process",
        "gradient_ms": 1e3 * (time.perf_counter() - begun),
        "memory_mib": peak_memory(),
        "before_mib": before,
    }


PART = Suite(
    "gradient",
    "Losses and gradients through inference",
    [
        Column("loss and gradient", "what"),
        Column("inference ms", "inference_ms", "{:.1f}".format),
        Column("with gradient ms", "gradient_ms", "{:.1f}".format),
        Column("ratio", "ratio", "{:.2f}".format),
        Column("two threads: speed-up", "speed_up", "{:.2f}".format),
        Column("peak MiB", "memory_mib", "{:.0f}".format),
    ],
    _measure,
)

if __name__ == "__main__":
    print(json.dumps(_large(int(sys.argv[1]), int(sys.argv[2]))))

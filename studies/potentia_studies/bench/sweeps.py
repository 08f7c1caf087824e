"""Speed of message passing in nanoseconds per message, beside floors of the same run.

Table floor: reading the pair tables once through a multiply-add. Log floor: one NumPy exp and one log per state and
message. A grid's message is one of the two of each pair; a sweep updates all of them once.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import potentia as pt
from potentia.app.report.rows import Column
from potentia.base.resources import map_ranges
from potentia.base.types import Floats
from potentia.graph.scores import Scores
from potentia.inference.engine import iterate
from potentia.inference.messages import reweighted, smoothed
from potentia.inference.pair_engine import PairEngine

from .memory_bandwidth import multiply_add, repeat_multiply_add
from .timing import Rows, Suite, best_time, best_times, random_theta

_SEED = 0


def cases(quick: bool) -> dict[str, pt.Graph]:
    """The benchmark's graphs by name."""
    grids = [((100, 100), 2), ((48, 64), 8)]
    if not quick:
        grids += [((200, 300), 2), ((1000, 1000), 2), ((200, 300), 8), ((100, 100), 21)]
    graphs = {f"grid {h}x{w}, {s} states": pt.Graph.grid((h, w), n_states=s) for (h, w), s in grids}
    graphs["irregular, 8 states"] = irregular(1_000 if quick else 20_000, 8)
    graphs["chain, 8 states"] = pt.Graph.chain(2_000 if quick else 50_000, n_states=8)
    return graphs


def irregular(n: int, states: int) -> pt.Graph:
    """A planar graph like that of superpixels: random points joined by their Delaunay triangulation, degree 3 to 12."""
    from scipy.spatial import Delaunay

    triangles = Delaunay(np.random.default_rng(_SEED).random((n, 2))).simplices
    edges = np.unique(np.sort(triangles[:, [0, 1, 1, 2, 0, 2]].reshape(-1, 2), axis=1), axis=0)
    return pt.Graph(np.full(n, states), {"node": np.arange(n)[:, None], "edge": edges})


@cache
def numpy_exp() -> float:
    """Nanoseconds of one of NumPy's exponentials, in the first cache."""
    values = np.random.default_rng(_SEED).normal(size=1 << 14)
    out = np.empty_like(values)
    return best_time(lambda: np.exp(values, out=out), 0.2) / len(values) * 1e9


def two_threads() -> float:
    """Speed-up of arithmetic in the first cache, where nothing is shared: where two threads share a core, below 2."""
    values = np.random.default_rng(_SEED).normal(size=(2, 1 << 11))
    out = np.empty_like(values)

    def work(first: int, last: int) -> None:
        for k in range(first, last):
            repeat_multiply_add(values[k], 20_000, out[k])

    work(0, 2)
    one, two = best_times([lambda: work(0, 2), lambda: map_ranges(work, 0, 2, 2)], 0.3)
    return one / two


def _graph_rows(name: str, graph: pt.Graph, quick: bool) -> list[dict[str, Any]]:
    states, pairs = int(graph.n_states[0]), graph.pairs
    theta = random_theta(graph, np.random.default_rng(_SEED))
    scores = Scores(graph, theta)
    messages = 2 * len(pairs)
    budget = 0.3 if quick else 1.5
    table = _table_floor(theta["edge"], budget)
    log = _log_floor(len(pairs) * states, budget) * 2
    rows: Rows = []
    for method, entropy in (("TRW", reweighted(graph, None)), ("smoothed", smoothed(graph, 0.1))):
        for threads in (1, 2):
            engine = PairEngine(scores, entropy, threads=threads)
            iterate(engine, 0)
            seconds = best_time(lambda e=engine: iterate(e, 0), budget)  # type: ignore[misc]
            time = seconds / messages * 1e9
            # each pair's table is used by both of its messages
            floors = {"table_floor_ns": 2 * table / messages * 1e9, "log_floor_ns": log / messages * 1e9}
            row: dict[str, Any] = {
                "graph": name,
                "method": method,
                "threads": engine.team(1),
                "asked_threads": threads,
                "messages": messages,
                "ns_per_message": time,
                "in_exp": time / numpy_exp(),
                "over_floors": time / sum(floors.values()),
                **floors,
            }
            rows.append(row if threads == 1 else row | {"speed_up": rows[-1]["ns_per_message"] / time})
    return rows


def _table_floor(tables: Floats, budget: float) -> float:
    """Reading all tables once, each entry through one multiply-add."""
    values, out = tables.ravel(), np.zeros(8)
    return best_time(lambda: multiply_add(values, out), budget / 3)


def _log_floor(n: int, budget: float) -> float:
    """One exp and one log of n values, in pieces that stay in the cache."""
    piece = np.random.default_rng(_SEED).random(min(n, 1 << 13)) + 0.5
    out = np.empty_like(piece)

    def work() -> None:
        np.exp(piece, out=out)
        np.log(out, out=out)

    return best_time(work, budget / 3) * n / len(piece)


_number = "{:.1f}".format
PART = Suite(
    "sweep",
    "Forward sweeps",
    [
        Column("graph", "graph"),
        Column("method", "method"),
        Column("threads", "threads", str),
        Column("ns / message", "ns_per_message", _number),
        Column("NumPy exps", "in_exp", _number),
        Column("table floor", "table_floor_ns", _number),
        Column("log floor", "log_floor_ns", _number),
        Column("× both floors", "over_floors", "{:.2f}".format),
        Column("speed-up", "speed_up", "{:.2f}".format),
    ],
    lambda quick: [row for name, graph in cases(quick).items() for row in _graph_rows(name, graph, quick)],
)

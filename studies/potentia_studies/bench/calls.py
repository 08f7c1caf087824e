"""Whole `infer` calls of 40 iterations in nanoseconds per message, beside a plain loop over messages in the same run.

The loop is TRW with every weight 1/2, message by message, on tables that are ready as exponentials: what one would
write first in Numba. It is given one table for all pairs where the scores are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numba
import numpy as np

import potentia as pt
from potentia.app.report.rows import Column
from potentia.base.types import Floats, Ints

from .timing import Rows, Suite, best_times, random_theta

_ITERATIONS, _RHO = 40, 0.5


@numba.njit(fastmath=True, nogil=True)
def plain_loop(
    node: Floats, tables: Floats, incoming: Ints, start: Ints, source: Ints, n_pairs: int, iterations: int
) -> Floats:  # pragma: no cover (compiled)
    """Messages (2 pairs, states) after all iterations; tables (m, L, L), or a symmetric one for all, (1, L, L)."""
    states, shared = node.shape[1], tables.shape[0] == 1
    messages = np.ones((2 * n_pairs, states))
    new = np.empty(states)
    for _ in range(iterations):
        for d in range(2 * n_pairs):
            here, back = source[d], d + n_pairs if d < n_pairs else d - n_pairs
            table = tables[0 if shared else min(d, back)]
            new[:] = 0.0
            for a in range(states):
                product = 1.0
                for k in range(start[here], start[here + 1]):
                    product *= messages[incoming[k], a]
                weight = np.sqrt(product) * node[here, a] / messages[back, a]
                if d < n_pairs or shared:
                    for b in range(states):
                        new[b] += table[a, b] * weight
                else:
                    for b in range(states):
                        new[b] += table[b, a] * weight
            total = new.sum() / states
            for b in range(states):
                messages[d, b] = new[b] / total
    return messages


def _loop(graph: pt.Graph, theta: dict[str, Any]) -> Callable[[], Floats]:
    """The plain loop on a graph's scores; only the loop is timed."""
    first, second = graph.scopes["edge"].T
    source, target = np.concatenate([first, second]), np.concatenate([second, first])
    incoming = np.argsort(target, kind="stable")
    start = np.concatenate([[0], np.cumsum(np.bincount(target, minlength=graph.n_variables))])
    node, states = np.exp(theta["node"]), theta["node"].shape[1]
    tables = np.exp(theta["edge"].reshape(-1, states, states) / _RHO)
    return lambda: plain_loop(node, tables, incoming, start, source, len(first), _ITERATIONS)


def _cases(quick: bool) -> Iterator[tuple[str, pt.Graph, dict[str, dict[str, Any]]]]:
    """Name, graph and scores by their form; the first form is what the plain loop runs on."""
    rng = np.random.default_rng(0)
    dense = [((48, 64), 8)] if quick else [((200, 300), 2), ((48, 64), 8), ((100, 100), 21)]
    for size, states in dense:
        graph = pt.Graph.grid(size, n_states=states)
        theta = random_theta(graph, rng)
        single = {**theta, "edge": theta["edge"].astype(np.float32)}
        yield f"grid {size[0]}x{size[1]}, {states} states", graph, {"tables": theta, "float32": single}
    for states in (64,) if quick else (64, 128):
        size = (24, 18) if quick else (96, 72)
        graph = pt.Graph.grid(size, n_states=states)
        node, labels = rng.standard_normal((graph.n_variables, states)), np.arange(states)
        table = -0.5 * np.minimum(np.abs(labels[:, None] - labels), 4.0)
        forms = {"shared table": table, "truncated linear": pt.TruncatedLinear(0.5, 4), "Potts": pt.Potts(0.5)}
        name = f"grid {size[0]}x{size[1]}, {states} states"
        yield name, graph, {form: {"node": node, "edge": edge} for form, edge in forms.items()}


def _rows(quick: bool) -> Rows:
    rows: Rows = []
    for name, graph, forms in _cases(quick):
        works: list[Callable[[], object]] = [_loop(graph, next(iter(forms.values())))]
        for theta in forms.values():
            for threads in (1, 2):
                method = pt.TRW(rho=_RHO, iterations=_ITERATIONS, tol=0, threads=threads)
                works.append(lambda m=method, g=graph, t=theta: m.infer(g, t))  # type: ignore[misc]
        times = best_times(works, 0.2 if quick else 1.5)
        scale = 1e9 / (2 * len(graph.scopes["edge"]) * _ITERATIONS)
        for k, form in enumerate(forms):
            one, two = times[1 + 2 * k : 3 + 2 * k]
            rows.append(
                {
                    "graph": name,
                    "scores": form,
                    "ns_per_message": one * scale,
                    "plain_loop_ns": times[0] * scale,
                    "over_plain": times[0] / one,
                    "two_threads": one / two,
                }
            )
    return rows


_number = "{:.1f}".format
PART = Suite(
    "calls",
    "Whole calls of TRW, 40 iterations, one thread",
    [
        Column("graph", "graph"),
        Column("scores", "scores"),
        Column("ns / message", "ns_per_message", _number),
        Column("plain loop", "plain_loop_ns", _number),
        Column("times as fast", "over_plain", "{:.2f}".format),
        Column("two threads: speed-up", "two_threads", "{:.2f}".format),
    ],
    _rows,
)

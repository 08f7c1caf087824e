"""Labellings of a large-margin Boltzmann machine: all compared, relaxed, branched on, or of the largest score."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from .._threads import map_ranges, thread_count
from .._types import Floats, Ints, PotentiaError
from ..graph.scores import Scores
from ..graph.structure import Graph
from ..graph.union import Union
from ..inference.base import Inference
from ..inference.exact import Exact
from ..inference.linear_program import LinearProgram
from ..kernels.flips import enumerate_rows, flip_costs, improve_rows
from ..parallel.connection import map_anywhere
from .joint import Machine
from .relaxation import Relaxation

Decode = Literal["auto", "exact", "lp", "branch", "map"]
DECODES = get_args(Decode)
#: "auto" enumerates all labellings up to the first number of labels, "exact" refuses beyond the second.
_EXACT, _LARGEST = 14, 20
#: Linear programs that "branch" solves per row at most.
_PROGRAMS = 1_000
#: Rows whose labellings are compared in one piece of work.
_ROWS = 4096
#: Regions inferred together by elimination, and by the linear program.
_CHUNKS = {True: 50_000, False: 2_000}


class Labelling(NamedTuple):
    """Signs (n, K), their hinge sums (n), and what no labelling's is below (n)."""

    signs: Floats
    loss: Floats
    bound: Floats


def find_labelling(machine: Machine, scores: Floats, decode: str) -> Labelling:
    """The labelling of every row of scores (n, K)."""
    n, K = scores.shape
    if decode == "auto":
        decode = "exact" if K <= _EXACT else "lp"
    if decode == "map":
        signs = _largest_score(machine, scores)
        return Labelling(signs, machine.losses(scores, signs), np.zeros(n))
    if decode == "exact":
        if K > _LARGEST:
            raise PotentiaError(
                f"decode='exact' looks at all labellings of at most {_LARGEST} labels, not {K}."
            )
        pieces = [scores[a : a + _ROWS] for a in range(0, max(n, 1), _ROWS)]
        found = map_anywhere(partial(_compare_all, machine), pieces)
        signs, loss = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        return Labelling(signs, loss, loss)
    relaxation = Relaxation(machine.sets(), machine.weight, K)
    means, bound = relaxation.solve(scores)
    rounded = _rounded(machine, scores, means, bound)
    if decode == "branch":
        for row in np.flatnonzero(~is_optimal(rounded.loss, bound)).tolist():
            _branch(machine, relaxation, scores[row], means[row], rounded, row)
    return rounded


def is_optimal(loss: Any, bound: Any) -> Any:
    """Whether losses of labellings meet their bounds, up to rounding."""
    return loss <= bound + 1e-6 * (1.0 + bound)


def _rounded(machine: Machine, scores: Floats, means: Floats, bound: Floats) -> Labelling:
    """The signs of the means, improved by flips."""
    signs, loss = np.where(means > 0, 1.0, -1.0), np.empty(len(scores))
    _over_rows(
        len(scores), lambda a, b: improve_rows(machine.cliques, machine.weight, scores, a, b, signs, loss)
    )
    return Labelling(signs, loss, bound)


def _branch(
    machine: Machine, relaxation: Relaxation, scores: Floats, means: Floats, found: Labelling, row: int
) -> None:
    """Branch and bound from a row's relaxed means: improves the row's labelling and bound in `found`.

    The subproblem of the lowest bound is split at its least certain label, until no bound is below the best loss.
    Exponential in the worst case: it gives up after `_PROGRAMS` linear programs.
    """
    pair, number = np.stack([scores, scores]), count()  # numbers break ties between equal bounds
    nodes = [(float(found.bound[row]), next(number), np.zeros(len(scores)), means)]
    for _ in range(_PROGRAMS // 2):
        _, _, fixed, means = heappop(nodes)
        label = int(np.argmin(np.where(fixed == 0, np.abs(means), np.inf)))
        children = np.stack([fixed, fixed])
        children[:, label] = -1.0, 1.0
        both, bounds = relaxation.solve(pair, children)
        halves = _rounded(machine, pair, both, bounds)
        best = int(np.argmin(halves.loss))
        if halves.loss[best] < found.loss[row]:
            found.signs[row], found.loss[row] = halves.signs[best], halves.loss[best]
        for child in range(2):
            heappush(nodes, (float(bounds[child]), next(number), children[child], both[child]))
        found.bound[row] = min(nodes[0][0], found.loss[row])
        if is_optimal(found.loss[row], found.bound[row]):
            return


def costs_of_flips(machine: Machine, scores: Floats, signs: Floats, hinge: bool) -> Floats:
    """(n, K): what turning each label alone adds to the loss (hinge), or takes from sum_i z_i / 2."""
    cost = np.empty(scores.shape)
    _over_rows(
        len(scores),
        lambda a, b: flip_costs(machine.cliques, machine.weight, scores, a, b, signs, cost, hinge),
    )
    return cost


def _largest_score(machine: Machine, scores: Floats) -> Floats:
    """argmax of sum_i z_i / 2 by the shared engine: exact for few labels, the linear program's rounding beyond."""
    n, K = scores.shape
    graph, tables = _as_graph(machine, K)
    method: Inference = Exact() if K <= _LARGEST else LinearProgram()
    step = max(1, _CHUNKS[K <= _LARGEST] // sum(len(s) for s in graph.scopes.values()))
    pieces = [scores[a : a + step] for a in range(0, n, step)]
    found = map_anywhere(partial(_best_labels, method, graph, tables), pieces)
    signs: Floats = np.concatenate(found).astype(np.float64)
    return 2.0 * signs - 1.0


def _best_labels(method: Inference, graph: Graph, tables: Mapping[str, Floats], scores: Floats) -> Ints:
    """The best labellings (n, K) of some rows by inference on a union of one graph each."""
    theta = {kind: np.tile(t, (len(scores), *[1] * (t.ndim - 1))) for kind, t in tables.items()}
    theta["node"] = scores.reshape(-1, 1) * np.array([-0.5, 0.5])
    return method.maximise(Scores(Union([graph] * len(scores)).graph, theta)).reshape(scores.shape)


def _compare_all(machine: Machine, scores: Floats) -> tuple[Floats, Floats]:
    """The best of all labellings of some rows, and their hinge sums."""
    scores = np.ascontiguousarray(scores)
    signs, loss = np.empty(scores.shape), np.empty(len(scores))
    _over_rows(
        len(scores),
        lambda a, b: enumerate_rows(machine.cliques, machine.weight, scores, a, b, signs, loss),
    )
    return signs, loss


def _as_graph(machine: Machine, n_labels: int) -> tuple[Graph, dict[str, Floats]]:
    """The cliques as regions, one kind per order, and their tables: order / 2 times weight times product of signs."""
    kinds: dict[str, list[int]] = {}
    sets = machine.sets()
    for number, c in enumerate(sets):
        kinds.setdefault(f"clique{len(c)}", []).append(number)
    regions: dict[str, Any] = {"node": np.arange(n_labels)[:, None]}
    tables: dict[str, Floats] = {}
    for kind, numbers in kinds.items():
        regions[kind] = [sets[c] for c in numbers]
        parity: Floats = np.ones(())
        for _ in regions[kind][0]:
            parity = np.multiply.outer(parity, np.array([-1.0, 1.0]))
        tables[kind] = np.multiply.outer(0.5 * parity.ndim * machine.weight[numbers], parity)
    return Graph(np.full(n_labels, 2), regions), tables


def _over_rows(n: int, work: Callable[[int, int], None]) -> None:
    map_ranges(work, 0, n, thread_count(None))

"""Choices between two labels per variable by minimum cuts: persistency of binary models, expansion and swap."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np

from ...base.types import Floats, Ints
from ...graph.scores import Scores
from ...kernels.max_flow import SINK, SOURCE, max_flow
from .task import SearchTask, penalty

#: Steps of the max-flow kernel per second to count on.
_STEPS_PER_SECOND = 3e5
#: Whole capacities of a network together.
_CAPACITY = 2.0**61
#: Moves are tried where at least this share of the pairs is submodular in them.
_REGULAR = 0.9
#: Share of the time left that expansions may take, and then swaps.
_SHARE = 0.4
#: Labels up to which swaps are tried; their number is quadratic.
_SWAP_LABELS = 32


class _Energy(NamedTuple):
    """E(x) = constant + unary . x + sum of |weight| [x_i = 0] [x_j = 1], or [x_j = 0] for a negative weight."""

    constant: float
    unary: Floats
    ends: Ints
    weight: Floats


def roof_duality(task: SearchTask) -> None:
    """Decide the variables of a binary pairwise problem that the roof dual decides [Hammer et al. 1984].

    Every best labelling has these labels, and the bound is that of the LP over the local polytope.
    """
    scores = task.problem.scores
    assert scores is not None
    allowed = scores.singles > -np.inf
    if scores.graph.max_order > 2 or allowed.sum(axis=1).max() > 2:
        return
    states = np.argsort(~allowed, axis=1, kind="stable")[:, :2]
    chosen, bound = _least(_PairTables(scores).energy(states[:, 0], states[:, 1]), _step_limit(task))
    task.tighten(-bound, "roof duality")
    rows = np.flatnonzero(chosen >= 0)
    if len(rows):
        allowed[rows] = False
        allowed[rows, states[rows, chosen[rows]]] = True
        task.restrict(allowed, "roof duality")


def move_labels(task: SearchTask) -> None:
    """Expansion moves until none improves, then swaps [Boykov et al. 2001], where tables allow them."""
    scores, labels = task.problem.scores, task.current
    assert scores is not None
    if scores.graph.max_order != 2 or labels is None or scores.singles.shape[1] < 3:
        return
    tables, states = _PairTables(scores), range(scores.singles.shape[1])
    _descend(task, tables, labels, "expansion", [(state, -1) for state in states])
    if len(states) <= _SWAP_LABELS:
        _descend(task, tables, labels, "swap", list(combinations(states, 2)))


def _descend(
    task: SearchTask, tables: _PairTables, labels: Ints, part: str, proposals: list[tuple[int, int]]
) -> None:
    """Make the moves in turn, on `labels` in place, until a whole round brings nothing."""
    quiet, stop = 0, (1 - _SHARE) * task.left
    while quiet < len(proposals) and not task.over and task.left >= stop:
        proposals.append(proposals.pop(0))
        other = _proposal(tables.singles, labels, *proposals[-1])
        energy = tables.energy(labels, other)
        quiet += 1
        if _regular_share(energy.weight) >= _REGULAR:
            chosen, _ = _least(energy, _step_limit(task))
            labels[:] = np.where(chosen == 1, other, labels)
            if task.offer(labels, part):
                quiet = 0


def _regular_share(weight: Floats) -> float:
    """Share of submodular pairs among those that a move can set at odds."""
    size = np.abs(weight).max(initial=0.0)
    odd, even = np.sum(weight < -1e-9 * size), np.sum(weight > 1e-9 * size)
    return float(even / max(odd + even, 1))


def _proposal(singles: Floats, labels: Ints, a: int, b: int) -> Ints:
    """What every variable may change to: state a, or a and b exchanged; its own label where that is forbidden."""
    other = np.full_like(labels, a) if b < 0 else np.where(labels == a, b, np.where(labels == b, a, labels))
    return np.where(singles[np.arange(len(labels)), other] > -np.inf, other, labels)


class _PairTables:
    """The pair tables of a problem, for choices between two labels per variable."""

    def __init__(self, scores: Scores) -> None:
        regions, (values, where) = scores.regions, scores.flat()
        pairs = np.flatnonzero(regions.order == 2)
        at = regions.scope_ptr[pairs][:, None] + np.arange(2)
        self.singles, self.values, self.start = scores.singles, values, where[pairs]
        self.ends, self.stride = regions.scope[at].astype(np.int64), regions.stride[at].astype(np.int64)
        self.forbidden = -penalty(values, len(where))

    def energy(self, zero: Ints, one: Ints) -> _Energy:
        """Minus the score of choosing labels `one` (x = 1) or `zero` (x = 0) for every variable."""
        n = len(zero)
        low, high = (-self.singles[np.arange(n), labels] for labels in (zero, one))
        (i, j), (step_i, step_j) = self.ends.T, self.stride.T
        first = [self.start + step_i * labels[i] for labels in (zero, one)]
        second = [step_j * labels[j] for labels in (zero, one)]
        # energies of (0, 0), (0, 1), (1, 0), (1, 1)
        a, b, c, d = (np.minimum(-self.values[x + y], self.forbidden) for x in first for y in second)
        weight = b + c - a - d
        regular = weight >= 0
        unary = high - low
        unary += np.bincount(i, np.where(regular, c - a, d - b), n)
        unary += np.bincount(j, d - c, n)
        constant = float(low.sum() + np.where(regular, a, b + c - d).sum())
        return _Energy(constant, unary, self.ends, weight)


def _least(energy: _Energy, limit: int) -> tuple[Ints, float]:
    """The choices that every least energy shares (-1: undecided), and a lower bound on it.

    Without negative weights all choices are decided up to ties, and the bound is the least energy. Otherwise the
    network has a node for each x and each 1 - x [Boros and Hammer 2002]; changing what is decided, in any
    labelling, never raises the energy.
    """
    n, (i, j), unary = len(energy.unary), energy.ends.T, energy.unary
    base = energy.constant + float(np.minimum(unary, 0.0).sum())
    regular = energy.weight >= 0
    if regular.all():
        side, flow = _cut(n, i, j, energy.weight, unary, limit)
    else:
        tails = np.concatenate([i, np.where(regular, n + j, j)])
        heads = np.concatenate([np.where(regular, j, n + j), n + i])
        twice = np.tile(np.abs(energy.weight), 2)
        side, flow = _cut(2 * n, tails, heads, twice, np.concatenate([unary, -unary]), limit)
        flow *= 0.5
    return np.where(side[:n] == SOURCE, 0, np.where(side[:n] == SINK, 1, -1)), base + flow


def _cut(
    n: int, tail: Ints, head: Ints, capacity: Floats, terminal: Floats, limit: int
) -> tuple[Ints, float]:
    """Sides of the nodes of a maximum flow, and at most its value, both up to rounding; see `max_flow`."""
    scale = _CAPACITY / (float(capacity.sum() + np.abs(terminal).sum()) or 1.0)
    heads = np.stack([head, tail], axis=1).ravel()
    residual = np.zeros(len(heads), dtype=np.int64)
    residual[::2] = np.rint(capacity * scale)
    tails = np.stack([tail, head], axis=1).ravel()
    ptr = np.concatenate([[0], np.cumsum(np.bincount(tails, minlength=n))])
    side, rest = np.zeros(n, dtype=np.int64), np.rint(terminal * scale).astype(np.int64)
    flow = max_flow(ptr, np.argsort(tails, kind="stable"), heads, residual, rest, side, limit)
    return side, (flow - len(heads) - n) / scale


def _step_limit(task: SearchTask) -> int:
    """Steps of a maximum flow in the time left."""
    return int(_STEPS_PER_SECOND * max(task.left, 0.0)) if task.timed else 2**62

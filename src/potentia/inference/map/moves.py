"""Exact moves: one of two labels per variable by minimum cuts, all labels of a block of variables by elimination."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import combinations
from typing import NamedTuple

import numpy as np

from ...base.types import Floats, Ints, WidthError
from ...graph.layout import components
from ...graph.regions import Regions, runs
from ...graph.scores import Scores
from ...kernels.forest import induced_forest
from ...kernels.max_flow import SINK, SOURCE, max_flow
from ..elimination import best_states, make_plan
from ..exact import Exact
from ..pair_engine import suits_pairs
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
#: Table entries per second that elimination maximises over, at least.
_ENTRIES_PER_SECOND = 3e7
#: Table entries in all beyond which messages would take gigabytes.
_MAX_ENTRIES = 4e8
#: Variables above which a component is solved by itself.
_LARGE = 1000
#: Table entries from which a better order is worth its search, and its cost in searches for the first, with reserve.
_THOROUGH_ENTRIES, _THOROUGH_COST = 1e7, 100.0
#: Sum of squared degrees up to which an order is tried, at most and per second left: finding one takes time like it.
_MAX_DEGREE_SQUARES, _DEGREE_SQUARES_PER_SECOND = 1e8, 2e6
#: Table entries that a window may take, from the first round to the last.
_ENTRIES = (2e4, 2e5, 2e6)
#: The same after a kick.
_KICK_ENTRIES = 2e5
#: The same of a forest, and the share of the best forest's gain below which windows gain more.
_FOREST_ENTRIES, _FOREST_GAIN = 1e8, 0.05
#: Variables of the first window.
_FIRST_SIZE = 16.0
#: A kick's ball in windows, the share of it that is redrawn, and the windows solved after it.
_BALL, _REDRAWN, _TRIES = 2.0, 0.3, 6
#: Kicks in vain after which an untimed search ends.
_PATIENCE = 50
_PART = "windows"


# -- minimum cuts


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
    scores = task.undecided
    allowed = scores.singles > -np.inf
    if scores.graph.max_order > 2 or allowed.sum(axis=1).max() > 2:
        return
    states = np.argsort(~allowed, axis=1, kind="stable")[:, :2]
    chosen, bound = least_energy(choice_energies(scores)(states[:, 0], states[:, 1]), _step_limit(task))
    task.tighten(-bound, "roof duality")
    rows = np.flatnonzero(chosen >= 0)
    if len(rows):
        allowed[rows] = False
        allowed[rows, states[rows, chosen[rows]]] = True
        task.restrict(allowed, "roof duality")


def move_labels(task: SearchTask) -> None:
    """Expansion moves until none improves, then swaps [Boykov et al. 2001], where tables allow them."""
    scores, labels = task.undecided, task.current
    if scores.graph.max_order != 2 or labels is None or scores.singles.shape[1] < 3:
        return
    states = range(scores.singles.shape[1])
    _descend(task, scores, labels, "expansion", [(state, -1) for state in states])
    if len(states) <= _SWAP_LABELS:
        _descend(task, scores, labels, "swap", list(combinations(states, 2)))


def _descend(task: SearchTask, scores: Scores, labels: Ints, part: str, proposals: list[tuple[int, int]]) -> None:
    """Make the moves in turn, on `labels` in place, until a whole round brings nothing."""
    energy_of, quiet, stop = choice_energies(scores), 0, (1 - _SHARE) * task.left
    while quiet < len(proposals) and not task.over and task.left >= stop:
        proposals.append(proposals.pop(0))
        other = _proposal(scores.singles, labels, *proposals[-1])
        energy = energy_of(labels, other)
        quiet += 1
        if _regular_share(energy.weight) >= _REGULAR:
            chosen, _ = least_energy(energy, _step_limit(task))
            labels[:] = np.where(chosen == 1, other, labels)
            if task.offer(labels, part):
                quiet = 0


def _regular_share(weight: Floats) -> float:
    """Share of submodular pairs among those that a move can set at odds."""
    size = np.abs(weight).max(initial=0.0)
    odd, even = np.sum(weight < -1e-9 * size), np.sum(weight > 1e-9 * size)
    return float(even / max(odd + even, 1))


def _proposal(singles: Floats, labels: Ints, a: int, b: int) -> Ints:
    """Proposed labels: state a everywhere, or a and b exchanged; the present label where that is forbidden."""
    other = np.full_like(labels, a) if b < 0 else np.where(labels == a, b, np.where(labels == b, a, labels))
    return np.where(singles[np.arange(len(labels)), other] > -np.inf, other, labels)


def choice_energies(scores: Scores) -> Callable[[Ints, Ints], _Energy]:
    """energy(zero, one): minus the score of choosing labels `one` (x = 1) or `zero` (x = 0) for every variable."""
    regions, (values, where) = scores.regions, scores.flat()
    pairs = np.flatnonzero(regions.order == 2)
    at = regions.scope_ptr[pairs][:, None] + np.arange(2)
    ends, start = regions.scope[at].astype(np.int64), where[pairs]
    (i, j), (step_i, step_j) = ends.T, regions.stride[at].astype(np.int64).T
    forbidden = -penalty(values, len(where))

    def energy(zero: Ints, one: Ints) -> _Energy:
        """The energy of choosing for each variable between two labels, as one of binary variables."""
        n = len(zero)
        low, high = (-scores.singles[np.arange(n), labels] for labels in (zero, one))
        first = [start + step_i * labels[i] for labels in (zero, one)]
        second = [step_j * labels[j] for labels in (zero, one)]
        # energies of (0, 0), (0, 1), (1, 0), (1, 1)
        a, b, c, d = (np.minimum(-values[x + y], forbidden) for x in first for y in second)
        weight = b + c - a - d
        regular = weight >= 0
        unary = high - low
        unary += np.bincount(i, np.where(regular, c - a, d - b), n)
        unary += np.bincount(j, d - c, n)
        constant = float(low.sum() + np.where(regular, a, b + c - d).sum())
        return _Energy(constant, unary, ends, weight)

    return energy


def least_energy(energy: _Energy, limit: int) -> tuple[Ints, float]:
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


def _cut(n: int, tail: Ints, head: Ints, capacity: Floats, terminal: Floats, limit: int) -> tuple[Ints, float]:
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


# -- elimination


def solve_components(task: SearchTask, entries: float) -> None:
    """Decide every connected component that elimination solves within this many table entries, and forests."""
    scores = task.undecided
    entries = min(entries, _MAX_ENTRIES, 0.5 * task.left * _ENTRIES_PER_SECOND)
    if entries <= 0 or (scores is task.unsolved[0] and entries <= task.unsolved[1]):
        return
    task.unsolved = scores, entries
    degree = np.diff(scores.regions.member_ptr).astype(np.float64)
    if degree @ degree > min(_MAX_DEGREE_SQUARES, _DEGREE_SQUARES_PER_SECOND * task.left):
        # orders take time quadratic in degree, except those of forests
        if scores.graph.is_forest and suits_pairs(scores.graph):
            _decide(task, np.arange(len(degree)), Exact().maximise(scores))
        return
    blocks, labels = BlockMoves(scores), np.zeros(len(degree), dtype=np.int64)
    label = components(*scores.graph.tree_order)
    parts = np.split(np.argsort(label, kind="stable"), np.cumsum(np.bincount(label))[:-1])
    small = [part for part in parts if len(part) <= _LARGE]
    solved = _solve_parts(task, blocks, small, labels, entries) if small else []
    for part in parts:
        if len(part) > _LARGE and not task.over:
            solved += _solve_parts(task, blocks, [part], labels, entries)
    if solved:
        rows = np.concatenate(solved)
        if blocks.forbids(labels, rows):
            task.exhaust("elimination")
        else:
            _decide(task, rows, labels[rows])


def _decide(task: SearchTask, variables: Ints, labels: Ints) -> None:
    """Hold variables at labels that are theirs in a best labelling."""
    allowed = task.undecided.singles > -np.inf
    allowed[variables] = False
    allowed[variables, labels] = True
    task.restrict(allowed, "elimination")


def _solve_parts(task: SearchTask, blocks: BlockMoves, parts: list[Ints], labels: Ints, entries: float) -> list[Ints]:
    """Solve components together, halving the list where they take too many entries; those solved."""
    begin, together = time.monotonic(), np.concatenate(parts)
    try:
        blocks.improve(labels, together, entries)
    except WidthError:
        took = time.monotonic() - begin
        if len(parts) > 1:
            half = len(parts) // 2
            halves = parts[:half], parts[half:]
            return [part for some in halves for part in _solve_parts(task, blocks, some, labels, entries)]
        if entries < _THOROUGH_ENTRIES or len(together) > _LARGE or _THOROUGH_COST * took > task.left:
            return []
        try:
            blocks.improve(labels, together, entries, quick=False)
        except WidthError:
            return []
    return parts


class BlockMoves:
    """Exact moves on one set of scores, in which forbidden entries cost more than all others can gain."""

    def __init__(self, scores: Scores) -> None:
        self.regions, (values, self.where) = scores.regions, scores.flat()
        self.allowed = scores.singles > -np.inf
        self.penalty = penalty(values, len(self.where))
        self.values = np.maximum(values, self.penalty)

    def improve(self, labels: Ints, block: Ints, entries: float, quick: bool = True) -> tuple[float, float]:
        """Give the block's variables their best labels in place; the gain, and the table entries it took.

        Raises `WidthError` where tables would have more than `entries` entries in all.
        """
        inner, touched, variables = _around(self.regions, block)
        mine = np.zeros((len(variables), self.allowed.shape[1]), dtype=bool)
        mine[np.arange(len(variables)), labels[variables]] = True
        at = np.searchsorted(variables, block)
        mine[at] = self.allowed[block]
        made = make_plan(inner, mine, int(entries), quick)
        if made.cost.total > entries:
            raise WidthError("the block is too wide.")
        where = self.where[touched]
        old, new = labels[variables], best_states(made, self.values, where)
        gain = _score(inner, self.values, where, new) - _score(inner, self.values, where, old)
        labels[block] = new[at]
        return gain, made.cost.total

    def score_around(self, labels: Ints, block: Ints) -> float:
        """Score of the regions that touch a block."""
        inner, touched, variables = _around(self.regions, block)
        return _score(inner, self.values, self.where[touched], labels[variables])

    def forbids(self, labels: Ints, block: Ints) -> bool:
        """Whether a region that touches the block is at a forbidden entry."""
        inner, touched, variables = _around(self.regions, block)
        return bool(np.any(entries_at(inner, self.values, self.where[touched], labels[variables]) == self.penalty))


def entries_at(regions: Regions, values: Floats, where: Ints, labels: Ints) -> Floats:
    """The score of every region at a labelling."""
    return values[where + np.add.reduceat(regions.stride * labels[regions.scope], regions.scope_ptr[:-1])]


def _score(regions: Regions, values: Floats, where: Ints, labels: Ints) -> float:
    """The score of a labelling: the sum over regions of their tables' entries."""
    return float(entries_at(regions, values, where, labels).sum())


def _around(regions: Regions, block: Ints) -> tuple[Regions, Ints, Ints]:
    """The regions that touch a block, over the variables they hold; which regions, and which variables."""
    if len(block) == len(regions.n_states):
        return regions, np.arange(len(regions.size)), np.arange(len(block))
    touched = np.unique(regions.member[csr_rows(regions.member_ptr, block)]).astype(np.int64)
    at = csr_rows(regions.scope_ptr, touched)
    variables, scope = np.unique(regions.scope[at], return_inverse=True)
    ptr = np.concatenate([[0], np.cumsum(regions.scope_ptr[touched + 1] - regions.scope_ptr[touched])])
    none, narrow = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
    inner = Regions(
        regions.n_states[variables], none, ptr, scope.astype(np.int32), regions.stride[at],
        regions.size[touched], none, none, narrow, narrow,
    )  # fmt: skip
    return inner, touched, variables.astype(np.int64)


def csr_rows(ptr: Ints, which: Ints) -> Ints:
    """Positions of the entries of some rows of a CSR, row after row."""
    return runs(ptr[which], ptr[which + 1] - ptr[which])


class Windows:
    """Improves a labelling window by window; keeps the size of windows at what elimination can afford."""

    def __init__(self, task: SearchTask) -> None:
        scores = task.undecided
        self.task, self.blocks, self.regions = task, BlockMoves(scores), scores.regions
        self.size = _FIRST_SIZE

    def descend(self, labels: Ints) -> None:
        """Forests, then windows of growing width, until none improves the labelling, which is changed in place."""
        try:
            self._visit_forests(labels)
            for entries in _ENTRIES:
                self.size = _FIRST_SIZE
                self._visit_all(labels, entries)
        finally:
            self.task.offer(labels, _PART)

    def _visit_forests(self, labels: Ints) -> None:
        """Solve random induced forests, each about half of all variables, as long as they gain much."""
        gain, most, inside = np.inf, self.task.slack, np.zeros(len(labels), dtype=bool)
        while gain > _FOREST_GAIN * most and not self.task.over:
            induced_forest(self.regions, self.task.rng.permutation(len(labels)), inside)
            try:
                gain, _ = self.blocks.improve(labels, np.flatnonzero(inside), _FOREST_ENTRIES)
            except WidthError:
                return
            most = max(most, gain)

    def _visit_all(self, labels: Ints, entries: float) -> None:
        """Windows around variables in random order until each has been in one that gained nothing."""
        pending = np.ones(len(labels), dtype=bool)
        while pending.any() and not self.task.over:
            for seed in self.task.rng.permutation(np.flatnonzero(pending)):
                if not pending[seed]:
                    continue
                if self.task.over:
                    break
                block, gain = self.improve(labels, int(seed), entries)
                pending[block] = False
                if gain > self.task.slack:
                    pending[self.neighbours(block)] = True

    def kick_on(self, labels: Ints) -> None:
        """Random kicks until the time limit; without one, until many in a row bring no gain."""
        quiet = 0
        while not self.task.over and (self.task.timed or quiet < _PATIENCE):
            quiet = 0 if self.kick(labels) and self.task.offer(labels, _PART) else quiet + 1

    def kick(self, labels: Ints) -> bool:
        """Redraw some labels of a ball and search around it; taken back if it ends worse. Whether it ends better."""
        rng, old = self.task.rng, labels.copy()
        ball = self.ball(int(rng.integers(len(labels))), int(_BALL * self.size))
        redrawn = ball[rng.random(len(ball)) < _REDRAWN]
        before = self.blocks.score_around(labels, ball)
        allowed = self.blocks.allowed[redrawn]
        labels[redrawn] = np.where(allowed, rng.random(allowed.shape), -1.0).argmax(axis=1)
        gain = self.blocks.score_around(labels, ball) - before
        for seed in rng.choice(ball, min(_TRIES, len(ball)), replace=False):
            gain += self.improve(labels, int(seed), _KICK_ENTRIES)[1]
        if gain < -self.task.slack:
            labels[:] = old
        return gain > self.task.slack

    def improve(self, labels: Ints, seed: int, entries: float) -> tuple[Ints, float]:
        """Solve the window around a variable; the window and the gain."""
        while True:
            block = self.ball(seed, max(int(self.size), 1))
            try:
                gain, used = self.blocks.improve(labels, block, entries)
            except WidthError:
                self.size *= 0.8
                if self.size < 1:
                    return block, 0.0
                continue
            if used < 0.5 * entries:
                self.size = min(1.05 * self.size + 1, len(labels))
            return block, gain

    def ball(self, seed: int, size: int) -> Ints:
        """The `size` variables nearest to a variable, those of the last layer drawn at random."""
        inside, layer = np.array([seed]), np.array([seed])
        while len(inside) < size:
            layer = np.setdiff1d(self.neighbours(layer), inside, assume_unique=True)
            if not len(layer):
                break
            inside = np.concatenate([inside, self.task.rng.permutation(layer)])
        return np.sort(inside[:size])

    def neighbours(self, block: Ints) -> Ints:
        """The variables that share a region with the block, and the block."""
        r = self.regions
        touched = r.member[csr_rows(r.member_ptr, block)].astype(np.int64)
        return np.unique(r.scope[csr_rows(r.scope_ptr, touched)]).astype(np.int64)

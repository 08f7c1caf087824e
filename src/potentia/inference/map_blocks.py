"""Exact moves: the best labels of a block of variables given all others, by elimination."""

from __future__ import annotations

import time

import numpy as np

from .._types import Floats, Ints, WidthError
from ..graph.flat import Regions, runs
from ..graph.schedule import is_forest
from ..graph.scores import Scores
from .elimination import best_states
from .elimination_plan import make_plan
from .exact import Exact
from .map_reduce import components, penalty
from .map_task import Task
from .pair_engine import suits_pairs

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


def solve_components(task: Task, entries: float) -> None:
    """Decide every connected component that elimination solves within this many table entries, and forests."""
    scores = task.problem.scores
    assert scores is not None
    entries = min(entries, _MAX_ENTRIES, 0.5 * task.left * _ENTRIES_PER_SECOND)
    if entries <= 0 or (scores is task.unsolved[0] and entries <= task.unsolved[1]):
        return
    task.unsolved = scores, entries
    degree = np.diff(scores.regions.member_ptr).astype(np.float64)
    if degree @ degree > min(_MAX_DEGREE_SQUARES, _DEGREE_SQUARES_PER_SECOND * task.left):
        # orders take time quadratic in degree, except those of forests
        if is_forest(scores.graph) and suits_pairs(scores.graph):
            _decide(task, np.arange(len(degree)), Exact().maximise(scores))
        return
    blocks, labels = Blocks(scores), np.zeros(len(degree), dtype=np.int64)
    label = components(scores.regions)
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


def _decide(task: Task, variables: Ints, labels: Ints) -> None:
    """Hold variables at labels that are theirs in a best labelling."""
    assert task.problem.scores is not None
    allowed = task.problem.scores.singles > -np.inf
    allowed[variables] = False
    allowed[variables, labels] = True
    task.restrict(allowed, "elimination")


def _solve_parts(task: Task, blocks: Blocks, parts: list[Ints], labels: Ints, entries: float) -> list[Ints]:
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


class Blocks:
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
        if made.found.total > entries:
            raise WidthError("the block is too wide.")
        where = self.where[touched]
        old, new = labels[variables], best_states(made, self.values, where)
        gain = _score(inner, self.values, where, new) - _score(inner, self.values, where, old)
        labels[block] = new[at]
        return gain, made.found.total

    def score_around(self, labels: Ints, block: Ints) -> float:
        """Score of the regions that touch a block."""
        inner, touched, variables = _around(self.regions, block)
        return _score(inner, self.values, self.where[touched], labels[variables])

    def forbids(self, labels: Ints, block: Ints) -> bool:
        """Whether a region that touches the block is at a forbidden entry."""
        inner, touched, variables = _around(self.regions, block)
        return bool(
            np.any(_entries(inner, self.values, self.where[touched], labels[variables]) == self.penalty)
        )


def _entries(regions: Regions, values: Floats, where: Ints, labels: Ints) -> Floats:
    """What every region scores at a labelling."""
    return values[where + np.add.reduceat(regions.stride * labels[regions.scope], regions.scope_ptr[:-1])]


def _score(regions: Regions, values: Floats, where: Ints, labels: Ints) -> float:
    return float(_entries(regions, values, where, labels).sum())


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

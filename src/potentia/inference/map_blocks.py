"""Exact moves: the best labels of a block of variables given all others, by elimination."""

from __future__ import annotations

import numpy as np

from .._types import Floats, Ints, WidthError
from ..graph.flat import Regions
from ..graph.scores import Scores
from ..kernels.elimination import send_labels, send_up
from ..kernels.ordering import greedy_order
from .elimination_order import adjacency
from .elimination_plan import Plan, make_plan
from .map_reduce import components, penalty
from .map_task import Task

#: Table entries per second that elimination maximises over, at least.
_ENTRIES_PER_SECOND = 3e7
#: Table entries in all beyond which messages would take gigabytes.
_MAX_ENTRIES = 4e8
#: Variables above which a block's width is estimated before a good order is searched for.
_LARGE = 1000


def solve_components(task: Task, entries: float) -> None:
    """Decide every connected component that elimination solves within this many table entries."""
    scores = task.problem.scores
    assert scores is not None
    entries = min(entries, _MAX_ENTRIES, 0.5 * task.left * _ENTRIES_PER_SECOND)
    if entries <= 0 or (scores is task.unsolved[0] and entries <= task.unsolved[1]):
        return
    task.unsolved = scores, entries
    block_moves = Blocks(scores)
    label = components(scores.regions)
    cuts = np.cumsum(np.bincount(label))[:-1]
    parts = sorted(np.split(np.argsort(label, kind="stable"), cuts), key=len)
    allowed, labels = scores.singles > -np.inf, np.zeros(len(label), dtype=np.int64)
    solved = _solve_parts(block_moves, parts, labels, entries)
    if not solved:
        return
    rows = np.concatenate(solved)
    if block_moves.forbids(labels, rows):
        task.exhaust("elimination")
        return
    allowed[rows] = False
    allowed[rows, labels[rows]] = True
    task.restrict(allowed, "elimination")


def _solve_parts(block_moves: Blocks, parts: list[Ints], labels: Ints, entries: float) -> list[Ints]:
    """Solve components together, halving the list where they take too many entries; those solved."""
    try:
        block_moves.improve(labels, np.concatenate(parts), entries)
    except WidthError:
        if len(parts) == 1:
            return []
        half = len(parts) // 2
        return [
            *_solve_parts(block_moves, parts[:half], labels, entries),
            *_solve_parts(block_moves, parts[half:], labels, entries),
        ]
    return parts


class Blocks:
    """Exact moves on one set of scores, in which forbidden entries cost more than all others can gain."""

    def __init__(self, scores: Scores) -> None:
        self.regions, (values, self.where) = scores.regions, scores.flat()
        self.allowed = scores.singles > -np.inf
        self.penalty = penalty(values, len(self.where))
        self.values = np.maximum(values, self.penalty)

    def improve(self, labels: Ints, block: Ints, entries: float) -> tuple[float, float]:
        """Give the block's variables their best labels in place; the gain, and the table entries it took.

        Raises `WidthError` where tables would have more than `entries` entries in all.
        """
        inner, touched, variables = _around(self.regions, block)
        if len(block) > _LARGE:
            _refuse_hopeless(inner, self.allowed[variables].sum(axis=1), entries)
        mine = np.zeros((len(variables), self.allowed.shape[1]), dtype=bool)
        mine[np.arange(len(variables)), labels[variables]] = True
        at = np.searchsorted(variables, block)
        mine[at] = self.allowed[block]
        made = make_plan(inner, mine, int(entries))
        if made.found.total > entries:
            raise WidthError("the block is too wide.")
        where = self.where[touched]
        old, new = labels[variables], _best_states(made, self.values, where)
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


def _refuse_hopeless(regions: Regions, n_states: Ints, entries: float) -> None:
    """Raise `WidthError` where a quick order meets a table beyond `entries`; good orders take long on large graphs."""
    ptr, neighbour = adjacency(len(n_states), regions.scope_ptr, regions.scope.astype(np.int64))
    ones, none = np.ones(len(n_states)), np.zeros(0)
    order, *_ = greedy_order(ptr, neighbour, n_states.astype(np.float64), ones, none, False, entries)
    if len(order) < len(n_states):
        raise WidthError("the block is too wide.")


def _best_states(made: Plan, values: Floats, where: Ints) -> Ints:
    """The best labels under a plan, of its variables."""
    store = np.empty(made.program.offset[-1])
    store[: len(made.entry)] = values[made.entries(where)]
    labels = made.kept[:, 0].copy()
    if len(made.order):
        send_up(made.program, store, True, np.zeros(len(made.order)))
        found = np.zeros((1, len(made.order)), dtype=np.int64)
        send_labels(made.program, store, np.zeros((1, 0)), found)
        labels[made.order] = made.kept[made.order, found[0]]
    return labels


def _entries(regions: Regions, values: Floats, where: Ints, labels: Ints) -> Floats:
    """What every region scores at a labelling."""
    return values[where + np.add.reduceat(regions.stride * labels[regions.scope], regions.scope_ptr[:-1])]


def _score(regions: Regions, values: Floats, where: Ints, labels: Ints) -> float:
    return float(_entries(regions, values, where, labels).sum())


def _around(regions: Regions, block: Ints) -> tuple[Regions, Ints, Ints]:
    """The regions that touch a block, over the variables they hold; which regions, and which variables."""
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
    length = ptr[which + 1] - ptr[which]
    within = np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length)
    return np.repeat(ptr[which], length) + within

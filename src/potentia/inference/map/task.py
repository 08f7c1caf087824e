"""The search task of `MAP`: the best labelling and bound so far, the time left, and the problem that is undecided."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ...base.types import Bools, Floats, InfeasibleError, Ints
from ...graph.regions import Narrow
from ...graph.scores import Scores, score_labels
from ...graph.structure import Graph
from ...kernels.rounding import kept_entries, prune_states
from ..clock import Clock
from ..elimination import factor_tables

#: Share of the score below which a gap is rounding.
_ROUNDING = 1e-9


class SearchTask:
    """One search for the best labelling.

    Attributes:
        scores: the problem as given.
        problem: what is left of it; every labelling better than `labels` is still in there.
        labels, score, found_by: the best labelling so far, its score (-inf: none) and the part that found it.
        bound, bound_by: the least upper bound so far, and the part that found it.
        iterations: iterations of dual ascent.
        interrupted: whether a KeyboardInterrupt ended the search.
    """

    def __init__(self, scores: Scores, clock: Clock, seed: int) -> None:
        self.scores = scores
        self.problem: Reduced = whole(scores)
        self.labels: Ints | None = None
        self.score, self.found_by = -math.inf, "none"
        self.bound, self.bound_by = math.inf, "none"
        self.iterations, self.interrupted = 0, False
        #: Scores of which elimination has solved what it can, and the table entries it was allowed.
        self.unsolved: tuple[Scores | None, float] = (None, 0.0)
        #: Called now and then: takes what is found beside the part under way.
        self.poll: Callable[[], object] = lambda: None
        self.rng = np.random.default_rng(seed)
        self.timed = clock.left < math.inf
        self.clock = clock
        self._cancelling = scores.rounding()

    @property
    def left(self) -> float:
        """Seconds left, inf without a limit."""
        return self.clock.left

    @property
    def slack(self) -> float:
        """A bound on the rounding error of scores; large scores of either sign may add up to a small one."""
        return _ROUNDING * abs(self.score) + self._cancelling

    @property
    def proven(self) -> bool:
        """Whether the labelling is the best."""
        return self.labels is not None and self.bound <= self.score + self.slack

    @property
    def over(self) -> bool:
        """Whether there is nothing left to do, or no time for it."""
        self.poll()
        return self.proven or self.left <= 0

    @property
    def undecided(self) -> Scores:
        """Scores of the undecided variables, of which there are some."""
        scores = self.problem.scores
        assert scores is not None
        return scores

    def offer(self, labels: Ints, part: str) -> bool:
        """Take labels of the undecided variables if they are better than the best so far."""
        full = self.problem.expand(labels)
        score = score_labels(self.scores, full)
        if score <= self.score:
            return False
        self.labels, self.score, self.found_by = full, score, part
        return True

    def tighten(self, bound: float, part: str) -> None:
        """Take an upper bound on the score of the undecided part."""
        bound = max(bound + self.problem.constant, self.score)
        if bound < self.bound:
            self.bound, self.bound_by = bound, part

    @property
    def current(self) -> Ints | None:
        """The best labelling's labels of the undecided variables, None if there is none.

        A label that is ruled out meanwhile is replaced by the variable's own best state.
        """
        if self.labels is None or self.problem.scores is None:
            return None
        labels, singles = self.labels[self.problem.variables], self.problem.scores.singles
        allowed = singles[np.arange(len(labels)), labels] > -np.inf
        return np.where(allowed, labels, singles.argmax(axis=1))

    def restrict(self, allowed: Bools, part: str) -> None:
        """Keep only these states of the undecided variables; none of the others is in a better labelling.

        Follows up hard constraints. Where nothing remains the best labelling is proven, or there is none at all.
        """
        if not propagate(self.undecided, allowed):
            self.exhaust(part)
            return
        self.problem = reduce(self.problem, allowed)
        if self.problem.scores is None:
            self.offer(self.problem.variables, part)
            self.exhaust(part)

    def exhaust(self, part: str) -> None:
        """Take note that no labelling is better than the best so far."""
        if self.labels is None:
            raise InfeasibleError("every labelling is forbidden: the -inf scores contradict each other.")
        self.bound, self.bound_by = self.score, part


# -- smaller problems with the same best labelling ----------------------------------------------------------------


class Reduced(NamedTuple):
    """The undecided part of a problem, once some of its variables are decided.

    Attributes:
        scores: of the undecided variables given the decided ones; None if all are decided.
        variables: the undecided variables' numbers in the whole problem.
        labels: a label of every variable of the whole problem; right for the decided ones.
        constant: score of the regions without undecided variables.
    """

    scores: Scores | None
    variables: Ints
    labels: Ints
    constant: float

    def expand(self, labels: Ints) -> Ints:
        """Labels of the undecided variables as labels of all."""
        full = self.labels.copy()
        full[self.variables] = labels
        return full


def whole(scores: Scores) -> Reduced:
    """A problem of which nothing is decided."""
    n = scores.graph.n_variables
    return Reduced(scores, np.arange(n), np.zeros(n, dtype=np.int64), 0.0)


def propagate(scores: Scores, allowed: Bools) -> bool:
    """Clear states in place that hard constraints rule out (arc consistency); whether every variable keeps one."""
    prune_states(scores.regions, *scores.flat(), allowed)
    return bool(allowed.any(axis=1).all())


def reduce(problem: Reduced, allowed: Bools) -> Reduced:
    """The problem with these states only, (undecided variables, max states); variables with one are decided.

    Tables that keep all their variables are not copied, so shared tables stay shared.
    """
    scores = problem.scores
    assert scores is not None
    labels = allowed.argmax(axis=1)
    free = allowed.sum(axis=1) > 1
    restricted = copy.copy(scores)
    restricted.singles = np.where(allowed, scores.singles, -np.inf)
    if free.all():
        return problem._replace(scores=restricted)
    full = problem.expand(labels)
    if not free.any():
        return Reduced(None, np.zeros(0, dtype=np.int64), full, problem.constant + score_labels(scores, labels))
    left, constant = _condition(restricted, free, labels)
    return Reduced(left, problem.variables[free], full, problem.constant + constant)


def _condition(scores: Scores, free: Bools, labels: Ints) -> tuple[Scores, float]:
    """Scores of the free variables given labels of the others, and the constant that remains of the rest."""
    graph, regions = scores.graph, scores.regions
    number, n_states = np.cumsum(free) - 1, graph.n_states[free]
    singles = scores.singles[free]
    constant = float(scores.singles[~free, labels[~free]].sum())
    scopes: dict[str, Ints] = {}
    values: dict[str, Floats] = {}
    offsets: dict[str, Ints] = {}
    for k, (kind, scope) in enumerate(graph.scopes.items()):
        if scope.shape[1] < 2 or not len(scope):
            continue
        begin, end = regions.scope_ptr[regions.kind_ptr[k : k + 2]]
        stride = regions.stride[begin:end].astype(np.int64).reshape(scope.shape)
        table, offset = scores.kind(kind)
        loose = free[scope]
        start = offset + np.where(loose, 0, stride * labels[scope]).sum(axis=1)
        count = loose.sum(axis=1)
        constant += float(table[start[count == 0]].sum())
        for order in range(1, scope.shape[1] + 1):
            rows = np.flatnonzero(count == order)
            if not len(rows):
                continue
            inner, steps = (part[rows][loose[rows]].reshape(-1, order) for part in (number[scope], stride))
            own = table, start[rows]
            if order < scope.shape[1]:
                own = _written_out(table, start[rows], steps, inner, n_states)
            if order == 1:
                length = n_states[inner[:, 0]]
                state = np.arange(len(own[0])) - np.repeat(own[1], length)
                np.add.at(singles, (np.repeat(inner[:, 0], length), state), own[0])
            else:
                name = f"{kind}:{order}"
                scopes[name], values[name], offsets[name] = inner, *own
    left = Scores(Graph(n_states, scopes), {})
    left.replace(values, offsets)
    left.singles = np.ascontiguousarray(singles[:, : left.singles.shape[1]])
    return left, constant


def _written_out(table: Floats, start: Ints, steps: Ints, scope: Ints, n_states: Ints) -> tuple[Floats, Ints]:
    """Tables with some axes held, one after another in C order, and their offsets."""
    n, order = scope.shape
    state = np.tile(np.arange(int(n_states.max())), (len(n_states), 1))
    index, offset = table_entries(np.arange(n + 1) * order, scope.ravel(), steps.ravel(), start, n_states, state)
    return table[index], offset[:-1]


def table_entries(
    scope_ptr: Ints, scope: Ints | Narrow, stride: Ints | Narrow, start: Ints, count: Ints, states: Ints
) -> tuple[Ints, Ints]:
    """Index of every entry of every table whose variables are in their first `count` of `states`; the tables' ends.

    Args:
        scope_ptr, scope, stride: CSR of each table's variables and their steps in it.
        start: index of the entry at which all of them are in state 0.
        count, states: states per variable, and which those are, (n, max states).
    """
    program = factor_tables(count, scope_ptr, scope)
    return kept_entries(program, len(scope_ptr) - 1, stride.astype(np.int64), start, states), program.offset


def penalty(values: Floats, n: int) -> float:
    """A finite score for what is forbidden: one of them weighs more than all that n other entries can gain."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return -1.0
    return float(finite.min() - (n + 1) * np.ptp(finite) - (np.abs(finite).max() or 1.0))

"""From marginals to one good labelling: exact on forests, else rounding, local search, and kicks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..base.types import ArrayLike, Bools, Floats, Ints, PotentiaError
from ..graph.scores import Scores, score_labels
from ..kernels import labelling as kernels
from ..kernels import rounding
from ..kernels.rounding import find_hard
from .base import Result
from .forest import best_labels
from .structured import structured_labelling

#: Table entries that kicks may read: a multiple of those of a pass, with a minimum and a maximum. Work instead of
#: seconds keeps results the same on every machine; the most is about a tenth of a second.
_KICK_PASSES, _KICK_LEAST, _KICK_MOST = 6, 50_000, 5_000_000
#: Variables of all regions together from which a graph counts as large.
_LARGE = 3_000_000
#: Attempts to make an infeasible labelling feasible.
_REPAIRS = 10
#: Constraint searches from one set of marginals, and the dead ends the first one may meet; each may meet twice more.
_RESTARTS, _DEAD_ENDS = 6, 100
#: Classes of confidence in which variables are rounded.
_LEVELS = 8
#: How often search continues from recomputed fields, at most, if rounding had changed the old ones by this share.
_REFILLS, _DRIFT = 3, 1e-11
#: Smallest weight of a state that is not excluded.
_LEAST = 1e-9


def search(scores: Scores, starts: Sequence[ArrayLike], pairs: bool = True) -> Ints:
    """The best of local searches from complete labellings, (n_variables,).

    Changes one variable at a time, and with `pairs` also both variables of each pair region, until nothing
    improves. Labellings are compared by their number of forbidden (-inf) configurations first, so a start may
    be infeasible; the result is feasible only if search met a feasible labelling. A pass is linear in the regions.
    """
    if not len(starts):
        raise PotentiaError("search needs at least one labelling to start from.")
    return _Climb(scores, pairs).best_of(starts).labels


def conditional_rounding(scores: Scores, variable_marginals: Floats) -> Ints:
    """Fix variables from the surest to the least sure, each given those before and the rest by marginals.

    Where nothing is forbidden the labelling scores at least what drawing each variable from its marginal does
    on average [method of conditional expectations]. Costs a pass over the tables of each variable's regions.
    Where pairs or larger regions forbid configurations, constraint propagation and backtracking keep to what is
    allowed; if that meets too many dead ends the labelling is not feasible.
    """
    return _Climb(scores, pairs=True).rounded(variable_marginals)


def best_labelling(result: Result) -> Ints:
    """The best labelling of a forest; elsewhere the best found from a result's marginals.

    That is the better of both roundings after local search, then seeded kicks; on large graphs, where a search
    takes seconds, conditional rounding only.
    """
    scores, q = result.scores, result.variable_marginals
    if scores.graph.structures:
        return structured_labelling(scores, [result.mpm()])
    if scores.graph.is_forest:
        return best_labels(scores)
    climb = _Climb(scores, pairs=True)
    best = climb(climb.rounded(q))
    if len(scores.regions.scope) < _LARGE:
        best = best.or_better(climb(result.mpm()))
    bounded = result.target == "max_score" and result.bound in ("upper", "exact")
    if bounded and result.score(best.labels) >= result.value:
        return best.labels
    return keep_observed(scores, climb.kicked(best, q, seed=0).labels)


def keep_observed(scores: Scores, labels: Ints) -> Ints:
    """Labels in which states that single scores forbid, as `observed` does, become the best ones by those scores."""
    singles = scores.singles
    return np.where(singles[np.arange(len(labels)), labels] > -np.inf, labels, singles.argmax(axis=1))


def feasible_labelling(scores: Scores, rng: np.random.Generator | int = 0) -> Ints | None:
    """A random labelling, moved where it is forbidden to one with a finite score; None if none was found."""
    rng = np.random.default_rng(rng)
    allowed = scores.singles > -np.inf
    q = np.where(allowed, rng.random(allowed.shape), 0.0)
    labels = q.argmax(axis=1)
    if scores.graph.structures:
        for _ in range(_REPAIRS):
            labels = structured_labelling(scores, [labels])
            if score_labels(scores, labels) > -np.inf:
                break
            labels = np.where(allowed, rng.random(allowed.shape), 0.0).argmax(axis=1)
    elif score_labels(scores, labels) == -np.inf:
        climb = _Climb(scores, pairs=True)
        best = climb.best_of([labels, climb.rounded(q)])
        labels = (climb.kicked(best, q, seed=0) if best.bad else best).labels
    return labels if score_labels(scores, labels) > -np.inf else None


class _Optimum(NamedTuple):
    """A labelling that local search ended in, its fields, forbidden configurations and finite score."""

    labels: Ints
    fields: kernels.Fields
    bad: int
    good: float

    def or_better(self, other: _Optimum) -> _Optimum:
        """The other one if it is better."""
        return other if kernels.better(other.bad, other.good, self.bad, self.good) else self


class _Climb:
    """Rounding and local search on one set of scores; `work` counts the table entries that searches read."""

    def __init__(self, scores: Scores, pairs: bool) -> None:
        self.flat = (scores.regions, *scores.flat())
        self.bonds = scores.graph.bonds
        self.pairs = pairs
        self.allowed = scores.singles > -np.inf
        self.hard = np.zeros(len(scores.regions.size), dtype=np.bool_)
        if any(scores.bounds(kind) is None for kind in scores.graph.clique_kinds):
            find_hard(*self.flat, self.hard)
        self.rounding_room = np.zeros((rounding.ROOM, self.allowed.shape[1]))
        self.search_room = kernels.scratch(*self.allowed.shape)
        self.impossible = False
        self.work = 0

    def __call__(self, start: ArrayLike, near: _Optimum | None = None) -> _Optimum:
        """The local optimum reached from a labelling; cheaper where it differs little from one that is known."""
        start = np.asarray(start, dtype=np.int64)
        if near is None:
            shape = self.allowed.shape
            labels, flags = start.copy(), np.ones((2, len(start)), dtype=np.bool_)
            fields = kernels.Fields(np.zeros(shape, dtype=np.int64), np.zeros(shape), flags)
            kernels.fill_fields(*self.flat, labels, fields)
        else:
            labels, fields = near.labels.copy(), kernels.Fields(*(a.copy() for a in near.fields))
        for _ in range(_REFILLS):
            arguments = (self.bonds, labels, fields, start, self.pairs, self.search_room)
            self.work += kernels.local_search(*self.flat, *arguments)
            self.work += fields.good.shape[1] * len(self.flat[0].stride)
            old = fields.good.copy()
            kernels.fill_fields(*self.flat, labels, fields)
            if np.abs(fields.good - old).max(initial=0.0) <= _DRIFT * np.abs(fields.good).max(initial=0.0):
                break
            start = labels
        fields.flags[:] = False
        return _Optimum(labels, fields, *kernels.total_score(*self.flat, labels))

    def best_of(self, starts: Sequence[ArrayLike]) -> _Optimum:
        """The best local optimum reached from any of the labellings."""
        best = self(starts[0])
        for start in starts[1:]:
            best = best.or_better(self(start))
        return best

    def violated(self, labels: Ints) -> Bools:
        """Which variables take part in a forbidden configuration."""
        marked = np.zeros(len(labels), dtype=np.bool_)
        kernels.mark_violated(*self.flat, labels, marked)
        return marked

    def rounded(self, variable_marginals: Floats) -> Ints:
        """Labels fixed variable by variable, the most certain first, each given the ones before it."""
        q = self._distribution(variable_marginals)
        # classes of similar confidence, each in the variables' order, read memory in long runs
        order = np.argsort((-_LEVELS * q.max(axis=1)).astype(np.int16), kind="stable")
        labels = np.zeros(len(q), dtype=np.int64)
        if not (self.hard.any() and self._allowed_labelling(q, order, labels)):
            rounding.round_in_order(*self.flat, q, order, labels, self.rounding_room)
        return labels

    def _allowed_labelling(self, q: Floats, order: Ints, labels: Ints) -> bool:
        """Whether constraint search, restarted with what it learnt of conflicts, filled `labels`."""
        rank, conflict = np.empty(len(order), dtype=np.int64), np.ones(len(order))
        rank[order] = np.arange(len(order))
        # marginals of zero may be those of a vertex or have underflowed; only constraints exclude a state
        weight = np.where(self.allowed, np.maximum(q, _LEAST), 0.0)
        for k in range(0 if self.impossible else _RESTARTS):
            limit = (_DEAD_ENDS + len(order) // 20) << k
            outcome = rounding.find_labelling(
                *self.flat, self.hard, weight.copy(), rank, conflict, limit, labels, self.rounding_room
            )
            if outcome != rounding.STOPPED:
                self.impossible = outcome == rounding.IMPOSSIBLE
                return not self.impossible
        return False

    def kicked(self, best: _Optimum, variable_marginals: Floats, seed: int) -> _Optimum:
        """Iterated local search from a labelling, never worse than what was given; see `kernels.shaking.shake`.

        Kicks redraw a few neighbouring variables from the marginals mixed with as much of the uniform distribution over
        allowed states, as often as a fixed number of table entries allows. An infeasible labelling is first repaired,
        by constraint search with random chances and by redrawing its forbidden configurations in turn.
        """
        weight = self._distribution(variable_marginals) + self.allowed / self.allowed.sum(axis=1, keepdims=True)
        rate = np.where(self.allowed, weight, 0.0)
        best = self._repaired(best, rate, seed)
        regions = self.flat[0]
        passes = _KICK_PASSES * len(regions.stride) * rate.shape[1]
        labels, fields = best.labels.copy(), kernels.Fields(*(a.copy() for a in best.fields))
        limit = int(np.clip(passes, _KICK_LEAST, _KICK_MOST))
        step = kernels.shaking_scratch(len(labels))
        kernels.shake(*self.flat, labels, fields, rate, np.random.default_rng(seed), limit, step)
        return best.or_better(self(labels, best))

    def _repaired(self, best: _Optimum, rate: Floats, seed: int) -> _Optimum:
        """Constraint search with random chances, and redrawing of violated configurations, in turn while infeasible."""
        rng = np.random.default_rng(seed)
        for k in range(0 if self.impossible else _REPAIRS):
            if best.bad == 0:
                break
            # a state drawn with probability proportional to its rate is the one with the first arrival
            arrival = rng.exponential(size=rate.shape) / np.maximum(rate, 1e-300)
            if k % 2 == 0:
                start = self.rounded(np.where(self.allowed, 1 / arrival, 0.0))
            else:
                start = np.where(self.violated(best.labels), arrival.argmin(axis=1), best.labels)
            best = best.or_better(self(start, best))
        return best

    def _distribution(self, variable_marginals: Floats) -> Floats:
        """Marginals as distributions over allowed states, uniform where nothing is left of them."""
        q = np.where(self.allowed, np.maximum(variable_marginals, 0.0), 0.0)
        q = np.where(q.sum(axis=1, keepdims=True) > 0, q, self.allowed)
        # products of weights of unlikely states must not vanish: zero means forbidden
        q = np.where(q > 0, np.maximum(q / q.sum(axis=1, keepdims=True), _LEAST), 0.0)
        return q / q.sum(axis=1, keepdims=True)

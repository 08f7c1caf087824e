"""From marginals to one good labelling: rounding, local search, and a few kicks out of local optima."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._types import ArrayLike, Floats, Ints, PotentiaError
from ..graph.scores import Scores
from ..kernels import labelling as kernels
from .base import Result

#: Share of the variables that a kick redraws.
_KICK = 0.1
#: Classes of confidence in which variables are rounded.
_LEVELS = 8


def search(scores: Scores, starts: Sequence[ArrayLike], pairs: bool = True) -> Ints:
    """The best of local searches from complete labellings, (n_variables,).

    Changes one variable at a time, and with `pairs` also both variables of each pair region, until nothing
    improves. Labellings are compared by their number of forbidden (-inf) configurations first, so a start may
    be infeasible; the result is feasible only if search met a feasible labelling.
    """
    if not len(starts):
        raise PotentiaError("search needs at least one labelling to start from")
    climb = _Climb(scores, pairs)
    best = climb(starts[0])
    for start in starts[1:]:
        best = climb.better(climb(start), best)
    return best


def conditional_rounding(scores: Scores, variable_marginals: Floats) -> Ints:
    """Fix variables from the surest to the least sure, each given those before and the rest by marginals.

    Where nothing is forbidden the labelling scores at least what drawing each variable from its marginal does
    on average [method of conditional expectations]. Costs a pass over the tables of each variable's regions.
    """
    q = _distribution(scores, variable_marginals)
    # classes of like confidence, each in the variables' order, read memory in long runs
    order = np.argsort((-_LEVELS * q.max(axis=1)).astype(np.int16), kind="stable")
    labels = np.zeros(len(q), dtype=np.int64)
    kernels.round_in_order(scores.regions, *scores.flat(), q, order, labels)
    return labels


def best_labelling(result: Result) -> Ints:
    """The best labelling found from a result's marginals: both roundings, local search, then seeded kicks."""
    scores, q = result.scores, result.variable_marginals
    labels = search(scores, [result.mpm(), conditional_rounding(scores, q)])
    bounded = result.target == "max_score" and result.bound in ("upper", "exact")
    if bounded and result.score(labels) >= result.value:
        return labels
    return kicked(scores, labels, q)


def kicked(scores: Scores, labels: Ints, variable_marginals: Floats, seed: int = 0) -> Ints:
    """Search again from perturbed copies of the best labelling so far; never worse than what was given.

    A kick redraws a tenth of the variables, or where the labelling is infeasible those of its forbidden
    configurations, from the marginals mixed with as much of the uniform distribution over allowed states.
    Small graphs get twenty kicks, large ones two.
    """
    rng = np.random.default_rng(seed)
    climb = _Climb(scores, pairs=True)
    allowed = scores.singles > -np.inf
    weight = _distribution(scores, variable_marginals) + allowed / allowed.sum(axis=1, keepdims=True)
    # a state drawn with probability proportional to its weight is the one with the first arrival
    rate = np.where(allowed, weight, 1e-300)
    for _ in range(int(np.clip(200_000 // len(labels), 2, 20))):
        redraw = climb.violated(labels)
        if not redraw.any():
            redraw = rng.random(len(labels)) < _KICK
        drawn = (rng.exponential(size=rate.shape) / rate).argmin(axis=1)
        labels = climb.better(labels, climb(np.where(redraw, drawn, labels)))
    return labels


class _Climb:
    """Local search on one set of scores."""

    def __init__(self, scores: Scores, pairs: bool) -> None:
        self.flat = (scores.regions, *scores.flat())
        self.pairs = pairs

    def __call__(self, start: ArrayLike) -> Ints:
        """The local optimum reached from a labelling."""
        labels = np.array(start, dtype=np.int64)
        kernels.local_search(*self.flat, labels, self.pairs)
        return labels

    def better(self, a: Ints, b: Ints) -> Ints:
        """The better of two labellings, `b` where they tie."""
        old = kernels.total_score(*self.flat, b)
        return a if kernels.better(*kernels.total_score(*self.flat, a), *old) else b

    def violated(self, labels: Ints) -> np.ndarray:
        """Which variables take part in a forbidden configuration."""
        marked = np.zeros(len(labels), dtype=np.bool_)
        kernels.mark_violated(*self.flat, labels, marked)
        return marked


def _distribution(scores: Scores, variable_marginals: Floats) -> Floats:
    """Marginals as distributions over allowed states, uniform where nothing is left of them."""
    allowed = scores.singles > -np.inf
    q = np.where(allowed, np.maximum(variable_marginals, 0.0), 0.0)
    q = np.where(q.sum(axis=1, keepdims=True) > 0, q, allowed)
    return q / q.sum(axis=1, keepdims=True)

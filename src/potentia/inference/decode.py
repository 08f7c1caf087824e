"""From marginals to one good labelling: rounding, local search, and a few kicks out of local optima."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._types import ArrayLike, Floats, Ints, PotentiaError
from ..graph.scores import Scores, score_labels
from ..kernels import labelling as kernels
from ..kernels import rounding
from .base import Result

#: Shares of the variables that kicks redraw, in turn.
_KICKS = (0.1, 0.3, 1.0)
#: Classes of confidence in which variables are rounded.
_LEVELS = 8
#: Smallest weight of a state that is not excluded.
_LEAST = 1e-9


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
    flat = (scores.regions, *scores.flat())
    if all(
        scores.bounds(kind)
        for kind, scope in scores.graph.scopes.items()
        if scope.shape[1] > 1 and len(scope)
    ):
        rounding.round_in_order(*flat, q, order, labels)
    else:
        rounding.round_looking_ahead(*flat, rounding.find_hard(*flat), q, order, labels)
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

    A kick redraws some of the variables, or where the labelling is infeasible those of its forbidden
    configurations, from the marginals mixed with as much of the uniform distribution over allowed states; in
    turn with that, infeasible labellings are replaced by roundings of random marginals. Small graphs get a
    hundred kicks, large ones two.
    """
    rng = np.random.default_rng(seed)
    climb = _Climb(scores, pairs=True)
    allowed = scores.singles > -np.inf
    weight = _distribution(scores, variable_marginals) + allowed / allowed.sum(axis=1, keepdims=True)
    # a state drawn with probability proportional to its weight is the one with the first arrival
    rate = np.where(allowed, weight, 1e-300)
    for k in range(int(np.clip(200_000 // len(labels), 2, 100))):
        arrival = rng.exponential(size=rate.shape) / rate
        redraw = climb.violated(labels)
        if redraw.any() and k % 2 == 0:
            start = conditional_rounding(scores, np.where(allowed, 1 / arrival, 0.0))
        else:
            if not redraw.any():
                redraw = rng.random(len(labels)) < max(_KICKS[k % len(_KICKS)], 2 / len(labels))
            start = np.where(redraw, arrival.argmin(axis=1), labels)
        labels = climb.better(labels, climb(start))
    return labels


def feasible_labelling(scores: Scores, rng: np.random.Generator | int = 0) -> Ints | None:
    """A random labelling, moved where it is forbidden to one with a finite score; None if none was found."""
    rng = np.random.default_rng(rng)
    allowed = scores.singles > -np.inf
    q = np.where(allowed, rng.random(allowed.shape), 0.0)
    labels = q.argmax(axis=1)
    if score_labels(scores, labels) == -np.inf:
        labels = search(scores, [labels, conditional_rounding(scores, q)])
    if score_labels(scores, labels) == -np.inf:
        labels = kicked(scores, labels, q)
    return labels if score_labels(scores, labels) > -np.inf else None


class _Climb:
    """Local search on one set of scores."""

    def __init__(self, scores: Scores, pairs: bool) -> None:
        self.flat = (scores.regions, *scores.flat())
        self.pairs = pairs
        self.width = int(scores.graph.n_states.max())

    def __call__(self, start: ArrayLike) -> Ints:
        """The local optimum reached from a labelling."""
        labels = np.array(start, dtype=np.int64)
        flags = np.ones((2, len(labels)), dtype=np.bool_)
        for _ in range(kernels.PASSES):
            kernels.improve_singles(*self.flat, labels, flags, self.width)
            if not self.pairs or not kernels.improve_pairs(*self.flat, labels, flags, self.width):
                break
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
    # products of weights of unlikely states must not vanish: zero means forbidden
    q = np.where(q > 0, np.maximum(q / q.sum(axis=1, keepdims=True), _LEAST), 0.0)
    return q / q.sum(axis=1, keepdims=True)

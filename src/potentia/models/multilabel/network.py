"""Directed networks of labels: their weights, learned label by label, and searches over labellings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import numpy as np

from ...base.threads import iterate_items, map_items, thread_count
from ...base.types import Bools, ConvergenceWarning, Floats, Ints, warn_caller
from ...kernels import search as kernel
from ...kernels.search import NetworkTerms
from ...learn.backends.connection import current
from .base import Solved
from .hinge import HingeSolver, LabelRows, SignColumns

#: Rows searched as one piece of work: few enough that hard rows spread over threads.
_CHUNK = 64


class Labellings(NamedTuple):
    """Signs (n, k, K) of the k best labellings in label order, their loss (n, k), states visited (n), certain (n)."""

    signs: Floats
    loss: Floats
    states: Ints
    optimal: Bools


class DirectedNetwork(NamedTuple):
    """Weights of all labels: base scores are `matrix @ coef.T + bias`; `links` and `order` number labels by place."""

    coef: Floats
    bias: Floats
    order: Ints
    links: NetworkTerms

    def base(self, matrix: Any) -> Floats:
        """Scores (n, K) without other labels' part, in label order."""
        return np.asarray(matrix @ self.coef.T) + self.bias

    def search(self, base: Floats, bound: float, budget: int, k: int = 1) -> Labellings:
        """The k best labellings of each row by branch and bound."""
        n, K = base.shape
        placed = self._placed(base)
        labels, loss = np.ones((n, k, K)), np.empty((n, k))
        states, optimal = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.bool_)
        _over_rows(
            n,
            lambda a, b: kernel.branch_and_bound(
                self.links, placed, a, b, float(bound), budget, labels, loss, states, optimal
            ),
        )
        return Labellings(self._unplaced(labels), loss, states, optimal)

    def greedy(self, base: Floats) -> tuple[Floats, Floats]:
        """Signs (n, K) of the first descent, and their loss (n)."""
        placed, labels, loss = self._placed(base), np.empty(base.shape), np.empty(len(base))
        _over_rows(len(base), lambda a, b: kernel.greedy(self.links, placed, a, b, labels, loss))
        return self._unplaced(labels), loss

    def losses(self, base: Floats, signs: Floats) -> Floats:
        """Hinge sums (n) of labellings."""
        placed, labels, loss = self._placed(base), self._placed(signs), np.empty(len(base))
        _over_rows(len(base), lambda a, b: kernel.losses(self.links, placed, labels, a, b, loss))
        return loss

    def log_losses(self, base: Floats, signs: Floats) -> Floats:
        """sum_i log(1 + exp(-z_i)) (n) of labellings, their loss in the sigmoid network [LMSBN Eq. 2]."""
        links, y = self.links, self._placed(signs)
        scores = self._placed(base) + y @ links.coupling.T
        for i, (first, last) in enumerate(pairwise(links.term_ptr.tolist())):
            for t in range(first, last):
                members = links.members[links.member_ptr[t] : links.member_ptr[t + 1]]
                scores[:, i] += links.weight[t] * y[:, members].prod(axis=1)
        return np.asarray(np.logaddexp(0.0, -y * scores).sum(axis=1))

    def margins(self, base: Floats, budget: int) -> Floats:
        """How much more a row's least loss is with label i at -1 than at +1, (n, K), by K + 1 searches per row."""
        optimum = self.search(base, np.inf, budget)
        placed, best, other = self._placed(base), self._placed(optimum.signs[:, 0]), np.empty(base.shape)
        least = max(budget, base.shape[1])
        _over_rows(
            len(base), lambda a, b: kernel.other_losses(self.links, placed, a, b, least, best, other), chunk=8
        )
        # a tie keeps the sign of the labelling found; a search cut short may have missed a better one
        more = np.maximum(other - optimum.loss, np.finfo(float).tiny)
        return self._unplaced(best * more)

    def marginals(self, base: Floats, samples: int, seed: int) -> tuple[Floats, Floats]:
        """P(y_i = +1) (n, K) and standard errors: by a walk over all labellings (samples 0) or from samples."""
        placed, mean, square = self._placed(base), np.empty(base.shape), np.zeros(base.shape)
        if samples == 0:
            _over_rows(len(base), lambda a, b: kernel.exact_marginals(self.links, placed, a, b, mean))
            return self._unplaced(mean), square
        _over_rows(
            len(base),
            lambda a, b: kernel.sampled_marginals(self.links, placed, a, b, samples, seed, mean, square),
        )
        error = np.sqrt(np.maximum(square - mean**2, 0.0) / samples)
        return self._unplaced(mean), self._unplaced(error)

    def couplings(self) -> Floats:
        """(K, K) in label order: the weight of label j in the score of label i."""
        by_label = np.zeros(self.links.coupling.shape)
        by_label[np.ix_(self.order, self.order)] = self.links.coupling
        return by_label

    def _placed(self, values: Floats) -> Floats:
        return np.ascontiguousarray(values[:, self.order])

    def _unplaced(self, values: Floats) -> Floats:
        return values[..., np.argsort(self.order)]


def _over_rows(n: int, work: Any, chunk: int = _CHUNK) -> None:
    map_items(lambda a: work(a, min(a + chunk, n)), range(0, n, chunk), thread_count(None))


class Structure(NamedTuple):
    """What a label's score has of other labels.

    parents: of each label; None for all labels before it. interactions: maximum number of parents that are multiplied
    in a feature; 0 for labels that do not see each other. label_scale: factor of labels as features; it only matters
    to the regularisation.
    """

    parents: list[set[int]] | None = None
    interactions: int = 1
    label_scale: float = 1.0


#: Labels that do not see each other.
APART = Structure(interactions=0)


def learn_networks(
    features: LabelRows,
    signs: Floats,
    solvers: Sequence[HingeSolver],
    order: Ints,
    structure: Structure,
    solved: Solved,
) -> list[DirectedNetwork]:
    """A network per solver, of falling alpha: label by label, each solution started from the one before.

    A label's problem has the labels before it as further features [LMSBN Eq. 6].
    """
    placed, place = np.ascontiguousarray(signs[:, order]), np.argsort(order)
    parents, width = structure.parents, features.width
    terms = [
        _products(range(i) if parents is None else sorted(int(place[j]) for j in parents[k]), structure)
        for i, k in enumerate(order)
    ]
    # where every label's features are all labels before it, the labels share their columns
    earlier = SignColumns(placed, structure.label_scale) if structure[:2] == (None, 1) else None
    solve = partial(_solve_label, features, solvers, placed, order, terms, structure.label_scale, earlier)
    numbers, connection, stage = range(len(order)), current(), solved.begin(len(order))
    solves = [partial(solve, i) for i in numbers] if connection is None else connection.later(solve, numbers)
    threads = thread_count(None) if connection is None else 1
    shapes = [(len(solvers), width + len(term) + 2) for term in terms]
    paths = list(iterate_items(lambda i: solved.take(f"{stage}/{i}", shapes[i], solves[i]), numbers, threads))
    networks = []
    for s, solver in enumerate(solvers):
        solutions = [path[s] for path in paths]
        missed = sum(not solution[-1] for solution in solutions)
        if missed:
            warn_caller(
                f"{missed} of {len(solutions)} labels did not reach tol = {solver.tol:g} in {solver.passes} passes; "
                "raise passes or alpha, or scale the features.",
                ConvergenceWarning,
            )
        coef, bias = np.stack([v[:width] for v in solutions])[place], np.array([v[-2] for v in solutions])
        links = _links(terms, [v[width:-2] for v in solutions])
        networks.append(DirectedNetwork(coef, bias[place], order, links))
    return networks


def _products(places: Sequence[int], structure: Structure) -> list[tuple[int, ...]]:
    """The labels whose product is a feature, for every feature: singles first, then up to `interactions` at once."""
    return [c for size in range(1, structure.interactions + 1) for c in combinations(places, size)]


def product_columns(signs: Floats, terms: Sequence[tuple[int, ...]]) -> Floats:
    """Columns (n, terms) of products of signs."""
    columns = np.empty((len(signs), len(terms)))
    for t, members in enumerate(terms):
        np.prod(signs[:, list(members)], axis=1, out=columns[:, t])
    return columns


def _solve_label(
    features: LabelRows,
    solvers: Sequence[HingeSolver],
    placed: Floats,
    order: Ints,
    terms: Sequence[Any],
    label_scale: float,
    earlier: SignColumns | None,
    i: int,
) -> Floats:
    """The solutions of the label at place i; `earlier` where its features are all labels before it."""
    y = np.ascontiguousarray(placed[:, i])
    columns = SignColumns(product_columns(placed, terms[i]), label_scale) if earlier is None else earlier
    return features.here().solve(solvers, columns, len(terms[i]), y, int(order[i]))


def _links(terms: list[list[tuple[int, ...]]], weights: list[Floats]) -> NetworkTerms:
    """Weights of single labels as a matrix, those of products as lists."""
    coupling = np.zeros((len(terms), len(terms)))
    counts: list[int] = []
    sizes: list[int] = []
    members: list[int] = []
    weight: list[float] = []
    for i, (features, w) in enumerate(zip(terms, weights, strict=True)):
        singles = [f[0] for f in features if len(f) == 1]
        coupling[i, singles] = w[: len(singles)]
        counts.append(len(features) - len(singles))
        weight.extend(w[len(singles) :])
        sizes.extend(len(f) for f in features[len(singles) :])
        members.extend(j for f in features[len(singles) :] for j in f)
    pointers = [np.concatenate([[0], np.cumsum(np.array(c, dtype=np.int64))]) for c in (counts, sizes)]
    return NetworkTerms(
        coupling,
        pointers[0].astype(np.int64),
        np.array(weight, dtype=float),
        pointers[1].astype(np.int64),
        np.array(members, dtype=np.int64),
    )

"""Which labels come before which, and what of the earlier ones a label's score is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, pairwise
from typing import Any, Literal, NamedTuple

import numpy as np

from ...base.options import check_choice
from ...base.threads import map_items, thread_count
from ...base.types import Bools, Floats, Ints, PotentiaError, shown, whole_numbers
from ...kernels import search as kernel
from ...kernels.search import NetworkTerms
from ...learn.backends.connection import current
from .features import HingeSolver, LabelRows, SignColumns, Solution, warn_unless_converged

#: A network's parents: "all" earlier labels, or the parents of each label (a mapping may leave labels out).
Parents = Literal["all"] | Sequence[Sequence[int]] | Mapping[int, Sequence[int]]


def parent_sets(parents: Parents, n_labels: int) -> list[set[int]] | None:
    """Parents of each label, or None for all earlier labels; refuses unknown labels and cycles."""
    if isinstance(parents, str):
        check_choice("parents", parents, ("all",), "the parents of each label")
        return None
    if isinstance(parents, Mapping):
        given = [parents.get(k, ()) for k in range(n_labels)]
        _check_labels(whole_numbers(list(parents), "parents"), n_labels, "parents")
    else:
        if not isinstance(parents, Sequence | np.ndarray):
            raise PotentiaError(f"parents must be 'all' or the parents of each label, not {shown(parents)}.")
        given = [*parents]
        if len(given) != n_labels:
            raise PotentiaError(f"parents has {len(given)} entries for {n_labels} labels.")
    sets = []
    for k, entry in enumerate(given):
        values = whole_numbers(
            list(entry) if isinstance(entry, Iterable) else [entry], f"parents of label {k}"
        )
        _check_labels(values, n_labels, f"parents of label {k}")
        sets.append(set(values.tolist()))
    topological(sets, np.arange(n_labels))
    return sets


def topological(sets: list[set[int]], wish: Ints) -> Ints:
    """An order with parents first that follows `wish` where it can: always the first label of it that is free."""
    order: list[int] = []
    left = [int(k) for k in wish]
    while left:
        free = next((k for k in left if sets[k].issubset(order)), None)
        if free is None:
            raise PotentiaError(f"parents form a cycle among the labels {sorted(left)}.")
        order.append(free)
        left.remove(free)
    return np.array(order, dtype=np.int64)


def given_order(order: Any, n_labels: int, sets: list[set[int]] | None) -> Ints:
    """A user's order, checked: every label once, parents first."""
    found = whole_numbers(order, "order")
    if found.shape != (n_labels,) or not np.array_equal(np.sort(found), np.arange(n_labels)):
        raise PotentiaError(f"order must hold every label 0..{n_labels - 1} once.")
    if sets is not None:
        place = np.argsort(found)
        for k, parents in enumerate(sets):
            late = [j for j in sorted(parents) if place[j] > place[k]]
            if late:
                raise PotentiaError(f"order has label {k} before its parent {late[0]}.")
    return found


def products(places: Sequence[int], largest: int) -> list[tuple[int, ...]]:
    """The labels whose product is a feature, for every feature: singles first, then up to `largest` at once."""
    return [c for size in range(1, largest + 1) for c in combinations(places, size)]


def product_columns(signs: Floats, features: Sequence[tuple[int, ...]]) -> Floats:
    """Columns (n, features) of products of signs."""
    columns = np.empty((len(signs), len(features)))
    for t, members in enumerate(features):
        np.prod(signs[:, list(members)], axis=1, out=columns[:, t])
    return columns


def restrict(sets: list[set[int]] | None, keep: Ints) -> list[set[int]] | None:
    """The parents among the kept labels, renumbered."""
    if sets is None:
        return None
    place = {int(k): p for p, k in enumerate(keep)}
    return [{place[j] for j in sets[k] if j in place} for k in keep]


def _check_labels(values: Ints, n_labels: int, name: str) -> None:
    if values.size and not (values.min() >= 0 and values.max() < n_labels):
        raise PotentiaError(f"{name} must name labels 0..{n_labels - 1}.")


#: Rows searched as one piece of work: few enough that hard rows spread over threads.
_CHUNK = 64


class Found(NamedTuple):
    """Signs (n, k, K) of the k best labellings in label order, their loss (n, k), states visited (n), certain (n)."""

    signs: Floats
    loss: Floats
    states: Ints
    optimal: Bools


class DirectedNetwork(NamedTuple):
    """Weights of all labels: base scores are `matrix @ own.T + bias`; `links` and `order` number labels by place."""

    own: Floats
    bias: Floats
    order: Ints
    links: NetworkTerms

    def base(self, matrix: Any) -> Floats:
        """Scores (n, K) without other labels' part, in label order."""
        return np.asarray(matrix @ self.own.T) + self.bias

    def search(self, base: Floats, bound: float, budget: int, k: int = 1) -> Found:
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
        return Found(self._unplaced(labels), loss, states, optimal)

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
        found = self.search(base, np.inf, budget)
        placed, best, other = self._placed(base), self._placed(found.signs[:, 0]), np.empty(base.shape)
        least = max(budget, base.shape[1])
        _over_rows(
            len(base), lambda a, b: kernel.other_losses(self.links, placed, a, b, least, best, other), chunk=8
        )
        # a tie keeps the sign of the labelling found; a search cut short may have missed a better one
        more = np.maximum(other - found.loss, np.finfo(float).tiny)
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
        found = np.zeros(self.links.coupling.shape)
        found[np.ix_(self.order, self.order)] = self.links.coupling
        return found

    def _placed(self, values: Floats) -> Floats:
        return np.ascontiguousarray(values[:, self.order])

    def _unplaced(self, values: Floats) -> Floats:
        return values[..., np.argsort(self.order)]


def _over_rows(n: int, work: Any, chunk: int = _CHUNK) -> None:
    ranges = [(a, min(a + chunk, n)) for a in range(0, n, chunk)]
    map_items(lambda r: work(*r), ranges, thread_count(None))


def learn_network(
    features: LabelRows, signs: Floats, solver: HingeSolver, order: Ints, *structure: Any
) -> DirectedNetwork:
    """Solve every label's hinge-loss problem; `structure` is as of `learn_networks`."""
    return learn_networks(features, signs, [solver], order, *structure)[0]


def learn_networks(
    features: LabelRows,
    signs: Floats,
    solvers: Sequence[HingeSolver],
    order: Ints,
    parents: list[set[int]] | None = None,
    interactions: int = 1,
    label_scale: float = 1.0,
) -> list[DirectedNetwork]:
    """A network per solver, of falling alpha: label by label, each solution started from the one before.

    A label's problem has the labels before it as further features [LMSBN Eq. 6].
    parents None: all earlier labels. `interactions`: how many parents are multiplied at most in a feature.
    `label_scale`: what labels are multiplied by as features; it only matters to the regularisation.
    """
    placed = np.ascontiguousarray(signs[:, order])
    place = np.argsort(order)
    sets = [
        range(i) if parents is None else sorted(int(place[j]) for j in parents[k])
        for i, k in enumerate(order)
    ]
    terms = [products(s, interactions) for s in sets]
    plain = parents is None and interactions == 1
    alone = [replace(solver, solved=None) for solver in solvers]
    earlier = SignColumns(placed, label_scale) if plain else None
    solve = partial(_solve_label, features, alone, placed, order, terms, label_scale, earlier)
    progress, width = solvers[0].solved, features.width
    stage = progress.stage(len(order), width, len(solvers)) if progress is not None else None
    take = stage or (lambda i, columns, solve: solve())
    connection = current()
    if connection is None:
        numbers = range(len(order))
        paths = map_items(lambda i: take(i, len(terms[i]), lambda: solve(i)), numbers, thread_count(None))
    else:
        results = connection.later(solve, range(len(order)))
        paths = [take(i, len(terms[i]), result) for i, result in enumerate(results)]
    networks = []
    for solver, solved in zip(solvers, zip(*paths, strict=True), strict=True):
        warn_unless_converged(solved, solver)
        own, bias = np.stack([s.own for s in solved])[place], np.array([s.bias for s in solved])[place]
        networks.append(DirectedNetwork(own, bias, order, _links(terms, [s.signs for s in solved])))
    return networks


def _solve_label(
    features: LabelRows,
    solvers: Sequence[HingeSolver],
    placed: Floats,
    order: Ints,
    terms: Sequence[Any],
    label_scale: float,
    earlier: SignColumns | None,
    i: int,
) -> list[Solution]:
    """The solutions of the label at place i; `earlier` where its features are all labels before it."""
    y = np.ascontiguousarray(placed[:, i])
    if earlier is not None:
        return features.path(solvers, earlier, i, y, int(order[i]))
    columns = SignColumns(product_columns(placed, terms[i]), label_scale)
    return features.path(solvers, columns, len(terms[i]), y, int(order[i]))


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


def learn_apart(features: LabelRows, signs: Floats, solvers: Sequence[HingeSolver]) -> list[DirectedNetwork]:
    """A network per solver, of falling alpha, whose labels do not see each other."""
    return learn_networks(features, signs, solvers, np.arange(signs.shape[1]), [set()] * signs.shape[1])

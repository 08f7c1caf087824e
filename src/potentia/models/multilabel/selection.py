"""Orders of labels that are chosen from data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np

from ...base.types import ConvergenceWarning, Floats, Ints
from ...metrics import exact_match, f_scores, hamming_loss
from .features import HingeSolver, LabelRows
from .network import DirectedNetwork, learn_apart, learn_network, learn_networks, topological

#: Tolerance of fits that only rank labels.
_LOOSE_ORDER = 0.3


def by_f_score(features: LabelRows, signs: Floats, solver: HingeSolver, folds: int = 2) -> Ints:
    """Labels by descending F-score of independent classifiers on held-out rows; ties keep the labels' numbers.

    Held out, because classifiers that fit their training rows all have F-score 1 there. Costs about as much as one
    loose independent fit.
    """
    if signs.shape[1] == 1:
        return np.zeros(1, dtype=np.int64)
    held_out = np.empty(signs.shape)
    loose = replace(solver, tol=max(solver.tol, _LOOSE_ORDER))
    for train, test in splits(len(signs), folds, solver.seed):
        part, matrix = features.split(train, test)
        held_out[test] = learn_apart(part, np.ascontiguousarray(signs[train]), [loose])[0].base(matrix)
    return np.argsort(-f_scores(signs > 0, held_out > 0), kind="stable").astype(np.int64)


def by_validation(
    features: LabelRows,
    signs: Floats,
    solver: HingeSolver,
    parents: list[set[int]] | None,
    interactions: int,
    label_scale: float,
    n_orders: int,
) -> Ints:
    """Of the F-score order, the labels' own and random ones, that with the least loss on a held-out quarter."""
    rng = np.random.default_rng(solver.seed)
    train, test = next(splits(len(signs), 4, solver.seed))
    part, matrix = features.split(train, test)
    best, least = np.arange(signs.shape[1]), np.inf
    # the fit on all rows will say it
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        for number in range(n_orders):
            wish = (
                by_f_score(part, signs[train], solver)
                if number == 0
                else np.arange(len(best))
                if number == 1
                else rng.permutation(len(best))
            )
            order = wish if parents is None else topological(parents, wish)
            network = learn_network(
                part, np.ascontiguousarray(signs[train]), solver, order, parents, interactions, label_scale
            )
            loss = float(np.mean(network.losses(network.base(matrix), signs[test])))
            if loss < least:
                best, least = order, loss
    return best


def splits(n: int, folds: int, seed: int) -> Iterator[tuple[Ints, Ints]]:
    """Training and held-out rows of each of min(folds, n) parts of a random order."""
    order = np.random.default_rng(seed).permutation(n)
    for fold in range(min(folds, n)):
        held = np.zeros(n, dtype=bool)
        held[order[fold :: min(folds, n)]] = True
        yield np.flatnonzero(~held), np.flatnonzero(held)


#: Stands for an option that cross-validation chooses.
CV = Literal["cv"]

#: Values of alpha that are tried, in units of the mean squared length of a row of features and its constant 1.
ALPHAS = (3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5)
#: Values of gamma that are tried, in units of the median rule's.
WIDTHS = (0.5, 1.5, 4.5)
#: Orders and scales of labels that are tried.
ORDER_RULES = ("f-score", "index")
LABEL_SCALES = (1.0, 0.25)
#: Tolerance and passes of fits that only compare options, and states visited per row.
_LOOSE, _PASSES, _BUDGET = 1e-2, 100, 10_000


class Options(NamedTuple):
    """What cross-validation may choose."""

    alpha: float
    gamma: float
    order: Any
    label_scale: float


class Candidates(NamedTuple):
    """Candidates, alphas falling, and how to make what is compared.

    features(gamma): the training rows. order(rule, features, signs, solver): the labels' order. structure: parents
    and interactions, as of `learn_networks`.
    """

    alphas: Sequence[float]
    gammas: Sequence[float]
    orders: Sequence[Any]
    label_scales: Sequence[float]
    features: Callable[[float], LabelRows]
    order: Callable[[Any, LabelRows, Floats, HingeSolver], Ints]
    structure: tuple[list[set[int]] | None, int]

    @property
    def middle(self) -> Options:
        """The options that are taken where there is nothing to compare."""
        return Options(
            self.alphas[len(self.alphas) // 2],
            self.gammas[len(self.gammas) // 2],
            self.orders[0],
            self.label_scales[0],
        )


def choose(
    plan: Candidates, signs: Floats, solver: HingeSolver, folds: int
) -> tuple[Options, list[dict[str, Any]]]:
    """The options of the best exact match on held-out rows, ties going to the lower Hamming loss; and all results.

    A single candidate, or too few rows for every fold to have two, is not measured.
    """
    counts = [len(part) for part in plan[:4]]
    if max(counts) == 1 or len(signs) < 2 * folds:
        return plan.middle, []
    solver = replace(solver, tol=max(solver.tol, _LOOSE), passes=min(solver.passes, _PASSES))
    sums: dict[Options, Floats] = {}
    # the fit on all rows will say it
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        for gamma in plan.gammas:
            features = plan.features(gamma)
            for train, test in splits(len(signs), folds, solver.seed):
                part, matrix = features.split(train, test)
                own = np.ascontiguousarray(signs[train])
                for options, network in _networks(plan, gamma, part, own, solver):
                    found = _measures(network, matrix, signs[test]) / folds
                    sums[options] = sums.get(options, np.zeros(2)) + found
    results = [o._asdict() | {"exact_match": s[0], "hamming_loss": s[1]} for o, s in sums.items()]
    best = max(sums, key=lambda o: (round(sums[o][0], 9), -sums[o][1]))
    return best, results


def _networks(
    plan: Candidates, gamma: float, part: LabelRows, signs: Floats, solver: HingeSolver
) -> list[tuple[Options, DirectedNetwork]]:
    """A network for every candidate with this gamma."""
    solvers = [replace(solver, alpha=alpha) for alpha in plan.alphas]
    found = []
    for rule in plan.orders:
        order = plan.order(rule, part, signs, solvers[len(solvers) // 2])
        for scale in plan.label_scales:
            networks = learn_networks(part, signs, solvers, order, *plan.structure, scale)
            options = [Options(alpha, gamma, rule, scale) for alpha in plan.alphas]
            found += list(zip(options, networks, strict=True))
    return found


def _measures(network: DirectedNetwork, matrix: Any, signs: Floats) -> Floats:
    found = network.search(network.base(matrix), np.inf, _BUDGET).signs[:, 0] > 0
    return np.array([exact_match(signs > 0, found), hamming_loss(signs > 0, found)])


def alpha_path(features: LabelRows, factors: Sequence[float] = ALPHAS) -> list[float]:
    """Falling values of alpha to try."""
    return [factor * (1.0 + features.mean_square) for factor in factors]

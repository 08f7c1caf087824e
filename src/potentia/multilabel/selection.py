"""Options of networks chosen by cross-validation over rows, along a path of falling alpha."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np

from .._types import ConvergenceWarning, Floats, Ints
from ..metrics import exact_match, hamming_loss
from .features import Features, HingeSolver
from .network import DirectedNetwork, learn_networks
from .orders import splits

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


class Plan(NamedTuple):
    """Candidates, alphas falling, and how to make what is compared.

    features(gamma): the training rows. order(rule, features, signs, solver): the labels' order. structure: parents
    and interactions, as of `learn_networks`.
    """

    alphas: Sequence[float]
    gammas: Sequence[float]
    orders: Sequence[Any]
    label_scales: Sequence[float]
    features: Callable[[float], Features]
    order: Callable[[Any, Features, Floats, HingeSolver], Ints]
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
    plan: Plan, signs: Floats, solver: HingeSolver, folds: int
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
    plan: Plan, gamma: float, part: Features, signs: Floats, solver: HingeSolver
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


def alpha_path(features: Features, factors: Sequence[float] = ALPHAS) -> list[float]:
    """Falling values of alpha to try."""
    return [factor * (1.0 + features.mean_square) for factor in factors]

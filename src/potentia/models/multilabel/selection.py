"""The structure of a directed network of labels: its parents and orders, as given or chosen from data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np

from ...base.options import check_choice
from ...base.types import ConvergenceWarning, Floats, Ints, PotentiaError, shown, whole_numbers
from ...metrics import exact_match, f_scores, hamming_loss
from .base import Solved
from .hinge import HingeSolver, LabelRows
from .network import APART, DirectedNetwork, Structure, learn_networks

#: A network's parents: "all" earlier labels, or the parents of each label (a mapping may leave labels out).
Parents = Literal["all"] | Sequence[Sequence[int]] | Mapping[int, Sequence[int]]


def parent_sets(parents: Parents, n_labels: int) -> list[set[int]] | None:
    """Parents of each label, or None for all earlier labels; refuses unknown labels and cycles."""
    if isinstance(parents, str):
        check_choice("parents", parents, ("all",), "the parents of each label")
        return None
    if isinstance(parents, Mapping):
        entries = [parents.get(k, ()) for k in range(n_labels)]
        _check_labels(whole_numbers(list(parents), "parents"), n_labels, "parents")
    else:
        if not isinstance(parents, Sequence | np.ndarray):
            raise PotentiaError(f"parents must be 'all' or the parents of each label, not {shown(parents)}.")
        entries = [*parents]
        if len(entries) != n_labels:
            raise PotentiaError(f"parents has {len(entries)} entries for {n_labels} labels.")
    sets = []
    for k, entry in enumerate(entries):
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
    numbers = whole_numbers(order, "order")
    if numbers.shape != (n_labels,) or not np.array_equal(np.sort(numbers), np.arange(n_labels)):
        raise PotentiaError(f"order must hold every label 0..{n_labels - 1} once.")
    if sets is not None:
        place = np.argsort(numbers)
        for k, parents in enumerate(sets):
            late = [j for j in sorted(parents) if place[j] > place[k]]
            if late:
                raise PotentiaError(f"order has label {k} before its parent {late[0]}.")
    return numbers


def among(varying: Ints, order: Ints) -> Ints:
    """The order of the labels that vary, numbered among themselves."""
    return np.searchsorted(varying, order[np.isin(order, varying)])


def restrict(sets: list[set[int]] | None, keep: Ints) -> list[set[int]] | None:
    """The parents among the kept labels, renumbered."""
    if sets is None:
        return None
    place = {int(k): p for p, k in enumerate(keep)}
    return [{place[j] for j in sets[k] if j in place} for k in keep]


def _check_labels(values: Ints, n_labels: int, name: str) -> None:
    if values.size and not (values.min() >= 0 and values.max() < n_labels):
        raise PotentiaError(f"{name} must name labels 0..{n_labels - 1}.")


#: Tolerance of fits that only rank labels.
_LOOSE_ORDER = 0.3


def label_order(
    rule: str | tuple[int, ...],
    features: LabelRows,
    signs: Floats,
    solver: HingeSolver,
    structure: Structure,
    n_orders: int,
    solved: Solved,
) -> Ints:
    """The order, as given or by a rule of `LMSBN`, of labels numbered among those that vary."""
    if not isinstance(rule, str):
        return np.array(rule, dtype=np.int64)
    if rule == "learned":
        return by_validation(features, signs, solver, structure, n_orders, solved)
    wish = by_f_score(features, signs, solver, solved) if rule == "f-score" else np.arange(signs.shape[1])
    return wish if structure.parents is None else topological(structure.parents, wish)


def by_f_score(features: LabelRows, signs: Floats, solver: HingeSolver, solved: Solved) -> Ints:
    """Labels by descending F-score of independent classifiers on held-out halves; ties keep the labels' numbers.

    Held out, because classifiers that fit their training rows all have F-score 1 there. Costs about as much as one
    loose independent fit.
    """
    V = signs.shape[1]
    if V == 1:
        return np.zeros(1, dtype=np.int64)
    held_out = np.empty(signs.shape)
    loose = replace(solver, tol=max(solver.tol, _LOOSE_ORDER))
    for train, test in splits(len(signs), 2, solver.seed):
        part, matrix = features.split(train, test)
        rows = np.ascontiguousarray(signs[train])
        held_out[test] = learn_networks(part, rows, [loose], np.arange(V), APART, solved)[0].base(matrix)
    return np.argsort(-f_scores(signs > 0, held_out > 0), kind="stable").astype(np.int64)


def by_validation(
    features: LabelRows,
    signs: Floats,
    solver: HingeSolver,
    structure: Structure,
    n_orders: int,
    solved: Solved,
) -> Ints:
    """Of the F-score order, the labels' own and random ones, that with the least loss on a held-out quarter."""
    rng, labels = np.random.default_rng(solver.seed), np.arange(signs.shape[1])
    train, test = next(splits(len(signs), 4, solver.seed))
    (part, matrix), rows = features.split(train, test), np.ascontiguousarray(signs[train])
    best, least = labels, np.inf
    # the fit on all rows will say it
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        for number in range(n_orders):
            wish = labels if number == 1 else rng.permutation(len(labels)) if number else None
            wish = by_f_score(part, signs[train], solver, solved) if wish is None else wish
            order = wish if structure.parents is None else topological(structure.parents, wish)
            (network,) = learn_networks(part, rows, [solver], order, structure, solved)
            loss = float(np.mean(network.losses(network.base(matrix), signs[test])))
            if loss < least:
                best, least = order, loss
    return best


def splits(n: int, folds: int, seed: int) -> Iterator[tuple[Ints, Ints]]:
    """Training and held-out rows of each of min(folds, n) parts of a random order."""
    order = np.random.default_rng(seed).permutation(n)
    for fold in range(min(folds, n)):
        test = np.zeros(n, dtype=bool)
        test[order[fold :: min(folds, n)]] = True
        yield np.flatnonzero(~test), np.flatnonzero(test)


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
    """What cross-validation chooses; order: a rule, or the labels that vary in order."""

    alpha: float
    gamma: float
    order: str | tuple[int, ...]
    label_scale: float


class Candidates(NamedTuple):
    """What it chooses from, alphas falling, and what all candidates share: see `label_order`."""

    alphas: Sequence[float]
    gammas: Sequence[float]
    orders: Sequence[str | tuple[int, ...]]
    label_scales: Sequence[float]
    structure: Structure
    n_orders: int


def choose(
    candidates: Candidates,
    features: Callable[[float], LabelRows],
    signs: Floats,
    solver: HingeSolver,
    folds: int,
    solved: Solved,
) -> tuple[Options, list[dict[str, Any]]]:
    """The options of the best exact match on held-out rows, ties going to the lower Hamming loss; and all results.

    features(gamma): the training rows. A single candidate, or too few rows for every fold to have two, is not
    measured: then the middle ones are taken.
    """
    alphas, gammas, orders, label_scales = candidates[:4]
    if len(alphas) == len(gammas) == len(orders) == len(label_scales) == 1 or len(signs) < 2 * folds:
        return Options(alphas[len(alphas) // 2], gammas[len(gammas) // 2], orders[0], label_scales[0]), []
    solver = replace(solver, tol=max(solver.tol, _LOOSE), passes=min(solver.passes, _PASSES))
    sums: dict[Options, Floats] = {}
    # the fit on all rows will say it
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        for gamma in gammas:
            rows = features(gamma)
            for train, test in splits(len(signs), folds, solver.seed):
                part, matrix = rows.split(train, test)
                fitted = np.ascontiguousarray(signs[train])
                for options, network in _networks(candidates, gamma, part, fitted, solver, solved):
                    measures = _measures(network, matrix, signs[test]) / folds
                    sums[options] = sums.get(options, np.zeros(2)) + measures
    results = [o._asdict() | {"exact_match": s[0], "hamming_loss": s[1]} for o, s in sums.items()]
    return max(sums, key=lambda o: (round(sums[o][0], 9), -sums[o][1])), results


def _networks(
    candidates: Candidates,
    gamma: float,
    features: LabelRows,
    signs: Floats,
    solver: HingeSolver,
    solved: Solved,
) -> Iterator[tuple[Options, DirectedNetwork]]:
    """A network for every candidate with this gamma."""
    alphas, _, orders, label_scales, structure, n_orders = candidates
    solvers = [replace(solver, alpha=alpha) for alpha in alphas]
    for rule in orders:
        order = label_order(rule, features, signs, solvers[len(solvers) // 2], structure, n_orders, solved)
        for scale in label_scales:
            scaled = structure._replace(label_scale=scale)
            networks = learn_networks(features, signs, solvers, order, scaled, solved)
            for alpha, network in zip(alphas, networks, strict=True):
                yield Options(alpha, gamma, rule, scale), network


def _measures(network: DirectedNetwork, matrix: Any, signs: Floats) -> Floats:
    predicted = network.search(network.base(matrix), np.inf, _BUDGET).signs[:, 0] > 0
    return np.array([exact_match(signs > 0, predicted), hamming_loss(signs > 0, predicted)])


def alpha_path(features: LabelRows, factors: Sequence[float] = ALPHAS) -> list[float]:
    """Falling values of alpha to try."""
    return [factor * (1.0 + features.mean_square) for factor in factors]

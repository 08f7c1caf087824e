"""Orders of labels that are chosen from data."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from .._types import ConvergenceWarning, Floats, Ints
from ..metrics import f_scores
from .features import Features, HingeSolver
from .network import learn_apart, learn_network
from .structure import topological

#: Tolerance of fits that only rank labels.
_LOOSE = 0.3


def by_f_score(features: Features, signs: Floats, solver: HingeSolver, folds: int = 2) -> Ints:
    """Labels by descending F-score of independent classifiers on held-out rows; ties keep the labels' numbers.

    Held out, because classifiers that fit their training rows all have F-score 1 there. Costs about as much as one
    loose independent fit.
    """
    if signs.shape[1] == 1:
        return np.zeros(1, dtype=np.int64)
    held_out = np.empty(signs.shape)
    loose = replace(solver, tol=max(solver.tol, _LOOSE))
    for train, test in splits(len(signs), folds, solver.seed):
        part, matrix = features.split(train, test)
        held_out[test] = learn_apart(part, np.ascontiguousarray(signs[train]), [loose])[0].base(matrix)
    return np.argsort(-f_scores(signs > 0, held_out > 0), kind="stable").astype(np.int64)


def by_validation(
    features: Features,
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

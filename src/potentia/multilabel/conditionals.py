"""Conditionals of labels given classifiers' scores and earlier labels: logistic, learned with a shared start."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .._types import Floats, Ints

#: Newton steps at most, and the length of one that ends them.
_STEPS, _STILL = 30, 1e-6

#: Scores (m) of the label at a place, from rows (m) and the signs (m, place) of the labels before it.
ScoresAt = Callable[[int, Ints, Floats], Floats]


class Conditionals(NamedTuple):
    """log-odds of the label at place i: weight_i . its scores + bias_i + coupling_i . signs of the labels before it.

    order (V): labels by place. weight (V, U), bias (V) and coupling (V, V) are by place.
    """

    order: Ints
    weight: Floats
    bias: Floats
    coupling: Floats

    def base(self, scores: Floats) -> Floats:
        """The part (n, V) by place without other labels, of scores (n, V, U) by label."""
        return np.einsum("nvu,vu->nv", scores[:, self.order], self.weight) + self.bias

    def linear(self, base: Floats) -> ScoresAt:
        """The log-odds as a function of rows and earlier labels."""
        return lambda i, rows, signs: base[rows, i] + signs @ self.coupling[i, :i]

    def log_probabilities(self, base: Floats, rows: Ints, signs: Floats) -> Floats:
        """log P (m) of labellings (m, V) by label, of these rows."""
        placed = signs[:, self.order]
        odds = base[rows] + placed @ self.coupling.T
        return -np.logaddexp(0.0, -placed * odds).sum(axis=1)


def learn_conditionals(
    scores: Floats, signs: Floats, order: Ints, ridge: float, weight: Floats, parents: int
) -> Conditionals:
    """Logistic regressions of every label on its scores (n, V, U) and on earlier labels' signs.

    One regression of all labels on their scores alone comes first; each label's own is drawn to it by `ridge` (and its
    couplings to zero), so that labels with few rows share what is common to all. `parents`: earlier labels at most,
    those with the largest correlations. weight (n, V): of each row's part in the loss.
    """
    n, V, U = scores.shape
    ones = np.ones((n, V, 1))
    flat = np.concatenate([scores, ones], axis=2).reshape(n * V, U + 1)
    shared = _logistic(flat, signs.reshape(-1), weight.reshape(-1), np.zeros(U + 1), 1e-3)
    centred = signs - signs.mean(axis=0)
    sizes = np.sqrt((centred**2).sum(axis=0)) + 1e-12
    correlation = np.abs(centred.T @ centred) / np.outer(sizes, sizes)
    found = Conditionals(order, np.empty((V, U)), np.empty(V), np.zeros((V, V)))
    for i, k in enumerate(order):
        earlier = np.argsort(-correlation[k, order[:i]], kind="stable")[:parents]
        A = np.column_stack([scores[:, k], np.ones(n), signs[:, order[earlier]]])
        start = np.concatenate([shared, np.zeros(len(earlier))])
        w = _logistic(A, signs[:, k], weight[:, k], start, ridge)
        found.weight[i], found.bias[i] = w[:U], w[U]
        found.coupling[i, earlier] = w[U + 1 :]
    return found


def _logistic(A: Floats, signs: Floats, weight: Floats, start: Floats, ridge: float) -> Floats:
    """argmin over w of sum weight log(1 + exp(-signs A w)) + ridge / 2 |w - start|^2, by damped Newton steps."""
    w, value = start.copy(), _objective(A, signs, weight, start, start, ridge)
    for _ in range(_STEPS):
        p = 1.0 / (1.0 + np.exp(np.clip(signs * (A @ w), -500, 500)))
        slope = ridge * (w - start) - A.T @ (weight * signs * p)
        curve = (A * (weight * p * (1.0 - p))[:, None]).T @ A + ridge * np.eye(len(w))
        step = np.linalg.solve(curve, -slope)
        length = 1.0
        while True:
            new = _objective(A, signs, weight, w + length * step, start, ridge)
            if new <= value or length < 1e-6:
                break
            length /= 2.0
        w, value = w + length * step, new
        if np.abs(length * step).max() < _STILL:
            break
    return w


def _objective(A: Floats, signs: Floats, weight: Floats, w: Floats, start: Floats, ridge: float) -> float:
    loss = float(weight @ np.logaddexp(0.0, -signs * (A @ w)))
    return loss + 0.5 * ridge * float((w - start) @ (w - start))

"""Conditionals of labels given classifiers' scores and earlier labels: learned, and searched for labellings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...base.types import Bools, Floats, Ints
from .network import LabelSearch

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
    conditionals = Conditionals(order, np.empty((V, U)), np.empty(V), np.zeros((V, V)))
    for i, k in enumerate(order):
        earlier = np.argsort(-correlation[k, order[:i]], kind="stable")[:parents]
        A = np.column_stack([scores[:, k], np.ones(n), signs[:, order[earlier]]])
        start = np.concatenate([shared, np.zeros(len(earlier))])
        w = _logistic(A, signs[:, k], weight[:, k], start, ridge)
        conditionals.weight[i], conditionals.bias[i] = w[:U], w[U]
        conditionals.coupling[i, earlier] = w[U + 1 :]
    return conditionals


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
    """The penalised logistic loss that `_logistic` minimises."""
    loss = float(weight @ np.logaddexp(0.0, -signs * (A @ w)))
    return loss + 0.5 * ridge * float((w - start) @ (w - start))


class Member(NamedTuple):
    """A network at n rows: base (n, V) log-odds by place without other labels; log-odds by units that see labels."""

    conditionals: Conditionals
    base: Floats
    unit_scores: Sequence[ScoresAt] = ()

    def scores_at(self, i: int, rows: Ints, signs: Floats) -> Floats:
        """Log-odds (m) of the label at place i of rows (m), given the signs (m, i) of the labels before it."""
        odds = self.base[rows, i] + signs @ self.conditionals.coupling[i, :i]
        for unit_scores in self.unit_scores:
            odds = odds + unit_scores(i, rows, signs)
        return odds

    def log_probabilities(self, rows: Ints, signs: Floats) -> Floats:
        """log P (m) of labellings (m, V) by label, of these rows."""
        placed, total = signs[:, self.conditionals.order], np.zeros(len(rows))
        if not self.unit_scores:
            odds = self.base[rows] + placed @ self.conditionals.coupling.T
            return -np.logaddexp(0.0, -placed * odds).sum(axis=1)
        for i in range(placed.shape[1]):
            total -= np.logaddexp(0.0, -placed[:, i] * self.scores_at(i, rows, placed[:, :i]))
        return total

    def unplaced(self, placed: Floats) -> Floats:
        """Signs by place as signs by label."""
        return placed[:, np.argsort(self.conditionals.order)]


class Beams(NamedTuple):
    """Labellings of n rows: of row rows[m] the signs (m, V) by place and log P (m); rows ascend, log P falls in each.

    bound (n): no labelling left out has a larger log P. states (n): prefixes visited.
    """

    rows: Ints
    signs: Floats
    log_p: Floats
    bound: Floats
    states: Ints

    def best(self) -> tuple[Ints, Bools]:
        """Places of each row's best labelling, and whether it is certainly the most probable of all."""
        first = np.searchsorted(self.rows, np.arange(len(self.bound)))
        return first, self.log_p[first] >= self.bound


def most_probable(member: Member, width: int) -> Beams:
    """The most probable labelling of each row: breadth first, without prefixes below the greedy labelling's P.

    Where more than `width` prefixes of a row remain, the least probable are left out, and the result may not be exact.
    """
    greedy = beam(member, 1)
    best = beam(member, width, greedy.log_p)
    return best._replace(states=best.states + greedy.states)


def beam(member: Member, width: int, least: Floats | None = None) -> Beams:
    """Up to `width` labellings per row by beam search; `least` (n): log P below which prefixes are dropped."""
    n, V = member.base.shape
    rows, signs, log_p = np.arange(n), np.empty((n, 0)), np.zeros(n)
    bound, states = np.full(n, -np.inf), np.zeros(n, dtype=np.int64)
    for i in range(V):
        odds = member.scores_at(i, rows, signs)
        log_p = np.concatenate([log_p - np.logaddexp(0.0, odds), log_p - np.logaddexp(0.0, -odds)])
        added = np.repeat([-1.0, 1.0], len(rows))[:, None]
        rows, signs = np.tile(rows, 2), np.hstack([np.tile(signs, (2, 1)), added])
        states += np.bincount(rows, minlength=n)
        if least is not None:
            # rounding must not drop the greedy labelling itself
            fair = log_p >= least[rows] - 1e-9
            rows, signs, log_p = rows[fair], signs[fair], log_p[fair]
        order = np.lexsort((-log_p, rows))
        rows, signs, log_p = rows[order], signs[order], log_p[order]
        rank = np.arange(len(rows)) - np.searchsorted(rows, rows)
        out = rank >= width
        np.maximum.at(bound, rows[out], log_p[out])
        rows, signs, log_p = rows[~out], signs[~out], log_p[~out]
    return Beams(rows, signs, log_p, bound, states)


#: Added to a forest's probabilities, so that labellings missing from its training rows are possible.
FLOOR = 1e-3


class Seen(NamedTuple):
    """A forest's labellings (L, V) and their probabilities at n rows, sparse (n, L)."""

    labellings: Floats
    probabilities: Any

    def marginals(self) -> Floats:
        """P(label = +1) (n, V)."""
        return np.asarray(self.probabilities @ (self.labellings > 0).astype(float))

    def entries(self) -> tuple[Ints, Ints, Floats]:
        """Rows, numbers of labellings, and probabilities that are not zero."""
        entries = self.probabilities.tocoo()
        rows, numbers = entries.coords
        return rows.astype(np.int64), numbers.astype(np.int64), entries.data

    def chances(self, rows: Ints, signs: Floats) -> Floats:
        """Probabilities (m) of labellings (m, V) at some rows; 0 for one that no training row has."""
        packed, wanted = _packed(self.labellings), _packed(signs)
        order = np.argsort(packed)
        number = order[np.minimum(np.searchsorted(packed[order], wanted), len(order) - 1)]
        known = packed[number] == wanted
        chances = np.zeros(len(rows))
        chances[known] = np.asarray(self.probabilities[rows[known], number[known]]).ravel()
        return chances


def best_labellings(members: Sequence[Member], seen: Seen | None, power: float, width: int) -> LabelSearch:
    """argmax over labellings of mean over members of log P + power log(forest's P + FLOOR), as signs; loss: minus that.

    Labellings that the forest gives P = 0 all have the same last term, so that the best of them is the networks' own
    best; the others are compared one by one.
    """
    n = len(members[0].base)
    candidates, states, certain = [], np.zeros(n, dtype=np.int64), np.ones(n, dtype=bool)
    limit = np.zeros(n)
    for member in members:
        beams = most_probable(member, width)
        first, optimal = beams.best()
        candidates.append(member.unplaced(beams.signs[first]))
        states, certain = states + beams.states, certain & optimal
        limit += beams.log_p[first] / len(members)
    rows, signs = np.tile(np.arange(n), len(candidates)), np.concatenate(candidates)
    score = _scores(members, seen, power, rows, signs)
    if seen is not None and power > 0:
        best = np.full(n, -np.inf)
        np.maximum.at(best, rows, score)
        listed, number, p = seen.entries()
        fair = power * np.log(p + FLOOR) > best[listed]
        listed, p, labellings = listed[fair], p[fair], seen.labellings[number[fair]]
        rows, signs = np.concatenate([rows, listed]), np.concatenate([signs, labellings])
        added = _scores(members, None, 0.0, listed, labellings)
        score = np.concatenate([score, added + power * np.log(p + FLOOR)])
        limit += power * np.log(FLOOR)
    order = np.lexsort((-score, rows))
    top = order[np.searchsorted(rows[order], np.arange(n))]
    return LabelSearch(signs[top], -score[top], states, certain & (score[top] >= limit - 1e-9))


def marginals(members: Sequence[Member], seen: Seen | None, power: float, width: int) -> Floats:
    """P(label = +1) (n, V) by the most probable labellings of each member and those that the forest has seen.

    What they leave of the members' probability counts as labels that are independent given the best labelling's.
    """
    n, V = members[0].base.shape
    rows, signs, rest = [], [], np.zeros((n, V))
    for member in members:
        beams = beam(member, width)
        rows.append(beams.rows)
        signs.append(member.unplaced(beams.signs))
        best = beams.signs[beams.best()[0]]
        odds = np.stack([member.scores_at(i, np.arange(n), best[:, :i]) for i in range(V)], axis=1)
        rest += member.unplaced(1.0 / (1.0 + np.exp(-np.clip(odds, -500, 500)))) / len(members)
    if seen is not None and power > 0:
        listed, number, _ = seen.entries()
        rows.append(listed)
        signs.append(seen.labellings[number])
    pairs = np.unique(np.column_stack([np.concatenate(rows), np.concatenate(signs)]), axis=0)
    at, labels = pairs[:, 0].astype(np.int64), pairs[:, 1:]
    log_p = _scores(members, None, 0.0, at, labels)
    missing = np.maximum(0.0, 1.0 - np.bincount(at, np.exp(log_p), minlength=n))
    weight = np.exp(log_p)
    if seen is not None:
        weight, missing = weight * (seen.chances(at, labels) + FLOOR) ** power, missing * FLOOR**power
    total = np.bincount(at, weight, minlength=n) + missing
    sums = missing[:, None] * rest
    np.add.at(sums, at, weight[:, None] * (labels > 0))
    return sums / total[:, None]


def _scores(members: Sequence[Member], seen: Seen | None, power: float, rows: Ints, signs: Floats) -> Floats:
    """Mean log P over members plus power log(forest's P + FLOOR) of labellings (m, V) of some rows."""
    score = np.mean([member.log_probabilities(rows, signs) for member in members], axis=0)
    if seen is None or power == 0:
        return score
    return score + power * np.log(seen.chances(rows, signs) + FLOOR)


def _packed(signs: Floats) -> np.ndarray:
    """Labellings as bytes, one value each."""
    bits = np.ascontiguousarray(np.packbits(signs > 0, axis=1))
    return bits.view(f"S{bits.shape[1]}").ravel()

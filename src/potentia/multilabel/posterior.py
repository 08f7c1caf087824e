"""Labellings by directed networks together with how often a forest has seen them near a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .._types import Bools, Floats, Ints
from .beam import beam, most_probable
from .conditionals import Conditionals, ScoresAt

#: Added to a forest's probabilities, so that labellings missing from its training rows are possible.
FLOOR = 1e-3


class Member(NamedTuple):
    """A network at some rows: its conditionals, their part without labels (n, V), and log-odds given earlier labels."""

    conditionals: Conditionals
    base: Floats
    scores_at: ScoresAt
    linear: bool

    def log_probabilities(self, rows: Ints, signs: Floats) -> Floats:
        """log P (m) of labellings (m, V) by label."""
        if self.linear:
            return self.conditionals.log_probabilities(self.base, rows, signs)
        placed, total = signs[:, self.conditionals.order], np.zeros(len(rows))
        for i in range(placed.shape[1]):
            total -= np.logaddexp(0.0, -placed[:, i] * self.scores_at(i, rows, placed[:, :i]))
        return total

    def unplaced(self, placed: Floats) -> Floats:
        """Signs by place as signs by label."""
        return placed[:, np.argsort(self.conditionals.order)]


class Labelled(NamedTuple):
    """Signs (n, V), their score (n), prefixes looked at (n), and whether no labelling has a higher score (n)."""

    signs: Floats
    score: Floats
    states: Ints
    optimal: Bools


class Seen(NamedTuple):
    """A forest's labellings (L, V) and their probabilities, sparse (n, L)."""

    labellings: Floats
    probabilities: Any


def best_labellings(members: Sequence[Member], seen: Seen | None, power: float, width: int) -> Labelled:
    """argmax over labellings of mean over members of log P + power log(forest's P + FLOOR).

    Labellings that the forest gives P = 0 all have the same last term, so that the best of them is the networks' own
    best; the others are compared one by one.
    """
    n, V = members[0].base.shape
    found, states, certain = [], np.zeros(n, dtype=np.int64), np.ones(n, dtype=bool)
    limit = np.zeros(n)
    for member in members:
        kept = most_probable(n, V, member.scores_at, width)
        first, optimal = kept.best()
        found.append(member.unplaced(kept.signs[first]))
        states, certain = states + kept.states, certain & optimal
        limit += kept.log_p[first] / len(members)
    rows, signs = np.tile(np.arange(n), len(found)), np.concatenate(found)
    score = _scores(members, seen, power, rows, signs)
    if seen is not None and power > 0:
        best = np.full(n, -np.inf)
        np.maximum.at(best, rows, score)
        listed, number, p = _listed(seen)
        fair = power * np.log(p + FLOOR) > best[listed]
        rows, signs = (
            np.concatenate([rows, listed[fair]]),
            np.concatenate([signs, seen.labellings[number[fair]]]),
        )
        added = _scores(members, None, 0.0, listed[fair], seen.labellings[number[fair]])
        score = np.concatenate([score, added + power * np.log(p[fair] + FLOOR)])
        limit += power * np.log(FLOOR)
    order = np.lexsort((-score, rows))
    top = order[np.searchsorted(rows[order], np.arange(n))]
    return Labelled(signs[top], score[top], states, certain & (score[top] >= limit - 1e-9))


def marginals(members: Sequence[Member], seen: Seen | None, power: float, width: int) -> Floats:
    """P(label = +1) (n, V) by the most probable labellings of each member and those that the forest has seen.

    What they leave of the members' probability counts as labels that are independent given the best labelling's.
    """
    n, V = members[0].base.shape
    rows, signs, rest = [], [], np.zeros((n, V))
    for member in members:
        kept = beam(n, V, member.scores_at, width)
        rows.append(kept.rows)
        signs.append(member.unplaced(kept.signs))
        best = kept.signs[kept.best()[0]]
        odds = np.stack([member.scores_at(i, np.arange(n), best[:, :i]) for i in range(V)], axis=1)
        rest += member.unplaced(1.0 / (1.0 + np.exp(-np.clip(odds, -500, 500)))) / len(members)
    if seen is not None and power > 0:
        listed, number, _ = _listed(seen)
        rows.append(listed)
        signs.append(seen.labellings[number])
    pairs = np.unique(np.column_stack([np.concatenate(rows), np.concatenate(signs)]), axis=0)
    at, labels = pairs[:, 0].astype(np.int64), pairs[:, 1:]
    log_p = _scores(members, None, 0.0, at, labels)
    missing = np.maximum(0.0, 1.0 - np.bincount(at, np.exp(log_p), minlength=n))
    weight = (
        np.exp(log_p) * (_chances(seen, at, labels) + FLOOR) ** power if seen is not None else np.exp(log_p)
    )
    missing = missing * FLOOR**power if seen is not None else missing
    total = np.bincount(at, weight, minlength=n) + missing
    found = missing[:, None] * rest
    np.add.at(found, at, weight[:, None] * (labels > 0))
    return found / total[:, None]


def _scores(members: Sequence[Member], seen: Seen | None, power: float, rows: Ints, signs: Floats) -> Floats:
    score = np.mean([member.log_probabilities(rows, signs) for member in members], axis=0)
    if seen is None or power == 0:
        return score
    return score + power * np.log(_chances(seen, rows, signs) + FLOOR)


def _listed(seen: Seen) -> tuple[Ints, Ints, Floats]:
    """Rows, numbers of labellings, and probabilities that are not zero."""
    found = seen.probabilities.tocoo()
    rows, numbers = found.coords
    return rows.astype(np.int64), numbers.astype(np.int64), found.data


def _chances(seen: Seen, rows: Ints, signs: Floats) -> Floats:
    """The forest's probabilities (m) of labellings (m, V); 0 for one that none of its training rows has."""
    packed = _packed(seen.labellings)
    order = np.argsort(packed)
    wanted = _packed(signs)
    at = np.minimum(np.searchsorted(packed[order], wanted), len(order) - 1)
    number = order[at]
    known = packed[number] == wanted
    found = np.zeros(len(rows))
    found[known] = np.asarray(seen.probabilities[rows[known], number[known]]).ravel()
    return found


def _packed(signs: Floats) -> np.ndarray:
    """Labellings as bytes, one value each."""
    bits = np.ascontiguousarray(np.packbits(signs > 0, axis=1))
    return bits.view(f"S{bits.shape[1]}").ravel()

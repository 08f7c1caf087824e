"""Conditionals of labels given classifiers' scores and earlier labels: learned, and searched for labellings."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from ...base.resources import map_items, map_ranges, thread_count
from ...base.types import Bools, Floats, Ints
from ...kernels import beam as kernel
from ...kernels.search import LOGISTIC, Rules
from .network import DirectedNetwork, LabelSearch, pair_terms
from .sets import Ranked

#: Newton steps at most, and the length of one that ends them.
_STEPS, _STILL = 30, 1e-6
#: Labels of rows that all labels' common regression is learned from.
_SHARED = 500_000
#: Up to this many labels the most probable labelling is certain; states that branch and bound may visit.
_EXACT, _STATES = 14, 1_000_000
_ROUNDING = 1e-9


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

    def probabilities(self, scores: Floats) -> Floats:
        """P(+1) (n, V) by label without other labels' part."""
        return 1.0 / (1.0 + np.exp(-np.clip(self.base(scores)[:, np.argsort(self.order)], -500, 500)))

    @property
    def links(self) -> kernel.Links:
        """The couplings that are not zero."""
        sparse_form = sparse.csr_array(self.coupling)
        ptr, parent = (part.astype(np.int64) for part in (sparse_form.indptr, sparse_form.indices))
        return kernel.Links(ptr, parent, sparse_form.data)

    def network(self, rules: Rules) -> DirectedNetwork:
        """The same as a network to search by branch and bound, of scores by label."""
        V = len(self.order)
        return DirectedNetwork(np.zeros((V, 0)), np.zeros(V), self.order, pair_terms(self.coupling), rules)


def learn_conditionals(
    scores: Floats, signs: Floats, beliefs: Floats, order: Ints, ridge: float, weight: Floats, parents: int
) -> Conditionals:
    """Logistic regressions of every label on its scores (n, V, U) and on earlier labels' signs.

    One regression of all labels on their scores alone comes first; each label's own is drawn to it by `ridge` (and its
    couplings to zero), so that labels with few rows share what is common to all. `parents`: earlier labels at most,
    those with the largest correlations. weight (n, V): of each row's part in the loss, 0 for missing labels. beliefs
    (n, V): the signs, or for missing labels expected ones.
    """
    n, V, U = scores.shape
    some = np.arange(n) if n * V <= _SHARED else np.arange(0, n, -(-n * V // _SHARED))
    flat = np.concatenate([scores[some], np.ones((len(some), V, 1))], axis=2).reshape(len(some) * V, U + 1)
    shared = _logistic(flat, signs[some].reshape(-1), weight[some].reshape(-1), np.zeros(U + 1), 1e-3)
    correlation = np.zeros((V, V))
    if parents:
        centred = beliefs - beliefs.mean(axis=0)
        sizes = np.sqrt((centred**2).sum(axis=0)) + 1e-12
        correlation = np.abs(centred.T @ centred) / np.outer(sizes, sizes)
    conditionals = Conditionals(order, np.empty((V, U)), np.empty(V), np.zeros((V, V)))

    def learn(i: int) -> None:
        k = order[i]
        earlier = np.argsort(-correlation[k, order[:i]], kind="stable")[:parents]
        used = np.flatnonzero(weight[:, k])
        A = np.column_stack([scores[used, k], np.ones(len(used)), beliefs[np.ix_(used, order[earlier])]])
        start = np.concatenate([shared, np.zeros(len(earlier))])
        w = _logistic(A, signs[used, k], weight[used, k], start, ridge)
        conditionals.weight[i], conditionals.bias[i] = w[:U], w[U]
        conditionals.coupling[i, earlier] = w[U + 1 :]

    map_items(learn, range(V), thread_count(None))
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
    """A network at n rows: base (n, V) log-odds by place without other labels, and constraints by place."""

    conditionals: Conditionals
    base: Floats
    rules: Rules

    def log_probabilities(self, rows: Ints, signs: Floats, least: float | Floats = -np.inf) -> Floats:
        """log P (m) of labellings (m, V) by label, of these rows; -inf for those below `least` or outside the rules."""
        placed, result = self._placed(signs), np.empty(len(rows))
        call = partial(kernel.log_probabilities, self.conditionals.links, self.rules, self.base, rows, placed)
        limits = np.full(len(rows), least, dtype=float)
        map_ranges(lambda a, b: call(a, b, limits, result), 0, len(rows), thread_count(None))
        return result

    def unplaced(self, placed: Any) -> Floats:
        """Signs by place as signs by label."""
        return np.asarray(placed[..., np.argsort(self.conditionals.order)], dtype=float)

    def beam(self, width: int, least: Floats | None = None, clamp: Floats | None = None) -> Beams:
        """Up to `width` labellings per row by breadth-first search.

        least (n): log P below which prefixes are dropped. clamp (n, V): signs that labels must have, 0 if free.
        """
        n, V = self.base.shape
        labels, log_p, bound = np.zeros((n, width, V), dtype=np.int8), np.empty((n, width)), np.empty(n)
        states, held = np.empty(n, dtype=np.int64), np.empty((0, V)) if clamp is None else self._placed(clamp)
        limits = np.full(n, -np.inf) if least is None else least
        call = partial(kernel.beam, self.conditionals.links, self.rules, self.base, held)
        map_ranges(lambda a, b: call(a, b, limits, labels, log_p, bound, states), 0, n, thread_count(None))
        return Beams(labels, log_p, bound, states)

    def most_probable(self, width: int, clamp: Floats | None = None) -> LabelSearch:
        """The most probable labelling of each row, as signs by label; its loss is -log P.

        Breadth first, without prefixes below the greedy labelling's P. Where more than `width` prefixes of a row
        remain, the least probable are left out; up to `_EXACT` labels, and where no labelling within the constraints
        is left, branch and bound then decides.
        """
        greedy = self.beam(1, clamp=clamp)
        best = self.beam(width, greedy.log_p[:, 0], clamp)
        log_p = best.log_p[:, 0].copy()
        found = LabelSearch(
            self.unplaced(best.labels[:, 0]), -log_p, best.states + greedy.states, log_p >= best.bound - _ROUNDING
        )
        few = self.base.shape[1] <= _EXACT
        hard = np.flatnonzero(~found.optimal | np.isinf(log_p) if few else np.isinf(log_p))
        if hard.size:
            network = self.conditionals.network(self.rules)
            base, held = self.unplaced(self.base[hard]), None if clamp is None else clamp[hard]
            limit = found.loss[hard] + _ROUNDING
            other = network.search(base, limit, _STATES, 1, held, LOGISTIC)
            found.labels[hard], found.loss[hard] = other.labels[:, 0], other.loss[:, 0]
            found.states[hard] += other.states
            found.optimal[hard] = other.optimal
        return found

    def _placed(self, signs: Floats) -> Floats:
        return np.ascontiguousarray(signs[:, self.conditionals.order], dtype=float)


class Beams(NamedTuple):
    """The labellings (n, width, V) by place that a search of n rows kept; log P (n, width) falls, -inf where fewer.

    bound (n): no labelling left out has a larger log P. states (n): prefixes visited.
    """

    labels: Any
    log_p: Floats
    bound: Floats
    states: Ints


#: Added to a forest's probabilities, so that labellings missing from its training rows are possible.
FLOOR = 1e-3


class Seen(NamedTuple):
    """A forest's labellings (L, V) and their probabilities at n rows, sparse (n, L)."""

    labellings: Floats
    probabilities: Any

    def marginals(self) -> Floats:
        """P(label = +1) (n, V)."""
        return np.asarray(self.probabilities @ (self.labellings > 0).astype(float))

    def within(self, clamp: Floats | None) -> tuple[Ints, Floats, Floats]:
        """Rows, labellings, and probabilities that are not zero, of those with the signs of clamp, 0 if free."""
        entries = self.probabilities.tocoo()
        rows, numbers = entries.coords
        labellings, p = self.labellings[numbers], entries.data
        kept = slice(None) if clamp is None else np.all(labellings * clamp[rows] >= 0, axis=1)
        return rows[kept].astype(np.int64), labellings[kept], p[kept]

    def chances(self, rows: Ints, signs: Floats) -> Floats:
        """Probabilities (m) of labellings (m, V) at some rows; 0 for one that no training row has."""
        own, wanted = packed(self.labellings), packed(signs)
        order = np.argsort(own)
        number = order[np.minimum(np.searchsorted(own[order], wanted), len(order) - 1)]
        known = own[number] == wanted
        chances = np.zeros(len(rows))
        chances[known] = np.asarray(self.probabilities[rows[known], number[known]]).ravel()
        return chances


class Candidates(NamedTuple):
    """Labellings (m, V) of rows (m): the network's own best and those that the forest has seen near a row.

    log_p (m): of the network. chance (m): the forest's probability. limit (n): no labelling has a larger log_p.
    certain (n): the network's own best are. states (n): prefixes visited.
    """

    rows: Ints
    signs: Floats
    log_p: Floats
    chance: Floats
    limit: Floats
    certain: Bools
    states: Ints

    def best(self, power: float) -> LabelSearch:
        """argmax over labellings of log_p + power log(chance + FLOOR), as signs; the loss is minus that.

        Labellings that the forest gives P = 0 all have the same last term, so that the best of them is the network's
        own best.
        """
        score = self.log_p + power * np.log(self.chance + FLOOR)
        order = np.lexsort((-score, self.rows))
        top = order[np.searchsorted(self.rows[order], np.arange(len(self.limit)))]
        limit = self.limit + (power * np.log(FLOOR))
        return LabelSearch(self.signs[top], -score[top], self.states, self.certain & (score[top] >= limit - _ROUNDING))


def candidates(member: Member, seen: Seen | None, power: float, width: int, clamp: Floats | None = None) -> Candidates:
    """Every labelling that may be the best of its row for an exponent of the forest up to `power`."""
    own = member.most_probable(width, clamp)
    rows, signs = np.arange(len(own.labels)), own.labels
    log_p = member.log_probabilities(rows, signs)
    chance = np.zeros(len(rows)) if seen is None else seen.chances(rows, signs)
    if seen is not None and power > 0:
        listed, labellings, p = seen.within(clamp)
        least = log_p[listed] - power * np.log(p / FLOOR + 1.0) - _ROUNDING
        found = member.log_probabilities(listed, labellings, least)
        kept = found > -np.inf
        rows, signs = np.concatenate([rows, listed[kept]]), np.concatenate([signs, labellings[kept]])
        log_p, chance = np.concatenate([log_p, found[kept]]), np.concatenate([chance, p[kept]])
    return Candidates(rows, signs, log_p, chance, -own.loss, own.optimal, own.states)


def losses_of(member: Member, seen: Seen | None, power: float, rows: Ints, signs: Floats) -> Floats:
    """The losses (m) of labellings (m, V) of some rows (m), as `Candidates.best` has them."""
    chance = np.zeros(len(rows)) if seen is None else seen.chances(rows, signs)
    return -member.log_probabilities(rows, signs) - power * np.log(chance + FLOOR)


def ranked(member: Member, seen: Seen | None, power: float, k: int, clamp: Floats | None = None) -> Ranked:
    """The best labellings that a search of width k and the forest list, by their losses; within clamp, 0 if free."""
    n, beams = len(member.base), member.beam(k, clamp=clamp)
    listed = np.isfinite(beams.log_p)
    rows, signs = [np.repeat(np.arange(n), listed.sum(axis=1))], [member.unplaced(beams.labels[listed])]
    if not listed.any(axis=1).all():  # constraints left no labelling of a row
        rows.append(np.arange(n))
        signs.append(member.most_probable(k, clamp).labels)
    if seen is not None and power > 0:
        near, labellings, _ = seen.within(clamp)
        rows.append(near)
        signs.append(labellings)
    at, labels = np.concatenate(rows), np.concatenate(signs)
    number = np.unique(packed(labels), return_inverse=True)[1].ravel()
    first = np.unique(at * len(at) + number, return_index=True)[1]
    at, labels = at[first], labels[first]
    loss = losses_of(member, seen, power, at, labels)
    order = np.lexsort((loss, at))
    order = order[np.isfinite(loss[order])]
    return Ranked(at[order], labels[order], loss[order], -beams.bound - power * np.log(FLOOR))


def packed(signs: Floats) -> np.ndarray:
    """Labellings as bytes, one value each."""
    bits = np.ascontiguousarray(np.packbits(signs > 0, axis=1))
    return bits.view(f"S{bits.shape[1]}").ravel()

"""Dynamic programming along chains whose variables have one number of states.

`node` is flat, the scores of variable i at node_at[i]; `pair` is flat too, the L x L table between variables i and
i + 1 at pair_at[i], so that pairs may share one table; the entry of a chain's last variable is not read. -inf forbids.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .machine.jit import njit
from .vecmath import KERNEL, exp


@njit(**KERNEL)
def best_path(node, node_at, pair, pair_at, first, last, value, back, labels):
    """The best labelling of variables first .. last - 1 [Viterbi]: fills labels[: last - first], returns its score.

    value (2, L) and back (at least last - first, L) are work space. The smallest state wins ties; a score of -inf
    means that everything is forbidden.
    """
    L = value.shape[1]
    for a in range(L):
        value[0, a] = node[node_at[first] + a]
    for i in range(first + 1, last):
        _extend(pair, pair_at[i - 1], value[(i - first - 1) % 2], value[(i - first) % 2], back[i - first])
        for b in range(L):
            value[(i - first) % 2, b] += node[node_at[i] + b]
    ends = value[(last - first - 1) % 2]
    state = 0
    for a in range(1, L):
        state = a if ends[a] > ends[state] else state
    score = ends[state]
    for i in range(last - 1, first, -1):
        labels[i - first] = state
        state = back[i - first, state]
    labels[0] = state
    return score


@njit(**KERNEL)
def _extend(pair, at, old, new, back):
    """new(b) = max over a of old(a) + pair(a, b), and the smallest a that reaches it."""
    L = old.size
    for b in range(L):
        new[b] = old[0] + pair[at + b]
        back[b] = 0
    for a in range(1, L):
        for b in range(L):
            v = old[a] + pair[at + a * L + b]
            back[b] = a if v > new[b] else back[b]
            new[b] = v if v > new[b] else new[b]


# sums over states may be taken in any order; infinities do not occur there
_SUMS = KERNEL | {"fastmath": {"contract", "reassoc"}}

#: Smallest positive factor; the product of three is still a normal number.
LOWEST = 1e-100
LOG_LOWEST = -230.0
#: Largest score.
HIGHEST = 1e100


class PaddedChains(NamedTuple):
    """Padded sequences with scores.

    scores: of any float type, flat; step t of sequence k begins at k * per_sequence + t * per_step.
    psi: exp(pair - top). safe: whether no finite entry of `pair` is too far below the largest for psi.
    alpha, message: (sequences, steps, L), filled by `upward`; log-sums alpha in sequences computed by logarithms.
    value: log Z of each sequence, NaN if a score is NaN, +inf or beyond 1e100. logs: which sequences are so computed.
    """

    scores: Any
    per_sequence: int
    per_step: int
    length: Any
    start: Any
    pair: Any
    end: Any
    psi: Any
    top: float
    safe: bool
    alpha: Any
    message: Any
    value: Any
    logs: Any


@njit(allocates=True, **KERNEL)
def upward(chains, first, last):
    """Fill alpha, message, value and logs of sequences first .. last - 1."""
    u = np.empty(chains.start.size)
    for k in range(first, last):
        chains.logs[k] = not (chains.safe and _scaled_upward(chains, k, u))
        if chains.logs[k]:
            _log_upward(chains, k, u)


@njit(inline="always", **KERNEL)
def load_step(chains, k, t, u):
    """u_t of sequence k; returns its largest and smallest finite score, (-inf, inf) if there is none.

    The largest is NaN where one is no number that may occur.
    """
    L = u.size
    at = k * chains.per_sequence + t * chains.per_step
    for b in range(L):
        u[b] = chains.scores[at + b]
    if t == 0:
        for b in range(L):
            u[b] += chains.start[b]
    if t == chains.length[k] - 1:
        for b in range(L):
            u[b] += chains.end[b]
    peak, low = -np.inf, np.inf
    for b in range(L):
        if not u[b] <= HIGHEST:
            return np.nan, low
        peak = max(peak, u[b])
        low = min(low, u[b] if u[b] > -np.inf else np.inf)
    return peak, low


@njit(**_SUMS)
def _scaled_upward(chains, k, u):
    """Whether log Z could be computed without logarithms."""
    L, psi = u.size, chains.psi
    value, scale = 0.0, 1.0
    for t in range(chains.length[k]):
        peak, low = load_step(chains, k, t, u)
        if not peak > -np.inf:
            chains.value[k] = peak
            return True
        if low - peak < LOG_LOWEST:
            return False
        alpha, m = chains.alpha[k, t], chains.message[k, t]
        for b in range(L):
            alpha[b] = exp(u[b] - peak)
        if t > 0:
            before = chains.alpha[k, t - 1]
            for b in range(L):
                m[b] = before[0] * psi[0, b]
            for a in range(1, L):
                weight = before[a]
                for b in range(L):
                    m[b] += weight * psi[a, b]
            for b in range(L):
                alpha[b] *= m[b]
            value += chains.top
        total = 0.0
        for b in range(L):
            total += alpha[b]
        if total == 0.0:
            chains.value[k] = -np.inf
            return True
        least = 1.0
        for b in range(L):
            alpha[b] /= total
            least = min(least, alpha[b] if alpha[b] > 0.0 else 1.0)
        if least < LOWEST:
            return False
        value += peak
        scale *= total
        if not 1e-100 < scale < 1e100:  # one logarithm for many steps
            value += np.log(scale)
            scale = 1.0
    chains.value[k] = value + np.log(scale)
    return True


@njit(allocates=True, **KERNEL)
def _log_upward(chains, k, u):
    """alpha_t(b) = u_t(b) + log sum_a exp(alpha_{t-1}(a) + pair(a, b)); `message` is left."""
    for t in range(chains.length[k]):
        if np.isnan(load_step(chains, k, t, u)[0]):
            chains.value[k] = np.nan
            return
        alpha = chains.alpha[k, t]
        for b in range(u.size):
            alpha[b] = u[b]
            if t > 0:
                alpha[b] += _log_sum(chains.alpha[k, t - 1], chains.pair[:, b])
    chains.value[k] = _log_sum(chains.alpha[k, chains.length[k] - 1], np.zeros(u.size))


@njit(inline="always", **KERNEL)
def _log_sum(x, y):
    """log sum exp(x + y), -inf if all is forbidden."""
    peak = -np.inf
    for a in range(x.size):
        peak = max(peak, x[a] + y[a])
    if peak == -np.inf:
        return peak
    total = 0.0
    for a in range(x.size):
        total += exp(x[a] + y[a] - peak)
    return peak + np.log(total)


@njit(allocates=True, **KERNEL)
def downward(chains, weight, d_scores, d_start, d_pair, d_end, first, last):
    """Gradient of sum_k weight_k log Z_k over sequences first .. last - 1.

    Writes d_scores in the layout of scores (zero after a sequence's end); adds to d_start, d_pair and d_end.
    """
    L = chains.start.size
    mu, below, ratio = np.empty(L), np.empty(L), np.empty(L)
    d_psi = np.zeros((L, L))
    for k in range(first, last):
        if chains.logs[k]:
            _log_downward(chains, k, weight[k], mu, below, ratio, d_scores, d_start, d_pair, d_end)
        else:
            _scaled_downward(chains, k, weight[k], mu, below, ratio, d_scores, d_start, d_psi, d_end)
        for t in range(chains.length[k], chains.alpha.shape[1]):
            at = k * chains.per_sequence + t * chains.per_step
            for b in range(L):
                d_scores[at + b] = 0.0
    for a in range(L):
        for b in range(L):
            d_pair[a, b] += chains.psi[a, b] * d_psi[a, b]


@njit(**_SUMS)
def _scaled_downward(chains, k, weight, mu, below, ratio, d_scores, d_start, d_psi, d_end):
    L, psi = mu.size, chains.psi
    n = chains.length[k]
    for b in range(L):
        mu[b] = weight * chains.alpha[k, n - 1, b]
        d_end[b] += mu[b]
    for t in range(n - 1, -1, -1):
        at = k * chains.per_sequence + t * chains.per_step
        for b in range(L):
            d_scores[at + b] = mu[b]
        if t == 0:
            break
        m, alpha = chains.message[k, t], chains.alpha[k, t - 1]
        for b in range(L):
            ratio[b] = mu[b] / m[b] if m[b] > 0.0 else 0.0
        for a in range(L):
            total, own = 0.0, alpha[a]
            for b in range(L):
                total += psi[a, b] * ratio[b]
                d_psi[a, b] += own * ratio[b]
            below[a] = own * total
        for b in range(L):
            mu[b] = below[b]
    for b in range(L):
        d_start[b] += mu[b]


@njit(**KERNEL)
def _log_downward(chains, k, weight, beta, below, u, d_scores, d_start, d_pair, d_end):
    """The same by beta_{t-1}(a) = log sum_b exp(pair(a, b) + u_t(b) + beta_t(b))."""
    L, n, log_z = beta.size, chains.length[k], chains.value[k]
    beta[:] = 0.0
    for t in range(n - 1, -1, -1):
        at, alpha = k * chains.per_sequence + t * chains.per_step, chains.alpha[k, t]
        for b in range(L):
            mu = weight * exp(alpha[b] + beta[b] - log_z)
            d_scores[at + b] = mu
            d_start[b] += mu if t == 0 else 0.0
            d_end[b] += mu if t == n - 1 else 0.0
        if t == 0:
            break
        load_step(chains, k, t, u)
        for b in range(L):
            u[b] += beta[b]
        for a in range(L):
            for b in range(L):
                d_pair[a, b] += weight * exp(chains.alpha[k, t - 1, a] + chains.pair[a, b] + u[b] - log_z)
            below[a] = _log_sum(chains.pair[a], u)
        for b in range(L):
            beta[b] = below[b]


@njit(**KERNEL)
def subtract_labels(chains, labels, weight, d_scores, d_start, d_pair, d_end, first, last):
    """Subtract weight_k times the indicators of labels, (sequences, steps), from what `downward` gave."""
    for k in range(first, last):
        n = chains.length[k]
        for t in range(n):
            y = labels[k, t]
            d_scores[k * chains.per_sequence + t * chains.per_step + y] -= weight[k]
            if t > 0:
                d_pair[labels[k, t - 1], y] -= weight[k]
        d_start[labels[k, 0]] -= weight[k]
        d_end[labels[k, n - 1]] -= weight[k]


@njit(**KERNEL)
def score_labels(chains, labels, score):
    """The score of every sequence's labels, -inf where they are forbidden."""
    for k in range(score.size):
        n = chains.length[k]
        total = chains.start[labels[k, 0]] + chains.end[labels[k, n - 1]]
        for t in range(n):
            y = labels[k, t]
            total += chains.scores[k * chains.per_sequence + t * chains.per_step + y]
            if t > 0:
                total += chains.pair[labels[k, t - 1], y]
        score[k] = total


@njit(allocates=True, **KERNEL)
def best_labels(chains, labels, score):
    """The best labels of every sequence, (sequences, steps), and their scores.

    A score is -inf if everything is forbidden, NaN as in `Chains.value`.
    """
    steps, L = labels.shape[1], chains.start.size
    node, value, back = np.empty((steps, L)), np.empty((2, L)), np.empty((steps, L), dtype=np.int64)
    node_at, pair_at = np.arange(steps) * L, np.zeros(steps, dtype=np.int64)
    for k in range(score.size):
        n = chains.length[k]
        good = True
        for t in range(n):
            good &= not np.isnan(load_step(chains, k, t, node[t])[0])
        found = best_path(node.ravel(), node_at, chains.pair.ravel(), pair_at, 0, n, value, back, labels[k])
        score[k] = found if good else np.nan


@njit(allocates=True, **KERNEL)
def k_best_labels(chains, labels, score):
    """The k best labellings of every sequence, labels (sequences, k, steps), best first, and their scores.

    Scores are -inf where a sequence has fewer. Each state keeps its k best prefixes: k^2 L^2 operations a step.
    """
    k_best, steps, L = labels.shape[1], labels.shape[2], chains.start.size
    u, value = np.empty(L), np.empty((steps, L, k_best))
    back = np.empty((steps, L, k_best), dtype=np.int64)
    ends, end = np.empty(k_best), np.empty(k_best, dtype=np.int64)
    for k in range(score.shape[0]):
        n = chains.length[k]
        for t in range(n):
            load_step(chains, k, t, u)
            for b in range(L):
                value[t, b], back[t, b] = -np.inf, 0
                if t == 0:
                    value[t, b, 0] = u[b]
                    continue
                for a in range(L):
                    _offer(value[t - 1, a], chains.pair[a, b] + u[b], a, value[t, b], back[t, b])
        ends[:], end[:] = -np.inf, 0
        for a in range(L):
            _offer(value[n - 1, a], 0.0, a, ends, end)
        for j in range(k_best):
            score[k, j], at = ends[j], end[j]
            for t in range(n - 1, -1, -1):
                labels[k, j, t] = at // k_best
                at = back[t, at // k_best, at % k_best]


@njit(inline="always", **KERNEL)
def _offer(values, more, state, best, origin):
    """Insert values + more, in descending order, into the descending list `best`; origin is state * k + rank."""
    k_best = best.size
    for rank in range(k_best):
        v = values[rank] + more
        if not v > best[k_best - 1]:
            return
        j = k_best - 1
        while j > 0 and best[j - 1] < v:
            best[j], origin[j] = best[j - 1], origin[j - 1]
            j -= 1
        best[j], origin[j] = v, state * k_best + rank

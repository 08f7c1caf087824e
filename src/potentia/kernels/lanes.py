"""The dynamic program over chains: log Z, marginals and best paths.

States are lanes: vectors of eight, padded with lanes that are always zero. A sequence's arrays are flat: step t begins
at t * P, where P is the number of states L rounded up to eight. With u_t the scores of step t and
psi = exp(transition - top),

    m_t(b) = sum_a alpha_{t-1}(a) psi(a, b) ;   alpha_t(b) ~ m_t(b) exp(u_t(b) - peak), rescaled to sum 1
    r_t(b) = mu_t(b) / m_t(b) ;   mu_{t-1}(a) = alpha_{t-1}(a) sum_b psi(a, b) r_t(b)
    d psi(a, b) += alpha_{t-1}(a) r_t(b)

The last sum runs over a sequence's steps at once, with running sums in registers. Scores whose range is too large for
these products are summed by `log_forward` and `log_backward`, where alpha and m are logarithms:

    m_t(b) = log sum_a exp(alpha_{t-1}(a) + transition(a, b)) ;   alpha_t(b) = u_t(b) + m_t(b)
    mu_{t-1, t}(a, b) = mu_t(b) exp(alpha_{t-1}(a) + transition(a, b) - m_t(b))
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .machine.jit import njit
from .machine.simd import CHUNK, above8, add8, div8, fma8, load8, max8, min8, mul8, pick8, spread8, store8, sum8
from .vecmath import KERNEL, exp

#: Smallest positive factor; the product of three is still a normal number.
LOWEST = 1e-100
LOG_LOWEST = -230.0

# sums over states may be taken in any order; infinities do not occur there
_SUMS = KERNEL | {"fastmath": {"contract", "reassoc"}}


class Lanes(NamedTuple):
    """Tables of all chains, rows of P entries.

    Attributes:
        n_states: L.
        pair: (L * P,) scores of neighbouring states, -inf where forbidden.
        psi, psi_t: (L * P,) exp(pair - top), and its transpose; zero in the padding.
        top: largest score of a pair.
        start, end: (P,) 1 where a chain may begin or end, 0 elsewhere and in the padding.
        safe: whether no finite entry of `pair` is too far below the largest for psi.
    """

    n_states: int
    pair: Any
    psi: Any
    psi_t: Any
    top: float
    start: Any
    end: Any
    safe: bool


def make_lanes(pair: Any, start: Any = True, end: Any = True) -> Lanes:
    """Tables of scores `pair` (L, L), -inf where forbidden, and of states that may begin or end a chain (L,)."""
    n, width = len(pair), -(-len(pair) // CHUNK) * CHUNK
    finite = pair[pair > -np.inf]
    top = float(finite.max(initial=-np.inf)) if finite.size else 0.0
    safe = bool(finite.size == 0 or finite.min() - top >= LOG_LOWEST)
    psi = np.exp(pair - top)
    tables, ends = np.zeros((3, n, width)), np.zeros((2, width))
    tables[:, :, :n] = pair, psi, psi.T
    ends[0, :n], ends[1, :n] = start, end
    return Lanes(n, *tables.reshape(3, -1), top, *ends, safe)


@njit(inline="always", **KERNEL)
def _product(table, L, P, x, at, out, to):
    """out[to + b] = sum_a x[at + a] table[a, b]: up to four chunks at a time share what is read of x."""
    c = 0
    while c + 4 * CHUNK <= P:
        s0, s1, s2, s3 = spread8(0.0), spread8(0.0), spread8(0.0), spread8(0.0)
        k = c
        for a in range(L):
            e = spread8(x[at + a])
            s0 = fma8(e, load8(table, k), s0)
            s1 = fma8(e, load8(table, k + CHUNK), s1)
            s2 = fma8(e, load8(table, k + 2 * CHUNK), s2)
            s3 = fma8(e, load8(table, k + 3 * CHUNK), s3)
            k += P
        store8(out, to + c, s0)
        store8(out, to + c + CHUNK, s1)
        store8(out, to + c + 2 * CHUNK, s2)
        store8(out, to + c + 3 * CHUNK, s3)
        c += 4 * CHUNK
    while c + 2 * CHUNK <= P:
        s0, s1, s2, s3 = spread8(0.0), spread8(0.0), spread8(0.0), spread8(0.0)
        k = c
        for a in range(0, L - 1, 2):
            e, f = spread8(x[at + a]), spread8(x[at + a + 1])
            s0 = fma8(e, load8(table, k), s0)
            s1 = fma8(e, load8(table, k + CHUNK), s1)
            s2 = fma8(f, load8(table, k + P), s2)
            s3 = fma8(f, load8(table, k + P + CHUNK), s3)
            k += 2 * P
        if L % 2 == 1:
            e = spread8(x[at + L - 1])
            s0 = fma8(e, load8(table, k), s0)
            s1 = fma8(e, load8(table, k + CHUNK), s1)
        store8(out, to + c, add8(s0, s2))
        store8(out, to + c + CHUNK, add8(s1, s3))
        c += 2 * CHUNK
    if c < P:
        s0, s1 = spread8(0.0), spread8(0.0)
        k = c
        for a in range(0, L - 1, 2):
            s0 = fma8(spread8(x[at + a]), load8(table, k), s0)
            s1 = fma8(spread8(x[at + a + 1]), load8(table, k + P), s1)
            k += 2 * P
        if L % 2 == 1:
            s0 = fma8(spread8(x[at + L - 1]), load8(table, k), s0)
        store8(out, to + c, add8(s0, s1))


@njit(inner=True, **_SUMS)
def forward(lanes, labels, first, n, u, alpha, m):
    """log Z of n steps with scores u (-inf forbids); fills alpha and m. NaN where the scores' range needs logarithms.

    labels: of all tokens, the chain's from `first` on: others than a label that is not -1 are left out; empty for none.
    """
    L, P = lanes.n_states, lanes.start.size
    value, scale = 0.0, 1.0
    for t in range(n):
        at = t * P
        peak, low = -np.inf, np.inf
        for b in range(at, at + L):
            peak = max(peak, u[b])
            low = min(low, u[b] if u[b] > -np.inf else np.inf)
        if peak == -np.inf:
            return -np.inf
        if not low - peak > LOG_LOWEST:
            return np.nan
        if t > 0:
            _product(lanes.psi, L, P, alpha, at - P, m, at)
            value += lanes.top
        for b in range(at, at + L):
            alpha[b] = exp(u[b] - peak)
        for b in range(at + L, at + P):
            alpha[b] = 0.0
        if t == 0:
            for b in range(P):
                alpha[b] *= lanes.start[b]
        else:
            for c in range(at, at + P, CHUNK):
                store8(alpha, c, mul8(load8(alpha, c), load8(m, c)))
        if t == n - 1:
            for b in range(P):
                alpha[at + b] *= lanes.end[b]
        if labels.size > 0 and labels[first + t] >= 0:
            kept = alpha[at + labels[first + t]]
            for b in range(P):
                alpha[at + b] = 0.0
            alpha[at + labels[first + t]] = kept
        total = 0.0
        for b in range(P):
            total += alpha[at + b]
        if total == 0.0:
            return -np.inf
        sums, least, one = spread8(total), spread8(1.0), spread8(1.0)
        for c in range(at, at + P, CHUNK):
            v = div8(load8(alpha, c), sums)
            store8(alpha, c, v)
            least = min8(above8(v, one), least)
        if sum8(pick8(least, spread8(LOWEST), one, spread8(0.0))) > 0.0:
            return np.nan
        value += peak
        scale *= total
        if not 1e-100 < scale < 1e100:  # one logarithm for many steps
            value += np.log(scale)
            scale = 1.0
    return value + np.log(scale)


@njit(inner=True, **_SUMS)
def backward(lanes, weight, n, u, alpha, m, d_psi):
    """Marginals times weight into u, after `forward`; adds to d_psi (L * P,). Spends m."""
    L, P = lanes.n_states, lanes.start.size
    last = (n - 1) * P
    for b in range(P):
        u[last + b] = weight * alpha[last + b]
    for at in range(last, 0, -P):
        for c in range(at, at + P, CHUNK):
            v = load8(m, c)
            store8(m, c, pick8(spread8(0.0), v, div8(load8(u, c), v), spread8(0.0)))
        _product(lanes.psi_t, L, P, m, at, u, at - P)
        for c in range(at - P, at, CHUNK):
            store8(u, c, mul8(load8(u, c), load8(alpha, c)))
    if n > 1 and d_psi.size > 0:
        _add_outer(alpha, m, n, L, P, d_psi)


@njit(inline="always", **KERNEL)
def _add_outer(alpha, ratio, n, L, P, d_psi):
    """d_psi[a, b] += sum_t alpha_{t-1}(a) ratio_t(b): two states a at a time share what is read of ratio."""
    last = (n - 1) * P
    for a in range(0, L - 1, 2):
        c = 0
        while c + 2 * CHUNK <= P:
            k = a * P + c
            s0, s1 = load8(d_psi, k), load8(d_psi, k + CHUNK)
            s2, s3 = load8(d_psi, k + P), load8(d_psi, k + P + CHUNK)
            for at in range(0, last, P):
                e, f = spread8(alpha[at + a]), spread8(alpha[at + a + 1])
                r, q = load8(ratio, at + P + c), load8(ratio, at + P + c + CHUNK)
                s0 = fma8(e, r, s0)
                s1 = fma8(e, q, s1)
                s2 = fma8(f, r, s2)
                s3 = fma8(f, q, s3)
            store8(d_psi, k, s0)
            store8(d_psi, k + CHUNK, s1)
            store8(d_psi, k + P, s2)
            store8(d_psi, k + P + CHUNK, s3)
            c += 2 * CHUNK
        if c < P:
            k = a * P + c
            s0, s1 = load8(d_psi, k), load8(d_psi, k + P)
            for at in range(0, last, P):
                r = load8(ratio, at + P + c)
                s0 = fma8(spread8(alpha[at + a]), r, s0)
                s1 = fma8(spread8(alpha[at + a + 1]), r, s1)
            store8(d_psi, k, s0)
            store8(d_psi, k + P, s1)
    if L % 2 == 1:
        for c in range(0, P, CHUNK):
            s0 = load8(d_psi, (L - 1) * P + c)
            for at in range(0, last, P):
                s0 = fma8(spread8(alpha[at + L - 1]), load8(ratio, at + P + c), s0)
            store8(d_psi, (L - 1) * P + c, s0)


@njit(inner=True, **KERNEL)
def log_forward(lanes, pair, stride, labels, first, n, u, alpha, m):
    """As `forward` with logarithms in alpha and m, for scores of any range; NaN where a score is.

    pair: scores of neighbouring states, those of step t and the one before from t * stride on: `lanes.pair` with stride
    0, or a table (L * P,) for every step.
    """
    L, P = lanes.n_states, lanes.start.size
    for t in range(n):
        at = t * P
        for b in range(L):
            m[at + b] = 0.0 if t > 0 or lanes.start[b] > 0.0 else -np.inf
            if t > 0:
                m[at + b] = _log_sum(alpha, at - P, pair, t * stride + b, P, L)
            alpha[at + b] = u[at + b] + m[at + b]
            if t == n - 1 and lanes.end[b] == 0.0:
                alpha[at + b] = -np.inf
            if labels.size > 0 and labels[first + t] >= 0 and labels[first + t] != b:
                alpha[at + b] = -np.inf
    return _log_sum(alpha, (n - 1) * P, alpha, 0, 0, L) if n > 0 else 0.0


@njit(inline="always", **KERNEL)
def _log_sum(x, at, table, first, stride, L):
    """log sum_a exp(x[at + a] + table[first + a * stride]), -inf if all are; without the table if stride is 0."""
    peak = -np.inf
    for a in range(L):
        peak = max(peak, x[at + a] + (table[first + a * stride] if stride > 0 else 0.0))
    if peak == -np.inf:
        return peak
    total = 0.0
    for a in range(L):
        total += exp(x[at + a] + (table[first + a * stride] if stride > 0 else 0.0) - peak)
    return peak + np.log(total)


@njit(inner=True, **KERNEL)
def log_backward(lanes, pair, stride, weight, n, log_z, u, alpha, m, d_pair):
    """As `backward` after `log_forward`, which gave log_z; adds marginals of pairs times weight to d_pair (L * P,).

    Tables of steps (stride > 0) are replaced by these marginals.
    """
    L, P = lanes.n_states, lanes.start.size
    u[: n * P] = 0.0
    last = (n - 1) * P
    for b in range(L):
        u[last + b] = weight * exp(alpha[last + b] - log_z)
    for at in range(last, 0, -P):
        table = at // P * stride
        for b in range(L):
            if u[at + b] == 0.0:
                for a in range(L if stride > 0 else 0):
                    pair[table + a * P + b] = 0.0
                continue
            for a in range(L):
                mu = u[at + b] * exp(alpha[at - P + a] + pair[table + a * P + b] - m[at + b])
                u[at - P + a] += mu
                if d_pair.size > 0:
                    d_pair[a * P + b] += mu
                if stride > 0:
                    pair[table + a * P + b] = mu


@njit(inner=True, **KERNEL)
def sum_chain(lanes, pair, stride, labels, first, n, weight, u, alpha, m, marginals, d_psi, d_pair):
    """log Z of n steps with scores u, -inf if all is forbidden; with `marginals`, these times weight replace u.

    Adds to d_psi or, where the scores' range needs logarithms, to d_pair (L * P,); empty arrays for no gradient.
    labels: as in `forward`. pair, stride: as in `log_forward`. alpha, m: scratch as u.
    """
    value = forward(lanes, labels, first, n, u, alpha, m) if lanes.safe and stride == 0 else np.nan
    if value > -np.inf:
        if marginals:
            backward(lanes, weight, n, u, alpha, m, d_psi)
        return value
    value = log_forward(lanes, pair, stride, labels, first, n, u, alpha, m)
    if marginals and value > -np.inf:
        log_backward(lanes, pair, stride, weight, n, value, u, alpha, m, d_pair)
    return value


@njit(inline="always", **KERNEL)
def _best_before(pair, table, L, P, x, at, out, to):
    """out[to + b] = max_a x[at + a] + pair[table + a * P + b]."""
    c = 0
    while c + 4 * CHUNK <= P:
        s0, s1, s2, s3 = spread8(-np.inf), spread8(-np.inf), spread8(-np.inf), spread8(-np.inf)
        k = table + c
        for a in range(L):
            e = spread8(x[at + a])
            s0 = max8(add8(e, load8(pair, k)), s0)
            s1 = max8(add8(e, load8(pair, k + CHUNK)), s1)
            s2 = max8(add8(e, load8(pair, k + 2 * CHUNK)), s2)
            s3 = max8(add8(e, load8(pair, k + 3 * CHUNK)), s3)
            k += P
        store8(out, to + c, s0)
        store8(out, to + c + CHUNK, s1)
        store8(out, to + c + 2 * CHUNK, s2)
        store8(out, to + c + 3 * CHUNK, s3)
        c += 4 * CHUNK
    while c < P:
        s0 = spread8(-np.inf)
        k = table + c
        for a in range(L):
            s0 = max8(add8(spread8(x[at + a]), load8(pair, k)), s0)
            k += P
        store8(out, to + c, s0)
        c += CHUNK


@njit(inner=True, **KERNEL)
def best_states(lanes, pair, stride, n, u, best, before, labels, to):
    """The best states of n steps with scores u, the first of equals, into labels[to:]; returns their score.

    pair, stride: as in `log_forward`. best, before: scratch as u. Only values are kept on the way; the path is found
    by what equals them.
    """
    L, P = lanes.n_states, lanes.start.size
    for b in range(L):
        best[b] = u[b] if lanes.start[b] > 0.0 else -np.inf
    for t in range(1, n):
        at = t * P
        _best_before(pair, t * stride, L, P, best, at - P, before, at)
        for b in range(L):
            best[at + b] = before[at + b] + u[at + b]
    at, state, score = (n - 1) * P, 0, -np.inf
    for b in range(L):
        if lanes.end[b] > 0.0 and best[at + b] > score:
            state, score = b, best[at + b]
    labels[to + n - 1] = state
    for t in range(n - 1, 0, -1):
        at = t * P
        wanted, a = before[at + state], 0
        while a < L - 1 and best[at - P + a] + pair[t * stride + a * P + state] != wanted:
            a += 1
        state = a
        labels[to + t - 1] = state
    return score

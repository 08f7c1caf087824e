"""log Z of a forest and its gradient in two passes over probabilities, rescaled at every variable.

With root-first order, parent p(i) and psi_i(b, a) = exp theta between i in state b and its parent in state a:

    up_i(b) ~ exp theta_i(b) prod over children m_c(b) ;   m_i(a) = sum_b psi_i(b, a) up_i(b)
    r_i(a) = mu_p(a) / m_i(a) ;   mu_i(b) = up_i(b) sum_a psi_i(b, a) r_i(a) ;   mu_pair = psi_i(b, a) up_i(b) r_i(a)

No logarithm per state and no exponential per configuration of a shared table, which is what makes it fast; scores
must be of a range that leaves no sum empty, see `largest_range`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .machine.jit import njit
from .vecmath import KERNEL, exp

# sums over states may be taken in any order; infinities do not occur here
_SUMS = KERNEL | {"fastmath": {"contract", "reassoc"}}


class Forest(NamedTuple):
    """A forest of pairs with scores.

    order: variables, roots first. parent: -1 at roots. offset: where the scores of the pair with the parent begin in
    `values`. side: which end of that pair the variable is. psi: exp(scores - top) as [child][parent] tables, that of
    variable i at psi_at[i]; pairs that share scores and side may share psi.
    """

    order: Any
    parent: Any
    side: Any
    n_states: Any
    values: Any
    offset: Any
    psi: Any
    psi_at: Any
    top: Any


@njit(allocates=True, **KERNEL)
def largest_range(forest, singles):
    """Fill `top`; the largest log-range that a variable's scores and its pairs' tables can add up to.

    Infinite where some score is -inf.
    """
    total = np.zeros(singles.shape[0])
    known, top, spread = -1, 0.0, 0.0
    for i in range(singles.shape[0]):
        p, n = forest.parent[i], forest.n_states[i]
        total[i] += _range_of(singles[i, :n])[1]
        if p >= 0:
            if forest.offset[i] != known:
                known = forest.offset[i]
                top, spread = _range_of(forest.values[known : known + n * forest.n_states[p]])
            forest.top[i] = top
            total[i] += spread
            total[p] += spread
    return np.max(total)


@njit(inline="always", **KERNEL)
def _range_of(values):
    high, low = values[0], values[0]
    for k in range(values.size):
        high, low = max(high, values[k]), min(low, values[k])
    return high, high - low


@njit(allocates=True, **KERNEL)
def fill_psi(forest):
    """psi of every pair, once where it is shared."""
    done = np.zeros(forest.psi.size, dtype=np.bool_)
    for i in range(forest.parent.size):
        p, at = forest.parent[i], forest.psi_at[i]
        if p < 0 or done[at]:
            continue
        done[at] = True
        n, width = forest.n_states[i], forest.n_states[p]
        entries = forest.values[forest.offset[i] : forest.offset[i] + n * width]
        out = forest.psi[at : at + n * width]
        if forest.side[i] == 0:
            for k in range(n * width):
                out[k] = exp(entries[k] - forest.top[i])
        else:
            for b in range(n):
                for a in range(width):
                    out[b * width + a] = exp(entries[a * n + b] - forest.top[i])


@njit(allocates=True, **KERNEL)
def add_tables(forest, d_psi, out):
    """Add psi times d_psi, [child][parent], to cotangents of the scores, once where it is shared."""
    done = np.zeros(forest.psi.size, dtype=np.bool_)
    for i in range(forest.parent.size):
        p, at = forest.parent[i], forest.psi_at[i]
        if p < 0 or done[at]:
            continue
        done[at] = True
        n, width, first = forest.n_states[i], forest.n_states[p], forest.offset[i]
        for b in range(n):
            for a in range(width):
                k = at + b * width + a
                to = first + (b * width + a if forest.side[i] == 0 else a * n + b)
                out[to] += forest.psi[k] * d_psi[k]


@njit(**_SUMS)
def upward(forest, singles, up, message):
    """Fill `up` and the messages to parents; returns log Z."""
    n_states, value = forest.n_states, 0.0
    for i in range(up.shape[0]):
        peak = -np.inf
        for a in range(n_states[i]):
            peak = max(peak, singles[i, a])
        for a in range(n_states[i]):
            up[i, a] = exp(singles[i, a] - peak)
        value += peak
    scale = 1.0
    for k in range(up.shape[0] - 1, -1, -1):
        i = forest.order[k]
        n = n_states[i]
        total = 0.0
        for b in range(n):
            total += up[i, b]
        for b in range(n):
            up[i, b] /= total
        scale *= total
        if not 1e-100 < scale < 1e100:  # one logarithm for many variables
            value += np.log(scale)
            scale = 1.0
        if forest.parent[i] >= 0:
            _send(forest, i, up, message)
            value += forest.top[i]
    return value + np.log(scale)


@njit(inline="always", **_SUMS)
def _send(forest, i, up, message):
    """m_i, multiplied to the parent's `up`."""
    p = forest.parent[i]
    n, width = forest.n_states[i], forest.n_states[p]
    psi = forest.psi[forest.psi_at[i] : forest.psi_at[i] + n * width].reshape(n, width)
    m, above = message[i], up[p]
    for a in range(width):
        m[a] = 0.0
    for b in range(n):
        weight = up[i, b]
        for a in range(width):
            m[a] += psi[b, a] * weight
    for a in range(width):
        above[a] *= m[a]


@njit(allocates=True, **_SUMS)
def downward(forest, up, message, mu, d_psi):
    """Marginals of variables into `mu`; adds up(b) r(a), pair marginals over psi, to d_psi."""
    ratio, sums = np.empty(mu.shape[1]), np.empty(mu.shape[1])
    for k in range(up.shape[0]):
        i = forest.order[k]
        p, n = forest.parent[i], forest.n_states[i]
        if p < 0:
            for b in range(n):
                mu[i, b] = up[i, b]
            continue
        width = forest.n_states[p]
        psi = forest.psi[forest.psi_at[i] : forest.psi_at[i] + n * width].reshape(n, width)
        part = d_psi[forest.psi_at[i] : forest.psi_at[i] + n * width].reshape(n, width)
        for a in range(width):
            ratio[a] = mu[p, a] / message[i, a]
        for b in range(n):
            total, weight = 0.0, up[i, b]
            for a in range(width):
                total += psi[b, a] * ratio[a]
                part[b, a] += weight * ratio[a]
            sums[b] = total
        for b in range(n):
            mu[i, b] = up[i, b] * sums[b]

"""Mean field by coordinate ascent on flat regions of any order."""

from __future__ import annotations

import numpy as np

from .machine.jit import njit
from .vecmath import KERNEL, exp
from .weighted_links import add_links, spread_one

#: Stands for -inf: times a probability of exactly zero it stays zero, times any other it rules a state out.
FORBIDDEN = -1e200
#: No sum of allowed scores is as low as this, so some weight is on forbidden configurations.
HOPELESS = -1e130


@njit(allocates=True, **KERNEL)
def sweep_variables(regions, stars, links, theta, at, pair_at, variables, q):
    """q_i = softmax(theta_i + sum over its regions of E[theta | y_i]) for each of `variables` in turn.

    at: where each region's table begins in theta; pair_at: the same of each pair of `stars`; links: the pairs that
    are not in `stars`. q: (n, states). Returns the largest change of an entry of q.
    """
    field = np.empty(q.shape[1])
    change = 0.0
    for i in variables:
        n = regions.n_states[i]
        own_at = at[regions.single[i]]
        for a in range(n):
            field[a] = theta[own_at + a]
        for k in range(stars.pair_ptr[i], stars.pair_ptr[i + 1]):
            _add_pair(regions, stars, theta, pair_at[k], k, n, q, field)
        for k in range(stars.wide_ptr[i], stars.wide_ptr[i + 1]):
            _add_wide(regions, theta, at, stars.wide[k], stars.wide_at[k], q, field)
        add_links(links, i, field)
        change = max(change, _softmax(field, n, q, i))
        spread_one(links, q, i)
    return change


@njit(inline="always", **KERNEL)
def _softmax(field, n, q, i):
    """Replace q_i by the softmax of its field; the largest change."""
    change = 0.0
    if n == 2:  # one exponential will do
        small = exp(-abs(field[1] - field[0]))
        large = 1.0 / (1.0 + small)
        field[0], field[1] = (large, small * large) if field[0] >= field[1] else (small * large, large)
    else:
        peak, total = field[0], 0.0
        for a in range(1, n):
            peak = max(peak, field[a])
        for a in range(n):
            field[a] = exp(field[a] - peak)
            total += field[a]
        for a in range(n):
            field[a] /= total
    for a in range(n):
        change = max(change, abs(field[a] - q[i, a]))
        q[i, a] = field[a]
    return change


@njit(inline="always", **KERNEL)
def _add_pair(regions, stars, theta, base, k, n, q, field):
    """field(a) += E_q[theta | y_i = a] of the k-th pair, whose table begins at `base`."""
    j, own, step = stars.other[k], stars.own[k], stars.step[k]
    if n == 2 and regions.n_states[j] == 2:
        p0, p1 = q[j, 0], q[j, 1]
        field[0] += theta[base] * p0 + theta[base + step] * p1
        field[1] += theta[base + own] * p0 + theta[base + own + step] * p1
        return
    for b in range(regions.n_states[j]):
        for a in range(n):
            field[a] += theta[base + a * own + b * step] * q[j, b]


@njit(**KERNEL)
def _add_wide(regions, theta, at, r, here, q, field):
    """field(a) += E_q[theta_r | the variable at scope position `here` is in state a], for three variables and more."""
    first, last = regions.scope_ptr[r], regions.scope_ptr[r + 1]
    own, n = regions.stride[here], regions.n_states[regions.scope[here]]
    for y in range(regions.size[r]):
        weight = _product(regions, first, last, here, y, q)
        if weight > 0.0:
            field[(y // own) % n] += theta[at[r] + y] * weight


@njit(**KERNEL)
def _product(regions, first, last, without, y, q):
    """Probability under q of configuration y of a region's variables, one of them left out (-1: none)."""
    weight = 1.0
    for k in range(first, last):
        if k != without:
            j = regions.scope[k]
            weight *= q[j, (y // regions.stride[k]) % regions.n_states[j]]
    return weight


@njit(**KERNEL)
def product_marginals(regions, q, start, stop, out_at, out):
    """Product marginals of regions start..stop into `out`, that of region r from out_at[r - start] on."""
    for r in range(start, stop):
        first, last = regions.scope_ptr[r], regions.scope_ptr[r + 1]
        at = out_at[r - start]
        if last - first == 2:
            i, j = regions.scope[first], regions.scope[first + 1]
            n = regions.n_states[j]
            for a in range(regions.n_states[i]):
                for b in range(n):
                    out[at + a * n + b] = q[i, a] * q[j, b]
        else:
            for y in range(regions.size[r]):
                out[at + y] = _product(regions, first, last, -1, y, q)


@njit(**KERNEL)
def expected_scores(regions, theta, at, q, taken, start, stop, out):
    """out[r] = E_q[theta] of regions start..stop, 0 of those that are not `taken`."""
    for r in range(start, stop):
        value = out[r] = 0.0
        if not taken[r]:
            continue
        first, last = regions.scope_ptr[r], regions.scope_ptr[r + 1]
        if last - first == 2:
            i, j = regions.scope[first], regions.scope[first + 1]
            n = regions.n_states[j]
            for a in range(regions.n_states[i]):
                for b in range(n):
                    p = q[i, a] * q[j, b]
                    value += p * theta[at[r] + a * n + b] if p > 0.0 else 0.0
        else:
            for y in range(regions.size[r]):
                p = _product(regions, first, last, -1, y, q)
                value += p * theta[at[r] + y] if p > 0.0 else 0.0
        out[r] = value

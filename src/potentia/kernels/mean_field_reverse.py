"""The reverse of mean field's coordinate updates [MBL-tpami Algorithm 2]."""

from __future__ import annotations

import numpy as np

from .machine.jit import njit
from .mean_field import _product
from .vecmath import KERNEL
from .weighted_links import pull_links, pull_spread, spread_one


@njit(allocates=True, **KERNEL)
def reverse_variables(
    regions, stars, links, theta, at, pair_at, variables, q, d_q, d_theta, d_spread, d_weight, old
):
    """Undo the updates of `variables`, made in this order; `old` holds the marginals before.

    d_spread: cotangents of `Links.spread`, zero before and after; d_weight (m): of the weights.
    """
    field = np.empty(q.shape[1])
    for s in range(variables.size - 1, -1, -1):
        i = variables[s]
        n = regions.n_states[i]
        pull_spread(links, i, d_spread, d_q)
        mean = 0.0
        for a in range(n):
            mean += q[i, a] * d_q[i, a]
        own_at = at[regions.single[i]]
        for a in range(n):
            field[a] = q[i, a] * (d_q[i, a] - mean)
            d_theta[own_at + a] += field[a]
            d_q[i, a] = 0.0
        for k in range(stars.pair_ptr[i], stars.pair_ptr[i + 1]):
            _pull_pair(regions, stars, theta, pair_at[k], k, n, q, field, d_q, d_theta)
        for k in range(stars.wide_ptr[i], stars.wide_ptr[i + 1]):
            r = stars.wide[k]
            _pull_product(regions, at[r], r, stars.wide_at[k], q, field, theta, d_q, d_theta)
        pull_links(links, i, field, d_spread, d_weight)
        for a in range(n):
            q[i, a] = old[i, a]
        spread_one(links, q, i)
    for j in range(q.shape[0]):
        pull_spread(links, j, d_spread, d_q)


@njit(inline="always", **KERNEL)
def _pull_pair(regions, stars, theta, base, k, n, q, field, d_q, d_theta):
    """Cotangent of E_q[theta | y_i = a] of the k-th pair, whose table begins at `base`."""
    j, own, step = stars.other[k], stars.own[k], stars.step[k]
    if n == 2 and regions.n_states[j] == 2:
        p0, p1, f0, f1 = q[j, 0], q[j, 1], field[0], field[1]
        d_q[j, 0] += f0 * theta[base] + f1 * theta[base + own]
        d_q[j, 1] += f0 * theta[base + step] + f1 * theta[base + own + step]
        d_theta[base] += f0 * p0
        d_theta[base + own] += f1 * p0
        d_theta[base + step] += f0 * p1
        d_theta[base + own + step] += f1 * p1
        return
    for b in range(regions.n_states[j]):
        pulled = 0.0
        for a in range(n):
            y = base + a * own + b * step
            d_theta[y] += field[a] * q[j, b]
            pulled += field[a] * theta[y]
        d_q[j, b] += pulled


@njit(**KERNEL)
def _pull_product(regions, base, r, here, q, field, theta, d_q, d_theta):
    """Cotangent of E_q[theta_r | y_i = a] of the variable at scope position `here`, for three variables and more."""
    first, last = regions.scope_ptr[r], regions.scope_ptr[r + 1]
    own, n = regions.stride[here], regions.n_states[regions.scope[here]]
    for y in range(regions.size[r]):
        weight = field[(y // own) % n]
        d_theta[base + y] += weight * _product(regions, first, last, here, y, q)
        for k in range(first, last):
            if k != here:
                rest = 1.0
                for other in range(first, last):
                    if other != here and other != k:
                        j = regions.scope[other]
                        rest *= q[j, (y // regions.stride[other]) % regions.n_states[j]]
                j = regions.scope[k]
                d_q[j, (y // regions.stride[k]) % regions.n_states[j]] += weight * theta[base + y] * rest


@njit(**KERNEL)
def reverse_products(regions, q, taken, d_out, out_at, d_q):
    """Cotangents of product marginals of regions that are `taken`, region r at d_out[out_at[r]], pulled back to q."""
    for r in range(regions.size.size):
        if not taken[r]:
            continue
        first, last = regions.scope_ptr[r], regions.scope_ptr[r + 1]
        if last - first == 2:
            i, j = regions.scope[first], regions.scope[first + 1]
            n = regions.n_states[j]
            for a in range(regions.n_states[i]):
                for b in range(n):
                    d = d_out[out_at[r] + a * n + b]
                    d_q[i, a] += d * q[j, b]
                    d_q[j, b] += d * q[i, a]
            continue
        for y in range(regions.size[r]):
            for k in range(first, last):
                j = regions.scope[k]
                a = (y // regions.stride[k]) % regions.n_states[j]
                d_q[j, a] += d_out[out_at[r] + y] * _product(regions, first, last, k, y, q)

"""The reverse of mean field's coordinate updates [MBL-tpami Algorithm 2]."""

from __future__ import annotations

import numpy as np
from numba import njit

from .mean_field import _product
from .vecmath import KERNEL


@njit(**KERNEL)
def reverse_variables(regions, theta, at, variables, q, d_q, d_theta, old):
    """Undo the updates of `variables`, made in this order; `old` holds the marginals before (empty: keep them)."""
    field = np.empty(q.shape[1])
    for j in range(variables.size - 1, -1, -1):
        i = variables[j]
        n = regions.n_states[i]
        mean = 0.0
        for a in range(n):
            mean += q[i, a] * d_q[i, a]
        for a in range(n):
            field[a] = q[i, a] * (d_q[i, a] - mean)
            d_q[i, a] = 0.0
        for k in range(regions.member_ptr[i], regions.member_ptr[i + 1]):
            _pull_expectation(
                regions, theta, at, regions.member[k], regions.member_at[k], q, field, d_q, d_theta
            )
        if old.size:
            q[i] = old[i]


@njit(**KERNEL)
def _pull_expectation(regions, theta, at, r, here, q, field, d_q, d_theta):
    """Cotangent of E_q[theta_r | y_i = a] of the variable at scope position `here`."""
    first, last = regions.scope_ptr[r], regions.scope_ptr[r + 1]
    own, n = regions.stride[here], regions.n_states[regions.scope[here]]
    if last - first == 1:
        for a in range(n):
            d_theta[at[r] + a] += field[a]
    elif last - first == 2:
        there = first if here == first + 1 else first + 1
        j, step = regions.scope[there], regions.stride[there]
        for b in range(regions.n_states[j]):
            for a in range(n):
                y = at[r] + a * own + b * step
                d_theta[y] += field[a] * q[j, b]
                d_q[j, b] += field[a] * theta[y]
    else:
        _pull_product(regions, at[r], r, here, q, field, theta, d_q, d_theta)


@njit(**KERNEL)
def _pull_product(regions, base, r, here, q, field, theta, d_q, d_theta):
    """The same for three and more variables."""
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
def reverse_products(regions, q, d_out, out_at, d_q):
    """Cotangents of product marginals, region after region in `d_out`, pulled back to q."""
    for r in range(regions.size.size):
        first, last = regions.scope_ptr[r], regions.scope_ptr[r + 1]
        for y in range(regions.size[r]):
            for k in range(first, last):
                j = regions.scope[k]
                a = (y // regions.stride[k]) % regions.n_states[j]
                d_q[j, a] += d_out[out_at[r] + y] * _product(regions, first, last, k, y, q)

"""Mean field by coordinate ascent on flat regions of any order."""

from __future__ import annotations

import numpy as np
from numba import njit

from .vecmath import KERNEL, exp

#: Stands for -inf: times a probability of exactly zero it stays zero, times any other it rules a state out.
FORBIDDEN = -1e200
#: No sum of allowed scores is as low as this, so some weight is on forbidden configurations.
HOPELESS = -1e130


@njit(**KERNEL)
def sweep_variables(regions, theta, at, variables, q):
    """q_i = softmax(theta_i + sum over its regions of E[theta | y_i]) for each of `variables` in turn.

    q: (n, states). Returns the largest change of an entry of q.
    """
    field = np.empty(q.shape[1])
    change = 0.0
    for i in variables:
        n = regions.n_states[i]
        field[:n] = 0.0
        for k in range(regions.member_ptr[i], regions.member_ptr[i + 1]):
            _add_expectation(regions, theta, at, regions.member[k], regions.member_at[k], q, field)
        peak = np.max(field[:n])
        for a in range(n):
            field[a] = exp(field[a] - peak)
        total = np.sum(field[:n])
        for a in range(n):
            new = field[a] / total
            change = max(change, abs(new - q[i, a]))
            q[i, a] = new
    return change


@njit(**KERNEL)
def _add_expectation(regions, theta, at, r, here, q, field):
    """field(a) += E_q[theta_r | the variable at scope position `here` is in state a]."""
    first, last = regions.scope_ptr[r], regions.scope_ptr[r + 1]
    own, n = regions.stride[here], regions.n_states[regions.scope[here]]
    if last - first == 1:
        for a in range(n):
            field[a] += theta[at[r] + a]
    elif last - first == 2:
        there = first if here == first + 1 else first + 1
        j, step = regions.scope[there], regions.stride[there]
        for b in range(regions.n_states[j]):
            for a in range(n):
                field[a] += theta[at[r] + a * own + b * step] * q[j, b]
    else:
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
def read_products(regions, theta, at, q, start, stop, out_at, out):
    """Product marginals of regions start..stop into `out`, and the sum of E_q[theta] over them."""
    value = 0.0
    for r in range(start, stop):
        for y in range(regions.size[r]):
            p = _product(regions, regions.scope_ptr[r], regions.scope_ptr[r + 1], -1, y, q)
            out[out_at[r] + y] = p
            if p > 0.0:
                value += p * theta[at[r] + y]
    return value

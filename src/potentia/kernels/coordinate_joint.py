"""Dual coordinate descent for large-margin Boltzmann machines [LMSBN Algorithm 1], and their labellings' losses.

Row l has signs y_l (K) and scores s_li = w_i . x_l + b_i; clique C of labels has a weight v_C; then
    z_li = y_li s_li + sum over C with i in C of v_C prod_{j in C} y_lj
    min 1/2 (|w|^2 + |b|^2 + eta |v|^2) + cost sum_li [1 - z_li]_+ .
A clique's weight takes part in the margins of all its labels, so that one problem couples all labels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .coordinate import _limits, _projected, _settled, _shuffle
from .logistic import SUMS
from .machine.jit import njit
from .vecmath import KERNEL


class Cliques(NamedTuple):
    """member_ptr (M + 1), member: the labels of each clique. label_ptr (K + 1), clique: the cliques of each label;
    other: beside each of these the label at the other end of a pair, -1 for a larger clique.
    """

    member_ptr: Any
    member: Any
    label_ptr: Any
    clique: Any
    other: Any


class DualState(NamedTuple):
    """The state: dual (n, K); w (K, d), or with a kernel no columns of it but scores (K, n); b (K), v (M)."""

    dual: Any
    w: Any
    scores: Any
    b: Any
    v: Any


@njit(inner=True, **KERNEL)
def product(cliques, c, y):
    """prod_{j in C} y_j."""
    found = 1.0
    for m in range(cliques.member_ptr[c], cliques.member_ptr[c + 1]):
        found *= y[cliques.member[m]]
    return found


@njit(**KERNEL)
def fields(cliques, v, signs, out):
    """out (n, K) = sum over C with i in C of v_C prod_{j in C} y_lj."""
    out[:] = 0.0
    for row in range(signs.shape[0]):
        for c in range(v.size):
            amount = v[c] * product(cliques, c, signs[row])
            for m in range(cliques.member_ptr[c], cliques.member_ptr[c + 1]):
                out[row, cliques.member[m]] += amount


@njit(**SUMS)
def _own_score(rows, row, i, state):
    """w_i . x_row + b_i."""
    total = state.b[i]
    if state.scores.size > 0:
        return total + state.scores[i, row]
    for k in range(rows.dense.shape[1]):
        total += rows.dense[row, k] * state.w[i, k]
    for s in range(rows.indptr[row], rows.indptr[row + 1]):
        total += rows.data[s] * state.w[i, rows.indices[s]]
    return total


@njit(**SUMS)
def _add(rows, row, i, change, state):
    """Follow a change of dual[row, i] * y in b, and in w or the scores."""
    state.b[i] += change
    if state.scores.size > 0:
        for k in range(rows.gram.shape[1]):
            state.scores[i, k] += change * rows.gram[row, k]
        return
    for k in range(rows.dense.shape[1]):
        state.w[i, k] += change * rows.dense[row, k]
    for s in range(rows.indptr[row], rows.indptr[row + 1]):
        state.w[i, rows.indices[s]] += change * rows.data[s]


@njit(**KERNEL)
def _feature(cliques, s, i, y):
    """prod_{j in C} y_j of label i's clique number s; pairs, which are most, without a loop."""
    j = cliques.other[s]
    return y[i] * y[j] if j >= 0 else product(cliques, cliques.clique[s], y)


@njit(**KERNEL)
def _coupling(cliques, i, y, v):
    """sum over C with i in C of v_C prod_{j in C} y_j."""
    total = 0.0
    for s in range(cliques.label_ptr[i], cliques.label_ptr[i + 1]):
        total += v[cliques.clique[s]] * _feature(cliques, s, i, y)
    return total


@njit(allocates=True, **SUMS)
def descend(rows, signs, cliques, squares, eta, cost, tol, visits, seed, state):
    """Take one dual variable after another to its optimum until projected gradients differ by at most `tol`.

    squares (n): |x_l|^2 + 1. Pairs (row, label) that stay at a limit are left out until the others have settled.
    Gives up after `visits` visits. Returns the last spread of projected gradients.
    """
    n, K = signs.shape
    active, size, random = np.arange(n * K), n * K, np.uint64(seed)
    high_before, low_before, spread = np.inf, -np.inf, np.inf
    visited = 0
    while visited < visits:
        high, low = -np.inf, np.inf
        random = _shuffle(active, size, random)
        s = 0
        while s < size:
            row, i = active[s] // K, active[s] % K
            y, old = signs[row], state.dual[row, i]
            slope = y[i] * _own_score(rows, row, i, state) + _coupling(cliques, i, y, state.v) - 1.0
            if _settled(slope, old, cost, high_before, low_before):
                size -= 1
                active[s], active[size] = active[size], active[s]
                continue
            projected = _projected(slope, old, cost)
            high, low = max(high, projected), min(low, projected)
            if abs(projected) > 1e-13:
                # the corrected lines 8 and 9: Q sums over the label's features, and eta divides
                norm = squares[row] + (cliques.label_ptr[i + 1] - cliques.label_ptr[i]) / eta
                new = min(max(old - slope / norm, 0.0), cost)
                state.dual[row, i] = new
                _add(rows, row, i, (new - old) * y[i], state)
                for k in range(cliques.label_ptr[i], cliques.label_ptr[i + 1]):
                    state.v[cliques.clique[k]] += (new - old) * _feature(cliques, k, i, y) / eta
            s += 1
        spread = high - low if size else 0.0
        visited += size + 1
        if spread <= tol:
            if size == n * K:
                return spread
            size, high_before, low_before = n * K, np.inf, -np.inf
        else:
            high_before, low_before = _limits(high, low)
    return spread

"""The biased logistic loss, its gradient, and its fusion with a dense linear function.

    loss = sum_n w_n [ log sum_k exp(f_nk + b_nk) - sum_k y_nk (f_nk + b_nk) ]        [ILR-chapter sec. 1.7]

Rows are handled in blocks of LANES, transposed to [configuration][lane], so that every inner loop runs over
lanes at unit stride whatever the number K of configurations. Optional arrays are passed with zero rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .machine.jit import njit
from .vecmath import KERNEL, exp, log

#: Rows per block; a block of 64 configurations then just fits the first-level cache.
LANES = 64

#: Compile options for sums over lanes: they may be reordered (in a fixed way), or they would stay scalar.
SUMS: dict[str, Any] = {**KERNEL, "fastmath": {"contract", "reassoc", "nsz"}}


@njit(inner=True, **KERNEL)
def softmax_lanes(z, top, total):
    """Turn scores z (K, LANES) into probabilities in place; `top` (LANES,) receives log sum exp."""
    n_outputs, lanes = z.shape
    for b in range(lanes):
        top[b] = z[0, b]
        total[b] = 0.0
    for k in range(1, n_outputs):
        for b in range(lanes):
            top[b] = z[k, b] if z[k, b] > top[b] else top[b]
    for k in range(n_outputs):
        for b in range(lanes):
            e = exp(z[k, b] - top[b])
            z[k, b] = e
            total[b] += e
    for b in range(lanes):
        top[b] += log(total[b])
        total[b] = 1.0 / total[b]
    for k in range(n_outputs):
        for b in range(lanes):
            z[k, b] *= total[b]


@njit(**KERNEL)
def _add_rows(rows, start, n, z):
    """z (K, LANES) += rows[start : start + n] transposed; nothing when `rows` is empty."""
    if rows.shape[0] == 0:
        return
    for b in range(n):
        for k in range(z.shape[0]):
            z[k, b] += rows[start + b, k]


@njit(**KERNEL)
def _target_score(z, labels, soft, start, b):
    """sum_k y_k z_k of one lane; a target of zero ignores a forbidden (-inf) score."""
    if soft.shape[0] == 0:
        return z[labels[start + b], b]
    score = 0.0
    for k in range(z.shape[0]):
        if soft[start + b, k] > 0.0:
            score += soft[start + b, k] * z[k, b]
    return score


@njit(**KERNEL)
def _residual_lanes(z, labels, soft, weight, start, n, work):
    """Turn scores z (K, LANES) into w (p - y) in place, zero from lane n on, and return the block's loss."""
    top, total = work[0], work[1]
    value = 0.0
    for b in range(n):
        w = weight[start + b] if weight.shape[0] > 0 else 1.0
        work[2, b] = w
        value -= w * _target_score(z, labels, soft, start, b)
    softmax_lanes(z, top, total)
    for b in range(n):
        value += work[2, b] * top[b]
    for b in range(n, z.shape[1]):
        work[2, b] = 0.0
    for k in range(z.shape[0]):
        for b in range(z.shape[1]):
            z[k, b] *= work[2, b]
    for b in range(n):
        if soft.shape[0] == 0:
            z[labels[start + b], b] -= work[2, b]
        else:
            for k in range(z.shape[0]):
                z[k, b] -= work[2, b] * soft[start + b, k]
    return value


@njit(allocates=True, **KERNEL)
def loss_rows(scores, bias, labels, soft, weight, gradient):
    """The summed loss of n rows; `gradient` (n, K), unless empty, receives d loss / d scores = w (p - y).

    scores (n, K); bias (n, K) or (0, 0); labels (n,) integers or soft (n, K) targets, the other one empty;
    weight (n,) or (0,).
    """
    n_rows, n_outputs = scores.shape
    z = np.empty((n_outputs, LANES))
    work = np.empty((3, LANES))
    value = 0.0
    for start in range(0, n_rows, LANES):
        n = min(LANES, n_rows - start)
        z[:] = 0.0
        _add_rows(scores, start, n, z)
        _add_rows(bias, start, n, z)
        value += _residual_lanes(z, labels, soft, weight, start, n, work)
        if gradient.shape[0] > 0:
            for b in range(n):
                for k in range(n_outputs):
                    gradient[start + b, k] = z[k, b]
    return value


@njit(**SUMS)
def _add_linear(columns, coef, z):
    """z (K, LANES) += coef (d, K) transposed times columns (d, LANES)."""
    for k in range(z.shape[0]):
        for j in range(columns.shape[0]):
            c = coef[j, k]
            for b in range(LANES):
                z[k, b] += c * columns[j, b]


@njit(**SUMS)
def _add_products(columns, residual, gradient):
    """gradient (d, K) += columns (d, LANES) times residual (K, LANES) transposed."""
    for j in range(columns.shape[0]):
        for k in range(residual.shape[0]):
            total = 0.0
            for b in range(LANES):
                total += columns[j, b] * residual[k, b]
            gradient[j, k] += total


@njit(allocates=True, **KERNEL)
def linear_loss_rows(x, coef, bias, labels, soft, weight, gradient):
    """The summed loss of the linear function x @ coef, adding its gradient (d, K) to `gradient`.

    x (n, d) with n rows, coef (d, K) or (d + 1, K), whose extra last row multiplies a constant 1; the other
    arguments as in `loss_rows`. One pass over the rows: scores are never stored.
    """
    n_rows, n_features = x.shape
    n_outputs = coef.shape[1]
    columns = np.ones((coef.shape[0], LANES))
    z = np.empty((n_outputs, LANES))
    work = np.empty((3, LANES))
    value = 0.0
    for start in range(0, n_rows, LANES):
        n = min(LANES, n_rows - start)
        for b in range(n):
            for j in range(n_features):
                columns[j, b] = x[start + b, j]
        z[:] = 0.0
        _add_linear(columns, coef, z)
        _add_rows(bias, start, n, z)
        value += _residual_lanes(z, labels, soft, weight, start, n, work)
        _add_products(columns, z, gradient)
    return value

"""Leaf vectors fitted on the true loss: one small convex problem per leaf.

For the rows of a leaf, minimise over a vector v of K entries

    sum_n w_n log sum_k exp(z_nk + v_k) - t . v,     t = sum_n w_n y_n        [ILR-chapter sec. 1.9.4, step 3]

by Newton steps of bounded length. With biases of 10 and more the curvature may be 5e-5 of the gradient, so a
raw Newton step would be thousands long: steps are cut to a radius that grows only after full steps, and then
halved until the loss falls enough. A leaf whose rows share one label has its optimum at infinity; the
tolerance on the mean gradient ends it where a further step no longer matters.
"""

from __future__ import annotations

import numpy as np

from potentia.kernels.logistic import LANES, SUMS, softmax_lanes
from potentia.kernels.vecmath import KERNEL

from .machine.jit import njit

_FIRST_RADIUS = 4.0
_MAX_STEPS = 40


@njit(**SUMS)
def _add_moments(p, weight, top, work, mean, hessian):
    """mean (K,) += sum w p and lower half of hessian -= sum w p p', for p (K, LANES); returns sum w top."""
    value = 0.0
    for b in range(LANES):
        value += weight[b] * top[b]
    for k in range(p.shape[0]):
        total = 0.0
        for b in range(LANES):
            work[b] = weight[b] * p[k, b]
            total += work[b]
        mean[k] += total
        for m in range(k + 1):
            total = 0.0
            for b in range(LANES):
                total += work[b] * p[m, b]
            hessian[k, m] -= total
    return value


@njit(inner=True, allocates=True, **KERNEL)
def leaf_value(scores, weight, target, v, gradient, hessian):
    """The loss at v (K,) of scores (K, n) with weight (n,) and target t (K,).

    Fills gradient (K,) and the lower half of hessian (K, K).
    """
    n_outputs, n_rows = scores.shape
    z = np.zeros((n_outputs, LANES))
    w = np.zeros(LANES)
    top = np.empty(LANES)
    total = np.empty(LANES)
    gradient[:] = 0.0
    hessian[:] = 0.0
    value = 0.0
    for first in range(0, n_rows, LANES):
        n = min(LANES, n_rows - first)
        w[n:] = 0.0
        for b in range(n):
            w[b] = weight[first + b]
        for k in range(n_outputs):
            for b in range(n):
                z[k, b] = scores[k, first + b] + v[k]
        softmax_lanes(z, top, total)
        value += _add_moments(z, w, top, total, gradient, hessian)
    for k in range(n_outputs):
        hessian[k, k] += gradient[k]
        gradient[k] -= target[k]
        value -= target[k] * v[k]
    return value


@njit(**KERNEL)
def _newton_step(gradient, hessian, weight, step):
    """Solve (H + 1e-6 w + w 1 1' / K) step = -gradient by Cholesky, overwriting the lower half of H.

    H is flat along the constant vector, to which the gradient is orthogonal: the last term fixes that
    direction.
    """
    n = gradient.shape[0]
    for k in range(n):
        for m in range(k + 1):
            entry = hessian[k, m] + weight / n + (1e-6 * weight if k == m else 0.0)
            for j in range(m):
                entry -= hessian[k, j] * hessian[m, j]
            hessian[k, m] = np.sqrt(max(entry, 1e-9 * weight)) if k == m else entry / hessian[m, m]
    for k in range(n):
        entry = -gradient[k]
        for j in range(k):
            entry -= hessian[k, j] * step[j]
        step[k] = entry / hessian[k, k]
    for k in range(n - 1, -1, -1):
        entry = step[k]
        for j in range(k + 1, n):
            entry -= hessian[j, k] * step[j]
        step[k] = entry / hessian[k, k]


@njit(allocates=True, **KERNEL)
def fit_leaf(scores, weight, target, tol, v):
    """Fit v (K,) to scores (K, n) with weight (n,) until no mean gradient exceeds tol; returns the loss."""
    n_outputs = v.shape[0]
    gradient = np.empty(n_outputs)
    hessian = np.empty((n_outputs, n_outputs))
    step = np.empty(n_outputs)
    trial = np.empty(n_outputs)
    mass = target.sum()
    radius = _FIRST_RADIUS
    v[:] = 0.0
    value = leaf_value(scores, weight, target, v, gradient, hessian)
    for _ in range(_MAX_STEPS):
        if np.abs(gradient).max() <= tol * mass:
            break
        _newton_step(gradient, hessian, mass, step)
        slope = (gradient * step).sum()
        length = np.abs(step).max()
        share = min(1.0, radius / length)
        new = np.inf
        while share * length > 1e-12:
            for k in range(n_outputs):
                trial[k] = v[k] + share * step[k]
            new = leaf_value(scores, weight, target, trial, gradient, hessian)
            if new <= value + 1e-4 * share * slope:
                break
            share *= 0.5
            radius *= 0.5
        if not new < value:
            break
        radius = max(2.0 * radius, _FIRST_RADIUS)
        value = new
        v[:] = trial
    return value


@njit(allocates=True, **KERNEL)
def fit_leaves(rows, labels, soft, weight, order, spans, refit, tol, values):
    """Fill values (m, K) at every leaf of spans (leaves, 3), from scores-with-bias rows (n, K).

    With refit the leaf problems above; without, the mean of y - p, which is what the tree was grown on.
    """
    n_outputs = rows.shape[1]
    target = np.empty(n_outputs)
    gradient = np.empty(n_outputs)
    hessian = np.empty((n_outputs, n_outputs))
    for leaf in range(spans.shape[0]):
        node, start, stop = spans[leaf]
        scores = np.empty((n_outputs, stop - start))
        weights = np.ones(stop - start)
        target[:] = 0.0
        for i in range(stop - start):
            row = order[start + i]
            if weight.shape[0] > 0:
                weights[i] = weight[row]
            for k in range(n_outputs):
                scores[k, i] = rows[row, k]
            if soft.shape[0] == 0:
                target[labels[row]] += weights[i]
            else:
                target += weights[i] * soft[row]
        values[node] = 0.0
        if refit:
            fit_leaf(scores, weights, target, tol, values[node])
        else:
            leaf_value(scores, weights, target, values[node], gradient, hessian)
            values[node] = -gradient / target.sum()

"""Regression trees with vector leaves, grown greedily on binned features.

A tree is one array of 64-bit nodes, each packing `left << 24 | feature << 8 | cut`: a row whose code exceeds
`cut` goes to node left + 1, any other to node left. A leaf points to itself with cut 255, so a walk needs no
test for leaves. Codes are row-major bytes, so one row's features share a cache line.
"""

from __future__ import annotations

import numpy as np

from .linear_losses import LANE_SUMS, LANES, softmax_lanes
from .machine.jit import njit
from .vecmath import KERNEL

#: Codes are bytes.
MAX_BINS = 256
#: Statistics are padded to a multiple of this, so that adding one row to a bin is whole vector instructions.
PAD = 4
_BLOCK = 256


@njit(**KERNEL)
def pack(left, feature, cut):
    """One node as an integer."""
    return (np.int64(left) << 24) | (np.int64(feature) << 8) | np.int64(cut)


@njit(**KERNEL)
def bin_rows(x, edges, codes):
    """codes (n, d) = how many of feature j's sorted edges (d, 256), padded with +inf, lie below x (n, d)."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            value = x[i, j]
            position = 0
            step = MAX_BINS // 2
            while step > 0:
                position += step if edges[j, position + step - 1] < value else 0
                step >>= 1
            codes[i, j] = position


@njit(**KERNEL)
def fill_statistics(residual, weight, statistics):
    """Per row the K - 1 first residuals and then its weight, padded with zeros to a multiple of PAD.

    Residuals w (p - y) sum to zero over configurations, so the last one is implied.
    """
    n_rows, n_outputs = residual.shape
    for i in range(n_rows):
        for k in range(n_outputs - 1):
            statistics[i, k] = residual[i, k]
        statistics[i, n_outputs - 1] = weight[i] if weight.shape[0] > 0 else 1.0
        for k in range(n_outputs, statistics.shape[1]):
            statistics[i, k] = 0.0


@njit(inner=True, **KERNEL)
def histogram(codes, statistics, bin_ptr, first, last, rows, sums):
    """sums (bins of all features, P) = statistics added up per bin, for features first:last and the given rows."""
    sums[bin_ptr[first] : bin_ptr[last]] = 0.0
    n_rows, width = rows.shape[0], statistics.shape[1]
    one, two, three = np.uint64(1), np.uint64(2), np.uint64(3)
    for i in range(n_rows):
        # unsigned indices spare the test for negative ones
        row = np.uint64(rows[i])
        for k in range(0, width, PAD):
            u = np.uint64(k)
            s0, s1 = statistics[row, u], statistics[row, u + one]
            s2, s3 = statistics[row, u + two], statistics[row, u + three]
            for j in range(first, last):
                at = np.uint64(bin_ptr[j]) + np.uint64(codes[row, j])
                sums[at, u] += s0
                sums[at, u + one] += s1
                sums[at, u + two] += s2
                sums[at, u + three] += s3


@njit(**KERNEL)
def _explained(total, n_outputs):
    """|sum of residual vectors|^2 / weight: the squared error that their mean removes."""
    square = 0.0
    last = 0.0
    for k in range(n_outputs - 1):
        square += total[k] * total[k]
        last += total[k]
    return (square + last * last) / total[n_outputs - 1]


@njit(allocates=True, **KERNEL)
def best_cut(sums, n_outputs, limits):
    """(gain, cut) of the cut of one feature that lowers squared error most; gain 0 where none is allowed.

    gain = |G_left|^2 / w_left + |G_right|^2 / w_right - |G|^2 / w, from sums (bins, P). limits = weight a
    leaf needs, weight a node needs to be split, and the gain below which differences are rounding. The lowest
    of equal cuts wins, and a cut is only tried after a bin that holds rows.
    """
    n_bins, width = sums.shape
    w = n_outputs - 1
    total, left, right = np.zeros(width), np.zeros(width), np.empty(width)
    for b in range(n_bins):
        for k in range(width):
            total[k] += sums[b, k]
    gain, cut = 0.0, 0
    if total[w] < limits[1]:
        return gain, cut
    whole = _explained(total, n_outputs)
    for b in range(n_bins - 1):
        # subtracting histograms leaves rounding dust in empty bins
        if sums[b, w] <= 1e-12 * total[w]:
            continue
        for k in range(width):
            left[k] += sums[b, k]
            right[k] = total[k] - left[k]
        if right[w] < limits[0]:
            break
        if left[w] < limits[0]:
            continue
        new = _explained(left, n_outputs) + _explained(right, n_outputs) - whole
        if new > gain + limits[2]:
            gain, cut = new, b
    return gain, cut


@njit(**KERNEL)
def measure(codes, statistics, n_outputs, bin_ptr, first, last, rows, limits, sums, gains, cuts):
    """Histogram the rows of a node in sums, and note gains (d,) and cuts (d,) of features first:last."""
    histogram(codes, statistics, bin_ptr, first, last, rows, sums)
    for j in range(first, last):
        gains[j], cuts[j] = best_cut(sums[bin_ptr[j] : bin_ptr[j + 1]], n_outputs, limits)


@njit(**KERNEL)
def measure_rest(counted, n_outputs, bin_ptr, first, last, limits, sums, gains, cuts):
    """As `measure` for the sibling of a counted node, which is what remains of their parent's sums."""
    for j in range(first, last):
        for b in range(bin_ptr[j], bin_ptr[j + 1]):
            for k in range(sums.shape[1]):
                sums[b, k] -= counted[b, k]
        gains[j], cuts[j] = best_cut(sums[bin_ptr[j] : bin_ptr[j + 1]], n_outputs, limits)


@njit(**KERNEL)
def partition(codes, feature, cut, rows, spare):
    """Reorder rows so that those going left come first, else unchanged, and return how many they are."""
    n_left = 0
    n_right = 0
    for i in range(rows.shape[0]):
        row = rows[i]
        if codes[row, feature] <= cut:
            rows[n_left] = row
            n_left += 1
        else:
            spare[n_right] = row
            n_right += 1
    for i in range(n_right):
        rows[n_left + i] = spare[i]
    return n_left


@njit(**KERNEL)
def _walk(flat_codes, n_features, first, nodes, base, depth, at):
    """at (n,) = the leaf that each row reaches; rows first, first + 1, ... of flat codes, tree from node `base` on."""
    # unsigned throughout: a test for negative indices would double the time
    eight, wide, byte, one = np.uint64(8), np.uint64(0xFFFF), np.uint64(0xFF), np.uint64(1)
    width, start = np.uint64(n_features), np.uint64(base)
    at[:] = 0
    # rows walk in step, so that their chains of dependent loads overlap
    for _ in range(depth):
        place = np.uint64(first) * width
        for i in range(at.shape[0]):
            node = np.uint64(nodes[start + at[i]])
            code = np.uint64(flat_codes[place + ((node >> eight) & wide)])
            at[i] = (node >> np.uint64(24)) + (one if code > (node & byte) else np.uint64(0))
            place += width


@njit(allocates=True, **KERNEL)
def add_trees(codes, nodes, values, node_ptr, depths, scores):
    """scores (n, K) += the leaf vectors values (m, K) that the rows codes (n, d) reach, tree after tree."""
    block = np.empty(_BLOCK, np.uint64)
    flat_codes = codes.reshape(-1)
    n_rows, n_outputs = scores.shape
    for start in range(0, n_rows, _BLOCK):
        at = block[: min(_BLOCK, n_rows - start)]
        for t in range(depths.shape[0]):
            _walk(flat_codes, codes.shape[1], start, nodes, node_ptr[t], depths[t], at)
            for i in range(at.shape[0]):
                leaf = np.uint64(node_ptr[t]) + at[i]
                for k in range(n_outputs):
                    scores[start + i, k] += values[leaf, k]


_FIRST_RADIUS = 4.0
_MAX_STEPS = 40


@njit(**LANE_SUMS)
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

"""Losses of linear functions: the biased logistic loss, and dual coordinate descent for the hinge loss.

    loss = sum_n w_n [ log sum_k exp(f_nk + b_nk) - sum_k y_nk (f_nk + b_nk) ]        [ILR-chapter sec. 1.7]

Rows are handled in blocks of LANES, transposed to [configuration][lane], so that every inner loop runs over
lanes at unit stride whatever the number K of configurations. Optional arrays are passed with zero rows.

Coordinate descent on the dual of [Hsieh et al. 2008] min_w 1/2 |w|^2 + sum_l C_l [1 - y_l w . f_l]_+.

A row's features are a constant 1, a dense part, a sparse part, a part known by its inner products with all rows (a
kernel), and p columns of signs times a number s (labels that act as features). Parts may be empty, so one kernel
serves all kinds of rows; the rows are shared by all labels' problems and never copied. The dual has 0 <= a_l <= C_l and
w = sum_l a_l y_l f_l; a pass visits the rows that are not shrunk in random order and takes each to its optimum.

Columns of signs are mostly +1 (after turning those that are mostly -1), so a row lists only its exceptions, and a step
costs as many operations as it has. A step that adds d to the constant's weight b adds s d to the weight u_j of every
column of signs but for exceptions; hence u_j = v_j + s b is kept as v_j, and the columns' part of a score is
    s (sum_j u_j - 2 sum over exceptions of u_j) = s (sum_j v_j + p s b - 2 sum over exceptions of (v_j + s b)).
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np

from .machine.jit import njit
from .vecmath import KERNEL, SUMS, exp, log

#: Rows per block; a block of 64 configurations then just fits the first-level cache.
LANES = 64

#: Compile options for sums over lanes, in which the sign of a zero does not matter either.
LANE_SUMS: dict[str, Any] = {**KERNEL, "fastmath": {"contract", "reassoc", "nsz"}}


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


@njit(**LANE_SUMS)
def _add_linear(columns, coef, z):
    """z (K, LANES) += coef (d, K) transposed times columns (d, LANES)."""
    for k in range(z.shape[0]):
        for j in range(columns.shape[0]):
            c = coef[j, k]
            for b in range(LANES):
                z[k, b] += c * columns[j, b]


@njit(**LANE_SUMS)
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


# sums may be reordered below: a dot product only vectorises so, and descent corrects its own rounding


class FeatureRows(namedtuple("FeatureRows", "dense gram data indices indptr")):
    """Features shared by all problems: dense (n, d1), gram (n, n) or (n, 0), CSR data, indices, indptr of d2 columns.

    Indices are unsigned, or every gather would test for wrap-around.
    """


class Exceptions(namedtuple("Exceptions", "indices indptr scale")):
    """Columns of signs: row l is -1 in the columns indices[indptr[l]..indptr[l + 1]], ascending, and +1 elsewhere.

    As features they are multiplied by `scale`.
    """


class Weights(namedtuple("Weights", "bias dense sparse signs scores")):
    """One problem's w: of the constant (1), the dense (d1) and sparse (d2) part, and v of the columns of signs (p).

    scores (n): every row's score by the part known by inner products, gram @ (dual * y); 0 where there is none.
    """


@njit(allocates=True, **SUMS)
def descend(rows, extra, y, norms, costs, tol, visits, seed, dual, w):
    """Descend from the dual and w given (which must agree) until projected gradients differ by at most `tol`.

    y (n): signs. norms (n): |f_l|^2. costs (n): weights C of the rows' losses; rows of cost 0 are not visited.
    Gives up after `visits` visits of rows. Returns the last spread of projected
    gradients.
    """
    active, total = np.flatnonzero(costs), np.sum(w.signs)
    size = active.size
    state = np.uint64(seed)
    high_before, low_before, spread = np.inf, -np.inf, np.inf
    visited = 0
    while visited < visits:
        high, low = -np.inf, np.inf
        state = _shuffle(active, size, state)
        s = 0
        while s < size:
            row = active[s]
            slope = y[row] * (_row_score(rows, row, w) + _sign_score(extra, row, w, total)) - 1.0
            if _settled(slope, dual[row], costs[row], high_before, low_before):
                size -= 1
                active[s], active[size] = active[size], row
                continue
            projected = _projected(slope, dual[row], costs[row])
            high, low = max(high, projected), min(low, projected)
            if abs(projected) > 1e-12:
                old = dual[row]
                dual[row] = min(max(old - slope / norms[row], 0.0), costs[row])
                change = (dual[row] - old) * y[row]
                _add_row(rows, row, change, w.dense, w.sparse, w.scores)
                total += _add_signs(extra, row, change, w)
            s += 1
        spread = high - low if size else 0.0
        visited += size + 1
        if spread <= tol:
            if size == active.size:
                return spread
            size, high_before, low_before = active.size, np.inf, -np.inf
        else:
            high_before, low_before = _limits(high, low)
    return spread


@njit(inline="always", **SUMS)
def _row_score(rows, row, w):
    """The part of w . f_row that is not of the constant or signs."""
    total = w.scores[row]
    for k in range(rows.dense.shape[1]):
        total += rows.dense[row, k] * w.dense[k]
    first, last = rows.indptr[row], rows.indptr[row + 1]
    return total + _gather(rows.data[first:last], rows.indices[first:last], w.sparse)


@njit(**KERNEL)
def _gather(data, indices, w):
    """sum_s data[s] w[indices[s]], in order: vector gathers, which reordering would bring, are twice as slow."""
    total = 0.0
    for s in range(data.size):
        total += data[s] * w[indices[s]]
    return total


@njit(inline="always", **SUMS)
def _sign_score(extra, row, w, total):
    """The constant's and the signs' part of w . f_row; `total` is the sum of v."""
    p, shift, listed = w.signs.size, extra.scale * w.bias[0], 0.0
    for s in range(extra.indptr[row], extra.indptr[row + 1]):
        if extra.indices[s] >= p:
            break
        listed += w.signs[extra.indices[s]] + shift
    return w.bias[0] + extra.scale * (total + p * shift - 2.0 * listed)


@njit(inline="always", **SUMS)
def _add_row(rows, row, change, dense, sparse, scores):
    """w += change * f_row of the dense and sparse part; scores (n) follow where rows are known by inner products."""
    for k in range(rows.dense.shape[1]):
        dense[k] += change * rows.dense[row, k]
    for s in range(rows.indptr[row], rows.indptr[row + 1]):
        sparse[rows.indices[s]] += change * rows.data[s]
    for k in range(rows.gram.shape[1]):
        scores[k] += change * rows.gram[row, k]


@njit(inline="always", **SUMS)
def _add_signs(extra, row, change, w):
    """w += change * f_row in the constant and the signs; returns the change of the sum of v."""
    p, moved, twice = w.signs.size, 0.0, 2.0 * extra.scale * change
    w.bias[0] += change
    for s in range(extra.indptr[row], extra.indptr[row + 1]):
        if extra.indices[s] >= p:
            break
        w.signs[extra.indices[s]] -= twice
        moved -= twice
    return moved


@njit(inline="always", **SUMS)
def _projected(slope, a, cost):
    """The part of the dual's slope at `a` that leads inside [0, cost]."""
    if a == 0.0:
        return min(slope, 0.0)
    return max(slope, 0.0) if a == cost else slope


@njit(inline="always", **SUMS)
def _settled(slope, a, cost, high, low):
    """Whether a dual at a limit is held there more firmly than anything that moved in the pass before: shrink it."""
    return (a == 0.0 and slope > high) or (a == cost and slope < low)


@njit(inline="always", **SUMS)
def _limits(high, low):
    """Violations of the last pass as limits for shrinking; infinite where there was none of that sign."""
    return (high if high > 0.0 else np.inf), (low if low < 0.0 else -np.inf)


@njit(inline="always", **SUMS)
def _shuffle(values, size, state):
    """A random order by a linear congruential generator, whose state is returned."""
    for s in range(size - 1, 0, -1):
        state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
        other = np.int64(((state >> np.uint64(32)) * np.uint64(s + 1)) >> np.uint64(32))
        values[s], values[other] = values[other], values[s]
    return state


class Cliques(namedtuple("Cliques", "member_ptr member label_ptr clique other")):
    """member_ptr (M + 1), member: the labels of each clique. label_ptr (K + 1), clique: the cliques of each label;
    other: beside each of these the label at the other end of a pair, -1 for a larger clique.
    """


class DualState(namedtuple("DualState", "dual w scores b v")):
    """The state: dual (n, K); w (K, d), or with a kernel no columns of it but scores (K, n); b (K), v (M)."""


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


@njit(**LANE_SUMS)
def _own_score(rows, row, i, state):
    """w_i . x_row + b_i, summed from b_i on."""
    total = state.b[i]
    if state.scores.size > 0:
        return total + state.scores[i, row]
    for k in range(rows.dense.shape[1]):
        total += rows.dense[row, k] * state.w[i, k]
    for s in range(rows.indptr[row], rows.indptr[row + 1]):
        total += rows.data[s] * state.w[i, rows.indices[s]]
    return total


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


@njit(allocates=True, **LANE_SUMS)
def descend_joint(rows, signs, cliques, squares, eta, cost, tol, visits, seed, state):
    """Take one dual variable after another to its optimum until projected gradients differ by at most `tol`.

    squares (n): |x_l|^2 + 1. cost (n, K): of the losses; those of cost 0 are not visited. Pairs (row, label) that stay
    at a limit are left out until the others have settled. Gives up after `visits` visits. Returns the last spread of
    projected gradients.
    """
    K = signs.shape[1]
    active, random = np.flatnonzero(cost), np.uint64(seed)
    size = active.size
    high_before, low_before, spread = np.inf, -np.inf, np.inf
    visited = 0
    while visited < visits:
        high, low = -np.inf, np.inf
        random = _shuffle(active, size, random)
        s = 0
        while s < size:
            row, i = active[s] // K, active[s] % K
            y, old, top = signs[row], state.dual[row, i], cost[row, i]
            slope = y[i] * _own_score(rows, row, i, state) + _coupling(cliques, i, y, state.v) - 1.0
            if _settled(slope, old, top, high_before, low_before):
                size -= 1
                active[s], active[size] = active[size], active[s]
                continue
            projected = _projected(slope, old, top)
            high, low = max(high, projected), min(low, projected)
            if abs(projected) > 1e-13:
                # the corrected lines 8 and 9: Q sums over the label's features, and eta divides
                norm = squares[row] + (cliques.label_ptr[i + 1] - cliques.label_ptr[i]) / eta
                new = min(max(old - slope / norm, 0.0), top)
                state.dual[row, i] = new
                change = (new - old) * y[i]
                state.b[i] += change
                _add_row(rows, row, change, state.w[i], state.w[i], state.scores[i])
                for k in range(cliques.label_ptr[i], cliques.label_ptr[i + 1]):
                    state.v[cliques.clique[k]] += (new - old) * _feature(cliques, k, i, y) / eta
            s += 1
        spread = high - low if size else 0.0
        visited += size + 1
        if spread <= tol:
            if size == active.size:
                return spread
            size, high_before, low_before = active.size, np.inf, -np.inf
        else:
            high_before, low_before = _limits(high, low)
    return spread

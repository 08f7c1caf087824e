"""Regression trees with vector leaves, grown greedily on binned features.

A tree is one array of 64-bit nodes, each packing `left << 24 | feature << 8 | cut`: a row whose code exceeds
`cut` goes to node left + 1, any other to node left. A leaf points to itself with cut 255, so a walk needs no
test for leaves. Codes are row-major bytes, so one row's features share a cache line.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from potentia.kernels.vecmath import KERNEL

#: Codes are bytes.
MAX_BINS = 256
#: Statistics are padded to a multiple of this, so that adding one row to a bin is whole vector instructions.
PAD = 4
_BLOCK = 64


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


@njit(**KERNEL)
def histogram(codes, statistics, bin_ptr, order, start, stop, sums):
    """sums (bins of all features, P) = statistics added up per bin over the rows order[start:stop]."""
    sums[:] = 0.0
    n_features = codes.shape[1]
    width = statistics.shape[1]
    one, two, three = np.uint64(1), np.uint64(2), np.uint64(3)
    for i in range(start, stop):
        # unsigned indices spare the test for negative ones
        row = np.uint64(order[i])
        for j in range(n_features):
            at = np.uint64(bin_ptr[j]) + np.uint64(codes[row, j])
            for k in range(0, width, PAD):
                u = np.uint64(k)
                sums[at, u] += statistics[row, u]
                sums[at, u + one] += statistics[row, u + one]
                sums[at, u + two] += statistics[row, u + two]
                sums[at, u + three] += statistics[row, u + three]


@njit(**KERNEL)
def _explained(total, n_outputs):
    """|sum of residual vectors|^2 / weight: the squared error that their mean removes."""
    square = 0.0
    last = 0.0
    for k in range(n_outputs - 1):
        square += total[k] * total[k]
        last += total[k]
    return (square + last * last) / total[n_outputs - 1]


@njit(**KERNEL)
def _total(sums, bin_ptr):
    """Statistics of a whole node (P,), read off its first feature."""
    total = np.zeros(sums.shape[1])
    for b in range(bin_ptr[0], bin_ptr[1]):
        for k in range(sums.shape[1]):
            total[k] += sums[b, k]
    return total


@njit(**KERNEL)
def best_split(sums, bin_ptr, n_outputs, min_leaf):
    """(gain, feature, cut) of the split that lowers squared error most; gain 0 where none is allowed.

    gain = |G_left|^2 / w_left + |G_right|^2 / w_right - |G|^2 / w, both sides of weight at least min_leaf.
    Among equal gains the first feature and lowest cut win; a cut is only tried after a bin that holds rows.
    """
    width = sums.shape[1]
    total = _total(sums, bin_ptr)
    whole = _explained(total, n_outputs)
    left = np.empty(width)
    right = np.empty(width)
    w = n_outputs - 1
    gain, feature, cut = 0.0, 0, 0
    for j in range(bin_ptr.shape[0] - 1):
        left[:] = 0.0
        for b in range(bin_ptr[j], bin_ptr[j + 1] - 1):
            # subtracting histograms leaves rounding dust in empty bins
            if sums[b, w] <= 1e-12 * total[w]:
                continue
            for k in range(width):
                left[k] += sums[b, k]
                right[k] = total[k] - left[k]
            if right[w] < min_leaf:
                break
            if left[w] < min_leaf:
                continue
            new = _explained(left, n_outputs) + _explained(right, n_outputs) - whole
            # the same rows split off by another feature give the same gain up to rounding
            if new > gain + 1e-12 * (new + whole):
                gain, feature, cut = new, j, b - bin_ptr[j]
    return gain, feature, cut


@njit(**KERNEL)
def partition(codes, feature, cut, order, start, stop, spare):
    """Reorder order[start:stop] so that rows going left come first, else unchanged; where they end."""
    middle = start
    n_right = 0
    for i in range(start, stop):
        row = order[i]
        if codes[row, feature] <= cut:
            order[middle] = row
            middle += 1
        else:
            spare[n_right] = row
            n_right += 1
    for i in range(n_right):
        order[middle + i] = spare[i]
    return middle


@njit(**KERNEL)
def _consider(sums, bin_ptr, n_outputs, limits, leaf, gains, cuts):
    """Note a leaf's best split, or gain 0 when it is lighter than min_split or gains too little."""
    gains[leaf] = 0.0
    if _total(sums, bin_ptr)[n_outputs - 1] < limits[1]:
        return
    gain, feature, cut = best_split(sums, bin_ptr, n_outputs, limits[0])
    if gain > limits[2]:
        gains[leaf] = gain
        cuts[leaf, 0] = feature
        cuts[leaf, 1] = cut


@njit(**KERNEL)
def _split_node(nodes, spans, leaf, new, feature, cut, middle):
    """Turn a leaf into an inner node over two leaves: itself, on the left, and `new`."""
    child = 2 * new - 1
    nodes[spans[leaf, 0]] = pack(child, feature, cut)
    nodes[child] = pack(child, 0, MAX_BINS - 1)
    nodes[child + 1] = pack(child + 1, 0, MAX_BINS - 1)
    spans[new, 0], spans[new, 1], spans[new, 2] = child + 1, middle, spans[leaf, 2]
    spans[leaf, 0], spans[leaf, 2] = child, middle


@njit(**KERNEL)
def _split_histogram(codes, statistics, bin_ptr, order, spans, pool, slots, leaf, new):
    """The child with fewer rows is counted in the slot of `new`; the other is what remains of the parent."""
    if spans[leaf, 2] - spans[leaf, 1] < spans[new, 2] - spans[new, 1]:
        slots[leaf], slots[new] = slots[new], slots[leaf]
        small, large = leaf, new
    else:
        small, large = new, leaf
    counted = pool[slots[small]]
    histogram(codes, statistics, bin_ptr, order, spans[small, 1], spans[small, 2], counted)
    remaining = pool[slots[large]]
    remaining -= counted


@njit(**KERNEL)
def grow(codes, statistics, n_outputs, bin_ptr, limits, pool, order, nodes, spans):
    """Grow one tree, always splitting the leaf that gains most; returns (leaves, depth), nodes = 2 leaves -
    1.

    Step 2 of [ILR-chapter sec. 1.9.4]. codes (n, d); statistics (n, P) of `fill_statistics`; bin_ptr (d +
    1,); limits = weight a leaf needs, weight a node needs to be split, gain a split needs; pool (slots, bins,
    P) work space, one slot for every leaf that may still be split and one more. order (n,) lists the rows and
    is returned grouped by leaf; nodes (2 leaves - 1,) are packed; spans (leaves, 3) hold node, start and stop
    in `order`, and their length bounds the number of leaves.
    """
    max_leaves = spans.shape[0]
    spare = np.empty(order.shape[0], order.dtype)
    gains = np.zeros(max_leaves)
    cuts = np.zeros((max_leaves, 2), np.int64)
    levels = np.zeros(max_leaves, np.int64)
    slots = np.zeros(max_leaves, np.int64)
    free = np.arange(pool.shape[0])[::-1].copy()
    n_free = pool.shape[0] - 1
    nodes[0] = pack(0, 0, MAX_BINS - 1)
    spans[0, 0], spans[0, 1], spans[0, 2] = 0, 0, order.shape[0]
    histogram(codes, statistics, bin_ptr, order, 0, order.shape[0], pool[0])
    _consider(pool[0], bin_ptr, n_outputs, limits, 0, gains, cuts)
    n_leaves = 1
    while n_leaves < max_leaves:
        leaf, new = np.argmax(gains), n_leaves
        if gains[leaf] <= 0.0:
            break
        feature, cut = cuts[leaf]
        middle = partition(codes, feature, cut, order, spans[leaf, 1], spans[leaf, 2], spare)
        _split_node(nodes, spans, leaf, new, feature, cut, middle)
        levels[leaf] += 1
        levels[new] = levels[leaf]
        n_leaves += 1
        n_free -= 1
        slots[new] = free[n_free]
        _split_histogram(codes, statistics, bin_ptr, order, spans, pool, slots, leaf, new)
        for child in (leaf, new):
            _consider(pool[slots[child]], bin_ptr, n_outputs, limits, child, gains, cuts)
            if gains[child] <= 0.0:
                free[n_free] = slots[child]
                n_free += 1
    return n_leaves, levels[:n_leaves].max()


@njit(**KERNEL)
def add_trees(codes, nodes, values, node_ptr, depths, scores):
    """scores (n, K) += the leaf vectors values (m, K) that the rows codes (n, d) reach, tree after tree."""
    at = np.empty(_BLOCK, np.int64)
    n_rows, n_outputs = scores.shape
    for start in range(0, n_rows, _BLOCK):
        n = min(_BLOCK, n_rows - start)
        for t in range(depths.shape[0]):
            base = node_ptr[t]
            at[:] = 0
            # a block walks in step: the rows' chains of dependent loads then overlap
            for _ in range(depths[t]):
                for i in range(n):
                    node = nodes[base + at[i]]
                    code = np.int64(codes[start + i, (node >> 8) & 0xFFFF])
                    at[i] = (node >> 24) + (1 if code > (node & 0xFF) else 0)
            for i in range(n):
                for k in range(n_outputs):
                    scores[start + i, k] += values[base + at[i], k]

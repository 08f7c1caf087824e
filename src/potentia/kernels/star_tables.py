"""Cotangents of pairs' tables from blocks of lanes to users' layout: the end of `star_reverse`."""

from __future__ import annotations

import numpy as np

from .machine.jit import njit
from .machine.simd import CHUNK, fma8, load8, mul8, prefetch, store8, transpose8, zero8
from .star_blocks import PRODUCT, chunk_at
from .vecmath import KERNEL


@njit(allocates=True, **KERNEL)
def flush(start, stop, layout, scores, blocks, ratios, inputs, first, last, out):
    """Add psi times the sums of the factors in slots first..last to d_theta `out`, of the pairs of blocks start..stop.

    The two ends of a pair are in blocks of different groups, so that threads may share the blocks of one group unless
    pairs share tables.
    """
    L, W = layout.n_states, layout.pair.shape[1]
    sums = np.empty(L * L * CHUNK)
    shaped, turned = sums.reshape(L, L, CHUNK), np.empty(L * L * CHUNK)
    for u in range(start, stop):
        if blocks.mode[u] != PRODUCT:
            continue
        for row in range(layout.slot_ptr[u], layout.slot_ptr[u + 1]):
            for x in range(0, W, CHUNK):
                here = first * blocks.lam.size + row * L * W + x * L
                _fetch_factors(ratios, inputs, last - first, here + L * CHUNK, blocks.lam.size, L)
                _sum_factors(ratios, inputs, last - first, here, blocks.lam.size, L, sums)
                at = chunk_at(blocks, u, row, x)
                for k in range(0, L * L * CHUNK, CHUNK):
                    store8(sums, k, mul8(load8(sums, k), load8(blocks.table, at + k)))
                side = _common_side(layout, scores, row, x)
                if L >= CHUNK and side >= 0:
                    _add_chunk(layout, scores, row, x, side, sums, turned, out)
                    continue
                for lane in range(CHUNK):
                    e = layout.pair[row, x + lane]
                    if e >= 0:
                        _add_lane(scores, e, layout.side[row, x + lane], shaped, lane, out)


@njit(inner=True, **KERNEL)
def _common_side(layout, scores, row, x):
    """The side from which eight lanes see their pairs if all have a pair with all states; else -1."""
    side = layout.side[row, x]
    for lane in range(x, x + CHUNK):
        e = layout.pair[row, lane]
        if e < 0 or layout.side[row, lane] != side:
            return -1
        if scores.shapes[e, 0] != layout.n_states or scores.shapes[e, 1] != layout.n_states:
            return -1
    return side


@njit(inner=True, **KERNEL)
def _add_chunk(layout, scores, row, x, side, sums, turned, out):
    """`_add_lane` of eight lanes with a common side: eight entries of eight tables at a time change places."""
    L = layout.n_states
    # neighbouring entries of users' tables, (b) or seen from the second variable (a), and rows of them
    along, across = (CHUNK, L * CHUNK) if side == 0 else (L * CHUNK, CHUNK)
    for a in range(L):
        for b in range(0, L, CHUNK):
            b = min(b, L - CHUNK)  # the last eight entries of a row, some of them once more
            transpose8(sums, a * across + b * along, along, turned, a * L + b, L * L)
    for lane in range(CHUNK):
        e = layout.pair[row, x + lane]
        scale = 1.0 / scores.count[e]
        own, entries = turned[lane * L * L : (lane + 1) * L * L], out[scores.offset[e] :]
        for k in range(L * L):
            entries[k] += scale * own[k]


@njit(inline="always", **KERNEL)
def _fetch_factors(ratios, inputs, used, here, stride, L):
    """Call for the factors of a chunk: as many short pieces as there are slots, which no hardware foresees."""
    for i in range(here, here + used * stride, stride):
        for k in range(i, i + L * CHUNK, CHUNK):
            prefetch(ratios, k, 1)
            prefetch(inputs, k, 1)


@njit(inline="always", **KERNEL)
def _sum_factors(ratios, inputs, used, here, stride, L, sums):
    """sums(a, b) = sum over the kept updates of r(a) exp(l(b)), of eight lanes: two by four entries at a time."""
    step = L * CHUNK
    for a in range(0, L - 1, 2):
        for b in range(0, L - 3, 4):
            s0, s1, s2, s3 = zero8(), zero8(), zero8(), zero8()
            t0, t1, t2, t3 = zero8(), zero8(), zero8(), zero8()
            i, j = here + a * CHUNK, here + b * CHUNK
            for _ in range(used):
                r, q = load8(ratios, i), load8(ratios, i + CHUNK)
                v0, v1 = load8(inputs, j), load8(inputs, j + CHUNK)
                v2, v3 = load8(inputs, j + 2 * CHUNK), load8(inputs, j + 3 * CHUNK)
                s0, s1, s2, s3 = fma8(r, v0, s0), fma8(r, v1, s1), fma8(r, v2, s2), fma8(r, v3, s3)
                t0, t1, t2, t3 = fma8(q, v0, t0), fma8(q, v1, t1), fma8(q, v2, t2), fma8(q, v3, t3)
                i += stride
                j += stride
            k = (a * L + b) * CHUNK
            _store4(sums, k, s0, s1, s2, s3)
            _store4(sums, k + step, t0, t1, t2, t3)
        for b in range(L - L % 4, L):
            _sum_one(ratios, inputs, used, here, stride, a, b, L, sums)
            _sum_one(ratios, inputs, used, here, stride, a + 1, b, L, sums)
    if L % 2 == 1:
        for b in range(L):
            _sum_one(ratios, inputs, used, here, stride, L - 1, b, L, sums)


@njit(inline="always", **KERNEL)
def _store4(sums, k, s0, s1, s2, s3):
    store8(sums, k, s0)
    store8(sums, k + CHUNK, s1)
    store8(sums, k + 2 * CHUNK, s2)
    store8(sums, k + 3 * CHUNK, s3)


@njit(inline="always", **KERNEL)
def _sum_one(ratios, inputs, used, here, stride, a, b, L, sums):
    s = zero8()
    i, j = here + a * CHUNK, here + b * CHUNK
    for _ in range(used):
        s = fma8(load8(ratios, i), load8(inputs, j), s)
        i += stride
        j += stride
    store8(sums, (a * L + b) * CHUNK, s)


@njit(**KERNEL)
def add_tables(layout, scores, blocks, d_table, out):
    """Add the cotangents kept in tables, of both sides of every pair, to d_theta `out` in users' layout."""
    L, W = layout.n_states, layout.pair.shape[1]
    for u in range(blocks.mode.size):
        if blocks.mode[u] == PRODUCT and W % CHUNK == 0:
            continue  # `flush` does those
        for row in range(layout.slot_ptr[u], layout.slot_ptr[u + 1]):
            part = d_table[row * L * L * W : (row + 1) * L * L * W]
            shaped = part.reshape(L, L, W)
            for x in range(W):
                e = layout.pair[row, x]
                if e >= 0:
                    _add_lane(scores, e, layout.side[row, x], shaped, x, out)


@njit(inline="always", **KERNEL)
def _add_lane(scores, e, side, sums, x, out):
    """One pair's table in lane x of `sums` (L, L, lanes), seen from its `side`, over c_e into users' layout."""
    n0, n1 = scores.shapes[e, 0], scores.shapes[e, 1]
    scale = 1.0 / scores.count[e]
    entries = out[scores.offset[e] : scores.offset[e] + n0 * n1].reshape(n0, n1)
    if side == 0:
        for a in range(n0):
            for b in range(n1):
                entries[a, b] += scale * sums[a, b, x]
    else:
        for b in range(n0):
            for a in range(n1):
                entries[b, a] += scale * sums[a, b, x]


@njit(**KERNEL)
def reverse_pairs(scores, position, marginals, d_marginals, start, lam, out):
    """Cotangents of pair marginals softmax(b_e / c_e) pulled back to messages `lam` and tables `out`."""
    W = lam.shape[2]
    for e in range(position.shape[0]):
        n0, n1 = scores.shapes[e, 0], scores.shapes[e, 1]
        mu = marginals[start[e] : start[e] + n0 * n1]
        d_mu = d_marginals[start[e] : start[e] + n0 * n1]
        mean = 0.0
        for k in range(n0 * n1):
            mean += mu[k] * d_mu[k]
        for a in range(n0):
            for b in range(n1):
                k = a * n1 + b
                moved = mu[k] * (d_mu[k] - mean)
                out[scores.offset[e] + k] += moved / scores.count[e]
                lam[position[e, 0] // W, a, position[e, 0] % W] += moved
                lam[position[e, 1] // W, b, position[e, 1] % W] += moved

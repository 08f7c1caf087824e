"""The update of `parametric` on exponentials of messages of bounded range: one exp and one log per variable and state.

`PairBlocks.lam` holds v = exp(lam). With u = exp(P - max P) the new message is v_e = u / M_e, and where all pairs have
one counting number c, sum_e c log M_e = c log prod_e M_e. The caller sees to it that neither u, M nor the product of
all M of a variable leaves the range of doubles.
"""

from __future__ import annotations

import numpy as np

from .jit import njit
from .parametric import sum_messages
from .record import slot_of
from .simd import CHUNK, add8, div8, fma8, load8, max8, mul8, spread8, store8, sub8, zero8
from .star_blocks import fetch_ahead
from .vecmath import KERNEL, exp, log


@njit(allocates=True, **KERNEL)
def sweep(profile, common, blocks, units, damping, write, watch, record):
    """`parametric.sweep` for sums without damping; `common`: the counting number that all pairs have, or 0."""
    L, W = blocks.lam.shape[1], blocks.lam.shape[2]
    widest = 0
    for u in units:
        widest = max(widest, blocks.slot_ptr[u + 1] - blocks.slot_ptr[u])
    incoming, p, scratch = np.empty(L * CHUNK), np.empty(L * CHUNK), np.empty(L * CHUNK)
    sums, ends = np.empty((widest, L * CHUNK)), np.empty(CHUNK)
    change = zero8()
    for k in range(units.size):
        u = units[k]
        if k + 1 < units.size:
            fetch_ahead(blocks, blocks.lam, units[k + 1])
        here = slot_of(record, k, blocks)
        value = 0.0
        for x in range(0, W, CHUNK):
            _gather_sums(profile, blocks, u, x, incoming, sums, here)
            if not write:
                value += _values(blocks, u, x, sums, ends)
            _potentials(blocks, u, x, sums, common, p, scratch)
            if write:
                _write(blocks, u, x, p, sums)
            if watch:
                change = max8(_refresh(blocks.belief, u, x, p), change)
        if not write:
            blocks.value[u] = value
    store8(ends, 0, change)
    return np.max(ends), -1


@njit(**KERNEL)
def _gather_sums(profile, blocks, u, x, incoming, sums, record):
    """M of every slot of eight lanes of block u."""
    L, W = blocks.lam.shape[1], blocks.lam.shape[2]
    lam, first = blocks.lam.reshape(-1), blocks.slot_ptr[u]
    for row in range(first, blocks.slot_ptr[u + 1]):
        at = np.int64(blocks.opposite[row, x])
        apart = 0
        for lane in range(CHUNK):
            apart |= np.int64(blocks.opposite[row, x + lane]) - at - lane
        if apart == 0:
            for b in range(L):
                store8(incoming, b * CHUNK, load8(lam, at + b * W))
        else:
            for lane in range(CHUNK):
                source = lam[blocks.opposite[row, x + lane] :]
                for b in range(L):
                    incoming[b * CHUNK + lane] = source[b * W]
        if record.inputs.size > 0:
            here = ((record.slot * blocks.lam.shape[0] + row) * W + x) * L
            for k in range(0, L * CHUNK, CHUNK):
                store8(record.inputs, here + k, load8(incoming, k))
        sum_messages(
            profile, blocks.table, row * profile.fields * W + x, W, incoming, sums[row - first], 0, L, CHUNK
        )


@njit(**KERNEL)
def _potentials(blocks, u, x, sums, common, p, product):
    """exp(P - max P) of eight lanes."""
    L, W, first = blocks.lam.shape[1], blocks.lam.shape[2], blocks.slot_ptr[u]
    node, count = blocks.node.reshape(-1), blocks.count.reshape(-1)
    begin = u * L * W + x
    if common > 0.0:
        product[:] = 1.0
        for row in range(first, blocks.slot_ptr[u + 1]):
            own = sums[row - first]
            if blocks.even[row] > 0.0:
                for k in range(0, L * CHUNK, CHUNK):
                    store8(product, k, mul8(load8(product, k), load8(own, k)))
            else:  # an empty slot counts as 1
                live = mul8(load8(count, row * W + x), spread8(1.0 / common))
                rest = sub8(spread8(1.0), live)
                for k in range(0, L * CHUNK, CHUNK):
                    store8(product, k, mul8(load8(product, k), fma8(live, load8(own, k), rest)))
        for k in range(L * CHUNK):
            product[k] = common * log(product[k])
    else:
        product[:] = 0.0
        for row in range(first, blocks.slot_ptr[u + 1]):
            own = sums[row - first]
            for k in range(L * CHUNK):
                p[k] = log(own[k])
            c = load8(count, row * W + x)
            for k in range(0, L * CHUNK, CHUNK):
                store8(product, k, fma8(c, load8(p, k), load8(product, k)))
    inverse, peak = load8(blocks.inverse.reshape(-1), u * W + x), spread8(-np.inf)
    for a in range(L):
        s = mul8(add8(load8(node, begin + a * W), load8(product, a * CHUNK)), inverse)
        store8(p, a * CHUNK, s)
        peak = max8(s, peak)
    for k in range(0, L * CHUNK, CHUNK):
        store8(p, k, sub8(load8(p, k), peak))
    for k in range(L * CHUNK):
        p[k] = exp(p[k])


@njit(**KERNEL)
def _write(blocks, u, x, p, sums):
    """v = exp(P) / M of every slot, scaled to maximum 1."""
    L, W, first = blocks.lam.shape[1], blocks.lam.shape[2], blocks.slot_ptr[u]
    lam = blocks.lam.reshape(-1)
    for row in range(first, blocks.slot_ptr[u + 1]):
        own, peak = sums[row - first], zero8()
        for k in range(0, L * CHUNK, CHUNK):
            v = div8(load8(p, k), load8(own, k))
            store8(own, k, v)
            peak = max8(v, peak)
        scale, to = div8(spread8(1.0), peak), row * L * W + x
        for k in range(0, L * CHUNK, CHUNK):
            store8(lam, to, mul8(load8(own, k), scale))
            to += W


@njit(**KERNEL)
def _values(blocks, u, x, sums, ends):
    """Sum of c_e log sum_a v(a) M(a) over the pairs of which these lanes are the first end."""
    L, W, first = blocks.lam.shape[1], blocks.lam.shape[2], blocks.slot_ptr[u]
    lam, value = blocks.lam.reshape(-1), 0.0
    for row in range(first, blocks.slot_ptr[u + 1]):
        own, total = sums[row - first], zero8()
        for a in range(L):
            total = fma8(load8(lam, (row * L + a) * W + x), load8(own, a * CHUNK), total)
        store8(ends, 0, total)
        for lane in range(CHUNK):
            if blocks.first[row, x + lane]:
                value += blocks.count[row, x + lane] * log(ends[lane])
    return value


@njit(**KERNEL)
def _refresh(belief, u, x, p):
    """Marginals of eight lanes into `belief`; returns their largest change."""
    L, W = belief.shape[1], belief.shape[2]
    flat, total, most = belief.reshape(-1), zero8(), zero8()
    for k in range(0, L * CHUNK, CHUNK):
        total = add8(total, load8(p, k))
    scale, at = div8(spread8(1.0), total), u * L * W + x
    for k in range(0, L * CHUNK, CHUNK):
        v = mul8(load8(p, k), scale)
        moved = sub8(v, load8(flat, at))
        most = max8(max8(moved, sub8(zero8(), moved)), most)
        store8(flat, at, v)
        at += W
    return most

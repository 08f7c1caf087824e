"""The star update for three and more states where all tables are products (PRODUCT); see `star`.

A block is worked on in pieces of lanes, so few that what an update needs in between stays in the first cache.
"""

from __future__ import annotations

import numpy as np

from .jit import njit
from .record import slot_of
from .simd import CHUNK, add8, fma8, load8, max8, spread8, store8, sub8, zero8
from .star_blocks import fetch_ahead
from .vecmath import KERNEL, exp, log

#: Doubles of scratch that a piece may use.
_SCRATCH = 3072


@njit(allocates=True, **KERNEL)
def sweep(blocks, units, damping, write, watch, record):
    """`star.sweep` where all blocks are PRODUCT, lanes come in chunks and nothing is damped."""
    L, W = blocks.lam.shape[1], blocks.lam.shape[2]
    widest = 0
    for u in units:
        widest = max(widest, blocks.slot_ptr[u + 1] - blocks.slot_ptr[u])
    width = W
    while blocks.shared and width > CHUNK and (widest + 3) * L * width > _SCRATCH:
        width //= 2
    incoming, p, logm = np.empty(L * width), np.empty(L * width), np.empty((widest, L * width))
    sums = np.empty((2, width))
    change = 0.0
    for k in range(units.size):
        u = units[k]
        if k + 1 < units.size:
            fetch_ahead(blocks, blocks.lam, units[k + 1])
        if not write:
            blocks.value[u] = 0.0
        for x in range(0, W, width):
            _beliefs(blocks, u, x, incoming, logm, p, sums, write, slot_of(record, k, blocks))
            if write:
                for row in range(blocks.slot_ptr[u], blocks.slot_ptr[u + 1]):
                    _write_row(
                        blocks.lam.reshape(-1),
                        row * L * W + x,
                        p,
                        logm[row - blocks.slot_ptr[u]],
                        L,
                        W,
                        width,
                    )
            if watch:
                change = max(change, _refresh(blocks.belief, u, x, p, sums, L))
    return change, -1


@njit(inline="always", **KERNEL)
def _beliefs(blocks, u, x0, incoming, logm, p, sums, write, record):
    """log M of every slot of a piece of block u, and P = (theta + sum_e c_e log M_e) / C."""
    L, W = blocks.lam.shape[1], blocks.lam.shape[2]
    width = sums.shape[1]
    lam, first = blocks.lam.reshape(-1), blocks.slot_ptr[u]
    for a in range(L):
        node, part = blocks.node[u, a, x0 : x0 + width], p[a * width : (a + 1) * width]
        for x in range(width):
            part[x] = node[x]
    for row in range(first, blocks.slot_ptr[u + 1]):
        opposite, out = blocks.opposite[row, x0 : x0 + width], logm[row - first]
        for b in range(L):
            source, part = lam[b * W :], incoming[b * width : (b + 1) * width]
            for x in range(width):
                part[x] = source[opposite[x]]
        for k in range(incoming.size):
            incoming[k] = exp(incoming[k])
        if record.inputs.size > 0:
            _keep(record, ((record.slot * blocks.lam.shape[0] + row) * W + x0) * L, incoming, L, width)
        if blocks.shared:
            _shared_product(blocks.table, blocks.base[row], incoming, out, L, width)
        else:
            _product(blocks.table, blocks.base[row] + x0 * L * L, incoming, out, L, width)
        if not write:
            blocks.value[u] += _row_value(blocks, row, x0, out, sums)
        for k in range(out.size):
            out[k] = log(out[k])
        if blocks.even[row] > 0.0:
            c = blocks.even[row]
            for k in range(p.size):
                p[k] += c * out[k]
        else:
            count = blocks.count[row, x0 : x0 + width]
            for a in range(L):
                part, mine = p[a * width : (a + 1) * width], out[a * width : (a + 1) * width]
                for x in range(width):
                    part[x] += count[x] * mine[x]
    inverse = blocks.inverse[u, x0 : x0 + width]
    for a in range(L):
        part = p[a * width : (a + 1) * width]
        for x in range(width):
            part[x] *= inverse[x]


@njit(inline="always", **KERNEL)
def _keep(record, here, incoming, L, width):
    """A piece's messages into the record, in the layout of `record.keep_row`."""
    for x in range(0, width, CHUNK):
        for k in range(x, L * width, width):
            store8(record.inputs, here, load8(incoming, k))
            here += CHUNK


@njit(**KERNEL)
def _product(table, at, incoming, out, L, width):
    """out(a) = sum_b psi(a, b) incoming(b), of eight lanes at a time; reads the tables strictly in order."""
    for x in range(0, width, CHUNK):
        for a in range(L):
            s0, s1 = zero8(), zero8()
            j = x
            for _ in range(L // 2):
                s0 = fma8(load8(table, at), load8(incoming, j), s0)
                s1 = fma8(load8(table, at + CHUNK), load8(incoming, j + width), s1)
                at += 2 * CHUNK
                j += 2 * width
            if L % 2 == 1:
                s0 = fma8(load8(table, at), load8(incoming, j), s0)
                at += CHUNK
            store8(out, a * width + x, add8(s0, s1))


@njit(**KERNEL)
def _shared_product(table, at, incoming, out, L, width):
    """The same with one table [a][b] for all lanes: four of its rows stay in the cache for all lanes of the piece."""
    for a in range(0, L - 3, 4):
        for x in range(0, width, CHUNK):
            s0, s1, s2, s3 = zero8(), zero8(), zero8(), zero8()
            k, j = at + a * L, x
            for _ in range(L):
                e = load8(incoming, j)
                s0 = fma8(spread8(table[k]), e, s0)
                s1 = fma8(spread8(table[k + L]), e, s1)
                s2 = fma8(spread8(table[k + 2 * L]), e, s2)
                s3 = fma8(spread8(table[k + 3 * L]), e, s3)
                k += 1
                j += width
            _store4(out, a * width + x, width, s0, s1, s2, s3)
    for a in range(L - L % 4, L):
        for x in range(0, width, CHUNK):
            s0 = zero8()
            for b in range(L):
                s0 = fma8(spread8(table[at + a * L + b]), load8(incoming, b * width + x), s0)
            store8(out, a * width + x, s0)


@njit(inline="always", **KERNEL)
def _store4(out, k, step, s0, s1, s2, s3):
    store8(out, k, s0)
    store8(out, k + step, s1)
    store8(out, k + 2 * step, s2)
    store8(out, k + 3 * step, s3)


@njit(**KERNEL)
def _row_value(blocks, row, x0, products, sums):
    """sum of c_e log sum_a exp(lam(a)) M(a) over the pairs of which the piece's lanes are the first end."""
    width, total = sums.shape[1], sums[0]
    for x in range(width):
        total[x] = 0.0
    for a in range(blocks.lam.shape[1]):
        own, part = blocks.lam[row, a, x0 : x0 + width], products[a * width : (a + 1) * width]
        for x in range(width):
            total[x] += exp(own[x]) * part[x]
    value = 0.0
    for x in range(width):
        if blocks.first[row, x0 + x]:
            value += blocks.count[row, x0 + x] * log(total[x])
    return value


@njit(inline="always", **KERNEL)
def _write_row(lam, at, p, fresh, L, W, width):
    """lam = P - log M, shifted to maximum 0, eight lanes at a time; `fresh` (log M) is spent."""
    dead = spread8(-np.inf)
    for x in range(0, width, CHUNK):
        peak = dead
        for k in range(x, L * width, width):
            # -inf - -inf is nan, which stands for -inf, too
            v = max8(sub8(load8(p, k), load8(fresh, k)), dead)
            store8(fresh, k, v)
            peak = max8(v, peak)
        to = at + x
        for k in range(x, L * width, width):
            store8(lam, to, sub8(load8(fresh, k), peak))
            to += W


@njit(**KERNEL)
def _refresh(belief, u, x0, p, sums, L):
    """Marginals softmax(P) of a piece into `belief`; returns their largest change."""
    width, peak, total = sums.shape[1], sums[0], sums[1]
    for x in range(width):
        peak[x], total[x] = p[x], 0.0
    for a in range(1, L):
        part = p[a * width : (a + 1) * width]
        for x in range(width):
            peak[x] = part[x] if part[x] > peak[x] else peak[x]
    for a in range(L):
        part = p[a * width : (a + 1) * width]
        for x in range(width):
            v = exp(part[x] - peak[x])
            part[x] = v
            total[x] += v
    for x in range(width):
        total[x], peak[x] = 1.0 / total[x], 0.0
    for a in range(L):
        part, old = p[a * width : (a + 1) * width], belief[u, a, x0 : x0 + width]
        for x in range(width):
            v = part[x] * total[x]
            moved = abs(v - old[x])
            old[x] = v
            peak[x] = moved if moved > peak[x] else peak[x]
    most = 0.0
    for x in range(width):
        most = max(most, peak[x])
    return most

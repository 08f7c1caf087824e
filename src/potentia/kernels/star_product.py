"""The star update for three and more states on exponentials of messages; see `star` and `exponentials`."""

from __future__ import annotations

import numpy as np

from .exponentials import gather, largest, pair_values, potentials, refresh, write_messages
from .jit import njit
from .record import slot_of
from .simd import CHUNK, add8, fma8, load8, spread8, store8, zero8
from .star_blocks import fetch_ahead
from .vecmath import KERNEL

#: Doubles of scratch that a piece may use, so few that they stay in the first cache.
SCRATCH = 3072


@njit(allocates=True, **KERNEL)
def sweep(common, blocks, units, damping, write, watch, record):
    """`star.sweep` where all blocks are PRODUCT, lanes come in chunks and nothing is damped.

    common: the counting number that all pairs have if a variable's M may be multiplied, else 0.
    """
    L, W = blocks.lam.shape[1], blocks.lam.shape[2]
    widest = 0
    for k in range(units.size):
        widest = max(widest, blocks.slot_ptr[units[k] + 1] - blocks.slot_ptr[units[k]])
    width = W  # separate tables are read strictly in order, a whole row of a block at a time
    while blocks.shared and width > CHUNK and (widest + 3) * L * width > SCRATCH:
        width //= 2
    incoming, p, scratch = np.empty(L * width), np.empty(L * width), np.empty(L * width)
    sums, ends, most = np.empty((widest, L * width)), np.empty(CHUNK), np.zeros(CHUNK)
    for k in range(units.size):
        u = units[k]
        if k + 1 < units.size:
            fetch_ahead(blocks, blocks.lam, units[k + 1])
        here = slot_of(record, k, blocks)
        value = 0.0
        for x in range(0, W, width):
            for row in range(blocks.slot_ptr[u], blocks.slot_ptr[u + 1]):
                out = sums[row - blocks.slot_ptr[u]]
                gather(blocks, row, x, incoming, here)
                if blocks.shared:
                    _shared_product(blocks.table, blocks.base[row], incoming, out, L, width)
                else:
                    _product(blocks.table, blocks.base[row] + x * L * L, incoming, out, L, width)
            if not write:
                value += pair_values(blocks, u, x, sums, ends)
            potentials(blocks, u, x, sums, common, p, scratch)
            if write:
                write_messages(blocks, u, x, p, sums)
            if watch:
                refresh(blocks.belief, u, x, p, most)
        if not write:
            blocks.value[u] = value
    return largest(most), -1


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

"""The star update for three and more states on exponentials of messages; see `star` and `exponentials`.

Both ends of a pair need its table, and reading tables from memory is most of the work. So where one end is updated
before the other, it does both products while the table is in the cache: its own, M(a) = sum_b psi(a, b) v(b), and with
its new message the one that the other end will need, sum_a psi(a, b) v(a), which is left there (`PairBlocks.sent`).
Rows of the later ends need no table then. Since a message changes only when its variable is updated, the products are
the same in any order of updates.
"""

from __future__ import annotations

import numpy as np

from .exponentials import gather, pair_values, potentials, refresh, take_largest, write_messages
from .machine.jit import njit
from .machine.simd import CHUNK, add8, fma8, load8, prefetch, run8, spread8, store8, zero8
from .machine.team import BARRIER, wait
from .star_blocks import (
    RECEIVES,
    SENDS,
    block_of,
    chunk_at,
    fetch_ahead,
    following,
    most_rows,
    note_change,
    slot_of,
)
from .vecmath import KERNEL

#: Doubles of scratch that a piece may use, so few that they stay in the first cache.
SCRATCH = 3072
#: Entries of tables that a piece may read, so few that they stay in the second cache for the products of other ends.
NEAR = 2**16
#: Entries of tables by which to call for them ahead.
AHEAD = 256


@njit(allocates=True, **KERNEL)
def sweep(common, blocks, updates, damping, write, watch, changes, record, team):
    """`star.sweep` where all blocks are PRODUCT, lanes come in chunks and nothing is damped.

    common: the counting number that all pairs have if a variable's M may be multiplied, else 0.
    """
    L, W = blocks.lam.shape[1], blocks.lam.shape[2]
    widest = most_rows(blocks, updates)
    width = W
    while width > CHUNK and (
        (widest + 3) * L * width > SCRATCH if blocks.shared else widest * L * L * width > NEAR
    ):
        width //= 2
    p, scratch = np.empty(L * width), np.empty(L * width)
    incoming, sums = np.empty((widest, L * width)), np.empty((widest, L * width))
    ends, most = np.empty(CHUNK), np.zeros(CHUNK)
    far = blocks.sent.size > 0
    for k in range(updates.size):
        if updates[k] == BARRIER:
            wait(team)
            continue
        u = block_of(blocks, updates[k])
        if not far:
            fetch_ahead(blocks, blocks.lam, following(blocks, updates, k))
        here = slot_of(record, blocks, updates[k])
        value = 0.0
        for x in range(0, W, width):
            after, y = (u, x + width) if x + width < W else (following(blocks, updates, k), 0)
            for row in range(blocks.slot_ptr[u], blocks.slot_ptr[u + 1]):
                s = row - blocks.slot_ptr[u]
                if blocks.role[row] != RECEIVES or here.inputs.size > 0:
                    gather(blocks, row, x, incoming[s], here)
                if blocks.role[row] == RECEIVES:
                    _receive(blocks.sent, row, x, sums[s], width)
                elif blocks.shared:
                    _shared_product(blocks.table, blocks.base[row], incoming[s], sums[s], L, width)
            if not blocks.shared:
                _products(blocks, u, x, incoming, sums, width)
            if far:
                _fetch_outputs(blocks, u, x, width)
            if not write:
                value += pair_values(blocks, u, x, sums, ends)
            potentials(blocks, u, x, sums, common, p, scratch)
            if write:
                write_messages(blocks, u, x, p, sums)
            if far:
                _fetch_inputs(blocks, after, y, width)
            if far and write:
                _send(blocks, u, x, width, scratch)
            if watch:
                refresh(blocks.belief, u, x, p, most)
        if not write:
            blocks.value[u] = value
        if watch:
            note_change(changes, blocks, updates[k], take_largest(most))
    return -1


@njit(allocates=True, **KERNEL)
def send(start, stop, blocks):
    """What the rows of blocks start..stop that send have to send, from their messages as they are."""
    L, W = blocks.lam.shape[1], blocks.lam.shape[2]
    scratch = np.empty(L * CHUNK)
    for u in range(start, stop):
        _send(blocks, u, 0, W, scratch)


@njit(inner=True, **KERNEL)
def _send(blocks, u, x, width, scratch):
    """sum_a psi(a, b) v(a) of a piece's pairs in the slots that send, left at their other ends."""
    L, W = blocks.lam.shape[1], blocks.lam.shape[2]
    sent, opposite = blocks.sent.reshape(-1), blocks.opposite.reshape(-1)
    for row in range(blocks.slot_ptr[u], blocks.slot_ptr[u + 1]):
        for lane in range(x, x + width if blocks.role[row] == SENDS else x, CHUNK):
            _product_transposed(blocks, u, row, lane, scratch)
            to = run8(opposite, row * W + lane)
            if to >= 0:
                for b in range(L):
                    store8(sent, to + b * W, load8(scratch, b * CHUNK))
            else:
                for k in range(CHUNK):
                    target = sent[opposite[row * W + lane + k] :]
                    for b in range(L):
                        target[b * W] = scratch[b * CHUNK + k]


@njit(inline="always", **KERNEL)
def _product_transposed(blocks, u, row, lane, out):
    """out(b) = sum_a psi(a, b) v(a) of eight lanes: four b at a time."""
    L, W = blocks.lam.shape[1], blocks.lam.shape[2]
    table, lam = blocks.table, blocks.lam.reshape(-1)
    at, own = chunk_at(blocks, u, row, lane), row * L * W + lane
    for b in range(0, L - 3, 4):
        s0, s1, s2, s3 = zero8(), zero8(), zero8(), zero8()
        j, k = at + b * CHUNK, own
        for _ in range(L):
            v = load8(lam, k)
            s0 = fma8(load8(table, j), v, s0)
            s1 = fma8(load8(table, j + CHUNK), v, s1)
            s2 = fma8(load8(table, j + 2 * CHUNK), v, s2)
            s3 = fma8(load8(table, j + 3 * CHUNK), v, s3)
            j += L * CHUNK
            k += W
        _store4(out, b * CHUNK, CHUNK, s0, s1, s2, s3)
    for b in range(L - L % 4, L):
        s0 = zero8()
        for a in range(L):
            s0 = fma8(load8(table, at + (a * L + b) * CHUNK), load8(lam, own + a * W), s0)
        store8(out, b * CHUNK, s0)


# A piece reads and writes a few cache lines in each of many places, which no hardware foresees, and between two pieces
# tables pass through the caches. So each piece calls for what it will write and for what the next one will read while
# there is arithmetic to do.


@njit(inner=True, **KERNEL)
def _fetch_inputs(blocks, u, x, width):
    """Call for what a piece will read: messages at the other ends of its pairs, or what these have sent."""
    for row in range(blocks.slot_ptr[u], blocks.slot_ptr[u + 1]):
        if blocks.role[row] == RECEIVES:
            _fetch_row(blocks.sent, row, x, width)
        else:
            _fetch_ends(blocks.lam, blocks, row, x, width)


@njit(inner=True, **KERNEL)
def _fetch_outputs(blocks, u, x, width):
    """Call for where a piece's messages go, and the products that it sends."""
    for row in range(blocks.slot_ptr[u], blocks.slot_ptr[u + 1]):
        _fetch_row(blocks.lam, row, x, width)
        if blocks.role[row] == SENDS:
            _fetch_ends(blocks.sent, blocks, row, x, width)


@njit(inline="always", **KERNEL)
def _fetch_row(messages, row, x, width):
    """All states of a piece in one slot."""
    L, W = messages.shape[1], messages.shape[2]
    flat = messages.reshape(-1)
    for a in range(row * L, (row + 1) * L):
        for at in range(a * W + x, a * W + x + width, CHUNK):
            prefetch(flat, at, 2)


@njit(inline="always", **KERNEL)
def _fetch_ends(messages, blocks, row, x, width):
    """The same at the other ends of the pairs."""
    L, W = messages.shape[1], messages.shape[2]
    flat, opposite = messages.reshape(-1), blocks.opposite.reshape(-1)
    for lane in range(row * W + x, row * W + x + width, CHUNK):
        at = np.int64(opposite[lane])
        for _ in range(L):
            prefetch(flat, at, 2)
            at += W


@njit(inner=True, **KERNEL)
def _receive(sent, row, x, out, width):
    """M of a piece in one slot, as the other ends left it."""
    L, W = sent.shape[1], sent.shape[2]
    flat = sent.reshape(-1)
    for a in range(L):
        for lane in range(0, width, CHUNK):
            store8(out, a * width + lane, load8(flat, (row * L + a) * W + x + lane))


@njit(inner=True, **KERNEL)
def _products(blocks, u, x, incoming, sums, width):
    """M of a piece in all slots with tables, eight lanes at a time: their tables are read strictly in order."""
    first = blocks.slot_ptr[u]
    for lane in range(0, width, CHUNK):
        for row in range(first, blocks.slot_ptr[u + 1]):
            if blocks.role[row] != RECEIVES:
                at = chunk_at(blocks, u, row, x + lane)
                _product(blocks.table, at, incoming[row - first], sums[row - first], lane, width)


@njit(**KERNEL)
def _product(table, at, incoming, out, x, width):
    """out(a) = sum_b psi(a, b) incoming(b) of eight lanes."""
    L = out.size // width
    for a in range(L):
        s0, s1 = zero8(), zero8()
        j = x
        for _ in range(L // 2):
            prefetch(table, at + AHEAD, 2)
            if table.itemsize > 4:
                prefetch(table, at + AHEAD + CHUNK, 2)
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

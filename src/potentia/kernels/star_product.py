"""Star updates that keep exponentials of messages of bounded range: at most one exp and one log per variable and state.

`PairBlocks.lam` holds v = exp(lam). With u = exp(P), up to a factor, the new message is v_e = u / M_e. Where all pairs
have one counting number c, sum_e c log M_e = c log prod_e M_e. Where moreover C = 1 and c is 1 or 1/2 (belief
propagation, and tree-reweighted messages on grids), u = exp(theta) (prod_e M_e)^c takes no exp or log at all. The
caller sees to it that neither u, M nor the product of all M of a variable leaves the range of doubles. A block is
worked on in pieces of lanes, from lane x on; what belongs to a piece is stored [state][lane of the piece].
"""

from __future__ import annotations

import numpy as np

from .machine.jit import njit
from .machine.simd import CHUNK, add8, div8, fma8, load8, max8, mul8, run8, spread8, store8, sub8
from .machine.team import BARRIER, wait
from .star_blocks import RECEIVES, SENDS, chunk_at, most_rows, product_transposed, slot_of, store4, sum_messages
from .vecmath import KERNEL, exp, log


@njit(inner=True, **KERNEL)
def gather(blocks, row, x, incoming, record):
    """v at the opposite ends of a piece's pairs in one slot, kept in the record if there is one."""
    L, W = blocks.lam.shape[1], blocks.lam.shape[2]
    width = incoming.size // L
    lam, opposite = blocks.lam.reshape(-1), blocks.opposite.reshape(-1)
    for lane in range(0, width, CHUNK):
        first = row * W + x + lane
        at = run8(opposite, first)
        if at >= 0:
            for b in range(L):
                store8(incoming, b * width + lane, load8(lam, at + b * W))
        else:
            for k in range(CHUNK):
                source = lam[opposite[first + k] :]
                for b in range(L):
                    incoming[b * width + lane + k] = source[b * W]
    if record.inputs.size > 0:
        here = ((record.slot * blocks.lam.shape[0] + row) * W + x) * L
        for lane in range(0, width, CHUNK):
            for k in range(lane, L * width, width):
                store8(record.inputs, here, load8(incoming, k))
                here += CHUNK


@njit(inner=True, **KERNEL)
def potentials(blocks, u, x, sums, common, p, product):
    """u = exp(P), up to a factor, of a piece into p from M of every slot; `common`: the c that all pairs have, or 0."""
    L, W, first = blocks.lam.shape[1], blocks.lam.shape[2], blocks.slot_ptr[u]
    node, count = blocks.node.reshape(-1), blocks.count.reshape(-1)
    width = p.size // L
    if common > 0.0:
        for k in range(product.size):
            product[k] = 1.0
        for row in range(first, blocks.slot_ptr[u + 1]):
            own = sums[row - first]
            if blocks.even[row] > 0.0:
                for k in range(product.size):
                    product[k] *= own[k]
            else:  # an empty slot counts as 1
                for lane in range(0, width, CHUNK):
                    live = mul8(load8(count, row * W + x + lane), spread8(1.0 / common))
                    rest = sub8(spread8(1.0), live)
                    for k in range(lane, L * width, width):
                        store8(product, k, mul8(load8(product, k), fma8(live, load8(own, k), rest)))
        if blocks.own.size > 0:
            _power(blocks, u, x, common, p, product)
            return
        for k in range(product.size):
            product[k] = common * log(product[k])
    else:
        for k in range(product.size):
            product[k] = 0.0
        for row in range(first, blocks.slot_ptr[u + 1]):
            own = sums[row - first]
            for k in range(p.size):
                p[k] = log(own[k])
            for lane in range(0, width, CHUNK):
                c = load8(count, row * W + x + lane)
                for k in range(lane, L * width, width):
                    store8(product, k, fma8(c, load8(p, k), load8(product, k)))
    for lane in range(0, width, CHUNK):
        inverse, peak = load8(blocks.inverse.reshape(-1), u * W + x + lane), spread8(-np.inf)
        at = u * L * W + x + lane
        for k in range(lane, L * width, width):
            s = mul8(add8(load8(node, at), load8(product, k)), inverse)
            store8(p, k, s)
            peak = max8(s, peak)
            at += W
        for k in range(lane, L * width, width):
            store8(p, k, sub8(load8(p, k), peak))
    for k in range(p.size):
        p[k] = exp(p[k])


@njit(inner=True, **KERNEL)
def _power(blocks, u, x, common, p, product):
    """u = exp(theta) product^c of a piece into p, where c is 1 or 1/2; `product` is spent."""
    L, W = blocks.lam.shape[1], blocks.lam.shape[2]
    own, width = blocks.own.reshape(-1), p.size // L
    if common == 0.5:
        for k in range(product.size):
            product[k] = np.sqrt(product[k])
    for a in range(L):
        for lane in range(0, width, CHUNK):
            k = a * width + lane
            store8(p, k, mul8(load8(own, (u * L + a) * W + x + lane), load8(product, k)))


@njit(inner=True, **KERNEL)
def write_messages(blocks, u, x, p, sums):
    """v = u / M of every slot of a piece, scaled to maximum 1; `sums` (M) is spent."""
    L, W, first = blocks.lam.shape[1], blocks.lam.shape[2], blocks.slot_ptr[u]
    lam, width = blocks.lam.reshape(-1), p.size // L
    for row in range(first, blocks.slot_ptr[u + 1]):
        own = sums[row - first]
        for lane in range(0, width, CHUNK):
            peak = spread8(0.0)
            for k in range(lane, L * width, width):
                # 0 / 0 at states that a variable does not have is nan, which stands for 0
                v = max8(div8(load8(p, k), load8(own, k)), spread8(0.0))
                store8(own, k, v)
                peak = max8(v, peak)
            scale, to = div8(spread8(1.0), peak), row * L * W + x + lane
            for k in range(lane, L * width, width):
                store8(lam, to, mul8(load8(own, k), scale))
                to += W


@njit(inner=True, **KERNEL)
def pair_values(blocks, u, x, sums, ends):
    """Sum of c_e log sum_a v(a) M(a) over the pairs of which a piece's lanes are the first end; ends: eight numbers."""
    L, W, first = blocks.lam.shape[1], blocks.lam.shape[2], blocks.slot_ptr[u]
    lam, value, width = blocks.lam.reshape(-1), 0.0, sums.shape[1] // L
    for row in range(first, blocks.slot_ptr[u + 1]):
        own = sums[row - first]
        for begin in range(0, width, CHUNK):
            total = spread8(0.0)
            for a in range(L):
                total = fma8(load8(lam, (row * L + a) * W + x + begin), load8(own, a * width + begin), total)
            store8(ends, 0, total)
            for lane in range(CHUNK):
                if blocks.first[row, x + begin + lane]:
                    value += blocks.count[row, x + begin + lane] * log(ends[lane])
    return value


@njit(inner=True, **KERNEL)
def refresh(belief, u, x, p, most):
    """Marginals of a piece into `belief`; `most` (8): raised to their largest changes."""
    L, W = belief.shape[1], belief.shape[2]
    flat, width = belief.reshape(-1), p.size // L
    change = load8(most, 0)
    for lane in range(0, width, CHUNK):
        total = spread8(0.0)
        for k in range(lane, L * width, width):
            total = add8(total, load8(p, k))
        scale, at = div8(spread8(1.0), total), u * L * W + x + lane
        for k in range(lane, L * width, width):
            v = mul8(load8(p, k), scale)
            moved = sub8(v, load8(flat, at))
            change = max8(max8(moved, sub8(spread8(0.0), moved)), change)
            store8(flat, at, v)
            at += W
    store8(most, 0, change)


@njit(inner=True, **KERNEL)
def take_largest(most):
    """The largest of eight numbers, which are then zero."""
    found = 0.0
    for k in range(CHUNK):
        found, most[k] = max(found, most[k]), 0.0
    return found


#: Doubles of scratch that a piece may use, so few that they stay in the first cache.
SCRATCH = 3072
#: Entries of tables that a piece may read, so few that they stay in the second cache for the products of other ends.
NEAR = 2**16


@njit(allocates=True, **KERNEL)
def sweep(common, blocks, units, changes, damping, write, watch, record, team):
    """`star.sweep` where all blocks are PRODUCT, lanes come in chunks and nothing is damped.

    common: the counting number that all pairs have if a variable's M may be multiplied, else 0.
    """
    L, W = blocks.lam.shape[1], blocks.lam.shape[2]
    widest = most_rows(blocks, units)
    profile, width = blocks.profile, W
    by_weight = profile.fields > 0
    while width > CHUNK and (
        by_weight or ((widest + 3) * L * width > SCRATCH if blocks.shared else widest * L * L * width > NEAR)
    ):
        width //= 2
    p, scratch = np.empty(L * width), np.empty(L * width)
    incoming, sums = np.empty((widest, L * width)), np.empty((widest, L * width))
    ends, most = np.empty(CHUNK), np.zeros(CHUNK)
    far = blocks.sent.size > 0
    for iteration in range(changes.size):
        here = slot_of(record, iteration)
        for k in range(units.size):
            if units[k] == BARRIER:
                wait(team)
                continue
            u = units[k]
            value = 0.0
            for x in range(0, W, width):
                for row in range(blocks.slot_ptr[u], blocks.slot_ptr[u + 1]):
                    s = row - blocks.slot_ptr[u]
                    if by_weight:
                        gather(blocks, row, x, incoming[0], here)
                        at = row * profile.fields * W + x
                        sum_messages(profile, blocks.table, at, W, incoming[0], sums[s], 0, L, CHUNK)
                        continue
                    if blocks.role[row] != RECEIVES or here.inputs.size > 0:
                        gather(blocks, row, x, incoming[s], here)
                    if blocks.role[row] == RECEIVES:
                        _receive(blocks.sent, row, x, sums[s], width)
                    elif blocks.shared:
                        shared_product(blocks.table, blocks.base[row], incoming[s], sums[s], L, width)
                if not (blocks.shared or by_weight):
                    _products(blocks, u, x, incoming, sums, width)
                if not write:
                    value += pair_values(blocks, u, x, sums, ends)
                potentials(blocks, u, x, sums, common, p, scratch)
                if write:
                    write_messages(blocks, u, x, p, sums)
                if far and write:
                    _send(blocks, u, x, width, scratch)
                if watch:
                    refresh(blocks.belief, u, x, p, most)
            if not write:
                blocks.value[u] = value
            if watch:
                changes[iteration] = max(changes[iteration], take_largest(most))
    return -1


@njit(allocates=True, **KERNEL)
def send(start, stop, blocks):
    """The products that rows of blocks start..stop send to the other ends of their pairs, from the current messages."""
    L, W = blocks.lam.shape[1], blocks.lam.shape[2]
    scratch = np.empty(L * CHUNK)
    for u in range(start, stop):
        _send(blocks, u, 0, W, scratch)


@njit(inner=True, **KERNEL)
def _send(blocks, u, x, width, scratch):
    """sum_a psi(a, b) v(a) of a piece's pairs in the slots that send, left at their other ends."""
    L, W = blocks.lam.shape[1], blocks.lam.shape[2]
    sent, lam, opposite = blocks.sent.reshape(-1), blocks.lam.reshape(-1), blocks.opposite.reshape(-1)
    for row in range(blocks.slot_ptr[u], blocks.slot_ptr[u + 1]):
        for lane in range(x, x + width if blocks.role[row] == SENDS else x, CHUNK):
            at, first = chunk_at(blocks, u, row, lane), row * L * W + lane
            product_transposed(blocks.table, at, lam, first, W, scratch, L)
            to = run8(opposite, row * W + lane)
            if to >= 0:
                for b in range(L):
                    store8(sent, to + b * W, load8(scratch, b * CHUNK))
            else:
                for k in range(CHUNK):
                    target = sent[opposite[row * W + lane + k] :]
                    for b in range(L):
                        target[b * W] = scratch[b * CHUNK + k]


@njit(inner=True, **KERNEL)
def _receive(sent, row, x, out, width):
    """The products M of a piece in one slot, as the other ends of its pairs have sent them."""
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
                product(blocks.table, at, incoming[row - first], sums[row - first], lane, width)


@njit(inner=True, **KERNEL)
def product(table, at, incoming, out, x, width):
    """out(a) = sum_b psi(a, b) incoming(b) of eight lanes; reads the table in order."""
    L = out.size // width
    for a in range(L):
        s0, s1 = spread8(0.0), spread8(0.0)
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


@njit(inner=True, **KERNEL)
def shared_product(table, at, incoming, out, L, width):
    """out = psi incoming with one table [a][b] for all lanes: four of its rows stay in the cache for a whole piece."""
    for a in range(0, L - 3, 4):
        for x in range(0, width, CHUNK):
            s0, s1, s2, s3 = spread8(0.0), spread8(0.0), spread8(0.0), spread8(0.0)
            k, j = at + a * L, x
            for _ in range(L):
                e = load8(incoming, j)
                s0 = fma8(spread8(table[k]), e, s0)
                s1 = fma8(spread8(table[k + L]), e, s1)
                s2 = fma8(spread8(table[k + 2 * L]), e, s2)
                s3 = fma8(spread8(table[k + 3 * L]), e, s3)
                k += 1
                j += width
            store4(out, a * width + x, width, s0, s1, s2, s3)
    for a in range(L - L % 4, L):
        for x in range(0, width, CHUNK):
            s0 = spread8(0.0)
            for b in range(L):
                s0 = fma8(spread8(table[at + a * L + b]), load8(incoming, b * width + x), s0)
            store8(out, a * width + x, s0)

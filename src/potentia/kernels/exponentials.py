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
from .machine.simd import CHUNK, add8, div8, fma8, load8, max8, mul8, run8, spread8, store8, sub8, zero8
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
            peak = zero8()
            for k in range(lane, L * width, width):
                # 0 / 0 at states that a variable does not have is nan, which stands for 0
                v = max8(div8(load8(p, k), load8(own, k)), zero8())
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
            total = zero8()
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
        total = zero8()
        for k in range(lane, L * width, width):
            total = add8(total, load8(p, k))
        scale, at = div8(spread8(1.0), total), u * L * W + x + lane
        for k in range(lane, L * width, width):
            v = mul8(load8(p, k), scale)
            moved = sub8(v, load8(flat, at))
            change = max8(max8(moved, sub8(zero8(), moved)), change)
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

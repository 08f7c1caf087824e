"""The star update for two states, where log M matters only by its difference; see `star`."""

from __future__ import annotations

import numpy as np

from .jit import njit
from .record import packed, slot_of
from .simd import CHUNK, below8, div8, fma8, load8, mul8, run8, spread8, store8, sub8, zero8
from .star_blocks import fetch_ahead
from .vecmath import KERNEL, exp, log


@njit(allocates=True, **KERNEL)
def sweep(blocks, units, damping, write, watch, record):
    """`star.sweep` where all blocks are PRODUCT, lanes come in chunks and nothing is damped."""
    W = blocks.lam.shape[2]
    widest = 0
    for u in units:
        widest = max(widest, blocks.slot_ptr[u + 1] - blocks.slot_ptr[u])
    scratch, p = np.empty((2, widest * W)), np.empty((2, W))
    change = 0.0
    for k in range(units.size):
        u = units[k]
        if k + 1 < units.size:
            fetch_ahead(blocks, blocks.lam, units[k + 1])
        _update(blocks, u, write, scratch, p, slot_of(record, k, blocks))
        if watch:
            change = max(change, _refresh(blocks.belief[u], p))
    return change, -1


@njit(**KERNEL)
def _update(blocks, u, write, scratch, p, record):
    """P of a block and, where they are to be written, its messages.

    As the general update of `star`, but for all rows at once: short loops cost more to start than to run.
    """
    W = p.shape[1]
    first, last = blocks.slot_ptr[u], blocks.slot_ptr[u + 1]
    n, base = (last - first) * W, first * W
    low, high = scratch[0], scratch[1]
    lam, count = blocks.lam.reshape(-1), blocks.count.reshape(-1)
    node, inverse = blocks.node.reshape(-1), blocks.inverse.reshape(-1)
    opposite = blocks.opposite.reshape(-1)[base : base + n]
    gather_exp(lam, W, opposite, low, high)
    if record.inputs.size > 0:
        start = record.slot * blocks.count.size + base
        kept = record.inputs[start : start + n]
        for i in range(n):
            kept[i] = packed(low[i], high[i])
    for row in range(first, last):
        for x in range(0, W, CHUNK):
            i = (row - first) * W + x
            e0, e1 = load8(low, i), load8(high, i)
            t00, t01, t10, t11 = _tables(blocks, row, x, W)
            down, up = fma8(t00, e0, mul8(t01, e1)), fma8(t10, e0, mul8(t11, e1))
            store8(low, i, div8(up, down))
            if not write:
                store8(high, i, down)
    if not write:
        blocks.value[u] = _value(blocks, first, last, low, high)
    for i in range(n):
        low[i] = log(low[i])
    for x in range(0, W, CHUNK):
        share = load8(inverse, u * W + x)
        p0, p1 = mul8(load8(node, 2 * u * W + x), share), load8(node, (2 * u + 1) * W + x)
        for i in range(x, x + n, W):
            p1 = fma8(load8(count, base + i), load8(low, i), p1)
        p1 = mul8(p1, share)
        store8(p, x, p0)
        store8(p, W + x, p1)
        if write:
            for i in range(x, x + n, W):
                d = sub8(sub8(p1, load8(low, i)), p0)
                to = 2 * (base + i - x) + x
                store8(lam, to, below8(sub8(zero8(), d)))
                store8(lam, to + W, below8(d))


@njit(inline="always", **KERNEL)
def _tables(blocks, row, x, W):
    """The four entries of the tables of eight lanes."""
    table = blocks.table
    if blocks.shared:
        k = blocks.base[row]
        return spread8(table[k]), spread8(table[k + 1]), spread8(table[k + 2]), spread8(table[k + 3])
    k = 4 * row * W + x
    return load8(table, k), load8(table, k + W), load8(table, k + 2 * W), load8(table, k + 3 * W)


@njit(**KERNEL)
def _value(blocks, first, last, odds, down):
    """sum of c_e log sum_a exp(lam(a)) M(a), with M(0) = down and M(1) = odds * down."""
    W = blocks.lam.shape[2]
    value, i = 0.0, 0
    for row in range(first, last):
        own0, own1, count, ours = blocks.lam[row, 0], blocks.lam[row, 1], blocks.count[row], blocks.first[row]
        for x in range(W):
            if ours[x]:
                value += count[x] * log(down[i] * (exp(own0[x]) + exp(own1[x]) * odds[i]))
            i += 1
    return value


@njit(**KERNEL)
def _refresh(belief, p):
    """Marginals of a block from P into `belief`; returns their largest change."""
    most = 0.0
    for x in range(p.shape[1]):
        d = p[1, x] - p[0, x]
        e = exp(-abs(d))
        share = e / (1.0 + e)
        up = 1.0 - share if d > 0.0 else share
        most = max(most, abs(up - belief[1, x]))
        belief[0, x], belief[1, x] = share if d > 0.0 else 1.0 - share, up
    return most


@njit(inline="always", **KERNEL)
def gather_exp(lam, W, opposite, low, high):
    """exp of the messages at the opposite ends, of states 0 and 1; the larger message is 0, so one exp serves both."""
    upper = lam[W:]
    for x in range(0, opposite.size, CHUNK):
        start = run8(opposite, x)
        if start >= 0:
            store8(low, x, load8(lam, start))
            store8(high, x, load8(upper, start))
        else:
            for i in range(x, x + CHUNK):
                low[i], high[i] = lam[opposite[i]], upper[opposite[i]]
    for i in range(opposite.size):
        e = exp(low[i] + high[i])
        low[i], high[i] = e if low[i] < 0.0 else 1.0, e if high[i] < 0.0 else 1.0


@njit(inline="always", **KERNEL)
def _log_odds(l0, l1, t00, t01, t10, t11):
    """log(M(1) / M(0)) of a binary pair; one of its two messages is 0, so one exp serves both."""
    e = exp(l0 + l1)
    e0, e1 = e if l0 < 0.0 else 1.0, e if l1 < 0.0 else 1.0
    return log((t10 * e0 + t11 * e1) / (t00 * e0 + t01 * e1))


@njit(inline="always", **KERNEL)
def log_odds_row(table, lines, at, row, shared, incoming, logm, s):
    """log M of two states up to a constant, which no message and no marginal depends on: half the work."""
    if shared:
        t00, t01, t10, t11 = table[at], table[at + 1], table[at + 2], table[at + 3]
        for x in range(incoming.shape[1]):
            logm[s, 1, x] = _log_odds(incoming[0, x], incoming[1, x], t00, t01, t10, t11)
    else:
        k = 4 * row
        for x in range(incoming.shape[1]):
            logm[s, 1, x] = _log_odds(
                incoming[0, x], incoming[1, x], lines[k, x], lines[k + 1, x], lines[k + 2, x], lines[k + 3, x]
            )
    for x in range(incoming.shape[1]):
        logm[s, 0, x] = 0.0


@njit(inner=True, **KERNEL)
def absolute_row(blocks, row, incoming, logm):
    """Undo the constant that `log_odds_row` left out: it matters to the value."""
    step = 1 if blocks.shared else incoming.shape[1]
    for x in range(incoming.shape[1]):
        k = blocks.base[row] + (0 if blocks.shared else x)
        missing = log(blocks.table[k] * exp(incoming[0, x]) + blocks.table[k + step] * exp(incoming[1, x]))
        logm[0, x] += missing
        logm[1, x] += missing


@njit(inline="always", **KERNEL)
def write_row(lam, row, p, logm, s):
    """The messages of a binary row in one pass; log M(0) is 0 there."""
    for x in range(p.shape[1]):
        d = (p[1, x] - logm[s, 1, x]) - p[0, x]
        lam[row, 0, x] = -d if d > 0.0 else 0.0
        lam[row, 1, x] = d if d < 0.0 else 0.0

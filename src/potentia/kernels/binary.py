"""The star update for two states, where M matters only by its ratio; see `star` and `exponentials`."""

from __future__ import annotations

import numpy as np

from .machine.jit import njit
from .machine.simd import CHUNK, div8, fma8, load8, max8, min8, mul8, pick8, run8, spread8, store8
from .machine.team import BARRIER, wait
from .record import packed
from .star_blocks import block_of, fetch_ahead, following, most_rows, note_change, slot_of
from .vecmath import KERNEL, exp, log


@njit(allocates=True, **KERNEL)
def sweep(common, blocks, updates, damping, write, watch, changes, record, team):
    """`star_product.sweep` for two states, on exponentials of messages of which the larger is 1."""
    W = blocks.lam.shape[2]
    widest = most_rows(blocks, updates)
    scratch, p = np.empty((2, widest * W)), np.empty((2, W))
    for k in range(updates.size):
        if updates[k] == BARRIER:
            wait(team)
            continue
        u = block_of(blocks, updates[k])
        fetch_ahead(blocks, blocks.lam, following(blocks, updates, k))
        _update(common, blocks, u, write, scratch, p, slot_of(record, blocks, updates[k]))
        if watch:
            note_change(changes, blocks, updates[k], _refresh(blocks.belief[u], p))
    return -1


@njit(**KERNEL)
def _update(common, blocks, u, write, scratch, p, record):
    """u = exp(P), up to a factor, of a block into p and, where they are to be written, its messages.

    All rows are worked on at once: short loops cost more to start than to run.
    """
    W = p.shape[1]
    first, last = blocks.slot_ptr[u], blocks.slot_ptr[u + 1]
    n, base = (last - first) * W, first * W
    odds, high = scratch[0], scratch[1]
    lam, opposite = blocks.lam.reshape(-1), blocks.opposite.reshape(-1)[base : base + n]
    _gather(lam, W, opposite, odds, high)
    if record.inputs.size > 0:
        start = record.slot * blocks.count.size + base
        kept = record.inputs[start : start + n]
        for i in range(n):
            kept[i] = packed(odds[i], high[i])
    for row in range(first, last):
        for x in range(0, W, CHUNK):
            i = (row - first) * W + x
            e0, e1 = load8(odds, i), load8(high, i)
            t00, t01, t10, t11 = _tables(blocks, row, x, W)
            down, up = fma8(t00, e0, mul8(t01, e1)), fma8(t10, e0, mul8(t11, e1))
            store8(odds, i, div8(up, down))
            if not write:
                store8(high, i, down)
    if not write:
        blocks.value[u] = _value(blocks, first, last, odds, high)
    _potentials(common, blocks, u, odds, high, p)
    for x in range(0, W if write else 0, CHUNK):
        u0, u1 = load8(p, x), load8(p, W + x)
        for i in range(x, x + n, W):
            v0, v1 = mul8(u0, load8(odds, i)), u1
            small = div8(min8(v0, v1), max8(v0, v1))
            to = 2 * (base + i - x) + x
            store8(lam, to, pick8(v0, v1, small, spread8(1.0)))
            store8(lam, to + W, pick8(v1, v0, small, spread8(1.0)))


@njit(**KERNEL)
def _potentials(common, blocks, u, odds, scratch, p):
    """u of both states, up to a factor, from M(1) / M(0) of every slot that is not empty."""
    W = p.shape[1]
    base, n = blocks.slot_ptr[u] * W, (blocks.slot_ptr[u + 1] - blocks.slot_ptr[u]) * W
    count, node, inverse = blocks.count.reshape(-1), blocks.node[u], blocks.inverse[u]
    gain, other = p[0], p[1]
    if common > 0.0:
        for x in range(W):
            other[x] = 1.0
        for k in range(0, n, W):
            part, weight = odds[k : k + W], count[base + k : base + k + W]
            for x in range(W):
                other[x] *= part[x] if weight[x] > 0.0 else 1.0
        if blocks.own.size > 0:
            own = blocks.own[u]
            for x in range(W):
                power = np.sqrt(other[x]) if common == 0.5 else other[x]
                gain[x], other[x] = own[0, x], own[1, x] * power
            return
        for x in range(W):
            gain[x] = common * log(other[x])
    else:
        for i in range(n):
            scratch[i] = log(odds[i])
        for x in range(W):
            gain[x] = 0.0
        for k in range(0, n, W):
            part, weight = scratch[k : k + W], count[base + k : base + k + W]
            for x in range(W):
                gain[x] += weight[x] * part[x]
    for x in range(W):
        d = (node[1, x] + gain[x] - node[0, x]) * inverse[x]
        e = exp(-abs(d))
        gain[x], other[x] = e if d > 0.0 else 1.0, 1.0 if d > 0.0 else e


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
    """sum of c_e log sum_a v(a) M(a), with M(0) = down and M(1) = odds * down."""
    W = blocks.lam.shape[2]
    value, i = 0.0, 0
    for row in range(first, last):
        own0, own1, count, ours = blocks.lam[row, 0], blocks.lam[row, 1], blocks.count[row], blocks.first[row]
        for x in range(W):
            if ours[x]:
                value += count[x] * log(down[i] * (own0[x] + own1[x] * odds[i]))
            i += 1
    return value


@njit(**KERNEL)
def _refresh(belief, p):
    """Marginals of a block from u into `belief`; returns their largest change."""
    most = 0.0
    for x in range(p.shape[1]):
        low, high = p[0, x], p[1, x]
        scale = 1.0 / (low + high)
        most = max(most, abs(high * scale - belief[1, x]))
        belief[0, x], belief[1, x] = low * scale, high * scale
    return most


@njit(inline="always", **KERNEL)
def _gather(lam, W, opposite, low, high):
    """Exponentials of messages at the opposite ends, of states 0 and 1."""
    upper = lam[W:]
    for x in range(0, opposite.size, CHUNK):
        start = run8(opposite, x)
        if start >= 0:
            store8(low, x, load8(lam, start))
            store8(high, x, load8(upper, start))
        else:
            for i in range(x, x + CHUNK):
                low[i], high[i] = lam[opposite[i]], upper[opposite[i]]


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

"""The star update for two states, where M matters only by its ratio; see `star` and `star_product`."""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from .machine.jit import njit
from .machine.simd import CHUNK, above8, add8, div8, fma8, load8, max8, min8, mul8, pick8, run8, spread8, store8, sub8
from .machine.team import BARRIER, wait
from .star_blocks import LOG, most_rows, slot_of
from .vecmath import KERNEL, exp, log

#: Smallest exp of a message of two states in a record, far below what matters beside 1, so that its sign is never lost.
_LEAST = 1e-300


@njit(inline="always", **KERNEL)
def _packed(e0, e1):
    """exp of two messages, one of which is 1, as one number: the other, negative where it is that of state 0."""
    return max(e1, _LEAST) if e1 < 1.0 else -max(e0, _LEAST)


@njit(inline="always", **KERNEL)
def keep_two(record, row, n_rows, incoming, product):
    """A row's messages of two states into the record: `packed`, or where tables are logarithms l(1) - l(0)."""
    W = incoming.shape[1]
    start = (record.slot * n_rows + row) * W
    kept = record.inputs[start : start + W]
    for x in range(W):
        kept[x] = _packed(exp(incoming[0, x]), exp(incoming[1, x])) if product else incoming[1, x] - incoming[0, x]


@njit(allocates=True, **KERNEL)
def sweep(common, blocks, units, changes, damping, write, watch, record, team):
    """`star_product.sweep` for two states, on exponentials of messages of which the larger is 1."""
    W = blocks.lam.shape[2]
    widest = most_rows(blocks, units)
    scratch, p = np.empty((2, widest * W)), np.empty((2, W))
    for iteration in range(changes.size):
        here = slot_of(record, iteration)
        for k in range(units.size):
            if units[k] == BARRIER:
                wait(team)
                continue
            u = units[k]
            _update(common, blocks, u, write, scratch, p, here)
            if watch:
                changes[iteration] = max(changes[iteration], _refresh(blocks.belief[u], p))
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
            kept[i] = _packed(odds[i], high[i])
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
    """psi(0, 0), psi(0, 1), psi(1, 0), psi(1, 1) of the pairs in eight lanes."""
    table = blocks.table
    if blocks.shared:
        k = blocks.base[row]
        return spread8(table[k]), spread8(table[k + 1]), spread8(table[k + 2]), spread8(table[k + 3])
    k = 4 * row * W + x
    return load8(table, k), load8(table, k + W), load8(table, k + 2 * W), load8(table, k + 3 * W)


@njit(**KERNEL)
def _value(blocks, first, last, odds, down):
    """A block's part of the objective: sum of c_e log sum_a v(a) M(a), with M(0) = down and M(1) = odds * down."""
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


#: Added to M, which is zero at a state a variable does not have and far above this at all others.
_TINY = 1e-300


class BinaryCotangents(namedtuple("BinaryCotangents", "lam node table shared piece")):
    """lam (R, 1, W), node (B, W), table (R, 3, W): of messages, single scores and tables; R rows, B blocks, W lanes.

    When one table is `shared`, `table` has no rows and its sums are in `shared`, for both sides: block u adds to
    shared[piece[u]], (2, 3), so that threads do not meet there.
    """


@njit(allocates=True, **KERNEL)
def reverse(blocks, cotangents, record, units, iterations, damping, team):
    """Undo `iterations` updates of the blocks `units`, made in this order, which left this record."""
    W = blocks.lam.shape[2]
    lam, count, inverse = cotangents.lam, blocks.count, blocks.inverse
    total, scratch, moved_all = np.empty(W), np.empty((3, W)), np.empty(most_rows(blocks, units) * W)
    moved = scratch[0]
    keep = 1.0 - damping
    for iteration in range(iterations - 1, -1, -1):
        here = slot_of(record, iteration)
        for k in range(units.size - 1, -1, -1):
            if units[k] == BARRIER:
                wait(team)
                continue
            u = units[k]
            first, last = blocks.slot_ptr[u], blocks.slot_ptr[u + 1]
            if blocks.mode[u] != LOG and not blocks.shared and W % CHUNK == 0:
                _pull_block(blocks, cotangents, here, u, keep, damping, moved_all)
                continue
            for x in range(W):
                total[x] = 0.0
            for row in range(first, last):
                for x in range(W):
                    total[x] += keep * lam[row, 0, x]
            for x in range(W):
                total[x] *= inverse[u, x]
            for row in range(first, last):
                for x in range(W):
                    moved[x] = count[row, x] * total[x] - keep * lam[row, 0, x]
                    lam[row, 0, x] *= damping
                _pull_row(blocks, cotangents, here, u, row, scratch)
            for x in range(W):
                cotangents.node[u, x] += total[x]


@njit(allocates=True, **KERNEL)
def reverse_read(blocks, cotangents, record, units, d_belief):
    """Cotangents of the marginals softmax(P) of the blocks `units`, pulled back; otherwise as `reverse`."""
    W = blocks.lam.shape[2]
    belief, count, inverse = blocks.belief, blocks.count, blocks.inverse
    total, scratch = np.empty(W), np.empty((3, W))
    moved = scratch[0]
    for u in units:
        for x in range(W):
            slope = d_belief[u, 1, x] - d_belief[u, 0, x]
            total[x] = inverse[u, x] * belief[u, 0, x] * belief[u, 1, x] * slope
        for row in range(blocks.slot_ptr[u], blocks.slot_ptr[u + 1]):
            for x in range(W):
                moved[x] = count[row, x] * total[x]
            _pull_row(blocks, cotangents, record, u, row, scratch)
        for x in range(W):
            cotangents.node[u, x] += total[x]


@njit(**KERNEL)
def _pull_block(blocks, cotangents, record, u, keep, damping, moved):
    """Undo the update of a block whose pairs have separate tables psi, all rows at once.

    Short loops cost more to start than to run.
    """
    W = blocks.lam.shape[2]
    first, last = blocks.slot_ptr[u], blocks.slot_ptr[u + 1]
    n, base = (last - first) * W, first * W
    lam, table, inputs = cotangents.lam.reshape(-1), blocks.table, record.inputs
    start = record.slot * blocks.count.size + base
    count, inverse = blocks.count.reshape(-1), blocks.inverse.reshape(-1)
    node, sums = cotangents.node.reshape(-1), cotangents.table.reshape(-1)
    opposite = blocks.opposite.reshape(-1)[base : base + n]
    some, rest = spread8(keep), spread8(damping)
    for x in range(0, W, CHUNK):
        s = spread8(0.0)
        for k in range(base + x, base + x + n, W):
            s = fma8(some, load8(lam, k), s)
        s = mul8(s, load8(inverse, u * W + x))
        store8(node, u * W + x, add8(load8(node, u * W + x), s))
        for i in range(x, x + n, W):
            h = load8(lam, base + i)
            store8(moved, i, sub8(mul8(load8(count, base + i), s), mul8(some, h)))
            store8(lam, base + i, mul8(rest, h))
    tiny, one = spread8(_TINY), spread8(1.0)
    for row in range(first, last):
        for x in range(0, W, CHUNK):
            i, k, j = (row - first) * W + x, 4 * row * W + x, 3 * row * W + x
            e, g = load8(inputs, start + i), load8(moved, i)
            e0, e1 = above8(sub8(spread8(0.0), e), one), above8(e, one)
            up0, up1 = mul8(load8(table, k + W), e1), mul8(load8(table, k + 3 * W), e1)
            p0 = div8(up0, add8(fma8(load8(table, k), e0, up0), tiny))
            p1 = div8(up1, add8(fma8(load8(table, k + 2 * W), e0, up1), tiny))
            store8(moved, i, mul8(g, sub8(p1, p0)))
            store8(sums, j, add8(load8(sums, j), g))
            store8(sums, j + W, fma8(g, p0, load8(sums, j + W)))
            store8(sums, j + 2 * W, fma8(g, p1, load8(sums, j + 2 * W)))
    for i in range(n):
        at = opposite[i]
        lane = at & np.uint32(W - 1)
        lam[((at - lane) >> np.uint32(1)) + lane] += moved[i]


@njit(inline="always", **KERNEL)
def _pull_row(blocks, cotangents, record, u, row, scratch):
    """From the cotangents g of a row's log-odds, scratch[0], to its table and to the messages at the opposite ends."""
    W = scratch.shape[1]
    moved, low, high = scratch[0], scratch[1], scratch[2]
    opposite, target = blocks.opposite, cotangents.lam.reshape(-1)
    start = record.slot * blocks.count.size + row * W
    kept = record.inputs[start : start + W]
    table = blocks.table.reshape(-1, 1 if blocks.shared else W)
    k = 4 * row
    if blocks.shared:
        k = 0 if blocks.base[row] == 0 else 4
    if blocks.mode[u] == LOG:
        _conditionals_log(table, k, kept, low, high)
    else:
        _conditionals(table, k, kept, low, high)
    _scatter(opposite, row, target, moved, low, high)
    if blocks.shared:
        sums = cotangents.shared[cotangents.piece[u], 0 if k == 0 else 1]
        for x in range(W):
            sums[0] += moved[x]
            sums[1] += moved[x] * low[x]
            sums[2] += moved[x] * high[x]
        return
    sums = cotangents.table
    for x in range(W):
        sums[row, 0, x] += moved[x]
        sums[row, 1, x] += moved[x] * low[x]
        sums[row, 2, x] += moved[x] * high[x]


@njit(inline="always", **KERNEL)
def _scatter(opposite, row, target, moved, low, high):
    """Add g (p(1|1) - p(1|0)) at the opposite ends; rows of messages hold two states, those of cotangents one."""
    W = moved.size
    for x in range(W):
        # numbers of lanes are powers of two, so this is (at // 2W) W + at % W
        at = opposite[row, x]
        lane = at & np.uint32(W - 1)
        target[((at - lane) >> np.uint32(1)) + lane] += moved[x] * (high[x] - low[x])


@njit(inline="always", **KERNEL)
def _conditionals(table, k, kept, low, high):
    """p(1|0) and p(1|1) from the messages `kept` (packed) and tables psi."""
    if table.shape[1] == 1:
        t00, t01, t10, t11 = table[k, 0], table[k + 1, 0], table[k + 2, 0], table[k + 3, 0]
        for x in range(low.size):
            e0, e1 = -kept[x] if kept[x] < 0.0 else 1.0, kept[x] if kept[x] > 0.0 else 1.0
            low[x] = t01 * e1 / (t00 * e0 + t01 * e1 + _TINY)
            high[x] = t11 * e1 / (t10 * e0 + t11 * e1 + _TINY)
    else:
        for x in range(low.size):
            e0, e1 = -kept[x] if kept[x] < 0.0 else 1.0, kept[x] if kept[x] > 0.0 else 1.0
            up0, up1 = table[k + 1, x] * e1, table[k + 3, x] * e1
            low[x] = up0 / (table[k, x] * e0 + up0 + _TINY)
            high[x] = up1 / (table[k + 2, x] * e0 + up1 + _TINY)


@njit(**KERNEL)
def _conditionals_log(table, k, kept, low, high):
    """p(1|0) and p(1|1) from differences of log-messages and tables of logarithms, -inf included."""
    width = table.shape[1]
    for x in range(low.size):
        l0, l1 = -max(kept[x], 0.0), min(kept[x], 0.0)
        low[x] = _share(table[k, x % width] + l0, table[k + 1, x % width] + l1)
        high[x] = _share(table[k + 2, x % width] + l0, table[k + 3, x % width] + l1)


@njit(inline="always", **KERNEL)
def _share(s0, s1):
    """exp(s1) / (exp(s0) + exp(s1)); 0 where both are -inf."""
    if s1 == -np.inf:
        return 0.0
    return 1.0 / (1.0 + exp(s0 - s1)) if s0 < s1 else exp(s1 - s0) / (1.0 + exp(s1 - s0))


@njit(**KERNEL)
def add_tables(layout, scores, sums, out):
    """Add the cotangents of all pairs' tables, from the sums of both sides, to d_theta `out` in users' layout."""
    for row in range(sums.shape[0]):
        for x in range(sums.shape[2]):
            e = layout.pair[row, x]
            if e >= 0:
                _add_spread(scores, e, layout.side[row, x], sums[row, 0, x], sums[row, 1, x], sums[row, 2, x], out)


@njit(inline="always", **KERNEL)
def _add_spread(scores, e, side, g, g_low, g_high, out):
    """Add the cotangent of one pair's table to `out`; a variable may have a single state."""
    n0, n1 = scores.shapes[e, 0], scores.shapes[e, 1]
    own, other = (n0, n1) if side == 0 else (n1, n0)
    down, right = (n1, 1) if side == 0 else (1, n1)
    at, scale = scores.offset[e], 1.0 / scores.count[e]
    s00, s01, s10, s11 = _spread(g, g_low, g_high)
    out[at] += scale * s00
    if other == 2:
        out[at + right] += scale * s01
    if own == 2:
        out[at + down] += scale * s10
        if other == 2:
            out[at + down + right] += scale * s11


@njit(inline="always", **KERNEL)
def _spread(g, g_low, g_high):
    """Cotangents of theta_e / c_e at (0, 0), (0, 1), (1, 0), (1, 1), from a pair's sums g, g p(1|0) and g p(1|1)."""
    return g_low - g, -g_low, g - g_high, g_high

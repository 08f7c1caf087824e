"""The star update where every pair's table is a weight times a cost of the distance of its labels: O(states) messages.

The score of a pair is -w g(|a - b|) with w >= 0, g(0) = 0 and g(d) = cap for d > reach (Potts, truncated linear and
truncated quadratic). With s = w / c_e, t = exp(-s cap) and v = exp(lam), the message is

    M(a) = t sum_b v(b) + (1 - t) v(a) + sum_{d = 1..reach} (exp(-s g(d)) - t) (v(a - d) + v(a + d))

For g(d) = d the sum over d is a recursion over a in each direction, which costs the same for any reach. A table that
is lost in rounding cannot happen: every term is at most a rounding error of what it is subtracted from times t, and
M(a) is at least t sum_b v(b). Maxima replace sums where `mode` is MAXIMUM.

`PairBlocks.table` holds a few numbers per slot instead of a table, [row][field][lane]: field 0 is t; fields 1..reach
are exp(-s g(d)) - t, or with `linear` fields 1 and 2 are q = exp(-s) and q^(reach + 1). For maxima they are the
logarithms -s cap and -s g(d), or -s.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .machine.jit import njit
from .machine.simd import CHUNK, add8, fma8, load8, max8, mul8, spread8, store8, sub8, zero8
from .machine.team import BARRIER, wait
from .star_blocks import MAXIMUM, fetch_ahead, following, most_rows, slot_of, write_row
from .star_product import SCRATCH, gather, pair_values, potentials, refresh, take_largest, write_messages
from .vecmath import KERNEL, exp, log


class Profile(NamedTuple):
    """The cost g of a distance of labels: cost[d] for d = 0..reach, cap beyond; `linear`: g(d) = d by recursion."""

    linear: Any
    reach: Any
    cost: Any
    cap: Any
    fields: Any


@njit(**KERNEL)
def fill(profile, maximum, pair, weight, count, table):
    """The fields of every slot; those of an empty slot are of weight 0."""
    W = pair.shape[1]
    for row in range(pair.shape[0] - 1):
        for x in range(W):
            e = pair[row, x]
            s = weight[e] / count[e] if e >= 0 else 0.0
            at = row * profile.fields * W + x
            far = -s * profile.cap
            table[at] = far if maximum else exp(far)
            if profile.linear:
                table[at + W] = -s if maximum else exp(-s)
                table[at + 2 * W] = exp(-s * (profile.reach + 1.0))
            else:
                for d in range(1, profile.reach + 1):
                    near = -s * profile.cost[d]
                    table[at + d * W] = near if maximum else exp(near) - table[at]


@njit(allocates=True, **KERNEL)
def sweep(profile, blocks, units, changes, damping, write, watch, record, team):
    """`star.sweep` for tables of this profile; lanes come in chunks."""
    L, W = blocks.lam.shape[1], blocks.lam.shape[2]
    widest = most_rows(blocks, units)
    width = W
    while width > CHUNK and (widest + 3) * L * width > SCRATCH:
        width //= 2
    incoming, p, logm = np.empty(L * width), np.empty(L * width), np.empty((widest, L * width))
    sums = np.empty((2, width))
    for iteration in range(changes.size):
        here = slot_of(record, iteration)
        for k in range(units.size):
            if units[k] == BARRIER:
                wait(team)
                continue
            u = units[k]
            soft = blocks.mode[u] != MAXIMUM
            fetch_ahead(blocks, blocks.lam, following(units, k))
            if not write:
                blocks.value[u] = 0.0
            for x in range(0, W, width):
                _beliefs(profile, blocks, u, x, incoming, logm, p, sums, write, here)
                if write:
                    lag = _write(blocks, u, x, p, logm, damping, width)
                    changes[iteration] = max(changes[iteration], lag)
                if watch and soft:
                    changes[iteration] = max(changes[iteration], _refresh(blocks.belief, u, x, p, sums, L))
                elif watch:
                    changes[iteration] = max(
                        changes[iteration], _refresh_maximum(blocks.belief, u, x, p, sums, L)
                    )
    return -1


@njit(**KERNEL)
def _write(blocks, u, x, p, logm, damping, width):
    """Messages of a piece's slots; how far damping keeps them from their undamped update."""
    L, W, first = blocks.lam.shape[1], blocks.lam.shape[2], blocks.slot_ptr[u]
    lam, lag = blocks.lam.reshape(-1), 0.0
    for row in range(first, blocks.slot_ptr[u + 1]):
        at = row * L * W + x
        if damping == 0.0:
            write_row(lam, at, p, logm[row - first], L, W, width)
        else:
            live = blocks.count[row, x : x + width]
            lag = max(lag, _write_damped(lam, at, p, logm[row - first], damping, live, L, W))
    return lag


@njit(**KERNEL)
def _beliefs(profile, blocks, u, x0, incoming, logm, p, sums, write, record):
    """log M of every slot of a piece of block u, and P = (theta + sum_e c_e log M_e) / C."""
    L, W = blocks.lam.shape[1], blocks.lam.shape[2]
    width, soft = sums.shape[1], blocks.mode[u] != MAXIMUM
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
        at = row * profile.fields * W + x0
        if soft:
            for k in range(incoming.size):
                incoming[k] = exp(incoming[k])
            if record.inputs.size > 0:
                _keep(record, ((record.slot * blocks.lam.shape[0] + row) * W + x0) * L, incoming, L, width)
            for x in range(0, width, CHUNK):
                sum_messages(profile, blocks.table, at + x, W, incoming, out, x, L, width)
            if not write:
                blocks.value[u] += _row_value(blocks, row, x0, out, sums)
            for k in range(out.size):
                out[k] = log(out[k])
        else:
            for x in range(0, width, CHUNK):
                _max_messages(profile, blocks.table, at + x, W, incoming, out, x, L, width)
            if not write:
                blocks.value[u] += _row_maximum(blocks, row, x0, out, width)
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


@njit(inner=True, **KERNEL)
def sum_messages(profile, table, at, stride, v, out, x, L, width):
    """out(a) = sum_b psi(a, b) v(b) of eight lanes; psi is symmetric, so this is its own transpose."""
    t, total = load8(table, at), zero8()
    for k in range(x, L * width, width):
        total = add8(total, load8(v, k))
    far, own = mul8(t, total), sub8(spread8(1.0), t)
    if profile.linear:
        _recur(profile.reach, table, at, stride, v, out, x, L, width, far)
        return
    for k in range(x, L * width, width):
        store8(out, k, fma8(own, load8(v, k), far))
    for d in range(1, min(profile.reach, L - 1) + 1):
        near, gap = load8(table, at + d * stride), d * width
        middle, end = min(gap, L * width - gap), max(gap, L * width - gap)
        for k in range(x, x + middle, width):  # no state d below
            store8(out, k, fma8(near, load8(v, k + gap), load8(out, k)))
        for k in range(x + gap, x + L * width - gap, width):
            store8(out, k, fma8(near, add8(load8(v, k - gap), load8(v, k + gap)), load8(out, k)))
        for k in range(x + end, x + L * width, width):  # no state d above
            store8(out, k, fma8(near, load8(v, k - gap), load8(out, k)))


@njit(**KERNEL)
def _recur(reach, table, at, stride, v, out, x, L, width, far):
    """The same for g(d) = d: sums over d <= reach of q^d v(a - d) and of v(a - d), updated from state to state."""
    t, q, last = load8(table, at), load8(table, at + stride), load8(table, at + 2 * stride)
    own = sub8(spread8(1.0), t)
    f, w = zero8(), zero8()
    gap = (reach + 1) * width
    for a in range(L):
        k = a * width + x
        e = load8(v, k)
        f, w = fma8(q, f, e), add8(w, e)
        if a > reach:
            old = load8(v, k - gap)
            f, w = sub8(f, mul8(last, old)), sub8(w, old)
        store8(out, k, sub8(f, mul8(t, w)))
    f, w = zero8(), zero8()
    for a in range(L - 1, -1, -1):
        k = a * width + x
        e = load8(v, k)
        f, w = fma8(q, f, e), add8(w, e)
        if a + reach + 1 < L:
            old = load8(v, k + gap)
            f, w = sub8(f, mul8(last, old)), sub8(w, old)
        both = add8(load8(out, k), sub8(f, mul8(t, w)))
        store8(out, k, add8(sub8(both, mul8(own, e)), far))


@njit(**KERNEL)
def _max_messages(profile, table, at, stride, v, out, x, L, width):
    """out(a) = max over b of v(b) - s g(|a - b|) of eight lanes."""
    peak = spread8(-np.inf)
    for k in range(x, L * width, width):
        peak = max8(load8(v, k), peak)
    far = add8(peak, load8(table, at))
    if profile.linear:
        step, run = load8(table, at + stride), spread8(-np.inf)
        for k in range(x, L * width, width):
            run = max8(load8(v, k), add8(run, step))
            store8(out, k, run)
        run = spread8(-np.inf)
        for k in range((L - 1) * width + x, -1, -width):
            run = max8(load8(out, k), add8(run, step))
            store8(out, k, max8(run, far))
        return
    for a in range(L):
        k = a * width + x
        s = max8(load8(v, k), far)
        for d in range(1, min(a, profile.reach) + 1):
            s = max8(add8(load8(v, k - d * width), load8(table, at + d * stride)), s)
        for d in range(1, min(L - 1 - a, profile.reach) + 1):
            s = max8(add8(load8(v, k + d * width), load8(table, at + d * stride)), s)
        store8(out, k, s)


@njit(**KERNEL)
def _row_maximum(blocks, row, x0, logm, width):
    """Sum of max_a lam(a) + log M(a) over the pairs of which the piece's lanes are the first end."""
    value = 0.0
    for x in range(width):
        if blocks.first[row, x0 + x]:
            peak = -np.inf
            for a in range(blocks.lam.shape[1]):
                peak = max(peak, blocks.lam[row, a, x0 + x] + logm[a * width + x])
            value += blocks.count[row, x0 + x] * peak
    return value


@njit(**KERNEL)
def _write_damped(lam, at, p, fresh, damping, count, L, W):
    """A step from the old messages towards P - log M; how far those of pairs were apart, as probabilities."""
    lag, width = 0.0, count.size
    for x in range(width):
        peak, top = -np.inf, -np.inf
        for k in range(x, L * width, width):
            fresh[k] = p[k] - fresh[k] if p[k] > -np.inf else -np.inf
            peak = max(peak, fresh[k])
        for a in range(L):
            v, to = fresh[a * width + x] - peak, at + a * W + x
            old = lam[to]
            lag = max(lag, abs(exp(v) - exp(old)) if count[x] > 0.0 else 0.0)
            lam[to] = (1.0 - damping) * v + damping * old if v > -np.inf and old > -np.inf else v
            top = max(top, lam[to])
        for a in range(L):
            lam[at + a * W + x] -= top
    return lag


@njit(**KERNEL)
def _refresh_maximum(belief, u, x0, p, sums, L):
    """P - max P of a piece into `belief`; returns the largest change."""
    width, most = sums.shape[1], 0.0
    for x in range(width):
        peak = -np.inf
        for k in range(x, L * width, width):
            peak = max(peak, p[k])
        for a in range(L):
            v = p[a * width + x] - peak
            moved = abs(v - belief[u, a, x0 + x])
            # both -inf: a state that is and stays forbidden
            most = max(most, moved) if moved == moved else most
            belief[u, a, x0 + x] = v
    return most


@njit(inline="always", **KERNEL)
def _keep(record, here, incoming, L, width):
    """A piece's messages into the record, in the layout of `record.keep_row`."""
    for x in range(0, width, CHUNK):
        for k in range(x, L * width, width):
            store8(record.inputs, here, load8(incoming, k))
            here += CHUNK


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


@njit(allocates=True, **KERNEL)
def sweep_products(profile, common, blocks, units, changes, damping, write, watch, record, team):
    """`parametric.sweep_products` for sums without damping; `common`: the counting number that all pairs have, or 0."""
    L, W = blocks.lam.shape[1], blocks.lam.shape[2]
    widest = most_rows(blocks, units)
    incoming, p, scratch = np.empty(L * CHUNK), np.empty(L * CHUNK), np.empty(L * CHUNK)
    sums, ends, most = np.empty((widest, L * CHUNK)), np.empty(CHUNK), np.zeros(CHUNK)
    for iteration in range(changes.size):
        here = slot_of(record, iteration)
        for k in range(units.size):
            if units[k] == BARRIER:
                wait(team)
                continue
            u = units[k]
            fetch_ahead(blocks, blocks.lam, following(units, k))
            value = 0.0
            for x in range(0, W, CHUNK):
                for row in range(blocks.slot_ptr[u], blocks.slot_ptr[u + 1]):
                    gather(blocks, row, x, incoming, here)
                    at = row * profile.fields * W + x
                    sum_messages(
                        profile, blocks.table, at, W, incoming, sums[row - blocks.slot_ptr[u]], 0, L, CHUNK
                    )
                if not write:
                    value += pair_values(blocks, u, x, sums, ends)
                potentials(blocks, u, x, sums, common, p, scratch)
                if write:
                    write_messages(blocks, u, x, p, sums)
                if watch:
                    refresh(blocks.belief, u, x, p, most)
            if not write:
                blocks.value[u] = value
            if watch:
                changes[iteration] = max(changes[iteration], take_largest(most))
    return -1

"""The reverse of the star update on blocks of lanes: cotangents of messages to cotangents of scores.

In the scaled messages of `star`, l_e = lam_e / c_e = P - log M_e with P = (theta + sum_e c_e log M_e) / C, so with
g_e = dL/dl_e

    dP = sum_e g_e ;  dlogM_e = (c_e / C) dP - g_e ;  dtheta += dP / C
    p(b|a) = psi(a, b) exp(l(b)) / M(a)   from the opposite message l
    d(theta_e / c_e)(a, b) += dlogM(a) p(b|a) ;  dl(b) += sum_a dlogM(a) p(b|a)

Shifts of messages need no term: every cotangent sums to zero over states. Rounding breaks that, and where the c_e of a
variable sum to more than 2 C (Bethe) the error grows with every update, so there the sum is removed (`centre`).
Two states have a separate kernel, `binary.reverse`; `flush` and `add_tables` bring tables' cotangents to users' layout.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from .machine.jit import njit
from .machine.simd import CHUNK, add8, div8, fma8, load8, mul8, spread8, store8, sum8
from .machine.team import BARRIER, wait
from .star_blocks import LOG, PRODUCT, chunk_at, derivatives, product_transposed, slot_of, sum_messages
from .vecmath import KERNEL, exp

#: Added to M, which is zero at states a variable does not have and far above this at all others.
_TINY = 1e-300


class PairCotangents(namedtuple("PairCotangents", "lam node table ratios shared piece slope")):
    """Cotangents of what `PairBlocks` holds, in its layout: lam (R, L, W), node (B, L, W), table.

    A PRODUCT table's cotangent is psi(a, b) times a sum over updates of r(a) exp(l(b)), r = dlogM / M. Adding to
    tables after every update would cost more than all the rest, so the factors r of many updates are kept, `ratios`
    in the layout of the record of exp(l), and both are summed by `flush`. Tables of LOG blocks and of
    single lanes are finished cotangents. When one table is `shared`, block u adds its cotangent, seen from both sides,
    to shared[piece[u]], (2 L L), so that threads do not meet there. slope (R, W): of s = w / c_e of each slot, where
    tables are weights.
    """


@njit(allocates=True, **KERNEL)
def reverse(blocks, cotangents, record, add, units, iterations, damping, centre, team):
    """Undo `iterations` updates of the blocks `units`, made in this order, which left this record.

    The factors r go to the same slot of `ratios`, with `add` on top of what is there.
    """
    L, W = blocks.lam.shape[1], blocks.lam.shape[2]
    scratch = _scratch(L, W)
    keep = 1.0 - damping
    for iteration in range(iterations - 1, -1, -1):
        here = slot_of(record, iteration)
        for k in range(units.size - 1, -1, -1):
            if units[k] == BARRIER:
                wait(team)
                continue
            u = units[k]
            first, last = blocks.slot_ptr[u], blocks.slot_ptr[u + 1]
            if centre:
                _centre(blocks, cotangents.lam, u, scratch)
            _sum_rows(cotangents.lam, first, last, keep, scratch.dp)
            for row in range(first, last):
                _split(blocks, cotangents.lam, u, row, keep, damping, scratch)
                _pull_row(blocks, cotangents, here, add, u, row, scratch)
            _add_node(blocks, cotangents.node, u, scratch.dp)


@njit(allocates=True, **KERNEL)
def reverse_read(blocks, cotangents, record, add, units, d_belief):
    """Cotangents of the marginals softmax(P) of the blocks `units`, pulled back; otherwise as `reverse`."""
    L, W = blocks.lam.shape[1], blocks.lam.shape[2]
    scratch = _scratch(L, W)
    for u in units:
        _back_normalise(blocks.belief, d_belief, u, scratch.dp)
        for row in range(blocks.slot_ptr[u], blocks.slot_ptr[u + 1]):
            _split(blocks, cotangents.lam, u, row, 0.0, 1.0, scratch)
            _pull_row(blocks, cotangents, record, add, u, row, scratch)
        _add_node(blocks, cotangents.node, u, scratch.dp)


class _Scratch(namedtuple("_Scratch", "dp dlog incoming back ratio moved total")):
    pass


@njit(inline="always", **KERNEL)
def _scratch(L, W):
    """Room for the cotangents of one slot, (L, W) each."""
    dp, dlog, incoming = np.empty((L, W)), np.empty((L, W)), np.empty((L, W))
    back, ratio, moved = np.empty((L, W)), np.empty((L, W)), np.empty((L, W))
    return _Scratch(dp, dlog, incoming, back, ratio, moved, np.empty(W))


@njit(inline="always", **KERNEL)
def _centre(blocks, lam, u, scratch):
    """Make the cotangents of a block's messages sum to zero over the states that its variables have."""
    L, W = lam.shape[1], lam.shape[2]
    node, share, mean = blocks.node[u], scratch.dlog, scratch.total
    mean[:] = 0.0
    for a in range(L):
        for x in range(W):
            mean[x] += 1.0 if node[a, x] > -np.inf else 0.0
    for a in range(L):
        for x in range(W):
            share[a, x] = 1.0 / mean[x] if node[a, x] > -np.inf else 0.0
    for row in range(blocks.slot_ptr[u], blocks.slot_ptr[u + 1]):
        mean[:] = 0.0
        for a in range(L):
            for x in range(W):
                mean[x] += share[a, x] * lam[row, a, x]
        for a in range(L):
            for x in range(W):
                lam[row, a, x] -= mean[x] if share[a, x] > 0.0 else 0.0


@njit(inline="always", **KERNEL)
def _sum_rows(lam, first, last, keep, dp):
    """dP = sum of the cotangents of a block's messages."""
    L, W = dp.shape
    dp[:] = 0.0
    for row in range(first, last):
        for a in range(L):
            for x in range(W):
                dp[a, x] += keep * lam[row, a, x]


@njit(inline="always", **KERNEL)
def _split(blocks, lam, u, row, keep, damping, scratch):
    """dlogM of a row; its own cotangents are reduced to what damping passes on."""
    L, W = scratch.dp.shape
    count, inverse, dp, dlog = blocks.count, blocks.inverse, scratch.dp, scratch.dlog
    for a in range(L):
        for x in range(W):
            dlog[a, x] = count[row, x] * inverse[u, x] * dp[a, x] - keep * lam[row, a, x]
            lam[row, a, x] *= damping


@njit(inline="always", **KERNEL)
def _pull_row(blocks, cotangents, record, add, u, row, scratch):
    """From dlogM of a row to its table and the messages at the opposite ends."""
    L, W = scratch.dp.shape
    side = 0 if blocks.base[row] == 0 else 1
    sums = cotangents.shared[cotangents.piece[u], side * L * L : (side + 1) * L * L]
    if blocks.profile.fields > 0:
        _take_row(record, row, blocks.lam.shape[0], scratch.incoming)
        _pull_weights(blocks, cotangents.slope, row, scratch)
    elif blocks.mode[u] != LOG and not blocks.shared and W % CHUNK == 0:
        here = (record.slot * blocks.lam.shape[0] + row) * L * W
        _pull_product(blocks, u, row, record.inputs, cotangents.ratios, here, add, scratch)
    else:
        _take_row(record, row, blocks.lam.shape[0], scratch.incoming)
        if blocks.mode[u] == LOG:
            _pull_log(blocks, cotangents.table, row, scratch, sums)
        elif blocks.shared:
            _pull_shared(blocks.table, blocks.base[row], scratch, sums)
        else:
            _pull_lane(blocks.table, cotangents.table, blocks.base[row], scratch)
    target, opposite, back = cotangents.lam.reshape(-1), blocks.opposite, scratch.back
    for b in range(L):
        out = target[b * W :]
        for x in range(W):
            out[opposite[row, x]] += back[b, x]


@njit(inline="always", **KERNEL)
def _add_node(blocks, node, u, dp):
    """node += inverse * dp: the cotangent of the variables' scores of block u."""
    inverse = blocks.inverse
    for a in range(dp.shape[0]):
        for x in range(dp.shape[1]):
            node[u, a, x] += inverse[u, x] * dp[a, x]


@njit(inline="always", **KERNEL)
def _back_normalise(belief, d_belief, u, dp):
    """dp = mu * (g - g . mu): cotangents g of marginals pulled back through the softmax [MBL-tpami sec. 7]."""
    L, W = dp.shape
    mean = np.zeros(W)
    for a in range(L):
        for x in range(W):
            mean[x] += belief[u, a, x] * d_belief[u, a, x]
    for a in range(L):
        for x in range(W):
            dp[a, x] = belief[u, a, x] * (d_belief[u, a, x] - mean[x])


@njit(**KERNEL)
def _add_outer(left, right, sums):
    """sums(a, b) += sum over lanes of left(a) right(b)."""
    L, W = left.shape
    for a in range(L):
        for b in range(L):
            s = spread8(0.0)
            x = 0
            if W % CHUNK == 0:
                for x in range(0, W, CHUNK):
                    s = fma8(load8(left, a * W + x), load8(right, b * W + x), s)
                sums[a * L + b] += sum8(s)
            else:
                sums[a * L + b] += left[a, 0] * right[b, 0]


@njit(**KERNEL)
def _pull_weights(blocks, d_slope, row, scratch):
    """Pull dlogM back where tables are weights: dl(b) = exp(l(b)) sum_a psi(a, b) r(a) and ds = sum_a r dM/ds."""
    L, W = scratch.dp.shape
    profile, table, slope = blocks.profile, blocks.table, d_slope.reshape(-1)
    v, r, back = scratch.incoming.reshape(-1), scratch.ratio.reshape(-1), scratch.back.reshape(-1)
    dlog, d_m, tiny = scratch.dlog.reshape(-1), scratch.moved.reshape(-1), spread8(_TINY)
    for x in range(0, W, CHUNK):
        at = row * profile.fields * W + x
        sum_messages(profile, table, at, W, v, r, x, L, W)
        derivatives(profile, table, at, W, v, d_m, x, L)
        s = load8(slope, row * W + x)
        for k in range(x, L * W, W):
            q = div8(load8(dlog, k), add8(load8(r, k), tiny))
            store8(r, k, q)
            s = fma8(q, load8(d_m, k), s)
        store8(slope, row * W + x, s)
        sum_messages(profile, table, at, W, r, back, x, L, W)
        for k in range(x, L * W, W):
            store8(back, k, mul8(load8(back, k), load8(v, k)))


@njit(**KERNEL)
def _pull_shared(table, at, scratch, sums):
    """Pull dlogM of a row back through one table [a][b] for all lanes, to its incoming messages and to `sums`."""
    L, W = scratch.dp.shape
    incoming, dlog, back, ratio, total = (
        scratch.incoming, scratch.dlog, scratch.back, scratch.ratio, scratch.total,
    )  # fmt: skip
    back[:] = 0.0
    for a in range(L):
        total[:] = _TINY
        for b in range(L):
            t = table[at + a * L + b]
            for x in range(W):
                total[x] += t * incoming[b, x]
        for x in range(W):
            ratio[a, x] = dlog[a, x] / total[x]
        for b in range(L):
            t = table[at + a * L + b]
            for x in range(W):
                back[b, x] += t * ratio[a, x]
    for b in range(L):
        for x in range(W):
            back[b, x] *= incoming[b, x]
    _add_outer(ratio, incoming, sums)


@njit(**KERNEL)
def _pull_lane(table, d_table, at, scratch):
    """Pull dlogM of a row back through its table, in a block of a single lane."""
    L = scratch.dp.shape[0]
    incoming, dlog, back = scratch.incoming, scratch.dlog, scratch.back
    back[:] = 0.0
    for a in range(L):
        total = _TINY
        for b in range(L):
            total += table[at + a * L + b] * incoming[b, 0]
        r = dlog[a, 0] / total
        for b in range(L):
            moved = table[at + a * L + b] * incoming[b, 0] * r
            back[b, 0] += moved
            d_table[at + a * L + b] += moved


@njit(**KERNEL)
def _pull_product(blocks, u, row, inputs, ratios, here, add, scratch):
    """Pull dlogM of a row back through its tables, by chunks of lanes, so that a table is read from memory once."""
    L, W = scratch.dp.shape
    table = blocks.table
    dlog, back, ratio, pulled = scratch.dlog, scratch.back, scratch.ratio, scratch.moved
    for x in range(0, W, CHUNK):
        k = at = chunk_at(blocks, u, row, x)
        for a in range(L):
            s0, s1 = spread8(_TINY), spread8(0.0)
            j = here
            for _ in range(L // 2):
                s0 = fma8(load8(table, k), load8(inputs, j), s0)
                s1 = fma8(load8(table, k + CHUNK), load8(inputs, j + CHUNK), s1)
                k += 2 * CHUNK
                j += 2 * CHUNK
            if L % 2 == 1:
                s0 = fma8(load8(table, k), load8(inputs, j), s0)
                k += CHUNK
            r = div8(load8(dlog, a * W + x), add8(s0, s1))
            store8(ratio, a * CHUNK, r)
            if add:
                r = add8(load8(ratios, here + a * CHUNK), r)
            store8(ratios, here + a * CHUNK, r)
        product_transposed(table, at, ratio, 0, CHUNK, pulled, L)
        for b in range(L):
            store8(back, b * W + x, mul8(load8(pulled, b * CHUNK), load8(inputs, here + b * CHUNK)))
        here += L * CHUNK


@njit(allocates=True, **KERNEL)
def _pull_log(blocks, d_table, row, scratch, sums):
    """Pull dlogM of a row back through any tables, -inf included: conditionals by log-sum-exp."""
    L, W = scratch.dp.shape
    incoming, dlog, back, ratio, total = (
        scratch.incoming, scratch.dlog, scratch.back, scratch.ratio, scratch.total,
    )  # fmt: skip
    width = 1 if blocks.shared else W
    at = blocks.base[row]
    entries = blocks.table[at : at + L * L * width].reshape(L * L, width)
    back[:] = 0.0
    for a in range(L):
        peak = np.full(W, -np.inf)
        for b in range(L):
            for x in range(W):
                ratio[b, x] = entries[a * L + b, x % width] + incoming[b, x]
                peak[x] = max(peak[x], ratio[b, x])
        total[:] = 0.0
        for b in range(L):
            for x in range(W):
                ratio[b, x] = exp(ratio[b, x] - (peak[x] if peak[x] > -np.inf else 0.0))
                total[x] += ratio[b, x]
        for b in range(L):
            for x in range(W):
                moved = dlog[a, x] * ratio[b, x] / total[x] if total[x] > 0.0 else 0.0
                back[b, x] += moved
                if blocks.shared:
                    sums[a * L + b] += moved
                else:
                    d_table[at + (a * L + b) * W + x] += moved


@njit(allocates=True, **KERNEL)
def flush(start, stop, layout, scores, blocks, ratios, inputs, first, last, out):
    """Add psi times the sums of the factors in slots first..last to d_theta `out`, of the pairs of blocks start..stop.

    The two ends of a pair are in blocks of different groups, so that threads may share the blocks of one group unless
    pairs share tables.
    """
    L, W = layout.n_states, layout.pair.shape[1]
    sums = np.empty(L * L * CHUNK)
    shaped = sums.reshape(L, L, CHUNK)
    for u in range(start, stop):
        if blocks.mode[u] != PRODUCT:
            continue
        for row in range(layout.slot_ptr[u], layout.slot_ptr[u + 1]):
            for x in range(0, W, CHUNK):
                here = first * blocks.lam.size + row * L * W + x * L
                _sum_factors(ratios, inputs, last - first, here, blocks.lam.size, L, sums)
                at = chunk_at(blocks, u, row, x)
                for k in range(0, L * L * CHUNK, CHUNK):
                    store8(sums, k, mul8(load8(sums, k), load8(blocks.table, at + k)))
                for lane in range(CHUNK):
                    e = layout.pair[row, x + lane]
                    if e >= 0:
                        _add_lane(scores, e, layout.side[row, x + lane], shaped, lane, out)


@njit(inline="always", **KERNEL)
def _sum_factors(ratios, inputs, used, here, stride, L, sums):
    """sums(a, b) = sum over the kept updates of r(a) exp(l(b)), of eight lanes."""
    for a in range(L):
        for b in range(L):
            s, i, j = spread8(0.0), here + a * CHUNK, here + b * CHUNK
            for _ in range(used):
                s = fma8(load8(ratios, i), load8(inputs, j), s)
                i += stride
                j += stride
            store8(sums, (a * L + b) * CHUNK, s)


@njit(**KERNEL)
def add_tables(layout, scores, blocks, d_table, out):
    """Add the cotangents kept in tables, of both sides of every pair, to d_theta `out` in users' layout."""
    L, W = layout.n_states, layout.pair.shape[1]
    for u in range(blocks.mode.size):
        if blocks.mode[u] == PRODUCT and W % CHUNK == 0:
            continue  # `flush` does those
        for row in range(layout.slot_ptr[u], layout.slot_ptr[u + 1]):
            part = d_table[row * L * L * W : (row + 1) * L * L * W]
            shaped = part.reshape(L, L, W)
            for x in range(W):
                e = layout.pair[row, x]
                if e >= 0:
                    _add_lane(scores, e, layout.side[row, x], shaped, x, out)


@njit(inline="always", **KERNEL)
def _add_lane(scores, e, side, sums, x, out):
    """Add the table in lane x of `sums` (L, L, lanes), seen from its `side`, over c_e to one pair's table in `out`."""
    n0, n1 = scores.shapes[e, 0], scores.shapes[e, 1]
    scale = 1.0 / scores.count[e]
    entries = out[scores.offset[e] : scores.offset[e] + n0 * n1].reshape(n0, n1)
    if side == 0:
        for a in range(n0):
            for b in range(n1):
                entries[a, b] += scale * sums[a, b, x]
    else:
        for b in range(n0):
            for a in range(n1):
                entries[b, a] += scale * sums[a, b, x]


@njit(**KERNEL)
def reverse_pairs(scores, position, marginals, d_marginals, start, lam, out):
    """Cotangents of pair marginals softmax(b_e / c_e) pulled back to messages `lam` and tables `out`.

    lam (R, L, W), or (R, 1, W) of two states, of which it holds the second.
    """
    W, left_out = lam.shape[2], 1 if lam.shape[1] == 1 else 0
    for e in range(position.shape[0]):
        n0, n1 = scores.shapes[e, 0], scores.shapes[e, 1]
        mu = marginals[start[e] : start[e] + n0 * n1]
        d_mu = d_marginals[start[e] : start[e] + n0 * n1]
        mean = 0.0
        for k in range(n0 * n1):
            mean += mu[k] * d_mu[k]
        for a in range(n0):
            for b in range(n1):
                k = a * n1 + b
                moved = mu[k] * (d_mu[k] - mean)
                out[scores.offset[e] + k] += moved / scores.count[e]
                if a >= left_out:
                    lam[position[e, 0] // W, a - left_out, position[e, 0] % W] += moved
                if b >= left_out:
                    lam[position[e, 1] // W, b - left_out, position[e, 1] % W] += moved


@njit(inner=True, **KERNEL)
def _take_row(record, row, n_rows, incoming):
    """A row's messages from the record: the reverse of `keep_row`."""
    L, W = incoming.shape
    width = CHUNK if W % CHUNK == 0 else 1
    here = (record.slot * n_rows + row) * L * W
    for x in range(0, W, width):
        for a in range(L):
            for lane in range(width):
                incoming[a, x + lane] = record.inputs[here]
                here += 1

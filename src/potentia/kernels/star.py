"""The star update for graphs of variables and pairs, on blocks of lanes.

Variables of one block touch no common pair, so a block is updated as a whole, lane by lane: all inner loops run
over lanes (or states x lanes) at unit stride. Row r of a block is its s-th slot: the s-th neighbour of every lane.
Messages are kept divided by their pair's counting number, lam / c_e, and shifted to have maximum 0; with
    P(a) = Q(a) / C   and   log M_e(a) = m_e(a) / c_e
the update is  Q = theta + sum_e c_e log M_e,  lam_e = P - log M_e  for every slot e.

Each block computes log M in one of three ways, with the same result up to rounding:
PRODUCT  M = psi . exp(lam) with psi = exp(theta_e / c_e - max): tables that are finite and of bounded range;
LOG      log-sum-exp over theta_e / c_e + lam: anything, -inf included;
MAXIMUM  max instead of log-sum-exp: the epsilon = 0 limit.
"""

from __future__ import annotations

import numpy as np

from . import binary
from .machine.jit import njit
from .machine.simd import CHUNK, add8, load8, max8, spread8, store8
from .machine.team import BARRIER, wait
from .star_blocks import LOG, MAXIMUM, PRODUCT, chunk_at, most_rows, slot_of, sum_messages
from .star_product import product, shared_product
from .vecmath import KERNEL, exp, log


@njit(allocates=True, **KERNEL)
def sweep(blocks, units, changes, damping, write, watch, record, team):
    """Update the blocks `units` in this order, as many times over as `changes` has entries; see `Team` for barriers.

    Without `write` only beliefs are refreshed. changes: raised to the largest change of a belief in each iteration.
    Returns a block in which some variable has no state left (-1: none). Without `watch` the beliefs of PRODUCT blocks,
    where no variable loses its last state, are left as they were: no message depends on them.
    """
    L, W = blocks.lam.shape[1], blocks.lam.shape[2]
    widest = most_rows(blocks, units)
    incoming, sums, p = np.empty((L, W)), np.empty((L, W)), np.empty((L, W))
    logm = np.empty((widest, L, W))
    peak, total, moves = np.empty(W), np.empty(W), np.empty(W)
    empty = -1
    for iteration in range(changes.size):
        here = slot_of(record, iteration)
        for k in range(units.size):
            if units[k] == BARRIER:
                wait(team)
                continue
            u = units[k]
            _beliefs(blocks, u, incoming, sums, logm, p, peak, total, here, write)
            if write:
                lag = _write_messages(blocks, u, p, logm, peak, damping)
                changes[iteration] = max(changes[iteration], lag)
            if not watch and blocks.mode[u] == PRODUCT:
                continue
            changes[iteration] = max(changes[iteration], _refresh_belief(blocks, u, p, peak, total, moves))
            for x in range(W):
                if peak[x] == -np.inf:
                    empty = u
    return empty


@njit(inline="always", **KERNEL)
def _beliefs(blocks, u, incoming, sums, logm, p, peak, total, record, write):
    """log M of every slot of block u, and P = (theta + sum_e c_e log M_e) / C."""
    L, W = p.shape
    lam, opposite, count, even = blocks.lam.reshape(-1), blocks.opposite, blocks.count, blocks.even
    inverse, node = blocks.inverse, blocks.node
    flat_incoming, flat_logm = incoming.reshape(1, L * W), logm.reshape(logm.shape[0], L * W)
    lines = blocks.table.reshape(-1, 1 if blocks.shared else W)
    first = blocks.slot_ptr[u]
    blocks.value[u] = 0.0
    for a in range(L):
        for x in range(W):
            p[a, x] = node[u, a, x]
    for row in range(first, blocks.slot_ptr[u + 1]):
        s = row - first
        for b in range(L):
            source = lam[b * W :]
            for x in range(W):
                incoming[b, x] = source[opposite[row, x]]
        if L == 2 and record.inputs.size > 0:
            binary.keep_two(record, row, blocks.lam.shape[0], incoming, blocks.mode[u] == PRODUCT)
        if blocks.mode[u] == PRODUCT and L == 2:
            binary.log_odds_row(blocks.table, lines, blocks.base[row], row, blocks.shared, incoming, logm, s)
        elif blocks.mode[u] == PRODUCT:
            _exp_row(flat_incoming, 0)
            if record.inputs.size > 0:
                _keep_row(record, row, blocks.lam.shape[0], flat_incoming[0], L, W)
            _product(blocks, u, row, flat_incoming[0], flat_logm[s])
            _log_row(flat_logm, s)
        else:
            if record.inputs.size > 0 and L > 2:
                _keep_row(record, row, blocks.lam.shape[0], flat_incoming[0], L, W)
            _log_or_max(blocks, row, blocks.mode[u] == LOG, incoming, sums, logm, s, peak, total)
        if not write:
            _add_value(blocks, u, row, logm[s], incoming)
        if even[row] > 0.0:
            for a in range(L):
                for x in range(W):
                    p[a, x] += even[row] * logm[s, a, x]
        else:
            for a in range(L):
                for x in range(W):
                    p[a, x] += count[row, x] * logm[s, a, x]
    for a in range(L):
        for x in range(W):
            p[a, x] *= inverse[u, x]


@njit(**KERNEL)
def _add_value(blocks, u, row, logm, incoming):
    """Add c_e log sum_a exp(lam(a) + log M(a)) (MAXIMUM: the largest) of pairs that this row is the first end of."""
    L, W = logm.shape
    if L == 2 and blocks.mode[u] == PRODUCT:
        binary.absolute_row(blocks, row, incoming, logm)
    for x in range(W):
        if blocks.count[row, x] > 0.0 and blocks.first[row, x]:
            peak, total = -np.inf, 0.0
            for a in range(L):
                peak = max(peak, blocks.lam[row, a, x] + logm[a, x])
            if peak > -np.inf and blocks.mode[u] != MAXIMUM:
                for a in range(L):
                    total += exp(blocks.lam[row, a, x] + logm[a, x] - peak)
                peak += log(total)
            blocks.value[u] += blocks.count[row, x] * peak


@njit(inline="always", **KERNEL)
def _exp_row(values, r):
    """exp of row r in place."""
    for k in range(values.shape[1]):
        values[r, k] = exp(values[r, k])


@njit(inline="always", **KERNEL)
def _log_row(values, r):
    """log of row r in place."""
    for k in range(values.shape[1]):
        values[r, k] = log(values[r, k])


@njit(**KERNEL)
def _product(blocks, u, row, incoming, out):
    """out(a) = sum_b psi(a, b) incoming(b) for every lane; reads each chunk's table in order."""
    L, W, table, at = blocks.lam.shape[1], blocks.lam.shape[2], blocks.table, blocks.base[row]
    if blocks.profile.fields > 0:
        for x in range(0, W, CHUNK):
            sum_messages(blocks.profile, table, row * blocks.profile.fields * W + x, W, incoming, out, x, L, W)
    elif W % CHUNK != 0:  # a single lane
        for a in range(L):
            total = 0.0
            for b in range(L):
                total += table[at + a * L + b] * incoming[b]
            out[a] = total
    elif blocks.shared:
        shared_product(table, at, incoming, out, L, W)
    else:
        for x in range(0, W, CHUNK):
            product(table, chunk_at(blocks, u, row, x), incoming, out, x, W)


@njit(**KERNEL)
def _log_or_max(blocks, row, soft, incoming, sums, out, s, peak, total):
    """out(a) = log-sum-exp (or max) over b of table(a, b) + incoming(b); -inf where every b is forbidden.

    An empty slot gives 0: a shared table that forbids a whole row would give it -inf, and c_e log M = 0 * -inf is nan.
    """
    L, W = incoming.shape
    if blocks.profile.fields > 0:
        sent, fresh, fields = incoming.reshape(-1), out[s].reshape(-1), blocks.profile.fields
        for x in range(0, W, CHUNK):
            _max_messages(blocks.profile, blocks.table, row * fields * W + x, W, sent, fresh, x, L, W)
        return
    at = blocks.base[row]
    entries = blocks.table[at : at + L * L * (1 if blocks.shared else W)].reshape(L * L, -1)
    for a in range(L):
        for b in range(L):
            k = a * L + b
            if blocks.shared:
                for x in range(W):
                    sums[b, x] = entries[k, 0] + incoming[b, x]
            else:
                for x in range(W):
                    sums[b, x] = entries[k, x] + incoming[b, x]
        _peak_of(sums, peak)
        if not soft:
            for x in range(W):
                out[s, a, x] = peak[x]
            continue
        for x in range(W):
            total[x] = 0.0
        for b in range(L):
            for x in range(W):
                total[x] += exp(sums[b, x] - (peak[x] if peak[x] > -np.inf else 0.0))
        for x in range(W):
            out[s, a, x] = peak[x] + log(total[x]) if peak[x] > -np.inf else -np.inf
    if blocks.shared and blocks.even[row] == 0.0:
        for a in range(L):
            for x in range(W):
                out[s, a, x] = out[s, a, x] if blocks.count[row, x] > 0.0 else 0.0


@njit(inline="always", **KERNEL)
def _write_messages(blocks, u, p, logm, peak, damping):
    """lam_e = P - log M_e, shifted to maximum 0; -inf where P is, so that dead states stay dead for everyone.

    Returns how far damping keeps the messages from that.
    """
    L, W = p.shape
    lam, first, lag = blocks.lam, blocks.slot_ptr[u], 0.0
    for row in range(first, blocks.slot_ptr[u + 1]):
        fresh = logm[row - first]
        for x in range(W):
            peak[x] = -np.inf
        for a in range(L):
            for x in range(W):
                v = p[a, x] - fresh[a, x] if p[a, x] > -np.inf else -np.inf
                fresh[a, x] = v
                peak[x] = v if v > peak[x] else peak[x]
        if damping == 0.0:
            for a in range(L):
                for x in range(W):
                    lam[row, a, x] = fresh[a, x] - peak[x]
        else:
            lag = max(lag, _damp(lam, row, fresh, peak, damping, blocks.count))
    return lag


@njit(**KERNEL)
def _damp(lam, row, fresh, peak, damping, count):
    """A step from the old messages towards the fresh ones; how far they were apart, as probabilities.

    Damped messages still move after marginals no longer change, so the distance is part of the residual; that of an
    empty slot, whose count is 0, is not.
    """
    lag = 0.0
    for x in range(fresh.shape[1]):
        top = -np.inf
        for a in range(fresh.shape[0]):
            v, old = fresh[a, x] - peak[x], lam[row, a, x]
            lag = max(lag, abs(exp(v) - exp(old)) if count[row, x] > 0.0 else 0.0)
            lam[row, a, x] = (1.0 - damping) * v + damping * old if v > -np.inf and old > -np.inf else v
            top = max(top, lam[row, a, x])
        for a in range(fresh.shape[0]):
            lam[row, a, x] -= top
    return lag


@njit(inner=True, **KERNEL)
def _keep_row(record, row, n_rows, incoming, L, W):
    """A row's messages, [state][lane], into the record."""
    here = (record.slot * n_rows + row) * L * W
    if W % CHUNK != 0:  # a single lane
        for a in range(L):
            record.inputs[here + a] = incoming[a]
        return
    for x in range(0, W, CHUNK):
        for k in range(x, L * W, W):
            store8(record.inputs, here, load8(incoming, k))
            here += CHUNK


@njit(inline="always", **KERNEL)
def _peak_of(values, peak):
    """peak(lane) = max over states of a row's values."""
    for x in range(peak.size):
        peak[x] = values[0, x]
    for a in range(1, values.shape[0]):
        for x in range(peak.size):
            peak[x] = values[a, x] if values[a, x] > peak[x] else peak[x]


@njit(inline="always", **KERNEL)
def _refresh_belief(blocks, u, p, peak, total, moves):
    """Marginals softmax(P) of block u (MAXIMUM: P - max P) into `belief`; returns their largest change."""
    L, W = p.shape
    belief = blocks.belief
    _peak_of(p, peak)
    for x in range(W):
        total[x] = 0.0
    if blocks.mode[u] == MAXIMUM:
        for a in range(L):
            for x in range(W):
                p[a, x] -= peak[x]
        for x in range(W):
            total[x] = 1.0
    else:
        for a in range(L):
            for x in range(W):
                v = exp(p[a, x] - peak[x])
                p[a, x] = v
                total[x] += v
    for x in range(W):
        total[x] = 1.0 / total[x]
    for x in range(W):
        moves[x] = 0.0
    for a in range(L):
        for x in range(W):
            v = p[a, x] * total[x]
            moved = abs(v - belief[u, a, x])
            belief[u, a, x] = v
            moves[x] = moved if moved > moves[x] else moves[x]
    most = 0.0
    for x in range(W):
        most = max(most, moves[x])
    return most


@njit(inner=True, **KERNEL)
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

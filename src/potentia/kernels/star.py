"""The star update for graphs of variables and pairs, on blocks of lanes.

Variables of one block touch no common pair, so a block is updated as a whole, lane by lane: all inner loops run
over lanes (or states x lanes) at unit stride. Row r of a block is its s-th slot: the s-th neighbour of every lane.
Messages are kept divided by their pair's counting number, lam / c_e, and shifted to have maximum 0; with
    P(a) = Q(a) / C   and   log M_e(a) = m_e(a) / c_e
the update of MATH (star update) is  Q = theta + sum_e c_e log M_e,  lam_e = P - log M_e  for every slot e.

Each block computes log M in one of three ways, with the same result up to rounding:
PRODUCT  M = psi . exp(lam) with psi = exp(theta_e / c_e - max): tables that are finite and of bounded range;
LOG      log-sum-exp over theta_e / c_e + lam: anything, -inf included;
MAXIMUM  max instead of log-sum-exp: the epsilon = 0 limit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from .simd import CHUNK, add8, fma8, load8, spread8, store8, zero8
from .vecmath import KERNEL, exp, log

PRODUCT, LOG, MAXIMUM = 0, 1, 2

#: Largest log-range of a table in PRODUCT mode: what exp(-600) drops is below 1e-40 of what it keeps.
SAFE_RANGE = 600.0


class PairBlocks(NamedTuple):
    """Everything a sweep reads and writes; B blocks of W lanes, R rows, L states.

    slot_ptr (B + 1): first row of each block. opposite (R, W): flat position in `lam` of state 0 of the message
    at the other end of the pair. count (R, W): c_e, 0 in an empty slot. inverse (B, W): 1 / C. node (B, L, W):
    scores. table: tables, row r at base[r]; chunked as [lane chunk][a][b][8] in PRODUCT blocks, [a][b][lane] in
    others, [a][b] when `shared`. mode (B). lam (R, L, W), belief (B, L, W): marginals (MAXIMUM: P - max P).
    """

    slot_ptr: Any
    opposite: Any
    count: Any
    inverse: Any
    node: Any
    table: Any
    base: Any
    shared: Any
    mode: Any
    lam: Any
    belief: Any


@njit(**KERNEL)
def sweep(blocks, units, damping, write):
    """Update the blocks listed in `units` one after another; without `write` only beliefs are refreshed.

    Returns the largest change of a belief and a block in which some variable has no state left (-1: none).
    """
    L, W = blocks.lam.shape[1], blocks.lam.shape[2]
    widest = 0
    for u in units:
        widest = max(widest, blocks.slot_ptr[u + 1] - blocks.slot_ptr[u])
    incoming, sums, p = np.empty((L, W)), np.empty((L, W)), np.empty((L, W))
    logm = np.empty((widest, L, W))
    peak, total = np.empty(W), np.empty(W)
    change, empty = 0.0, -1
    for u in units:
        _gather_beliefs(blocks, u, incoming, sums, logm, p, peak, total)
        if write:
            _write_messages(blocks, u, p, logm, peak, damping)
        change = max(change, _refresh_belief(blocks, u, p, peak, total))
        for x in range(W):
            if peak[x] == -np.inf:
                empty = u
    return change, empty


@njit(**KERNEL)
def greedy(blocks, priority, reach_ptr, reach, n_updates, damping):
    """`n_updates` block updates, always of the block whose surroundings changed most since its own last update.

    `priority` (B) is kept between calls; reach_ptr, reach: CSR of the blocks adjacent to each block.
    """
    unit = np.empty(1, dtype=np.int64)
    worst, empty = 0.0, -1
    for _ in range(n_updates):
        unit[0] = np.argmax(priority)
        change, none_left = sweep(blocks, unit, damping, True)
        priority[unit[0]] = 0.0
        for k in range(reach_ptr[unit[0]], reach_ptr[unit[0] + 1]):
            priority[reach[k]] = max(priority[reach[k]], change)
        worst, empty = max(worst, change), max(empty, none_left)
    return worst, empty


@njit(**KERNEL)
def _gather_beliefs(blocks, u, incoming, sums, logm, p, peak, total):
    """log M of every slot of block u, and P = (theta + sum_e c_e log M_e) / C."""
    L, W = p.shape
    flat = blocks.lam.reshape(-1)
    first = blocks.slot_ptr[u]
    p[:] = blocks.node[u]
    for s in range(blocks.slot_ptr[u + 1] - first):
        row = first + s
        for b in range(L):
            source = flat[b * W :]
            for x in range(W):
                incoming[b, x] = source[blocks.opposite[row, x]]
        if blocks.mode[u] == PRODUCT:
            _exp_all(incoming.reshape(-1))
            _product(blocks, row, incoming.reshape(-1), logm[s].reshape(-1), L, W)
            _log_all(logm[s].reshape(-1))
        else:
            _log_or_max(blocks, row, blocks.mode[u] == LOG, incoming, sums, logm[s], peak, total)
        for a in range(L):
            for x in range(W):
                p[a, x] += blocks.count[row, x] * logm[s, a, x]
    for a in range(L):
        for x in range(W):
            p[a, x] *= blocks.inverse[u, x]


@njit(**KERNEL)
def _exp_all(values):
    for k in range(values.size):
        values[k] = exp(values[k])


@njit(**KERNEL)
def _log_all(values):
    for k in range(values.size):
        values[k] = log(values[k])


@njit(**KERNEL)
def _product(blocks, row, incoming, out, L, W):
    """out(a) = sum_b psi(a, b) incoming(b) for every lane."""
    table, at = blocks.table, blocks.base[row]
    if blocks.shared:
        _shared_product(table, at, incoming, out, L, W)
    elif W % CHUNK == 0:
        for x in range(0, W, CHUNK):
            for a in range(L):
                s0, s1, s2, s3 = zero8(), zero8(), zero8(), zero8()
                b = 0
                while b + 4 <= L:
                    s0 = fma8(load8(table, at), load8(incoming, b * W + x), s0)
                    s1 = fma8(load8(table, at + 8), load8(incoming, (b + 1) * W + x), s1)
                    s2 = fma8(load8(table, at + 16), load8(incoming, (b + 2) * W + x), s2)
                    s3 = fma8(load8(table, at + 24), load8(incoming, (b + 3) * W + x), s3)
                    at += 32
                    b += 4
                while b < L:
                    s0 = fma8(load8(table, at), load8(incoming, b * W + x), s0)
                    at += 8
                    b += 1
                store8(out, a * W + x, add8(add8(s0, s1), add8(s2, s3)))
    else:  # a single lane
        for a in range(L):
            total = 0.0
            for b in range(L):
                total += table[at + a * L + b] * incoming[b]
            out[a] = total


@njit(**KERNEL)
def _shared_product(table, at, incoming, out, L, W):
    if W % CHUNK == 0:
        for x in range(0, W, CHUNK):
            for a in range(L):
                s0, s1 = zero8(), zero8()
                b = 0
                while b + 2 <= L:
                    k = at + a * L + b
                    s0 = fma8(spread8(table[k]), load8(incoming, b * W + x), s0)
                    s1 = fma8(spread8(table[k + 1]), load8(incoming, (b + 1) * W + x), s1)
                    b += 2
                if b < L:
                    s0 = fma8(spread8(table[at + a * L + b]), load8(incoming, b * W + x), s0)
                store8(out, a * W + x, add8(s0, s1))
    else:
        for a in range(L):
            total = 0.0
            for b in range(L):
                total += table[at + a * L + b] * incoming[b]
            out[a] = total


@njit(**KERNEL)
def _log_or_max(blocks, row, soft, incoming, sums, out, peak, total):
    """out(a) = log-sum-exp (or max) over b of table(a, b) + incoming(b); -inf where every b is forbidden."""
    L, W = incoming.shape
    for a in range(L):
        for b in range(L):
            if blocks.shared:
                entry = blocks.table[blocks.base[row] + a * L + b]
                for x in range(W):
                    sums[b, x] = entry + incoming[b, x]
            else:
                at = blocks.base[row] + (a * L + b) * W
                line = blocks.table[at : at + W]
                for x in range(W):
                    sums[b, x] = line[x] + incoming[b, x]
        _peak_of(sums, peak)
        if not soft:
            out[a] = peak
            continue
        for x in range(W):
            total[x] = 0.0
        for b in range(L):
            for x in range(W):
                total[x] += exp(sums[b, x] - (peak[x] if peak[x] > -np.inf else 0.0))
        for x in range(W):
            out[a, x] = peak[x] + log(total[x]) if peak[x] > -np.inf else -np.inf


@njit(**KERNEL)
def _peak_of(values, peak):
    """peak(lane) = max over states."""
    peak[:] = values[0]
    for a in range(1, values.shape[0]):
        for x in range(peak.size):
            peak[x] = values[a, x] if values[a, x] > peak[x] else peak[x]


@njit(**KERNEL)
def _write_messages(blocks, u, p, logm, peak, damping):
    """lam_e = P - log M_e, shifted to maximum 0; -inf where P is, so that dead states stay dead for everyone."""
    L, W = p.shape
    first = blocks.slot_ptr[u]
    for s in range(blocks.slot_ptr[u + 1] - first):
        fresh, out = logm[s], blocks.lam[first + s]
        for a in range(L):
            for x in range(W):
                fresh[a, x] = p[a, x] - fresh[a, x] if p[a, x] > -np.inf else -np.inf
        _peak_of(fresh, peak)
        if damping == 0.0:
            for a in range(L):
                for x in range(W):
                    out[a, x] = fresh[a, x] - peak[x]
        else:
            for a in range(L):
                for x in range(W):
                    v = fresh[a, x] - peak[x]
                    both = v > -np.inf and out[a, x] > -np.inf
                    out[a, x] = (1.0 - damping) * v + damping * out[a, x] if both else v


@njit(**KERNEL)
def _refresh_belief(blocks, u, p, peak, total):
    """Marginals softmax(P) of block u (MAXIMUM: P - max P) into `belief`; returns their largest change."""
    L, W = p.shape
    _peak_of(p, peak)
    for a in range(L):
        for x in range(W):
            p[a, x] -= peak[x]
    if blocks.mode[u] != MAXIMUM:
        _exp_all(p.reshape(-1))
        for x in range(W):
            total[x] = p[0, x]
        for a in range(1, L):
            for x in range(W):
                total[x] += p[a, x]
        for a in range(L):
            for x in range(W):
                p[a, x] /= total[x]
    old, new = blocks.belief[u].reshape(-1), p.reshape(-1)
    worst = 0.0
    for k in range(new.size):
        old[k] = abs(new[k] - old[k])
    for k in range(new.size):
        worst = old[k] if old[k] > worst else worst
    old[:] = new
    return worst

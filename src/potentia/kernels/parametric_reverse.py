"""The reverse of `parametric`: cotangents of messages to cotangents of single scores and of pairs' weights.

As in `star_reverse` with r = dlogM / M: dl(b) += exp(l(b)) sum_a psi(a, b) r(a), which is the forward sum again, and

    d s += sum_a r(a) dM(a)/ds ,   dM(a)/ds = - sum_b g(|a - b|) psi(a, b) exp(l(b))
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .machine.jit import njit
from .machine.simd import CHUNK, add8, div8, fma8, load8, mul8, spread8, store8, sub8, zero8
from .machine.team import BARRIER, wait
from .parametric import sum_messages
from .star_blocks import fetch_ahead, preceding, slot_of, take_row
from .star_reverse import (
    _TINY,
    _add_node,
    _back_normalise,
    _centre,
    _scratch,
    _split,
    _sum_rows,
)
from .vecmath import KERNEL


class WeightCotangents(NamedTuple):
    """Cotangents of what `PairBlocks` holds: lam (R, L, W), node (B, L, W), and of s = w / c_e of each slot, (R, W)."""

    lam: Any
    node: Any
    slope: Any


@njit(allocates=True, **KERNEL)
def reverse(profile, blocks, cotangents, record, units, iterations, damping, centre, team):
    """Undo `iterations` updates of the blocks `units`, made in this order, which left this record."""
    L, W = blocks.lam.shape[1], blocks.lam.shape[2]
    scratch, moved = _scratch(L, W), np.empty((L, W))
    keep = 1.0 - damping
    for iteration in range(iterations - 1, -1, -1):
        here = slot_of(record, iteration)
        for k in range(units.size - 1, -1, -1):
            if units[k] == BARRIER:
                wait(team)
                continue
            u = units[k]
            fetch_ahead(blocks, cotangents.lam, preceding(units, k))
            first, last = blocks.slot_ptr[u], blocks.slot_ptr[u + 1]
            if centre:
                _centre(blocks, cotangents.lam, u, scratch)
            _sum_rows(cotangents.lam, first, last, keep, scratch.dp)
            for row in range(first, last):
                _split(blocks, cotangents.lam, u, row, keep, damping, scratch)
                _pull_row(profile, blocks, cotangents, here, row, scratch, moved)
            _add_node(blocks, cotangents.node, u, scratch.dp)


@njit(allocates=True, **KERNEL)
def reverse_read(profile, blocks, cotangents, record, units, d_belief):
    """Cotangents of the marginals softmax(P) of the blocks `units`, pulled back."""
    L, W = blocks.lam.shape[1], blocks.lam.shape[2]
    scratch, moved = _scratch(L, W), np.empty((L, W))
    for u in units:
        _back_normalise(blocks.belief, d_belief, u, scratch.dp)
        for row in range(blocks.slot_ptr[u], blocks.slot_ptr[u + 1]):
            _split(blocks, cotangents.lam, u, row, 0.0, 1.0, scratch)
            _pull_row(profile, blocks, cotangents, record, row, scratch, moved)
        _add_node(blocks, cotangents.node, u, scratch.dp)


@njit(**KERNEL)
def _pull_row(profile, blocks, cotangents, record, row, scratch, moved):
    """From dlogM of a row to its weights and the messages at the opposite ends."""
    L, W = scratch.dp.shape
    take_row(record, row, blocks.lam.shape[0], scratch.incoming)
    v, r, back = scratch.incoming.reshape(-1), scratch.ratio.reshape(-1), scratch.back.reshape(-1)
    dlog, d_m = scratch.dlog.reshape(-1), moved.reshape(-1)
    tiny, slope = spread8(_TINY), cotangents.slope.reshape(-1)
    for x in range(0, W, CHUNK):
        at = row * profile.fields * W + x
        sum_messages(profile, blocks.table, at, W, v, r, x, L, W)
        _derivatives(profile, blocks.table, at, W, v, d_m, x, L)
        s = load8(slope, row * W + x)
        for k in range(x, L * W, W):
            q = div8(load8(dlog, k), add8(load8(r, k), tiny))
            store8(r, k, q)
            s = fma8(q, load8(d_m, k), s)
        store8(slope, row * W + x, s)
        sum_messages(profile, blocks.table, at, W, r, back, x, L, W)
        for k in range(x, L * W, W):
            store8(back, k, mul8(load8(back, k), load8(v, k)))
    target, opposite = cotangents.lam.reshape(-1), blocks.opposite
    for b in range(L):
        out = target[b * W :]
        for x in range(W):
            out[opposite[row, x]] += scratch.back[b, x]


@njit(**KERNEL)
def _derivatives(profile, table, at, W, v, out, x, L):
    """out(a) = dM(a)/ds of eight lanes."""
    t, total = load8(table, at), zero8()
    for k in range(x, L * W, W):
        total = add8(total, load8(v, k))
    far = mul8(t, spread8(-profile.cap))
    if profile.linear:
        _recur_derivatives(profile, table, at, W, v, out, x, L, far, mul8(far, total))
        return
    for a in range(L):
        k = a * W + x
        s = mul8(far, sub8(total, load8(v, k)))
        for d in range(1, min(max(a, L - 1 - a), profile.reach) + 1):
            near = zero8()
            if a >= d:
                near = load8(v, k - d * W)
            if a + d < L:
                near = add8(near, load8(v, k + d * W))
            cost = mul8(add8(load8(table, at + d * W), t), spread8(profile.cost[d]))
            s = sub8(s, mul8(add8(cost, far), near))
        store8(out, k, s)


@njit(**KERNEL)
def _recur_derivatives(profile, table, at, W, v, out, x, L, far, all_far):
    """The same for g(d) = d; `far` is -cap t, `all_far` that times the sum of v."""
    q, last = load8(table, at + W), load8(table, at + 2 * W)
    reach, gap = profile.reach, (profile.reach + 1) * W
    last_cost = mul8(last, spread8(reach + 1.0))
    f, g, w = zero8(), zero8(), zero8()
    for a in range(L):
        k = a * W + x
        e = load8(v, k)
        g = mul8(q, add8(g, f))
        f, w = fma8(q, f, e), add8(w, e)
        if a > reach:
            old = load8(v, k - gap)
            f, g, w = sub8(f, mul8(last, old)), sub8(g, mul8(last_cost, old)), sub8(w, old)
        store8(out, k, sub8(all_far, add8(g, mul8(far, w))))
    f, g, w = zero8(), zero8(), zero8()
    for a in range(L - 1, -1, -1):
        k = a * W + x
        e = load8(v, k)
        g = mul8(q, add8(g, f))
        f, w = fma8(q, f, e), add8(w, e)
        if a + reach + 1 < L:
            old = load8(v, k + gap)
            f, g, w = sub8(f, mul8(last, old)), sub8(g, mul8(last_cost, old)), sub8(w, old)
        both = sub8(load8(out, k), add8(g, mul8(far, w)))
        store8(out, k, add8(both, mul8(far, e)))


@njit(**KERNEL)
def add_slopes(pair, count, slope, out):
    """Add the cotangents of s = w / c_e of both ends of every pair to those of the weights, (m,)."""
    for row in range(slope.shape[0] - 1):
        for x in range(slope.shape[1]):
            e = pair[row, x]
            if e >= 0:
                out[e] += slope[row, x] / count[e]

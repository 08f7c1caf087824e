"""Products with tables that are a weight times a cost of the distance of two labels: O(states) per message.

The score of a pair is -w g(|a - b|) with w >= 0, g(0) = 0 and g(d) = cap for d > reach (Potts, truncated linear and
truncated quadratic). With s = w / c_e, t = exp(-s cap) and v = exp(lam), the message is

    M(a) = t sum_b v(b) + (1 - t) v(a) + sum_{d = 1..reach} (exp(-s g(d)) - t) (v(a - d) + v(a + d))

For g(d) = d the sum over d is a recursion over a in each direction, which costs the same for any reach. A table that
is lost in rounding cannot happen: every term is at most a rounding error of what it is subtracted from times t, and
M(a) is at least t sum_b v(b). Maxima replace sums where `mode` is MAXIMUM.

`PairBlocks.table` holds a few numbers per slot instead of a table, [row][field][lane]: field 0 is t; fields 1..reach
are exp(-s g(d)) - t, or with `linear` fields 1 and 2 are q = exp(-s) and q^(reach + 1). For maxima they are the
logarithms -s cap and -s g(d), or -s.

The reverse needs the derivative by s, dM(a)/ds = - sum_b g(|a - b|) psi(a, b) v(b), with recursions of the same kind.
"""

from __future__ import annotations

import numpy as np

from .machine.jit import njit
from .machine.simd import add8, fma8, load8, max8, mul8, spread8, store8, sub8, zero8
from .vecmath import KERNEL, exp


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


@njit(inner=True, **KERNEL)
def max_messages(profile, table, at, stride, v, out, x, L, width):
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


@njit(inner=True, **KERNEL)
def derivatives(profile, table, at, W, v, out, x, L):
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

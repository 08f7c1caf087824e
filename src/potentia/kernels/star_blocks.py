"""Blocks of variables that the pair kernels read and write, the record of messages that the reverse needs, and products
with tables that are a weight times a cost of the distance of two labels.

Such a product costs O(states) per message. The score of a pair is -w g(|a - b|) with w >= 0, g(0) = 0 and g(d) = cap
for d > reach (Potts, truncated linear and truncated quadratic). With s = w / c_e, t = exp(-s cap) and v = exp(lam), the
message is

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

from collections import namedtuple

import numpy as np

from .machine.jit import njit
from .machine.simd import CHUNK, add8, fma8, load8, mul8, spread8, store8, sub8
from .machine.team import BARRIER
from .vecmath import KERNEL, exp


class MessageRecord(namedtuple("MessageRecord", "inputs slot")):
    """Messages l that updates read, and the slot where those of the next updates go; no inputs: nothing is kept.

    inputs: exp(l) in PRODUCT blocks, l in others, [slot][row][lane chunk][state][chunk]. Of two states one number is
    enough, [slot][row][lane]: `packed`, or l(1) - l(0).
    """


NO_RECORD = MessageRecord(np.zeros(0), 0)


PRODUCT, LOG, MAXIMUM = 0, 1, 2

#: What a row does where products are shared: its own, its own and those of the other ends, or none.
ALONE, SENDS, RECEIVES = 0, 1, 2

#: Largest log-range of a table in PRODUCT mode: what exp(-600) drops is below 1e-40 of what it keeps.
SAFE_RANGE = 600.0
#: The same of tables in single precision, whose smallest number is about exp(-87).
SAFE_RANGE_SINGLE = 80.0


class Profile(namedtuple("Profile", "linear reach cost cap fields")):
    """The cost g of a distance of labels where tables are weights times -g.

    cost[d] for d = 0..reach, cap beyond. linear: g(d) = d, by recursion. fields: numbers per slot; 0: written tables.
    """


#: Of tables that are written out.
WRITTEN = Profile(False, 0, np.zeros(1), 0.0, 0)


class PairBlocks(
    namedtuple(
        "PairBlocks",
        "slot_ptr opposite count even inverse node own table base shared profile mode lam belief first value role sent",
    )
):
    """Everything a sweep reads and writes; B blocks of W lanes, R rows, L states.

    slot_ptr (B + 1): first row of each block. opposite (R, W): flat position in `lam` of state 0 of the message at the
    other end of the pair. count (R, W): c_e, 0 in an empty slot. even (R): the c_e that all lanes of a row share, 0
    where they differ; it saves reading them. inverse (B, W): 1 / C. node (B, L, W): scores. own (B, L, W): exp(theta /
    C - max), or nothing; see `star_product`. table: tables, row r at base[r], [a][b][lane], or [a][b] when `shared`;
    PRODUCT blocks of other than two states hold [lane chunk][row][a][b][8] instead, see `chunk_at`; float32 or float64.
    With `profile.fields` it holds that many numbers per slot instead, [row][field][lane]. mode (B). lam (R, L, W),
    belief (B, L, W): marginals (MAXIMUM: P - max P). first (R, W): whether the lane's variable is the first of its
    pair. value (B): where updates are not written, the sum of c_e log sum exp over the pairs of which the block holds
    the first variable, less the tables' shifts. role (R): of each row, ALONE, SENDS or RECEIVES; see `star_product`.
    sent (R, L, W): M of the rows that receive it.
    """


@njit(inner=True, **KERNEL)
def chunk_at(blocks, u, row, x):
    """Where the tables of eight lanes from x on are in a PRODUCT block: in the order in which an update reads them."""
    L, W, first = blocks.lam.shape[1], blocks.lam.shape[2], blocks.slot_ptr[u]
    return (first * W + x * (blocks.slot_ptr[u + 1] - first) + (row - first) * CHUNK) * L * L


# In what follows inner loops index arrays by plain loop variables only. An offset computed from data could be
# negative for all the compiler knows, and the wrap-around test that Python indexing then asks for would keep the
# loop scalar; hence two-dimensional scratch, and views made outside the loops.


@njit(inline="always", **KERNEL)
def slot_of(record, iteration):
    """The record of an iteration of a call: each has a slot."""
    return MessageRecord(record.inputs, record.slot + iteration)


@njit(inner=True, **KERNEL)
def most_rows(blocks, units):
    """Rows of the block that has most, of those in a list of blocks and barriers."""
    most = 0
    for u in units:
        if u != BARRIER:
            most = max(most, blocks.slot_ptr[u + 1] - blocks.slot_ptr[u])
    return most


@njit(**KERNEL)
def fill_fields(profile, maximum, pair, weight, count, table):
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
    t, total = load8(table, at), spread8(0.0)
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
    """`sum_messages` for the cost g(d) = d: running sums over d <= reach of q^d v(a - d), from state to state."""
    t, q, last = load8(table, at), load8(table, at + stride), load8(table, at + 2 * stride)
    own = sub8(spread8(1.0), t)
    f, w = spread8(0.0), spread8(0.0)
    gap = (reach + 1) * width
    for a in range(L):
        k = a * width + x
        e = load8(v, k)
        f, w = fma8(q, f, e), add8(w, e)
        if a > reach:
            old = load8(v, k - gap)
            f, w = sub8(f, mul8(last, old)), sub8(w, old)
        store8(out, k, sub8(f, mul8(t, w)))
    f, w = spread8(0.0), spread8(0.0)
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
def derivatives(profile, table, at, W, v, out, x, L):
    """out(a) = dM(a)/ds of eight lanes: how messages change with the weight s of their table."""
    t, total = load8(table, at), spread8(0.0)
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
            near = spread8(0.0)
            if a >= d:
                near = load8(v, k - d * W)
            if a + d < L:
                near = add8(near, load8(v, k + d * W))
            cost = mul8(add8(load8(table, at + d * W), t), spread8(profile.cost[d]))
            s = sub8(s, mul8(add8(cost, far), near))
        store8(out, k, s)


@njit(**KERNEL)
def _recur_derivatives(profile, table, at, W, v, out, x, L, far, all_far):
    """`derivatives` for the cost g(d) = d; `far` is -cap t, `all_far` that times the sum of v."""
    q, last = load8(table, at + W), load8(table, at + 2 * W)
    reach, gap = profile.reach, (profile.reach + 1) * W
    last_cost = mul8(last, spread8(reach + 1.0))
    f, g, w = spread8(0.0), spread8(0.0), spread8(0.0)
    for a in range(L):
        k = a * W + x
        e = load8(v, k)
        g = mul8(q, add8(g, f))
        f, w = fma8(q, f, e), add8(w, e)
        if a > reach:
            old = load8(v, k - gap)
            f, g, w = sub8(f, mul8(last, old)), sub8(g, mul8(last_cost, old)), sub8(w, old)
        store8(out, k, sub8(all_far, add8(g, mul8(far, w))))
    f, g, w = spread8(0.0), spread8(0.0), spread8(0.0)
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


@njit(inline="always", **KERNEL)
def product_transposed(table, at, v, first, stride, out, L):
    """out(b) = sum_a psi(a, b) v(a) of eight lanes, [b][8], v(a) at first + a * stride: four b at a time."""
    for b in range(0, L - 3, 4):
        s0, s1, s2, s3 = spread8(0.0), spread8(0.0), spread8(0.0), spread8(0.0)
        j, k = at + b * CHUNK, first
        for _ in range(L):
            value = load8(v, k)
            s0 = fma8(load8(table, j), value, s0)
            s1 = fma8(load8(table, j + CHUNK), value, s1)
            s2 = fma8(load8(table, j + 2 * CHUNK), value, s2)
            s3 = fma8(load8(table, j + 3 * CHUNK), value, s3)
            j += L * CHUNK
            k += stride
        store4(out, b * CHUNK, CHUNK, s0, s1, s2, s3)
    for b in range(L - L % 4, L):
        s0 = spread8(0.0)
        for a in range(L):
            s0 = fma8(load8(table, at + (a * L + b) * CHUNK), load8(v, first + a * stride), s0)
        store8(out, b * CHUNK, s0)


@njit(inline="always", **KERNEL)
def store4(out, at, step, s0, s1, s2, s3):
    """Store four vectors, `step` apart."""
    store8(out, at, s0)
    store8(out, at + step, s1)
    store8(out, at + 2 * step, s2)
    store8(out, at + 3 * step, s3)

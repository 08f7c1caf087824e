"""Structured factors: sums over all configurations of many variables that score by a commutative sum of elements.

Every variable's state stands for an element of a small monoid (0 or 1 to be counted, say), and the score is a function
of the sum of all elements. Leaves of a balanced binary tree are the variables, in the order in which a sweep visits
them. `up` of a node has, per element, the log of the sum over configurations below it that add up to this element;
`down` that of all variables outside, with the factor's score: at a leaf it is the message out of the factor. A sweep
walks from leaf to leaf, and computes `up` of what is behind it from new messages and `down` of what is ahead, so that
all messages of a factor of n variables cost as much as two passes over its tree.

Modes: SUM in the log domain, MAX, and MEAN, where `up` has probabilities and `down` expected scores (mean field).
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from .machine.jit import njit
from .machine.simd import add8, fma8, load8, spread8, store8, sum8
from .vecmath import KERNEL, exp, log

SUM, MAX, MEAN = 0, 1, 2
#: Elements add up as numbers (up to a cap), or by a table.
COUNT, TABLE = 0, 1
#: Sums of scaled products whose log is below this may have lost terms that were too small for doubles.
_LOST = -570.0
#: Terms that are smaller than the largest by e to this power do not change a sum.
_NEGLIGIBLE = 45.0


class FactorTrees(namedtuple("FactorTrees", "of entry factor node items leaves pool up down scratch")):
    """The trees of K structured factors; kernels are called with few arrays, whose columns are named below.

    of (regions): the factor of a region, or -1. entry: the item of each link of a factor, or -1. Items are the
    variables of all factors, one factor after another.
    factor (K + 1): FIRST leaf, and RULE: COUNT or TABLE; largest count CAP and whether counts beyond it FOLD into it,
    or else are dropped; whether scores of counts are CONCAVE, and nothing folds; the table of sums at TABLE_AT in
    `pool`, for N_ELEMENTS, and the outcome of every element at OUTCOME_AT; scores of outcomes begin at SCORE_AT; the
    root is node NODE_PTR; CURRENT: the leaf that was visited last, or -1. The last row has ends only.
    node: SIZE (leaves below), LOW (the first of them, within the factor), PARENT, WIDTH (numbers) and AT (the first of
    them in `up` and `down`). Nodes are in preorder.
    items: the numbers of N_VALUES states at VALUE_AT, their elements at SYMBOL_AT in `pool`, and PLACE among leaves.
    leaves: the ITEM there, and the NODE.
    """


FIRST, RULE, CAP, FOLD, CONCAVE, TABLE_AT, N_ELEMENTS, OUTCOME_AT, SCORE_AT, NODE_PTR, CURRENT = range(11)
SIZE, LOW, PARENT, WIDTH, AT = range(5)
VALUE_AT, N_VALUES, SYMBOL_AT, PLACE = range(4)
ITEM, NODE = range(2)


class FactorCotangents(namedtuple("FactorCotangents", "old new down")):
    """Cotangents of `up` before and after a sweep, and of `down`."""


# -- one product of two nodes ----------------------------------------------------------------------------------


@njit(inner=True, **KERNEL)
def _span(x):
    """The first and the last finite entry, and the largest; the last is -1 if there is none."""
    low, high, peak = 0, x.size - 1, -np.inf
    while high >= 0 and not x[high] > -np.inf:
        high -= 1
    while low < high and not x[low] > -np.inf:
        low += 1
    for i in range(x.size):
        peak = max(peak, x[i])
    return low, high, peak


@njit(inner=True, **KERNEL)
def _log_sum(x, base, y, low, high, concave, hint, spare):
    """log of the sum of exp(x[base + j] + y[j]) over j in low..high, and the index of the largest term.

    concave: terms rise and then fall, so that the largest is found from `hint` and far ones are left out. The others
    go to `spare`, so that exponentials run on vectors.
    """
    if low > high:
        return -np.inf, hint
    best = min(max(hint, low), high)
    first, last = low, high
    if concave:
        peak = x[base + best] + y[best]
        while best < high and x[base + best + 1] + y[best + 1] > peak:
            best += 1
            peak = x[base + best] + y[best]
        while best > low and x[base + best - 1] + y[best - 1] > peak:
            best -= 1
            peak = x[base + best] + y[best]
        first = last = best
        while first > low and x[base + first] + y[first] - peak > -_NEGLIGIBLE:
            first = max(first - 16, low)
        while last < high and x[base + last] + y[last] - peak > -_NEGLIGIBLE:
            last = min(last + 16, high)
    else:
        peak = -np.inf
        for j in range(low, high + 1):
            v = x[base + j] + y[j]
            if v > peak:
                best, peak = j, v
    if not peak > -np.inf:
        return -np.inf, best
    n, some, others, total = last - first + 1, x[base + first :], y[first:], spread8(0.0)
    for i in range(n):
        spare[i] = exp(some[i] + others[i] - peak)
    for i in range(n, n + 8):
        spare[i] = 0.0
    for i in range(0, n, 8):
        total = add8(total, load8(spare, i))
    return peak + log(sum8(total)), best


@njit(inner=True, **KERNEL)
def _windows(x, low, high, y, first, last, n, out):
    """out[k] = the sum of x[k + j] y[j] over j in first..last, for k < n; x is zero outside low..high.

    Results stay in registers while j runs. x is read up to 31 entries beyond `high`, out written up to 7 beyond n. Ends
    that are zero, as most exponentials of many variables are, take no time.
    """
    while first < last and y[first] == 0.0:
        first += 1
    while first < last and y[last] == 0.0:
        last -= 1
    while low < high and x[low] == 0.0:
        low += 1
    while low < high and x[high] == 0.0:
        high -= 1
    wide = n - n % 32
    for k in range(0, wide, 32):
        a, b, c, d = spread8(0.0), spread8(0.0), spread8(0.0), spread8(0.0)
        for j in range(max(first, low - k - 31), min(last, high - k) + 1):
            w = spread8(y[j])
            a, b = fma8(w, load8(x, k + j), a), fma8(w, load8(x, k + j + 8), b)
            c, d = fma8(w, load8(x, k + j + 16), c), fma8(w, load8(x, k + j + 24), d)
        store8(out, k, a)
        store8(out, k + 8, b)
        store8(out, k + 16, c)
        store8(out, k + 24, d)
    for k in range(wide, n, 8):
        a = spread8(0.0)
        for j in range(max(first, low - k - 7), min(last, high - k) + 1):
            a = fma8(spread8(y[j]), load8(x, k + j), a)
        store8(out, k, a)


@njit(inner=True, **KERNEL)
def _scaled(mode, x, peak, out):
    """exp(x - peak), or in MEAN x itself, to `out`, with zeros behind it."""
    part = out[: x.size]
    if mode == MEAN:
        for i in range(x.size):
            part[i] = x[i]
    else:
        for i in range(x.size):
            part[i] = exp(x[i] - peak)
    for i in range(x.size, min(x.size + 32, out.size)):
        out[i] = 0.0


@njit(inner=True, **KERNEL)
def _logs(x, n, peak):
    """x = peak + log x in place; the smallest."""
    lowest, part = np.inf, x[:n]
    for k in range(n):
        part[k] = peak + log(part[k])
    for k in range(n):
        lowest = min(lowest, part[k])
    return lowest


@njit(inner=True, **KERNEL)
def _correlate(t, mode, x, y, concave, n, out):
    """out(k) = log of the sum over j of exp(x(k + j) + y(j)) for k < n, and likewise for other modes."""
    if mode == MAX:
        for k in range(n):
            out[k] = -np.inf
        for j in range(y.size):
            a, row = y[j], x[j : j + n]
            for k in range(n):
                out[k] = max(out[k], row[k] + a)
        return
    x_low, x_high, x_peak = _span(x)
    y_low, y_high, y_peak = _span(y)
    if x_high < 0 or y_high < 0:
        for k in range(n):
            out[k] = -np.inf
        return
    wide_x, scaled_y = t.scratch[0], t.scratch[1]
    _scaled(mode, x, x_peak, wide_x)
    _scaled(mode, y, y_peak, scaled_y)
    _windows(wide_x, x_low, x_high, scaled_y, y_low, y_high, n, out)
    if mode == MEAN:
        return
    peak, hint = x_peak + y_peak, 0
    if _logs(out, n, peak) <= peak + _LOST:
        for k in range(n):
            if out[k] <= peak + _LOST:
                low, high = max(y_low, x_low - k), min(y_high, x_high - k)
                out[k], hint = _log_sum(x, k, y, low, high, concave, hint, wide_x)


@njit(inner=True, **KERNEL)
def _convolve(t, mode, x, y, concave, out):
    """out(k) = log of the sum over i + j = k of exp(x(i) + y(j)); MAX: the largest x + y; MEAN: the sum of x y."""
    # x(k - j) y(j) as windows over x, with nothing around it, and y reversed
    shift, n = y.size - 1, x.size + y.size - 1
    wide, turned = t.scratch[3, : n + shift], t.scratch[4, : y.size]
    wide[:] = 0.0 if mode == MEAN else -np.inf
    for i in range(x.size):
        wide[shift + i] = x[i]
    for j in range(y.size):
        turned[shift - j] = y[j]
    _correlate(t, mode, wide, turned, concave, n, out)


@njit(inner=True, **KERNEL)
def _log_add(a, b):
    """log(e^a + e^b)."""
    high, low = max(a, b), min(a, b)
    return high + log(1.0 + exp(low - high)) if low > -np.inf else high


@njit(inner=True, **KERNEL)
def _target(t, k, i, j):
    """The element that i and j add up to; -1 if that is dropped."""
    if t.factor[k, RULE] == TABLE:
        return t.pool[t.factor[k, TABLE_AT] + i * t.factor[k, N_ELEMENTS] + j]
    n = i + j
    return n if n <= t.factor[k, CAP] else (t.factor[k, CAP] if t.factor[k, FOLD] else -1)


@njit(inline="always", **KERNEL)
def _part(t, values, v):
    """The numbers of a node."""
    return values[t.node[v, AT] : t.node[v, AT] + t.node[v, WIDTH]]


@njit(inner=True, **KERNEL)
def _right(t, v):
    """The right child of a node; the left one is v + 1."""
    return v + 2 * t.node[v + 1, SIZE]


@njit(inner=True, **KERNEL)
def _folded(t, k, v):
    """Whether the last number of a node stands for several counts, so that its numbers need not be concave."""
    return t.factor[k, FOLD] and t.node[v, SIZE] > t.factor[k, CAP]


@njit(**KERNEL)
def _combine(t, k, mode, v):
    """`up` of a node from that of its children."""
    left, right, out = _part(t, t.up, v + 1), _part(t, t.up, _right(t, v)), _part(t, t.up, v)
    if t.factor[k, RULE] == TABLE:
        total = t.scratch[0]
        for s in range(out.size):
            out[s] = 0.0 if mode == MEAN else -np.inf
            total[s] = 0.0
        for i in range(left.size):
            for j in range(right.size):
                s = _target(t, k, i, j)
                if mode == MEAN:
                    out[s] += left[i] * right[j]
                else:
                    out[s] = max(out[s], left[i] + right[j])
        if mode == SUM:
            for i in range(left.size):
                for j in range(right.size):
                    s = _target(t, k, i, j)
                    if out[s] > -np.inf:
                        total[s] += exp(left[i] + right[j] - out[s])
            for s in range(out.size):
                if out[s] > -np.inf:
                    out[s] += log(total[s])
        return
    concave = not (_folded(t, k, v + 1) or _folded(t, k, _right(t, v)))
    both = t.scratch[2]
    _convolve(t, mode, left, right, concave, both)
    n = left.size + right.size - 1
    for s in range(out.size):
        out[s] = both[s]
    if t.factor[k, FOLD]:
        last, top = out.size - 1, -np.inf
        if mode == SUM and n > out.size:
            for s in range(last, n):
                top = max(top, both[s])
            if top > -np.inf:
                total = 0.0
                for s in range(last, n):
                    total += exp(both[s] - top)
                out[last] = top + log(total)
        else:
            for s in range(out.size, n):
                out[last] = max(out[last], both[s]) if mode == MAX else out[last] + both[s]


@njit(**KERNEL)
def _split(t, k, mode, v, child, other):
    """`down` of a child of node v, from that of v and `up` of the other child."""
    down, beside, out = _part(t, t.down, v), _part(t, t.up, other), _part(t, t.down, child)
    if t.factor[k, RULE] == TABLE:
        for i in range(out.size):
            peak, total = -np.inf, 0.0
            for j in range(beside.size):
                s = _target(t, k, i, j)
                if mode == MEAN:
                    total += down[s] * beside[j]
                else:
                    peak = max(peak, down[s] + beside[j])
            if mode == SUM and peak > -np.inf:
                for j in range(beside.size):
                    total += exp(down[_target(t, k, i, j)] + beside[j] - peak)
                peak += log(total)
            out[i] = total if mode == MEAN else peak
        return
    n = out.size + beside.size - 1
    full = t.scratch[2, :n]
    nothing = 0.0 if mode == MEAN else -np.inf
    for s in range(n):
        full[s] = down[s] if s < down.size else (down[down.size - 1] if t.factor[k, FOLD] else nothing)
    result = t.scratch[3]
    _correlate(t, mode, full, beside, t.factor[k, CONCAVE], out.size, result)
    for s in range(out.size):
        out[s] = result[s]


@njit(inner=True, **KERNEL)
def _pull_table(t, k, mode, combined, a, b, c, d_a, d_b, d_c):
    """Cotangents through `_combine` (c from a and b) or `_split` (a from c and b) where elements add up by a table."""
    for i in range(a.size):
        for j in range(b.size):
            s = _target(t, k, i, j)
            if combined:
                if mode == MEAN:
                    d_a[i] += d_c[s] * b[j]
                    d_b[j] += d_c[s] * a[i]
                elif d_c[s] != 0.0 and c[s] > -np.inf:
                    w = d_c[s] * exp(a[i] + b[j] - c[s])
                    d_a[i] += w
                    d_b[j] += w
            elif mode == MEAN:
                d_c[s] += d_a[i] * b[j]
                d_b[j] += d_a[i] * c[s]
            elif d_a[i] != 0.0 and a[i] > -np.inf:
                w = d_a[i] * exp(c[s] + b[j] - a[i])
                d_c[s] += w
                d_b[j] += w


@njit(inner=True, **KERNEL)
def _entry(t, k, s, size):
    """The number of a node that holds count s; -1 if it is dropped."""
    return s if s < size else (size - 1 if t.factor[k, FOLD] else -1)


@njit(inner=True, **KERNEL)
def _least(d):
    """The size from which on cotangents matter beside the largest; -1 if all are zero."""
    most = 0.0
    for i in range(d.size):
        most = max(most, abs(d[i]))
    return 1e-40 * most if most > 0.0 else -1.0


@njit(inner=True, **KERNEL)
def _share(mode, d, value, peak):
    """A cotangent d of the logarithm `value` times exp(peak - value); itself in MEAN; 0 where that loses too much."""
    if mode == MEAN:
        return d
    return d * exp(peak - value) if value > peak + _LOST else 0.0


@njit(**KERNEL)
def _pull_combine(t, k, mode, v, cotangents):
    """Cotangents of `up` of a node to those of its children."""
    left, right, up = v + 1, _right(t, v), t.up
    a, b, c = _part(t, up, left), _part(t, up, right), _part(t, up, v)
    d_a, d_b, d_c = _part(t, cotangents, left), _part(t, cotangents, right), _part(t, cotangents, v)
    if t.factor[k, RULE] == TABLE:
        _pull_table(t, k, mode, True, a, b, c, d_a, d_b, d_c)
        return
    least, n = _least(d_c), a.size + b.size - 1
    x_peak, y_peak = (0.0, 0.0) if mode == MEAN else (_span(a)[2], _span(b)[2])
    if least < 0.0 or x_peak == -np.inf or y_peak == -np.inf:
        return
    share, x, y, out = t.scratch[0], t.scratch[1], t.scratch[2], t.scratch[3]
    for s in range(n + 32):
        q = _entry(t, k, s, c.size) if s < n else -1
        share[s] = _share(mode, d_c[q], c[q], x_peak + y_peak) if q >= 0 else 0.0
        if q >= 0 and mode == SUM and abs(d_c[q]) > least and _LOST + x_peak + y_peak >= c[q] > -np.inf:
            for i in range(max(0, s - b.size + 1), min(a.size, s + 1)):
                w = d_c[q] * exp(a[i] + b[s - i] - c[q])
                d_a[i] += w
                d_b[s - i] += w
    _scaled(mode, a, x_peak, x)
    _scaled(mode, b, y_peak, y)
    _windows(share, 0, n - 1, y, 0, b.size - 1, a.size, out)
    for i in range(a.size):
        d_a[i] += out[i] * (1.0 if mode == MEAN else x[i])
    _windows(share, 0, n - 1, x, 0, a.size - 1, b.size, out)
    for j in range(b.size):
        d_b[j] += out[j] * (1.0 if mode == MEAN else y[j])


@njit(**KERNEL)
def _pull_split(t, b, k, mode, v, child, other, cotangents):
    """Cotangents of `down` of a child of node v to those of `down` of v and `up` of the other child."""
    own, beside, above = _part(t, t.down, child), _part(t, t.up, other), _part(t, t.down, v)
    d_own, d_beside, d_above = _part(t, b.down, child), _part(t, cotangents, other), _part(t, b.down, v)
    if t.factor[k, RULE] == TABLE:
        _pull_table(t, k, mode, False, own, beside, above, d_own, d_beside, d_above)
        return
    least, n, shift = _least(d_own), own.size + beside.size - 1, beside.size - 1
    x_peak, y_peak = (0.0, 0.0) if mode == MEAN else (_span(above)[2], _span(beside)[2])
    if least < 0.0 or x_peak == -np.inf or y_peak == -np.inf:
        return
    x, share, y, out = t.scratch[0], t.scratch[1], t.scratch[2], t.scratch[3]
    for s in range(n + 32):
        q = _entry(t, k, s, above.size) if s < n else -1
        x[s] = 0.0 if q < 0 else (above[q] if mode == MEAN else exp(above[q] - x_peak))
    for i in range(own.size):
        share[i] = _share(mode, d_own[i], own[i], x_peak + y_peak)
        if mode == SUM and abs(d_own[i]) > least and _LOST + x_peak + y_peak >= own[i] > -np.inf:
            for j in range(beside.size):
                q = _entry(t, k, i + j, above.size)
                if q >= 0:
                    w = d_own[i] * exp(above[q] + beside[j] - own[i])
                    d_above[q] += w
                    d_beside[j] += w
    _scaled(mode, beside, y_peak, y)
    _windows(x, 0, n - 1, share, 0, own.size - 1, beside.size, out)
    for j in range(beside.size):
        d_beside[j] += out[j] * (1.0 if mode == MEAN else y[j])
    for s in range(n + shift + 32):
        x[s] = share[s - shift] if shift <= s < n else 0.0
    for j in range(beside.size):
        share[shift - j] = y[j]
    _windows(x, shift, n - 1, share, 0, shift, n, out)
    for s in range(n):
        q = _entry(t, k, s, above.size)
        if q >= 0:
            d_above[q] += out[s] * (1.0 if mode == MEAN else exp(above[q] - x_peak))


# -- a walk from leaf to leaf ----------------------------------------------------------------------------------


@njit(inner=True, **KERNEL)
def _element(t, k, e, y):
    """The element of state y of item e; -1 if it is dropped."""
    s = t.pool[t.items[e, SYMBOL_AT] + y]
    return s if t.factor[k, RULE] == TABLE or s <= t.factor[k, CAP] else (t.factor[k, CAP] if t.factor[k, FOLD] else -1)


@njit(**KERNEL)
def set_leaf(t, k, mode, e, values, c):
    """`up` of the leaf of an item from the numbers of its states, log-weights in units of c or probabilities."""
    out, at = _part(t, t.up, t.leaves[t.factor[k, FIRST] + t.items[e, PLACE], NODE]), t.items[e, VALUE_AT]
    out[:] = 0.0 if mode == MEAN else -np.inf
    for y in range(t.items[e, N_VALUES]):
        s, v = _element(t, k, e, y), values[at + y]
        if s < 0:
            continue
        if mode == MEAN:
            out[s] += v
        elif mode == MAX:
            out[s] = max(out[s], v)
        else:
            out[s] = _log_add(out[s], v / c)


@njit(**KERNEL)
def _build(t, k, mode, values, c, theta, whole):
    """`up` of all nodes, without `whole` of those that a walk from the first leaf will read; `down` of the root."""
    root, end = t.factor[k, NODE_PTR], t.factor[k + 1, NODE_PTR]
    for p in range(t.factor[k, FIRST], t.factor[k + 1, FIRST]):
        set_leaf(t, k, mode, t.leaves[p, ITEM], values, c)
    begin = root if whole else t.leaves[t.factor[k, FIRST], NODE] + 1
    for v in range(end - 1, begin - 1, -1):
        if t.node[v, SIZE] > 1:
            _combine(t, k, mode, v)
    down = _part(t, t.down, root)
    for s in range(down.size):
        score = theta[t.factor[k, SCORE_AT] + t.pool[t.factor[k, OUTCOME_AT] + s]]
        down[s] = score / c if mode == SUM else score
    t.factor[k, CURRENT] = -1


@njit(**KERNEL)
def _advance(t, k, mode, to):
    """Walk on to leaf `to`, behind the current one; its `down` is then there."""
    n, v = t.factor[k + 1, FIRST] - t.factor[k, FIRST], t.factor[k, NODE_PTR]
    if t.factor[k, CURRENT] >= 0:
        v = t.leaves[t.factor[k, FIRST] + t.factor[k, CURRENT], NODE]
        while True:
            p = t.node[v, PARENT]
            if t.node[p, LOW] + t.node[p, SIZE] > to:
                break
            if t.node[p, LOW] + t.node[p, SIZE] < n:
                _combine(t, k, mode, p)
            v = p
        other = _right(t, p)
        _split(t, k, mode, p, other, v)
        v = other
    while t.node[v, SIZE] > 1:
        left, right = v + 1, _right(t, v)
        child, other = (left, right) if to < t.node[right, LOW] else (right, left)
        _split(t, k, mode, v, child, other)
        v = child
    t.factor[k, CURRENT] = to


@njit(**KERNEL)
def message_out(t, k, mode, e, values, c, theta, out):
    """Walk on to item e, and write the message out of the factor there, times c in SUM."""
    if t.factor[k, CURRENT] < 0:
        _build(t, k, mode, values, c, theta, False)
    _advance(t, k, mode, t.items[e, PLACE])
    down = _part(t, t.down, t.leaves[t.factor[k, FIRST] + t.items[e, PLACE], NODE])
    for y in range(t.items[e, N_VALUES]):
        s = _element(t, k, e, y)
        out[y] = -np.inf if s < 0 else (c * down[s] if mode == SUM else down[s])


@njit(**KERNEL)
def read_root(t, k, mode, values, c, theta, out):
    """Per outcome `up` of the whole factor: log-sums without its score, maxima, or probabilities."""
    _build(t, k, mode, values, c, theta, True)
    up = _part(t, t.up, t.factor[k, NODE_PTR])
    out[:] = 0.0 if mode == MEAN else -np.inf
    for s in range(up.size):
        o = t.pool[t.factor[k, OUTCOME_AT] + s]
        if mode == MEAN:
            out[o] += up[s]
        else:
            out[o] = _log_add(out[o], up[s]) if mode == SUM else max(out[o], up[s])


# -- and back, with cotangents ---------------------------------------------------------------------------------


@njit(**KERNEL)
def _descend(t, b, k, mode, v):
    """From a node that the walk back enters to its last leaf."""
    while t.node[v, SIZE] > 1:
        left, right = v + 1, _right(t, v)
        _pull_combine(t, k, mode, v, b.new)
        _split(t, k, mode, v, right, left)
        v = right


@njit(**KERNEL)
def begin_back(t, b, k, mode, values, c, theta):
    """Zero cotangents and go to the last leaf."""
    _build(t, k, mode, values, c, theta, True)
    first = t.node[t.factor[k, NODE_PTR], AT]
    last = t.node[t.factor[k + 1, NODE_PTR] - 1, AT] + t.node[t.factor[k + 1, NODE_PTR] - 1, WIDTH]
    b.old[first:last], b.new[first:last], b.down[first:last] = 0.0, 0.0, 0.0
    _descend(t, b, k, mode, t.factor[k, NODE_PTR])
    t.factor[k, CURRENT] = t.factor[k + 1, FIRST] - t.factor[k, FIRST] - 1


@njit(**KERNEL)
def walk_back(t, b, k, mode, e, values, c, theta, d_values):
    """Walk back to the leaf of item e and pull the cotangents that are then there to its numbers.

    All leaves from there on have been given their old numbers by `set_leaf`.
    """
    if t.factor[k, CURRENT] < 0:
        begin_back(t, b, k, mode, values, c, theta)
    while t.factor[k, CURRENT] > t.items[e, PLACE]:
        v = t.leaves[t.factor[k, FIRST] + t.factor[k, CURRENT], NODE]
        while t.node[t.node[v, PARENT], LOW] == t.node[v, LOW]:
            v = _leave_left(t, b, k, mode, v)
        p = t.node[v, PARENT]
        _pull_split(t, b, k, mode, p, v, p + 1, b.new)
        _split(t, k, mode, p, p + 1, v)
        _descend(t, b, k, mode, p + 1)
        t.factor[k, CURRENT] -= 1
    _pull_leaf(t, k, mode, e, values, c, d_values, b.new)


@njit(**KERNEL)
def _leave_left(t, b, k, mode, v):
    """Back from a left child to its parent, whose leaves all have old numbers then."""
    p = t.node[v, PARENT]
    _pull_split(t, b, k, mode, p, v, _right(t, p), b.old)
    _combine(t, k, mode, p)
    return p


@njit(**KERNEL)
def _pull_leaf(t, k, mode, e, values, c, d_values, cotangents):
    """Cotangents of `up` of an item's leaf to those of the numbers it was made of."""
    v, at = t.leaves[t.factor[k, FIRST] + t.items[e, PLACE], NODE], t.items[e, VALUE_AT]
    up, d_up = _part(t, t.up, v), _part(t, cotangents, v)
    for y in range(t.items[e, N_VALUES]):
        s = _element(t, k, e, y)
        if s >= 0 and d_up[s] != 0.0:
            if mode == MEAN:
                d_values[at + y] += d_up[s]
            elif up[s] > -np.inf:
                d_values[at + y] += d_up[s] * exp(values[at + y] / c - up[s]) / c


@njit(**KERNEL)
def pull_message(t, b, k, e, c, d_out):
    """Cotangents of a message out of a factor, where the walk is, to those of `down`."""
    d_down = _part(t, b.down, t.leaves[t.factor[k, FIRST] + t.items[e, PLACE], NODE])
    for y in range(t.items[e, N_VALUES]):
        s = _element(t, k, e, y)
        if s >= 0:
            d_down[s] += c * d_out[y]


@njit(**KERNEL)
def finish_back(t, b, k, mode, values, c, d_values, d_theta):
    """From the first leaf to the root, and what is left of cotangents to old numbers and scores."""
    root = t.factor[k, NODE_PTR]
    v = t.leaves[t.factor[k, FIRST], NODE]
    while v != root:
        v = _leave_left(t, b, k, mode, v)
    d_down = _part(t, b.down, root)
    for s in range(d_down.size):
        d_theta[t.factor[k, SCORE_AT] + t.pool[t.factor[k, OUTCOME_AT] + s]] += (
            d_down[s] / c if mode == SUM else d_down[s]
        )
    _push_down(t, b, k, mode, values, c, d_values)
    t.factor[k, CURRENT] = -1


@njit(**KERNEL)
def _push_down(t, b, k, mode, values, c, d_values):
    """Cotangents of old `up` of all nodes to the numbers of the leaves."""
    for v in range(t.factor[k, NODE_PTR], t.factor[k + 1, NODE_PTR]):
        if t.node[v, SIZE] > 1:
            _pull_combine(t, k, mode, v, b.old)
    for p in range(t.factor[k, FIRST], t.factor[k + 1, FIRST]):
        _pull_leaf(t, k, mode, t.leaves[p, ITEM], values, c, d_values, b.old)


@njit(**KERNEL)
def pull_probabilities(t, b, k, values, theta, d_out, d_values):
    """Cotangents of the outcomes' probabilities, `read_root` in MEAN, to those of states."""
    _build(t, k, MEAN, values, 1.0, theta, True)
    for v in range(t.factor[k, NODE_PTR], t.factor[k + 1, NODE_PTR]):
        _part(t, b.old, v)[:] = 0.0
    d_up = _part(t, b.old, t.factor[k, NODE_PTR])
    for s in range(d_up.size):
        d_up[s] = d_out[t.pool[t.factor[k, OUTCOME_AT] + s]]
    _push_down(t, b, k, MEAN, values, 1.0, d_values)


@njit(**KERNEL)
def pull_root(t, b, k, c, theta, d_out, d_theta):
    """Cotangents of theta + c `read_root`, (outcomes), to the scores and to `up` of the root, which is an old one."""
    up, d_up = _part(t, t.up, t.factor[k, NODE_PTR]), _part(t, b.old, t.factor[k, NODE_PTR])
    for o in range(d_out.size):
        d_theta[t.factor[k, SCORE_AT] + o] += d_out[o]
        peak, total = -np.inf, 0.0
        for s in range(up.size):
            if t.pool[t.factor[k, OUTCOME_AT] + s] == o:
                peak = max(peak, up[s])
        if not peak > -np.inf:
            continue
        for s in range(up.size):
            if t.pool[t.factor[k, OUTCOME_AT] + s] == o:
                total += exp(up[s] - peak)
        for s in range(up.size):
            if t.pool[t.factor[k, OUTCOME_AT] + s] == o:
                d_up[s] += c * d_out[o] * exp(up[s] - peak) / total

"""Pairs whose table is a weight times a fixed table, in mean field: O(states) per pair.

E[theta | y_i = a] of a pair is w U_j(a) with U_j = T q_j, which depends on the other variable only. It is kept for
every variable that has such pairs, and is refreshed when the variable's own distribution changes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .machine.jit import njit
from .vecmath import KERNEL

#: Ways to multiply by a table: -g(|a - b|) by a window, the same with g(d) = d by running sums, any table.
WINDOW, LINEAR, DENSE = 0, 1, 2


class Links(NamedTuple):
    """Weighted pairs around variables (CSR), and the K tables they use.

    ptr, other, pair, number: per variable its pairs' other ends, their numbers among weighted pairs, and the table
    that is multiplied with the other's distribution. weight (m): of all weighted pairs. form, states, reach, cap (K),
    cost (K, reach + 1): see `parametric.Profile`. table (K, L, L): of DENSE tables. user_ptr, user: per variable the
    tables whose U others read. spread (K, n, L): U.
    """

    ptr: Any
    other: Any
    pair: Any
    number: Any
    weight: Any
    form: Any
    states: Any
    reach: Any
    cap: Any
    cost: Any
    table: Any
    user_ptr: Any
    user: Any
    spread: Any


@njit(**KERNEL)
def spread_all(links, q):
    """U of all variables."""
    for j in range(q.shape[0]):
        spread_one(links, q, j)


@njit(inner=True, **KERNEL)
def spread_one(links, q, j):
    """U of one variable."""
    for k in range(links.user_ptr[j], links.user_ptr[j + 1]):
        number = links.user[k]
        _multiply(links, number, q[j], links.spread[number, j], False)


@njit(inner=True, **KERNEL)
def add_links(links, i, field):
    """field(a) += w U_j(a) for the weighted pairs of variable i."""
    for k in range(links.ptr[i], links.ptr[i + 1]):
        w, u = links.weight[links.pair[k]], links.spread[links.number[k], links.other[k]]
        for a in range(links.states[links.number[k]]):
            field[a] += w * u[a]


@njit(inner=True, **KERNEL)
def pull_links(links, i, field, d_spread, d_weight):
    """Cotangents `field` of what `add_links` added, to U of the other ends and to the weights."""
    for k in range(links.ptr[i], links.ptr[i + 1]):
        number, j, e = links.number[k], links.other[k], links.pair[k]
        u, d_u, total = links.spread[number, j], d_spread[number, j], 0.0
        for a in range(links.states[number]):
            d_u[a] += links.weight[e] * field[a]
            total += u[a] * field[a]
        d_weight[e] += total


@njit(inner=True, **KERNEL)
def pull_spread(links, j, d_spread, d_q):
    """Cotangents of U_j to q_j; those of U_j are spent."""
    for k in range(links.user_ptr[j], links.user_ptr[j + 1]):
        number = links.user[k]
        d_u = d_spread[number, j]
        _multiply(links, number, d_u, d_q[j], True)
        d_u[:] = 0.0


@njit(**KERNEL)
def expected_links(links, q):
    """The sum over weighted pairs of E_q[theta]."""
    value = 0.0
    for i in range(q.shape[0]):
        for k in range(links.ptr[i], links.ptr[i + 1]):
            u, total = links.spread[links.number[k], links.other[k]], 0.0
            for a in range(links.states[links.number[k]]):
                total += q[i, a] * u[a]
            value += links.weight[links.pair[k]] * total
    return 0.5 * value  # every pair is met from both ends


@njit(**KERNEL)
def _multiply(links, number, v, out, transposed):
    """out = T v, or with `transposed` out += T' v."""
    L, form = links.states[number], links.form[number]
    if not transposed:
        for a in range(L):
            out[a] = 0.0
    if form == DENSE:
        table = links.table[number]
        for b in range(L):
            for a in range(L):
                out[a] += (table[b, a] if transposed else table[a, b]) * v[b]
        return
    reach, cap, total = links.reach[number], links.cap[number], 0.0
    for b in range(L):
        total += v[b]
    if form == LINEAR:
        _linear(v, out, L, reach, cap, total)
        return
    cost = links.cost[number]
    for a in range(L):
        s = cap * (total - v[a])
        for d in range(1, reach + 1):
            near = (v[a - d] if a >= d else 0.0) + (v[a + d] if a + d < L else 0.0)
            s -= (cap - cost[d]) * near
        out[a] -= s


@njit(**KERNEL)
def _linear(v, out, L, reach, cap, total):
    """out(a) -= sum_b min(|a - b|, cap) v(b): running sums of v and of the distance to it, in both directions."""
    for way in range(2):
        near, cost = 0.0, 0.0
        for k in range(L):
            a = k if way == 0 else L - 1 - k
            # all labels in reach are one further away
            cost += near
            near += v[a]
            if k > reach:
                old = v[a - reach - 1] if way == 0 else v[a + reach + 1]
                near -= old
                cost -= (reach + 1) * old
            out[a] += cap * near - cost
    for a in range(L):
        out[a] -= cap * (total + v[a])

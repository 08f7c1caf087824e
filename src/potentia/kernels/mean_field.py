"""Pairs whose table is a weight times a fixed table, in mean field: O(states) per pair.

E[theta | y_i = a] of a pair is w U_j(a) with U_j = T q_j, which depends on the other variable only. It is kept for
every variable that has such pairs, and is refreshed when the variable's own distribution changes.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from . import factors
from .factors import CURRENT, MEAN
from .machine.jit import njit
from .vecmath import KERNEL, exp

#: Ways to multiply by a table: -g(|a - b|) by a window, the same with g(d) = d by running sums, any table.
WINDOW, LINEAR, DENSE = 0, 1, 2


class WeightedPairs(
    namedtuple("WeightedPairs", "ptr other pair number weight form states reach cap cost table user_ptr user spread")
):
    """Weighted pairs around variables (CSR), and the K tables they use.

    ptr, other, pair, number: per variable its pairs' other ends, their numbers among weighted pairs, and the table
    that is multiplied with the other's distribution. weight (m): of all weighted pairs. form, states, reach, cap (K),
    cost (K, reach + 1): see `star_blocks.Profile`. table (K, L, L): of DENSE tables. user_ptr, user: per variable the
    tables whose U others read. spread (K, n, L): U.
    """


class MeanFieldModel(namedtuple("MeanFieldModel", "regions stars links theta at pair_at trees item_ptr item owner")):
    """The scores of a graph as coordinate ascent reads them.

    regions: a graph's flat regions. stars: around each variable its pairs and wider regions with separate tables.
    links: its other pairs, `WeightedPairs`. theta, at: scores, and where each region's table begins in them. pair_at:
    the same of each pair of `stars`. trees: structured factors; item_ptr, item, owner: CSR over variables of their
    items in the trees, and the factor of each item.
    """


@njit(**KERNEL)
def spread_all(links, q):
    """U_j(a) = sum_b T(a, b) q_j(b) of all variables j and the tables they use."""
    for j in range(q.shape[0]):
        spread_one(links, q, j)


@njit(inner=True, **KERNEL)
def spread_one(links, q, j):
    """U_j of one variable: its distribution times each table that its neighbours weigh."""
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


#: Stands for -inf: times a probability of exactly zero it stays zero, times any other it rules a state out.
FORBIDDEN = -1e200
#: No sum of allowed scores is as low as this, so some weight is on forbidden configurations.
HOPELESS = -1e130


@njit(allocates=True, **KERNEL)
def sweep_variables(model, variables, q):
    """q_i = softmax(theta_i + sum over its regions of E[theta | y_i]) for each of `variables` in turn, q (n, states).

    Returns the largest change of an entry of q.
    """
    regions, stars, theta, at = model.regions, model.stars, model.theta, model.at
    field, part, flat = np.empty(q.shape[1]), np.empty(q.shape[1]), q.reshape(-1)
    change = 0.0
    model.trees.factor[:, CURRENT] = -1
    for i in variables:
        n = regions.n_states[i]
        own_at = at[regions.single[i]]
        for a in range(n):
            field[a] = theta[own_at + a]
        for k in range(stars.pair_ptr[i], stars.pair_ptr[i + 1]):
            _add_pair(regions, stars, theta, model.pair_at[k], k, n, q, field)
        for k in range(stars.wide_ptr[i], stars.wide_ptr[i + 1]):
            _add_wide(regions, theta, at, stars.wide[k], stars.wide_at[k], q, field)
        add_links(model.links, i, field)
        for k in range(model.item_ptr[i], model.item_ptr[i + 1]):
            e = model.item[k]
            factors.message_out(model.trees, model.owner[e], MEAN, e, flat, 1.0, theta, part)
            for a in range(n):
                field[a] += part[a]
        change = max(change, _softmax(field, n, q, i))
        spread_one(model.links, q, i)
        for k in range(model.item_ptr[i], model.item_ptr[i + 1]):
            factors.set_leaf(model.trees, model.owner[model.item[k]], MEAN, model.item[k], flat, 1.0)
    return change


@njit(**KERNEL)
def outcome_probabilities(model, q, f, out):
    """Probabilities of the outcomes of a structured factor under q."""
    factors.read_root(model.trees, f, MEAN, q.reshape(-1), 1.0, model.theta, out)


@njit(inline="always", **KERNEL)
def _softmax(field, n, q, i):
    """Replace q_i by the softmax of its field; the largest change."""
    change = 0.0
    if n == 2:  # one exponential will do
        small = exp(-abs(field[1] - field[0]))
        large = 1.0 / (1.0 + small)
        field[0], field[1] = (large, small * large) if field[0] >= field[1] else (small * large, large)
    else:
        peak, total = field[0], 0.0
        for a in range(1, n):
            peak = max(peak, field[a])
        for a in range(n):
            field[a] = exp(field[a] - peak)
            total += field[a]
        for a in range(n):
            field[a] /= total
    for a in range(n):
        change = max(change, abs(field[a] - q[i, a]))
        q[i, a] = field[a]
    return change


@njit(inline="always", **KERNEL)
def _add_pair(regions, stars, theta, base, k, n, q, field):
    """field(a) += E_q[theta | y_i = a] of the k-th pair, whose table begins at `base`."""
    j, own, step = stars.other[k], stars.own[k], stars.step[k]
    if n == 2 and regions.n_states[j] == 2:
        p0, p1 = q[j, 0], q[j, 1]
        field[0] += theta[base] * p0 + theta[base + step] * p1
        field[1] += theta[base + own] * p0 + theta[base + own + step] * p1
        return
    for b in range(regions.n_states[j]):
        for a in range(n):
            field[a] += theta[base + a * own + b * step] * q[j, b]


@njit(**KERNEL)
def _add_wide(regions, theta, at, r, here, q, field):
    """field(a) += E_q[theta_r | the variable at scope position `here` is in state a], for three variables and more."""
    first, last = regions.scope_ptr[r], regions.scope_ptr[r + 1]
    own, n = regions.stride[here], regions.n_states[regions.scope[here]]
    for y in range(regions.size[r]):
        weight = _product(regions, first, last, here, y, q)
        if weight > 0.0:
            field[(y // own) % n] += theta[at[r] + y] * weight


@njit(**KERNEL)
def _product(regions, first, last, without, y, q):
    """Probability under q of configuration y of a region's variables, one of them left out (-1: none)."""
    weight = 1.0
    for k in range(first, last):
        if k != without:
            j = regions.scope[k]
            weight *= q[j, (y // regions.stride[k]) % regions.n_states[j]]
    return weight


@njit(inner=True, **KERNEL)
def _fill_products(regions, q, r, out):
    """Probabilities under q of all configurations of a region."""
    first, last = regions.scope_ptr[r], regions.scope_ptr[r + 1]
    if last - first == 2:
        i, j = regions.scope[first], regions.scope[first + 1]
        n = regions.n_states[j]
        for a in range(regions.n_states[i]):
            for b in range(n):
                out[a * n + b] = q[i, a] * q[j, b]
    else:
        for y in range(regions.size[r]):
            out[y] = _product(regions, first, last, -1, y, q)


@njit(**KERNEL)
def product_marginals(regions, q, start, stop, out_at, out):
    """Product marginals of regions start..stop into `out`, that of region r from out_at[r - start] on."""
    for r in range(start, stop):
        _fill_products(regions, q, r, out[out_at[r - start] :])


@njit(allocates=True, **KERNEL)
def expected_scores(regions, theta, at, q, taken, start, stop, out):
    """out[r] = E_q[theta] of regions start..stop, 0 of those that are not `taken`."""
    most = 1
    for r in range(start, stop):
        most = max(most, regions.size[r] if taken[r] else 1)
    p = np.empty(most)
    for r in range(start, stop):
        out[r] = 0.0
        if taken[r]:
            _fill_products(regions, q, r, p)
            for y in range(regions.size[r]):
                out[r] += p[y] * theta[at[r] + y] if p[y] > 0.0 else 0.0


@njit(allocates=True, **KERNEL)
def reverse_variables(model, variables, q, d_q, d_theta, d_spread, d_weight, old, back):
    """Undo the updates of `variables`, made in this order; `old` holds the marginals before.

    d_spread: cotangents of `WeightedPairs.spread`, zero before and after; d_weight (m): of the weights. back: of trees.
    """
    flat, d_flat, t = q.reshape(-1), d_q.reshape(-1), model.trees
    t.factor[:, CURRENT] = -1
    regions, stars, links, theta, at = model.regions, model.stars, model.links, model.theta, model.at
    field = np.empty(q.shape[1])
    for s in range(variables.size - 1, -1, -1):
        i = variables[s]
        n = regions.n_states[i]
        pull_spread(links, i, d_spread, d_q)
        for k in range(model.item_ptr[i], model.item_ptr[i + 1]):
            e = model.item[k]
            factors.walk_back(t, back, model.owner[e], MEAN, e, flat, 1.0, theta, d_flat)
        mean = 0.0
        for a in range(n):
            mean += q[i, a] * d_q[i, a]
        own_at = at[regions.single[i]]
        for a in range(n):
            field[a] = q[i, a] * (d_q[i, a] - mean)
            d_theta[own_at + a] += field[a]
            d_q[i, a] = 0.0
        for k in range(stars.pair_ptr[i], stars.pair_ptr[i + 1]):
            _pull_pair(regions, stars, theta, model.pair_at[k], k, n, q, field, d_q, d_theta)
        for k in range(stars.wide_ptr[i], stars.wide_ptr[i + 1]):
            r = stars.wide[k]
            _pull_product(regions, at[r], r, stars.wide_at[k], q, field, theta, d_q, d_theta)
        pull_links(links, i, field, d_spread, d_weight)
        for k in range(model.item_ptr[i], model.item_ptr[i + 1]):
            factors.pull_message(t, back, model.owner[model.item[k]], model.item[k], 1.0, field)
        for a in range(n):
            q[i, a] = old[i, a]
        spread_one(links, q, i)
        for k in range(model.item_ptr[i], model.item_ptr[i + 1]):
            factors.set_leaf(t, model.owner[model.item[k]], MEAN, model.item[k], flat, 1.0)
    for f in range(t.factor.shape[0] - 1):
        if t.factor[f, CURRENT] >= 0:
            factors.finish_back(t, back, f, MEAN, flat, 1.0, d_flat, d_theta)
    for j in range(q.shape[0]):
        pull_spread(links, j, d_spread, d_q)


@njit(inline="always", **KERNEL)
def _pull_pair(regions, stars, theta, base, k, n, q, field, d_q, d_theta):
    """Cotangent of E_q[theta | y_i = a] of the k-th pair, whose table begins at `base`."""
    j, own, step = stars.other[k], stars.own[k], stars.step[k]
    if n == 2 and regions.n_states[j] == 2:
        p0, p1, f0, f1 = q[j, 0], q[j, 1], field[0], field[1]
        d_q[j, 0] += f0 * theta[base] + f1 * theta[base + own]
        d_q[j, 1] += f0 * theta[base + step] + f1 * theta[base + own + step]
        d_theta[base] += f0 * p0
        d_theta[base + own] += f1 * p0
        d_theta[base + step] += f0 * p1
        d_theta[base + own + step] += f1 * p1
        return
    for b in range(regions.n_states[j]):
        pulled = 0.0
        for a in range(n):
            y = base + a * own + b * step
            d_theta[y] += field[a] * q[j, b]
            pulled += field[a] * theta[y]
        d_q[j, b] += pulled


@njit(**KERNEL)
def _pull_product(regions, base, r, here, q, field, theta, d_q, d_theta):
    """Cotangent of E_q[theta_r | y_i = a] of the variable at scope position `here`, for three variables and more."""
    first, last = regions.scope_ptr[r], regions.scope_ptr[r + 1]
    own, n = regions.stride[here], regions.n_states[regions.scope[here]]
    for y in range(regions.size[r]):
        weight = field[(y // own) % n]
        d_theta[base + y] += weight * _product(regions, first, last, here, y, q)
        for k in range(first, last):
            if k != here:
                rest = 1.0
                for other in range(first, last):
                    if other != here and other != k:
                        j = regions.scope[other]
                        rest *= q[j, (y // regions.stride[other]) % regions.n_states[j]]
                j = regions.scope[k]
                d_q[j, (y // regions.stride[k]) % regions.n_states[j]] += weight * theta[base + y] * rest


@njit(**KERNEL)
def reverse_products(regions, q, taken, d_out, out_at, d_q, model, back):
    """Cotangents of product marginals of regions that are `taken`, region r at d_out[out_at[r]], pulled back to q."""
    for r in range(regions.size.size):
        if not taken[r]:
            continue
        f = model.trees.of[r]
        if f >= 0:
            flat, d_part = q.reshape(-1), d_out[out_at[r] : out_at[r] + regions.size[r]]
            factors.pull_probabilities(model.trees, back, f, flat, model.theta, d_part, d_q.reshape(-1))
            continue
        first, last = regions.scope_ptr[r], regions.scope_ptr[r + 1]
        if last - first == 2:
            i, j = regions.scope[first], regions.scope[first + 1]
            n = regions.n_states[j]
            for a in range(regions.n_states[i]):
                for b in range(n):
                    d = d_out[out_at[r] + a * n + b]
                    d_q[i, a] += d * q[j, b]
                    d_q[j, b] += d * q[i, a]
            continue
        for y in range(regions.size[r]):
            for k in range(first, last):
                j = regions.scope[k]
                a = (y // regions.stride[k]) % regions.n_states[j]
                d_q[j, a] += d_out[out_at[r] + y] * _product(regions, first, last, k, y, q)

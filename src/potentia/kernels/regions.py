"""The star update for regions of any order and any links, in score units, and the regions' mutual informations."""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from . import factors
from .factors import CURRENT, FIRST, ITEM, MAX, SUM
from .machine.jit import njit
from .pairs import smooth_max
from .vecmath import KERNEL, TINY, exp, log


class RegionGraph(
    namedtuple(
        "RegionGraph",
        "theta at size counting total maximum parent child lam_at map_at maps down_ptr down up_ptr up lam belief "
        "belief_at trees",
    )
):
    """Everything an update reads and writes, flat.

    theta, at, size: scores, each region's offset in them and number of entries. counting: c. total: C.
    parent, child, lam_at, map_at (per link): regions, offset of the message, offset of the map from the parent's
    configurations to the child's in `maps`. down_ptr, down: links of each region as parent; up_ptr, up: as child.
    lam: messages. belief, belief_at: marginals (`maximum`: max-beliefs shifted to maximum 0) and offsets.
    trees: structured factors, `factors.FactorTrees`: regions whose entries are outcomes.
    """


@njit(allocates=True, **KERNEL)
def sweep_regions(g, units, damping, write):
    """Update the regions in `units` one after another; without `write` only beliefs are refreshed.

    Returns the largest change of a belief and a region in which no configuration is left (-1: none).
    """
    largest, most = 1, 1
    for link in range(g.parent.size):
        largest = max(largest, g.size[g.parent[link]])
    for u in units:
        most = max(most, (g.up_ptr[u + 1] - g.up_ptr[u]) * g.size[u])
        largest = max(largest, g.size[u])
    work, q, messages = np.empty(largest), np.empty(largest), np.empty(most)
    change, empty = 0.0, -1
    g.trees.factor[:, CURRENT] = -1
    for u in units:
        n, first = g.size[u], g.up_ptr[u]
        _down_belief(g, u, -1, q)
        for k in range(g.up_ptr[u + 1] - first):
            m = messages[k * n : (k + 1) * n]
            _message(g, g.up[first + k], work, m)
            for y in range(n):
                q[y] += m[y]
        if write:
            change = max(change, _write(g, u, q, messages, damping))
            _renew_leaves(g, u)
        moved, alive = _refresh(g, u, q[:n])
        change = max(change, moved)
        if not alive:
            empty = u
    return change, empty


@njit(allocates=True, **KERNEL)
def residual_regions(g, units, priority, reach_ptr, reach, damping):
    """As many updates as there are `units`, always of the one whose surroundings changed most since its own.

    priority, reach_ptr, reach are indexed by position in `units`. A tournament tree finds the largest priority:
    an update costs its own work plus the logarithm of the number of units for each unit it reaches.
    """
    n, leaves = units.size, 1
    while leaves < n:
        leaves *= 2
    winner = np.full(2 * leaves, -1, dtype=np.int64)
    for k in range(n):
        winner[leaves + k] = k
    for node in range(leaves - 1, 0, -1):
        winner[node] = _winner(priority, winner[2 * node], winner[2 * node + 1])
    one = np.empty(1, dtype=np.int64)
    empty = -1
    for _ in range(n):
        k = winner[1]
        one[0] = units[k]
        change, none_left = sweep_regions(g, one, damping, True)
        priority[k] = damping * change  # what a damped update leaves to do
        _replay(priority, winner, leaves + k)
        for j in range(reach_ptr[k], reach_ptr[k + 1]):
            if priority[reach[j]] < change:
                priority[reach[j]] = change
                _replay(priority, winner, leaves + reach[j])
        empty = max(empty, none_left)
    return empty


@njit(**KERNEL)
def _winner(priority, left, right):
    """The unit of the larger priority, the first of equal ones; -1 is none."""
    return left if right < 0 or priority[left] >= priority[right] else right


@njit(**KERNEL)
def _replay(priority, winner, leaf):
    """Put right the matches above a leaf whose priority changed."""
    node = leaf // 2
    while node > 0:
        winner[node] = _winner(priority, winner[2 * node], winner[2 * node + 1])
        node //= 2


@njit(**KERNEL)
def _down_belief(g, region, without, out):
    """theta + sum over child links (except `without`) of lam; -inf spreads.

    Of a structured factor, per outcome theta + c log of the sum over its configurations.
    """
    k = g.trees.of[region]
    if k >= 0:
        c = g.counting[region]
        factors.read_root(g.trees, k, _mode(g), g.lam, c, g.theta, out[: g.size[region]])
        for y in range(g.size[region]):
            out[y] = g.theta[g.at[region] + y] + (out[y] if g.maximum else c * out[y])
        return
    for y in range(g.size[region]):
        out[y] = g.theta[g.at[region] + y]
    for k in range(g.down_ptr[region], g.down_ptr[region + 1]):
        link = g.down[k]
        if link != without:
            start, to = g.lam_at[link], g.map_at[link]
            for y in range(g.size[region]):
                out[y] += g.lam[start + g.maps[to + y]]


@njit(**KERNEL)
def _full_belief(g, region, without, out):
    """b = theta + child messages (except `without`) - parent messages; dead configurations stay at -inf."""
    _down_belief(g, region, without, out)
    for k in range(g.up_ptr[region], g.up_ptr[region + 1]):
        start = g.lam_at[g.up[k]]
        for y in range(g.size[region]):
            v = g.lam[start + y]
            out[y] = out[y] - v if v > -np.inf else -np.inf


@njit(inner=True, **KERNEL)
def _mode(g):
    return MAX if g.maximum else SUM


@njit(**KERNEL)
def _renew_leaves(g, u):
    """Leaves of structured factors above a region from its new messages."""
    for j in range(g.up_ptr[u], g.up_ptr[u + 1]):
        parent = g.parent[g.up[j]]
        if g.trees.of[parent] >= 0:
            factors.set_leaf(g.trees, g.trees.of[parent], _mode(g), g.trees.entry[g.up[j]], g.lam, g.counting[parent])


@njit(allocates=True, **KERNEL)
def _message(g, link, work, out):
    """m(y_nu) = c log sum over the rest of exp(b without lam / c) of the link's parent (`maximum`: max)."""
    parent, to = g.parent[link], g.map_at[link]
    c = g.counting[parent]
    if g.trees.of[parent] >= 0:
        factors.message_out(g.trees, g.trees.of[parent], _mode(g), g.trees.entry[link], g.lam, c, g.theta, out)
        return
    _full_belief(g, parent, link, work)
    out[:] = -np.inf
    for y in range(g.size[parent]):
        k = g.maps[to + y]
        out[k] = max(out[k], work[y])
    if g.maximum:
        return
    total = np.zeros(out.size)
    for y in range(g.size[parent]):
        peak = out[g.maps[to + y]]
        work[y] = (work[y] - (peak if peak > -np.inf else 0.0)) / c
    for y in range(g.size[parent]):
        work[y] = exp(work[y])
    for y in range(g.size[parent]):
        total[g.maps[to + y]] += work[y]
    for k in range(out.size):
        if out[k] > -np.inf:
            out[k] += c * log(total[k])


@njit(**KERNEL)
def _write(g, u, q, messages, damping):
    """lam = (c_eta / C) Q - m, shifted to maximum 0; -inf where Q is. Returns how far damping keeps lam from that."""
    n, lag = g.size[u], 0.0
    for k in range(g.up_ptr[u + 1] - g.up_ptr[u]):
        link = g.up[g.up_ptr[u] + k]
        m = messages[k * n : (k + 1) * n]
        out = g.lam[g.lam_at[link] : g.lam_at[link] + n]
        weight = g.counting[g.parent[link]] / g.total[u]
        peak = -np.inf
        for y in range(n):
            m[y] = weight * q[y] - m[y] if q[y] > -np.inf else -np.inf
            peak = max(peak, m[y])
        for y in range(n):
            v = m[y] - peak
            if damping > 0.0:
                c = g.counting[g.parent[link]]
                lag = max(lag, abs(exp(v / c) - exp(out[y] / c)))
                v = (1.0 - damping) * v + damping * out[y] if v > -np.inf and out[y] > -np.inf else v
            out[y] = v
    return lag


@njit(**KERNEL)
def _refresh(g, u, q):
    """softmax(Q / C) into the belief of region u; its largest change and whether any configuration is left."""
    old = g.belief[g.belief_at[u] : g.belief_at[u] + q.size]
    peak, total, change = q[0], 0.0, 0.0
    for y in range(q.size):
        peak = max(peak, q[y])
    for y in range(q.size):
        q[y] = q[y] - peak if g.maximum else exp((q[y] - peak) / g.total[u])
        total += q[y]
    for y in range(q.size):
        if not g.maximum:
            q[y] /= total
        moved = abs(q[y] - old[y])
        change = moved if moved > change else change
        old[y] = q[y]
    return change, peak > -np.inf


@njit(allocates=True, **KERNEL)
def read_regions(g, start, stop, out):
    """Beliefs of parentless regions among start..stop, and out[r] = c log sum exp(b / c) of all of them.

    With `maximum` every belief becomes the indicator of its best configuration.
    """
    largest = 1
    for r in range(start, stop):
        largest = max(largest, g.size[r])
    work = np.empty(largest)
    for r in range(start, stop):
        b = work[: g.size[r]]
        _full_belief(g, r, -1, b)
        belief = g.belief[g.belief_at[r] : g.belief_at[r] + g.size[r]]
        if g.up_ptr[r] == g.up_ptr[r + 1]:
            peak = np.max(b)
            for y in range(b.size):
                belief[y] = b[y] - peak if g.maximum else exp((b[y] - peak) / g.counting[r])
            if not g.maximum:
                belief /= belief.sum()
        if g.maximum:
            best = np.argmax(belief)
            belief[:] = 0.0
            belief[best] = 1.0
        out[r] = smooth_max(b, 0.0 if g.maximum else g.counting[r])


@njit(**KERNEL)
def message_terms(g, start, stop, out):
    """b - theta of regions start..stop, one after another in `out`: child messages minus parent messages."""
    at = 0
    for r in range(start, stop):
        part = out[at : at + g.size[r]]
        _full_belief(g, r, -1, part)
        for y in range(g.size[r]):
            part[y] -= g.theta[g.at[r] + y]
        at += g.size[r]


@njit(allocates=True, **KERNEL)
def reverse_regions(g, d_theta, d_lam, units, damping, old, back):
    """Undo the updates of `units`, made in this order; `old` holds the messages before.

    d_theta is aligned with g.theta, d_lam with g.lam. back: `factors.FactorCotangents` beside g.trees.
    """
    work, dm, dq = _scratch(g)
    g.trees.factor[:, CURRENT] = -1
    for j in range(units.size - 1, -1, -1):
        u = units[j]
        n = g.size[u]
        dq[:n] = 0.0
        for k in range(g.up_ptr[u], g.up_ptr[u + 1]):
            link = g.up[k]
            parent = g.parent[link]
            f, c = g.trees.of[parent], g.counting[parent]
            if f >= 0:
                factors.walk_back(g.trees, back, f, SUM, g.trees.entry[link], g.lam, c, g.theta, d_lam)
            weight = c / g.total[u]
            # shifts of messages carry no gradient; a sum left by rounding would grow under Bethe's counting numbers
            d_lam[g.lam_at[link] : g.lam_at[link] + n] -= d_lam[g.lam_at[link] : g.lam_at[link] + n].mean()
            for y in range(n):
                dq[y] += (1.0 - damping) * weight * d_lam[g.lam_at[link] + y]
        for k in range(g.up_ptr[u], g.up_ptr[u + 1]):
            at = g.lam_at[g.up[k]]
            for y in range(n):
                dm[y] = dq[y] - (1.0 - damping) * d_lam[at + y]
                d_lam[at + y] *= damping
            _pull_message(g, d_theta, d_lam, g.up[k], dm, work, back)
        _pull_down(g, d_theta, d_lam, u, dq, -1)
        for k in range(g.up_ptr[u], g.up_ptr[u + 1]):
            at = g.lam_at[g.up[k]]
            g.lam[at : at + n] = old[at : at + n]
        _renew_leaves(g, u)
    for r in range(g.size.size):
        k = g.trees.of[r]
        if k >= 0 and g.trees.factor[k, CURRENT] >= 0:
            factors.finish_back(g.trees, back, k, SUM, g.lam, g.counting[r], d_lam, d_theta)


@njit(allocates=True, **KERNEL)
def reverse_read(g, d_theta, d_lam, d_belief, back):
    """Cotangents of all regions' marginals pulled back to messages and scores."""
    work, dm, dq = _scratch(g)
    for r in range(g.size.size):
        k = g.trees.of[r]
        if k >= 0:
            factors.begin_back(g.trees, back, k, SUM, g.lam, g.counting[r], g.theta)
    for r in range(g.size.size):
        n, at = g.size[r], g.belief_at[r]
        mean = 0.0
        for y in range(n):
            mean += g.belief[at + y] * d_belief[at + y]
        inner = g.up_ptr[r] < g.up_ptr[r + 1]
        scale = 1.0 / (g.total[r] if inner else g.counting[r])
        for y in range(n):
            dq[y] = scale * g.belief[at + y] * (d_belief[at + y] - mean)
        for k in range(g.up_ptr[r], g.up_ptr[r + 1]):
            dm[:n] = dq[:n]
            _pull_message(g, d_theta, d_lam, g.up[k], dm, work, back)
        if g.trees.of[r] < 0:
            _pull_down(g, d_theta, d_lam, r, dq, -1)
        else:
            factors.pull_root(g.trees, back, g.trees.of[r], g.counting[r], g.theta, dq[:n], d_theta)
    for r in range(g.size.size):
        k = g.trees.of[r]
        if k >= 0:
            c = g.counting[r]
            for p in range(g.trees.factor[k + 1, FIRST] - 1, g.trees.factor[k, FIRST] - 1, -1):
                factors.walk_back(g.trees, back, k, SUM, g.trees.leaves[p, ITEM], g.lam, c, g.theta, d_lam)
            factors.finish_back(g.trees, back, k, SUM, g.lam, c, d_lam, d_theta)


@njit(inline="always", **KERNEL)
def _scratch(g):
    """Room for the largest region: its belief, a message, a product."""
    largest = 1
    for r in range(g.size.size):
        largest = max(largest, g.size[r])
    return np.empty(largest), np.empty(largest), np.empty(largest)


@njit(**KERNEL)
def _pull_down(g, d_theta, d_lam, region, d_b, without):
    """Cotangent of theta + sum over child links (except `without`) of lam."""
    for y in range(g.size[region]):
        d_theta[g.at[region] + y] += d_b[y]
    for k in range(g.down_ptr[region], g.down_ptr[region + 1]):
        link = g.down[k]
        if link != without:
            start, to = g.lam_at[link], g.map_at[link]
            for y in range(g.size[region]):
                d_lam[start + g.maps[to + y]] += d_b[y]


@njit(allocates=True, **KERNEL)
def _pull_message(g, d_theta, d_lam, link, dm, work, back):
    """From the cotangent of m(y_nu) to everything in its parent's belief without that link's message."""
    parent, to, n = g.parent[link], g.map_at[link], g.size[g.child[link]]
    c = g.counting[parent]
    if g.trees.of[parent] >= 0:
        factors.pull_message(g.trees, back, g.trees.of[parent], g.trees.entry[link], c, dm)
        return
    _full_belief(g, parent, link, work)
    peak, total = np.full(n, -np.inf), np.zeros(n)
    for y in range(g.size[parent]):
        k = g.maps[to + y]
        peak[k] = max(peak[k], work[y])
    for y in range(g.size[parent]):
        top = peak[g.maps[to + y]]
        work[y] = exp((work[y] - (top if top > -np.inf else 0.0)) / c)
        total[g.maps[to + y]] += work[y]
    for y in range(g.size[parent]):
        k = g.maps[to + y]
        work[y] = dm[k] * work[y] / total[k] if total[k] > 0.0 else 0.0
    _pull_down(g, d_theta, d_lam, parent, work, link)
    for k in range(g.up_ptr[parent], g.up_ptr[parent + 1]):
        start = g.lam_at[g.up[k]]
        for y in range(g.size[parent]):
            d_lam[start + y] -= work[y]


@njit(allocates=True, **KERNEL)
def information(scopes, n_states, weight, counting, theta, mu, singles, log_singles, d_mu, d_singles):
    """sum over cliques of w (theta . mu - c I(mu)), I = sum mu (log mu - sum_i log mu_i); adds its derivatives.

    scopes (m, k); theta, mu and d_mu hold the cliques' own tables one after another; singles (n, states).
    Configurations of probability zero, or next to it, take no part.
    """
    if scopes.shape[1] == 2:
        return _of_pairs(scopes, n_states, weight, counting, theta, mu, singles, log_singles, d_mu, d_singles)
    value, at = 0.0, 0
    for r in range(scopes.shape[0]):
        size = 1
        for k in range(scopes.shape[1]):
            size *= n_states[scopes[r, k]]
        w, c = weight[r], weight[r] * counting[r]
        for y in range(size):
            p = mu[at + y]
            if p >= TINY:
                ratio = log(p)
                step = size
                for k in range(scopes.shape[1]):
                    i = scopes[r, k]
                    step //= n_states[i]
                    a = (y // step) % n_states[i]
                    ratio -= log_singles[i, a]
                    if singles[i, a] > 0.0:
                        d_singles[i, a] += c * p / singles[i, a]
                value += p * (w * theta[at + y] - c * ratio)
                d_mu[at + y] = w * theta[at + y] - c * (ratio + 1.0)
        at += size
    return value


@njit(allocates=True, **KERNEL)
def _of_pairs(scopes, n_states, weight, counting, theta, mu, singles, log_singles, d_mu, d_singles):
    """`information` of pairs, a row of a table at a time."""
    values, columns = np.zeros(singles.shape[1]), np.empty(singles.shape[1])
    at = 0
    for r in range(scopes.shape[0]):
        i, j = scopes[r, 0], scopes[r, 1]
        n, w, c = n_states[j], weight[r], weight[r] * counting[r]
        for b in range(n):
            columns[b] = 0.0
        for a in range(n_states[i]):
            p, score, out = mu[at : at + n], theta[at : at + n], d_mu[at : at + n]
            own, others = log_singles[i, a], log_singles[j]
            for b in range(n):
                part = w * score[b] - c * (log(p[b]) - own - others[b])
                out[b] = part - c if p[b] >= TINY else 0.0
                values[b] += p[b] * part if p[b] >= TINY else 0.0
                columns[b] += p[b] if p[b] >= TINY else 0.0
            row = 0.0
            for b in range(n):
                row += p[b] if p[b] >= TINY else 0.0
            if singles[i, a] > 0.0:
                d_singles[i, a] += c * row / singles[i, a]
            at += n
        for b in range(n):
            d_singles[j, b] += c * columns[b] / singles[j, b] if singles[j, b] > 0.0 else 0.0
    value = 0.0
    for b in range(values.size):
        value += values[b]
    return value

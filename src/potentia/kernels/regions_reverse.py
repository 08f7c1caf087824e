"""The reverse of the star update for regions of any order and any links, in score units."""

from __future__ import annotations

import numpy as np

from .machine.jit import njit
from .regions import _full_belief
from .vecmath import KERNEL, exp


@njit(allocates=True, **KERNEL)
def reverse_regions(g, d_theta, d_lam, units, damping, old):
    """Undo the updates of `units`, made in this order; `old` holds the messages before.

    d_theta is aligned with g.theta, d_lam with g.lam.
    """
    work, dm, dq = _scratch(g)
    for j in range(units.size - 1, -1, -1):
        u = units[j]
        n = g.size[u]
        dq[:n] = 0.0
        for k in range(g.up_ptr[u], g.up_ptr[u + 1]):
            link = g.up[k]
            weight = g.counting[g.parent[link]] / g.total[u]
            # shifts of messages carry no gradient; a sum left by rounding would grow under Bethe's counting numbers
            d_lam[g.lam_at[link] : g.lam_at[link] + n] -= d_lam[g.lam_at[link] : g.lam_at[link] + n].mean()
            for y in range(n):
                dq[y] += (1.0 - damping) * weight * d_lam[g.lam_at[link] + y]
        for k in range(g.up_ptr[u], g.up_ptr[u + 1]):
            at = g.lam_at[g.up[k]]
            for y in range(n):
                dm[y] = dq[y] - (1.0 - damping) * d_lam[at + y]
                d_lam[at + y] *= damping
            _pull_message(g, d_theta, d_lam, g.up[k], dm, work)
        _pull_down(g, d_theta, d_lam, u, dq, -1)
        for k in range(g.up_ptr[u], g.up_ptr[u + 1]):
            at = g.lam_at[g.up[k]]
            g.lam[at : at + n] = old[at : at + n]


@njit(allocates=True, **KERNEL)
def reverse_read(g, d_theta, d_lam, d_belief):
    """Cotangents of all regions' marginals pulled back to messages and scores."""
    work, dm, dq = _scratch(g)
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
            _pull_message(g, d_theta, d_lam, g.up[k], dm, work)
        _pull_down(g, d_theta, d_lam, r, dq, -1)


@njit(inline="always", **KERNEL)
def _scratch(g):
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
def _pull_message(g, d_theta, d_lam, link, dm, work):
    """From the cotangent of m(y_nu) to everything in its parent's belief without that link's message."""
    parent, to, n = g.parent[link], g.map_at[link], g.size[g.child[link]]
    c = g.counting[parent]
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

"""Gaussian filtering of points in a few dimensions by the permutohedral lattice [Adams, Baek and Davis 2010].

A point lies in a simplex of d + 1 lattice vertices, which it shares its values out to by barycentric weights (splat).
Values of vertices are blurred with (1/2, 1, 1/2) along the d + 1 axes of the lattice, one after another, and a point
collects those of its vertices (slice). The lattice is scaled so that all of this is about exp(-|f_i - f_j|^2 / 2).
"""

from __future__ import annotations

import numpy as np

from .machine.jit import njit
from .vecmath import KERNEL


@njit(allocates=True, **KERNEL)
def build(features, table, vertex, weight, keys):
    """Vertices and weights of every point (n, d + 1), numbered from 1; the vertices' coordinates; how many there are.

    table: a power of two of hash slots, at least twice the vertices that there may be, all 0. keys (vertices, d): room
    for the first d coordinates of each vertex; the last is minus their sum.
    """
    n, d = features.shape
    high, near, rank = np.empty(d + 1), np.empty(d + 1, dtype=np.int64), np.empty(d + 1, dtype=np.int64)
    share, key = np.empty(d + 2), np.empty(d, dtype=np.int64)
    found = 0
    for i in range(n):
        _elevate(features[i], high)
        _enclose(high, near, rank, share)
        for r in range(d + 1):
            for k in range(d):
                key[k] = near[k] + (r if rank[k] <= d - r else r - d - 1)
            number = _lookup(table, keys, key)
            if number == 0:
                found += 1
                number = found
                _insert(table, keys, key, number)
            vertex[i, r], weight[i, r] = number, share[r]
    return found


@njit(**KERNEL)
def _elevate(point, high):
    """The point in the hyperplane of d + 1 coordinates that sum to zero, scaled to the width of the blur."""
    d = point.size
    total = 0.0
    for k in range(d, 0, -1):
        scaled = point[k - 1] * (d + 1) * np.sqrt(2.0 / 3.0) / np.sqrt(k * (k + 1.0))
        high[k] = total - k * scaled
        total += scaled
    high[0] = total


@njit(**KERNEL)
def _enclose(high, near, rank, share):
    """The simplex of a point: its vertex of remainder 0, the order of coordinates, and barycentric weights."""
    d = high.size - 1
    excess = 0
    for k in range(d + 1):
        down = np.int64(np.floor(high[k] / (d + 1))) * (d + 1)
        near[k] = down if high[k] - down <= down + d + 1 - high[k] else down + d + 1
        excess += near[k]
        rank[k] = 0
    excess //= d + 1
    for k in range(d + 1):
        for j in range(k + 1, d + 1):
            if high[k] - near[k] < high[j] - near[j]:
                rank[k] += 1
            else:
                rank[j] += 1
    # coordinates rounded too far in one direction go back, those that are closest to the other side first
    for k in range(d + 1):
        rank[k] += excess
        if rank[k] > d:
            rank[k] -= d + 1
            near[k] -= d + 1
        elif rank[k] < 0:
            rank[k] += d + 1
            near[k] += d + 1
    share[:] = 0.0
    for k in range(d + 1):
        part = (high[k] - near[k]) / (d + 1)
        share[d - rank[k]] += part
        share[d + 1 - rank[k]] -= part
    share[0] += 1.0 + share[d + 1]


@njit(**KERNEL)
def _slot(table, keys, key):
    """Where a vertex is in the table, or would go."""
    code = np.uint64(0)
    for k in range(key.size):
        code = (code + np.uint64(key[k])) * np.uint64(0x9E3779B97F4A7C15)
        code ^= code >> np.uint64(29)
    slot = np.int64(code & np.uint64(table.size - 1))
    while table[slot] != 0:
        same = True
        for k in range(key.size):
            same &= keys[table[slot] - 1, k] == key[k]
        if same:
            break
        slot = slot + 1 if slot + 1 < table.size else 0
    return slot


@njit(**KERNEL)
def _lookup(table, keys, key):
    """The number of a vertex, 0 if it is new."""
    return table[_slot(table, keys, key)]


@njit(**KERNEL)
def _insert(table, keys, key, number):
    """Enter a lattice point under its number into the hash table."""
    table[_slot(table, keys, key)] = number
    for k in range(key.size):
        keys[number - 1, k] = key[k]


@njit(allocates=True, **KERNEL)
def neighbours(table, keys, out):
    """out (d + 1, vertices, 2): the vertices before and after each along each axis, 0 where there is none."""
    d = keys.shape[1]
    key = np.empty(d, dtype=np.int64)
    for axis in range(d + 1):
        for m in range(keys.shape[0]):
            for way in range(2):
                sign = 1 - 2 * way
                for k in range(d):
                    key[k] = keys[m, k] + sign
                if axis < d:
                    key[axis] = keys[m, axis] - sign * d
                out[axis, m, way] = _lookup(table, keys, key)


@njit(**KERNEL)
def diffuse(vertex, weight, beside, values, transposed, lattice, spare, out):
    """out = filtered values (n, C); `transposed` blurs in the opposite order. lattice, spare: (vertices + 1, C)."""
    n, channels = values.shape
    lattice[:] = 0.0
    for i in range(n):
        for r in range(vertex.shape[1]):
            row, w = lattice[vertex[i, r]], weight[i, r]
            for c in range(channels):
                row[c] += w * values[i, c]
    axes = beside.shape[0]
    for k in range(axes):
        _blur(beside[axes - 1 - k if transposed else k], lattice, spare)
        lattice, spare = spare, lattice
    scale = 1.0 / (1.0 + 2.0 ** (1 - vertex.shape[1]))
    for i in range(n):
        for c in range(channels):
            out[i, c] = 0.0
        for r in range(vertex.shape[1]):
            row, w = lattice[vertex[i, r]], scale * weight[i, r]
            for c in range(channels):
                out[i, c] += w * row[c]


@njit(**KERNEL)
def _blur(beside, old, new):
    """One axis; row 0 stands for vertices that are not there."""
    new[0] = 0.0
    for m in range(beside.shape[0]):
        here, before, after, to = old[m + 1], old[beside[m, 0]], old[beside[m, 1]], new[m + 1]
        for c in range(old.shape[1]):
            to[c] = here[c] + 0.5 * (before[c] + after[c])


@njit(**KERNEL)
def own_response(weight, out):
    """The weight of a point's value in its filtered value, if all vertices existed.

    Vertices r and s of a simplex are r - s steps apart along different axes, or all other axes the other way.
    """
    n, sides = weight.shape
    for i in range(n):
        total = 0.0
        for r in range(sides):
            for s in range(sides):
                apart = abs(r - s)
                total += weight[i, r] * weight[i, s] * (2.0**-apart + 2.0 ** (apart - sides))
                if apart == 0:
                    total += weight[i, r] * weight[i, s] * 2.0**-sides
        out[i] = total / (1.0 + 2.0 ** (1 - sides))

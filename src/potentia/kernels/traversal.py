"""Walks over graphs: colourings, levels of a sequential order, forests."""

from __future__ import annotations

import numpy as np

from .jit import njit
from .vecmath import KERNEL


@njit(**KERNEL)
def greedy_colours(ptr, adjacent):
    """Smallest colour unused by earlier neighbours, in index order: two colours on any N-d axis grid."""
    n = ptr.size - 1
    colour = np.full(n, -1, dtype=np.int64)
    taken = np.full(n + 1, -1, dtype=np.int64)
    for i in range(n):
        for k in range(ptr[i], ptr[i + 1]):
            c = colour[adjacent[k]]
            if c >= 0:
                taken[c] = i
        c = 0
        while taken[c] == i:
            c += 1
        colour[i] = c
    return colour


@njit(**KERNEL)
def sequential_levels(ptr, adjacent, order):
    """level(i) = 1 + largest level of a neighbour that comes before i in `order`.

    Members of one level are not adjacent, and visiting level after level gives exactly what visiting one by one
    in `order` gives (anti-diagonals on a grid in raster order).
    """
    n = ptr.size - 1
    level = np.full(n, -1, dtype=np.int64)
    for step in range(n):
        i = order[step]
        highest = -1
        for k in range(ptr[i], ptr[i + 1]):
            highest = max(highest, level[adjacent[k]])
        level[i] = highest + 1
    return level


@njit(**KERNEL)
def _root(parent, i):
    while parent[i] != i:
        parent[i] = parent[parent[i]]
        i = parent[i]
    return i


@njit(**KERNEL)
def _join(scope_ptr, scope, clique, parent):
    """Join the trees of a clique's variables if all are different; whether they were."""
    first, last = scope_ptr[clique], scope_ptr[clique + 1]
    if last - first == 2:  # two walks instead of four
        one, two = _root(parent, scope[first]), _root(parent, scope[first + 1])
        parent[two] = one
        return one != two
    for k in range(first + 1, last):
        for j in range(first, k):
            if _root(parent, scope[k]) == _root(parent, scope[j]):
                return False
    for k in range(first + 1, last):
        parent[_root(parent, scope[k])] = _root(parent, scope[first])
    return True


@njit(**KERNEL)
def grow_forest(scope_ptr, scope, order, n_variables, used):
    """Kruskal: walk cliques in `order`, keep one when all its variables lie in different trees so far.

    Kept cliques get used += 1; their factor graph is acyclic. Returns how many were kept.
    """
    parent = np.arange(n_variables).astype(np.int32)
    kept = 0
    for clique in order:
        if _join(scope_ptr, scope, clique, parent):
            used[clique] += 1
            kept += 1
    return kept


@njit(**KERNEL)
def grow_even_forest(scope_ptr, scope, runs, length, most, n_variables, used):
    """`grow_forest` from the cliques used least so far, by level of use and in this order of runs of cliques.

    runs: numbers of runs of `length` neighbouring cliques, which are read in one go: no sorting, and memory in long
    pieces. used: times that each was used, at most `most`. Linear in the cliques times the levels.
    """
    parent = np.arange(n_variables).astype(np.int32)
    kept = 0
    for level in range(most + 1):
        for run in runs:
            for clique in range(run * length, min((run + 1) * length, used.size)):
                # one that was kept in this round comes again at the next level, and joins nothing then
                if used[clique] == level and _join(scope_ptr, scope, clique, parent):
                    used[clique] += 1
                    kept += 1
    return kept


@njit(**KERNEL)
def breadth_first(ptr, adjacent):
    """Variables in breadth-first order from the lowest-numbered of each component, and each one's parent (-1)."""
    n = ptr.size - 1
    parent = np.full(n, -2, dtype=np.int64)
    order = np.empty(n, dtype=np.int64)
    filled = 0
    for start in range(n):
        if parent[start] != -2:
            continue
        parent[start] = -1
        order[filled] = start
        head, filled = filled, filled + 1
        while head < filled:
            i = order[head]
            head += 1
            for k in range(ptr[i], ptr[i + 1]):
                if parent[adjacent[k]] == -2:
                    parent[adjacent[k]] = i
                    order[filled] = adjacent[k]
                    filled += 1
    return order, parent

"""Walks over graphs: colourings, levels of a sequential order, forests."""

from __future__ import annotations

from .machine.jit import njit
from .vecmath import KERNEL


@njit(**KERNEL)
def greedy_colours(ptr, adjacent, colour, taken):
    """Smallest colour unused by earlier neighbours, in index order: two colours on any N-d axis grid.

    colour (n), taken (n + 1): -1 on entry; the first is the result.
    """
    for i in range(colour.size):
        for k in range(ptr[i], ptr[i + 1]):
            c = colour[adjacent[k]]
            if c >= 0:
                taken[c] = i
        c = 0
        while taken[c] == i:
            c += 1
        colour[i] = c


@njit(**KERNEL)
def sequential_levels(ptr, adjacent, order, level):
    """level(i) = 1 + largest level of a neighbour that comes before i in `order`.

    Members of one level are not adjacent, and visiting level after level gives exactly what visiting one by one
    in `order` gives (anti-diagonals on a grid in raster order). level (n): -1 on entry.
    """
    for step in range(level.size):
        i = order[step]
        highest = -1
        for k in range(ptr[i], ptr[i + 1]):
            highest = max(highest, level[adjacent[k]])
        level[i] = highest + 1


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
def grow_forest(scope_ptr, scope, order, parent, used):
    """Kruskal: walk cliques in `order`, keep one when all its variables lie in different trees so far.

    Kept cliques get used += 1; their factor graph is acyclic. parent: every variable's own number on entry. Returns
    how many were kept.
    """
    kept = 0
    for k in range(order.size):
        if _join(scope_ptr, scope, order[k], parent):
            used[order[k]] += 1
            kept += 1
    return kept


@njit(**KERNEL)
def grow_even_forest(scope_ptr, scope, runs, length, most, parent, used):
    """`grow_forest` from the cliques used least so far, by level of use and in this order of runs of cliques.

    runs: numbers of runs of `length` neighbouring cliques, which are read consecutively: no sorting, and memory in long
    pieces. parent: every variable's own number on entry. used: times that each was used, at most `most`. Linear in
    the cliques times the levels.
    """
    kept = 0
    for level in range(most + 1):
        for k in range(runs.size):
            for clique in range(runs[k] * length, min((runs[k] + 1) * length, used.size)):
                # one that was kept in this round comes again at the next level, and joins nothing then
                if used[clique] == level and _join(scope_ptr, scope, clique, parent):
                    used[clique] += 1
                    kept += 1
    return kept


@njit(**KERNEL)
def breadth_first(ptr, adjacent, order, parent):
    """Variables in breadth-first order from the lowest-numbered of each component, and each one's parent (-1).

    order, parent (n): the results; parent -2 on entry.
    """
    filled = 0
    for start in range(order.size):
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

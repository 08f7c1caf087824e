"""Walks over graphs: colourings, levels of a sequential order, forests, elimination orders and their cliques."""

from __future__ import annotations

import heapq

import numpy as np

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


@njit(inner=True, **KERNEL)
def root(parent, i):
    """The representative of i's tree, with the path to it halved."""
    while parent[i] != i:
        parent[i] = parent[parent[i]]
        i = parent[i]
    return i


@njit(**KERNEL)
def _join(scope_ptr, scope, clique, parent):
    """Join the trees of a clique's variables if all are different; whether they were."""
    first, last = scope_ptr[clique], scope_ptr[clique + 1]
    for k in range(first + 1, last):
        for j in range(first, k):
            if root(parent, scope[k]) == root(parent, scope[j]):
                return False
    for k in range(first + 1, last):
        parent[root(parent, scope[k])] = root(parent, scope[first])
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


@njit(**KERNEL)
def _clique_cost(v, start, length, pool, card, weight, by_fill, cutoff, mark):
    """Size of the table made by eliminating v, and the weight of the edges it would add.

    mark must hold a stamp below mark[-1], which is raised here. Hubs beyond the cutoff are not looked into.
    """
    size = card[v]
    total = 0.0
    squares = 0.0
    mark[-1] += 1
    for k in range(start[v], start[v] + length[v]):
        u = pool[k]
        size *= card[u]
        total += weight[u]
        squares += weight[u] * weight[u]
        mark[u] = mark[-1]
    if size > cutoff or not by_fill:
        return size, 0.0
    present = 0.0
    for k in range(start[v], start[v] + length[v]):
        u = pool[k]
        for m in range(start[u], start[u] + length[u]):
            w = pool[m]
            if mark[w] == mark[-1]:
                present += weight[u] * weight[w]
    return size, 0.5 * (total * total - squares - present)


@njit(allocates=True, **KERNEL)
def _connect(v, start, length, room, pool, used, mark):
    """Remove v and join its neighbours; the pool (grown if need be), its end, and whether an edge is new."""
    grown = False
    for k in range(length[v]):
        u = pool[start[v] + k]
        mark[-1] += 1
        mark[u] = mark[-1]
        for m in range(start[u], start[u] + length[u]):
            if pool[m] == v:
                at = m
            mark[pool[m]] = mark[-1]
        pool[at] = pool[start[u] + length[u] - 1]
        length[u] -= 1
        missing = 0
        for m in range(start[v], start[v] + length[v]):
            missing += mark[pool[m]] != mark[-1]
        if length[u] + missing > room[u]:
            room[u] = 2 * (length[u] + missing)
            if used + room[u] > pool.size:
                larger = np.empty(2 * pool.size + room[u], dtype=np.int64)
                larger[:used] = pool[:used]
                pool = larger
            pool[used : used + length[u]] = pool[start[u] : start[u] + length[u]]
            start[u] = used
            used += room[u]
        for m in range(start[v], start[v] + length[v]):
            w = pool[m]
            if mark[w] != mark[-1]:
                pool[start[u] + length[u]] = w
                length[u] += 1
                grown = True
    return pool, used, grown


@njit(**KERNEL)
def _affected(v, start, length, pool, two_steps, mark, found):
    """Find vertices whose cost changed when v went: neighbours and, after fill, theirs; returns how many."""
    mark[-1] += 1
    mark[v] = mark[-1]
    n = 0
    for k in range(start[v], start[v] + length[v]):
        u = pool[k]
        if mark[u] != mark[-1]:
            mark[u] = mark[-1]
            found[n] = u
            n += 1
        if two_steps:
            for m in range(start[u], start[u] + length[u]):
                w = pool[m]
                if mark[w] != mark[-1]:
                    mark[w] = mark[-1]
                    found[n] = w
                    n += 1
    return n


@njit(allocates=True, **KERNEL)
def greedy_order(ptr, neighbour, card, weight, noise, by_fill, cutoff):
    """Eliminate the cheapest vertex until none is left: by added edge weight, then by table size (or noise).

    Args:
        ptr, neighbour: CSR adjacency without loops, both directions.
        card: states of each vertex (floats). weight: an added edge (a, b) costs weight[a] * weight[b].
        noise: empty, or one number per vertex that decides between equal fill.
        by_fill: whether added edges decide; otherwise the table size alone.
        cutoff: stop at the first unavoidable table beyond this size; vertices above it wait.

    Returns the order (cut short if stopped), the largest table, the sum of table sizes, the sum of clique
    sizes and the largest clique.
    """
    n = card.size
    start = ptr[:-1].copy()
    length = ptr[1:] - ptr[:-1]
    room = length.copy()
    pool = np.empty(2 * neighbour.size + 16, dtype=np.int64)
    pool[: neighbour.size] = neighbour
    used = neighbour.size
    mark = np.zeros(n + 1, dtype=np.int64)
    version = np.zeros(n, dtype=np.int64)
    found = np.empty(n, dtype=np.int64)
    order = np.empty(n, dtype=np.int64)
    heap = [(np.inf, np.inf, -1, 0)]
    heap.pop()
    for v in range(n):
        found[v] = v
    n_found, step, members, widest = n, 0, 0, 0
    largest = total = 0.0
    while step < n:
        for k in range(n_found):
            u = found[k]
            version[u] += 1
            size, fill = _clique_cost(u, start, length, pool, card, weight, by_fill, cutoff, mark)
            primary = np.inf if size > cutoff else (fill if by_fill else size)
            secondary = noise[u] if noise.size and size <= cutoff else size
            heapq.heappush(heap, (primary, secondary, u, version[u]))
        _, _, v, stamp = heapq.heappop(heap)
        while version[v] != stamp:
            _, _, v, stamp = heapq.heappop(heap)
        size, _ = _clique_cost(v, start, length, pool, card, weight, False, cutoff, mark)
        largest = max(largest, size)
        total += size
        members += length[v] + 1
        widest = max(widest, length[v] + 1)
        if size > cutoff:
            break
        order[step] = v
        step += 1
        version[v] = -1
        pool, used, grown = _connect(v, start, length, room, pool, used, mark)
        n_found = _affected(v, start, length, pool, by_fill and grown, mark, found)
    return order[:step], largest, total, members, widest


@njit(allocates=True, **KERNEL)
def order_cliques(ptr, neighbour, order, members):
    """The clique of each vertex when it is eliminated: itself and its later neighbours, as sorted positions.

    Vertices are renamed by their position in `order`. Returns a CSR (clique_ptr, clique); a row starts with
    its own position, and its second entry is the clique's parent. members: the sum of clique sizes.
    """
    n = order.size
    position = np.empty(n, dtype=np.int64)
    for p in range(n):
        position[order[p]] = p
    clique_ptr = np.zeros(n + 1, dtype=np.int64)
    clique = np.empty(members, dtype=np.int64)
    first_child = np.full(n, -1, dtype=np.int64)
    next_child = np.full(n, -1, dtype=np.int64)
    mark = np.full(n, -1, dtype=np.int64)
    end = 0
    for p in range(n):
        begin = end
        mark[p] = p
        clique[end] = p
        end += 1
        for k in range(ptr[order[p]], ptr[order[p] + 1]):
            q = position[neighbour[k]]
            if q > p and mark[q] != p:
                mark[q] = p
                clique[end] = q
                end += 1
        child = first_child[p]
        while child >= 0:
            for k in range(clique_ptr[child] + 1, clique_ptr[child + 1]):
                q = clique[k]
                if mark[q] != p:
                    mark[q] = p
                    clique[end] = q
                    end += 1
            child = next_child[child]
        clique[begin:end].sort()
        clique_ptr[p + 1] = end
        if end > begin + 1:
            parent = clique[begin + 1]
            next_child[p] = first_child[parent]
            first_child[parent] = p
    return clique_ptr, clique

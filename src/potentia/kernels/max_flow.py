"""Maximum flow by two search trees that are kept between augmentations [Boykov and Kolmogorov 2004].

Arc a runs from `head[a ^ 1]` to `head[a]`; 2k and 2k + 1 are the two directions of edge k. `terminal` holds what is
left of the source's arc to a node (positive) or of the node's arc to the sink (negative). Capacities are whole
numbers: rounding errors of floats would pass for free capacity, and join nodes to sides they do not belong to.
"""

from __future__ import annotations

import numpy as np

from .jit import njit
from .vecmath import KERNEL

_NONE, _TERMINAL, _ORPHAN = -1, -2, -3
_FAR = 1 << 60
# sides of a node
SOURCE, SINK = 0, 1


@njit(**KERNEL)
def _distance(head, parent, stamp, depth, now, j):
    """Steps from j to the root of its tree, _FAR where the way leads to an orphan."""
    d = 0
    while stamp[j] != now:
        a = parent[j]
        d += 1
        if a == _TERMINAL:
            stamp[j] = now
            depth[j] = 1
            return d
        if a == _ORPHAN:
            return _FAR
        j = head[a]
    return d + depth[j]


@njit(**KERNEL)
def _augment(head, residual, terminal, parent, middle, orphans, n_orphans):
    """Push what the path through arc `middle` (source tree to sink tree) can carry; the number of orphans."""
    push = residual[middle]
    for tree in range(2):
        i = head[middle ^ 1] if tree == SOURCE else head[middle]
        while parent[i] != _TERMINAL:
            push = min(push, residual[parent[i] ^ 1 ^ tree])
            i = head[parent[i]]
        push = min(push, abs(terminal[i]))
    residual[middle] -= push
    residual[middle ^ 1] += push
    for tree in range(2):
        i = head[middle ^ 1] if tree == SOURCE else head[middle]
        while parent[i] != _TERMINAL:
            a = parent[i] ^ 1 ^ tree
            residual[a] -= push
            residual[a ^ 1] += push
            above = head[parent[i]]
            if residual[a] == 0:
                parent[i] = _ORPHAN
                orphans[n_orphans] = i
                n_orphans += 1
            i = above
        terminal[i] += push if tree == SINK else -push
        if terminal[i] == 0:
            parent[i] = _ORPHAN
            orphans[n_orphans] = i
            n_orphans += 1
    return push, n_orphans


@njit(**KERNEL)
def _find_parent(ptr, arc, head, residual, side, parent, stamp, depth, now, i):
    """The arc to the neighbour of i's tree that is nearest to the root, _NONE if no neighbour leads there."""
    best, least, tree = _NONE, _FAR, side[i]
    for k in range(ptr[i], ptr[i + 1]):
        a = arc[k]
        j = head[a]
        if residual[a ^ 1 ^ tree] > 0 and side[j] == tree and parent[j] != _NONE:
            d = _distance(head, parent, stamp, depth, now, j)
            if d == _FAR:
                continue
            if d < least:
                best, least = a, d
            while stamp[j] != now:
                stamp[j] = now
                depth[j] = d
                d -= 1
                j = head[parent[j]]
    if best != _NONE:
        stamp[i] = now
        depth[i] = least + 1
    return best


@njit(allocates=True, **KERNEL)
def max_flow(ptr, arc, head, residual, terminal, side, limit):
    """Make the flow maximal, or stop after `limit` steps; returns its value.

    ptr, arc: CSR over nodes of the arcs that leave them. residual: capacities, overwritten by what is left.
    side: (n_nodes,) output, 0 where the source reaches a node, 1 where the node reaches the sink, 2 elsewhere, and
    everywhere if it was stopped.
    """
    n = terminal.size
    parent = np.full(n, _NONE, dtype=np.int64)
    stamp, depth = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    # active nodes in a ring; a node is in it at most once
    ring, waiting = np.empty(n + 1, dtype=np.int64), np.zeros(n, dtype=np.bool_)
    first = last = 0
    orphans = np.empty(2 * n + 2, dtype=np.int64)
    for i in range(n):
        side[i] = SOURCE if terminal[i] > 0 else SINK
        if terminal[i] != 0:
            parent[i] = _TERMINAL
            depth[i] = 1
            ring[last] = i
            last += 1
            waiting[i] = True
    flow, now, steps = 0, 0, 0
    while first != last:
        i = ring[first]
        tree = side[i]
        middle = _NONE
        if parent[i] != _NONE:
            for k in range(ptr[i], ptr[i + 1]):
                a = arc[k]
                if residual[a ^ tree] <= 0:
                    continue
                j = head[a]
                if parent[j] == _NONE:
                    side[j], parent[j], stamp[j], depth[j] = tree, a ^ 1, stamp[i], depth[i] + 1
                    if not waiting[j]:
                        waiting[j] = True
                        ring[last] = j
                        last = last + 1 if last < n else 0
                elif side[j] != tree:
                    middle = a ^ tree
                    break
                elif stamp[j] <= stamp[i] and depth[j] > depth[i]:
                    parent[j], stamp[j], depth[j] = a ^ 1, stamp[i], depth[i] + 1
        now += 1
        steps += 1
        if steps > limit:
            side[:] = 2
            return flow
        if middle == _NONE:
            waiting[i] = False
            first = first + 1 if first < n else 0
            continue
        push, end = _augment(head, residual, terminal, parent, middle, orphans, 0)
        flow += push
        begin = 0
        while begin < end:
            i = orphans[begin]
            begin += 1
            steps += 1
            parent[i] = _find_parent(ptr, arc, head, residual, side, parent, stamp, depth, now, i)
            if parent[i] != _NONE:
                continue
            for k in range(ptr[i], ptr[i + 1]):
                a = arc[k]
                j = head[a]
                if side[j] != side[i] or parent[j] == _NONE:
                    continue
                if residual[a ^ 1 ^ side[i]] > 0 and not waiting[j]:
                    waiting[j] = True
                    ring[last] = j
                    last = last + 1 if last < n else 0
                if parent[j] >= 0 and head[parent[j]] == i:
                    parent[j] = _ORPHAN
                    orphans[end] = j
                    end += 1
    for i in range(n):
        if parent[i] == _NONE:
            side[i] = 2
    return flow

"""Maximum flow by two search trees that are kept between augmentations [Boykov and Kolmogorov 2004].

Arc a runs from `head[a ^ 1]` to `head[a]`; 2k and 2k + 1 are the two directions of edge k. `terminal` holds what is
left of the source's arc to a node (positive) or of the node's arc to the sink (negative). Capacities are whole
numbers: rounding errors of floats would pass for free capacity, and join nodes to sides they do not belong to.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from .machine.jit import njit
from .vecmath import KERNEL

_NONE, _TERMINAL, _ORPHAN = -1, -2, -3
_FAR = 1 << 60
# sides of a node
SOURCE, SINK = 0, 1


class _Trees(namedtuple("_Trees", "ptr arc head residual terminal side parent stamp depth ring waiting ends orphans")):
    """The graph and its two search trees.

    ptr, arc: CSR over nodes of the arcs that leave them. parent: the arc to a node's parent. depth: steps to the root
    at the time `stamp`. ring: active nodes, each at most once, from ends[0] to ends[1]. orphans: nodes that lost their
    parent.
    """


@njit(allocates=True, **KERNEL)
def max_flow(ptr, arc, head, residual, terminal, side, limit):
    """Make the flow maximal, or stop after `limit` steps; returns its value.

    ptr, arc: CSR over nodes of the arcs that leave them. residual: capacities, overwritten by what is left.
    side: (n_nodes,) output, 0 where the source reaches a node, 1 where the node reaches the sink, 2 elsewhere, and
    everywhere if it was stopped.
    """
    n = terminal.size
    trees = _Trees(
        ptr, arc, head, residual, terminal, side, np.full(n, _NONE, dtype=np.int64),
        np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64), np.empty(n + 1, dtype=np.int64),
        np.zeros(n, dtype=np.bool_), np.zeros(2, dtype=np.int64), np.empty(2 * n + 2, dtype=np.int64),
    )  # fmt: skip
    for i in range(n):
        side[i] = SOURCE if terminal[i] > 0 else SINK
        if terminal[i] != 0:
            trees.parent[i], trees.depth[i] = _TERMINAL, 1
            _activate(trees, i)
    flow, now, steps = 0, 0, 0
    while trees.ends[0] != trees.ends[1]:
        i = trees.ring[trees.ends[0]]
        middle = _grow(trees, i) if trees.parent[i] != _NONE else _NONE
        now += 1
        steps += 1
        if steps > limit:
            side[:] = 2
            return flow
        if middle == _NONE:
            trees.waiting[i] = False
            trees.ends[0] = trees.ends[0] + 1 if trees.ends[0] < n else 0
            continue
        push, n_orphans = _augment(trees, middle)
        flow += push
        steps += _adopt(trees, n_orphans, now)
    for i in range(n):
        if trees.parent[i] == _NONE:
            side[i] = 2
    return flow


@njit(**KERNEL)
def _activate(trees, i):
    """Put a node into the ring, unless it is there."""
    if not trees.waiting[i]:
        last = trees.ends[1]
        trees.waiting[i] = True
        trees.ring[last] = i
        trees.ends[1] = last + 1 if last < trees.waiting.size else 0


@njit(**KERNEL)
def _grow(trees, i):
    """Take the free neighbours of node i into its tree; an arc from the source's tree to the sink's if one is met."""
    side, parent, stamp, depth = trees.side, trees.parent, trees.stamp, trees.depth
    tree = side[i]
    for k in range(trees.ptr[i], trees.ptr[i + 1]):
        a = trees.arc[k]
        if trees.residual[a ^ tree] <= 0:
            continue
        j = trees.head[a]
        if parent[j] == _NONE:
            side[j], parent[j], stamp[j], depth[j] = tree, a ^ 1, stamp[i], depth[i] + 1
            _activate(trees, j)
        elif side[j] != tree:
            return a ^ tree
        elif stamp[j] <= stamp[i] and depth[j] > depth[i]:
            parent[j], stamp[j], depth[j] = a ^ 1, stamp[i], depth[i] + 1
    return _NONE


@njit(**KERNEL)
def _augment(trees, middle):
    """Push what the path through arc `middle` (source tree to sink tree) can carry; that, and the number of orphans."""
    head, residual, terminal, parent = trees.head, trees.residual, trees.terminal, trees.parent
    push, n_orphans = residual[middle], 0
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
                n_orphans = _orphan(trees, n_orphans, i)
            i = above
        terminal[i] += push if tree == SINK else -push
        if terminal[i] == 0:
            n_orphans = _orphan(trees, n_orphans, i)
    return push, n_orphans


@njit(**KERNEL)
def _orphan(trees, n_orphans, i):
    """Cut node i off its parent; the number of orphans then."""
    trees.parent[i] = _ORPHAN
    trees.orphans[n_orphans] = i
    return n_orphans + 1


@njit(**KERNEL)
def _adopt(trees, n_orphans, now):
    """Find new parents for orphans, or set them free and orphan their children; the number of orphans there were."""
    done = 0
    while done < n_orphans:
        i = trees.orphans[done]
        done += 1
        trees.parent[i] = _find_parent(trees, now, i)
        if trees.parent[i] != _NONE:
            continue
        tree = trees.side[i]
        for k in range(trees.ptr[i], trees.ptr[i + 1]):
            a = trees.arc[k]
            j = trees.head[a]
            if trees.side[j] != tree or trees.parent[j] == _NONE:
                continue
            if trees.residual[a ^ 1 ^ tree] > 0:
                _activate(trees, j)
            if trees.parent[j] >= 0 and trees.head[trees.parent[j]] == i:
                n_orphans = _orphan(trees, n_orphans, j)
    return done


@njit(**KERNEL)
def _find_parent(trees, now, i):
    """The arc to the neighbour of i's tree that is nearest to the root, _NONE if no neighbour leads there."""
    best, least, tree = _NONE, _FAR, trees.side[i]
    for k in range(trees.ptr[i], trees.ptr[i + 1]):
        a = trees.arc[k]
        j = trees.head[a]
        if trees.residual[a ^ 1 ^ tree] > 0 and trees.side[j] == tree and trees.parent[j] != _NONE:
            d = _distance(trees, now, j)
            if d == _FAR:
                continue
            if d < least:
                best, least = a, d
            while trees.stamp[j] != now:
                trees.stamp[j], trees.depth[j] = now, d
                d -= 1
                j = trees.head[trees.parent[j]]
    if best != _NONE:
        trees.stamp[i], trees.depth[i] = now, least + 1
    return best


@njit(**KERNEL)
def _distance(trees, now, j):
    """Steps from j to the root of its tree, _FAR where the way leads to an orphan."""
    d = 0
    while trees.stamp[j] != now:
        a = trees.parent[j]
        d += 1
        if a == _TERMINAL:
            trees.stamp[j], trees.depth[j] = now, 1
            return d
        if a == _ORPHAN:
            return _FAR
        j = trees.head[a]
    return d + trees.depth[j]

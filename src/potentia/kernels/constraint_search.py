"""A labelling that hard constraints allow: depth-first search that keeps arc consistency after every step.

Decisions go to variables that lost states, fewest states left per conflict first [dom/wdeg, Boussemart et al. 2004],
and before that to the others in a given order; a variable takes the state of highest expected score first.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .machine.jit import njit
from .rounding import best_state, likeliest
from .support import ask, open_domains, propagate, remove
from .vecmath import KERNEL

FOUND, STOPPED, IMPOSSIBLE = 1, 0, -1
# Keys of variables that have lost nothing yet are above all others
_UNTOUCHED = 1e6


class _Heap(NamedTuple):
    """Variables by key, smallest first, some more than once; size (1)."""

    key: Any
    item: Any
    size: Any


@njit(**KERNEL)
def _push(heap, key, item):
    k = heap.size[0]
    heap.size[0] = k + 1
    while k > 0 and heap.key[(k - 1) // 2] > key:
        heap.key[k], heap.item[k] = heap.key[(k - 1) // 2], heap.item[(k - 1) // 2]
        k = (k - 1) // 2
    heap.key[k], heap.item[k] = key, item


@njit(**KERNEL)
def _pop(heap):
    top = heap.item[0]
    n = heap.size[0] - 1
    heap.size[0] = n
    key, item, k = heap.key[n], heap.item[n], 0
    while 2 * k + 1 < n:
        child = 2 * k + 1
        if child + 1 < n and heap.key[child + 1] < heap.key[child]:
            child += 1
        if heap.key[child] >= key:
            break
        heap.key[k], heap.item[k] = heap.key[child], heap.item[child]
        k = child
    heap.key[k], heap.item[k] = key, item
    return top


@njit(**KERNEL)
def _gather(d, conflict, rank, heap):
    """Refill the heap with all variables that are not decided."""
    heap.size[0] = 0
    for i in range(d.left.size):
        if d.left[i] > 1:
            _push(heap, _UNTOUCHED - conflict[i] + rank[i] / rank.size, i)


@njit(**KERNEL)
def _touch(d, conflict, rank, heap, first, last):
    """Put the variables of removals first..last on the heap."""
    if heap.size[0] + last - first >= heap.key.size:
        _gather(d, conflict, rank, heap)
    for k in range(first, last):
        i = d.variable[k]
        if d.left[i] > 1:
            _push(heap, d.left[i] / conflict[i], i)


@njit(**KERNEL)
def _undo(d, length):
    """Give back what was removed since the trail had this length."""
    for k in range(d.at[0] - 1, length - 1, -1):
        d.weight[d.variable[k], d.state[k]] = d.old[k]
        d.left[d.variable[k]] += 1
    d.at[0] = length


@njit(**KERNEL)
def _blame(regions, r, conflict):
    for k in range(regions.scope_ptr[r], regions.scope_ptr[r + 1]):
        conflict[regions.scope[k]] += 1.0


@njit(allocates=True, **KERNEL)
def find_labelling(regions, values, where, hard, weight, rank, conflict, limit, labels, room):
    """Search for an allowed labelling, at most `limit` dead ends long: FOUND, STOPPED, or IMPOSSIBLE (proven).

    hard: `support.find_hard`. weight (n_variables, states): chances of states, zero where one is excluded;
    overwritten. rank (n): the order of variables that nothing else decides. conflict (n): dead ends that variables
    took part in, at least 1, added to: a restart begins with the largest. room: `rounding.scratch`.
    """
    d = open_domains(regions, hard, weight)
    cap = 4 * rank.size + weight.size + 16
    heap = _Heap(np.empty(cap), np.empty(cap, dtype=np.int64), np.zeros(1, dtype=np.int64))
    path = np.empty((rank.size + 1, 3), dtype=np.int64)  # variable, state, length of the trail before
    if propagate(regions, values, where, d) >= 0 or np.any(d.left == 0):
        return IMPOSSIBLE
    _gather(d, conflict, rank, heap)
    depth = 0
    while heap.size[0] > 0:
        i = _pop(heap)
        if d.left[i] < 2:
            continue
        state, begin = best_state(regions, values, where, d.weight, i, room), d.at[0]
        path[depth, 0], path[depth, 1], path[depth, 2] = i, state, begin
        depth += 1
        for s in range(regions.n_states[i]):
            if s != state and d.weight[i, s] > 0.0:
                remove(d, i, s)
        ask(regions, d, i, -1)
        failed = propagate(regions, values, where, d)
        while failed >= 0:
            _blame(regions, failed, conflict)
            limit -= 1
            if depth == 0:
                return IMPOSSIBLE
            if limit < 0:
                return STOPPED
            depth -= 1
            i, state, end = path[depth, 0], path[depth, 1], d.at[0]
            _undo(d, path[depth, 2])
            _touch(d, conflict, rank, heap, path[depth, 2], end)
            begin = d.at[0]
            remove(d, i, state)
            ask(regions, d, i, -1)
            failed = propagate(regions, values, where, d)
        _touch(d, conflict, rank, heap, begin, d.at[0])
    for i in range(rank.size):
        labels[i] = likeliest(d.weight, i)
    return FOUND

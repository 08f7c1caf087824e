"""From marginals to a labelling: conditional rounding with look-ahead, arc consistency, and search for an allowed one.

`regions` is a graph's flat regions; table r of the flat scores `values` starts at where[r]. Arc consistency finds which
states the hard constraints leave, and `kept_entries` where the remaining entries lie in the full tables.
"""

from __future__ import annotations

import math
from collections import namedtuple

import numpy as np

from .labelling import better
from .machine.jit import njit
from .vecmath import KERNEL

#: Rows of the work space (5, states) of roundings: of one region the weight of what it allows and forbids beside each
#: state, and the weighted scores; of all regions how many forbid a state, and its expected score.
_MASS, _LOST, _MEAN, _BAD, _GOOD = 0, 1, 2, 3, 4
ROOM = 5


@njit(**KERNEL)
def _expect(regions, values, first, r, i, q, room):
    """Per state of i in region r, whose table begins at `first`: mass, lost and mean under q, into the work space."""
    scope, stride, n_states = regions.scope, regions.stride, regions.n_states
    for s in range(n_states[i]):
        room[_MASS, s], room[_LOST, s], room[_MEAN, s] = 0.0, 0.0, 0.0
    for k in range(regions.size[r]):
        weight, state = 1.0, 0
        for m in range(regions.scope_ptr[r], regions.scope_ptr[r + 1]):
            j = scope[m]
            digit = k // stride[m] % n_states[j]
            if j == i:
                state = digit
            else:
                weight *= q[j, digit]
        if weight > 0.0:
            value = values[first + k]
            if value == -np.inf:
                room[_LOST, state] += weight
            else:
                room[_MASS, state] += weight
                room[_MEAN, state] += weight * value


@njit(inner=True, **KERNEL)
def best_state(regions, values, where, q, i, room):
    """The state of i, among those with weight, of highest expected score when the rest follows q, up to its scale."""
    n, best = regions.n_states[i], likeliest(q, i)
    for s in range(n):
        room[_BAD, s], room[_GOOD, s] = 0.0, 0.0
    for k in range(regions.member_ptr[i], regions.member_ptr[i + 1]):
        r = regions.member[k]
        _expect(regions, values, where[r], r, i, q, room)
        for s in range(n):
            mass, lost = room[_MASS, s], room[_LOST, s]
            if mass == 0.0:
                room[_BAD, s] += 1.0
            else:
                room[_GOOD, s] += room[_MEAN, s] / mass
                if lost > 0.0:
                    room[_GOOD, s] += math.log(mass / (mass + lost))
    for s in range(n):
        if q[i, s] > 0.0 and better(room[_BAD, s], room[_GOOD, s], room[_BAD, best], room[_GOOD, best]):
            best = s
    return best


@njit(inner=True, **KERNEL)
def likeliest(q, i):
    """The first of the states of largest weight (NumPy's argmax takes longer to compile)."""
    best = 0
    for s in range(1, q.shape[1]):
        if q[i, s] > q[i, best]:
            best = s
    return best


@njit(**KERNEL)
def round_in_order(regions, values, where, q, order, labels, room):
    """Fix variables in this order, each at the state of highest expected score given those fixed before.

    The rest is taken as independent with marginals q (n_variables, states), overwritten by the labelling's
    indicators. room (ROOM, states): work space. Without -inf the result scores at least E_q[F] [method of conditional
    expectations]. A state pays the log of the share of weight that is not forbidden.
    """
    for i in order:
        labels[i] = best_state(regions, values, where, q, i, room)
        for s in range(q.shape[1]):
            q[i, s] = 1.0 if s == labels[i] else 0.0


class Domains(namedtuple("Domains", "weight left hard variable state old queue queued at support digits")):
    """States left to each variable, a way back, and the constraints still to be looked at.

    weight (n_variables, states): positive where a state is left. left (n): how many are. hard (regions): which
    forbid something. variable, state, old: the trail of removals, which restores them. queue, queued: a ring of
    regions and what is in it. at: [trail's length, ring's first, ring's length]. support, digits: scratch.
    """


@njit(**KERNEL)
def find_hard(regions, values, where, hard):
    """Mark the regions of two or more variables that forbid something."""
    for r in range(where.size):
        hard[r] = False
        if regions.scope_ptr[r + 1] - regions.scope_ptr[r] > 1:
            low = np.inf  # no way out of the loop: it then runs on vectors
            for k in range(where[r], where[r] + regions.size[r]):
                low = values[k] if values[k] < low else low
            hard[r] = low == -np.inf


@njit(inner=True, allocates=True, **KERNEL)
def open_domains(regions, hard, weight):
    """Domains of all states with a positive weight, every hard region to be looked at."""
    n, width = weight.shape
    order = 1
    for r in range(hard.size):
        order = max(order, regions.scope_ptr[r + 1] - regions.scope_ptr[r])
    left = np.zeros(n, dtype=np.int64)
    for i in range(n):
        for s in range(regions.n_states[i]):
            left[i] += weight[i, s] > 0.0
    total = left.sum()
    waiting = np.flatnonzero(hard)
    return Domains(
        weight, left, hard,
        np.empty(total, dtype=np.int32), np.empty(total, dtype=np.int32), np.empty(total),
        waiting.copy(), hard.copy(), np.array([0, 0, waiting.size]),
        np.empty((order, width), dtype=np.bool_), np.empty(order, dtype=np.int64),
    )  # fmt: skip


@njit(inner=True, **KERNEL)
def remove(d, i, s):
    """Take state s from variable i."""
    k = d.at[0]
    d.variable[k], d.state[k], d.old[k] = i, s, d.weight[i, s]
    d.at[0] = k + 1
    d.weight[i, s] = 0.0
    d.left[i] -= 1


@njit(inner=True, **KERNEL)
def ask(regions, d, i, without):
    """Put the hard regions of variable i, except one, on the ring."""
    for k in range(regions.member_ptr[i], regions.member_ptr[i + 1]):
        r = regions.member[k]
        if d.hard[r] and not d.queued[r] and r != without:
            d.queue[(d.at[1] + d.at[2]) % d.queue.size] = r
            d.at[2] += 1
            d.queued[r] = True


@njit(**KERNEL)
def _drop_unsupported(regions, values, where, d, r):
    """Take states that no finite entry of table r made of states left uses."""
    scope = regions.scope[regions.scope_ptr[r] : regions.scope_ptr[r + 1]]
    support, digits = d.support, d.digits
    support[: scope.size] = False
    digits[: scope.size] = 0
    for k in range(where[r], where[r] + regions.size[r]):
        possible = values[k] > -np.inf
        for axis in range(scope.size):
            possible &= d.weight[scope[axis], digits[axis]] > 0.0
        if possible:
            for axis in range(scope.size):
                support[axis, digits[axis]] = True
        axis = scope.size - 1
        while axis >= 0:
            digits[axis] += 1
            if digits[axis] < regions.n_states[scope[axis]]:
                break
            digits[axis] = 0
            axis -= 1
    for axis in range(scope.size):
        for s in range(regions.n_states[scope[axis]]):
            if d.weight[scope[axis], s] > 0.0 and not support[axis, s]:
                remove(d, scope[axis], s)


@njit(inner=True, **KERNEL)
def propagate(regions, values, where, d):
    """Look at regions on the ring until none is left; the region that took a variable's last state, or -1."""
    failed = -1
    while d.at[2] > 0:
        r = d.queue[d.at[1]]
        d.at[1] = (d.at[1] + 1) % d.queue.size
        d.at[2] -= 1
        d.queued[r] = False
        if failed >= 0:
            continue
        before = d.at[0]
        _drop_unsupported(regions, values, where, d, r)
        for k in range(before, d.at[0]):
            if d.left[d.variable[k]] == 0:
                failed = r
        for k in range(before, d.at[0] if failed < 0 else before):
            ask(regions, d, d.variable[k], r)
    return failed


@njit(allocates=True, **KERNEL)
def prune_states(regions, values, where, allowed):
    """Clear in place states that some table gives no finite entry, until nothing changes or a variable has none left.

    regions: a graph's flat regions. values, where: flat scores and each table's start. allowed: (n_variables,
    max states) booleans. Costs a pass over the tables, and one over a table with -inf for every state that one of
    its variables loses.
    """
    hard = np.empty(where.size, dtype=np.bool_)
    find_hard(regions, values, where, hard)
    d = open_domains(regions, hard, allowed.astype(np.float64))
    propagate(regions, values, where, d)
    for i in range(allowed.shape[0]):
        for s in range(allowed.shape[1]):
            allowed[i, s] = d.weight[i, s] > 0.0


@njit(allocates=True, **KERNEL)
def kept_entries(program, n_factors, stride, start, kept):
    """Index of every entry of every factor in its full table, factor by factor.

    stride: step in the full table of each scope entry of the factors. start: index of the entry where these
    variables are all in state 0. kept: (variables, max states), the full-table state of each kept state.
    """
    index = np.empty(program.offset[n_factors], dtype=np.int64)
    for f in range(n_factors):
        filled = 1
        row = index[program.offset[f] : program.offset[f + 1]]
        row[0] = start[f]
        # from the last axis: copies of what is there, one per state; the first comes last, being copied from
        for k in range(program.scope_ptr[f + 1] - 1, program.scope_ptr[f] - 1, -1):
            v = program.scope[k]
            for s in range(program.card[v] - 1, -1, -1):
                for j in range(filled):
                    row[s * filled + j] = row[j] + stride[k] * kept[v, s]
            filled *= program.card[v]
    return index


FOUND, STOPPED, IMPOSSIBLE = 1, 0, -1
# Keys of variables that have lost nothing yet are above all others
_UNTOUCHED = 1e6


class _Heap(namedtuple("_Heap", "key item size")):
    """Variables by key, smallest first, some more than once; size (1)."""


@njit(**KERNEL)
def _push(heap, key, item):
    """Add an item to the heap."""
    k = heap.size[0]
    heap.size[0] = k + 1
    while k > 0 and heap.key[(k - 1) // 2] > key:
        heap.key[k], heap.item[k] = heap.key[(k - 1) // 2], heap.item[(k - 1) // 2]
        k = (k - 1) // 2
    heap.key[k], heap.item[k] = key, item


@njit(**KERNEL)
def _pop(heap):
    """Remove the item of the smallest key and return it."""
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
    """Raise the conflict weight of a region's variables."""
    for k in range(regions.scope_ptr[r], regions.scope_ptr[r + 1]):
        conflict[regions.scope[k]] += 1.0


@njit(allocates=True, **KERNEL)
def find_labelling(regions, values, where, hard, weight, rank, conflict, limit, labels, room):
    """Search for an allowed labelling, at most `limit` dead ends long: FOUND, STOPPED, or IMPOSSIBLE (proven).

    hard: `find_hard`. weight (n_variables, states): chances of states, zero where one is excluded;
    overwritten. rank (n): the order of variables that nothing else decides. conflict (n): dead ends that variables
    took part in, at least 1, added to: a restart begins with the largest. room (ROOM, states): work space.
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

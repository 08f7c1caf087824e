"""Conditional rounding: from marginals to a labelling, variable by variable, with look-ahead.

`regions` is a graph's flat regions; table r of the flat scores `values` starts at where[r].
"""

from __future__ import annotations

import math

import numpy as np

from .jit import njit
from .labelling import better
from .vecmath import KERNEL


@njit(**KERNEL)
def _expect(regions, table, r, i, q, work):
    """Per state of i in region r: weight under q of what is allowed and forbidden, and the weighted scores.

    work: scratch rows (mass, lost, mean, digits); the first three hold the result.
    """
    scope = regions.scope[regions.scope_ptr[r] : regions.scope_ptr[r + 1]]
    mass, lost, mean, digits = work
    for s in range(mass.size):
        mass[s], lost[s], mean[s] = 0.0, 0.0, 0.0
    for axis in range(scope.size):
        digits[axis] = 0
    for k in range(regions.size[r]):
        weight, state = 1.0, 0
        for axis in range(scope.size):
            if scope[axis] == i:
                state = digits[axis]
            else:
                weight *= q[scope[axis], digits[axis]]
        if weight > 0.0 and table[k] == -np.inf:
            lost[state] += weight
        elif weight > 0.0:
            mass[state] += weight
            mean[state] += weight * table[k]
        axis = scope.size - 1
        while axis >= 0:
            digits[axis] += 1
            if digits[axis] < regions.n_states[scope[axis]]:
                break
            digits[axis] = 0
            axis -= 1


@njit(**KERNEL)
def _prune(regions, table, r, i, q, work):
    """Take weight from the states of i that region r rules out, unless it rules out all; whether any lost."""
    _expect(regions, table, r, i, q, work)
    mass = work[0]
    left, fewer = 0.0, False
    for s in range(regions.n_states[i]):
        if mass[s] > 0.0:
            left += q[i, s]
        elif q[i, s] > 0.0:
            fewer = True
    if not fewer or left == 0.0:
        return False
    for s in range(regions.n_states[i]):
        q[i, s] = q[i, s] / left if mass[s] > 0.0 else 0.0
    return True


@njit(**KERNEL)
def _propagate(regions, values, where, hard, q, agenda, ends, work):
    """Prune around the variables agenda[0, : ends[0]] until nothing changes; losers of states join agenda[1].

    A variable joins a row at most once per state that it loses, which bounds the rows.
    """
    while ends[0] > 0:
        ends[0] -= 1
        v = agenda[0, ends[0]]
        for k in range(regions.member_ptr[v], regions.member_ptr[v + 1]):
            r = regions.member[k]
            if not hard[r]:
                continue
            for at in range(regions.scope_ptr[r], regions.scope_ptr[r + 1]):
                j = np.int64(regions.scope[at])
                if j != v and _prune(regions, values[where[r] :], r, j, q, work):
                    for row in range(2):
                        agenda[row, ends[row]] = j
                        ends[row] += 1


@njit(**KERNEL)
def _best_state(regions, values, where, q, i, bad, good, work):
    """The state of i, among those with weight, of highest expected score when the rest follows q."""
    mass, lost, mean, _ = work
    for s in range(bad.size):
        bad[s], good[s] = 0, 0.0
    for k in range(regions.member_ptr[i], regions.member_ptr[i + 1]):
        r = regions.member[k]
        _expect(regions, values[where[r] :], r, i, q, work)
        for s in range(regions.n_states[i]):
            if mass[s] == 0.0:
                bad[s] += 1
            else:
                good[s] += mean[s] / mass[s]
                if lost[s] > 0.0:
                    good[s] += math.log(mass[s] / (mass[s] + lost[s]))
    best = 0
    for s in range(regions.n_states[i]):
        best = s if q[i, s] > q[i, best] else best
    for s in range(regions.n_states[i]):
        if q[i, s] > 0.0 and better(bad[s], good[s], bad[best], good[best]):
            best = s
    return best


@njit(**KERNEL)
def find_hard(regions, values, where):
    """Which regions of two or more variables forbid something."""
    hard = np.zeros(where.size, dtype=np.bool_)
    for r in range(where.size):
        if regions.scope_ptr[r + 1] - regions.scope_ptr[r] > 1:
            for k in range(where[r], where[r] + regions.size[r]):
                hard[r] = hard[r] or values[k] == -np.inf
    return hard


@njit(**KERNEL)
def _scratch(regions, width):
    """The scratch of `_expect`, and rows for `_best_state`."""
    order = 0
    for r in range(regions.size.size):
        order = max(order, regions.scope_ptr[r + 1] - regions.scope_ptr[r])
    digits = np.zeros(order, dtype=np.int64)
    work = (np.zeros(width), np.zeros(width), np.zeros(width), digits)
    return work, np.zeros(width, dtype=np.int64), np.zeros(width)


@njit(**KERNEL)
def _fix(q, i, state, labels):
    labels[i] = state
    for s in range(q.shape[1]):
        q[i, s] = 1.0 if s == state else 0.0


@njit(**KERNEL)
def round_in_order(regions, values, where, q, order, labels):
    """Fix variables in this order, each at the state of highest expected score given those fixed before.

    The rest is taken as independent with marginals q (n_variables, states), overwritten by the labelling's
    indicators. The result scores at least E_q[F] [method of conditional expectations], as long as nothing is
    forbidden; see `round_looking_ahead`.
    """
    work, bad, good = _scratch(regions, q.shape[1])
    for i in order:
        _fix(q, i, _best_state(regions, values, where, q, i, bad, good, work), labels)


@njit(**KERNEL)
def round_looking_ahead(regions, values, where, hard, q, order, labels):
    """`round_in_order` where something is forbidden: a state pays the log of the share of weight that is not.

    States that `hard` regions (`find_hard`) rule out lose their weight at once (arc consistency), and variables that
    lost states come first.
    """
    work, bad, good = _scratch(regions, q.shape[1])
    fixed = np.zeros(labels.size, dtype=np.bool_)
    states = 0
    for n in regions.n_states:
        states += n
    agenda = np.empty((2, labels.size + 1 + states), dtype=np.int64)
    for i in range(labels.size):
        agenda[0, i] = i
    ends = np.array([labels.size, 0])
    seen = 0
    for last in order:
        while not fixed[last]:
            _propagate(regions, values, where, hard, q, agenda, ends, work)
            i = last
            while i == last and seen < ends[1]:
                i = last if fixed[agenda[1, seen]] else agenda[1, seen]
                seen += 1
            _fix(q, i, _best_state(regions, values, where, q, i, bad, good, work), labels)
            fixed[i] = True
            agenda[0, 0], ends[0] = i, 1

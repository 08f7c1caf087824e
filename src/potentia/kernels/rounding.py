"""Conditional rounding: from marginals to a labelling, variable by variable, with look-ahead.

`regions` is a graph's flat regions; table r of the flat scores `values` starts at where[r].
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .labelling import better
from .machine.jit import njit
from .vecmath import KERNEL


class RoundingScratch(NamedTuple):
    """Scratch of roundings, made by `scratch`.

    mass, lost, mean (states,): per state, weight of what is allowed and forbidden, and the weighted scores.
    bad, good (states,): regions that forbid a state, and its expected score.
    """

    mass: Any
    lost: Any
    mean: Any
    bad: Any
    good: Any


def scratch(n_states: int) -> RoundingScratch:
    """Scratch for variables of at most this many states."""
    mass, lost, mean, good = np.zeros((4, n_states))
    return RoundingScratch(mass, lost, mean, np.zeros(n_states, dtype=np.int64), good)


@njit(**KERNEL)
def _expect(regions, values, first, r, i, q, room):
    """Per state of i in region r, whose table begins at `first`: mass, lost and mean under q, into the scratch."""
    scope, stride, n_states = regions.scope, regions.stride, regions.n_states
    mass, lost, mean = room.mass, room.lost, room.mean
    for s in range(n_states[i]):
        mass[s], lost[s], mean[s] = 0.0, 0.0, 0.0
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
                lost[state] += weight
            else:
                mass[state] += weight
                mean[state] += weight * value


@njit(**KERNEL)
def _expect_few(regions, values, at, r, i, q, room):
    """`_expect` for a region of one or two variables."""
    first, pair = regions.scope_ptr[r], regions.scope_ptr[r + 1] - regions.scope_ptr[r] == 2
    own = first + 1 if pair and regions.scope[first] != i else first
    other = 2 * first + 1 - own if pair else first
    j, down, right = regions.scope[other], regions.stride[own], regions.stride[other]
    for s in range(regions.n_states[i]):
        mass, lost, mean = 0.0, 0.0, 0.0
        for t in range(regions.n_states[j] if pair else 1):
            value, weight = values[at + s * down + t * right], q[j, t] if pair else 1.0
            if value > -np.inf:
                mass += weight
                mean += weight * value
            else:
                lost += weight
        room.mass[s], room.lost[s], room.mean[s] = mass, lost, mean


@njit(inner=True, **KERNEL)
def best_state(regions, values, where, q, i, room):
    """The state of i, among those with weight, of highest expected score when the rest follows q, up to its scale."""
    _forget(room)
    for k in range(regions.member_ptr[i], regions.member_ptr[i + 1]):
        r = regions.member[k]
        if regions.scope_ptr[r + 1] - regions.scope_ptr[r] <= 2:
            _expect_few(regions, values, where[r], r, i, q, room)
        else:
            _expect(regions, values, where[r], r, i, q, room)
        _count(regions.n_states[i], room)
    return _best(regions.n_states[i], q, i, room)


@njit(**KERNEL)
def _forget(room):
    for s in range(room.bad.size):
        room.bad[s], room.good[s] = 0, 0.0


@njit(**KERNEL)
def _count(n, room):
    """Add what a region gives to each state."""
    for s in range(n):
        mass, lost = room.mass[s], room.lost[s]
        if mass == 0.0:
            room.bad[s] += 1
        else:
            room.good[s] += room.mean[s] / mass
            if lost > 0.0:
                room.good[s] += math.log(mass / (mass + lost))


@njit(**KERNEL)
def _best(n, q, i, room):
    bad, good, best = room.bad, room.good, likeliest(q, i)
    for s in range(n):
        if q[i, s] > 0.0 and better(bad[s], good[s], bad[best], good[best]):
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
    indicators. room: `scratch`. Without -inf the result scores at least E_q[F] [method of conditional expectations].
    A state pays the log of the share of weight that is not forbidden.
    """
    for k in range(order.size):
        _fix(q, order[k], best_state(regions, values, where, q, order[k], room), labels)


@njit(**KERNEL)
def round_pairs(regions, values, where, q, order, labels, room):
    """`round_in_order` where no region has more than two variables; half as much to compile."""
    for k in range(order.size):
        i = order[k]
        _forget(room)
        for j in range(regions.member_ptr[i], regions.member_ptr[i + 1]):
            r = regions.member[j]
            _expect_few(regions, values, where[r], r, i, q, room)
            _count(regions.n_states[i], room)
        _fix(q, i, _best(regions.n_states[i], q, i, room), labels)


@njit(**KERNEL)
def _fix(q, i, state, labels):
    labels[i] = state
    for s in range(q.shape[1]):
        q[i, s] = 1.0 if s == state else 0.0

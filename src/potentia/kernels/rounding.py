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
    mass[:] = 0.0
    lost[:] = 0.0
    mean[:] = 0.0
    digits[: scope.size] = 0
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
def _expect_pair(regions, table, r, i, q, work):
    """`_expect` for a region of two variables."""
    first = regions.scope_ptr[r]
    own = first if regions.scope[first] == i else first + 1
    other = 2 * first + 1 - own
    j, mass, lost, mean = regions.scope[other], work[0], work[1], work[2]
    for s in range(regions.n_states[i]):
        mass[s], lost[s], mean[s] = 0.0, 0.0, 0.0
        for t in range(regions.n_states[j]):
            value = table[s * regions.stride[own] + t * regions.stride[other]]
            if value > -np.inf:
                mass[s] += q[j, t]
                mean[s] += q[j, t] * value
            else:
                lost[s] += q[j, t]


@njit(**KERNEL)
def best_state(regions, values, where, q, i, room):
    """The state of i, among those with weight, of highest expected score when the rest follows q, up to its scale."""
    work, bad, good = room
    mass, lost, mean, _ = work
    bad[:] = 0
    good[:] = 0.0
    for k in range(regions.member_ptr[i], regions.member_ptr[i + 1]):
        r = regions.member[k]
        if regions.scope_ptr[r + 1] - regions.scope_ptr[r] == 2:
            _expect_pair(regions, values[where[r] :], r, i, q, work)
        else:
            _expect(regions, values[where[r] :], r, i, q, work)
        for s in range(regions.n_states[i]):
            if mass[s] == 0.0:
                bad[s] += 1
            else:
                good[s] += mean[s] / mass[s]
                if lost[s] > 0.0:
                    good[s] += math.log(mass[s] / (mass[s] + lost[s]))
    best = np.argmax(q[i])
    for s in range(regions.n_states[i]):
        if q[i, s] > 0.0 and better(bad[s], good[s], bad[best], good[best]):
            best = s
    return best


@njit(**KERNEL)
def _largest_order(regions):
    """Variables of the largest region (NumPy's diff would take seconds to compile)."""
    order = 0
    for r in range(regions.size.size):
        order = max(order, regions.scope_ptr[r + 1] - regions.scope_ptr[r])
    return order


@njit(**KERNEL)
def scratch(regions):
    """Room for `best_state`."""
    width = regions.n_states.max()
    digits = np.zeros(_largest_order(regions), dtype=np.int64)
    return (
        (np.zeros(width), np.zeros(width), np.zeros(width), digits),
        np.zeros(width, dtype=np.int64),
        np.zeros(width),
    )


@njit(**KERNEL)
def round_in_order(regions, values, where, q, order, labels):
    """Fix variables in this order, each at the state of highest expected score given those fixed before.

    The rest is taken as independent with marginals q (n_variables, states), overwritten by the labelling's
    indicators. Without -inf the result scores at least E_q[F] [method of conditional expectations]. A state
    pays the log of the share of weight that is not forbidden.
    """
    work = scratch(regions)
    for i in order:
        labels[i] = best_state(regions, values, where, q, i, work)
        q[i] = 0.0
        q[i, labels[i]] = 1.0

"""Iterated local search: change a few neighbouring variables, descend around them, keep what is not worse."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .labelling import better, change
from .machine.jit import njit
from .vecmath import KERNEL

# Variables that a kick redraws at most: usually, and in every kick whose number is a multiple of _RARE
_SMALL, _LARGE, _RARE = 4, 20, 8
# Changes of a kick beyond one per variable
_ROOM = 100


class Step(NamedTuple):
    """Changes since the last labelling that was kept, and variables to look at; at: how many of each. See `scratch`."""

    variable: Any
    old: Any
    agenda: Any
    waiting: Any
    at: Any


def scratch(n_variables: int) -> Step:
    """An empty step."""
    room = n_variables + _ROOM
    return Step(
        np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64), np.empty(n_variables, dtype=np.int64),
        np.zeros(n_variables, dtype=np.bool_), np.zeros(2, dtype=np.int64),
    )  # fmt: skip


@njit(**KERNEL)
def shake(regions, values, where, labels, fields, rate, rng, limit, step):
    """Improve a labelling, with its `labelling.Fields`, by kicks until `limit` table entries are read.

    A kick walks over a few neighbouring variables and redraws each from `rate` (n_variables, states), its own
    state excluded; then variables around them take their best states until none changes. If the labelling got worse
    by that, all is undone. step: `scratch`.
    """
    n, work, kick = labels.size, 0, 0
    at, agenda, field_bad, field_good = step.at, step.agenda, fields.bad, fields.good
    while work < limit:
        i, bad, good, kick = _below(rng, n), 0, 0.0, kick + 1
        walk = 1 + _below(rng, _LARGE if kick % _RARE == 0 else _SMALL)
        while walk > 0 or (at[1] > 0 and at[0] < step.variable.size):
            if walk > 0:
                walk -= 1
                best = _draw(rng, rate, i, labels[i])
                after = _neighbour(rng, regions, i)
            else:
                at[1] -= 1
                i = agenda[at[1]]
                after = i
                step.waiting[i] = False
                best = labels[i]
                for s in range(regions.n_states[i]):
                    if better(field_bad[i, s], field_good[i, s], field_bad[i, best], field_good[i, best]):
                        best = s
            old = labels[i]
            if best >= 0 and best != old:
                bad += field_bad[i, best] - field_bad[i, old]
                good += field_good[i, best] - field_good[i, old]
                work += _move(regions, values, where, labels, fields, i, best, step)
            i = after
        if bad > 0 or (bad == 0 and good < 0.0):
            for k in range(at[0] - 1, -1, -1):
                work += change(regions, values, where, labels, step.variable[k], step.old[k], fields)
        for k in range(at[1]):
            step.waiting[agenda[k]] = False
        at[0], at[1] = 0, 0
        work += regions.n_states[i]


@njit(**KERNEL)
def _below(rng, n):
    """A random number among 0 .. n - 1."""
    return min(int(rng.random() * n), n - 1)


@njit(**KERNEL)
def _draw(rng, rate, i, own):
    """A state of i other than `own` with a chance proportional to its rate; -1 where there is none."""
    total = 0.0
    for s in range(rate.shape[1]):
        if s != own:
            total += rate[i, s]
    left = rng.random() * total
    found = -1
    for s in range(rate.shape[1]):
        if s != own and rate[i, s] > 0.0 and (found < 0 or left > 0.0):
            found = s
            left -= rate[i, s]
    return found


@njit(**KERNEL)
def _neighbour(rng, regions, i):
    """A variable of a random region of variable i."""
    first = regions.member_ptr[i]
    r = regions.member[first + _below(rng, regions.member_ptr[i + 1] - first)]
    begin = regions.scope_ptr[r]
    return np.int64(regions.scope[begin + _below(rng, regions.scope_ptr[r + 1] - begin)])


@njit(**KERNEL)
def _move(regions, values, where, labels, fields, i, new, step):
    """Change variable i and put its neighbours on the agenda; the entries read."""
    at, agenda, waiting = step.at, step.agenda, step.waiting
    step.variable[at[0]], step.old[at[0]] = i, labels[i]
    at[0] += 1
    for k in range(regions.member_ptr[i], regions.member_ptr[i + 1]):
        r = regions.member[k]
        for m in range(regions.scope_ptr[r], regions.scope_ptr[r + 1]):
            j = regions.scope[m]
            if j != i and not waiting[j]:
                waiting[j] = True
                agenda[at[1]] = j
                at[1] += 1
    return change(regions, values, where, labels, i, new, fields)

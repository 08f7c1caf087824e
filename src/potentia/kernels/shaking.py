"""Iterated local search: change a few neighbouring variables, descend around them, keep what is not worse."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .jit import njit
from .labelling import better, change
from .vecmath import KERNEL

# Variables that a kick redraws at most, and every so many kicks
_SMALL, _LARGE, _RARE = 4, 20, 8
# Changes of a kick beyond one per variable
_ROOM = 100


class _Step(NamedTuple):
    """Changes since the last labelling that was kept, and variables to look at; at: how many of each."""

    variable: Any
    old: Any
    agenda: Any
    waiting: Any
    at: Any


@njit(**KERNEL)
def shake(regions, values, where, labels, fields, rate, rng, limit):
    """Improve a labelling, with its `labelling.Fields`, by kicks until `limit` table entries are read.

    A kick walks over a few neighbouring variables and redraws each from `rate` (n_variables, states), its own
    state excluded; then variables around them take their best states until none changes. If the labelling got worse
    by that, all is undone.
    """
    n, work, kick = labels.size, 0, 0
    room = n + _ROOM
    step = _Step(
        np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64), np.empty(n, dtype=np.int64),
        np.zeros(n, dtype=np.bool_), np.zeros(2, dtype=np.int64),
    )  # fmt: skip
    while work < limit:
        i, bad, good, kick = _below(rng, n), 0, 0.0, kick + 1
        for _ in range(1 + _below(rng, _LARGE if kick % _RARE == 0 else _SMALL)):
            new = _draw(rng, rate[i], labels[i])
            if new >= 0:
                bad, good, read = _move(regions, values, where, labels, fields, i, new, bad, good, step)
                work += read
            i = _neighbour(rng, regions, i)
        while step.at[1] > 0 and step.at[0] < room:
            step.at[1] -= 1
            i = step.agenda[step.at[1]]
            step.waiting[i] = False
            best = labels[i]
            for s in range(regions.n_states[i]):
                if better(fields.bad[i, s], fields.good[i, s], fields.bad[i, best], fields.good[i, best]):
                    best = s
            if best != labels[i]:
                bad, good, read = _move(regions, values, where, labels, fields, i, best, bad, good, step)
                work += read
        if bad > 0 or (bad == 0 and good < 0.0):
            for k in range(step.at[0] - 1, -1, -1):
                work += change(regions, values, where, labels, step.variable[k], step.old[k], fields)
        for k in range(step.at[1]):
            step.waiting[step.agenda[k]] = False
        step.at[:] = 0
        work += regions.n_states[i]


@njit(**KERNEL)
def _below(rng, n):
    """A random number among 0 .. n - 1."""
    return min(int(rng.random() * n), n - 1)


@njit(**KERNEL)
def _draw(rng, rate, own):
    """A state other than `own` with a chance proportional to its rate; -1 where there is none."""
    total = 0.0
    for s in range(rate.size):
        if s != own:
            total += rate[s]
    left = rng.random() * total
    found = -1
    for s in range(rate.size):
        if s != own and rate[s] > 0.0 and (found < 0 or left > 0.0):
            found = s
            left -= rate[s]
    return found


@njit(**KERNEL)
def _neighbour(rng, regions, i):
    """A variable of a random region of variable i."""
    first = regions.member_ptr[i]
    r = regions.member[first + _below(rng, regions.member_ptr[i + 1] - first)]
    begin = regions.scope_ptr[r]
    return regions.scope[begin + _below(rng, regions.scope_ptr[r + 1] - begin)]


@njit(**KERNEL)
def _move(regions, values, where, labels, fields, i, new, bad, good, step):
    """Change variable i and put its neighbours on the agenda; the changes of the labelling so far, and entries read."""
    old = labels[i]
    bad += fields.bad[i, new] - fields.bad[i, old]
    good += fields.good[i, new] - fields.good[i, old]
    step.variable[step.at[0]], step.old[step.at[0]] = i, old
    step.at[0] += 1
    for k in range(regions.member_ptr[i], regions.member_ptr[i + 1]):
        r = regions.member[k]
        for j in regions.scope[regions.scope_ptr[r] : regions.scope_ptr[r + 1]]:
            if j != i and not step.waiting[j]:
                step.waiting[j] = True
                step.agenda[step.at[1]] = j
                step.at[1] += 1
    return bad, good, change(regions, values, where, labels, i, new, fields)

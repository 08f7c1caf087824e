"""Local search for good labellings, changing one or two variables at a time.

Labellings are compared by their number of forbidden (-inf) configurations first and by the sum of their
finite scores second, so that search can leave an infeasible start. `regions` is a graph's flat regions; table
r of the flat scores `values` starts at where[r]. Search keeps both numbers for every state of every variable
given the others' labels (`Fields`), so that a look at a variable costs its states, whatever its degree, and only a
change costs its regions.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from .machine.jit import njit
from .vecmath import KERNEL

# Rows of the flags (2, n_variables): the best state of a variable, or of a pair with it, may have changed
_SINGLE, _PAIR = 0, 1
# Improvements below this share of the scores are rounding; without it search could go in circles
_MARGIN = 1e-12
# Every pass improves the labelling, so this only cuts off endless tiny gains
_PASSES = 1000


class Fields(namedtuple("Fields", "bad good flags")):
    """Forbidden counts and sums of finite scores of each state of each variable, (n_variables, states), and flags."""


@njit(**KERNEL)
def better(bad, good, old_bad, old_good):
    """Whether (bad, good) beats the old pair: fewer forbidden configurations, then a clearly higher score."""
    if bad != old_bad:
        return bad < old_bad
    return good - old_good > _MARGIN * (abs(good) + abs(old_good))


@njit(inner=True, **KERNEL)
def entry(regions, where, labels, r):
    """Where the table of region r, which begins at where[r], holds the labels."""
    at = where[r]
    for k in range(regions.scope_ptr[r], regions.scope_ptr[r + 1]):
        at += regions.stride[k] * labels[regions.scope[k]]
    return at


@njit(**KERNEL)
def total_score(regions, values, where, labels):
    """Number of forbidden configurations of a labelling, and the sum of its finite scores."""
    bad, good = 0, 0.0
    for r in range(where.size):
        value = values[entry(regions, where, labels, r)]
        if value == -np.inf:
            bad += 1
        else:
            good += value
    return bad, good


@njit(**KERNEL)
def mark_violated(regions, values, where, labels, marked):
    """Set marked[i] for the variables of every forbidden configuration."""
    for r in range(where.size):
        if values[entry(regions, where, labels, r)] == -np.inf:
            for j in range(regions.scope_ptr[r], regions.scope_ptr[r + 1]):
                marked[regions.scope[j]] = True


@njit(**KERNEL)
def _start_of(regions, where, labels, r, i, j):
    """Where table r holds the labelling with i and j in state 0, and the steps of i and j (0: absent)."""
    at, step_i, step_j = where[r], 0, 0
    for k in range(regions.scope_ptr[r], regions.scope_ptr[r + 1]):
        variable, step = regions.scope[k], regions.stride[k]
        if variable == i:
            step_i = step
        elif variable == j:
            step_j = step
        else:
            at += step * labels[variable]
    return at, step_i, step_j


@njit(**KERNEL)
def _add(value, sign, bad, good, i, s):
    """Count a table's entry for state s of row i, or take it back."""
    if value == -np.inf:
        bad[i, s] += sign
    else:
        good[i, s] += sign * value


@njit(inner=True, **KERNEL)
def add_states(regions, values, where, labels, i, bad, good):
    """Forbidden counts and scores of each state of i, over its regions."""
    n = regions.n_states[i]
    for s in range(n):
        bad[s], good[s] = 0, 0.0
    for k in range(regions.member_ptr[i], regions.member_ptr[i + 1]):
        at, step, _ = _start_of(regions, where, labels, np.int64(regions.member[k]), i, -1)
        for s in range(n):
            value = values[at + s * step]
            if value == -np.inf:
                bad[s] += 1
            else:
                good[s] += value


@njit(inner=True, **KERNEL)
def change(regions, values, where, labels, i, new, fields):
    """Give i the state `new`; the fields of the variables around it follow, and are flagged. Entries read."""
    old, work, bad, good, flags = labels[i], 0, fields.bad, fields.good, fields.flags
    labels[i] = new
    flags[_PAIR, i] = True
    for k in range(regions.member_ptr[i], regions.member_ptr[i + 1]):
        r = np.int64(regions.member[k])
        for m in range(regions.scope_ptr[r], regions.scope_ptr[r + 1]):
            j = np.int64(regions.scope[m])
            if j == i:
                continue
            at, step_i, step_j = _start_of(regions, where, labels, r, i, j)
            before, after = at + old * step_i, at + new * step_i
            for s in range(regions.n_states[j]):
                _add(values[before + s * step_j], -1, bad, good, j, s)
                _add(values[after + s * step_j], 1, bad, good, j, s)
            flags[_SINGLE, j] = True
            flags[_PAIR, j] = True
            work += regions.n_states[j]
    return work


@njit(**KERNEL)
def _improve_singles(regions, values, where, labels, fields):
    """Iterated conditional modes: give flagged variables their best state until none changes [Besag 1986]."""
    work, bad, good = 0, fields.bad, fields.good
    for _ in range(_PASSES):
        changed = False
        for i in range(labels.size):
            if not fields.flags[_SINGLE, i]:
                continue
            fields.flags[_SINGLE, i] = False
            best = labels[i]
            for s in range(regions.n_states[i]):
                if better(bad[i, s], good[i, s], bad[i, best], good[i, best]):
                    best = s
            work += regions.n_states[i]
            if best != labels[i]:
                work += change(regions, values, where, labels, i, best, fields)
                changed = True
        if not changed:
            break
    return work


class SearchScratch(namedtuple("SearchScratch", "ends_bad ends_good joint_bad joint_good pending")):
    """Scratch of searches, made by `scratch`.

    ends_bad, ends_good (2, states), joint_bad, joint_good (states, states): counts and scores of the states of a
    bond's ends, outside and inside the regions that hold both. pending (n_variables,): flags of the pass at work.
    """


def scratch(n_variables: int, n_states: int) -> SearchScratch:
    """Scratch of local search on graphs of this many variables of at most this many states."""
    ends, joint = (2, n_states), (n_states, n_states)
    return SearchScratch(
        np.zeros(ends, dtype=np.int64), np.zeros(ends), np.zeros(joint, dtype=np.int64), np.zeros(joint),
        np.zeros(n_variables, dtype=np.bool_),
    )  # fmt: skip


@njit(**KERNEL)
def _count_jointly(regions, values, where, bonds, bond, labels, i, j, fields, room):
    """Split the fields of i and j into what regions that hold both give to joint states, and the rest."""
    n, m = regions.n_states[i], regions.n_states[j]
    ends_bad, ends_good = room.ends_bad, room.ends_good
    joint_bad, joint_good = room.joint_bad, room.joint_good
    bad, good = fields.bad, fields.good
    for s in range(n):
        ends_bad[0, s], ends_good[0, s] = bad[i, s], good[i, s]
        for t in range(m):
            joint_bad[s, t], joint_good[s, t] = 0, 0.0
    for t in range(m):
        ends_bad[1, t], ends_good[1, t] = bad[j, t], good[j, t]
    for k in range(bonds.ptr[bond], bonds.ptr[bond + 1]):
        at, step_i, step_j = _start_of(regions, where, labels, bonds.regions[k], i, j)
        for s in range(n):
            row = at + s * step_i
            _add(values[row + labels[j] * step_j], -1, ends_bad, ends_good, 0, s)
            for t in range(m):
                _add(values[row + t * step_j], 1, joint_bad, joint_good, s, t)
        row = at + labels[i] * step_i
        for t in range(m):
            _add(values[row + t * step_j], -1, ends_bad, ends_good, 1, t)


@njit(**KERNEL)
def _best_joint(n, m, room, a, b):
    """The joint state of a bond's two variables that is best given the rest, (a, b) if none is better."""
    ends_bad, ends_good, joint_bad, joint_good = (room.ends_bad, room.ends_good, room.joint_bad, room.joint_good)
    bad = joint_bad[a, b] + ends_bad[1, b] + ends_bad[0, a]
    good = joint_good[a, b] + ends_good[1, b] + ends_good[0, a]
    for s in range(n):
        for t in range(m):
            new_bad = joint_bad[s, t] + ends_bad[1, t] + ends_bad[0, s]
            new_good = joint_good[s, t] + ends_good[1, t] + ends_good[0, s]
            if better(new_bad, new_good, bad, good):
                a, b, bad, good = s, t, new_bad, new_good
    return a, b


@njit(**KERNEL)
def _improve_pairs(regions, values, where, bonds, labels, fields, room):
    """Give both ends of each flagged bond their best joint state, one pass; entries read and whether any changed."""
    for i in range(labels.size):
        room.pending[i], fields.flags[_PAIR, i] = fields.flags[_PAIR, i], False
    changed, work = False, 0
    for bond in range(bonds.ptr.size - 1):
        first = regions.scope_ptr[bonds.regions[bonds.ptr[bond]]]
        i, j = np.int64(regions.scope[first]), np.int64(regions.scope[first + 1])
        if not (room.pending[i] or room.pending[j]):
            continue
        _count_jointly(regions, values, where, bonds, bond, labels, i, j, fields, room)
        n, m = regions.n_states[i], regions.n_states[j]
        a, b = _best_joint(n, m, room, labels[i], labels[j])
        work += n * m
        for variable, best in ((i, a), (j, b)):
            if best != labels[variable]:
                work += change(regions, values, where, labels, variable, best, fields)
                changed = True
    return work, changed


@njit(**KERNEL)
def fill_fields(regions, values, where, labels, fields):
    """Make the fields of a labelling, everything flagged."""
    bad, good, flags = fields.bad, fields.good, fields.flags
    for i in range(labels.size):
        flags[_SINGLE, i] = True
        flags[_PAIR, i] = True
        for s in range(bad.shape[1]):
            bad[i, s], good[i, s] = 0, 0.0
    for r in range(where.size):  # in the order of the tables, which reads memory consecutively
        full = entry(regions, where, labels, r)
        for k in range(regions.scope_ptr[r], regions.scope_ptr[r + 1]):
            i, step = regions.scope[k], regions.stride[k]
            at = full - step * labels[i]
            for s in range(regions.n_states[i]):
                _add(values[at + s * step], 1, bad, good, i, s)


@njit(**KERNEL)
def local_search(regions, values, where, bonds, labels, fields, start, pairs, room):
    """From a labelling with its fields to `start`, then on until no change of one variable (or a bond's two) helps.

    bonds: `Graph.bonds`. room: `scratch`. Returns the table entries read: a pass reads each table a bounded
    number of times, and once more for every change of one of its variables.
    """
    work = 0
    for i in range(labels.size):
        if start[i] != labels[i]:
            work += change(regions, values, where, labels, i, start[i], fields)
            fields.flags[_SINGLE, i] = True
    for _ in range(_PASSES):
        work += _improve_singles(regions, values, where, labels, fields)
        if not pairs:
            break
        more, changed = _improve_pairs(regions, values, where, bonds, labels, fields, room)
        work += more
        if not changed:
            break
    return work


# Variables that a kick redraws at most: usually, and in every kick whose number is a multiple of _RARE
_SMALL, _LARGE, _RARE = 4, 20, 8
# Changes of a kick beyond one per variable
_ROOM = 100


class Shake(namedtuple("Shake", "variable old agenda waiting at")):
    """Changes since the last labelling that was kept, and variables to look at; at: how many of each.

    See `shaking_scratch`.
    """


def shaking_scratch(n_variables: int) -> Shake:
    """Scratch of kicks on graphs of this many variables, with nothing changed yet."""
    room = n_variables + _ROOM
    return Shake(
        np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64), np.empty(n_variables, dtype=np.int64),
        np.zeros(n_variables, dtype=np.bool_), np.zeros(2, dtype=np.int64),
    )  # fmt: skip


@njit(**KERNEL)
def shake(regions, values, where, labels, fields, rate, rng, limit, step):
    """Improve a labelling, with its `labelling.Fields`, by kicks until `limit` table entries are read.

    A kick walks over a few neighbouring variables and redraws each from `rate` (n_variables, states), its own
    state excluded; then variables around them take their best states until none changes. If the labelling got worse
    by that, all is undone. step: `shaking_scratch`.
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

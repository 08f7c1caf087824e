"""Local search for good labellings, changing one or two variables at a time.

Labellings are compared by their number of forbidden (-inf) configurations first and by the sum of their
finite scores second, so that search can leave an infeasible start. `regions` is a graph's flat regions; table
r of the flat scores `values` starts at where[r]. Search keeps both numbers for every state of every variable
given the others' labels (`Fields`), so that a look at a variable costs its states, whatever its degree, and only a
change costs its regions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .jit import njit
from .vecmath import KERNEL

# Rows of the flags (2, n_variables): the best state of a variable, or of a pair with it, may have changed
_SINGLE, _PAIR = 0, 1
# Improvements below this share of the scores are rounding; without it search could go in circles
_MARGIN = 1e-12
# Every pass improves the labelling, so this only cuts off endless tiny gains
_PASSES = 1000
# Search goes on from fields made afresh, but not forever, where rounding had moved the old ones by this share
_DRIFT, _REFILLS = 1e-11, 3


class Fields(NamedTuple):
    """Forbidden counts and sums of finite scores of each state of each variable, (n_variables, states), and flags."""

    bad: Any
    good: Any
    flags: Any


@njit(**KERNEL)
def better(bad, good, old_bad, old_good):
    """Whether (bad, good) beats the old pair: fewer forbidden configurations, then a clearly higher score."""
    if bad != old_bad:
        return bad < old_bad
    return good - old_good > _MARGIN * (abs(good) + abs(old_good))


@njit(**KERNEL)
def total_score(regions, values, where, labels):
    """Number of forbidden configurations of a labelling, and the sum of its finite scores."""
    bad, good = 0, 0.0
    for r in range(where.size):
        at = where[r]
        for j in range(regions.scope_ptr[r], regions.scope_ptr[r + 1]):
            at += regions.stride[j] * labels[regions.scope[j]]
        if values[at] == -np.inf:
            bad += 1
        else:
            good += values[at]
    return bad, good


@njit(**KERNEL)
def mark_violated(regions, values, where, labels, marked):
    """Set marked[i] for the variables of every forbidden configuration."""
    for r in range(where.size):
        at = where[r]
        for j in range(regions.scope_ptr[r], regions.scope_ptr[r + 1]):
            at += regions.stride[j] * labels[regions.scope[j]]
        if values[at] == -np.inf:
            for j in range(regions.scope_ptr[r], regions.scope_ptr[r + 1]):
                marked[regions.scope[j]] = True


@njit(**KERNEL)
def _start_of(regions, where, labels, r, i, j):
    """Where table r holds the labelling with i and j in state 0, and the steps of i and j (0: absent)."""
    at, step_i, step_j = where[r], 0, 0
    for k in range(regions.scope_ptr[r], regions.scope_ptr[r + 1]):
        if regions.scope[k] == i:
            step_i = regions.stride[k]
        elif regions.scope[k] == j:
            step_j = regions.stride[k]
        else:
            at += regions.stride[k] * labels[regions.scope[k]]
    return at, step_i, step_j


@njit(inline="always", **KERNEL)
def _add(value, sign, bad, good, s):
    """Count a table's entry for state s, or take it back."""
    if value == -np.inf:
        bad[s] += sign
    else:
        good[s] += sign * value


@njit(**KERNEL)
def add_states(regions, values, where, labels, i, bad, good):
    """Forbidden counts and scores of each state of i, over its regions."""
    n = regions.n_states[i]
    bad[:n] = 0
    good[:n] = 0.0
    for k in range(regions.member_ptr[i], regions.member_ptr[i + 1]):
        at, step, _ = _start_of(regions, where, labels, regions.member[k], i, -1)
        for s in range(n):
            _add(values[at + s * step], 1, bad, good, s)


@njit(**KERNEL)
def change(regions, values, where, labels, i, new, fields):
    """Give i the state `new`; the fields of the variables around it follow, and are flagged. Entries read."""
    old, work = labels[i], 0
    labels[i] = new
    fields.flags[_PAIR, i] = True
    for k in range(regions.member_ptr[i], regions.member_ptr[i + 1]):
        r = regions.member[k]
        for j in regions.scope[regions.scope_ptr[r] : regions.scope_ptr[r + 1]]:
            if j == i:
                continue
            at, step_i, step_j = _start_of(regions, where, labels, r, i, j)
            for s in range(regions.n_states[j]):
                _add(values[at + old * step_i + s * step_j], -1, fields.bad[j], fields.good[j], s)
                _add(values[at + new * step_i + s * step_j], 1, fields.bad[j], fields.good[j], s)
            fields.flags[:, j] = True
            work += regions.n_states[j]
    return work


@njit(**KERNEL)
def _improve_singles(regions, values, where, labels, fields):
    """Iterated conditional modes: give flagged variables their best state until none changes [Besag 1986]."""
    work = 0
    for _ in range(_PASSES):
        changed = False
        for i in range(labels.size):
            if not fields.flags[_SINGLE, i]:
                continue
            fields.flags[_SINGLE, i] = False
            bad, good, best = fields.bad[i], fields.good[i], labels[i]
            for s in range(regions.n_states[i]):
                if better(bad[s], good[s], bad[best], good[best]):
                    best = s
            work += regions.n_states[i]
            if best != labels[i]:
                work += change(regions, values, where, labels, i, best, fields)
                changed = True
        if not changed:
            break
    return work


class _Joint(NamedTuple):
    """Scratch: counts and scores of the states of a bond's ends, outside and inside the regions that hold both."""

    bad_i: Any
    good_i: Any
    bad_j: Any
    good_j: Any
    bad: Any
    good: Any


@njit(**KERNEL)
def _count_jointly(regions, values, where, bonds, bond, labels, i, j, fields, joint):
    """Split the fields of i and j into what regions that hold both give to joint states, and the rest."""
    n, m = regions.n_states[i], regions.n_states[j]
    for s in range(n):
        joint.bad_i[s], joint.good_i[s] = fields.bad[i, s], fields.good[i, s]
        for t in range(m):
            joint.bad[s, t], joint.good[s, t] = 0, 0.0
    for t in range(m):
        joint.bad_j[t], joint.good_j[t] = fields.bad[j, t], fields.good[j, t]
    for k in range(bonds.ptr[bond], bonds.ptr[bond + 1]):
        at, step_i, step_j = _start_of(regions, where, labels, bonds.regions[k], i, j)
        for s in range(n):
            row = at + s * step_i
            _add(values[row + labels[j] * step_j], -1, joint.bad_i, joint.good_i, s)
            for t in range(m):
                _add(values[row + t * step_j], 1, joint.bad[s], joint.good[s], t)
        for t in range(m):
            _add(values[at + labels[i] * step_i + t * step_j], -1, joint.bad_j, joint.good_j, t)


@njit(**KERNEL)
def _best_joint(n, m, joint, a, b):
    """The best joint state, (a, b) if none is better."""
    bad, good = joint.bad[a, b] + joint.bad_j[b], joint.good[a, b] + joint.good_j[b]
    bad, good = bad + joint.bad_i[a], good + joint.good_i[a]
    for s in range(n):
        for t in range(m):
            new_bad = joint.bad[s, t] + joint.bad_j[t] + joint.bad_i[s]
            new_good = joint.good[s, t] + joint.good_j[t] + joint.good_i[s]
            if better(new_bad, new_good, bad, good):
                a, b, bad, good = s, t, new_bad, new_good
    return a, b


@njit(**KERNEL)
def _improve_pairs(regions, values, where, bonds, labels, fields, joint):
    """Give both ends of each flagged bond their best joint state, one pass; entries read and whether any changed."""
    pending = fields.flags[_PAIR].copy()
    fields.flags[_PAIR] = False
    changed, work = False, 0
    for bond in range(bonds.ptr.size - 1):
        first = regions.scope_ptr[bonds.regions[bonds.ptr[bond]]]
        i, j = regions.scope[first], regions.scope[first + 1]
        if not (pending[i] or pending[j]):
            continue
        _count_jointly(regions, values, where, bonds, bond, labels, i, j, fields, joint)
        n, m = regions.n_states[i], regions.n_states[j]
        a, b = _best_joint(n, m, joint, labels[i], labels[j])
        work += n * m
        if a != labels[i]:
            work += change(regions, values, where, labels, i, a, fields)
            changed = True
        if b != labels[j]:
            work += change(regions, values, where, labels, j, b, fields)
            changed = True
    return work, changed


@njit(**KERNEL)
def fill_fields(regions, values, where, labels, fields):
    """Make the fields of a labelling, everything flagged; how far the old ones were off, as a share of the largest."""
    old = fields.good.copy()
    fields.bad[:] = 0
    fields.good[:] = 0.0
    fields.flags[:] = True
    for r in range(where.size):  # in the order of the tables, which reads memory in one go
        full = where[r]
        for k in range(regions.scope_ptr[r], regions.scope_ptr[r + 1]):
            full += regions.stride[k] * labels[regions.scope[k]]
        for k in range(regions.scope_ptr[r], regions.scope_ptr[r + 1]):
            i, step = regions.scope[k], regions.stride[k]
            at = full - step * labels[i]
            for s in range(regions.n_states[i]):
                _add(values[at + s * step], 1, fields.bad[i], fields.good[i], s)
    moved, largest = 0.0, 0.0
    for i in range(labels.size):
        for s in range(regions.n_states[i]):
            moved = max(moved, abs(fields.good[i, s] - old[i, s]))
            largest = max(largest, abs(fields.good[i, s]))
    return moved / largest if largest > 0.0 else 0.0


@njit(**KERNEL)
def local_search(regions, values, where, bonds, labels, fields, start, pairs):
    """From a labelling with its fields to `start`, then on until no change of one variable (or a bond's two) helps.

    bonds: `graph.flat.bonds`. Returns the table entries read: a pass reads each table a bounded number of times,
    and once more for every change of one of its variables.
    """
    n = regions.n_states.max()
    joint = _Joint(
        np.zeros(n, dtype=np.int64), np.zeros(n), np.zeros(n, dtype=np.int64), np.zeros(n),
        np.zeros((n, n), dtype=np.int64), np.zeros((n, n)),
    )  # fmt: skip
    work = 0
    for i in range(labels.size):
        if start[i] != labels[i]:
            work += change(regions, values, where, labels, i, start[i], fields)
            fields.flags[_SINGLE, i] = True
    for _ in range(_REFILLS):
        for _ in range(_PASSES):
            work += _improve_singles(regions, values, where, labels, fields)
            if not pairs:
                break
            more, changed = _improve_pairs(regions, values, where, bonds, labels, fields, joint)
            work += more
            if not changed:
                break
        work += n * regions.stride.size
        if fill_fields(regions, values, where, labels, fields) < _DRIFT:
            break
    fields.flags[:] = False
    return work

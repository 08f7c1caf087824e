"""Local search for good labellings, changing one or two variables at a time.

Labellings are compared by their number of forbidden (-inf) configurations first and by the sum of their
finite scores second, so that search can leave an infeasible start. `regions` is a graph's flat regions; table
r of the flat scores `values` starts at where[r].
"""

from __future__ import annotations

import numpy as np

from .jit import njit
from .vecmath import KERNEL

# Rows of the flags (2, n_variables): the best state of a variable, or of a pair with it, may have changed
_SINGLE, _PAIR = 0, 1
# Improvements below this share of the scores are rounding; without it search could go in circles
_MARGIN = 1e-12
# Every pass improves the labelling, so this only cuts off endless tiny gains
PASSES = 1000


# Kernels here fill arrays by loops and index by 64-bit numbers only: NumPy's assignments and reductions, and a second
# version of each function for 32-bit numbers, would take most of the time of compilation.


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


@njit(**KERNEL)
def add_states(regions, values, where, labels, i, without, bad, good):
    """Forbidden counts and scores of each state of i, over its regions without the variable `without`."""
    n = regions.n_states[i]
    for s in range(n):
        bad[s], good[s] = 0, 0.0
    for k in range(regions.member_ptr[i], regions.member_ptr[i + 1]):
        at, step, other = _start_of(regions, where, labels, regions.member[k], i, without)
        if other == 0:
            for s in range(n):
                v = values[at + s * step]
                if v == -np.inf:
                    bad[s] += 1
                else:
                    good[s] += v


@njit(**KERNEL)
def _wake(regions, i, flags):
    """Flag i and every variable that shares a region with it."""
    for k in range(regions.member_ptr[i], regions.member_ptr[i + 1]):
        r = regions.member[k]
        for j in range(regions.scope_ptr[r], regions.scope_ptr[r + 1]):
            flags[_SINGLE, regions.scope[j]] = flags[_PAIR, regions.scope[j]] = True


@njit(**KERNEL)
def improve_singles(regions, values, where, labels, flags, width):
    """Iterated conditional modes: give flagged variables their best state until none changes [Besag 1986]."""
    bad, good = np.zeros(width, dtype=np.int64), np.zeros(width)
    for _ in range(PASSES):
        changed = False
        for i in range(labels.size):
            if not flags[_SINGLE, i]:
                continue
            flags[_SINGLE, i] = False
            add_states(regions, values, where, labels, i, np.int64(-1), bad, good)
            best = labels[i]
            for s in range(regions.n_states[i]):
                if better(bad[s], good[s], bad[best], good[best]):
                    best = s
            if best != labels[i]:
                labels[i] = best
                _wake(regions, i, flags)
                changed = True
        if not changed:
            break


@njit(**KERNEL)
def _add_joint(regions, values, where, labels, i, j, bad, good):
    """Forbidden counts and scores of each joint state of i and j, over the regions that hold both."""
    for s in range(regions.n_states[i]):
        for t in range(regions.n_states[j]):
            bad[s, t], good[s, t] = 0, 0.0
    for k in range(regions.member_ptr[i], regions.member_ptr[i + 1]):
        at, step_i, step_j = _start_of(regions, where, labels, regions.member[k], i, j)
        if step_j == 0:
            continue
        for a in range(regions.n_states[i]):
            for b in range(regions.n_states[j]):
                v = values[at + a * step_i + b * step_j]
                if v == -np.inf:
                    bad[a, b] += 1
                else:
                    good[a, b] += v


@njit(**KERNEL)
def improve_pairs(regions, values, where, labels, flags, width):
    """Give both variables of each flagged pair their best joint state, one pass; whether any changed."""
    bad_i, bad_j = np.zeros(width, dtype=np.int64), np.zeros(width, dtype=np.int64)
    good_i, good_j = np.zeros(width), np.zeros(width)
    bad, good = np.zeros((width, width), dtype=np.int64), np.zeros((width, width))
    pending = np.empty(labels.size, dtype=np.bool_)
    for i in range(labels.size):
        pending[i], flags[_PAIR, i] = flags[_PAIR, i], False
    changed = False
    for r in range(where.size):
        first = regions.scope_ptr[r]
        if regions.scope_ptr[r + 1] - first != 2:
            continue
        i, j = np.int64(regions.scope[first]), np.int64(regions.scope[first + 1])
        if not (pending[i] or pending[j]):
            continue
        add_states(regions, values, where, labels, i, j, bad_i, good_i)
        add_states(regions, values, where, labels, j, i, bad_j, good_j)
        _add_joint(regions, values, where, labels, i, j, bad, good)
        a, b = labels[i], labels[j]
        best_bad, best_good = bad[a, b] + bad_i[a] + bad_j[b], good[a, b] + good_i[a] + good_j[b]
        for s in range(regions.n_states[i]):
            for t in range(regions.n_states[j]):
                new_bad, new_good = bad[s, t] + bad_i[s] + bad_j[t], good[s, t] + good_i[s] + good_j[t]
                if better(new_bad, new_good, best_bad, best_good):
                    a, b, best_bad, best_good = s, t, new_bad, new_good
        if a != labels[i] or b != labels[j]:
            labels[i], labels[j] = a, b
            _wake(regions, i, flags)
            _wake(regions, j, flags)
            changed = True
    return changed

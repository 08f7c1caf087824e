"""Checks of score tables as they are given, and the sum of the scores of each variable."""

from __future__ import annotations

import numpy as np

from .machine.jit import njit
from .machine.simd import CHUNK, fma8, load8, max8, min8, spread8, store8, sum8, zero8
from .vecmath import KERNEL

#: Finite scores beyond this are refused: sums of them would leave the range of doubles.
LARGEST = 1e100


@njit(**KERNEL)
def score_range(values, ends):
    """Smallest and largest score; whether none is NaN, infinite or beyond LARGEST. Reads them once.

    ends (2, CHUNK): scratch, which holds the first two in its first column.
    """
    low, high, rest = spread8(np.inf), spread8(-np.inf), zero8()
    whole = values.size - values.size % CHUNK
    for k in range(0, whole, CHUNK):
        v = load8(values, k)
        low, high, rest = min8(v, low), max8(v, high), fma8(v, zero8(), rest)
    for k in range(whole, values.size):
        v = spread8(values[k])
        low, high, rest = min8(v, low), max8(v, high), fma8(v, zero8(), rest)
    store8(ends, 0, low)
    store8(ends, CHUNK, high)
    for k in range(1, CHUNK):
        ends[0, 0], ends[1, 0] = min(ends[0, 0], ends[0, k]), max(ends[1, 0], ends[1, k])
    # 0 times what is not finite is NaN
    return sum8(rest) == 0.0 and ends[0, 0] >= -LARGEST and ends[1, 0] <= LARGEST


@njit(**KERNEL)
def first_bad_table(values, offset, size):
    """The first table with NaN, +inf or a finite score beyond LARGEST (code 1) or only -inf (code 2); (-1, 0) if none.

    Table r is values[offset[r] : offset[r] + size[r]]; one that many regions share is looked at once.
    """
    for r in range(offset.size):
        if r > 0 and offset[r] == offset[r - 1] and size[r] == size[r - 1]:
            continue
        table = values[offset[r] : offset[r] + size[r]]
        bad, dead = 0, 0
        for k in range(table.size):  # no way out in between: the loop then runs on vectors
            v = table[k]
            bad += not (v <= LARGEST and v >= -LARGEST)
            dead += v == -np.inf
        if bad > dead:
            return r, 1
        if dead == table.size:
            return r, 2
    return -1, 0


@njit(**KERNEL)
def add_singles(values, offset, variables, n_states, out):
    """out(i, a) += the scores of single-variable regions, table r at values[offset[r]:] of variables[r]."""
    for r in range(variables.size):
        i = variables[r]
        for a in range(n_states[i]):
            out[i, a] += values[offset[r] + a]


@njit(**KERNEL)
def take_singles(d_out, offset, variables, n_states, d_values):
    """The reverse of `add_singles`: d_values of regions that share a table are summed."""
    for r in range(variables.size):
        i = variables[r]
        for a in range(n_states[i]):
            d_values[offset[r] + a] += d_out[i, a]

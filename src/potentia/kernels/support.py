"""Which states the hard constraints leave, and where the remaining entries lie in the full tables."""

from __future__ import annotations

import numpy as np

from .jit import njit
from .vecmath import KERNEL


@njit(**KERNEL)
def _drop_unsupported(table, scope, stride, n_states, allowed, support):
    """Clear states that no finite entry made of allowed states uses; whether there were any."""
    support[:] = False
    for k in range(table.size):
        possible = table[k] > -np.inf
        for axis in range(scope.size):
            possible &= allowed[scope[axis], k // stride[axis] % n_states[scope[axis]]]
        if possible:
            for axis in range(scope.size):
                support[axis, k // stride[axis] % n_states[scope[axis]]] = True
    changed = False
    for axis in range(scope.size):
        for s in range(n_states[scope[axis]]):
            if allowed[scope[axis], s] and not support[axis, s]:
                allowed[scope[axis], s] = False
                changed = True
    return changed


@njit(**KERNEL)
def prune_states(regions, values, where, allowed):
    """Clear in place states that some table gives no finite entry, until nothing changes (arc consistency).

    regions: a graph's flat regions. values, where: flat scores and each table's start. allowed: (n_variables,
    max states) booleans. Costs a pass over the tables, and one over those with -inf per round of changes.
    """
    hard = np.empty(regions.size.size, dtype=np.int64)
    n_hard = 0
    largest = 1
    for r in range(hard.size):
        order = regions.scope_ptr[r + 1] - regions.scope_ptr[r]
        largest = max(largest, order)
        if order > 1 and values[where[r] : where[r] + regions.size[r]].min() == -np.inf:
            hard[n_hard] = r
            n_hard += 1
    support = np.empty((largest, allowed.shape[1]), dtype=np.bool_)
    changed = True
    while changed:
        changed = False
        for r in hard[:n_hard]:
            begin, end = regions.scope_ptr[r], regions.scope_ptr[r + 1]
            table = values[where[r] : where[r] + regions.size[r]]
            scope, stride = regions.scope[begin:end], regions.stride[begin:end]
            changed |= _drop_unsupported(table, scope, stride, regions.n_states, allowed, support)


@njit(**KERNEL)
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

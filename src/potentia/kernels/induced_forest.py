"""Large sets of variables among which regions form a forest, given all others."""

from __future__ import annotations

import numpy as np

from .machine.jit import njit
from .vecmath import KERNEL


@njit(**KERNEL)
def _root(parent, v):
    """The representative of v's tree, with the path to it halved."""
    while parent[v] != v:
        parent[v] = parent[parent[v]]
        v = parent[v]
    return v


@njit(allocates=True, **KERNEL)
def induced_forest(regions, order, inside):
    """Mark variables, in this order, unless they would close a loop or be third in a region.

    inside: (n_variables,) booleans, output. What regions the marked variables share, given all others, are pairs that
    form a forest; parallel pairs count once. Costs a pass over the regions.
    """
    inside[:] = False
    parent = np.arange(order.size)
    # of neighbours and of trees: the last variable that met them
    met, met_tree = np.full(order.size, -1), np.full(order.size, -1)
    for v in order:
        fits = True
        for k in range(regions.member_ptr[v], regions.member_ptr[v + 1]):
            r = regions.member[k]
            among = 0
            for j in regions.scope[regions.scope_ptr[r] : regions.scope_ptr[r + 1]]:
                if inside[j]:
                    among += 1
                    if met[j] != v:
                        met[j] = v
                        tree = _root(parent, j)
                        fits &= met_tree[tree] != v
                        met_tree[tree] = v
            fits &= among < 2
            if not fits:
                break
        if not fits:
            continue
        inside[v] = True
        for k in range(regions.member_ptr[v], regions.member_ptr[v + 1]):
            r = regions.member[k]
            for j in regions.scope[regions.scope_ptr[r] : regions.scope_ptr[r + 1]]:
                if inside[j]:
                    parent[_root(parent, j)] = _root(parent, v)

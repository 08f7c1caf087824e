"""Everything about elimination that does not depend on finite scores: kept states, order, cliques and offsets."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .._types import Bools, Floats, InfeasibleError, Ints
from ..graph.flat import Regions
from ..graph.scores import Scores
from ..kernels.support import kept_entries, prune_states
from .elimination_order import adjacency, cliques, find_order, refuse_wide

# Plans remembered per graph; different evidence means a different plan.
_REMEMBERED = 4


class Program(NamedTuple):
    """Flat arrays that the kernels run; see `potentia.kernels.elimination`."""

    card: Ints
    clique_ptr: Ints
    clique: Ints
    source_ptr: Ints
    source: Ints
    offset: Ints
    scope_ptr: Ints
    scope: Ints


class Plan(NamedTuple):
    """How to eliminate one graph under one set of hard constraints.

    Attributes:
        order: variables with more than one kept state, first eliminated first.
        kept: states of each variable that are not forbidden, first; (n_variables, max states).
        width: induced width. largest: entries of the largest table. total: entries of all tables.
        program: what the kernels run.
        region: the region behind each factor of the program.
        index: for every factor entry its index in the region's full table, factor by factor.
        fixed_region, fixed_entry: regions whose variables all have one state, and the entry they are at.
    """

    order: Ints
    kept: Ints
    width: int
    largest: int
    total: int
    program: Program
    region: Ints
    index: Ints
    fixed_region: Ints
    fixed_entry: Ints

    def entries(self, start: Ints) -> Ints:
        """Index of every factor entry in a flat array where region r's table begins at start[r]."""
        size = np.diff(self.program.offset[: len(self.region) + 1])
        return self.index + np.repeat(start[self.region], size)


def plan(scores: Scores, values: Floats, where: Ints, max_table: int) -> Plan:
    """The plan for these scores, remembered on the graph; `values` and `where` are `scores.flat()`.

    States that hard constraints rule out (a clamped variable's other states, and whatever follows from the -inf
    entries of larger tables) are cut out of every table first: evidence makes graphs narrower.
    """
    allowed = scores.singles > -np.inf
    prune_states(scores.regions, values, where, allowed)
    empty = np.flatnonzero(~allowed.any(axis=1))
    if len(empty):
        raise InfeasibleError(
            f"every labelling is forbidden: no state of variable {empty[0]} is left by the -inf scores"
        )
    known: dict[bytes, Plan] = scores.graph.cached("elimination", dict)
    key = max_table.to_bytes(8, "little") + np.packbits(allowed).tobytes()
    if key not in known:
        made = _make(scores.regions, allowed, max_table)
        while len(known) >= _REMEMBERED:
            known.pop(next(iter(known)), None)
        known[key] = made
    return known[key]


def _make(regions: Regions, allowed: Bools, max_table: int) -> Plan:
    n_kept = allowed.sum(axis=1)
    kept = np.argsort(~allowed, axis=1, kind="stable")
    free = np.flatnonzero(n_kept > 1)
    number = np.full(len(n_kept), -1)
    number[free] = np.arange(len(free))
    region_of = np.repeat(np.arange(len(regions.size)), regions.order)
    loose = number[regions.scope] >= 0
    # where a region's table is entered: the fixed state of every variable that has only one
    entry = np.zeros(len(regions.size), dtype=np.int64)
    np.add.at(entry, region_of[~loose], (regions.stride * kept[regions.scope, 0])[~loose])
    n_loose = np.bincount(region_of[loose], minlength=len(regions.size))
    ptr, neighbour = adjacency(
        len(free), np.concatenate([[0], np.cumsum(n_loose)]), number[regions.scope[loose]]
    )
    found = find_order(n_kept[free], ptr, neighbour)
    refuse_wide(found, max_table)
    clique_ptr, clique = cliques(found, ptr, neighbour)
    order = free[found.order]
    position = np.full(len(n_kept), -1)
    position[order] = np.arange(len(order))
    region, factor_ptr, scope, stride = _factors(
        region_of[loose], position[regions.scope[loose]], regions.stride[loose]
    )
    program = _program(n_kept[order], clique_ptr, clique, factor_ptr, scope)
    index = kept_entries(program, len(region), stride, entry[region], kept[order])
    fixed = np.flatnonzero(n_loose == 0)
    return Plan(
        order, kept, found.width, int(found.largest), int(found.total), program, region, index, fixed, entry[fixed]
    )  # fmt: skip


def _factors(region: Ints, position: Ints, stride: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Regions as factors sorted by bucket, each with its axes sorted by elimination position.

    Args: one entry per (region, free variable): the region, the variable's position, its stride in the full table.
    Returns the region of each factor, and a CSR (ptr, positions, strides) of the factors' axes.
    """
    bucket = np.full(int(region.max(initial=-1)) + 1, len(region))
    np.minimum.at(bucket, region, position)
    by = np.lexsort((position, region, bucket[region]))
    sorted_region = region[by]
    first = np.flatnonzero(np.diff(sorted_region, prepend=-1))
    return sorted_region[first], np.append(first, len(by)), position[by], stride[by]


def _program(card: Ints, clique_ptr: Ints, clique: Ints, factor_ptr: Ints, factor_scope: Ints) -> Program:
    """Number factors, then messages, as tables of one store, and list what each bucket adds up."""
    n, n_factors = len(card), len(factor_ptr) - 1
    length = np.diff(clique_ptr)
    own = np.zeros(len(clique), dtype=bool)
    own[clique_ptr[:-1]] = True
    scope_ptr = np.concatenate([factor_ptr, factor_ptr[-1] + np.cumsum(length - 1)])
    inner = np.flatnonzero(length > 1)
    bucket = np.concatenate([factor_scope[factor_ptr[:-1]], clique[clique_ptr[inner] + 1]])
    source = np.concatenate([np.arange(n_factors), n_factors + inner])
    by = np.argsort(bucket, kind="stable")
    source_ptr = np.concatenate([[0], np.cumsum(np.bincount(bucket, minlength=n))])
    size = np.concatenate(
        [_products(card[factor_scope], factor_ptr), _products(card[clique], clique_ptr) // card]
    )
    offset = np.concatenate([[0], np.cumsum(size)])
    scope = np.concatenate([factor_scope, clique[~own]])
    parts = (card, clique_ptr, clique, source_ptr, source[by], offset, scope_ptr, scope)
    return Program(*(np.ascontiguousarray(part, dtype=np.int64) for part in parts))


def _products(values: Ints, ptr: Ints) -> Ints:
    """The product of each (non-empty) row of a CSR."""
    return np.multiply.reduceat(values, ptr[:-1]) if len(ptr) > 1 else np.zeros(0, dtype=np.int64)

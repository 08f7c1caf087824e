"""What elimination needs to know before it sees a finite score: kept states, order, cliques and offsets."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .._types import Bools, InfeasibleError, Ints
from ..graph.flat import Regions
from ..graph.scores import Scores
from ..kernels.support import kept_entries, prune_states
from .elimination_order import Order, adjacency, cliques, find_order, quick_order, refuse_wide

#: Entries of the largest table allowed by default (half a gigabyte).
MAX_TABLE = 2**26

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
        kept: states of each variable that are not forbidden come first; (n_variables, max states).
        found: the order's cost: `largest` and `total` table entries, induced `width`.
        program: what the kernels run.
        region: the region behind each factor of the program.
        entry: for every entry of the factors, one after another, its index in the region's full table.
        fixed_region, fixed_entry: regions whose variables all have one state, and the entry they are at.
    """

    order: Ints
    kept: Ints
    found: Order
    program: Program
    region: Ints
    entry: Ints
    fixed_region: Ints
    fixed_entry: Ints

    def entries(self, start: Ints) -> Ints:
        """Index of every factor entry in a flat array where region r's table begins at start[r]."""
        size = np.diff(self.program.offset[: len(self.region) + 1])
        return self.entry + np.repeat(start[self.region], size)


def plan(scores: Scores, max_table: int = MAX_TABLE) -> Plan:
    """The plan for these scores, remembered on the graph; `WidthError` where a table exceeds `max_table`.

    States that hard constraints rule out (a clamped variable's other states, and what follows from the -inf
    entries of larger tables) are cut out of every table first: evidence makes graphs narrower.
    """
    allowed = scores.singles > -np.inf
    prune_states(scores.regions, *scores.flat(), allowed)
    empty = np.flatnonzero(~allowed.any(axis=1))
    if len(empty):
        raise InfeasibleError(
            f"every labelling is forbidden: -inf scores rule out all states of variable {empty[0]}."
        )
    known: dict[bytes, Plan] = scores.graph.cached("elimination", dict)
    key = np.packbits(allowed).tobytes()
    made = known.get(key)
    if made is None:
        made = make_plan(scores.regions, allowed, max_table)
        while len(known) >= _REMEMBERED:
            known.pop(next(iter(known)), None)
        known[key] = made
    refuse_wide(made.found, max_table)
    return made


def make_plan(regions: Regions, allowed: Bools, max_table: int, quick: bool = False) -> Plan:
    """The plan for regions with these states allowed, (n_variables, max states), at least one per variable.

    With `quick` the first order found serves, and one beyond `max_table` is given up at once.
    """
    n_kept = allowed.sum(axis=1)
    kept = np.argsort(~allowed, axis=1, kind="stable")
    free = np.flatnonzero(n_kept > 1)
    loose = n_kept[regions.scope] > 1
    region_of = np.repeat(np.arange(len(regions.size)), regions.order)
    n_loose = np.bincount(region_of[loose], minlength=len(regions.size))
    # where a region's table is entered: at the one state of every variable that has only one
    entry = np.zeros(len(regions.size), dtype=np.int64)
    np.add.at(entry, region_of[~loose], (regions.stride * kept[regions.scope, 0])[~loose])

    scope_ptr = np.concatenate([[0], np.cumsum(n_loose)])
    ptr, neighbour = adjacency(len(free), scope_ptr, np.searchsorted(free, regions.scope[loose]))
    card = n_kept[free]
    found = quick_order(card, ptr, neighbour, max_table) if quick else find_order(card, ptr, neighbour)
    refuse_wide(found, max_table)
    order = free[found.order]
    position = np.full(len(n_kept), -1)
    position[order] = np.arange(len(order))
    axes = region_of[loose], position[regions.scope[loose]], regions.stride[loose]
    region, factor_ptr, scope, stride = _factors(*axes)
    program = _program(n_kept[order], *cliques(found, ptr, neighbour), factor_ptr, scope)
    entries = kept_entries(program, len(region), stride, entry[region], kept[order])
    fixed = np.flatnonzero(n_loose == 0)
    return Plan(order, kept, found, program, region, entries, fixed, entry[fixed])


def _factors(region: Ints, position: Ints, stride: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Regions as factors sorted by bucket, each with its axes in elimination order.

    Args: for each (region, free variable) the region, the variable's position and its stride in the table.
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

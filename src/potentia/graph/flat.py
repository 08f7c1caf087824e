"""All regions of a graph in one numbering, as flat arrays: what general kernels and table code read."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._available import check_memory
from .._types import Ints, PotentiaError
from .structure import Graph

#: Four bytes per entry are enough for what is as long as all scopes together.
Narrow = NDArray[np.int32]
_NARROW = 2**31 - 1
#: Bytes that an entry of a scope takes while regions are numbered; measured.
_SCOPE_BYTES = 75


class Regions(NamedTuple):
    """Regions numbered kind by kind in the graph's order, then one implicit single per uncovered variable.

    Attributes:
        n_states: states per variable, (n_variables,).
        kind_ptr: first region of each kind, (n_kinds + 1,); the implicit singles follow kind_ptr[-1].
        scope_ptr, scope: CSR of the variables of each region.
        stride: step of each scope entry in its region's C-ordered table, aligned with `scope`.
        size: number of table entries of each region.
        single: the single-variable region of each variable, (n_variables,).
        member_ptr, member, member_at: CSR over variables of the regions that hold them and of the position in
            `scope` where they do.
    """

    n_states: Ints
    kind_ptr: Ints
    scope_ptr: Ints
    scope: Narrow
    stride: Narrow
    size: Ints
    single: Ints
    member_ptr: Ints
    member: Narrow
    member_at: Narrow

    @property
    def order(self) -> Ints:
        """Number of variables of each region."""
        return np.diff(self.scope_ptr)


def flat_regions(graph: Graph) -> Regions:
    """The graph's `Regions`, computed once and cached on it."""
    return graph.cached("regions", lambda: _build(graph))


class Stars(NamedTuple):
    """The regions around every variable, grouped by order, for kernels that visit one variable after another.

    Attributes:
        pair_ptr, pair: CSR over variables of the two-variable regions that hold them.
        other: the variable at the other end of each.
        own, step: strides of the variable and of the other in the pair's table.
        wide_ptr, wide, wide_at: CSR of the larger regions, and the position in `scope` where they hold the variable.
    """

    pair_ptr: Ints
    pair: Narrow
    other: Narrow
    own: Narrow
    step: Narrow
    wide_ptr: Ints
    wide: Narrow
    wide_at: Narrow


def stars(graph: Graph) -> Stars:
    """The graph's `Stars`, computed once and cached on it."""

    def build() -> Stars:
        r = flat_regions(graph)
        order, centre = r.order[r.member], np.repeat(np.arange(graph.n_variables), np.diff(r.member_ptr))

        def select(chosen: NDArray[np.bool_]) -> tuple[Ints, Narrow, Narrow]:
            counts = np.bincount(centre[chosen], minlength=graph.n_variables)
            return np.concatenate([[0], np.cumsum(counts)]), r.member[chosen], r.member_at[chosen]

        pair_ptr, pair, here = select(order == 2)
        there = 2 * r.scope_ptr[pair] + 1 - here
        return Stars(pair_ptr, pair, r.scope[there], r.stride[here], r.stride[there], *select(order > 2))

    return graph.cached("stars", build)


class Bonds(NamedTuple):
    """Pairs of variables that some two-variable region joins, and all regions that hold both.

    ptr, regions: CSR over bonds; the first region of each is one of the two variables alone.
    """

    ptr: Ints
    regions: Ints


def bonds(graph: Graph) -> Bonds:
    """The graph's `Bonds`, computed once and cached on it."""

    def build() -> Bonds:
        r, n = flat_regions(graph), graph.n_variables
        pairs = [number for number, scope in enumerate(graph.scopes.values()) if scope.shape[1] == 2]
        if graph.max_order == 2 and len(pairs) == 1 and not _repeats(graph.scopes[graph.kinds[pairs[0]]], n):
            held = np.arange(r.kind_ptr[pairs[0]], r.kind_ptr[pairs[0] + 1])
            return Bonds(np.arange(len(held) + 1), held)
        keys, holders = [], []
        kinds = sorted(enumerate(graph.scopes.values()), key=lambda item: item[1].shape[1])
        for number, scope in kinds:
            for p, q in combinations(range(scope.shape[1]), 2):
                keys.append(_pair_keys(scope[:, p], scope[:, q], n))
                holders.append(np.arange(r.kind_ptr[number], r.kind_ptr[number + 1]))
        key = np.concatenate([np.zeros(0, dtype=np.int64), *keys])
        holder = np.concatenate([np.zeros(0, dtype=np.int64), *holders])
        # pairs come first, so a bond's first region is one if it has any
        order = np.argsort(key, kind="stable")
        first = np.flatnonzero(np.diff(key[order], prepend=-1))
        size = np.diff(np.append(first, len(order)))
        joined = r.order[holder[order[first]]] == 2 if len(first) else np.zeros(0, dtype=bool)
        held = holder[order[np.repeat(joined, size)]]
        return Bonds(np.concatenate([[0], np.cumsum(size[joined])]).astype(np.int64), held)

    return graph.cached("bonds", build)


def _pair_keys(first: Ints, second: Ints, n: int) -> Ints:
    """One number per pair of variables, whatever their order."""
    return np.minimum(first, second) * n + np.maximum(first, second)


def _repeats(pairs: Ints, n: int) -> bool:
    """Whether some two of the pairs (m, 2) join the same variables."""
    key = _pair_keys(pairs[:, 0], pairs[:, 1], n)
    key.sort()
    return bool(np.any(key[1:] == key[:-1]))


def runs(start: Ints, length: Ints) -> Ints:
    """start[k], start[k] + 1, ... (length[k] of them) for every k, joined."""
    within = np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length)
    return np.repeat(start, length) + within


def table_sizes(graph: Graph, kind: str) -> Ints:
    """Number of entries of every table of a kind."""
    regions, number = flat_regions(graph), graph.kinds.index(kind)
    return regions.size[regions.kind_ptr[number] : regions.kind_ptr[number + 1]]


def _build(graph: Graph) -> Regions:
    scopes = list(graph.scopes.values())
    covered = np.zeros(graph.n_variables, dtype=bool)
    for scope in scopes:
        if scope.shape[1] == 1:
            covered[scope[:, 0]] = True
    implicit = np.flatnonzero(~covered)[:, None]
    every = [*scopes, implicit]
    entries = sum(s.size for s in every)
    if entries > _NARROW:
        raise PotentiaError(
            f"the graph's regions name {entries} variables in all; inference can number {_NARROW}: use several graphs."
        )
    check_memory(
        _SCOPE_BYTES * entries, f"inference on {graph.n_variables} variables", "build several smaller graphs"
    )
    for kind in graph.kinds:
        _check_strides(graph, kind)
    order = np.concatenate([np.full(len(s), s.shape[1], dtype=np.int64) for s in every])
    scope_ptr = np.concatenate([[0], np.cumsum(order)])
    flat = np.concatenate([s.ravel() for s in every]).astype(np.int64)
    stride = np.concatenate([_strides(graph.n_states[s]).ravel() for s in every]).astype(np.int64)
    size = np.concatenate(
        [graph.n_states[s].prod(axis=1) if s.size else np.ones(len(s), np.int64) for s in every]
    )
    region_of = np.repeat(np.arange(len(order)), order)
    single = np.empty(graph.n_variables, dtype=np.int64)
    is_single = order[region_of] == 1
    single[flat[is_single]] = region_of[is_single]
    by_variable = np.argsort(flat, kind="stable")
    member_ptr = np.concatenate([[0], np.cumsum(np.bincount(flat, minlength=graph.n_variables))])
    kind_ptr = np.concatenate([[0], np.cumsum([len(s) for s in scopes], dtype=np.int64)]).astype(np.int64)
    return Regions(
        graph.n_states, kind_ptr, scope_ptr, flat.astype(np.int32), stride.astype(np.int32), size, single,
        member_ptr, region_of[by_variable].astype(np.int32), by_variable.astype(np.int32),
    )  # fmt: skip


def _check_strides(graph: Graph, kind: str) -> None:
    """Refuse tables in which a step along an axis is too long for four bytes."""
    shapes = graph.table_shapes(kind)
    longest = shapes[:, 1:].prod(axis=1, dtype=np.float64) if shapes.shape[1] > 1 else np.zeros(0)
    if longest.max(initial=0.0) > _NARROW:
        row = int(longest.argmax())
        raise PotentiaError(
            f"the table of regions[{kind!r}][{row}] has the shape {tuple(shapes[row].tolist())}, more than {_NARROW} "
            "entries for each state of its first variable, which inference cannot number; use fewer states."
        )


def _strides(shapes: Ints) -> Ints:
    """C-order strides (in entries) of tables with these shapes, (n, order) -> (n, order)."""
    if shapes.size == 0:
        return shapes
    after = np.cumprod(shapes[:, ::-1], axis=1)[:, ::-1]
    return np.concatenate([after[:, 1:], np.ones((len(shapes), 1), dtype=np.int64)], axis=1)

"""All regions of a graph in one numbering, as flat arrays, and the links between them."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.resources import check_memory
from ..base.types import Floats, Ints, PotentiaError, check_choice

if TYPE_CHECKING:
    from .structure import Graph

#: Four bytes per entry are enough for what is as long as all scopes together.
Narrow = NDArray[np.int32]
_NARROW = 2**31 - 1
#: Axes and entries of a table at most.
_MAX_AXES, _MAX_ENTRIES = 64, 2**48
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

    @property
    def log_size(self) -> Floats:
        """The log of the number of configurations of each region."""
        return np.add.reduceat(np.append(np.log(self.n_states[self.scope]), 0.0), self.scope_ptr[:-1])


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


def find_stars(graph: Graph) -> Stars:
    """The `Stars` of a graph; regions of kinds in `structures` are in none."""
    r = graph.regions
    tables = ~structured_regions(graph)[r.member]
    order, centre = r.order[r.member], np.repeat(np.arange(graph.n_variables), np.diff(r.member_ptr))

    def select(chosen: NDArray[np.bool_]) -> tuple[Ints, Narrow, Narrow]:
        """CSR over the variables of the chosen memberships: offsets, regions, and places in them."""
        chosen = chosen & tables
        counts = np.bincount(centre[chosen], minlength=graph.n_variables)
        return np.concatenate([[0], np.cumsum(counts)]), r.member[chosen], r.member_at[chosen]

    pair_ptr, pair, here = select(order == 2)
    there = 2 * r.scope_ptr[pair] + 1 - here
    return Stars(pair_ptr, pair, r.scope[there], r.stride[here], r.stride[there], *select(order > 2))


def structured_regions(graph: Graph) -> NDArray[np.bool_]:
    """Which regions, in the `Regions` numbering, are of kinds in `structures`."""
    of = np.zeros(len(graph.regions.size), dtype=np.bool_)
    for kind in graph.structures:
        of[graph.region_slices[kind]] = True
    return of


class Bonds(NamedTuple):
    """Pairs of variables that some two-variable region joins, and all regions that hold both.

    ptr, regions: CSR over bonds; the first region of each is one of the two variables alone.
    """

    ptr: Ints
    regions: Ints


def find_bonds(graph: Graph) -> Bonds:
    """The `Bonds` of a graph."""
    r, n = graph.regions, graph.n_variables
    pairs = [number for number, scope in enumerate(graph.scopes.values()) if scope.shape[1] == 2]
    if graph.max_order == 2 and len(pairs) == 1 and not _repeats(graph.scopes[graph.kinds[pairs[0]]], n):
        regions = np.arange(r.kind_ptr[pairs[0]], r.kind_ptr[pairs[0] + 1])
        return Bonds(np.arange(len(regions) + 1), regions)
    keys, holders = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    tables = [(k, scope) for k, (kind, scope) in enumerate(graph.scopes.items()) if kind not in graph.structures]
    for number, scope in sorted(tables, key=lambda item: item[1].shape[1]):
        for p, q in combinations(range(scope.shape[1]), 2):
            keys.append(_pair_keys(scope[:, p], scope[:, q], n))
            holders.append(np.arange(r.kind_ptr[number], r.kind_ptr[number + 1]))
    key, holder = np.concatenate(keys), np.concatenate(holders)
    # pairs come first, so a bond's first region is one if it has any
    order = np.argsort(key, kind="stable")
    first = np.flatnonzero(np.diff(key[order], prepend=-1))
    size = np.diff(np.append(first, len(order)))
    joined = r.order[holder[order[first]]] == 2 if len(first) else np.zeros(0, dtype=bool)
    regions = holder[order[np.repeat(joined, size)]]
    return Bonds(np.concatenate([[0], np.cumsum(size[joined])]).astype(np.int64), regions)


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


def distinct(values: Ints) -> Ints:
    """The distinct values, sorted; `np.unique` hashes, which is slower by far where there are millions."""
    ordered = np.sort(values)
    return ordered[np.diff(ordered, prepend=ordered[:1] - 1) != 0]


def number_regions(graph: Graph) -> Regions:
    """The `Regions` of a graph."""
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
    check_memory(_SCOPE_BYTES * entries, f"inference on {graph.n_variables} variables", "build several smaller graphs")
    for kind in graph.kinds:
        if kind not in graph.structures:
            _check_strides(graph, kind)
    order = np.concatenate([np.full(len(s), s.shape[1], dtype=np.int64) for s in every])
    scope_ptr = np.concatenate([[0], np.cumsum(order)])
    flat = np.concatenate([s.ravel() for s in every]).astype(np.int64)
    shapes = [graph.table_shapes(kind) for kind in graph.kinds] + [graph.n_states[implicit]]
    # of kinds in `structures` there are outcomes, and no strides
    stride = np.concatenate(
        [
            (_strides(shape) if shape.shape == s.shape else np.zeros_like(s)).ravel()
            for shape, s in zip(shapes, every, strict=True)
        ]
    ).astype(np.int64)
    size = np.concatenate([s.prod(axis=1) if s.size else np.ones(len(s), np.int64) for s in shapes])
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
    entries = np.prod(shapes.astype(float), axis=1)
    if shapes.shape[1] > _MAX_AXES or entries.max(initial=0.0) > _MAX_ENTRIES:
        row = int(np.argmax(entries))
        raise PotentiaError(
            f"regions[{kind!r}][{row}] joins {shapes.shape[1]} variables with {entries[row]:.3g} configurations; "
            "tables hold at most 2^48, of at most 64 variables: give a value of pt.factors as its theta, or transpose "
            "the regions if they have one per column."
        )
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


RULES = ("containment", "star", "maximal")


class RegionLinks(NamedTuple):
    """Links parent -> child between regions in the `Regions` numbering, sorted by parent, then child.

    Attributes:
        parent, child: regions of each link, (n_links,).
        pattern: number of the projection of each link, (n_links,); links whose parents have one shape and
            whose children lie on the same axes of it share a pattern.
        map_ptr, maps: maps[map_ptr[p] + k] is the child's configuration at the parent's configuration k under
            pattern p (C order on both sides).
    """

    parent: Ints
    child: Ints
    pattern: Ints
    map_ptr: Ints
    maps: Ints


def find_links(graph: Graph, rule: str) -> RegionLinks:
    """The links of a graph by one of the `RULES`.

    Rules: "containment" joins every region to every region strictly inside it (the smoothed LP); "star" joins
    every region of two or more variables to its variables' single regions (TRW, Bethe); "maximal" joins
    regions inside no other region to every region strictly inside them (Kikuchi). Regions of equal scope are
    not linked.
    """
    check_choice("links", rule, RULES)
    regions = graph.regions
    if rule == "maximal":
        every = graph.links("containment")
        inside = np.zeros(len(regions.size), dtype=bool)
        inside[every.child] = True
        keep = ~inside[every.parent]
        return every._replace(parent=every.parent[keep], child=every.child[keep], pattern=every.pattern[keep])
    structured = structured_regions(graph)
    parent, child = _pairs(regions, structured, star=rule == "star")
    key = parent * len(regions.size) + child
    if np.any(key[1:] < key[:-1]):
        order = np.argsort(key)
        parent, child = parent[order], child[order]
    return RegionLinks(parent, child, *_patterns(regions, parent, child, structured))


def _pairs(regions: Regions, structured: NDArray[np.bool_], star: bool) -> tuple[Ints, Ints]:
    """Parent and child of every link, order by order: a few array operations per pair of orders.

    Structured regions are linked to single variables only.
    """
    order_of = regions.order
    orders = np.flatnonzero(np.bincount(order_of))
    parents, children = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for high in orders[orders > 1]:
        upper = np.flatnonzero(order_of == high)
        scope = np.sort(_scopes(regions, upper), axis=1)
        parents.append(np.repeat(upper, high))
        children.append(np.sort(regions.single[scope], axis=1).ravel())
        tables = ~structured[upper]
        for low in () if star or not tables.any() else orders[(orders > 1) & (orders < high)]:
            lower = np.flatnonzero((order_of == low) & ~structured)
            if not len(lower):
                continue
            above, below = _contained(regions, upper[tables], scope[tables], lower)
            parents.append(above)
            children.append(below)
    return np.concatenate(parents), np.concatenate(children)


def _contained(regions: Regions, upper: Ints, scope: Ints, lower: Ints) -> tuple[Ints, Ints]:
    """Links from regions `upper` (sorted scopes given) to those of `lower`, by looking up every sub-scope."""
    inner = np.sort(_scopes(regions, lower), axis=1)
    width, low = scope.shape[1], inner.shape[1]
    choice = np.array(list(combinations(range(width), low)))
    subsets = scope[:, choice].reshape(-1, low)
    key = _row_key(np.concatenate([inner, subsets]), len(regions.n_states))
    order = np.argsort(key[: len(lower)], kind="stable")
    known, wanted = key[: len(lower)][order], key[len(lower) :]
    first = np.searchsorted(known, wanted, side="left")
    count = np.searchsorted(known, wanted, side="right") - first
    # several regions may share one scope: expand each hit into its run in `known`
    hit = np.repeat(np.arange(len(wanted)), count)
    return upper[hit // len(choice)], lower[order[runs(first, count)]]


def _row_key(rows: Ints, radix: int) -> Ints:
    """A number per row of non-negative entries below `radix`, equal exactly where the rows are equal."""
    key, bound = np.zeros(len(rows), dtype=np.int64), 1
    for column in rows.T:
        if bound * radix > np.iinfo(np.int64).max:
            values, key = np.unique(key, return_inverse=True)
            bound = len(values)
        key = key * radix + column
        bound *= radix
    return key


def _patterns(regions: Regions, parent: Ints, child: Ints, structured: NDArray[np.bool_]) -> tuple[Ints, Ints, Ints]:
    """Pattern of each link, and the pooled maps of all patterns; 0 and none for links of structured regions."""
    pattern = np.zeros(len(parent), dtype=np.int64)
    maps: list[Ints] = []
    high, low = regions.order[parent], regions.order[child]
    orders = high * (int(low.max(initial=0)) + 1) + low
    tables = ~structured[parent]
    for number in np.flatnonzero(np.bincount(orders[tables])):
        group = np.flatnonzero((orders == number) & tables)
        outer, inner = _scopes(regions, parent[group]), _scopes(regions, child[group])
        axes = (inner[:, :, None] == outer[:, None, :]).argmax(axis=2)
        rows = np.concatenate([regions.n_states[outer], axes], axis=1)
        first, rank = _rank(_row_key(rows, int(rows.max()) + 1))
        pattern[group] = rank + len(maps)
        width = outer.shape[1]
        maps += [_projection(rows[k, :width], rows[k, width:]) for k in first]
    ptr = np.concatenate([[0], np.cumsum([len(m) for m in maps], dtype=np.int64)]).astype(np.int64)
    return pattern, ptr, np.concatenate([np.zeros(0, np.int64), *maps])


def _rank(key: Ints) -> tuple[Ints, Ints]:
    """An entry that holds each distinct key, in ascending order of key, and the rank of every entry's key."""
    if key.max() > 4 * len(key):
        _, holder, rank = np.unique(key, return_index=True, return_inverse=True)
        return holder, rank
    # few possible keys: counting beats sorting millions of links
    holder_of = np.full(int(key.max()) + 1, -1, dtype=np.int64)
    holder_of[key] = np.arange(len(key))
    present = holder_of >= 0
    return holder_of[present], (np.cumsum(present) - 1)[key]


def _projection(shape: Ints, axes: Ints) -> Ints:
    """Configuration on `axes` of every configuration of a C-ordered table of this shape."""
    states = np.indices(tuple(shape.tolist())).reshape(len(shape), -1)
    return np.ravel_multi_index(tuple(states[axes]), tuple(shape[axes].tolist())).astype(np.int64)


def _scopes(regions: Regions, which: Ints) -> Ints:
    """Scopes of regions of one order, (n, order)."""
    order = int(regions.order[which[0]])
    return regions.scope[regions.scope_ptr[which][:, None] + np.arange(order)]

"""Parent-child links between regions by containment, and how a parent's configurations map to its child's."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np

from .._types import Ints, PotentiaError, shown
from .flat import Regions, flat_regions, runs
from .structure import Graph

RULES = ("containment", "star", "maximal")


class Links(NamedTuple):
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


def region_links(graph: Graph, rule: str) -> Links:
    """Links of a graph by one rule, computed once and cached on it.

    Rules: "containment" joins every region to every region strictly inside it (the smoothed LP); "star" joins
    every region of two or more variables to its variables' single regions (TRW, Bethe); "maximal" joins
    regions inside no other region to every region strictly inside them (Kikuchi). Regions of equal scope are
    not linked.
    """
    if rule not in RULES:
        raise PotentiaError(f"links go by {', '.join(map(repr, RULES))}, not {shown(rule)}.")
    return graph.cached(("links", rule), lambda: _build(graph, rule))


def _build(graph: Graph, rule: str) -> Links:
    regions = flat_regions(graph)
    if rule == "maximal":
        every = region_links(graph, "containment")
        inside = np.zeros(len(regions.size), dtype=bool)
        inside[every.child] = True
        keep = ~inside[every.parent]
        return every._replace(parent=every.parent[keep], child=every.child[keep], pattern=every.pattern[keep])
    parent, child = _pairs(regions, star=rule == "star")
    key = parent * len(regions.size) + child
    if np.any(key[1:] < key[:-1]):
        order = np.argsort(key)
        parent, child = parent[order], child[order]
    return Links(parent, child, *_patterns(regions, parent, child))


def _pairs(regions: Regions, star: bool) -> tuple[Ints, Ints]:
    """Parent and child of every link, order by order: a few array operations per pair of orders."""
    order_of = regions.order
    orders = np.flatnonzero(np.bincount(order_of))
    parents, children = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for high in orders[orders > 1]:
        upper = np.flatnonzero(order_of == high)
        scope = np.sort(_scopes(regions, upper), axis=1)
        parents.append(np.repeat(upper, high))
        children.append(np.sort(regions.single[scope], axis=1).ravel())
        for low in () if star else orders[(orders > 1) & (orders < high)]:
            lower = np.flatnonzero(order_of == low)
            above, below = _contained(regions, upper, scope, lower)
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


def _patterns(regions: Regions, parent: Ints, child: Ints) -> tuple[Ints, Ints, Ints]:
    """Pattern of each link, and the pooled maps of all patterns."""
    pattern = np.zeros(len(parent), dtype=np.int64)
    maps: list[Ints] = []
    high, low = regions.order[parent], regions.order[child]
    orders = high * (int(low.max(initial=0)) + 1) + low
    for number in np.flatnonzero(np.bincount(orders)):
        group = np.flatnonzero(orders == number)
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

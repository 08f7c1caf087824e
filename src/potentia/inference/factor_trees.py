"""Structured factors as the flat arrays of `kernels.factors`: a balanced tree over the variables of each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..base.types import Floats, Ints
from ..graph.scores import Scores
from ..graph.structured import Structure
from ..kernels.factors import COUNT, FIRST, ITEM, PLACE, TABLE, FactorCotangents, FactorTrees

_FACTOR = (
    "first", "rule", "cap", "fold", "concave", "table_at", "n_elements", "outcome_at", "score_at", "node_ptr",
    "current",
)  # fmt: skip
_NODE = ("size", "low", "parent", "width", "at")
_ITEM = ("value_at", "n_values", "symbol_at", "place")
_GATHERED = (
    {*_FACTOR, *_NODE, *_ITEM, "leaf", "pool", "item_region", "item_variable"}
    - {"current", "at", "value_at", "place"}
)  # fmt: skip


class _Shape(NamedTuple):
    """Nodes of a balanced tree in preorder: leaves below, the first of them, parent; and the node of each leaf."""

    size: Ints
    low: Ints
    parent: Ints
    leaf: Ints


def _shape(n: int) -> _Shape:
    """The tree of n leaves."""
    size, low, parent = (np.zeros(2 * n - 1, dtype=np.int64) for _ in range(3))
    stack = [(0, 0, n, 0)]
    while stack:
        v, begin, count, above = stack.pop()
        size[v], low[v], parent[v] = count, begin, above
        if count > 1:
            left = (count + 1) // 2
            stack += [(v + 1, begin, left, v), (v + 2 * left, begin + left, count - left, v)]
    return _Shape(size, low, parent, np.flatnonzero(size == 1))


def _caps(values: Floats, offset: Ints, n_outcomes: int, order: int, trim: bool) -> tuple[Ints, Ints, Ints]:
    """Of counts in each region: the largest that matters, whether more fold into it, whether scores are concave."""
    scores = values[offset[:, None] + np.arange(n_outcomes)]
    finite = scores > -np.inf
    cap = n_outcomes - 1 - finite[:, ::-1].argmax(axis=1) if trim else np.full(len(offset), n_outcomes - 1)
    fold = (cap == n_outcomes - 1) & (n_outcomes - 1 < order)
    with np.errstate(invalid="ignore"):
        steps = np.diff(scores, axis=1)
        falling = ~(np.diff(steps, axis=1) > 0)  # NaN next to what is forbidden
    # what is allowed must be an interval
    run = (np.diff(finite.astype(np.int8), axis=1, prepend=0) == 1).sum(axis=1) == 1
    return cap, fold, falling.all(axis=1) & run & ~fold


def factor_trees(scores: Scores, at: Ints, trim: bool = True) -> tuple[FactorTrees, Ints, Ints]:
    """The trees of all structured regions of scores whose tables begin at `at`; the region and variable of each item.

    trim: leave out counts beyond the largest allowed one. What depends on messages, VALUE_AT and `entry`, is to be set.
    """
    graph, regions = scores.graph, scores.regions
    of = np.full(len(regions.size), -1, dtype=np.int64)
    none = np.zeros(0, dtype=np.int64)
    columns: dict[str, list[Ints]] = {name: [none] for name in _GATHERED}
    n_factors = n_items = n_nodes = n_numbers = widest = 0
    for kind, own in graph.structures.items():
        scope, states = graph.scopes[kind], graph.most_states(kind)
        m, n = scope.shape
        if not m:
            continue
        rows = graph.region_slices[kind]
        of[rows] = n_factors + np.arange(m)
        shape, symbols = _shape(n), own.symbols(n, states)
        table, outcome = (none, none) if own.rule == "count" else (part.ravel() for part in own.sums(states))
        cap, fold, concave, n_elements, width = _elements(own, scores, kind, shape, states, trim)
        outcome = np.arange(n_elements) if own.rule == "count" else outcome
        pool = sum(len(part) for part in columns["pool"])
        each = {
            "item_region": np.repeat(np.arange(rows.start, rows.stop), n),
            "item_variable": scope.ravel(),
            "n_values": graph.n_states[scope].ravel(),
            "symbol_at": np.tile(pool + states * np.arange(n), m),
            "pool": np.concatenate([symbols.ravel(), table, outcome]),
            "rule": np.full(m, COUNT if own.rule == "count" else TABLE),
            "cap": cap,
            "fold": fold.astype(np.int64),
            "concave": concave.astype(np.int64),
            "table_at": np.full(m, pool + symbols.size),
            "n_elements": np.full(m, n_elements),
            "outcome_at": np.full(m, pool + symbols.size + len(table)),
            "score_at": at[rows],
            "first": n_items + n * np.arange(m),
            "node_ptr": n_nodes + len(shape.size) * np.arange(m),
            "size": np.tile(shape.size, m),
            "low": np.tile(shape.low, m),
            "parent": (shape.parent + n_nodes + len(shape.size) * np.arange(m)[:, None]).ravel(),
            "leaf": (shape.leaf + n_nodes + len(shape.size) * np.arange(m)[:, None]).ravel(),
            "width": width.ravel(),
        }
        for name, part in each.items():
            columns[name].append(part)
        n_factors, n_items, n_nodes = n_factors + m, n_items + m * n, n_nodes + m * len(shape.size)
        n_numbers, widest = n_numbers + int(width.sum()), max(widest, int(width.max()))
    flat = {name: np.concatenate(parts).astype(np.int64) for name, parts in columns.items()}
    ends = {"first": n_items, "node_ptr": n_nodes, "current": 0}
    flat["current"] = np.full(n_factors, -1)
    for name in _FACTOR:
        flat[name] = np.append(flat[name], ends.get(name, 0))
    flat["at"] = np.cumsum(flat["width"]) - flat["width"]
    flat["place"] = np.arange(n_items) - np.repeat(flat["first"][:-1], np.diff(flat["first"]))
    trees = FactorTrees(
        of=of, entry=none, factor=_stacked(flat, _FACTOR), node=_stacked(flat, _NODE),
        items=_stacked({"value_at": np.zeros(n_items, dtype=np.int64), **flat}, _ITEM),
        leaves=np.stack([np.arange(n_items), flat["leaf"]], axis=1), pool=flat["pool"],
        up=np.zeros(n_numbers), down=np.zeros(n_numbers), scratch=np.zeros((5, 3 * widest + 128)),
    )  # fmt: skip
    return trees, flat["item_region"], flat["item_variable"]


def _stacked(columns: dict[str, Ints], names: tuple[str, ...]) -> Ints:
    """Columns of these names side by side."""
    return np.ascontiguousarray(np.stack([columns[name] for name in names], axis=1), dtype=np.int64)


def _elements(
    own: Structure, scores: Scores, kind: str, shape: _Shape, states: int, trim: bool
) -> tuple[Ints, Ints, Ints, int, Ints]:
    """Cap, fold and concavity of each region, the number of elements, and the width of each node, (m, nodes)."""
    m, n = scores.graph.scopes[kind].shape
    if own.rule == "count":
        values, offset = scores.kind(kind)
        n_outcomes = own.n_outcomes(n, states)
        cap, fold, concave = _caps(values, offset, n_outcomes, n, trim)
        return cap, fold, concave, n_outcomes, np.minimum(shape.size, cap[:, None]) + 1
    n_elements = len(own.sums(states)[1])
    zero = np.zeros(m, dtype=np.int64)
    return zero, zero, zero, n_elements, np.full((m, len(shape.size)), n_elements)


def arrange(trees: FactorTrees, rank: Ints) -> None:
    """Put the items of every factor at its leaves by rank, (items,): the order in which a sweep visits them."""
    first = trees.factor[:, FIRST]
    owner = np.repeat(np.arange(len(first) - 1), np.diff(first))
    item = np.lexsort((rank, owner))
    trees.leaves[:, ITEM] = item
    trees.items[item, PLACE] = np.arange(len(rank)) - first[owner]


def factor_cotangents(trees: FactorTrees) -> FactorCotangents:
    """Zero cotangents of all nodes."""
    return FactorCotangents(*(np.zeros_like(trees.up) for _ in range(3)))

"""Shards: examples joined into graphs of bounded size, and the targets and weights of their regions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from .._types import Floats, Ints
from ..data.example import Example
from ..graph.scores import table_index
from ..graph.structure import Graph
from ..graph.union import Union
from .examples import observed, table_entries

#: Table entries of a shard: training holds the tables of one shard per thread, and they should stay in the cache.
SHARD_ENTRIES = 200_000

#: Unions in use, so that equal graphs share one and its layout.
_unions: WeakValueDictionary[tuple[str, ...], Union] = WeakValueDictionary()


@dataclass(eq=False)
class Shard:
    """Some examples as one graph; its regions of a kind are rows `rows[kind]` of the part."""

    union: Union
    rows: dict[str, slice]
    labels: Ints
    weights: Floats | None

    @property
    def graph(self) -> Graph:
        """The disjoint union of the shard's examples; shards of equal graphs share it."""
        return self.union.graph


def cut_shards(examples: Sequence[Example], graphs: Sequence[Graph], drop_hidden: bool) -> list[Shard]:
    """Consecutive examples until a shard's tables would exceed SHARD_ENTRIES.

    graphs: the variables and regions of each example that take part; under `drop_hidden` those that are observed.
    """
    groups: list[list[int]] = []
    room = 0
    for i, graph in enumerate(graphs):
        size = table_entries(graph, examples[i])
        if not groups or size > room:
            groups.append([])
            room = SHARD_ENTRIES
        groups[-1].append(i)
        room -= size
    weighted = any(e.weights is not None for e in examples)
    shards, first = [], dict.fromkeys((kind for graph in graphs for kind in graph.scopes), 0)
    for group in groups:
        members, union = [examples[i] for i in group], shared_union([graphs[i] for i in group])
        rows = {}
        for kind, scope in union.graph.scopes.items():
            rows[kind] = slice(first[kind], first[kind] + len(scope))
            first[kind] += len(scope)
        labels = [np.full(e.graph.n_variables, -1) if e.labels is None else e.labels for e in members]
        weights = [np.ones(e.graph.n_variables) if e.weights is None else e.weights for e in members]
        own = _joined(members, weights, drop_hidden) if weighted else None
        shards.append(Shard(union, rows, _joined(members, labels, drop_hidden), own))
    return shards


def _joined(examples: Sequence[Example], values: Sequence[Any], drop_hidden: bool) -> Any:
    """Values of the examples' variables that take part."""
    pairs = zip(examples, values, strict=True)
    return np.concatenate([own[observed(e)] if drop_hidden else own for e, own in pairs])


def shared_union(graphs: Sequence[Graph]) -> Union:
    """The union of graphs; of equal lists of graphs there is one, with one layout, while any of them is in use."""
    key = tuple(graph.digest for graph in graphs)
    found = _unions.get(key)
    if found is None:
        found = _unions[key] = Union(graphs)
    return found


def region_targets(kind: str, shards: Sequence[Shard]) -> Ints:
    """Index of the true configuration of every region of a kind, -1 where one of its variables is hidden."""
    parts = [np.zeros(0, dtype=np.int64)]
    for shard in shards:
        if len(shard.graph.scopes.get(kind, ())):
            index = table_index(shard.graph, kind, np.maximum(shard.labels, 0))
            hidden = (shard.labels[shard.graph.scopes[kind]] < 0).any(axis=1)
            parts.append(np.where(hidden, -1, index))
    return np.concatenate(parts)


def region_weights(kind: str, shards: Sequence[Shard]) -> Floats:
    """The weight of every region of a kind: the mean over its variables."""
    parts = [
        (np.ones(shard.graph.n_variables) if shard.weights is None else shard.weights)[
            shard.graph.scopes[kind]
        ].mean(axis=1)
        for shard in shards
        if len(shard.graph.scopes.get(kind, ()))
    ]
    return np.concatenate(parts)

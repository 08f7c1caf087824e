"""Many graphs as one: the disjoint union, and results taken apart again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..base.types import ArrayLike, Bools, Ints, PotentiaError, real_numbers
from .structure import Graph
from .tables import WeightedTable, check_weighted, join_weighted


class Union:
    """The disjoint union of graphs of any sizes, and where each part lies in it.

    Kinds of one name are joined; a graph that lacks a kind contributes no regions to it.

    Attributes:
        graph: the union.
        parts: the graphs.
        variable_ptr: part k owns variables variable_ptr[k] : variable_ptr[k + 1].
        region_ptr: per kind, part k owns regions region_ptr[kind][k] : region_ptr[kind][k + 1].

    Example:
        >>> import potentia as pt
        >>> both = pt.extend.Union([pt.Graph.chain(2, n_states=2), pt.Graph.chain(3, n_states=2)])
        >>> both.graph.n_variables, both.variable_ptr.tolist()
        (5, [0, 2, 5])
    """

    def __init__(self, parts: Iterable[Graph]) -> None:
        self.parts: tuple[Graph, ...] = tuple(parts) if np.iterable(parts) else ()
        if not self.parts or not all(isinstance(part, Graph) for part in self.parts):
            raise PotentiaError("a union needs parts, a sequence of at least one Graph.")
        self.variable_ptr: Ints = np.cumsum([0, *(g.n_variables for g in self.parts)], dtype=np.int64)
        kinds = list(dict.fromkeys(kind for g in self.parts for kind in g.kinds))
        scopes = {kind: self._scopes(kind) for kind in kinds}
        self.region_ptr: dict[str, Ints] = {
            kind: np.cumsum([0, *(len(s) for s in parts)], dtype=np.int64) for kind, parts in scopes.items()
        }
        regions = {kind: np.concatenate(parts) for kind, parts in scopes.items()}
        structures = {kind: own for g in self.parts for kind, own in g.structures.items()}
        self.graph = Graph(np.concatenate([g.n_states for g in self.parts]), regions).with_structures(structures)
        # what is known of the parts holds for the union: clique weights, for one
        self.graph.made_of = self.parts

    def __repr__(self) -> str:
        return f"Union({len(self.parts)} graphs as one {self.graph!r})"

    def _scopes(self, kind: str) -> list[Ints]:
        """This kind's scopes of every part, in the union's variable numbers."""
        orders = {g.scopes[kind].shape[1] for g in self.parts if kind in g.scopes and len(g.scopes[kind])}
        if len(orders) > 1:
            raise PotentiaError(f"kind {kind!r} has regions of {sorted(orders)} variables in different graphs.")
        empty = np.zeros((0, orders.pop() if orders else 0), dtype=np.int64)
        return [
            g.scopes[kind] + start if kind in g.scopes and len(g.scopes[kind]) else empty
            for g, start in zip(self.parts, self.variable_ptr[:-1], strict=True)
        ]

    def join(self, tables: Sequence[Mapping[str, ArrayLike]]) -> dict[str, Any]:
        """Scores of all parts as scores of the union; shared tables are written out, kinds left out become zero.

        Values such as `pt.Potts(weight)` are joined where they differ by their weights only.
        """
        if len(tables) != len(self.parts):
            raise PotentiaError(f"{len(tables)} sets of tables for {len(self.parts)} graphs.")
        for g, theta in zip(self.parts, tables, strict=True):
            unknown = [kind for kind in theta if kind not in g.scopes] if isinstance(theta, Mapping) else [theta]
            if unknown:
                raise PotentiaError(f"tables name kind {unknown[0]!r}, but the graph's kinds are {list(g.kinds)}.")
        joined: dict[str, Any] = {}
        for kind in self.graph.kinds:
            weighted = join_weighted([t.get(kind) for t in tables], np.diff(self.region_ptr[kind]).tolist())
            if weighted is not None:
                joined[kind] = weighted
                continue
            pieces = [
                _region_tables(g, kind, t.get(kind))
                for g, t in zip(self.parts, tables, strict=True)
                if kind in g.scopes
            ]
            pieces = [p for p in pieces if len(p)]
            if self.graph.shared_shape(kind) is not None:
                joined[kind] = np.concatenate([np.asarray(p) for p in pieces])
            else:
                joined[kind] = [table for piece in pieces for table in piece]
        return joined

    def split(self, tables: Mapping[str, ArrayLike]) -> list[dict[str, ArrayLike]]:
        """Tables of the union (marginals, say) as tables of every part; views, not copies."""
        for kind, table in tables.items():
            if kind not in self.graph.scopes or len(table) != len(self.graph.scopes[kind]):
                raise PotentiaError(f"tables of kind {kind!r} do not fit the union's regions.")
        return [
            {
                kind: tables[kind][self.region_ptr[kind][k] : self.region_ptr[kind][k + 1]]
                for kind in g.kinds
                if kind in tables
            }
            for k, g in enumerate(self.parts)
        ]

    def split_variables(self, values: ArrayLike) -> list[ArrayLike]:
        """Something per variable of the union (labels, say) as the same per variable of every part."""
        if len(values) != self.graph.n_variables:
            raise PotentiaError(f"{len(values)} values for the union's {self.graph.n_variables} variables.")
        return [values[a:b] for a, b in zip(self.variable_ptr[:-1], self.variable_ptr[1:], strict=True)]


def _region_tables(graph: Graph, kind: str, value: ArrayLike) -> ArrayLike:
    """One table per region of a kind, from what users may pass."""
    n, one = len(graph.scopes[kind]), graph.shared_shape(kind)
    if value is None:
        shapes = graph.table_shapes(kind)
        return np.zeros((n, *one)) if one is not None else [np.zeros(tuple(s)) for s in shapes]
    if isinstance(value, WeightedTable):
        weighted = check_weighted(graph, kind, value)
        return weighted.of_pairs(n)[:, None, None] * weighted.unit
    if one is None:
        if len(value) != n:
            raise PotentiaError(f"theta[{kind!r}] has {len(value)} tables for {n} regions.")
        return value
    table = real_numbers(value, f"theta[{kind!r}]")
    if table.shape not in (one, (n, *one)):
        raise PotentiaError(
            f"theta[{kind!r}] has shape {table.shape}; expected {(n, *one)}, or {one} for a shared table."
        )
    return np.broadcast_to(table, (n, *one))


def induced(graph: Graph, keep: Bools) -> tuple[Graph, dict[str, Bools]]:
    """The graph on the kept variables with the regions whose variables are all kept, and which regions those are."""
    number = np.cumsum(keep) - 1
    rows: dict[str, Bools] = {kind: np.all(keep[scope], axis=1) for kind, scope in graph.scopes.items()}
    regions = {kind: number[scope[rows[kind]]] for kind, scope in graph.scopes.items()}
    return Graph(graph.n_states[keep], regions).with_structures(graph.structures), rows

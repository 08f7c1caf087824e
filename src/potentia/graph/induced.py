"""The part of a graph on some of its variables."""

from __future__ import annotations

import numpy as np

from .._types import Bools
from .structure import Graph


def induced(graph: Graph, keep: Bools) -> tuple[Graph, dict[str, Bools]]:
    """The graph on the kept variables with the regions whose variables are all kept, and which regions those are."""
    number = np.cumsum(keep) - 1
    rows: dict[str, Bools] = {kind: np.all(keep[scope], axis=1) for kind, scope in graph.scopes.items()}
    regions = {kind: number[scope[rows[kind]]] for kind, scope in graph.scopes.items()}
    return Graph(graph.n_states[keep], regions), rows

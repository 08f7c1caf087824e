"""Regions of single variables for variables that have none.

The joint objective of iterated logistic regression is a sum over regions, and messages come from all of them: a
variable that only larger regions hold has an implicit region with a score of zero, which is made explicit here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..data.example import Example
from ..graph.structure import Graph


def with_singles(examples: Sequence[Example]) -> tuple[list[Example], list[str]]:
    """The examples with a single-variable region for every variable, and the kinds that were added."""
    graphs = [_completed(example.graph) for example in examples]
    kinds = {
        kind for e, graph in zip(examples, graphs, strict=True) for kind in graph.kinds[len(e.graph.kinds) :]
    }
    completed = [
        e if graph is e.graph else Example(graph, e.features, e.labels, e.weights, e.name, e.inputs)
        for e, graph in zip(examples, graphs, strict=True)
    ]
    return completed, sorted(kinds)


def _completed(graph: Graph) -> Graph:
    """The graph with regions for its bare variables, one kind per number of states."""
    bare = np.ones(graph.n_variables, dtype=bool)
    for scope in graph.scopes.values():
        if scope.shape[1] == 1:
            bare[scope[:, 0]] = False
    if not bare.any():
        return graph

    def make() -> Graph:
        regions = dict(graph.scopes)
        for states in np.unique(graph.n_states[bare]):
            regions[f"single variables of {states} states"] = np.flatnonzero(
                bare & (graph.n_states == states)
            )[:, None]
        return Graph(graph.n_states, regions)

    return graph.cached("with_singles", make)

"""From flat marginals to what users see, one table or list of tables per kind."""

from __future__ import annotations

import numpy as np

from .._types import Floats, Ints
from ..graph.scores import Scores, shape_tables
from ..graph.structure import Graph


def single_tables(graph: Graph, kind: str, singles: Floats) -> Floats | list[Floats]:
    """Marginals of a single-variable (or empty) kind from those of all variables, (n, states)."""
    scope = graph.scopes[kind]
    if len(scope) == 0:
        return np.zeros((0,) * (scope.shape[1] + 1))
    one = graph.shared_shape(kind)
    if one is not None:
        return singles[scope[:, 0], : one[0]]
    return [singles[i, : graph.n_states[i]] for i in scope[:, 0]]


def marginals_by_kind(scores: Scores, flat: Floats, start: Ints) -> dict[str, Floats | list[Floats]]:
    """Marginals per kind; region r of the `Regions` numbering stands at flat[start[r] : start[r + 1]]."""
    ptr = scores.regions.kind_ptr
    return {
        kind: shape_tables(scores.graph, kind, flat[start[ptr[k]] : start[ptr[k + 1]]].copy())
        for k, kind in enumerate(scores.graph.kinds)
    }


def all_singles(scores: Scores, flat: Floats, start: Ints) -> Floats:
    """Marginals of all variables, (n, states), zero beyond a variable's states."""
    singles = np.zeros_like(scores.singles)
    mask = np.arange(singles.shape[1]) < scores.graph.n_states[:, None]
    column = np.broadcast_to(np.arange(singles.shape[1]), mask.shape)[mask]
    singles[mask] = flat[np.repeat(start[scores.regions.single], scores.graph.n_states) + column]
    return singles

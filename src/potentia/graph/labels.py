"""Labels and what they mean: indicators of configurations, clamped variables, -1 for hidden."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..base.options import check_type
from ..base.types import ArrayLike, Floats, Ints, PotentiaError, real_numbers, whole_numbers
from .structure import Graph


def check_labels(graph: Graph, labels: ArrayLike, name: str = "labels") -> Ints:
    """Labels as integers, one per variable, each a state of its variable or -1 (hidden)."""
    check_type("graph", graph, Graph)
    y = whole_numbers(labels, name)
    if y.shape != (graph.n_variables,):
        raise PotentiaError(f"{name} has shape {y.shape}; the graph needs ({graph.n_variables},).")
    bad = np.flatnonzero((y < -1) | (y >= graph.n_states))
    if bad.size:
        i = int(bad[0])
        raise PotentiaError(
            f"{name}[{i}] = {y[i]} is not a state of variable {i}, which has {graph.n_states[i]}."
        )
    return y


def observed_states(graph: Graph, observed: ArrayLike | None) -> Ints:
    """Clamped state of each variable, -1 where free, from None, {variable: state} or an array with -1."""
    if observed is None:
        return np.full(graph.n_variables, -1, dtype=np.int64)
    if not isinstance(observed, Mapping):
        return check_labels(graph, observed, "observed")
    states = np.full(graph.n_variables, -1, dtype=np.int64)
    variables = whole_numbers(list(observed), "observed variables")
    values = whole_numbers(list(observed.values()), "observed states")
    if not variables.shape == values.shape == (len(observed),):
        raise PotentiaError("observed must map each variable's number to the number of its state.")
    for variable, state in zip(variables, values, strict=True):
        if not 0 <= variable < graph.n_variables:
            raise PotentiaError(
                f"observed names variable {variable}; the graph has 0..{graph.n_variables - 1}."
            )
        if not 0 <= state < graph.n_states[variable]:
            raise PotentiaError(
                f"observed state {state} of variable {variable} is outside 0..{graph.n_states[variable] - 1}."
            )
        states[variable] = state
    return states


def labels_to_indicators(graph: Graph, labels: ArrayLike) -> dict[str, Floats | list[Floats]]:
    """f(y): a table per region with 1 at its configuration; all zero for a region that touches a hidden variable."""
    y = check_labels(graph, labels)
    result: dict[str, Floats | list[Floats]] = {}
    for kind, scope in graph.scopes.items():
        start = np.concatenate([[0], np.cumsum(graph.table_sizes(kind))])
        flat = np.zeros(start[-1])
        seen = (y[scope] >= 0).all(axis=1)
        flat[(start[:-1] + graph.table_index(kind, np.maximum(y, 0)))[seen]] = 1.0
        result[kind] = graph.shape_tables(kind, flat)
    return result


def indicators_to_labels(graph: Graph, indicators: Mapping[str, ArrayLike]) -> Ints:
    """Labels from tables of indicators (or marginals): each variable's best state over its tables, -1 if all zero."""
    check_type("graph", graph, Graph)
    check_type("indicators", indicators, Mapping)
    votes = np.zeros((graph.n_variables, int(graph.n_states.max())))
    for kind, tables in indicators.items():
        scope = graph.scopes.get(kind)
        if scope is None or not hasattr(tables, "__len__") or len(tables) != len(scope):
            raise PotentiaError(f"indicators of kind {kind!r} do not fit the graph's regions.")
        shapes = graph.table_shapes(kind)
        name = f"indicators[{kind!r}]"
        if graph.shared_shape(kind) is None:
            stacks = [(s[None], real_numbers(t, name)[None]) for s, t in zip(scope, tables, strict=True)]
        else:
            stacks = [(scope, real_numbers(tables, name))]
        present = [shape for _, stack in stacks for shape in [stack.shape[1:]] * len(stack)]
        if present != [tuple(shape) for shape in shapes]:
            raise PotentiaError(f"indicators of kind {kind!r} have tables of the wrong shape.")
        for scopes, stack in stacks:
            for axis in range(scopes.shape[1]):
                vote = stack.sum(axis=tuple(k + 1 for k in range(scopes.shape[1]) if k != axis))
                np.add.at(votes, (scopes[:, axis, None], np.arange(vote.shape[1])), vote)
    return np.where(votes.max(axis=1) > 0, votes.argmax(axis=1), -1)

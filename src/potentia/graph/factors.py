"""Models given as a list of factors: one graph and its scores, with factors of the same variables merged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..base.types import ArrayLike, Floats, Ints, PotentiaError, plain_array, whole_numbers
from .structure import Graph

Theta = dict[str, Floats | list[Floats]]


def join_factors(
    factors: Iterable[tuple[Sequence[int] | Ints, Floats]], n_states: Sequence[int] | Ints
) -> tuple[Graph, Theta]:
    """The graph and scores of checked factors (scope, score table).

    Kinds are "node", "edge", "clique3", "clique4", ... as they occur; variables of a scope ascend. Factors of the same
    variables in any order are added up, those without variables go into the first table. A kind's scores are one
    array (n_regions, *states), or a list where states differ.
    """
    tables: dict[tuple[int, ...], Floats] = {}
    constant = 0.0
    for scope, table in factors:
        if not len(scope):
            constant += float(table)
            continue
        axes = np.argsort(np.asarray(scope))
        key = tuple(int(scope[a]) for a in axes)
        ascending = np.transpose(table, axes)
        tables[key] = tables[key] + ascending if key in tables else ascending
    if constant:
        first = next(iter(tables), (0,))
        tables[first] = tables.get(first, np.zeros(n_states[0])) + constant
    scopes: dict[str, list[tuple[int, ...]]] = {}
    lists: dict[str, list[Floats]] = {}
    for key in sorted(tables, key=len):
        scopes.setdefault(kind_of(len(key)), []).append(key)
        lists.setdefault(kind_of(len(key)), []).append(tables[key])
    graph = Graph(n_states, scopes)
    return graph, {kind: np.stack(t) if graph.shared_shape(kind) else t for kind, t in lists.items()}


def kind_of(order: int) -> str:
    """The kind of regions of `order` variables."""
    return {1: "node", 2: "edge"}.get(order, f"clique{order}")


def check_factors(factors: Any, n_states: ArrayLike | None) -> tuple[list[tuple[Ints, Floats]], Ints]:
    """Factors as users give them, checked, and the states of all variables, taken from the tables if not given."""
    if isinstance(factors, str) or not np.iterable(factors):
        raise PotentiaError(f"factors must be a list of (scope, table), not a {type(factors).__name__}.")
    checked = [_check_factor(number, factor) for number, factor in enumerate(factors)]
    states = _states_of(checked) if n_states is None else whole_numbers(n_states, "n_states")
    for number, (scope, table) in enumerate(checked):
        if scope.size and scope.max() >= len(states):
            raise PotentiaError(f"factors[{number}] names variable {scope.max()}, but there are 0..{len(states) - 1}.")
        if table.shape != tuple(states[scope]):
            raise PotentiaError(
                f"factors[{number}] has a table of shape {table.shape}; its variables {scope.tolist()} have "
                f"{states[scope].tolist()} states."
            )
    return checked, states


def _check_factor(number: int, factor: Any) -> tuple[Ints, Floats]:
    """A factor as (scope, table), checked for an axis per variable and distinct variables."""
    if not isinstance(factor, tuple | list) or len(factor) != 2:
        raise PotentiaError(f"factors[{number}] must be a pair (scope, table).")
    scope = whole_numbers(np.zeros(0, dtype=int) if np.size(factor[0]) == 0 else factor[0], f"factors[{number}][0]")
    table = plain_array(factor[1], f"factors[{number}][1]", np.float64)
    if scope.ndim != 1 or table.ndim != len(scope):
        raise PotentiaError(
            f"factors[{number}] has {len(scope) if scope.ndim == 1 else scope.shape} variables and a table of shape "
            f"{table.shape}; a table needs an axis per variable."
        )
    if scope.size and scope.min() < 0:
        raise PotentiaError(f"factors[{number}] names variable {scope.min()}; variables count from 0.")
    if len(np.unique(scope)) < len(scope):
        raise PotentiaError(f"factors[{number}] names a variable twice in its scope {scope.tolist()}.")
    return scope, table


def _states_of(factors: list[tuple[Ints, Floats]]) -> Ints:
    """States of each variable, from the shapes of the tables."""
    n = 1 + max((int(scope.max()) for scope, _ in factors if scope.size), default=-1)
    if n == 0:
        raise PotentiaError("factors name no variable; give n_states.")
    if n > 2**31:
        raise PotentiaError(f"factors name variable {n - 1}; at most 2^31 variables are supported.")
    states = np.zeros(n, dtype=np.int64)
    for scope, table in factors:
        states[scope] = table.shape
    if not states.all():
        raise PotentiaError(f"no factor has variable {int(np.argmin(states))}; give n_states.")
    return states

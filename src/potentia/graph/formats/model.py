"""What readers of model files share: the model, limits on tables, and the tables of a graph for writers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...base.resources import check_memory
from ...base.types import ArrayLike, Floats, Ints, PotentiaError
from ..factors import join_factors
from ..scores import Scores
from ..structure import Graph

#: Entries of all tables of a file together, written out.
_MAX_ENTRIES = 2**28


class Model(NamedTuple):
    """A graph, its scores, and the names of variables and states where the file has them (else empty)."""

    graph: Graph
    theta: dict[str, Floats | list[Floats]]
    variables: list[str]
    states: list[list[str]]


class Factors:
    """Factors of a file as they are read, within limits that hold before tables are made.

    Args:
        path: for errors. n_states: states of every variable.
    """

    def __init__(self, path: str, n_states: Sequence[int]) -> None:
        self.path, self.n_states = path, list(n_states)
        self._factors: list[tuple[list[int], Floats]] = []
        self._entries = 0

    def new_table(self, scope: Sequence[int], value: float, what: str) -> Floats:
        """An empty table of the scope's states, filled with a value, after checks of scope and size."""
        if scope and not 0 <= min(scope) <= max(scope) < len(self.n_states):
            raise self.error(f"{what} names a variable outside 0..{len(self.n_states) - 1}")
        if len(set(scope)) < len(scope):
            raise self.error(f"{what} names a variable twice in its scope")
        if len(scope) > 64:
            raise self.error(f"{what} joins {len(scope)} variables; at most 64 are supported")
        shape = tuple(self.n_states[v] for v in scope)
        self._entries += math.prod(shape)
        if self._entries > _MAX_ENTRIES:
            raise self.error(f"with {what} the tables have more than 2^28 entries")
        check_memory(32.0 * self._entries, f"{self.path}: {what}", "use a smaller model")
        return np.full(shape, value)

    def add(self, scope: Sequence[int], table: Floats) -> None:
        """Take a table of scores."""
        self._factors.append((list(scope), table))

    def error(self, what: str) -> PotentiaError:
        """An error that names the file."""
        return PotentiaError(f"{self.path}: {what}.")

    def model(self, variables: list[str], states: list[list[str]]) -> Model:
        """The model of all tables."""
        return Model(*join_factors(self._factors, self.n_states), variables, states)


def log_of(table: Floats) -> Floats:
    """Natural logarithms, -inf of zero."""
    with np.errstate(divide="ignore"):
        return np.log(table)


def tables_of(graph: Graph, theta: Mapping[str, ArrayLike]) -> Iterator[tuple[Ints, Floats]]:
    """Scope and score table of every region."""
    scores = Scores(graph, theta)
    for r in range(int(scores.regions.kind_ptr[-1])):
        scope = scores.regions.scope[scores.regions.scope_ptr[r] : scores.regions.scope_ptr[r + 1]]
        yield scope.astype(np.int64), scores.table(r)

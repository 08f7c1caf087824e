"""Tables of pairs given by a weight: Potts, truncated linear and quadratic, or any table times a weight per pair."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from ..base.types import Floats, PotentiaError, real_number, real_numbers, shown
from ..kernels.tables import LARGEST
from .structure import Graph


class Cost(NamedTuple):
    """g(d) = min(d ** power, cut), the cost of labels that are d apart; power 0: [d != 0]."""

    power: int
    cut: float

    def of(self, n_states: int) -> Floats:
        """g of the distances 0..n_states - 1."""
        apart = np.arange(n_states, dtype=np.float64)
        return np.minimum((apart > 0) if self.power == 0 else apart**self.power, self.cut)


class WeightedTable(ABC):
    """A value of theta: the score of pair e is weight[e] times one table of two equal numbers of states.

    weight: a number, or one per pair, (m,). Subclasses define the table by `cost` or `base_table`.
    """

    weight: Any

    @property
    @abstractmethod
    def cost(self) -> Cost | None:
        """The cost whose negative is the table; None if it is not a function of the distance between labels."""

    def base_table(self, n_states: int) -> Floats:
        """The table that the weight multiplies, (n_states, n_states)."""
        assert self.cost is not None
        labels = np.arange(n_states)
        table: Floats = -self.cost.of(n_states)[np.abs(labels[:, None] - labels)]
        return table

    def with_weight(self, weight: Any) -> Self:
        """The same table with another weight."""
        other = copy.copy(self)
        other.weight = weight
        return other

    def same_table(self, other: Any) -> bool:
        """Whether another value differs by its weight only."""
        return type(other) is type(self) and other.cost == self.cost


@dataclass(frozen=True, eq=False)
class Weighted:
    """A `WeightedTable` checked against a kind of a graph: score of pair e = weight[e] * unit.

    Attributes:
        unit: (L, L).
        weight: one number per pair, (m,), or one for all, (1,).
        cost: see `WeightedTable`.
        shape: of the weight as given.
    """

    unit: Floats
    weight: Floats
    cost: Cost | None
    shape: tuple[int, ...]

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest score."""
        ends = np.outer([self.weight.min(), self.weight.max()], [self.unit.min(), self.unit.max()])
        return float(ends.min()), float(ends.max())

    def of_pairs(self, n: int) -> Floats:
        """The weight of each of n pairs."""
        return np.broadcast_to(self.weight, (n,))

    def written(self) -> Floats:
        """One table per weight, flat."""
        tables: Floats = (self.weight[:, None] * self.unit.ravel()).ravel()
        return tables

    def pull(self, d_tables: Floats) -> Floats:
        """Cotangents of tables, one per pair or per weight and flat, as cotangents of the weights."""
        d_weights = d_tables.reshape(-1, self.unit.size) @ self.unit.ravel()
        return self.sum(d_weights)

    def sum(self, d_weights: Floats) -> Floats:
        """Cotangents of the pairs' weights as cotangents of the weights given, which all pairs may share."""
        return d_weights if len(d_weights) == len(self.weight) else d_weights.sum(keepdims=True)


def check_weighted(graph: Graph, kind: str, value: WeightedTable) -> Weighted:
    """A value of theta checked against its kind's pairs."""
    name, shape, n = type(value).__name__, graph.shared_shape(kind), len(graph.scopes[kind])
    if graph.scopes[kind].shape[1] != 2 or shape is None or shape[0] != shape[1]:
        raise PotentiaError(
            f"theta[{kind!r}] is {name}, which needs pairs of variables that all have one number of states."
        )
    if value.weight is None:
        raise PotentiaError(
            f"theta[{kind!r}] is {name} without a weight: give a number, or one number per pair."
        )
    weight = real_numbers(value.weight, f"the weight of theta[{kind!r}]")
    if weight.shape not in ((), (n,)):
        raise PotentiaError(
            f"the weight of theta[{kind!r}] has shape {weight.shape}; expected a number or {(n,)}, one per pair."
        )
    unit = value.base_table(shape[0])
    if unit.shape != shape:
        raise PotentiaError(f"the table of theta[{kind!r}] has shape {unit.shape}; expected {shape}.")
    if not np.abs(weight).max(initial=0.0) * max(np.abs(unit).max(), 1.0) <= LARGEST:
        raise PotentiaError(f"theta[{kind!r}] holds NaN, an infinity or a score beyond 1e100.")
    return Weighted(unit, weight.reshape(-1).copy(), value.cost, weight.shape)


def check_cut(cut: Any) -> float:
    """A positive number, infinity allowed."""
    number = real_number(cut, "cut")
    if not number > 0:
        raise PotentiaError(f"cut must be a positive number, not {shown(cut)}.")
    return number


def join_weighted(values: Sequence[Any], counts: Sequence[int]) -> WeightedTable | None:
    """Join the values of several graphs with `counts` pairs each; None if they differ in more than their weights."""
    held = [(value, n) for value, n in zip(values, counts, strict=True) if n]
    if not held or not isinstance(held[0][0], WeightedTable):
        return None
    first = held[0][0]
    if not all(first.same_table(value) for value, _ in held):
        return None
    weights = [np.broadcast_to(real_numbers(value.weight, "weight"), (n,)) for value, n in held]
    return first.with_weight(np.concatenate(weights))

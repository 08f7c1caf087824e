"""Values of theta given by weights instead of tables: Potts and kin of pairs, and Gaussians of all pairs."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np

from ..base.types import Floats, Ints, PotentiaError, check_choice, real_number, real_numbers, shown
from ..kernels import permutohedral as lattice_kernels
from ..kernels.tables import LARGEST
from .structure import Graph

#: Up to this many variables all pairs are written out.
_FEW = 2048


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
        """This table with another weight."""
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
        raise PotentiaError(f"theta[{kind!r}] is {name} without a weight: give a number, or one number per pair.")
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
    present = [(value, n) for value, n in zip(values, counts, strict=True) if n]
    if not present or not isinstance(present[0][0], WeightedTable):
        return None
    first = present[0][0]
    if not all(first.same_table(value) for value, _ in present):
        return None
    weights = [np.broadcast_to(real_numbers(value.weight, "weight"), (n,)) for value, n in present]
    return first.with_weight(np.concatenate(weights))


# -- all pairs by the distance of features


class DenseTerm:
    """The value of theta that `pt.DenseGaussian` is with features and a weight.

    Attributes:
        blocks: offsets of variables between which there are no pairs, those of different examples; None for none.
        learned: cotangents are those of the features and, in the first entry of a further column, of the weight.
    """

    blocks: Ints | None = None
    learned = False

    def __init__(
        self,
        features: Any,
        weight: float,
        compatibility: Any = None,
        normalisation: str | None = "symmetric",
        exact: bool | None = None,
    ) -> None:
        check_choice("normalisation", normalisation, ("symmetric",), "None")
        self.compatibility = None if compatibility is None else _check_compatibility(compatibility)
        self.normalisation, self.exact = normalisation, exact
        self.features = real_numbers(features, "features")
        if self.features.ndim != 2 or not self.features.shape[1] or not np.all(np.isfinite(self.features)):
            raise PotentiaError(
                f"features must be finite numbers, (n_variables, d), not of shape {self.features.shape}."
            )
        if np.abs(self.features).max(initial=0.0) > 1e6:
            raise PotentiaError("features must be below 1e6: divide them by the kernel's standard deviations.")
        self.weight: Any = real_number(weight, "weight")
        if not np.isfinite(self.weight):
            raise PotentiaError(f"weight must be a finite number, not {shown(weight)}.")

    def with_weight(self, weight: float) -> Self:
        """This kernel, prepared as it is, with another weight."""
        other = copy.copy(self)
        other.weight = real_number(weight, "weight")
        return other

    def __repr__(self) -> str:
        n, d = self.features.shape
        return f"DenseGaussian({n} variables, {d} features, weight={self.weight:g})"

    @property
    def is_exact(self) -> bool:
        """Whether all pairs are summed, rather than filtered by a lattice."""
        ends = [0, len(self.features)] if self.blocks is None else self.blocks
        return np.diff(ends).max() <= _FEW if self.exact is None else self.exact

    def multiply(self, values: Floats, transposed: bool = False) -> Floats:
        """The sum of k(i, j) values[j] over all other variables j, for every variable i; values (n, C)."""
        scaled: Floats = self._scale * self._filter(self._scale * values, transposed)
        return scaled

    @cached_property
    def _filter(self) -> Callable[[Floats, bool], Floats]:
        """The kernel between different variables without normalisation, prepared for products."""
        prepare = _all_pairs if self.is_exact else _lattice
        if self.blocks is None:
            return prepare(self.features)
        return partial(_in_blocks, self.blocks, [prepare(self.features[a:b]) for a, b in pairwise(self.blocks)])

    @cached_property
    def _scale(self) -> Floats:
        """1 / sqrt(D), (n, 1)."""
        ones = np.ones((len(self.features), 1))
        # the kernel leaves out i itself, the normalisation does not
        return 1.0 / np.sqrt(self._filter(ones, False) + 1.0) if self.normalisation else ones

    def score(self, labels: Ints, n_states: int) -> float:
        """The term's score of a complete labelling."""
        chosen = np.eye(n_states)[labels]
        return 0.5 * self.weight * float((chosen * self.field(self.multiply(chosen))).sum())

    def field(self, mixed: Floats) -> Floats:
        """Scores of every variable's labels from `multiply(q)`, but for the weight; its own transpose."""
        if self.compatibility is None:
            return mixed - mixed.sum(axis=1, keepdims=True)
        return -mixed @ self.compatibility

    def pull(self, q: Floats, d_mixed: Floats) -> Floats:
        """Cotangents of the features from those of `multiply(q)`, (n, d).

        With B_ij the derivative by k(i, j) these are -sum_j (B_ij + B_ji) k(i, j) (f_i - f_j), where B sums products of
        a function of i and one of j, which is filtered, also times every feature.
        """
        scale, features = self._scale, self.features - self.features.mean(axis=0)
        left, right = [scale * d_mixed, scale * q], [scale * q, scale * d_mixed]
        if self.normalisation:
            slope = d_mixed * self._filter(right[0], False) + q * self._filter(right[1], False)
            of_sums = -0.5 * scale**3 * slope.sum(axis=1, keepdims=True)
            left, right = [*left, of_sums, np.ones_like(scale)], [*right, np.ones_like(scale), of_sums]
        here, there = np.hstack(left), np.hstack(right)
        mixed = self._filter(there, False)
        columns = (column[:, None] for column in features.T)
        return np.stack([(here * (self._filter(f * there, False) - f * mixed)).sum(axis=1) for f in columns], axis=1)


def _in_blocks(
    blocks: Ints, filters: Sequence[Callable[[Floats, bool], Floats]], values: Floats, transposed: bool
) -> Floats:
    """Products with a kernel for each block of variables."""
    ends = zip(filters, pairwise(blocks), strict=True)
    return np.concatenate([of_block(values[a:b], transposed) for of_block, (a, b) in ends])


def _all_pairs(features: Floats) -> Callable[[Floats, bool], Floats]:
    """Products with the kernel matrix itself."""
    centred = features - features.mean(axis=0)
    square = (centred**2).sum(axis=1)
    apart = square[:, None] + square - 2.0 * centred @ centred.T
    matrix = np.exp(-0.5 * np.maximum(apart, 0.0))
    np.fill_diagonal(matrix, 0.0)
    return partial(_times, matrix)


def _times(matrix: Floats, values: Floats, transposed: bool) -> Floats:
    """matrix @ values; the matrix is symmetric, so that `transposed` changes nothing."""
    return matrix @ values


def _lattice(features: Floats) -> Callable[[Floats, bool], Floats]:
    """Products by filtering with `kernels.permutohedral`, less every point's response to itself.

    The kernel of the lattice is flatter than a Gaussian. It is scaled to have the same integral: sums over dense points
    are then right, whereas its value at distance 0 is too small.
    """
    n, d = features.shape
    centred = np.ascontiguousarray(features - features.mean(axis=0))
    most = n * (d + 1)
    table = np.zeros(1 << int(np.ceil(np.log2(2 * most + 2))), dtype=np.int32)
    vertex: Ints = np.empty((n, d + 1), dtype=np.int32)
    weight = np.empty((n, d + 1))
    keys = np.empty((most, d), dtype=np.int32)
    n_vertices = lattice_kernels.build(centred, table, vertex, weight, keys)
    beside: Ints = np.empty((d + 1, n_vertices, 2), dtype=np.int32)
    lattice_kernels.neighbours(table, keys[:n_vertices], beside)
    response = np.empty((n, 1))
    lattice_kernels.own_response(weight, response[:, 0])
    # blurs sum to 2^(d + 1); the volume per vertex is 1.5^(d / 2) / sqrt(d + 1); the kernels divide by 1 + 2^-d
    scale = (2 * np.pi / 1.5) ** (d / 2) * np.sqrt(d + 1) / 2 ** (d + 1) * (1 + 0.5**d)
    return partial(_filtered, vertex, weight, beside, response, scale)


def _filtered(
    vertex: Ints, weight: Floats, beside: Ints, response: Floats, scale: float, values: Floats, transposed: bool
) -> Floats:
    """The Gaussian filter on the permutohedral lattice times `scale`, less each pixel's response to itself."""
    values = np.ascontiguousarray(values)
    shape = (beside.shape[1] + 1, values.shape[1])
    out = np.empty_like(values)
    lattice_kernels.diffuse(vertex, weight, beside, values, transposed, np.empty(shape), np.empty(shape), out)
    filtered: Floats = scale * (out - response * values)
    return filtered


def _check_compatibility(compatibility: Any) -> Floats:
    """A table of label compatibilities, checked to be finite and symmetric."""
    table = real_numbers(compatibility, "compatibility")
    if table.ndim != 2 or not np.all(np.isfinite(table)) or not np.array_equal(table, table.T):
        raise PotentiaError("compatibility must be a symmetric table of finite numbers, (L, L).")
    return table


def check_dense(graph: Graph, name: str, term: DenseTerm) -> None:
    """Refuse a term that does not fit the graph."""
    if name in graph.scopes:
        raise PotentiaError(
            f"theta[{name!r}] is a DenseGaussian, but {name!r} is a kind of the graph: give it another name."
        )
    n, states = graph.n_variables, graph.n_states
    if len(term.features) != n:
        raise PotentiaError(f"theta[{name!r}] has features of {len(term.features)} variables, but the graph has {n}.")
    if np.any(states != states[0]):
        raise PotentiaError(f"theta[{name!r}] is a DenseGaussian, which needs one number of states.")
    if term.compatibility is not None and len(term.compatibility) != states[0]:
        raise PotentiaError(
            f"the compatibility of theta[{name!r}] has shape {term.compatibility.shape}; expected "
            f"{(int(states[0]),) * 2}."
        )

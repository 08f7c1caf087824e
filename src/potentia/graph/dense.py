"""Fully connected Gaussian pair terms (dense CRF): the score of every pair of variables by the distance of features."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..base.options import check_choice
from ..base.types import Floats, Ints, PotentiaError, real_number, real_numbers, shown
from ..kernels import permutohedral as lattice_kernels
from .structure import Graph

#: Up to this many variables all pairs are written out.
_FEW = 2048


class DenseGaussian:
    r"""A value of theta: a pair term for every two variables, for `pt.MeanField` [Kraehenbuehl and Koltun 2011].

    The score of labels a, b of variables i and j is :math:`-\text{weight} \, k(i, j) \, \text{compatibility}[a, b]`
    with :math:`k(i, j) = \exp(-|f_i - f_j|^2 / 2)`, divided by :math:`\sqrt{D_i D_j}` with `normalisation`. Its name
    in theta must not be one of the graph's kinds.

    Args:
        features: (n_variables, d), divided by the kernel's standard deviations; see `pt.features.bilateral`.
        weight: a number.
        compatibility: (L, L), the cost of two labels, symmetric; None is Potts, [a != b].
        normalisation: "symmetric", as in densecrf: :math:`D_i = \sum_j \exp(-|f_i - f_j|^2 / 2)` over all variables j,
            i included; or None.
        exact: True sums over all pairs, in time :math:`O(n^2)`; False filters by a permutohedral lattice, in linear
            time; None does so for more than 2048 variables.
    """

    def __init__(
        self,
        features: Any,
        weight: float,
        compatibility: Any = None,
        normalisation: str | None = "symmetric",
        exact: bool | None = None,
    ) -> None:
        if normalisation is not None:
            check_choice("normalisation", normalisation, ("symmetric",), "None")
        self.features = real_numbers(features, "features")
        if self.features.ndim != 2 or not self.features.shape[1] or not np.all(np.isfinite(self.features)):
            raise PotentiaError(
                f"features must be finite numbers, (n_variables, d), not of shape {self.features.shape}."
            )
        if np.abs(self.features).max(initial=0.0) > 1e6:
            raise PotentiaError(
                "features must be below 1e6: divide them by the kernel's standard deviations."
            )
        self.weight = real_number(weight, "weight")
        if not np.isfinite(self.weight):
            raise PotentiaError(f"weight must be a finite number, not {shown(weight)}.")
        self.compatibility = None if compatibility is None else _check_cost(compatibility)
        self.normalisation, self.exact = normalisation, exact

    def with_weight(self, weight: float) -> DenseGaussian:
        """The same kernel with another weight; what was prepared for it is kept."""
        other = DenseGaussian.__new__(DenseGaussian)
        other.__dict__.update(self.__dict__)
        other.weight = real_number(weight, "weight")
        return other

    def __repr__(self) -> str:
        n, d = self.features.shape
        return f"DenseGaussian({n} variables, {d} features, weight={self.weight:g})"

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel matrix, ready to be multiplied with."""
        exact = len(self.features) <= _FEW if self.exact is None else self.exact
        own: _AllPairs | _Lattice = _AllPairs(self.features) if exact else _Lattice(self.features)
        ones = np.ones((len(self.features), 1))
        # the kernel leaves out i itself, the normalisation does not
        scale = 1.0 / np.sqrt(own.multiply(ones, False) + 1.0) if self.normalisation else ones
        return Kernel(own, scale, exact)

    def score(self, labels: Ints, n_states: int) -> float:
        """The term's score of a complete labelling."""
        chosen = np.eye(n_states)[labels]
        return 0.5 * self.weight * float((chosen * self.field(self.kernel.multiply(chosen))).sum())

    def field(self, mixed: Floats) -> Floats:
        """Scores of every variable's labels from `kernel.multiply(q)`, but for the weight; its own transpose."""
        if self.compatibility is None:
            return mixed - mixed.sum(axis=1, keepdims=True)
        return -mixed @ self.compatibility


@dataclass(frozen=True)
class Kernel:
    """The (normalised) kernel between different variables as an operator on (n, C); `exact` unless approximate."""

    own: Any
    scale: Floats
    exact: bool

    def multiply(self, values: Floats, transposed: bool = False) -> Floats:
        """sum_j k(i, j) values(j)."""
        found: Floats = self.scale * self.own.multiply(self.scale * values, transposed)
        return found


class _AllPairs:
    """The kernel matrix itself."""

    def __init__(self, features: Floats) -> None:
        centred = features - features.mean(axis=0)
        square = (centred**2).sum(axis=1)
        apart = square[:, None] + square - 2.0 * centred @ centred.T
        self.matrix = np.exp(-0.5 * np.maximum(apart, 0.0))
        np.fill_diagonal(self.matrix, 0.0)

    def multiply(self, values: Floats, transposed: bool) -> Floats:
        return self.matrix @ values


class _Lattice:
    """Filtering by `kernels.permutohedral`, less every point's own share.

    The kernel of the lattice is flatter than a Gaussian. It is scaled to have the same integral: sums over dense points
    are then right, whereas its value at distance 0 is too small.
    """

    def __init__(self, features: Floats) -> None:
        n, d = features.shape
        centred = np.ascontiguousarray(features - features.mean(axis=0))
        most = n * (d + 1)
        table = np.zeros(1 << int(np.ceil(np.log2(2 * most + 2))), dtype=np.int32)
        self.vertex: Ints = np.empty((n, d + 1), dtype=np.int32)
        self.weight = np.empty((n, d + 1))
        keys = np.empty((most, d), dtype=np.int32)
        found = lattice_kernels.build(centred, table, self.vertex, self.weight, keys)
        self.beside = np.empty((d + 1, found, 2), dtype=np.int32)
        lattice_kernels.neighbours(table, keys[:found], self.beside)
        self.own = np.empty((n, 1))
        lattice_kernels.own_response(self.weight, self.own[:, 0])
        # blurs sum to 2^(d + 1); the volume per vertex is 1.5^(d / 2) / sqrt(d + 1); the kernels divide by 1 + 2^-d
        self.scale = (2 * np.pi / 1.5) ** (d / 2) * np.sqrt(d + 1) / 2 ** (d + 1) * (1 + 0.5**d)

    def multiply(self, values: Floats, transposed: bool) -> Floats:
        given = np.ascontiguousarray(values)
        shape = (self.beside.shape[1] + 1, given.shape[1])
        out = np.empty_like(given)
        lattice_kernels.diffuse(
            self.vertex, self.weight, self.beside, given, transposed, np.empty(shape), np.empty(shape), out
        )
        found: Floats = self.scale * (out - self.own * given)
        return found


def _check_cost(given: Any) -> Floats:
    table = real_numbers(given, "compatibility")
    if table.ndim != 2 or not np.all(np.isfinite(table)) or not np.array_equal(table, table.T):
        raise PotentiaError("compatibility must be a symmetric table of finite numbers, (L, L).")
    return table


def check_dense(graph: Graph, name: str, given: DenseGaussian) -> None:
    """Refuse a term that does not fit the graph."""
    if name in graph.scopes:
        raise PotentiaError(
            f"theta[{name!r}] is a DenseGaussian, but {name!r} is a kind of the graph: give it another name."
        )
    n, states = graph.n_variables, graph.n_states
    if len(given.features) != n:
        raise PotentiaError(
            f"theta[{name!r}] has features of {len(given.features)} variables, but the graph has {n}."
        )
    if np.any(states != states[0]):
        raise PotentiaError(f"theta[{name!r}] is a DenseGaussian, which needs one number of states.")
    if given.compatibility is not None and len(given.compatibility) != states[0]:
        raise PotentiaError(
            f"the compatibility of theta[{name!r}] has shape {given.compatibility.shape}; expected "
            f"{(int(states[0]),) * 2}."
        )

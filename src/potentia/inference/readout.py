"""From flat marginals to what users see, one table or list of tables per kind."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from .._memory import borrow
from .._threads import map_ranges
from .._types import Floats, Ints
from ..graph.flat import flat_regions
from ..graph.scores import Scores, shape_tables
from ..graph.structure import Graph
from ..kernels.mean_field import product_marginals
from ..kernels.pairs import PairScores, read_pairs


@dataclass(frozen=True, eq=False)
class TablesByKind(Mapping[str, Floats | list[Floats]]):
    """Tables of a graph's regions per kind, each computed on first access."""

    graph: Graph
    _made: dict[str, Floats | list[Floats]] = field(default_factory=dict, init=False, repr=False)

    @abstractmethod
    def make(self, kind: str) -> Floats | list[Floats]:
        """The tables of a kind."""

    def __getitem__(self, kind: str) -> Floats | list[Floats]:
        if kind not in self._made:
            self._made[kind] = self.make(kind)
        return self._made[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(self.graph.kinds)

    def __len__(self) -> int:
        return len(self.graph.kinds)


@dataclass(frozen=True, eq=False)
class PairMarginals(TablesByKind):
    """Marginals per kind of a graph of variables and pairs.

    Those of pairs are softmax((theta_e + lam_e,i + lam_e,j) / c_e), or the indicator of the largest with `maximum`;
    they take L^2 exponentials per pair and as much memory as tables of all pairs. `scores` makes the tables.
    """

    singles: Floats
    scores: Callable[[], PairScores]
    messages: Floats
    maximum: bool
    threads: int

    def make(self, kind: str) -> Floats | list[Floats]:
        """Computed from messages of pairs, or read off the variables' marginals."""
        if self.graph.scopes[kind].shape[1] != 2:
            return single_tables(self.graph, kind, self.singles)
        pairs = [k for k, s in self.graph.scopes.items() if s.shape[1] == 2]
        first = sum(len(self.graph.scopes[k]) for k in pairs[: pairs.index(kind)])
        last = first + len(self.graph.scopes[kind])
        scores = self.scores()
        size = scores.shapes[first:last].prod(axis=1)
        start = np.concatenate([[0], np.cumsum(size)]).astype(np.int64)
        flat = borrow((int(start[-1]),))
        map_ranges(
            lambda a, b: read_pairs(
                a, b, scores, self.maximum, self.messages, start[a - first : b - first], flat
            ),
            first, last, self.threads,
        )  # fmt: skip
        return shape_tables(self.graph, kind, flat)


@dataclass(frozen=True, eq=False)
class ProductMarginals(TablesByKind):
    """Marginals per kind of a product distribution q (n, states)."""

    q: Floats
    threads: int

    def make(self, kind: str) -> Floats | list[Floats]:
        """Products of q for regions of several variables."""
        if self.graph.scopes[kind].shape[1] <= 1 or not len(self.graph.scopes[kind]):
            return single_tables(self.graph, kind, self.q)
        regions, number = flat_regions(self.graph), self.graph.kinds.index(kind)
        first, last = (int(r) for r in regions.kind_ptr[number : number + 2])
        size = regions.size[first:last]
        start, flat = np.cumsum(size) - size, borrow((int(size.sum()),))
        map_ranges(
            lambda a, b: product_marginals(regions, self.q, a, b, start[a - first : b - first], flat),
            first, last, self.threads,
        )  # fmt: skip
        return shape_tables(self.graph, kind, flat)


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

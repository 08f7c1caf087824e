"""Features cut into bins, and ensembles of trees on their codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.types import Floats, Ints
from ..kernels.decision_trees import MAX_BINS, add_trees, bin_rows
from .inputs import map_chunks
from .problem import Batch, Problem

Codes = NDArray[np.uint8]

#: Quantiles are taken over at most this many rows.
_ROWS = 50_000
#: At most this many combinations of codes are tabulated.
_MAX_CELLS = 1 << 17
#: Codes of all rows are held up to this many bytes.
_MAX_CODES = 1 << 28


def draw_edges(problem: Problem, n_bins: int, rng: np.random.Generator) -> Floats:
    """`bin_edges` of a problem's rows, or of some drawn at random where they are many."""
    n = problem.n_rows
    rows = problem.draw(rng.choice(n, _ROWS, replace=False) if n > _ROWS else slice(None))
    return bin_edges(rows.x, rows.weight, n_bins)


def bin_edges(x: Floats, weight: Floats, n_bins: int) -> Floats:
    """Edges (d, 256), sorted and padded with +inf, that cut features into at most n_bins of equal weight.

    A feature of few distinct values gets an edge between any two of them.
    """
    edges = np.full((x.shape[1], MAX_BINS), np.inf)
    for j in range(x.shape[1]):
        cuts = _cuts(x[:, j], weight, n_bins)
        edges[j, : len(cuts)] = cuts
    return edges


def _cuts(values: Floats, weight: Floats, n_bins: int) -> Floats:
    """Edges that cut the values of one feature into at most n_bins of equal weight."""
    distinct, where = np.unique(values, return_inverse=True)
    last = np.arange(len(distinct) - 1)
    if len(distinct) > n_bins:
        below = np.cumsum(np.bincount(where, weight if len(weight) else None))
        wanted = below[-1] * np.arange(1, n_bins) / n_bins
        # the slack makes a wanted weight that is met exactly be met also after rounding
        last = np.unique(np.searchsorted(below, wanted * (1 - 1e-12)))
        last = last[last < len(distinct) - 1]
    low, high = distinct[last], distinct[last + 1]
    middle = low + (high - low) / 2
    # neighbouring doubles have no middle: an edge belongs to the bin below it
    return np.where(middle < high, middle, low)


def count_bins(edges: Floats) -> Ints:
    """Bins of every feature (d,)."""
    return np.isfinite(edges).sum(1) + 1


def encode(x: Floats, edges: Floats) -> Codes:
    """Codes (n, d): code <= c exactly where x <= edges[c]."""
    codes = np.empty(x.shape, np.uint8)
    map_chunks(lambda rows: bin_rows(x[rows], edges, codes[rows]), len(x), 4 * x.shape[1])
    return codes


def all_cells(n_bins: Ints, n_rows: int) -> Codes | None:
    """Every combination of codes (M, d), the last feature fastest, if they are far fewer than n_rows."""
    n_cells = prod(int(n) for n in n_bins)
    if n_cells > min(_MAX_CELLS, n_rows // 2):
        return None
    # arrays have at most 64 axes, but features of one bin need none
    varying = np.flatnonzero(n_bins > 1)
    cells = np.zeros((n_cells, len(n_bins)), np.uint8)
    cells[:, varying] = np.indices(tuple(n_bins[varying]), dtype=np.uint8).reshape(len(varying), n_cells).T
    return cells


def cell_of(codes: Codes, n_bins: Ints) -> Ints:
    """For every row its place in `all_cells`."""
    cell = np.zeros(len(codes), np.int64)
    for j, n in enumerate(n_bins):
        cell *= n
        cell += codes[:, j]
    return cell


@dataclass(frozen=True)
class Binned:
    """Codes of all rows; or, where combinations of codes are few (`listed`), all of those.

    A function of the codes then needs computing only once per combination: with one or two features, as pairs
    often have, that is hundreds of times less work.
    """

    codes: Codes
    listed: bool
    n_bins: Ints

    @classmethod
    def of(cls, problem: Problem, edges: Floats) -> Binned | None:
        """The problem's rows; None if codes of all rows are too many to hold."""
        n_bins = count_bins(edges)
        cells = all_cells(n_bins, problem.n_rows)
        if cells is not None:
            return cls(cells, True, n_bins)
        if not problem.local or problem.n_rows * problem.n_features > _MAX_CODES:
            return None
        return cls(problem.collect(_codes_of, edges), False, n_bins)

    def place(self, rows: Any, codes: Codes) -> Any:
        """Index into `self.codes` of rows with these codes: their cells if cells are listed, else the rows."""
        return cell_of(codes, self.n_bins) if self.listed else rows


def _codes_of(batch: Batch, edges: Floats) -> Codes:
    """Codes of some rows."""
    return encode(batch.x, edges)


@dataclass
class TreeEnsemble:
    """Trees one after another: packed nodes (m,), leaf vectors (m, K), first nodes (T + 1,), depths (T,)."""

    nodes: Ints
    values: Floats
    node_ptr: Ints
    depths: Ints

    @classmethod
    def empty(cls, n_outputs: int) -> TreeEnsemble:
        """No trees: the zero function."""
        none = np.zeros(0, np.int64)
        return cls(none, np.zeros((0, n_outputs)), np.zeros(1, np.int64), none)

    @classmethod
    def join(cls, parts: Sequence[TreeEnsemble]) -> TreeEnsemble:
        """The trees of all parts, in new arrays; children are numbered within a tree, so nodes stay as they are."""
        nodes, values, depths = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("nodes", "values", "depths")
        )
        sizes = np.concatenate([np.diff(part.node_ptr) for part in parts])
        return cls(nodes, values, np.cumsum([0, *sizes]), depths)

    def is_sound(self, n_features: int) -> bool:
        """Whether every walk down these trees stays inside them, as kernels take for granted."""
        sizes = np.diff(self.node_ptr)
        if (sizes < 1).any():
            return False
        left, feature, cut = self.nodes >> 24, self.nodes >> 8 & 0xFFFF, self.nodes & 0xFF
        last = left + (cut < MAX_BINS - 1)  # no code exceeds the last, so its node has no right
        inside = (left >= 0) & (last < np.repeat(sizes, sizes)) & (feature < n_features)
        return bool(inside.all() and (self.depths >= 0).all() and (self.depths <= sizes).all())

    def scores(self, codes: Codes, first: int = 0) -> Floats:
        """Scores (n, K) by the trees from number `first` on."""
        scores = np.zeros((len(codes), self.values.shape[1]))
        self.add_to(scores, codes, first)
        return scores

    def add_to(self, scores: Floats, codes: Codes, first: int = 0) -> None:
        """scores (n, K) += the trees from number `first` on."""
        arrays = self.nodes, self.values, self.node_ptr[first:], self.depths[first:]

        def add(rows: slice) -> None:
            """Walk down the trees with some rows."""
            add_trees(codes[rows], *arrays, scores[rows])

        map_chunks(add, len(scores), codes.shape[1] + 4 * scores.shape[1])

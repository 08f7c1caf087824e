"""Quantile bins: features as bytes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from potentia._types import Floats
from potentia.kernels.trees import MAX_BINS, bin_rows
from potentia.potentials.chunks import map_chunks

Codes = NDArray[np.uint8]

#: Quantiles are taken over at most this many rows.
_ROWS = 50_000


def bin_edges(x: Floats, weight: Floats, n_bins: int, rng: np.random.Generator) -> Floats:
    """Edges (d, 256), sorted and padded with +inf, that cut every feature into at most n_bins of equal weight.

    A feature of few distinct values gets an edge between any two of them.
    """
    if len(x) > _ROWS:
        rows = rng.choice(len(x), _ROWS, replace=False)
        x, weight = x[rows], weight[rows] if len(weight) else weight
    edges = np.full((x.shape[1], MAX_BINS), np.inf)
    for j in range(x.shape[1]):
        cuts = _cuts(x[:, j], weight, n_bins)
        edges[j, : len(cuts)] = cuts
    return edges


def _cuts(values: Floats, weight: Floats, n_bins: int) -> Floats:
    distinct, where = np.unique(values, return_inverse=True)
    last = np.arange(len(distinct) - 1)
    if len(distinct) > n_bins:
        below = np.cumsum(np.bincount(where, weight if len(weight) else None))
        wanted = below[-1] * np.arange(1, n_bins) / n_bins
        last = np.unique(np.searchsorted(below, wanted * (1 - 1e-12)))
        last = last[last < len(distinct) - 1]
    low, high = distinct[last], distinct[last + 1]
    middle = low + (high - low) / 2
    # neighbouring doubles have no middle: an edge belongs to the bin below it
    return np.where(middle < high, middle, low)


def encode(x: Floats, edges: Floats) -> Codes:
    """Codes (n, d): code <= c exactly where x <= edges[c]."""
    codes = np.empty(x.shape, np.uint8)
    map_chunks(lambda rows: bin_rows(x[rows], edges, codes[rows]), len(x), 4 * x.shape[1])
    return codes

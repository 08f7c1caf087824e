"""Histograms of oriented gradients at every pixel."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from .._options import check_count
from .._types import ArrayLike, PotentiaError
from .colour import as_rgb
from .resize import Stack, Weights, apply_weights, linear_weights

N_ORIENTATIONS = 9

# Dalal and Triggs cut a normalised component here, so that one strong edge does not drown the rest
_CLIP = 0.2
# in units of mean gradient per pixel, far below one grey level: only a flat block is damped
_FLOOR = 1e-4


def hog(image: ArrayLike, cell: int = 8) -> Stack:
    """36 HOG components at every pixel, (h, w, 36), each in [0, .2] [Dalal and Triggs 2005; MBL-tpami sec. 8.3].

    Each pixel votes with its gradient's magnitude (of the colour channel where that is largest) for the two nearest
    of 9 orientations in [0, pi) and, linearly, for the nearest cells of `cell` x `cell` pixels. The histogram of a
    cell is divided by the norm of each of the four 2 x 2 blocks of cells that contain it, and cut at .2. Pixels
    interpolate linearly between cell centres. The image is mirrored at its border, so any size will do.
    """
    check_count("cell", cell, 1)
    rgb = as_rgb(image)
    return apply_weights(hog_cells(rgb, cell), *cell_weights(rgb.shape[:2], cell))


def cell_weights(size: tuple[int, ...], cell: int) -> tuple[Weights, Weights]:
    """Weights that interpolate cells to pixels along both axes, (h, n_cells) and (w, n_cells)."""
    height, width = (linear_weights(-(-side // cell), side, float(cell)) for side in size[:2])
    return height, width


def hog_cells(rgb: Stack, cell: int) -> Stack:
    """Descriptors (ceil(h / cell), ceil(w / cell), 36) of the cells of an image (h, w, 3)."""
    if cell < 1:
        raise PotentiaError(f"a HOG cell has at least one pixel a side, not {cell}.")
    height, width = rgb.shape[:2]
    # one cell of margin, for the outer cells' blocks, and whole cells
    pad = [(cell, cell + -height % cell), (0, 0), (cell, cell + -width % cell)]
    votes = _orientation_votes(np.pad(np.moveaxis(rgb, 2, 1), pad, mode="symmetric"))
    rows, columns = (_vote_weights(n // cell, cell) for n in (votes.shape[0], votes.shape[2]))
    histograms = np.moveaxis(apply_weights(votes, rows, columns, axis=2), 1, 2)
    energy = (histograms**2).sum(axis=2)
    block = energy[:-1, :-1] + energy[1:, :-1] + energy[:-1, 1:] + energy[1:, 1:]
    scale = 1.0 / np.sqrt(block + _FLOOR**2)
    inner = histograms[1:-1, 1:-1]
    n, m = inner.shape[:2]
    parts = [inner * scale[a : a + n, b : b + m, None] for a in (0, 1) for b in (0, 1)]
    return np.minimum(np.concatenate(parts, axis=2), _CLIP)


def _orientation_votes(planes: Stack) -> Stack:
    """(h, 9, w): the gradient magnitude of pixels of (h, 3, w), shared linearly between the two nearest orientations.

    Colours and orientations stand between rows and columns so that inner loops run along rows.
    """
    down, right = np.gradient(planes, axis=(0, 2))
    strength = down**2 + right**2
    channel = strength.argmax(axis=1)[:, None]
    down, right, strength = (np.take_along_axis(g, channel, axis=1) for g in (down, right, strength))
    # in units of pi / 9, bin k centred at k + .5; opposite directions are one orientation
    at = np.arctan2(down, right) * planes.dtype.type(N_ORIENTATIONS / np.pi)
    centre = np.arange(N_ORIENTATIONS, dtype=planes.dtype)[:, None] + planes.dtype.type(0.5)
    away = at - centre
    away -= N_ORIENTATIONS * np.rint(away / N_ORIENTATIONS)
    return np.sqrt(strength) * np.maximum(1.0 - np.abs(away), 0.0)


@lru_cache(maxsize=64)
def _vote_weights(n_cells: int, cell: int) -> Weights:
    """(n_cells, n_cells * cell): how far each pixel votes for each cell; an inner cell's weights sum to one."""
    from scipy import sparse

    at = (np.arange(n_cells * cell) + 0.5) / cell - 0.5
    share = np.clip(1.0 - np.abs(at[None] - np.arange(n_cells)[:, None]), 0.0, None)
    return sparse.csr_array(share / cell)

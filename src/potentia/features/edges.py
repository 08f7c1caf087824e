"""Features of pairs of neighbouring pixels, as the papers list them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import ndimage

from .._types import ArrayLike, Ints, PotentiaError
from .colour import as_rgb, grey
from .pixels import feature_blocks
from .resize import Stack

#: Blocks of the papers' sets: 3 features [ILR-nips sec. 8, ILR-chapter sec. 1.10], 42 for horses and 22 for
#: backgrounds [MBL-tpami sec. 8.3, 8.4].
EDGE_SETS = {
    "ilr": ("constant", "difference", "sobel"),
    "mbl": ("constant", "difference_steps", "sobel_steps", "directions"),
    "mbl-backgrounds": ("constant", "difference_steps", "directions"),
}
EDGE_BLOCKS = ("constant", "difference", "sobel", "difference_steps", "sobel_steps", "directions")

#: Ten thresholds each. The paper prints none; these are those of the toolbox its author published.
DIFFERENCE_STEPS = np.arange(1, 11) * 0.05
SOBEL_STEPS = np.arange(1, 11) * 0.02

# row and column steps of a grid's pairs in the order of their copies: horizontal, vertical, two diagonals
_DIRECTIONS = ((0, 1), (1, 0), (1, 1), (1, -1))


def edge_features(
    image: ArrayLike, edges: ArrayLike, edge: str | Sequence[str] = "ilr", *, dtype: Any = np.float32
) -> Stack:
    """Features (m, n_features) of pairs of pixels.

    Args:
        image: (h, w, 3) or grey, see `as_rgb`.
        edges: (m, 2) pixels in raster order, such as `Graph.grid((h, w), ...).scopes["edge"]`.
        edge: a set of `EDGE_SETS`, or blocks to put side by side: "constant" (1), "difference" (1: the l2 distance
            of the two RGB vectors), "sobel" (1: the larger of the two pixels' Sobel responses, see `sobel`),
            "difference_steps" and "sobel_steps" (10 each: 1 where the value exceeds a threshold), and last
            "directions": one copy of all blocks before it for each direction, zero for pairs of another one
            (horizontal first, then vertical; also the diagonals where there are such pairs).
        dtype: float32 or float64.
    """
    names = feature_blocks(edge, EDGE_SETS, EDGE_BLOCKS, "edge")
    if "directions" in names and (
        names[-1] != "directions" or len(names) == 1 or names.count("directions") > 1
    ):
        raise PotentiaError('the block "directions" copies the blocks before it, so it comes last')
    rgb = as_rgb(image, dtype)
    pairs = _check_edges(edges, rgb.shape[0] * rgb.shape[1])
    base = [_block(name, rgb, pairs) for name in names if name != "directions"]
    features = np.concatenate(base, axis=1, dtype=dtype)
    return _by_direction(features, pairs, rgb.shape[1]) if names[-1] == "directions" else features


def sobel(image: ArrayLike, dtype: Any = np.float64) -> Stack:
    """Magnitude (h, w) of the Sobel gradient of an image's luma, mirrored at the border.

    Kernels are divided by 8, so a step of height 1 has response .5 on both of its sides.
    """
    luma = grey(as_rgb(image, dtype))
    return np.hypot(*(ndimage.sobel(luma, axis=axis, mode="reflect") / 8 for axis in (0, 1)))


def _block(name: str, rgb: Stack, pairs: Ints) -> Stack:
    """One block (m, k)."""
    if name == "constant":
        return np.ones((len(pairs), 1), dtype=rgb.dtype)
    flat = rgb.reshape(-1, 3)
    if name.startswith("difference"):
        value = np.sqrt(((flat[pairs[:, 0]] - flat[pairs[:, 1]]) ** 2).sum(axis=1))
        steps = DIFFERENCE_STEPS
    else:
        value = sobel(rgb, rgb.dtype).ravel()[pairs].max(axis=1, initial=0.0)
        steps = SOBEL_STEPS
    return (value[:, None] > steps).astype(rgb.dtype) if name.endswith("steps") else value[:, None]


def _by_direction(features: Stack, pairs: Ints, width: int) -> Stack:
    """Copies side by side, each zero outside its direction."""
    rows, columns = np.abs(pairs[:, 1] // width - pairs[:, 0] // width), pairs % width
    across = np.where(pairs[:, 1] > pairs[:, 0], columns[:, 1] - columns[:, 0], columns[:, 0] - columns[:, 1])
    is_direction = [(rows == a) & (across == b) for a, b in _DIRECTIONS]
    if not np.logical_or.reduce(is_direction).all():
        raise PotentiaError('the block "directions" needs pairs of pixels that touch')
    wanted = is_direction if np.any(is_direction[2:]) else is_direction[:2]
    return np.concatenate([features * chosen[:, None] for chosen in wanted], axis=1)


def _check_edges(edges: ArrayLike, n_pixels: int) -> Ints:
    pairs = np.asarray(edges)
    if pairs.ndim != 2 or pairs.shape[1] not in (0, 2) or pairs.dtype.kind not in "iu":
        raise PotentiaError(
            f"edges must be whole numbers of shape (m, 2), not {pairs.dtype} of shape {pairs.shape}"
        )
    pairs = pairs.reshape(-1, 2).astype(np.int64, copy=False)
    if pairs.size and (pairs.min() < 0 or pairs.max() >= n_pixels):
        raise PotentiaError(f"edges name a pixel outside 0..{n_pixels - 1}")
    return pairs

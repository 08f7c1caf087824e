"""Features of single pixels: the filter bank, and those that the papers list."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._options import check_count, check_number, check_size
from .._types import ArrayLike, PotentiaError, real_numbers, shown
from .colour import as_channels, as_rgb
from .filters import filter_bank
from .hog import cell_weights, hog_cells
from .resize import Stack, apply_weights, area_weights

#: Blocks of the sets: the filter bank, with and without position; the papers' 42 features [ILR-nips sec. 8],
#: 41 [ILR-chapter sec. 1.10] and 100 [MBL-tpami sec. 8.3].
NODE_SETS = {
    "filters": ("filters",),
    "filters-position": ("filters", "position"),
    "ilr": ("constant", "rgb", "position", "hog"),
    "ilr-chapter": ("rgb", "position", "hog"),
    "mbl": ("fourier", "hog"),
}
NODE_BLOCKS = ("filters", "constant", "rgb", "position", "fourier", "hog")
#: Blocks that take any number of channels, and volumes; the others need colours.
_ANY_CHANNELS = ("filters", "constant", "position")

# beyond, the expansion has more than 8192 features
_MAX_FOURIER = 12


def pixel_features(
    image: ArrayLike,
    node: str | Sequence[str] = "filters",
    *,
    size: Sequence[int] | None = None,
    cell: int = 8,
    axes: int = 2,
    dtype: Any = np.float32,
) -> Stack:
    """Features (h * w, n_features) of the pixels of an image, in raster order.

    Args:
        image: of any number of channels, see `as_channels`; with blocks "rgb", "fourier" and "hog" see `as_rgb`.
        node: a set of `NODE_SETS`, or blocks to put side by side: "filters" (see `filter_bank`), "constant" (1),
            "position" (one per axis: x, y and in volumes z of the pixel's centre, in (0, 1)), "rgb" (3, in [0, 1]),
            "fourier" (64: the expansion of position and RGB, see `fourier`), "hog" (36, see `hog`).
        size: (height, width) to which features are averaged after they were computed; None keeps the image's.
        cell: side of a HOG cell in pixels of the image.
        axes: 2 for images, 3 for volumes, whose features are "filters", "position" and "constant".
        dtype: float32 or float64, also the precision computed in.
    """
    names = feature_blocks(node, NODE_SETS, NODE_BLOCKS, "node")
    if axes != 2 or all(name in _ANY_CHANNELS for name in names):
        values = as_channels(image, axes, dtype)
        if size is None or (axes == 2 and check_size("size", size) == values.shape[:-1]):
            return _any_channels(values, names, axes, dtype)
        rgb = values
    else:
        rgb = as_rgb(image, dtype)
    if axes != 2:
        raise PotentiaError("features of volumes are not averaged to another size: reduce the volume before.")
    full = rgb.shape[0], rgb.shape[1]
    small = full if size is None else check_size("size", size)
    check_count("cell", cell, 1)
    if small[0] > full[0] or small[1] > full[1]:
        raise PotentiaError(
            f"features of an image of {full} can be averaged to at most that size, not {small}."
        )
    stacks = [_block(name, rgb, small, cell) for name in names]
    return np.concatenate(stacks, axis=2, dtype=dtype).reshape(small[0] * small[1], -1)


def fourier(base: ArrayLike, scale: float = np.pi) -> Stack:
    """cos(scale c.s) and sin(scale c.s) for all binary vectors c, of features s (..., d): (..., 2^(d + 1)).

    [MBL-tpami sec. 8.3]; columns are the 2^d cosines, then the sines, both by the number whose binary digits are c
    (the first feature the lowest digit). The paper prints no scale; pi is that of the Fourier basis it cites
    (Konidaris et al. 2011) and of the author's toolbox, and lets features in [0, 1] run through half a period.
    """
    check_number("scale", scale, -sys.float_info.max)
    single = isinstance(base, np.ndarray) and base.dtype == np.float32
    s: Stack = base if single else real_numbers(base, "base")
    if s.ndim < 1 or not 1 <= s.shape[-1] <= _MAX_FOURIER:
        raise PotentiaError(f"the Fourier expansion takes 1 to {_MAX_FOURIER} features, not shape {s.shape}.")
    planes = s.reshape(-1, s.shape[-1]).T
    return _waves(planes, scale).T.reshape(*s.shape[:-1], -1)


def _waves(planes: Stack, scale: float = np.pi) -> Stack:
    """The Fourier expansion along the last axis but one, (..., d, n) to (..., 2^(d + 1), n)."""
    angle = planes * planes.dtype.type(scale)
    cosine, sine = np.cos(angle), np.sin(angle)
    d, n = planes.shape[-2:]
    waves = np.empty((*planes.shape[:-2], 2, 2**d, n), dtype=planes.dtype)
    real, imaginary = waves[..., 0, :, :], waves[..., 1, :, :]
    real[..., 0, :], imaginary[..., 0, :] = 1.0, 0.0
    for k in range(d):
        # adding a digit to c turns all waves so far by its angle: 2 d sines and cosines instead of 2^(d + 1)
        m, c, s = 2**k, cosine[..., k : k + 1, :], sine[..., k : k + 1, :]
        real[..., m : 2 * m, :] = real[..., :m, :] * c - imaginary[..., :m, :] * s
        imaginary[..., m : 2 * m, :] = imaginary[..., :m, :] * c + real[..., :m, :] * s
    return waves.reshape(*planes.shape[:-2], 2 ** (d + 1), n)


def feature_blocks(
    given: str | Sequence[str], sets: dict[str, tuple[str, ...]], known: Sequence[str], name: str
) -> Sequence[str]:
    """The blocks of a named set, or the blocks themselves, checked."""
    if isinstance(given, str):
        if given not in sets:
            raise PotentiaError(
                f"{name} must be one of {', '.join(map(repr, sets))} or a list of blocks, not {shown(given)}."
            )
        return sets[given]
    blocks = tuple(given) if isinstance(given, Sequence) else (given,)
    unknown = [block for block in blocks if not isinstance(block, str) or block not in known]
    if unknown or not blocks:
        wrong = shown(unknown[0]) if unknown else "an empty list"
        raise PotentiaError(f"{name} may hold the blocks {', '.join(map(repr, known))}, not {wrong}.")
    return blocks


def _any_channels(values: Stack, names: Sequence[str], axes: int, dtype: Any) -> Stack:
    """Blocks that need no colours, of an image or volume (*size, channels), at its own size."""
    coloured = [name for name in names if name not in _ANY_CHANNELS]
    if coloured:
        raise PotentiaError(f"volumes have no features {coloured[0]!r}: take {', '.join(_ANY_CHANNELS)}.")
    size = values.shape[:-1]
    stacks = []
    for name in names:
        if name == "filters":
            stacks.append(filter_bank(values, axes=axes, dtype=dtype))
        elif name == "position":
            stacks.append(positions(size, dtype))
        else:
            stacks.append(np.ones((*size, 1), dtype=dtype))
    joined = stacks[0] if len(stacks) == 1 else np.concatenate(stacks, axis=-1)
    return joined.reshape(-1, joined.shape[-1])


def _block(name: str, rgb: Stack, small: tuple[int, int], cell: int) -> Stack:
    """One block (*small, k) of an image (h, w, 3)."""
    if name == "constant":
        return np.ones((*small, 1), dtype=rgb.dtype)
    if name == "position":
        # the mean of the centres of a covered stretch is the centre of the new pixel
        return positions(small, rgb.dtype)
    rows, columns = (area_weights(n, m) for n, m in zip(rgb.shape[:2], small, strict=True))
    if name == "hog":
        # interpolation and averaging are both linear: from cells to the small image in one step
        up, across = cell_weights(rgb.shape[:2], cell)
        return apply_weights(hog_cells(rgb, cell), rows @ up, columns @ across)
    if name == "filters":
        return apply_weights(filter_bank(rgb, dtype=rgb.dtype), rows, columns)
    if name == "rgb":
        return apply_weights(rgb, rows, columns)
    base = np.concatenate([rgb, positions((rgb.shape[0], rgb.shape[1]), rgb.dtype)], axis=2)
    # waves between rows and columns, so that inner loops run along rows
    waves = _waves(np.ascontiguousarray(np.moveaxis(base, 2, 1)))
    return np.moveaxis(apply_weights(waves, rows, columns, axis=2), 1, 2)


def positions(size: Sequence[int], dtype: Any) -> Stack:
    """(*size, axes): x, y and so on of every pixel's centre, as a share of width, height and so on."""
    found: Stack = np.empty((*size, len(size)), dtype=dtype)
    for axis, side in enumerate(size):
        shape = [-1 if a == axis else 1 for a in range(len(size))]
        found[..., len(size) - 1 - axis] = ((np.arange(side) + 0.5) / side).reshape(shape)
    return found

"""Histograms of oriented gradients at every pixel."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..base.options import check_count, check_number, check_positive, check_size
from ..base.types import ArrayLike, PotentiaError, real_numbers, shown
from .colour import Stack, Weights, apply_weights, area_weights, as_channels, as_rgb, linear_weights

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


#: Standard deviations of the Gaussians, in pixels.
SCALES = (1.0, 2.0, 4.0, 8.0, 16.0)
#: Gaussians are cut off at this many standard deviations.
_TRUNCATE = 3.0
#: The largest scale in pixels; filters of a scale have six times as many weights.
_MOST_SCALE = 1e4
#: Images with more channels than this have their derivatives taken of the channels' mean only.
_MOST_CHANNELS = 4


def filter_bank(
    image: ArrayLike, scales: Sequence[float] = SCALES, *, axes: int = 2, dtype: Any = np.float32
) -> Stack:
    """Responses (*size, n_features) of multi-scale filters at every pixel of an image, or voxel of a volume.

    The channels themselves; then for each scale the Gaussian of every channel; gradient magnitude, Laplacian and
    ordered Hessian eigenvalues of every channel (of the channels' mean where there are more than four); and the
    ordered eigenvalues of the structure tensor of all channels together. Derivatives are scale-normalised, and the
    image is mirrored at its border. The number of features is `n_filters(channels, scales, axes)`.

    Args:
        image: (h, w) or (h, w, channels), or with axes=3 a volume (d, h, w) or (d, h, w, channels); see `as_channels`.
        scales: standard deviations of the Gaussians in pixels, ascending.
        axes: 2 for images, 3 for volumes.
        dtype: float32 or float64, also the precision computed in.
    """
    values = as_channels(image, axes, dtype)
    scales = real_numbers(scales, "scales").ravel().tolist()
    for scale in scales:
        check_positive("scales", scale, _MOST_SCALE)
    if list(scales) != sorted(set(scales)):
        raise PotentiaError(f"scales must be ascending, got {list(scales)}.")
    found: Stack = np.empty((*values.shape[:-1], n_filters(values.shape[-1], scales, axes)), dtype=dtype)
    n_channels = values.shape[-1]
    found[..., :n_channels] = values
    column, reached = n_channels, 0.0
    smooth = [np.ascontiguousarray(values[..., k]) for k in range(n_channels)]
    for scale in scales:
        # a Gaussian of a Gaussian is one of the summed variance
        smooth = [_gaussian(plane, math.sqrt(scale**2 - reached**2)) for plane in smooth]
        reached = scale
        for plane in _responses(smooth, scale):
            found[..., column] = plane
            column += 1
    return found


def n_filters(n_channels: int, scales: Sequence[float] = SCALES, axes: int = 2) -> int:
    """The number of features that `filter_bank` makes."""
    derived = n_channels if n_channels <= _MOST_CHANNELS else 1
    return n_channels + len(scales) * (n_channels + derived * (2 + axes) + axes)


def filter_reach(scales: Sequence[float] = SCALES) -> int:
    """How far, in pixels, features see: with this margin a tile has the whole image's features to about 1 %."""
    return math.ceil(4 * max(scales, default=0.0))


def _responses(smooth: Sequence[Stack], scale: float) -> Any:
    """The filters of one scale, one plane after another."""
    yield from smooth
    derived = smooth if len(smooth) <= _MOST_CHANNELS else [np.mean(smooth, axis=0, dtype=smooth[0].dtype)]
    axes = smooth[0].ndim
    tensor: list[Any] = [0.0] * (axes * (axes + 1) // 2)
    for plane in derived:
        gradient = [_slope(plane, axis) * plane.dtype.type(scale) for axis in range(axes)]
        yield np.sqrt(sum(g * g for g in gradient))
        hessian = [
            _slope(gradient[a], b) * plane.dtype.type(scale) for a in range(axes) for b in range(a, axes)
        ]
        eigenvalues = _eigenvalues(hessian, axes)
        yield sum(eigenvalues[1:], eigenvalues[0])
        yield from eigenvalues
        products = [gradient[a] * gradient[b] for a in range(axes) for b in range(a, axes)]
        tensor = [t + p for t, p in zip(tensor, products, strict=True)]
    yield from (
        np.sqrt(np.maximum(v, 0.0)) for v in _eigenvalues([_gaussian(t, scale) for t in tensor], axes)
    )


def _gaussian(plane: Stack, sigma: float) -> Stack:
    from scipy import ndimage

    return ndimage.gaussian_filter(plane, sigma, mode="reflect", truncate=_TRUNCATE)


def _slope(plane: Stack, axis: int) -> Stack:
    """Central differences along an axis; zero where it has one pixel."""
    if plane.shape[axis] < 2:
        return np.zeros_like(plane)
    return np.gradient(plane, axis=axis)


def _eigenvalues(entries: Sequence[Stack], axes: int) -> list[Stack]:
    """Eigenvalues, descending, of symmetric matrices given by their upper triangles, row by row."""
    if axes == 2:
        a, b, c = entries
        middle = (a + c) / 2
        spread = np.sqrt(((a - c) / 2) ** 2 + b * b)
        return [middle + spread, middle - spread]
    matrix = np.empty((*entries[0].shape, 3, 3), dtype=entries[0].dtype)
    for (i, j), entry in zip(((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)), entries, strict=True):
        matrix[..., i, j] = matrix[..., j, i] = entry
    values = np.linalg.eigvalsh(matrix)
    return [values[..., k] for k in (2, 1, 0)]


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

"""Features of pixels (filter banks, HOG, Fourier) and of pairs of neighbouring pixels (contrast, gradients)."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..base.types import (
    ArrayLike,
    Ints,
    PotentiaError,
    check_count,
    check_number,
    check_positive,
    check_size,
    plain_array,
    real_numbers,
    shown,
)
from .colour import (
    Stack,
    Weights,
    apply_weights,
    area_weights,
    as_channels,
    as_rgb,
    feature_blocks,
    grey,
    linear_weights,
    positions,
)

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


def filter_bank(image: ArrayLike, scales: Sequence[float] = SCALES, *, axes: int = 2, dtype: Any = np.float32) -> Stack:
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
    filters: Stack = np.empty((*values.shape[:-1], n_filters(values.shape[-1], scales, axes)), dtype=dtype)
    for column, plane in enumerate(filter_planes(values, scales)):
        filters[..., column] = plane
    return filters


def filter_planes(values: Stack, scales: Sequence[float] = SCALES) -> Iterator[Stack]:
    """The features of `filter_bank` one after another, each of the size of the image (*size, channels)."""
    smooth, reached = [np.ascontiguousarray(values[..., k]) for k in range(values.shape[-1])], 0.0
    yield from smooth
    for scale in scales:
        # a Gaussian of a Gaussian is one of the summed variance
        smooth = [_gaussian(plane, math.sqrt(scale**2 - reached**2)) for plane in smooth]
        reached = scale
        yield from _filters(smooth, scale)


def n_filters(n_channels: int, scales: Sequence[float] = SCALES, axes: int = 2) -> int:
    """The number of features that `filter_bank` makes."""
    derived = n_channels if n_channels <= _MOST_CHANNELS else 1
    return n_channels + len(scales) * (n_channels + derived * (2 + axes) + axes)


def filter_reach(scales: Sequence[float] = SCALES) -> int:
    """How far, in pixels, features see: with this margin a tile has the whole image's features to about 1 %."""
    return math.ceil(4 * max(scales, default=0.0))


def _filters(smooth: Sequence[Stack], scale: float) -> Any:
    """The filters of one scale, one plane after another."""
    yield from smooth
    derived = smooth if len(smooth) <= _MOST_CHANNELS else [np.mean(smooth, axis=0, dtype=smooth[0].dtype)]
    axes = smooth[0].ndim
    tensor: list[Any] = [0.0] * (axes * (axes + 1) // 2)
    for plane in derived:
        gradient = [_slope(plane, axis) * plane.dtype.type(scale) for axis in range(axes)]
        yield np.sqrt(sum(g * g for g in gradient))
        hessian = [_slope(gradient[a], b) * plane.dtype.type(scale) for a in range(axes) for b in range(a, axes)]
        eigenvalues = _eigenvalues(hessian, axes)
        yield sum(eigenvalues[1:], eigenvalues[0])
        yield from eigenvalues
        products = [gradient[a] * gradient[b] for a in range(axes) for b in range(a, axes)]
        tensor = [t + p for t, p in zip(tensor, products, strict=True)]
    yield from (np.sqrt(np.maximum(v, 0.0)) for v in _eigenvalues([_gaussian(t, scale) for t in tensor], axes))


def _gaussian(plane: Stack, sigma: float) -> Stack:
    """A plane blurred by a Gaussian, mirrored at the border."""
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
    coloured = [name for name in names if name not in _ANY_CHANNELS]
    values = as_rgb(image, dtype) if coloured and axes == 2 else as_channels(image, axes, dtype)
    check_count("cell", cell, 1)
    full = values.shape[:-1]
    if axes != 2 and coloured:
        raise PotentiaError(f"volumes have no features {coloured[0]!r}: take {', '.join(_ANY_CHANNELS)}.")
    if axes != 2 and size is not None:
        raise PotentiaError("features of volumes are not averaged to another size: reduce the volume before.")
    small = full if size is None else check_size("size", size)
    if small[0] > full[0] or small[1] > full[1]:
        raise PotentiaError(f"features of an image of {full} can be averaged to at most that size, not {small}.")
    stacks = [_pixel_block(name, values, small, cell) for name in names]
    joined = stacks[0] if len(stacks) == 1 else np.concatenate(stacks, axis=-1)
    return joined.reshape(-1, joined.shape[-1])


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


def _pixel_block(name: str, values: Stack, small: tuple[int, ...], cell: int) -> Stack:
    """One block (*small, k) of an image or volume (*size, channels)."""
    if name == "constant":
        return np.ones((*small, 1), dtype=values.dtype)
    if name == "position":
        # the mean of the centres of a covered stretch is the centre of the new pixel
        return positions(small, values.dtype)
    if name == "filters":
        filters = filter_bank(values, axes=values.ndim - 1, dtype=values.dtype)
        return filters if small == values.shape[:-1] else apply_weights(filters, *_areas(values, small))
    if name == "rgb":
        return apply_weights(values, *_areas(values, small))
    rows, columns = _areas(values, small)
    if name == "hog":
        # interpolation and averaging are both linear: from cells to the small image in one step
        up, across = cell_weights(values.shape[:2], cell)
        return apply_weights(hog_cells(values, cell), rows @ up, columns @ across)
    base = np.concatenate([values, positions(values.shape[:2], values.dtype)], axis=2)
    # waves between rows and columns, so that inner loops run along rows
    waves = _waves(np.ascontiguousarray(np.moveaxis(base, 2, 1)))
    return np.moveaxis(apply_weights(waves, rows, columns, axis=2), 1, 2)


def _areas(values: Stack, small: tuple[int, ...]) -> list[Weights]:
    """Weights that average an image (h, w, k) to another size, along both axes."""
    return [area_weights(n, m) for n, m in zip(values.shape[:2], small, strict=True)]


# -- pairs of neighbouring pixels -------------------------------------------------------------------------------

#: Blocks of the sets: 9 features of boundaries; the papers' 3 [ILR-nips sec. 8, ILR-chapter sec. 1.10], 42 for horses
#: and 22 for backgrounds [MBL-tpami sec. 8.3, 8.4].
EDGE_SETS = {
    "boundary": ("constant", "similarity", "contrast", "gradient"),
    "ilr": ("constant", "difference", "sobel"),
    "mbl": ("constant", "difference_steps", "sobel_steps", "directions"),
    "mbl-backgrounds": ("constant", "difference_steps", "directions"),
}
EDGE_BLOCKS = (
    "constant", "similarity", "contrast", "gradient", "difference", "sobel", "difference_steps", "sobel_steps",
    "directions",
)  # fmt: skip

#: Ten thresholds each. The paper prints none; these are those of the toolbox its author published.
DIFFERENCE_STEPS = np.arange(1, 11) * 0.05
SOBEL_STEPS = np.arange(1, 11) * 0.02

#: Scales, in pixels, at which a boundary is looked for: differences of Gaussians, and gradients.
CONTRAST_SCALES = (0.0, 1.0, 2.0)
GRADIENT_SCALES = (1.0, 2.0)

# row and column steps of a grid's pairs in the order of their copies: horizontal, vertical, two diagonals
_DIRECTIONS = ((0, 1), (1, 0), (1, 1), (1, -1))


def edge_features(
    image: ArrayLike,
    edges: ArrayLike,
    edge: str | Sequence[str] = "boundary",
    *,
    axes: int = 2,
    typical: Sequence[float] | None = None,
    dtype: Any = np.float32,
) -> Stack:
    """Features (m, n_features) of pairs of pixels.

    Args:
        image: of any number of channels, see `as_channels`; with the papers' blocks see `as_rgb`.
        edges: (m, 2) pixels in raster order, such as `Graph.grid((h, w), ...).scopes["edge"]`.
        edge: a set of `EDGE_SETS`, or blocks to put side by side: "constant" (1); with d the l2 distance of the
            pixels' channels in Gaussians of standard deviation 0, 1 and 2, in units of its typical value,
            "similarity" (3: exp(-d^2 / 2)) and "contrast" (3: log(1 + d)); "gradient" (2: log(1 + g) of the larger of
            the two pixels' gradient magnitudes at scales 1 and 2). The papers' blocks: "difference" (1: the l2 distance
            of the two RGB vectors), "sobel" (1: the larger of the two pixels' Sobel responses, see `sobel`),
            "difference_steps" and "sobel_steps" (10 each: 1 where the value exceeds a threshold), and last
            "directions": one copy of all blocks before it for each direction, zero for pairs of another one
            (horizontal first, then vertical; also the diagonals where there are such pairs).
        axes: 2 for images, 3 for volumes, whose features are those of the set "boundary".
        typical: the units of distances and gradients as `typical_contrast` finds them, by default in these pairs.
        dtype: float32 or float64.
    """
    names = feature_blocks(edge, EDGE_SETS, EDGE_BLOCKS, "edge")
    if axes != 2 or all(name in EDGE_SETS["boundary"] for name in names):
        return _boundary(as_channels(image, axes, dtype), edges, names, typical)
    if "directions" in names and (names[-1] != "directions" or len(names) == 1 or names.count("directions") > 1):
        raise PotentiaError('the block "directions" copies the blocks before it, so it comes last.')
    rgb = as_rgb(image, dtype)
    pairs = _check_edges(edges, rgb.shape[0] * rgb.shape[1])
    base = [_pair_block(name, rgb, pairs) for name in names if name != "directions"]
    features = np.concatenate(base, axis=1, dtype=dtype)
    return _by_direction(features, pairs, rgb.shape[1]) if names[-1] == "directions" else features


def typical_contrast(image: ArrayLike, edges: ArrayLike, *, axes: int = 2) -> list[float]:
    """Mean distance of pairs at each of the three scales, then mean gradient at each of the two; 1 for a flat image."""
    values = as_channels(image, axes)
    pairs = _check_edges(edges, values[..., 0].size)
    means = [float(v.mean()) if v.size else 0.0 for v in _responses(values, pairs)]
    return [mean if mean > 0 else 1.0 for mean in means]


def _boundary(values: Stack, edges: ArrayLike, names: Sequence[str], typical: Sequence[float] | None) -> Stack:
    """Blocks that need no colours, of pairs of an image or volume (*size, channels)."""
    allowed = EDGE_SETS["boundary"]
    papers = [name for name in names if name not in allowed]
    if papers:
        raise PotentiaError(f"volumes have no pair features {papers[0]!r}: take {', '.join(allowed)}.")
    n_distances = len(CONTRAST_SCALES)
    n_units = n_distances + len(GRADIENT_SCALES)
    units = None if typical is None else real_numbers(typical, "typical")
    if units is not None and (units.shape != (n_units,) or not np.all((units > 0) & (units < np.inf))):
        raise PotentiaError(f"typical must be {n_units} finite numbers above zero, not {shown(typical)}.")
    pairs = _check_edges(edges, values[..., 0].size)
    responses = list(_responses(values, pairs))
    for k, response in enumerate(responses):
        mean = float(response.mean()) if response.size else 0.0
        response /= units[k] if units is not None else (mean or 1.0)
    made = {
        "constant": [np.ones(len(pairs), dtype=values.dtype)],
        "similarity": [np.exp(-0.5 * d * d) for d in responses[:n_distances]],
        "contrast": [np.log1p(d) for d in responses[:n_distances]],
        "gradient": [np.log1p(g) for g in responses[n_distances:]],
    }
    return np.stack([column for name in names for column in made[name]], axis=1)


def _responses(values: Stack, pairs: Ints) -> Iterator[Stack]:
    """Distance of every pair at each scale, then its gradient at each scale."""
    first, second = pairs.T
    for scale in CONTRAST_SCALES:
        flat = _smooth(values, scale).reshape(-1, values.shape[-1])
        total = np.zeros(len(pairs), dtype=values.dtype)
        for channel in flat.T:
            total += (channel[first] - channel[second]) ** 2
        yield np.sqrt(total)
    for scale in GRADIENT_SCALES:
        smooth = _smooth(values, scale)
        slopes = (np.gradient(smooth, axis=a) for a in range(smooth.ndim - 1) if smooth.shape[a] > 1)
        square = sum(((slope**2).sum(axis=-1) for slope in slopes), np.zeros(smooth.shape[:-1], smooth.dtype))
        magnitude = np.sqrt(square).ravel()
        yield np.maximum(magnitude[first], magnitude[second])


def _smooth(values: Stack, scale: float) -> Stack:
    """An image or volume blurred along its axes, channel by channel; itself for scale 0."""
    from scipy import ndimage

    return values if scale == 0.0 else ndimage.gaussian_filter(values, (*[scale] * (values.ndim - 1), 0.0))


def sobel(image: ArrayLike, dtype: Any = np.float64) -> Stack:
    """Magnitude (h, w) of the Sobel gradient of an image's luma, mirrored at the border.

    Kernels are divided by 8, so a step of height 1 has response .5 on both of its sides.
    """
    from scipy import ndimage

    luma = grey(as_rgb(image, dtype))
    return np.hypot(*(ndimage.sobel(luma, axis=axis, mode="reflect") / 8 for axis in (0, 1)))


def _pair_block(name: str, rgb: Stack, pairs: Ints) -> Stack:
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
        raise PotentiaError('the block "directions" needs pairs of pixels that touch.')
    wanted = is_direction if np.any(is_direction[2:]) else is_direction[:2]
    return np.concatenate([features * chosen[:, None] for chosen in wanted], axis=1)


def _check_edges(edges: ArrayLike, n_pixels: int) -> Ints:
    """Pairs of pixels as integers, (m, 2), inside the image."""
    pairs = plain_array(edges, "edges")
    if pairs.ndim != 2 or pairs.shape[1] not in (0, 2) or pairs.dtype.kind not in "iu":
        raise PotentiaError(f"edges must be whole numbers of shape (m, 2), not {pairs.dtype} of shape {pairs.shape}.")
    pairs = pairs.reshape(-1, 2).astype(np.int64, copy=False)
    if pairs.size and (pairs.min() < 0 or pairs.max() >= n_pixels):
        raise PotentiaError(f"edges name a pixel outside 0..{n_pixels - 1}.")
    return pairs

"""A multi-scale filter bank over images and volumes of any number of channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._options import check_positive
from .._types import ArrayLike, PotentiaError, real_numbers
from .colour import as_channels
from .resize import Stack

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

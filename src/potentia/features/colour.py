"""Images as arrays: their channels, and images, label maps and marginals at another resolution."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..base.types import (
    ArrayLike,
    Floats,
    PotentiaError,
    check_choice,
    check_count,
    check_positive,
    check_size,
    plain_array,
    real_numbers,
    shown,
)

#: A stack of images (h, w, k) in the precision the caller chose.
Stack = np.ndarray[Any, np.dtype[Any]]
#: A SciPy CSR array that turns one axis into another.
Weights = Any


def resize(image: ArrayLike, size: Sequence[int]) -> Stack:
    """An image (h, w) or (h, w, k) at size (height, width).

    Along an axis that shrinks, the mean of what each new pixel covers (also for sides that do not divide); along
    one that grows, linear interpolation between pixel centres. Both keep constants.
    """
    single = isinstance(image, np.ndarray) and image.dtype == np.float32
    values: Stack = image if single else real_numbers(image, "image")
    if values.ndim not in (2, 3) or min(values.shape) < 1:
        raise PotentiaError(f"an image has shape (h, w) or (h, w, k), not {values.shape}.")
    sides = check_size("size", size)
    if sides == values.shape[:2]:
        return values
    rows, columns = (
        area_weights(n, m) if m <= n else linear_weights(n, m, m / n)
        for n, m in zip(values.shape[:2], sides, strict=True)
    )
    stack = apply_weights(values.reshape(*values.shape[:2], -1), rows, columns)
    return stack.reshape(*stack.shape[:2], *values.shape[2:])


def reduce_labels(labels: ArrayLike, size: Sequence[int], n_states: int) -> np.ndarray:
    """A label map (h, w), -1 unknown, at a smaller size: the class that covers most of each new pixel's known part.

    -1 where nothing is known; the lowest of equal classes.
    """
    classes, sides = check_label_map(labels, n_states), check_size("size", size)
    if sides == classes.shape:
        return classes
    each = (classes[..., None] == np.arange(n_states)).astype(np.float64)
    rows, columns = (area_weights(n, m) for n, m in zip(classes.shape, sides, strict=True))
    # rounded, so that equal shares are equal whatever the order of summation
    share = np.round(apply_weights(each, rows, columns), 9)
    return np.where(share.max(axis=2) > 0, share.argmax(axis=2), -1)


def upsample_marginals(marginals: ArrayLike, size: Sequence[int], full_size: Sequence[int]) -> Stack:
    """Marginals (h * w, L) of an image reduced to size (h, w), at full size (H, W, L) [MBL-tpami sec. 8.4].

    Linear between pixel centres: rows still sum to one; their argmax is the prediction at full size.
    """
    values = real_numbers(marginals, "marginals")
    height, width = check_size("size", size)
    if values.ndim != 2 or len(values) != height * width:
        raise PotentiaError(
            f"marginals has shape {values.shape}; an image of {height} x {width} needs {height * width} rows."
        )
    return resize(values.reshape(height, width, -1), full_size)


def check_label_map(labels: ArrayLike, n_states: int) -> np.ndarray:
    """A label map (h, w) as integers, every entry a class or -1."""
    check_count("n_states", n_states, 1)
    values = plain_array(labels, "labels")
    if values.ndim != 2 or values.dtype.kind not in "iub":
        raise PotentiaError(
            f"labels, a label map, has shape (h, w) and whole numbers, not {values.shape} of {values.dtype}."
        )
    values = values.astype(np.int64)
    if values.size and (values.min() < -1 or values.max() >= n_states):
        bad = values[(values < -1) | (values >= n_states)][0]
        raise PotentiaError(
            f"labels, a label map, holds {bad}, but classes are 0..{n_states - 1} (n_states = {n_states}) and -1."
        )
    return values


def apply_weights(stack: Stack, rows: Weights, columns: Weights, axis: int = 1) -> Stack:
    """sum over (i, j) of rows[a, i] columns[b, j] stack[i, .., j, ..], with j along `axis`, in the stack's precision.

    Weights are sparse because each new pixel sees few old ones; a dense product would do 50 times the work.
    """
    tall = _along(rows, stack)
    return np.moveaxis(_along(columns, np.moveaxis(tall, axis, 0)), 0, axis)


def _along(weights: Weights, stack: Stack) -> Stack:
    """Weights (m, n) applied to the first axis, (n, ...) to (m, ...)."""
    flat = np.ascontiguousarray(stack).reshape(len(stack), -1)
    product: Stack = weights.astype(stack.dtype) @ flat
    return product.reshape(-1, *stack.shape[1:])


@lru_cache(maxsize=64)
def area_weights(n_from: int, n_to: int) -> Weights:
    """(n_to, n_from): the share of each old pixel in the stretch a new pixel covers; rows sum to one."""
    from scipy import sparse

    edges = np.arange(n_to + 1) * (n_from / n_to)
    left, right = edges[:-1, None], edges[1:, None]
    pixel = np.arange(n_from)[None]
    covered = np.clip(np.minimum(right, pixel + 1) - np.maximum(left, pixel), 0.0, None)
    return sparse.csr_array(covered / covered.sum(axis=1, keepdims=True))


@lru_cache(maxsize=64)
def linear_weights(n_from: int, n_to: int, scale: float) -> Weights:
    """(n_to, n_from): linear interpolation at (k + .5) / scale - .5, held constant beyond the outer centres."""
    from scipy import sparse

    at = np.clip((np.arange(n_to) + 0.5) / scale - 0.5, 0.0, n_from - 1.0)
    return sparse.csr_array(np.clip(1.0 - np.abs(at[:, None] - np.arange(n_from)[None]), 0.0, None))


#: Luma of ITU-R 601.
_LUMA = (0.299, 0.587, 0.114)

# a resized image may leave [0, 1] by a rounding error of single precision
_ROUNDING = 1e-5


def as_channels(image: ArrayLike, axes: int = 2, dtype: Any = np.float32) -> Stack:
    """An image (h, w) or (h, w, channels), or a volume with axes=3, as (*size, channels).

    The size of a volume is (d, h, w). Unsigned integers are divided by the largest of their type; booleans are 0 and
    1; other numbers are not changed.
    """
    check_choice("axes", axes, (2, 3))
    size = "(h, w)" if axes == 2 else "(d, h, w)"
    pixels = _pixels(image, axes, dtype, f"{size} or {size[:-1]}, channels)")
    if pixels.dtype.kind not in "uibf":
        raise PotentiaError(f"an image holds real numbers, not {pixels.dtype}.")
    values: Stack = pixels.astype(dtype)
    if pixels.dtype.kind == "u":
        values /= np.iinfo(pixels.dtype).max
    if pixels.dtype.kind == "f" and not np.isfinite(values).all():
        raise PotentiaError("an image holds a value that is not finite.")
    return values


def as_rgb(image: ArrayLike, dtype: Any = np.float64) -> Stack:
    """An image (h, w), (h, w, 1) or (h, w, 3) as (h, w, 3) in [0, 1]; grey becomes three equal channels.

    Unsigned integers are divided by the largest of their type; floats must lie in [0, 1] already.
    """
    pixels = _pixels(image, 2, dtype, "(h, w), (h, w, 1) or (h, w, 3)", (1, 3))
    if pixels.dtype.kind not in "ubf":
        raise PotentiaError(f"an image holds unsigned integers or floats in [0, 1], not {pixels.dtype}.")
    values: Stack = pixels.astype(dtype)
    if pixels.dtype.kind == "u":
        values = values / np.iinfo(pixels.dtype).max
    elif pixels.dtype.kind == "f":
        # written so that NaN is refused as well
        if not (values.min() >= -_ROUNDING and values.max() <= 1.0 + _ROUNDING):
            raise PotentiaError("an image of floats must have values in [0, 1]: divide by the largest possible one.")
        values = np.clip(values, 0.0, 1.0)
    return np.broadcast_to(values, (*values.shape[:2], 3))


def _pixels(image: ArrayLike, axes: int, dtype: Any, shapes: str, channels: Sequence[int] = ()) -> Stack:
    """An image as (*size, channels), not converted; refuses other shapes, and a dtype that features cannot have."""
    if dtype not in (np.float32, np.float64, "float32", "float64", np.dtype("f4"), np.dtype("f8")):
        raise PotentiaError(f"dtype must be float32 or float64, not {shown(dtype)}.")
    pixels: Stack = plain_array(image, "image")
    shape = pixels.shape
    if pixels.ndim == axes:
        pixels = pixels[..., None]
    if pixels.ndim != axes + 1 or (channels and pixels.shape[-1] not in channels):
        raise PotentiaError(f"an image has shape {shapes}, not {shape}.")
    if 0 in shape:
        raise PotentiaError(f"an image has at least one pixel and one channel, not shape {shape}.")
    return pixels


def grey(rgb: Stack) -> Stack:
    """Luma (h, w) of an image (h, w, 3)."""
    return rgb @ np.asarray(_LUMA, dtype=rgb.dtype)


def positions(size: Sequence[int], dtype: Any) -> Stack:
    """(*size, axes): x, y and so on of every pixel's centre, as a share of width, height and so on."""
    places: Stack = np.empty((*size, len(size)), dtype=dtype)
    for axis, side in enumerate(size):
        shape = [-1 if a == axis else 1 for a in range(len(size))]
        places[..., len(size) - 1 - axis] = ((np.arange(side) + 0.5) / side).reshape(shape)
    return places


def bilateral(image: ArrayLike, sd_position: float, sd_colour: float | None = None) -> Floats:
    """Positions of pixels, and with `sd_colour` their colours, over standard deviations, for `pt.DenseGaussian`.

    Args:
        image: (h, w) or (h, w, channels); of any unit, which is also that of sd_colour.
        sd_position: in pixels.
        sd_colour: of each channel; None leaves colours out.

    Returns:
        (h * w, 2) or (h * w, 2 + channels), pixels in raster order.
    """
    check_positive("sd_position", sd_position)
    pixels = real_numbers(image, "image")
    if pixels.ndim not in (2, 3) or 0 in pixels.shape:
        raise PotentiaError(f"an image has shape (h, w) or (h, w, channels), not {pixels.shape}.")
    places = np.indices(pixels.shape[:2]).reshape(2, -1).T / float(sd_position)
    if sd_colour is None:
        return places
    check_positive("sd_colour", sd_colour)
    return np.hstack([places, pixels.reshape(len(places), -1) / float(sd_colour)])


def feature_blocks(
    chosen: str | Sequence[str], sets: dict[str, tuple[str, ...]], known: Sequence[str], name: str
) -> Sequence[str]:
    """The blocks of a named set, or the blocks themselves; refuses unknown ones."""
    if isinstance(chosen, str):
        if chosen not in sets:
            raise PotentiaError(
                f"{name} must be one of {', '.join(map(repr, sets))} or a list of blocks, not {shown(chosen)}."
            )
        return sets[chosen]
    blocks = tuple(chosen) if isinstance(chosen, Sequence) else (chosen,)
    unknown = [block for block in blocks if not isinstance(block, str) or block not in known]
    if unknown or not blocks:
        wrong = shown(unknown[0]) if unknown else "an empty list"
        raise PotentiaError(f"{name} may hold the blocks {', '.join(map(repr, known))}, not {wrong}.")
    return blocks

"""Images as numbers: whatever the caller has, as RGB in [0, 1]."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._options import check_choice
from .._types import ArrayLike, PotentiaError, plain_array, shown
from .resize import Stack

#: Luma of ITU-R 601.
_LUMA = (0.299, 0.587, 0.114)

# a resized image may leave [0, 1] by a rounding error of single precision
_ROUNDING = 1e-5


def as_channels(image: ArrayLike, axes: int = 2, dtype: Any = np.float32) -> Stack:
    """An image (h, w) or (h, w, channels), or a volume with axes=3, as (*size, channels).

    The size of a volume is (d, h, w). Unsigned integers are divided by the largest of their type; booleans are 0 and
    1; other numbers are kept as they are.
    """
    check_choice("axes", axes, (2, 3))
    _check_precision(dtype)
    given = plain_array(image, "image")
    if given.ndim == axes:
        given = given[..., None]
    if given.ndim != axes + 1:
        size = "(h, w)" if axes == 2 else "(d, h, w)"
        raise PotentiaError(f"an image has shape {size} or {size[:-1]}, channels), not {np.shape(image)}.")
    if 0 in given.shape:
        raise PotentiaError(f"an image has at least one pixel and one channel, not shape {np.shape(image)}.")
    if given.dtype.kind not in "uibf":
        raise PotentiaError(f"an image holds real numbers, not {given.dtype}.")
    values: Stack = given.astype(dtype)
    if given.dtype.kind == "u":
        values /= np.iinfo(given.dtype).max
    if given.dtype.kind == "f" and not np.isfinite(values).all():
        raise PotentiaError("an image holds a value that is not finite.")
    return values


def _check_precision(dtype: Any) -> None:
    if dtype not in (np.float32, np.float64, "float32", "float64", np.dtype("f4"), np.dtype("f8")):
        raise PotentiaError(f"dtype must be float32 or float64, not {shown(dtype)}.")


def as_rgb(image: ArrayLike, dtype: Any = np.float64) -> Stack:
    """An image (h, w), (h, w, 1) or (h, w, 3) as (h, w, 3) in [0, 1]; grey becomes three equal channels.

    Unsigned integers are divided by the largest of their type; floats must lie in [0, 1] already.
    """
    _check_precision(dtype)
    given = plain_array(image, "image")
    if given.ndim == 2:
        given = given[..., None]
    if given.ndim != 3 or given.shape[2] not in (1, 3):
        raise PotentiaError(f"an image has shape (h, w), (h, w, 1) or (h, w, 3), not {np.shape(image)}.")
    if 0 in given.shape:
        raise PotentiaError(f"an image has at least one pixel, not shape {np.shape(image)}.")
    if given.dtype.kind == "u":
        values = given.astype(dtype) / np.iinfo(given.dtype).max
    elif given.dtype.kind == "b":
        values = given.astype(dtype)
    elif given.dtype.kind == "f":
        values = _inside(given.astype(dtype))
    else:
        raise PotentiaError(f"an image holds unsigned integers or floats in [0, 1], not {given.dtype}.")
    return np.broadcast_to(values, (*values.shape[:2], 3))


def _inside(values: Stack) -> Stack:
    # written so that NaN is refused as well
    if not (values.min() >= -_ROUNDING and values.max() <= 1.0 + _ROUNDING):
        raise PotentiaError(
            "an image of floats must have values in [0, 1]: divide by the largest possible one."
        )
    return np.clip(values, 0.0, 1.0)


def grey(rgb: Stack) -> Stack:
    """Luma (h, w) of an image (h, w, 3)."""
    return rgb @ np.asarray(_LUMA, dtype=rgb.dtype)

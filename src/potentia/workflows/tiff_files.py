"""TIFF files as microscopes and satellites write them: stacks of pages, 16 bits, any number of channels."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from .._types import PotentiaError

SUFFIXES = (".tif", ".tiff")
#: Axes, in tifffile's letters, that are channels; all others but Y and X number pages.
_CHANNELS = "SC"


def is_tiff(path: Path) -> bool:
    """Whether a file is a TIFF file by its name."""
    return path.suffix.lower() in SUFFIXES


def n_pages(path: Path) -> int:
    """The number of images in a file."""
    _, axes, shape = _series(path, read=False)
    return int(np.prod([n for axis, n in zip(axes, shape, strict=True) if axis not in "YX" + _CHANNELS]))


def read_tiff(path: Path, page: int | None = None) -> np.ndarray:
    """The images of a file (pages, h, w) or (pages, h, w, channels); with `page` one of them without the first axis.

    A file with one page has no first axis either way. An alpha channel is left out.
    """
    stack = _stack(path)
    found = stack[..., 0] if stack.shape[-1] == 1 else stack
    if page is not None:
        return np.ascontiguousarray(found[page])
    return np.ascontiguousarray(found[0] if len(found) == 1 else found)


def _stack(path: Path) -> np.ndarray:
    """All images of a file, (pages, h, w, channels)."""
    return _cached_stack(path, path.stat().st_mtime_ns) if path.exists() else _read_stack(path)


@lru_cache(maxsize=2)
def _cached_stack(path: Path, changed: int) -> np.ndarray:
    """The stacks read last, an image and its mask: their pages are requested one after another."""
    return _read_stack(path)


def _read_stack(path: Path) -> np.ndarray:
    values, axes, shape = _series(path, read=True)
    channels = [k for k, axis in enumerate(axes) if axis in _CHANNELS]
    pages = [k for k, axis in enumerate(axes) if axis not in "YX" + _CHANNELS]
    order = [*pages, axes.index("Y"), axes.index("X"), *channels]
    height, width = shape[axes.index("Y")], shape[axes.index("X")]
    n_channels = int(np.prod([shape[k] for k in channels]))
    found: np.ndarray = np.transpose(values, order).reshape(-1, height, width, n_channels)
    return found


def write_tiff(path: Path, values: np.ndarray) -> None:
    """A volume (d, h, w) or (d, h, w, 3) as pages of a TIFF file."""
    _tifffile().imwrite(
        path,
        values,
        photometric="rgb" if values.ndim == 4 else "minisblack",
        compression="zlib",
        metadata={"axes": "ZYX" if values.ndim == 3 else "ZYXS"},
    )


def _series(path: Path, read: bool) -> tuple[Any, str, tuple[int, ...]]:
    """The first series of a file: its values if requested, axes and shape."""
    tifffile = _tifffile()
    try:
        with tifffile.TiffFile(path) as file:
            series = file.series[0]
            axes, shape = series.axes, series.shape
            values = series.asarray() if read else None
            if axes.endswith("S") and shape[-1] == 4 and file.pages[0].photometric == 2:  # RGB and alpha
                shape = (*shape[:-1], 3)
                values = None if values is None else values[..., :3]
    except FileNotFoundError:
        raise PotentiaError(f"{path}: there is no such file.") from None
    except Exception as error:  # a damaged or compressed file fails in many ways
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PotentiaError(f"{path}: this is not a readable TIFF file ({reason}).") from None
    if "Y" not in axes or "X" not in axes or 0 in shape:
        raise PotentiaError(f"{path}: the TIFF file holds no image (axes {axes}, shape {shape}).")
    if values is not None and values.shape != tuple(shape):
        raise PotentiaError(f"{path}: the TIFF file holds {values.shape} values instead of {tuple(shape)}.")
    return values, axes, shape


def _tifffile() -> Any:
    try:
        import tifffile
    except ImportError:
        raise PotentiaError("TIFF files need tifffile: pip install potentia[images].") from None
    return tifffile

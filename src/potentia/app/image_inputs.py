"""Images with what the user gives beside them: features, and probabilities of another model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..base.types import Ints, PotentiaError
from .image_files import ImageFile, given_files, read_given, read_image


class Given(NamedTuple):
    """What the user gives beside an image: features and probabilities (*size, n), or None."""

    features: np.ndarray | None = None
    probabilities: np.ndarray | None = None


@dataclass(frozen=True)
class InputReader:
    """Reads image number k and the arrays given beside it; workers of a cluster can, too.

    Attributes:
        files: the images.
        features, probabilities: the array files of all images, or None.
        axes: 2 for images, 3 for volumes.
    """

    files: list[ImageFile]
    features: list[ImageFile] | None
    probabilities: list[ImageFile] | None
    axes: int

    def __call__(self, k: int) -> tuple[np.ndarray, Given]:
        image = read_image(self.files[k])
        if image.ndim not in (self.axes, self.axes + 1):
            raise PotentiaError(
                f"{self.files[k].path}: the image has shape {image.shape}, not {self.axes} axes and channels."
            )
        size = image.shape[: self.axes]
        beside = (self.features, self.probabilities)
        return image, Given(*(None if own is None else read_given(own[k], size) for own in beside))


def input_reader(
    files: list[ImageFile], features: Path | None, probabilities: Path | None, axes: int
) -> InputReader:
    """A reader of images and of the arrays of their names in folders."""
    beside = [
        None if folder is None else absolute(given_files(folder, files, option))
        for option, folder in (("features", features), ("probabilities", probabilities))
    ]
    return InputReader(absolute(files), beside[0], beside[1], axes)


def absolute(files: list[ImageFile]) -> list[ImageFile]:
    """The files with paths that hold in every folder."""
    return [file._replace(path=file.path.absolute()) for file in files]


#: A part of an image: a slice per axis.
Window = tuple[slice, ...]


def whole(size: Sequence[int]) -> Window:
    """All of an image."""
    return tuple(slice(0, side) for side in size)


def widened(window: Window, margin: int, size: Sequence[int]) -> Window:
    """A window with a margin around it, as far as the image goes."""
    return tuple(
        slice(max(0, own.start - margin), min(side, own.stop + margin))
        for own, side in zip(window, size, strict=True)
    )


def inside(window: Window, outer: Window) -> Window:
    """A window relative to one around it."""
    return tuple(
        slice(own.start - around.start, own.stop - around.start)
        for own, around in zip(window, outer, strict=True)
    )


def window_size(window: Window) -> tuple[int, ...]:
    """The sides of a window."""
    return tuple(own.stop - own.start for own in window)


def tiles(window: Window, side: int) -> list[Window]:
    """A window cut into windows of about equal sides, at most `side`."""
    axes = []
    for own in window:
        length = own.stop - own.start
        cuts = np.linspace(own.start, own.stop, -(-length // side) + 1).round().astype(int)
        axes.append([slice(int(a), int(b)) for a, b in itertools.pairwise(cuts)])
    return list(itertools.product(*axes))


def bands(size: Sequence[int], count: int) -> list[Window]:
    """An image cut along its first axis into `count` parts, or fewer where it has fewer than two rows for each."""
    count = max(1, min(count, size[0] // 2))
    cuts = np.linspace(0, size[0], count + 1).round().astype(int)
    return [(slice(int(a), int(b)), *whole(size[1:])) for a, b in itertools.pairwise(cuts)]


def draw_window(window: Window, n_pixels: int, known: np.ndarray, rng: np.random.Generator) -> Window:
    """A window of about `n_pixels` at a random place inside another, around a pixel where `known` (of that window)."""
    sides = window_size(window)
    share = (n_pixels / max(1, int(np.prod(sides)))) ** (1 / len(sides))
    if share >= 1.0:
        return window
    own = [max(1, round(share * side)) for side in sides]
    places: Ints = np.argwhere(known)
    centre = places[rng.integers(len(places))] if len(places) else np.array(sides) // 2
    found = []
    for around, side, full, at in zip(window, own, sides, centre.tolist(), strict=True):
        first = min(max(0, at - int(rng.integers(side))), full - side)
        found.append(slice(around.start + first, around.start + first + side))
    return tuple(found)


def blend(
    size: Sequence[int], side: int, overlap: int, predict: Callable[[Window], np.ndarray]
) -> np.ndarray:
    """predict(window) of shape (*window, k) over a whole image, tile by tile, averaged where tiles overlap.

    Tiles reach `overlap` pixels into their neighbours; their weights rise linearly from their borders, so that seams do
    not show.
    """
    total: np.ndarray | None = None
    weights = np.zeros(tuple(size), dtype=np.float32)
    for tile in tiles(whole(size), side):
        window = widened(tile, overlap, size)
        values = predict(window)
        weight = _ramp(window, size, 2 * overlap)
        if total is None:
            total = np.zeros((*size, values.shape[-1]), dtype=np.float32)
        total[window] += weight[..., None] * values
        weights[window] += weight
    assert total is not None
    total /= weights[..., None]
    return total


def _ramp(window: Window, size: Sequence[int], length: int) -> np.ndarray:
    """Weights of a tile: 1 inside, falling to its borders, but not where those are the image's."""
    weight = np.ones(window_size(window), dtype=np.float32)
    for axis, (own, side) in enumerate(zip(window, size, strict=True)):
        at = np.arange(own.start, own.stop)
        left = at - own.start + 1 if own.start > 0 else np.full(len(at), length + 1)
        right = own.stop - at if own.stop < side else np.full(len(at), length + 1)
        line = np.minimum(np.minimum(left, right) / (length + 1), 1.0)
        weight *= line.astype(np.float32).reshape([-1 if a == axis else 1 for a in range(len(size))])
    return weight

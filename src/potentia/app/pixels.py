"""Single pixels: windows of images, the features of their pixels, and the classifier that scores them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import ndimage

from ..base.progress import note
from ..base.types import Ints, PotentiaError, prefixed
from ..features.image import n_around
from ..features.pixels import filter_planes, filter_reach, n_filters
from ..models import cross_fit
from ..potentials import Potential
from .image_files import Given

#: A part of an image: a slice per axis.
Window = tuple[slice, ...]


def whole(size: Sequence[int]) -> Window:
    """All of an image."""
    return tuple(slice(0, side) for side in size)


def widened(window: Window, margin: int, size: Sequence[int]) -> Window:
    """A window with a margin around it, as far as the image goes."""
    return tuple(
        slice(max(0, part.start - margin), min(side, part.stop + margin))
        for part, side in zip(window, size, strict=True)
    )


def inside(window: Window, outer: Window) -> Window:
    """A window relative to one around it."""
    return tuple(
        slice(part.start - around.start, part.stop - around.start) for part, around in zip(window, outer, strict=True)
    )


def window_size(window: Window) -> tuple[int, ...]:
    """The sides of a window."""
    return tuple(part.stop - part.start for part in window)


def _cut(first: int, end: int, count: int) -> list[slice]:
    """A range cut into `count` parts of about equal length."""
    cuts = np.linspace(first, end, count + 1).round().astype(int).tolist()
    return [slice(a, b) for a, b in itertools.pairwise(cuts)]


def tiles(window: Window, side: int) -> list[Window]:
    """A window cut into windows of about equal sides, at most `side`."""
    axes = (_cut(part.start, part.stop, -((part.start - part.stop) // side)) for part in window)
    return list(itertools.product(*axes))


def bands(size: Sequence[int], count: int) -> list[Window]:
    """An image cut along its first axis into `count` parts, or fewer where it has fewer than two rows for each."""
    count = max(1, min(count, size[0] // 2))
    return [(rows, *whole(size[1:])) for rows in _cut(0, size[0], count)]


def draw_window(window: Window, n_pixels: int, known: np.ndarray, rng: np.random.Generator) -> Window:
    """A window of about `n_pixels` at a random place inside another, around a pixel where `known` (of that window)."""
    sides = window_size(window)
    share = (n_pixels / max(1, int(np.prod(sides)))) ** (1 / len(sides))
    if share >= 1.0:
        return window
    lengths = [max(1, round(share * side)) for side in sides]
    places: Ints = np.argwhere(known)
    centre = places[rng.integers(len(places))] if len(places) else np.array(sides) // 2
    parts = []
    for around, side, full, at in zip(window, lengths, sides, centre.tolist(), strict=True):
        first = min(max(0, at - int(rng.integers(side))), full - side)
        parts.append(slice(around.start + first, around.start + first + side))
    return tuple(parts)


def blend(size: Sequence[int], side: int, overlap: int, predict: Callable[[Window], np.ndarray]) -> np.ndarray:
    """predict(window) of shape (*window, k) over a whole image, tile by tile, averaged where tiles overlap.

    Tiles reach `overlap` pixels into their neighbours; their weights rise linearly from their borders, so that seams do
    not show.
    """
    total: np.ndarray | None = None
    weights = np.zeros(tuple(size), dtype=np.float32)
    every = tiles(whole(size), side)
    for number, tile in enumerate(every, 1):
        note(f"tile {number} of {len(every)}")
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
    for axis, (part, side) in enumerate(zip(window, size, strict=True)):
        at = np.arange(part.start, part.stop)
        left = at - part.start + 1 if part.start > 0 else np.full(len(at), length + 1)
        right = part.stop - at if part.stop < side else np.full(len(at), length + 1)
        line = np.minimum(np.minimum(left, right) / (length + 1), 1.0)
        weight *= line.astype(np.float32).reshape([-1 if a == axis else 1 for a in range(len(size))])
    return weight


#: Probabilities are computed at every n-th pixel along each axis.
STRIDE = 4
#: Standard deviations, in pixels, of the Gaussians that probabilities are averaged by.
_SCALES = (8.0, 32.0)


class Context:
    """Probabilities of all classes on a coarse grid over an image, averaged at several scales.

    Features of a pixel are, at each scale, the probabilities there and two standard deviations away in both directions
    along each axis. Beyond the image they are those at its border.

    Args:
        probabilities: (*coarse_size, n_states), see `coarse_window`.
    """

    def __init__(self, probabilities: np.ndarray) -> None:
        self.axes, self.n_states = probabilities.ndim - 1, probabilities.shape[-1]
        self.n_features = n_context(self.n_states, self.axes)
        self._smooth = [
            ndimage.gaussian_filter(probabilities, (*[scale / STRIDE] * self.axes, 0.0), mode="nearest")
            for scale in _SCALES
        ]

    def at(self, places: np.ndarray) -> np.ndarray:
        """Features (n, n_features) in float32 of pixels at (n, axes)."""
        features = np.empty((len(places), self.n_features), dtype=np.float32)
        centre = places.T / STRIDE
        column = 0
        for scale, smooth in zip(_SCALES, self._smooth, strict=True):
            far = 2 * scale / STRIDE * np.eye(self.axes)
            for step in (np.zeros(self.axes), *(sign * one for one in far for sign in (-1, 1))):
                for k in range(self.n_states):
                    features[:, column] = ndimage.map_coordinates(
                        smooth[..., k], centre + step[:, None], order=1, mode="nearest", prefilter=False
                    )
                    column += 1
        return features


def n_context(n_states: int, axes: int) -> int:
    """The number of features that context has."""
    return len(_SCALES) * (1 + 2 * axes) * n_states


def coarse_size(size: Sequence[int]) -> tuple[int, ...]:
    """The size of the coarse grid over an image."""
    return tuple(-(-side // STRIDE) for side in size)


def coarse_window(window: Window) -> tuple[Window, Window]:
    """The coarse grid's pixels in a window of an image: where they are in the window, and where in the grid."""
    outer = tuple(slice(-(-part.start // STRIDE), -(-part.stop // STRIDE)) for part in window)
    inner = tuple(slice(g.start * STRIDE - part.start, None, STRIDE) for g, part in zip(outer, window, strict=True))
    return inner, outer


def places_in(window: Window) -> np.ndarray:
    """The pixels (n, axes) of a window, in raster order."""
    starts = np.array([part.start for part in window], dtype=np.int32)
    places = np.indices(window_size(window), dtype=np.int32).reshape(len(window), -1).T + starts
    return np.asarray(places)


#: Sides of the pieces in which features are computed and pixels scored, for two and for three axes.
TILE_SIDES = {2: 512, 3: 64}


@dataclass
class PixelRows:
    """What the features of a pixel are.

    Attributes:
        features: "filters", those of the filter bank and of the user; "image", its channels instead of filters; or
            "given", only those of the user.
        position: whether the pixel's position, as a share of the image's sides, is among them.
        given: number of channels that the user gives with each image.
        channels: number of channels of the image.
        axes: 2 for images, 3 for volumes.
        regions: whether the means over regions are among them, see `RegionMeans`.
    """

    features: str
    position: bool
    given: int
    channels: int
    axes: int = 2
    regions: bool = False

    @property
    def n_features(self) -> int:
        """The number of features."""
        return len(self.kinds)

    @property
    def kinds(self) -> np.ndarray:
        """What each feature is of: "pixel", "regions" or "position"."""
        own = {"filters": n_filters(self.channels, axes=self.axes), "image": self.channels}.get(self.features, 0)
        around, places = n_around(self.channels) * self.regions, self.axes * self.position
        return np.repeat(["pixel", "regions", "position"], [own + self.given, around, places])

    def rows(self, values: np.ndarray, window: Window, beside: Given, room: int = 0) -> np.ndarray:
        """Features (n, n_features + room) in float32 of a window's pixels, in raster order; the last are left empty.

        values: the whole image (*size, channels), normalised. Positions come last of the image's own features.
        """
        size = values.shape[:-1]
        features = np.empty((*window_size(window), self.n_features + room), dtype=np.float32)
        column = 0
        if self.features == "filters":
            wide = widened(window, filter_reach(), size)
            for plane in filter_planes(values[wide]):
                features[..., column] = plane[inside(window, wide)]
                column += 1
        elif self.features == "image":
            column = self.channels
            features[..., :column] = values[window]
        if self.given:
            given = beside.features
            shape = None if given is None else given.shape
            if given is None or shape != (*size, self.given):
                raise PotentiaError(f"the image needs given features of shape {(*size, self.given)}, not {shape}.")
            features[..., column : column + self.given] = given[window]
            column += self.given
        if self.regions:
            assert beside.regions is not None
            around = beside.regions.at(window, size)
            features[..., column : column + around.shape[-1]] = around
            column += around.shape[-1]
        if self.position:
            places = places_in(window).astype(np.float32) + np.float32(0.5)
            features[..., column:][..., : self.axes] = (places / np.asarray(size, dtype=np.float32)).reshape(
                *window_size(window), -1
            )
        return features.reshape(-1, self.n_features + room)


#: Features of an image up to this many bytes are kept between the two classifiers.
_KEPT_BYTES = 5e8


def log_probabilities(function: Potential, x: np.ndarray) -> np.ndarray:
    """Log-probabilities (n, n_classes) in float32 of pixels."""
    return cross_fit.log_probabilities(function.scores(x, trusted=True)).astype(np.float32)


@dataclass
class PixelStage:
    """The classifier of single pixels, whose log-probabilities are the CRF's features.

    Attributes:
        rows: what it sees.
        function: fitted to all training images.
        second: the classifier that also sees `function`'s probabilities around a pixel, and takes its place.
    """

    rows: PixelRows
    function: Potential
    second: Potential | None = None

    @property
    def n_features(self) -> int:
        """The number of features that the last classifier sees."""
        more = 0 if self.second is None else n_context(self.function.n_outputs_, self.rows.axes)
        return self.rows.n_features + more

    def tile_rows(
        self, values: np.ndarray, window: Window, given: Given, room: int = 0
    ) -> Iterator[tuple[Window, np.ndarray]]:
        """The tiles of a window with the features of their pixels, and room for those of context."""
        every = tiles(window, TILE_SIDES[self.rows.axes])
        for number, tile in enumerate(every, 1):
            note(f"features, tile {number} of {len(every)}")
            yield tile, self.rows.rows(values, tile, given, room)

    def image_scores(self, values: np.ndarray, given: Given) -> np.ndarray:
        """Log-probabilities (*size, n_classes) in float32 of all pixels of an image, by the last classifier."""
        every, size = whole(values.shape[:-1]), values.shape[:-1]
        if self.second is None:
            return self.scores(values, every, given, None)
        # both classifiers see most features, which are computed once where they are small enough to keep
        kept: list[tuple[Window, np.ndarray]] | None = None
        if 4 * int(np.prod(size)) * self.n_features <= _KEPT_BYTES:
            kept = list(self.tile_rows(values, every, given, self.n_features - self.rows.n_features))
        coarse = np.empty((*coarse_size(size), self.function.n_outputs_), dtype=np.float32)
        self.fill_coarse(coarse, kept or self.tile_rows(values, every, given))
        return self.scores(values, every, given, Context(coarse), kept)

    def fill_coarse(self, coarse: np.ndarray, rows: Iterable[tuple[Window, np.ndarray]]) -> None:
        """Write the first classifier's probabilities of tiles with these features into the coarse grid of an image."""
        n = self.rows.n_features
        for tile, x in rows:
            inner, outer = coarse_window(tile)
            seen = x.reshape(*window_size(tile), -1)[inner][..., :n].reshape(-1, n)
            coarse[outer] = np.exp(log_probabilities(self.function, seen)).reshape(coarse[outer].shape)

    def scores(
        self, values: np.ndarray, window: Window, given: Given, context: Context | None,
        rows: Iterable[tuple[Window, np.ndarray]] | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Log-probabilities (*window, n_classes) in float32, tile by tile; rows: what `tile_rows` gives, if known."""
        function = self.function if self.second is None else self.second
        room = 0 if context is None else context.n_features
        scores = np.empty((*window_size(window), function.n_outputs_), dtype=np.float32)
        for tile, x in rows or self.tile_rows(values, window, given, room):
            if context is not None:
                x[:, -room:] = context.at(places_in(tile))
            place = inside(tile, window)
            scores[place] = log_probabilities(function, x).reshape(scores[place].shape)
        return scores

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The classifiers and their arrays, by name."""
        content: dict[str, Any] = {}
        arrays: dict[str, Any] = {}
        for name, function in (("pixels", self.function), ("second", self.second)):
            if function is not None:
                content[name], fitted = function.state()
                arrays |= {f"{name}:{key}": value for key, value in fitted.items()}
        return content, arrays

    @classmethod
    def restore(cls, rows: PixelRows, content: Mapping[str, Any], arrays: Mapping[str, Any]) -> PixelStage:
        """The stage that `state` describes."""
        functions = [
            Potential.from_state(content[name], prefixed(arrays, f"{name}:"))
            for name in ("pixels", "second")
            if name == "pixels" or name in content
        ]
        stage = cls(rows, *functions)
        stage.function.check_features(rows.n_features)
        if stage.second is not None:
            stage.second.check_features(stage.n_features)
        return stage

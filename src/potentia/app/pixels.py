"""A classifier of single pixels whose predictions on its own training images are made by models that did not see them.

Pairs are trained on these out-of-fold predictions: on images that it was fitted to, a boosted classifier looks nearly
perfect, and pairs would learn that it needs no help.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import ndimage
from scipy.special import log_softmax

from ..base.types import Floats, Ints, PotentiaError
from ..features.pixels import filter_bank, filter_reach, n_filters
from ..potentials import Boosting, Potential
from .image_inputs import Window, inside, widened, window_size

#: Folds of images.
_FOLDS = 4
#: Fits of fifty trees each, and by how much of itself the held-out loss must fall for another one.
_STAGES, _ENOUGH = 5, 1e-3
#: Log-probabilities are at least this.
_LEAST = np.log(1e-4)


class Sample(NamedTuple):
    """Pixels drawn from one image or a part of it: features (n, d), labels (n,), where they are (n, axes)."""

    x: np.ndarray
    labels: Ints
    places: np.ndarray


@dataclass
class CrossFitted:
    """Classifiers of a training set.

    Attributes:
        final: fitted to all samples; predicts new images.
        by_fold: fitted to all samples but those of a fold.
        folds: the fold of every sample.
        position: whether the last columns, positions, are used.
        loss: mean log-loss of the samples by the models that did not see them.
        tried: that with and without position after one fit, where both were tried.
        stages: fits that each model took.
    """

    final: Potential
    by_fold: list[Potential]
    folds: Ints
    position: bool
    loss: float
    tried: dict[bool, float]
    stages: int

    def unseen(self, number: int) -> Potential:
        """The classifier that did not see sample `number`."""
        return self.by_fold[int(self.folds[number])]


def boosted_pixels(seed: int) -> Boosting:
    """Boosted trees that generalise to other images: small ones, in small steps."""
    return Boosting(rounds=50, more_rounds=50, shrinkage=0.1, max_leaves=16, seed=seed)


def log_probabilities(function: Potential, x: np.ndarray) -> np.ndarray:
    """Log-probabilities (n, n_classes) in float32 of pixels."""
    found = log_softmax(function.scores(x, trusted=True), axis=1)
    return np.maximum(found, _LEAST).astype(np.float32)


def cross_fit(
    make: Callable[[], Potential],
    samples: Sequence[Sample],
    n_states: int,
    *,
    positions: int = 0,
    position: bool | None = None,
    class_weight: Floats | None = None,
    seed: int = 0,
    advance: Callable[[str], None] = lambda text: None,
) -> CrossFitted:
    """Classifiers fitted to all samples but those of a fold each, and one fitted to all.

    Args:
        make: an unfitted classifier.
        samples: of images that must be distinguished; the last `positions` columns are positions.
        position: whether to use those; None uses them if the loss is lower in every fold.
        class_weight: weight of every class.
        advance: called after every fit with a text.
    """
    n_folds = min(_FOLDS, len(samples))
    folds = np.random.default_rng(seed).permutation(np.arange(len(samples)) % n_folds)
    fits = _Fits(make, samples, n_states, folds, class_weight, positions, advance)
    tried: dict[bool, float] = {}
    if not positions or n_folds == 1:
        position = bool(positions) and position is not False
    elif position is None:
        losses = {use: np.array([fits.fold(k, use, 1).loss for k in range(n_folds)]) for use in (False, True)}
        tried = {use: float(own.mean()) for use, own in losses.items()}
        # few images show chance positions, too: a mean alone would take them up
        position = bool(np.all(losses[True] < losses[False]))
    found = [fits.fold(k, position) for k in range(n_folds)]
    stages = int(np.median([fit.stages for fit in found]))
    final = fits.all(position, stages)
    loss = float(np.mean([fit.loss for fit in found]))
    by_fold = [fit.function for fit in found] if n_folds > 1 else [final]
    return CrossFitted(final, by_fold, folds, position, loss, tried, stages)


class _Fit(NamedTuple):
    function: Potential
    loss: float
    stages: int


class _Fits:
    """Fits to some of the samples, each made once."""

    def __init__(
        self,
        make: Callable[[], Potential],
        samples: Sequence[Sample],
        n_states: int,
        folds: Ints,
        class_weight: Floats | None,
        positions: int,
        advance: Callable[[str], None],
    ) -> None:
        self.make, self.samples, self.n_states, self.folds = make, samples, n_states, folds
        self.class_weight, self.positions, self.advance = class_weight, positions, advance
        self.limit = _STAGES if isinstance(make(), Boosting) else 1
        self.done: dict[tuple[int, bool, int], _Fit] = {}

    def fold(self, number: int, position: bool, limit: int = _STAGES) -> _Fit:
        """The classifier that does not see a fold, stopped once its loss there no longer falls."""
        key = number, position, min(limit, self.limit)
        if key not in self.done:
            held = self.folds == number
            if not held.all() and held.any():
                self.done[key] = self._stopped(
                    self._rows(~held, position), self._rows(held, position), key[2]
                )
            else:
                self.done[key] = _Fit(self.make(), np.nan, self.limit)
            self.advance(f"pixels, fold {number + 1}")
        return self.done[key]

    def all(self, position: bool, stages: int) -> Potential:
        """The classifier that sees everything."""
        function, (x, y) = self.make(), self._rows(np.ones(len(self.samples), dtype=bool), position)
        for _ in range(stages):
            function.fit(x, y, weight=self._weights(y), n_outputs=self.n_states)
        self.advance("pixels, all images")
        return function

    def _stopped(self, own: tuple[np.ndarray, Ints], held: tuple[np.ndarray, Ints], limit: int) -> _Fit:
        function, best = self.make(), None
        for stage in range(1, limit + 1):
            function.fit(*own, weight=self._weights(own[1]), n_outputs=self.n_states)
            loss = function.loss(*held, weight=self._weights(held[1])) / len(held[1])
            if best is None or loss < best.loss:
                falling = best is None or loss < (1 - _ENOUGH) * best.loss
                best = _Fit(copy.deepcopy(function), loss, stage)
                if falling:
                    continue
            break
        assert best is not None
        return best

    def _rows(self, chosen: np.ndarray, position: bool) -> tuple[np.ndarray, Ints]:
        taken = [s for s, own in zip(self.samples, chosen, strict=True) if own]
        x = np.concatenate([s.x for s in taken])
        labels = np.concatenate([s.labels for s in taken])
        if len(labels) == 0:
            raise PotentiaError("no pixel with a known class was drawn from the images to train on.")
        cut = 0 if position else self.positions
        return (x[:, : x.shape[1] - cut] if cut else x), labels

    def _weights(self, labels: Ints) -> Floats | None:
        return None if self.class_weight is None else self.class_weight[labels]


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
        found = np.empty((len(places), self.n_features), dtype=np.float32)
        centre = places.T / STRIDE
        column = 0
        for scale, smooth in zip(_SCALES, self._smooth, strict=True):
            for step in _steps(self.axes, 2 * scale / STRIDE):
                for k in range(self.n_states):
                    found[:, column] = ndimage.map_coordinates(
                        smooth[..., k], centre + step[:, None], order=1, mode="nearest", prefilter=False
                    )
                    column += 1
        return found


def n_context(n_states: int, axes: int) -> int:
    """The number of features that context has."""
    return len(_SCALES) * (1 + 2 * axes) * n_states


def coarse_size(size: Sequence[int]) -> tuple[int, ...]:
    """The size of the coarse grid over an image."""
    return tuple(-(-side // STRIDE) for side in size)


def coarse_window(window: Window) -> tuple[Window, Window]:
    """The coarse grid's pixels in a window of an image: where they are in the window, and where in the grid."""
    outer = tuple(slice(-(-own.start // STRIDE), -(-own.stop // STRIDE)) for own in window)
    inner = tuple(
        slice(g.start * STRIDE - own.start, None, STRIDE) for g, own in zip(outer, window, strict=True)
    )
    return inner, outer


def places_in(window: Window) -> np.ndarray:
    """The pixels (n, axes) of a window, in raster order."""
    starts = np.array([own.start for own in window], dtype=np.int32)
    found = np.indices(window_size(window), dtype=np.int32).reshape(len(window), -1).T + starts
    return np.asarray(found)


def _steps(axes: int, far: float) -> list[np.ndarray]:
    found = [np.zeros(axes)]
    for axis in range(axes):
        for sign in (-far, far):
            step = np.zeros(axes)
            step[axis] = sign
            found.append(step)
    return found


#: Sides of the pieces in which features are computed and pixels scored, for two and for three axes.
TILE_SIDES = {2: 512, 3: 64}


@dataclass
class PixelRows:
    """What the features of a pixel are.

    Attributes:
        features: "filters", those of the filter bank and of the user, or "given", only the latter.
        position: whether the pixel's position, as a share of the image's sides, is among them.
        given: number of channels that the user gives with each image.
        channels: number of channels of the image.
        axes: 2 for images, 3 for volumes.
    """

    features: str
    position: bool
    given: int
    channels: int
    axes: int = 2

    def to_json(self) -> dict[str, Any]:
        """All attributes."""
        return asdict(self)

    @property
    def n_features(self) -> int:
        """The number of features."""
        filters = n_filters(self.channels, axes=self.axes) if self.features == "filters" else 0
        return filters + self.given + (self.axes if self.position else 0)

    def rows(
        self,
        values: np.ndarray,
        window: Window,
        given: np.ndarray | None,
        context: Context | None = None,
    ) -> np.ndarray:
        """Features (n, n_features) in float32 of a window's pixels, in raster order; then those of context.

        values: the whole image (*size, channels), normalised. given: (*size, n) of the user. Positions come last of
        the image's own features.
        """
        size = values.shape[:-1]
        n_features = self.n_features + (0 if context is None else context.n_features)
        found = np.empty((*window_size(window), n_features), dtype=np.float32)
        column = 0
        if self.features == "filters":
            around = widened(window, filter_reach(), size)
            bank = filter_bank(values[around], axes=self.axes)[inside(window, around)]
            column = bank.shape[-1]
            found[..., :column] = bank
        if self.given:
            if given is None or given.shape != (*size, self.given):
                shape = None if given is None else given.shape
                raise PotentiaError(
                    f"the image needs given features of shape {(*size, self.given)}, not {shape}."
                )
            found[..., column : column + self.given] = given[window]
            column += self.given
        if self.position:
            for axis, (own, side) in enumerate(zip(window, size, strict=True)):
                shares = (np.arange(own.start, own.stop, dtype=np.float32) + 0.5) / side
                shape_ = [-1 if a == axis else 1 for a in range(self.axes)]
                found[..., column + axis] = shares.reshape(shape_)
        flat = found.reshape(-1, n_features)
        if context is not None:
            flat[:, self.n_features :] = context.at(places_in(window))
        return flat

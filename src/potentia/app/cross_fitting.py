"""A classifier of single pixels whose predictions on its own training images are made by models that did not see them.

Pairs are trained on these out-of-fold predictions: on images that it was fitted to, a boosted classifier looks nearly
perfect, and pairs would learn that it needs no help.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..base.types import Floats, Ints, PotentiaError
from ..potentials import Boosting, Potential

#: Folds of images.
_FOLDS = 4
#: Fits of fifty trees each, and by how much of itself the held-out loss must fall for another one.
_STAGES, _ENOUGH = 5, 1e-3


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
        self.limit = _STAGES if make().grows else 1
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

"""A classifier of single pixels whose predictions on its own training images are made by models that did not see them.

Pairs are trained on these out-of-fold predictions: on images that it was fitted to, a boosted classifier looks nearly
perfect, and pairs would learn that it needs no help.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..base.progress import Bar
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
    progress: bool = False,
) -> CrossFitted:
    """Classifiers fitted to all samples but those of a fold each, and one fitted to all.

    Args:
        make: an unfitted classifier.
        samples: of images that must be distinguished; the last `positions` columns are positions.
        position: whether to use those; None uses them if the loss is lower in every fold.
        class_weight: weight of every class.
        progress: show a bar.
    """
    n_folds = min(_FOLDS, len(samples))
    folds = np.random.default_rng(seed).permutation(np.arange(len(samples)) % n_folds)
    tried: dict[bool, float] = {}
    with Bar(progress) as bar:
        bar.begin("pixels", 5 if position is not None or not positions else 13)
        fits = _Fits(make, samples, n_states, folds, class_weight, positions, bar)
        if not positions or n_folds == 1:
            position = bool(positions) and position is not False
        elif position is None:
            losses = {
                use: np.array([fits.fold(k, use, 1).loss for k in range(n_folds)]) for use in (False, True)
            }
            tried = {use: float(loss.mean()) for use, loss in losses.items()}
            # few images show chance positions, too: a mean alone would take them up
            position = bool(np.all(losses[True] < losses[False]))
        by_fold = [fits.fold(k, position) for k in range(n_folds)]
        stages = int(np.median([fit.stages for fit in by_fold]))
        final = fits.all(position, stages)
    loss = float(np.mean([fit.loss for fit in by_fold]))
    functions = [fit.function for fit in by_fold] if n_folds > 1 else [final]
    return CrossFitted(final, functions, folds, position, loss, tried, stages)


class _Fit(NamedTuple):
    function: Potential
    loss: float
    stages: int


@dataclass
class _Fits:
    """Fits to some of the samples, each made once."""

    make: Callable[[], Potential]
    samples: Sequence[Sample]
    n_states: int
    folds: Ints
    class_weight: Floats | None
    positions: int
    bar: Bar
    done: dict[tuple[int, bool, int], _Fit] = field(default_factory=dict)

    def fold(self, number: int, position: bool, limit: int = _STAGES) -> _Fit:
        """The classifier that does not see a fold, stopped once its loss there no longer falls."""
        most = _STAGES if isinstance(self.make(), Boosting) else 1
        key = number, position, min(limit, most)
        if key not in self.done:
            held = self.folds == number
            if not held.all() and held.any():
                self.done[key] = self._stopped(~held, held, position, key[2])
            else:
                self.done[key] = _Fit(self.make(), np.nan, most)
            self.bar.advance(text=f"pixels, fold {number + 1}")
        return self.done[key]

    def all(self, position: bool, stages: int) -> Potential:
        """The classifier that sees everything."""
        function, rows = self.make(), self._rows(np.ones(len(self.samples), dtype=bool), position)
        for _ in range(stages):
            function.fit(**rows, n_outputs=self.n_states)
        self.bar.advance(text="pixels, all images")
        return function

    def _stopped(self, own: np.ndarray, held: np.ndarray, position: bool, limit: int) -> _Fit:
        seen, unseen = self._rows(own, position), self._rows(held, position)
        function, best = self.make(), None
        for stage in range(1, limit + 1):
            function.fit(**seen, n_outputs=self.n_states)
            loss = function.loss(**unseen) / len(unseen["y"])
            if best is None or loss < best.loss:
                falling = best is None or loss < (1 - _ENOUGH) * best.loss
                best = _Fit(copy.deepcopy(function), loss, stage)
                if falling:
                    continue
            break
        assert best is not None
        return best

    def _rows(self, chosen: np.ndarray, position: bool) -> dict[str, Any]:
        """Features, labels and weights of samples, as functions are fitted to them."""
        taken = [sample for sample, use in zip(self.samples, chosen, strict=True) if use]
        x = np.concatenate([sample.x for sample in taken])
        y = np.concatenate([sample.labels for sample in taken])
        if len(y) == 0:
            raise PotentiaError("no pixel with a known class was drawn from the images to train on.")
        weight = None if self.class_weight is None else self.class_weight[y]
        return {"x": x if position else x[:, : x.shape[1] - self.positions], "y": y, "weight": weight}

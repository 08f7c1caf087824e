"""Choosing how pairs of pixels are trained, by cross-validation over images within a budget of time."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..base.types import ConvergenceWarning, Floats, PotentiaError
from ..features.example import Example
from ..models.crf import CRF
from .image_files import STACKS
from .training import (
    PIXEL_FUNCTIONS,
    TRAINABLE,
    Run,
    check_trainable,
    make_learner,
    make_potential,
    probability_node,
)

#: What is tried, the default first.
CANDIDATES: tuple[Mapping[str, Any], ...] = (
    {"learner": "ilr", "edge": "potts", "epsilon": 1.0},
    {"learner": "ilr", "edge": "linear", "epsilon": 1.0},
    {"learner": "ilr", "edge": "potts", "epsilon": 0.3},
    {"learner": "ilr", "edge": "potts", "epsilon": 3.0},
    {"learner": "marginal", "edge": "potts"},
    {"learner": "ilr", "edge": "mlp", "epsilon": 1.0},
)
#: Functions of pixels that are tried.
NODES = ("boosting", "linear")
_FOLDS = 3
#: Steps of a fit while searching; the chosen one is fitted in full.
_ITERATIONS = 30


def search_pairs(
    examples: Sequence[Example],
    run: Run,
    budget: float,
    iterations: int | None = None,
    class_weight: Floats | None = None,
) -> tuple[CRF, dict[str, Any]]:
    """The model with the lowest cross-validated error of those tried before the budget (seconds) was used up."""
    if budget <= 0:
        raise PotentiaError(f"--budget is a number of seconds above zero, not {budget:g}.")
    begun = time.perf_counter()
    errors: list[float] = []
    for candidate in CANDIDATES:
        if errors and (time.perf_counter() - begun) * (len(errors) + 1) / len(errors) > budget:
            break
        errors.append(_error(candidate, examples, run, class_weight))
        run.say(f"{_shown(candidate)}: cross-validated error {errors[-1]:.4f}")
    best = int(np.argmin(errors))
    left_out = len(CANDIDATES) - len(errors)
    more = f"; {left_out} others did not fit in the budget of {budget:g} s" if left_out else ""
    run.say(
        f"chosen: {_shown(CANDIDATES[best])}, with the lowest cross-validated error of {len(errors)} choices{more}."
    )
    model = _model(CANDIDATES[best], run, iterations, class_weight)
    return model, {"chosen": _shown(CANDIDATES[best]), "search_error": errors[best]}


def _error(
    candidate: Mapping[str, Any], examples: Sequence[Example], run: Run, class_weight: Floats | None
) -> float:
    """The share of wrong pixels of held-out examples."""
    folds = np.random.default_rng(run.seed).permutation(np.arange(len(examples)) % min(_FOLDS, len(examples)))
    wrong = known = 0.0
    for fold in range(int(folds.max()) + 1 if folds.max() else 0):
        own = [e for e, f in zip(examples, folds, strict=True) if f != fold]
        held = [e for e, f in zip(examples, folds, strict=True) if f == fold]
        model = _model(candidate, replace(run, validation=None), _ITERATIONS, class_weight)
        with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
            model.fit(own)
        size = sum(int(np.count_nonzero(e.labels >= 0)) for e in held if e.labels is not None)
        if size:
            wrong += (1.0 - model.score(held)) * size
            known += size
    return wrong / known if known else float("nan")


def _model(
    candidate: Mapping[str, Any], run: Run, iterations: int | None, class_weight: Floats | None
) -> CRF:
    options = dict(candidate)
    edge, learner = options.pop("edge"), options.pop("learner")
    potentials = {"node": probability_node(learner), "edge": make_potential(edge, run.seed)}
    return CRF(
        potentials, make_learner(learner, potentials, iterations, run, class_weight=class_weight, **options)
    )


def _shown(candidate: Mapping[str, Any]) -> str:
    return ", ".join(f"--{name} {value}" for name, value in candidate.items())


@dataclass(frozen=True)
class ImageOptions:
    """What `images.train` can be told beside where the images and masks are.

    Attributes:
        palette: a file of lines `value,name[,#rrggbb]`; None takes every value in the masks as a class.
        void: values that mean unknown, with commas between. rare: what to do with values in a few pixels only, see
            `find_classes`.
        node, edge: functions of pixels and of pairs; node None is boosting, with the papers' features where the
            learner can train it, else linear. edge None is potts, and linear with the papers' features, of superpixels
            and where the learner cannot train potts. learner: of `TRAINABLE`.
        iterations, epsilon, inference, class_weight: see `make_learner`.
        feature_set: "filters" (default), "papers", or "given": only what `features` has.
        features, probabilities: folders with an array (h, w, n) for each image. Probabilities replace the classifier.
        position: "yes", "no" or None to find out by cross-validation whether the classifier sees positions.
        normalise: see `Intensity`; stacks: whether pages of TIFF files are "images" or "volumes".
        reduce, superpixels: see `ImagePipeline`.
        pixels: number of pixels that pairs are trained on, at most.
        search: choose node, edge, learner and epsilon by cross-validation over images; budget: seconds for pairs.
    """

    palette: Path | None = None
    void: str | None = None
    rare: str | None = None
    node: str | None = None
    edge: str | None = None
    learner: str = "ilr"
    iterations: int | None = None
    epsilon: float | None = None
    inference: str | None = None
    class_weight: str | None = None
    feature_set: str | None = None
    features: Path | None = None
    probabilities: Path | None = None
    position: str | None = None
    normalise: str | None = None
    stacks: str = "images"
    reduce: float | None = None
    superpixels: int | None = None
    pixels: int | None = None
    search: bool = False
    budget: float = 600.0

    @property
    def single_stage(self) -> bool:
        """Whether the CRF is fitted to features at once, without a classifier of pixels before it."""
        return self.superpixels is not None or self.feature_set == "papers"

    @property
    def axes(self) -> int:
        """2 for images, 3 for volumes."""
        return 3 if self.stacks == "volumes" else 2

    @property
    def functions(self) -> tuple[str, str]:
        """The functions of pixels and of pairs."""
        node, edge = self.node, self.edge
        if node is None:
            node = "boosting" if self.learner == "ilr" or not self.single_stage else "linear"
        if edge is None:
            edge = "linear" if self.single_stage or "potts" not in TRAINABLE[self.learner] else "potts"
        return node, edge

    @property
    def nodes(self) -> Sequence[str]:
        """The functions of pixels to try."""
        return NODES if self.search else (self.functions[0],)

    def check(self) -> None:
        """Refuse options that exclude each other."""
        self._check_inputs()
        if self.search and (self.single_stage or self.node is not None):
            raise PotentiaError(
                "--search chooses functions itself: leave out --node, --superpixels and the papers' features."
            )
        node, edge = self.functions
        if node not in PIXEL_FUNCTIONS:
            raise PotentiaError(f"node must be one of {', '.join(PIXEL_FUNCTIONS)}, not {node!r}.")
        check_trainable(self.learner, **({"node": node} if self.single_stage else {}), edge=edge)

    def _check_inputs(self) -> None:
        if self.stacks not in STACKS:
            raise PotentiaError(f"stacks must be one of {', '.join(STACKS)}, not {self.stacks!r}.")
        if self.superpixels is not None and self.reduce is not None:
            raise PotentiaError("superpixels are made of the whole image: give --superpixels or --reduce.")
        if self.axes == 3 and (self.single_stage or self.reduce is not None):
            raise PotentiaError(
                "--stacks volumes goes with neither --superpixels, --reduce nor the papers' features."
            )
        alone = "--superpixels" if self.superpixels is not None else "--feature-set papers"
        for option in ("features", "probabilities"):
            if self.single_stage and getattr(self, option) is not None:
                raise PotentiaError(f"{alone} cannot be combined with --{option}.")
        if self.probabilities is not None and self.feature_set is not None:
            raise PotentiaError(
                "--probabilities take the classifier's place: to use them beside filters, give --features."
            )
        if self.feature_set == "given" and self.features is None:
            raise PotentiaError("--feature-set given takes the features in --features, which is missing.")

"""Images with masks: from folders of files to a pipeline that labels the pixels of new images."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..base.saving import digest_of
from ..base.types import ConvergenceWarning, Floats, PotentiaError, check_positive
from ..features.colour import reduce_labels
from ..features.example import Example
from ..models.crf import CRF
from ..potentials import Linear, Potential, Temperature
from .image_files import (
    STACKS,
    ImageFile,
    InputReader,
    check_same_size,
    checked_axes,
    input_reader,
    paired_files,
    read_mask,
)
from .image_pipeline import BOUNDARY, ImagePipeline
from .image_stages import TrainingImages, two_stages
from .pixel_values import Classes, find_classes, learn_intensity
from .training import PIXEL_FUNCTIONS, TRAINABLE, Run, check_pairs, fit, fit_marks, make_learner, make_potential

__all__ = ["ImagePipeline", "train"]

#: The papers' sets of features of pixels and of pairs: a linear function needs expanded ones.
_PAPERS = {"linear": "mbl", "constant": "ilr", "boosting": "ilr", "mlp": "ilr", "potts": "mbl"}
#: Options that only some learners have.
_OF_LEARNERS = {"epsilon": ("ilr",), "inference": ("marginal",), "class_weight": ("ilr", "marginal")}


@dataclass(frozen=True)
class ImageOptions:
    """What `train` can be told beside where the images and masks are.

    Attributes:
        palette: a file of lines `value,name[,#rrggbb]`; None takes every value in the masks as a class.
        void: values that mean unknown, with commas between. rare: what to do with values in a few pixels only, see
            `find_classes`.
        node, edge: functions of pixels and of pairs; node None is boosting, with the papers' features where the
            learner can train it, else linear. edge None is potts, and linear with the papers' features, of superpixels
            and where the learner cannot train potts. learner: of `TRAINABLE`.
        iterations, epsilon, inference: see `make_learner`.
        class_weight: "balanced" (each class weighs the same in all), or numbers with commas between.
        feature_set: "filters" (default), "papers", or "given": only what `features` has.
        features, probabilities: folders with an array (h, w, n) for each image. Probabilities replace the classifier.
        position: "yes", "no" or None to find out by cross-validation whether the classifier sees positions.
        normalise: see `Intensity`; stacks: whether pages of TIFF files are "images" or "volumes"; axes: of TIFF files,
            see `checked_axes`.
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
    axes: str | None = None
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
    def n_axes(self) -> int:
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

    def check(self) -> None:
        """Refuse options that exclude each other."""
        node, edge = self.functions
        able, alone = (TRAINABLE[self.learner], "superpixels" if self.superpixels is not None else "feature-set papers")
        refusals = [
            (self.stacks not in STACKS, f"stacks must be one of {', '.join(STACKS)}, not {self.stacks!r}."),
            (
                self.superpixels is not None and self.reduce is not None,
                "superpixels are made of the whole image: give --superpixels or --reduce.",
            ),
            (
                self.n_axes == 3 and (self.single_stage or self.reduce is not None),
                "--stacks volumes goes with neither --superpixels, --reduce nor the papers' features.",
            ),
            *(
                (self.single_stage and folder is not None, f"--{alone} cannot be combined with --{option}.")
                for option, folder in (("features", self.features), ("probabilities", self.probabilities))
            ),
            (
                self.probabilities is not None and self.feature_set is not None,
                "--probabilities take the classifier's place: to use them beside filters, give --features.",
            ),
            (
                self.feature_set == "given" and self.features is None,
                "--feature-set given takes the features in --features, which is missing.",
            ),
            (
                self.search and (self.single_stage or self.node is not None),
                "--search chooses functions itself: leave out --node, --superpixels and the papers' features.",
            ),
            (
                self.search and self.budget <= 0,
                f"--budget is a number of seconds above zero, not {self.budget:g}.",
            ),
            (node not in PIXEL_FUNCTIONS, f"node must be one of {', '.join(PIXEL_FUNCTIONS)}, not {node!r}."),
            *(
                (name not in able, f"--learner {self.learner} cannot train --{kind} {name}: take {', '.join(able)}.")
                for kind, name in {**({"node": node} if self.single_stage else {}), "edge": edge}.items()
            ),
            *(
                (
                    getattr(self, option) is not None and self.learner not in learners,
                    f"--{option.replace('_', '-')} cannot be combined with --learner {self.learner}.",
                )
                for option, learners in _OF_LEARNERS.items()
            ),
        ]  # fmt: skip
        for refused, message in refusals:
            if refused:
                raise PotentiaError(message)
        if self.epsilon is not None:
            check_positive("epsilon", self.epsilon)


def train(images: Path, masks: Path, *, run: Run | None = None, **options: Any) -> tuple[ImagePipeline, dict[str, Any]]:
    """A pipeline fitted to the images of a folder and the masks of their names, and facts of the fit.

    The options are those of `ImageOptions`.
    """
    chosen = ImageOptions(**options)
    chosen.check()
    files = paired_files(images, masks, chosen.stacks, checked_axes(chosen.axes))
    read = input_reader([image for image, _ in files], chosen.features, chosen.probabilities, chosen.n_axes)
    classes, labels = _read_masks([mask for _, mask in files], read, chosen)
    return fit_images(read, labels, classes, chosen, run or Run())


def fit_images(
    read: InputReader, labels: list[np.ndarray], classes: Classes, chosen: ImageOptions, run: Run
) -> tuple[ImagePipeline, dict[str, Any]]:
    """A pipeline fitted to the images that `read` reads, with labels (*size) of each, -1 where unknown.

    A classifier of single pixels is fitted to pixels drawn from all images, and a CRF to its out-of-fold predictions
    in windows of the images. With `feature_set` "papers", and of superpixels, the CRF is fitted to features at once.
    """
    weights = _class_weights(chosen.class_weight, labels, classes)
    pipeline = _unfitted(chosen, read, classes, weights, run)
    digest = _digest(pipeline, read, labels, chosen)
    facts: dict[str, Any] = {"n_images": len(read.files), "classes": classes.names}
    own, held = (part.tolist() for part in run.split(len(read.files)))
    if chosen.single_stage:
        parts = [
            [pipeline.paper_example(read(k)[0], labels[k].astype(np.int64), read.files[k].name)[0] for k in part]
            for part in (own, held)
        ]  # fmt: skip
        return pipeline, facts | fit(pipeline.model, parts[0], parts[1], digest, run)
    small = [_reduced(y, pipeline.small_size(y.shape), len(classes)) for y in labels]
    check_pairs(any(y.size > 1 for y in small))
    if not chosen.search:
        run.check_resumable(fit_marks(pipeline.model, digest))
    training = TrainingImages(pipeline, read, small, weights, own, held, run)
    nodes = NODES if chosen.search else (chosen.functions[0],)
    examples, pixel_facts = two_stages(training, nodes, chosen.position, chosen.pixels)
    facts |= pixel_facts
    if chosen.search:
        best, search_facts = search_pairs(examples, chosen, run, weights)
        pipeline.model = _crf(best, run, weights)
        facts |= search_facts
    fitted = fit(pipeline.model, examples, training.held_examples(), digest, run)
    fitted["cross_fitted_accuracy"] = fitted.pop("training_accuracy")
    return pipeline, facts | fitted


def _read_masks(
    masks: Sequence[ImageFile], read: InputReader, chosen: ImageOptions
) -> tuple[Classes, list[np.ndarray]]:
    """The classes, and the labels (*size) of every image; looks at every image once."""
    raw = [read_mask(mask) for mask in masks]
    for k, (values, mask) in enumerate(zip(raw, masks, strict=True)):
        if values.codes.ndim != chosen.n_axes:
            raise PotentiaError(f"{mask.path}: a mask has {chosen.n_axes} axes, not shape {values.codes.shape}.")
        check_same_size(read(k)[0], values.codes, mask.path)
    classes = find_classes(raw, chosen.palette, chosen.void, chosen.rare)
    labels = [classes.labels(values, mask.path).astype(np.int16) for values, mask in zip(raw, masks, strict=True)]
    for y, mask in zip(labels, masks, strict=True):
        if not np.any(y >= 0):
            raise PotentiaError(f"{mask.path}: every pixel is void, so there is nothing to learn.")
    return classes, labels


def _reduced(labels: np.ndarray, size: tuple[int, ...], n_states: int) -> np.ndarray:
    """A label map at this size; itself if it has that size."""
    return labels if labels.shape == size else reduce_labels(labels, size, n_states).astype(labels.dtype)


def _class_weights(text: str | None, labels: Sequence[np.ndarray], classes: Classes) -> Floats | None:
    """The weight of every class; None for 1."""
    if text is None:
        return None
    n = len(classes)
    if text == "balanced":
        counts = sum(np.bincount(y[y >= 0].ravel(), minlength=n) for y in labels)
        return np.asarray(np.sum(counts) / (n * np.maximum(counts, 1)), dtype=np.float64)
    try:
        weights = np.array([float(part) for part in text.split(",")])
    except ValueError:
        weights = np.zeros(0)
    if weights.shape != (n,) or not np.all((weights > 0) & np.isfinite(weights)):
        raise PotentiaError(
            f"--class-weight is 'balanced' or {n} numbers above zero, of the classes {', '.join(classes.names)}."
        )
    return weights


def _unfitted(
    chosen: ImageOptions, read: InputReader, classes: Classes, weights: Floats | None, run: Run
) -> ImagePipeline:
    """The pipeline before its model and its classifier of pixels are fitted."""
    node, edge = chosen.functions
    features = chosen.feature_set or ("filters" if chosen.probabilities is None else "probabilities")
    images = (read(k)[0] for k in range(len(read.files)))
    return ImagePipeline(
        _crf(chosen, run, weights),
        classes,
        _PAPERS[node] if chosen.single_stage else features,
        _PAPERS[edge] if chosen.single_stage else BOUNDARY,
        1.0 if chosen.reduce is None else chosen.reduce,
        chosen.superpixels,
        learn_intensity(images, chosen.n_axes, chosen.normalise, [str(file.path) for file in read.files]),
        axes=chosen.n_axes,
        file_axes=chosen.axes or "",
    )


def _crf(chosen: ImageOptions, run: Run, weights: Floats | None) -> CRF:
    """The unfitted model; of log-probabilities of pixels it has one weight where the learner can train that."""
    node, edge = chosen.functions
    function: Potential = Linear() if chosen.learner == "margin" else Temperature()
    if chosen.single_stage:
        function = make_potential(node, run.seed)
    potentials = {"node": function, "edge": make_potential(edge, run.seed)}
    options = chosen.iterations, weights, chosen.epsilon, chosen.inference
    return CRF(potentials, make_learner(chosen.learner, potentials, run, *options))


def _digest(pipeline: ImagePipeline, read: InputReader, labels: Sequence[np.ndarray], chosen: ImageOptions) -> str:
    """A digest of the data and of the options that the model does not tell."""
    options = [chosen.functions[0], chosen.position, chosen.pixels, chosen.class_weight]
    parts: list[str | bytes] = [repr(pipeline.settings()), repr(options)]
    for k, file in enumerate(read.files):
        image, given = read(k)
        beside = [array.tobytes() for array in given if array is not None]
        parts += [file.name, image.tobytes(), labels[k].tobytes(), *beside]
    return digest_of(parts)


#: What `search_pairs` tries, the default first.
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
#: Folds of examples, and steps of a fit while searching; the chosen model is fitted in full.
_FOLDS, _ITERATIONS = 3, 30


def search_pairs(
    examples: Sequence[Example], chosen: ImageOptions, run: Run, weights: Floats | None
) -> tuple[ImageOptions, dict[str, Any]]:
    """The options with the lowest cross-validated error of those tried before the budget (seconds) was used up."""
    begun = time.perf_counter()
    texts = [", ".join(f"--{name} {value}" for name, value in each.items()) for each in CANDIDATES]
    tried: list[ImageOptions] = []
    errors: list[float] = []
    for candidate, text in zip(CANDIDATES, texts, strict=True):
        if errors and (time.perf_counter() - begun) * (len(errors) + 1) / len(errors) > chosen.budget:
            break
        tried.append(replace(chosen, **{"epsilon": None, "inference": None, **candidate}))
        errors.append(_error(tried[-1], examples, run, weights))
        run.say(f"{text}: cross-validated error {errors[-1]:.4f}")
    best = int(np.argmin(errors))
    left_out = len(CANDIDATES) - len(errors)
    more = f"; {left_out} others did not fit in the budget of {chosen.budget:g} s" if left_out else ""
    run.say(f"chosen: {texts[best]}, with the lowest cross-validated error of {len(errors)} choices{more}.")
    return tried[best], {"chosen": texts[best], "search_error": errors[best]}


def _error(chosen: ImageOptions, examples: Sequence[Example], run: Run, weights: Floats | None) -> float:
    """The share of wrong pixels of held-out examples."""
    folds = np.random.default_rng(run.seed).permutation(np.arange(len(examples)) % min(_FOLDS, len(examples)))
    wrong = known = 0.0
    for fold in range(int(folds.max()) + 1 if folds.max() else 0):
        own = [e for e, f in zip(examples, folds, strict=True) if f != fold]
        held = [e for e, f in zip(examples, folds, strict=True) if f == fold]
        model = _crf(replace(chosen, iterations=_ITERATIONS), replace(run, validation=None), weights)
        with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
            model.fit(own)
        size = sum(int(np.count_nonzero(e.labels >= 0)) for e in held if e.labels is not None)
        if size:
            wrong += (1.0 - model.score(held)) * size
            known += size
    return wrong / known if known else float("nan")

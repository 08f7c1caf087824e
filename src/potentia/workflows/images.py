"""Images with masks: from folders of files to a pipeline that labels the pixels of new images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._digest import digest_of
from .._types import Floats, PotentiaError
from ..estimators import CRF
from ..features.resize import reduce_labels
from .classes import Classes, find_classes
from .image_files import STACKS, ImageFile, check_same_size, paired_files, read_mask
from .image_inputs import Given, input_reader
from .image_pipeline import BOUNDARY, ImagePipeline
from .image_search import NODES, search_pairs
from .image_stages import StageSettings, TrainingImages, held_examples, two_stages
from .intensity import learn_intensity
from .training import (
    PIXEL_FUNCTIONS,
    TRAINABLE,
    Run,
    check_pairs,
    check_trainable,
    fit,
    fit_marks,
    make_learner,
    make_potential,
    probability_node,
)

__all__ = ["ImagePipeline", "train"]

#: The papers' sets of features of pixels and of pairs: a linear function needs expanded ones.
_PAPERS = {"linear": "mbl", "constant": "ilr", "boosting": "ilr", "mlp": "ilr", "potts": "mbl"}
#: Seconds in which a search tries choices for pairs.
_BUDGET = 600.0


def train(
    images: Path,
    masks: Path,
    *,
    palette: Path | None = None,
    void: str | None = None,
    rare: str | None = None,
    node: str | None = None,
    edge: str | None = None,
    learner: str = "ilr",
    iterations: int | None = None,
    epsilon: float | None = None,
    inference: str | None = None,
    class_weight: str | None = None,
    feature_set: str | None = None,
    features: Path | None = None,
    probabilities: Path | None = None,
    position: str | None = None,
    normalise: str | None = None,
    stacks: str = "images",
    reduce: float | None = None,
    superpixels: int | None = None,
    pixels: int | None = None,
    search: bool = False,
    budget: float | None = None,
    run: Run | None = None,
) -> tuple[ImagePipeline, dict[str, Any]]:
    """A pipeline fitted to the images of a folder and the masks of their names, and facts of the fit.

    A classifier of single pixels is fitted to pixels drawn from all images, and a CRF to its out-of-fold predictions
    in windows of the images. With `feature_set` "papers", and of superpixels, the CRF is fitted to features at once.

    Args:
        palette: a file of lines `value,name[,#rrggbb]`; None takes every value in the masks as a class.
        void: values that mean unknown, with commas between. rare: what to do with values in a few pixels only, see
            `find_classes`.
        node, edge: functions of pixels and of pairs; node None is boosting, with the papers' features where the
            learner can train it, else linear. edge None is potts, and linear with the papers' features, of superpixels
            and where the learner cannot train potts. learner: of `TRAINABLE`.
        epsilon, inference, class_weight: see `make_learner`.
        feature_set: "filters" (default), "papers", or "given": only what `features` has.
        features, probabilities: folders with an array (h, w, n) for each image. Probabilities replace the classifier.
        position: "yes", "no" or None to find out by cross-validation whether the classifier sees positions.
        normalise: see `Intensity`; stacks: whether pages of TIFF files are "images" or "volumes".
        pixels: number of pixels that pairs are trained on, at most.
        search: choose node, edge, learner and epsilon by cross-validation over images; budget: seconds for pairs.
    """
    run = run or Run()
    single_stage = superpixels is not None or feature_set == "papers"
    _check_choices(superpixels, reduce, stacks, feature_set, features, probabilities)
    if search and (single_stage or node is not None):
        raise PotentiaError(
            "--search chooses functions itself: leave out --node, --superpixels and the papers' features."
        )
    if node is None:
        node = "boosting" if learner == "ilr" or not single_stage else "linear"
    if node not in PIXEL_FUNCTIONS:
        raise PotentiaError(f"node must be one of {', '.join(PIXEL_FUNCTIONS)}, not {node!r}.")
    if edge is None:
        edge = "linear" if single_stage or "potts" not in TRAINABLE[learner] else "potts"
    check_trainable(learner, **({"node": node, "edge": edge} if single_stage else {"edge": edge}))
    source = _read_source(
        paired_files(images, masks, stacks), stacks, features, probabilities, palette, void, rare
    )
    weights = _class_weights(class_weight, source.labels, source.classes)
    crf_node = make_potential(node, run.seed) if single_stage else probability_node(learner)
    potentials = {"node": crf_node, "edge": make_potential(edge, run.seed)}
    pipeline = ImagePipeline(
        CRF(potentials, make_learner(learner, potentials, iterations, run, epsilon, inference, weights)),
        source.classes,
        _PAPERS[node] if single_stage else (feature_set or ("probabilities" if probabilities else "filters")),
        _PAPERS[edge] if single_stage else BOUNDARY,
        1.0 if reduce is None else reduce,
        superpixels,
        learn_intensity((source.read(k)[0] for k in range(len(source.names))), source.axes, normalise),
        axes=source.axes,
    )
    digest = _digest(pipeline, source, [node, position, pixels, class_weight])
    facts: dict[str, Any] = {"n_images": len(source.names), "classes": source.classes.names}
    if single_stage:
        return pipeline, facts | _fit_at_once(pipeline, source, digest, run)
    settings = StageSettings(NODES if search else (node,), position, pixels, features is not None, weights)
    seconds = (_BUDGET if budget is None else budget) if search else None
    return pipeline, facts | _fit_in_stages(pipeline, source, settings, digest, run, seconds, iterations)


class _Source(NamedTuple):
    """Images with masks: their names, classes and labels, a reader by number, and the number of axes."""

    names: list[str]
    read: Callable[[int], tuple[np.ndarray, Given]]
    classes: Classes
    labels: list[np.ndarray]
    axes: int


def _fit_at_once(pipeline: ImagePipeline, source: _Source, digest: str, run: Run) -> dict[str, Any]:
    """Fit a CRF to whole images with the papers' features, or to superpixels."""
    made = [
        pipeline.paper_example(source.read(k)[0], source.labels[k].astype(np.int64), name)[0]
        for k, name in enumerate(source.names)
    ]
    own, held = ([made[k] for k in part] for part in run.split(len(made)))
    return fit(pipeline.model, own, held, digest, run)


def _fit_in_stages(
    pipeline: ImagePipeline,
    source: _Source,
    settings: StageSettings,
    digest: str,
    run: Run,
    budget: float | None,
    iterations: int | None,
) -> dict[str, Any]:
    """Fit the pixel classifier, where there is one, and then the CRF, chosen within a budget of seconds if given."""
    small = [_reduced(own, pipeline.small_size(own.shape), len(source.classes)) for own in source.labels]
    check_pairs(any(own.size > 1 for own in small))
    if budget is None:
        run.check_resumable(fit_marks(pipeline.model, digest))
    training = TrainingImages(pipeline, source.read, small, source.names)
    own, held = (part.tolist() for part in run.split(len(small)))
    examples, facts = two_stages(training, own, held, settings, run)
    if budget is not None:
        pipeline.model, chosen = search_pairs(examples, run, budget, iterations, settings.weights)
        facts |= chosen
    fitted = fit(pipeline.model, examples, held_examples(training, held), digest, run)
    fitted["cross_fitted_accuracy"] = fitted.pop("training_accuracy")
    return facts | fitted


def _read_source(
    files: list[tuple[ImageFile, ImageFile]],
    stacks: str,
    features: Path | None,
    probabilities: Path | None,
    palette: Path | None,
    void: str | None,
    rare: str | None,
) -> _Source:
    """Read all masks, and look at every image once."""
    axes = 3 if stacks == "volumes" else 2
    sources = [image for image, _ in files]
    read = input_reader(sources, features, probabilities, axes)
    classes, labels = _read_labels(files, palette, void, rare, axes, read)
    return _Source([image.name for image in sources], read, classes, labels, axes)


def _read_labels(
    files: Sequence[tuple[ImageFile, ImageFile]],
    palette: Path | None,
    void: str | None,
    rare: str | None,
    axes: int,
    read: Callable[[int], tuple[np.ndarray, Given]],
) -> tuple[Classes, list[np.ndarray]]:
    """The classes, and every image's labels, checked against it."""
    found = [read_mask(mask) for _, mask in files]
    for k, (own, (_, mask)) in enumerate(zip(found, files, strict=True)):
        if own.codes.ndim != axes:
            raise PotentiaError(f"{mask.path}: a mask has {axes} axes, not shape {own.codes.shape}.")
        check_same_size(read(k)[0], own.codes, mask.path)
    classes = find_classes(found, palette, void, rare)
    labels: list[np.ndarray] = []
    for own, (_, mask) in zip(found, files, strict=True):
        labels.append(classes.labels(own, mask.path).astype(np.int16))
        if not np.any(labels[-1] >= 0):
            raise PotentiaError(f"{mask.path}: every pixel is void, so there is nothing to learn.")
    return classes, labels


def _reduced(labels: np.ndarray, size: tuple[int, ...], n_states: int) -> np.ndarray:
    return labels if labels.shape == size else reduce_labels(labels, size, n_states).astype(labels.dtype)


def _class_weights(given: str | None, labels: Sequence[np.ndarray], classes: Classes) -> Floats | None:
    """Weights of classes: "balanced" (each class weighs the same in all), or numbers with commas between."""
    if given is None:
        return None
    n = len(classes)
    if given == "balanced":
        counts = sum(np.bincount(own[own >= 0].ravel(), minlength=n) for own in labels)
        return np.asarray(np.sum(counts) / (n * np.maximum(counts, 1)), dtype=np.float64)
    try:
        weights = np.array([float(part) for part in given.split(",")])
    except ValueError:
        weights = np.zeros(0)
    if weights.shape != (n,) or not np.all((weights > 0) & np.isfinite(weights)):
        raise PotentiaError(
            f"--class-weight is 'balanced' or {n} numbers above zero, of the classes {', '.join(classes.names)}."
        )
    return weights


def _check_choices(
    superpixels: int | None,
    reduce: float | None,
    stacks: str,
    feature_set: str | None,
    features: Path | None,
    probabilities: Path | None,
) -> None:
    """Refuse options that exclude each other."""
    if stacks not in STACKS:
        raise PotentiaError(f"stacks must be one of {', '.join(STACKS)}, not {stacks!r}.")
    if superpixels is not None and reduce is not None:
        raise PotentiaError("superpixels are made of the whole image: give --superpixels or --reduce.")
    if stacks == "volumes" and (superpixels is not None or reduce is not None or feature_set == "papers"):
        raise PotentiaError(
            "--stacks volumes goes with neither --superpixels, --reduce nor the papers' features."
        )
    alone = "--superpixels" if superpixels is not None else "--feature-set papers"
    if superpixels is not None or feature_set == "papers":
        for option, value in (("features", features), ("probabilities", probabilities)):
            if value is not None:
                raise PotentiaError(f"{alone} cannot be combined with --{option}.")
    if probabilities is not None and feature_set is not None:
        raise PotentiaError(
            "--probabilities take the classifier's place: to use them beside filters, give --features."
        )
    if feature_set == "given" and features is None:
        raise PotentiaError("--feature-set given takes the features in --features, which is missing.")


def _digest(pipeline: ImagePipeline, source: _Source, options: Sequence[Any]) -> str:
    parts: list[str | bytes] = [repr(pipeline.settings()), repr(list(options))]
    for k, name in enumerate(source.names):
        image, given = source.read(k)
        beside = [own.tobytes() for own in given if own is not None]
        parts += [name, image.tobytes(), source.labels[k].tobytes(), *beside]
    return digest_of(parts)

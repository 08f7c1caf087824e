"""Images with masks: from folders of files to a pipeline that labels the pixels of new images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..base.saving import digest_of
from ..base.types import Floats, PotentiaError
from ..features.colour import reduce_labels
from ..models.crf import CRF
from .classes import Classes, find_classes
from .image_files import ImageFile, check_same_size, paired_files, read_mask
from .image_inputs import InputReader, input_reader
from .image_options import ImageOptions, search_pairs
from .image_pipeline import BOUNDARY, ImagePipeline
from .image_stages import TrainingImages, held_examples, two_stages
from .intensity import learn_intensity
from .training import (
    Run,
    check_pairs,
    fit,
    fit_marks,
    make_learner,
    make_potential,
    probability_node,
)

__all__ = ["ImagePipeline", "train"]

#: The papers' sets of features of pixels and of pairs: a linear function needs expanded ones.
_PAPERS = {"linear": "mbl", "constant": "ilr", "boosting": "ilr", "mlp": "ilr", "potts": "mbl"}


def train(
    images: Path, masks: Path, *, run: Run | None = None, **options: Any
) -> tuple[ImagePipeline, dict[str, Any]]:
    """A pipeline fitted to the images of a folder and the masks of their names, and facts of the fit.

    A classifier of single pixels is fitted to pixels drawn from all images, and a CRF to its out-of-fold predictions
    in windows of the images. With `feature_set` "papers", and of superpixels, the CRF is fitted to features at once.
    The options are those of `ImageOptions`.
    """
    run, chosen = run or Run(), ImageOptions(**options)
    chosen.check()
    source = _read_source(paired_files(images, masks, chosen.stacks), chosen)
    weights = _class_weights(chosen.class_weight, source.labels, source.classes)
    pipeline = _unfitted(chosen, source, weights, run)
    marks = [chosen.functions[0], chosen.position, chosen.pixels, chosen.class_weight]
    digest = _digest(pipeline, source, marks)
    facts: dict[str, Any] = {"n_images": len(source.names), "classes": source.classes.names}
    if chosen.single_stage:
        return pipeline, facts | _fit_at_once(pipeline, source, digest, run)
    return pipeline, facts | _fit_in_stages(pipeline, source, chosen, weights, digest, run)


class _Source(NamedTuple):
    """Images with masks: their names, classes and labels, and a reader by number."""

    names: list[str]
    read: InputReader
    classes: Classes
    labels: list[np.ndarray]


def _unfitted(chosen: ImageOptions, source: _Source, weights: Floats | None, run: Run) -> ImagePipeline:
    """The pipeline before its model and its classifier of pixels are fitted."""
    (node, edge), learner = chosen.functions, chosen.learner
    given = "filters" if chosen.probabilities is None else "probabilities"
    potentials = {
        "node": make_potential(node, run.seed) if chosen.single_stage else probability_node(learner),
        "edge": make_potential(edge, run.seed),
    }
    fitter = make_learner(
        learner, potentials, chosen.iterations, run, chosen.epsilon, chosen.inference, weights
    )
    return ImagePipeline(
        CRF(potentials, fitter),
        source.classes,
        _PAPERS[node] if chosen.single_stage else chosen.feature_set or given,
        _PAPERS[edge] if chosen.single_stage else BOUNDARY,
        1.0 if chosen.reduce is None else chosen.reduce,
        chosen.superpixels,
        learn_intensity(
            (source.read(k)[0] for k in range(len(source.names))),
            chosen.axes,
            chosen.normalise,
            [str(file.path) for file in source.read.files],
        ),
        axes=chosen.axes,
    )


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
    chosen: ImageOptions,
    weights: Floats | None,
    digest: str,
    run: Run,
) -> dict[str, Any]:
    """Fit the pixel classifier, where there is one, and then the CRF, chosen within a budget of seconds if given."""
    small = [_reduced(own, pipeline.small_size(own.shape), len(source.classes)) for own in source.labels]
    check_pairs(any(own.size > 1 for own in small))
    if not chosen.search:
        run.check_resumable(fit_marks(pipeline.model, digest))
    training = TrainingImages(pipeline, source.read, small, source.names, weights)
    own, held = (part.tolist() for part in run.split(len(small)))
    examples, facts = two_stages(training, own, held, chosen, run)
    if chosen.search:
        pipeline.model, found = search_pairs(examples, run, chosen.budget, chosen.iterations, weights)
        facts |= found
    fitted = fit(pipeline.model, examples, held_examples(training, held), digest, run)
    fitted["cross_fitted_accuracy"] = fitted.pop("training_accuracy")
    return facts | fitted


def _read_source(files: Sequence[tuple[ImageFile, ImageFile]], chosen: ImageOptions) -> _Source:
    """Read all masks, and look at every image once."""
    sources = [image for image, _ in files]
    read = input_reader(sources, chosen.features, chosen.probabilities, chosen.axes)
    found = [read_mask(mask) for _, mask in files]
    for k, (own, (_, mask)) in enumerate(zip(found, files, strict=True)):
        if own.codes.ndim != chosen.axes:
            raise PotentiaError(f"{mask.path}: a mask has {chosen.axes} axes, not shape {own.codes.shape}.")
        check_same_size(read(k)[0], own.codes, mask.path)
    classes = find_classes(found, chosen.palette, chosen.void, chosen.rare)
    labels: list[np.ndarray] = []
    for own, (_, mask) in zip(found, files, strict=True):
        labels.append(classes.labels(own, mask.path).astype(np.int16))
        if not np.any(labels[-1] >= 0):
            raise PotentiaError(f"{mask.path}: every pixel is void, so there is nothing to learn.")
    return _Source([image.name for image in sources], read, classes, labels)


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


def _digest(pipeline: ImagePipeline, source: _Source, options: Sequence[Any]) -> str:
    parts: list[str | bytes] = [repr(pipeline.settings()), repr(list(options))]
    for k, name in enumerate(source.names):
        image, given = source.read(k)
        beside = [own.tobytes() for own in given if own is not None]
        parts += [name, image.tobytes(), source.labels[k].tobytes(), *beside]
    return digest_of(parts)

"""Predictions of an image pipeline, written as files."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..base.files import naming
from ..base.progress import Bar
from ..base.types import Floats, Ints, PotentiaError
from ..learn.backends.connection import iterate_anywhere
from ..models.segmentation import Calibration, boundary_counts, confusion_matrix, segmentation_scores
from .classes import Classes, parse_void
from .image_files import (
    ImageFile,
    check_same_size,
    image_files,
    paired_files,
    read_mask,
    write_image,
    write_mask,
)
from .image_inputs import InputReader, absolute
from .intensity import as_shown
from .pipeline import Staging

if TYPE_CHECKING:
    from .image_pipeline import ImagePipeline


def predict_images(
    pipeline: ImagePipeline,
    source: Path,
    out: Path,
    *,
    marginals: str | None = None,
    features: Path | None = None,
    probabilities: Path | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Label maps, overlays and, if requested, marginals ("npz" or "png") of a folder's images."""
    if marginals == "png" and pipeline.axes == 3:
        raise PotentiaError("marginals of volumes are written as npz: give --marginals npz.")
    files = image_files(source, "volumes" if pipeline.axes == 3 else "images")
    read = pipeline.inputs(files, features, probabilities)
    for k in range(len(files)):  # an unreadable image ends this before hours of work rather than after
        with naming(files[k].path):
            pipeline.intensity.apply(read(k)[0], pipeline.axes)
    # of an earlier run with other options
    stale = re.compile(
        rf"marginals/({'|'.join(re.escape(file.name) for file in files)})(\.\d+-[^/]*)?\.(npz|png)"
    )
    with Staging(out, stale) as staging, Bar(progress) as bar:
        done = iterate_anywhere(partial(_predict_file, pipeline, staging, marginals, read), range(len(files)))
        for _file in bar.over(files, "predicting"):
            next(done)
    written = ["labels", "overlays", *(["marginals"] if marginals else [])]
    return {"n_images": len(files), "written": [str(out / part) for part in written]}


def _predict_file(
    pipeline: ImagePipeline, staging: Staging, marginals: str | None, read: InputReader, k: int
) -> None:
    """Predict one image and write what was found."""
    name, (image, given) = read.files[k].name, read(k)
    soft = pipeline.predict_marginals(image, *given) if marginals or pipeline.by_marginals else None
    by_marginals = soft is not None and pipeline.by_marginals
    labels = soft.argmax(axis=-1) if soft is not None and by_marginals else pipeline.predict(image, *given)
    suffix = "tif" if pipeline.axes == 3 else "png"
    write_mask(staging.path("labels", f"{name}.{suffix}"), pipeline.classes.mask(labels))
    shown = as_shown(pipeline.intensity.apply(image, pipeline.axes))
    mixed = shown // 2 + pipeline.classes.paint(labels) // 2
    write_image(staging.path("overlays", f"{name}.{suffix}"), mixed)
    if marginals and soft is not None:
        _write_marginals(pipeline, staging, name, soft, marginals)


def _write_marginals(pipeline: ImagePipeline, staging: Staging, stem: str, values: Floats, how: str) -> None:
    if how == "npz":
        names, codes = np.array(pipeline.classes.names), np.array(pipeline.classes.codes)
        with staging.path("marginals", f"{stem}.npz").open("wb") as file:
            np.savez_compressed(file, marginals=values.astype(np.float32), names=names, values=codes)
        return
    for k, name in enumerate(pipeline.classes.names):
        safe = re.sub(r"[^\w#-]", "_", name)
        grey = np.round(255 * values[..., k]).astype(np.uint8)
        write_image(staging.path("marginals", f"{stem}.{k}-{safe}.png"), grey)


if TYPE_CHECKING:
    from .image_pipeline import ImagePipeline

#: Images that a report shows of the worst, and of the best.
_SHOWN = 3


def evaluate_images(
    pipeline: ImagePipeline,
    source: Path,
    *,
    masks: Path | None = None,
    void: str | None = None,
    features: Path | None = None,
    probabilities: Path | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Accuracy, recall, precision, F1, IoU and boundary F1 per class, the confusion matrix (truth by prediction) and,
    where predictions come from marginals, calibration; the error of every image; and "shown": the worst and the best
    images as arrays, for a report.

    void: values of these masks that mean unknown, beside those that training had.
    """
    if masks is None:
        raise PotentiaError("Images are evaluated against masks: give their folder.")
    classes = replace(
        pipeline.classes, void=[*pipeline.classes.void, *parse_void(void, pipeline.classes.coloured)]
    )
    files = paired_files(source, masks, "volumes" if pipeline.axes == 3 else "images")
    read = pipeline.inputs([file for file, _ in files], features, probabilities)
    targets = absolute([mask for _, mask in files])
    for k in range(len(files)):  # an unreadable one ends this before hours of work rather than after
        image = read(k)[0]
        _read_truth(classes, targets[k], image)
        with naming(files[k][0].path):
            pipeline.intensity.apply(image, pipeline.axes)
    n = len(classes)
    confusion, boundary = np.zeros((n, n), dtype=np.int64), np.zeros((n, 4), dtype=np.int64)
    calibration, images = Calibration(), []
    shown: list[dict[str, Any]] = []
    with Bar(progress) as bar:
        found = iterate_anywhere(partial(_evaluate, pipeline, classes, read, targets), range(len(files)))
        for _file in bar.over(files, "evaluating"):
            one = next(found)
            confusion += one.confusion
            boundary += one.boundary
            calibration.merge(one.calibration)
            images.append({key: one.shown[key] for key in ("name", "error")})
            shown = _extremes([*shown, one.shown])
    facts = {"n_images": len(files), **segmentation_scores(confusion, classes.names, boundary)}
    if pipeline.by_marginals:
        facts |= {"calibration_error": calibration.error(), "reliability": calibration.curve()}
    return facts | {"images": images, "shown": shown}


class _Evaluated(NamedTuple):
    """Counts of one image, and the image with its prediction."""

    confusion: Ints
    boundary: Ints
    calibration: Calibration
    shown: dict[str, Any]


def _evaluate(
    pipeline: ImagePipeline, classes: Classes, read: InputReader, masks: list[ImageFile], k: int
) -> _Evaluated:
    """Predict one image and compare."""
    image, given = read(k)
    truth, soft, n = _read_truth(classes, masks[k], image), None, len(classes)
    calibration = Calibration()
    if pipeline.by_marginals:
        soft = pipeline.predict_marginals(image, *given)
        calibration.add(truth, soft)
    found = pipeline.predict(image, *given) if soft is None else soft.argmax(axis=-1)
    confusion = confusion_matrix(truth, found, n)
    shown = {
        "name": read.files[k].name,
        "error": 1.0 - float(np.trace(confusion)) / max(1, int(confusion.sum())),
        "input": as_shown(pipeline.intensity.apply(image, pipeline.axes)),
        "truth": truth,
        "marginals": np.eye(n)[found] if soft is None else soft,
        "prediction": found,
    }
    return _Evaluated(confusion, boundary_counts(truth, found, n), calibration, shown)


def _read_truth(classes: Classes, mask: ImageFile, image: np.ndarray) -> Ints:
    own = read_mask(mask)
    check_same_size(image, own.codes, mask.path)
    return classes.labels(own, mask.path)


def _extremes(images: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The worst and the best of some images, the worst first."""
    ordered = sorted(images, key=lambda image: -image["error"])
    return ordered[:_SHOWN] + ordered[_SHOWN:][-_SHOWN:]

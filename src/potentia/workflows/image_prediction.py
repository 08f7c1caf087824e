"""Predictions of an image pipeline, written as files."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._files import naming
from .._progress import Bar
from .._types import Floats, PotentiaError
from ..parallel.connection import iterate_anywhere
from .image_files import image_files, write_image, write_mask
from .image_inputs import InputReader
from .intensity import as_shown
from .outputs import Staging

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

"""`images`: `potentia train --images` with its defaults beside a random forest on multi-scale filters."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from potentia.app.image_stages import n_drawn
from potentia.app.images import train
from potentia.app.report.rows import Cell, Column, Row, Table, grid
from potentia.app.training import Run
from potentia.metrics import boundary_counts, confusion_matrix, segmentation_scores

from . import public_sets
from .study import Rows, Study

Images = Sequence[public_sets.LabelledImage]


class ImageSet(NamedTuple):
    """Images to train and test on, and the names of their classes."""

    train: Images
    test: Images
    classes: Sequence[str]


class _Set(NamedTuple):
    """A set: its reader, classes, and how many images are used of each split, in full and in a quick run."""

    read: Callable[[str], Images]
    classes: Sequence[str]
    full: tuple[int, int]
    quick: tuple[int, int]


SETS = {
    "nuclei": _Set(lambda split: public_sets.nuclei(split=split), public_sets.NUCLEI_CLASSES, (20, 10), (3, 1)),
    "horses": _Set(lambda split: public_sets.horses(split=split), public_sets.HORSE_CLASSES, (60, 30), (6, 3)),
    "backgrounds": _Set(
        lambda split: public_sets.stanford_backgrounds(split=split), public_sets.BACKGROUND_CLASSES, (80, 40), (6, 3)
    ),
}
METHODS = ("potentia", "forest")


def load(quick: bool, name: str) -> ImageSet:
    """Images at equal distances in the lists of both splits, which are ordered by where images come from."""
    chosen = SETS[name]
    sizes = chosen.quick if quick else chosen.full
    own, test = (_spaced(chosen.read(split), n) for split, n in zip(("train", "test"), sizes, strict=True))
    return ImageSet(own, test, chosen.classes)


def _spaced(pictures: Images, n: int) -> Images:
    return [pictures[k] for k in np.linspace(0, len(pictures) - 1, n).round().astype(int)]


def run(cell: Cell, data: ImageSet) -> Row:
    """Train, predict every test image, and score."""
    begun = time.process_time()
    fit = _command if cell["method"] == "potentia" else _forest
    predict, facts = fit(data, cell["quick"], cell["seed"])
    seconds = time.process_time() - begun
    n = len(data.classes)
    seen = sum(n_drawn(_limit(cell["quick"]), n))
    confusion, boundary = np.zeros((n, n), dtype=np.int64), np.zeros((n, 4), dtype=np.int64)
    for labelled in data.test:
        found, truth = predict(labelled.image), labelled.labels.astype(np.int64)
        confusion += confusion_matrix(truth, found, n)
        boundary += boundary_counts(truth, found, n)
    scores = segmentation_scores(confusion, list(data.classes), boundary)
    kept = {f"test_{name}": scores[name] for name in ("error", "mean_iou", "mean_f1", "mean_boundary_f1")}
    return {
        **kept,
        **facts,
        "training_seconds": seconds,
        "training_pixels": seen,
        "data": f"{len(data.train)} and {len(data.test)}",
    }


def _limit(quick: bool) -> int | None:
    """The option `--pixels`."""
    return 20_000 if quick else None


def _command(data: ImageSet, quick: bool, seed: int) -> tuple[Callable[[np.ndarray], Any], dict[str, Any]]:
    """What `potentia train` does with its defaults, from files."""
    from PIL import Image

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("images", "masks"):
            (folder / part).mkdir()
        for labelled in data.train:
            Image.fromarray(labelled.image).save(folder / "images" / f"{labelled.name}.png")
            mask = np.where(labelled.labels < 0, 255, labelled.labels).astype(np.uint8)
            Image.fromarray(mask).save(folder / "masks" / f"{labelled.name}.png")
        pipeline, facts = train(
            folder / "images", folder / "masks", void="255", pixels=_limit(quick), run=Run(seed=seed)
        )
    codes = np.array(pipeline.classes.codes)
    return lambda image: codes[pipeline.predict(image)], {"pixel_loss": facts["pixel_loss"]}


def _forest(data: ImageSet, quick: bool, seed: int) -> tuple[Callable[[np.ndarray], Any], dict[str, Any]]:
    """100 trees on scikit-image's multi-scale features of as many pixels as the command's two stages see together."""
    from skimage.feature import multiscale_basic_features
    from sklearn.ensemble import RandomForestClassifier

    def rows(image: np.ndarray) -> np.ndarray:
        found = multiscale_basic_features(image, channel_axis=-1)
        return np.asarray(found).reshape(image.shape[0] * image.shape[1], -1)

    rng = np.random.default_rng(seed)
    n_rows = sum(n_drawn(_limit(quick), len(data.classes))) // len(data.train)
    x, y = [], []
    for labelled in data.train:
        labels = labelled.labels.ravel()
        known = np.flatnonzero(labels >= 0)
        chosen = rng.choice(known, min(n_rows, len(known)), replace=False)
        x.append(rows(labelled.image)[chosen])
        y.append(labels[chosen])
    forest = RandomForestClassifier(100, n_jobs=-1, random_state=seed)
    forest.fit(np.concatenate(x), np.concatenate(y))
    return lambda image: forest.predict(rows(image)).reshape(image.shape[:2]), {}


def tables(rows: Rows) -> list[Table]:
    """Both methods on every set."""
    number = "{:.4f}".format
    columns = [
        Column("images", "set"),
        Column("training and test", "data"),
        Column("method", "method"),
        Column("error", "test_error", number),
        Column("mean IoU", "test_mean_iou", number),
        Column("mean F1", "test_mean_f1", number),
        Column("boundary F1", "test_mean_boundary_f1", number),
        Column("processor seconds of training", "training_seconds", "{:.0f}".format),
    ]
    ordered = sorted(rows, key=lambda row: (list(SETS).index(row["cell"]["set"]), METHODS.index(row["cell"]["method"])))
    lines = [row | {"set": row["cell"]["set"], "method": row["cell"]["method"]} for row in ordered]
    return [Table("The image command with defaults, and a random forest on multi-scale filters", columns, lines)]


_CELLS = grid(set=tuple(SETS), method=METHODS)
STUDY = Study("images", _CELLS, _CELLS, run, tables, load=load, needs=("set",))

"""`images`: `potentia train --images` with its defaults beside a forest and LightGBM on multi-scale filters."""

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
from potentia.metrics import Calibration, boundary_counts, confusion_matrix, segmentation_scores

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
#: What the command is told, by method; "potentia" is its default.
OPTIONS: dict[str, dict[str, Any]] = {"potentia": {}, "filters": {"regions": "no"}, "superpixels": {"superpixels": 300}}
METHODS = (*OPTIONS, "forest", "lightgbm")
#: Draws of images for an interval.
_DRAWS = 10_000


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
    if cell["method"] in OPTIONS:
        predict, facts = _command(data, cell["quick"], cell["seed"], **OPTIONS[cell["method"]])
    else:
        predict, facts = _filters_and(cell["method"], data, cell["quick"], cell["seed"])
    seconds = time.process_time() - begun
    n, predicting, wrong, known = len(data.classes), 0.0, list[int](), list[int]()
    seen = sum(n_drawn(_limit(cell["quick"]), n))
    confusion, boundary = np.zeros((n, n), dtype=np.int64), np.zeros((n, 4), dtype=np.int64)
    calibration = Calibration()
    for labelled in data.test:
        begun = time.process_time()
        probabilities, truth = predict(labelled.image), labelled.labels.astype(np.int64)
        predicting += time.process_time() - begun
        found = probabilities.argmax(axis=-1)
        calibration.add(truth, probabilities)
        wrong.append(int(np.sum((found != truth) & (truth >= 0))))
        known.append(int(np.sum(truth >= 0)))
        confusion += confusion_matrix(truth, found, n)
        boundary += boundary_counts(truth, found, n)
    scores = segmentation_scores(confusion, list(data.classes), boundary)
    kept = {f"test_{name}": scores[name] for name in ("error", "mean_iou", "mean_f1", "mean_boundary_f1")}
    return {
        **kept,
        **facts,
        "calibration_error": calibration.error(),
        "training_seconds": seconds,
        "seconds_per_megapixel": 1e6 * predicting / sum(labelled.labels.size for labelled in data.test),
        "wrong_pixels": wrong,
        "known_pixels": known,
        "training_pixels": seen,
        "data": f"{len(data.train)} and {len(data.test)}",
    }


def _limit(quick: bool) -> int | None:
    """The option `--pixels`."""
    return 20_000 if quick else None


def _command(
    data: ImageSet, quick: bool, seed: int, **options: Any
) -> tuple[Callable[[np.ndarray], Any], dict[str, Any]]:
    """What `potentia train` does with its defaults or a few options, from files: it predicts marginals."""
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
            folder / "images", folder / "masks", void="255", pixels=_limit(quick), run=Run(seed=seed), **options
        )
    regions = pipeline.pixels is not None and pipeline.pixels.rows.regions
    kept = {"pixel_loss": facts.get("pixel_loss"), "regions": regions}
    return lambda image: _spread(pipeline.predict_marginals(image), pipeline.classes.codes, len(data.classes)), kept


def _spread(probabilities: np.ndarray, classes: Sequence[int], n: int) -> np.ndarray:
    """Probabilities of `classes` among those of all n: zero for classes that no training image has."""
    spread = np.zeros((*probabilities.shape[:-1], n))
    spread[..., classes] = probabilities
    return spread


def _filters_and(
    method: str, data: ImageSet, quick: bool, seed: int
) -> tuple[Callable[[np.ndarray], Any], dict[str, Any]]:
    """A forest of 100 trees, or LightGBM with its defaults, on scikit-image's multi-scale features.

    Of as many pixels as the command's two stages see together.
    """
    from lightgbm import LGBMClassifier
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
    if method == "forest":
        model = RandomForestClassifier(100, n_jobs=-1, random_state=seed)
    else:
        model = LGBMClassifier(random_state=seed, verbosity=-1)
    model.fit(np.concatenate(x), np.concatenate(y))

    def predict(image: np.ndarray) -> np.ndarray:
        found = model.predict_proba(rows(image)).reshape(*image.shape[:2], -1)
        return _spread(found, model.classes_, len(data.classes))

    return predict, {}


def difference_interval(row: Row, other: Row) -> tuple[float, float, float]:
    """By how much the error of `row` exceeds that of `other`, and a 95 % interval over draws of test images."""
    wrong = np.array([row["wrong_pixels"], other["wrong_pixels"]])
    known = np.array(row["known_pixels"])
    drawn = np.random.default_rng(0).integers(len(known), size=(_DRAWS, len(known)))
    gaps = (wrong[0] - wrong[1])[drawn].sum(axis=1) / known[drawn].sum(axis=1)
    low, high = np.quantile(gaps, [0.025, 0.975])
    return float((wrong[0] - wrong[1]).sum() / known.sum()), float(low), float(high)


def tables(rows: Rows) -> list[Table]:
    """All methods on every set."""
    number = "{:.4f}".format
    columns = [
        Column("images", "set"),
        Column("training and test", "data"),
        Column("method", "method"),
        Column("error", "test_error", number),
        Column("error above potentia's (95 % interval)", "difference"),
        Column("mean IoU", "test_mean_iou", number),
        Column("mean F1", "test_mean_f1", number),
        Column("boundary F1", "test_mean_boundary_f1", number),
        Column("calibration error", "calibration_error", "{:.3f}".format),
        Column("processor seconds of training", "training_seconds", "{:.0f}".format),
        Column("of prediction, per megapixel", "seconds_per_megapixel", "{:.1f}".format),
    ]
    ordered = sorted(rows, key=lambda row: (list(SETS).index(row["cell"]["set"]), METHODS.index(row["cell"]["method"])))
    ours = {row["cell"]["set"]: row for row in rows if row["cell"]["method"] == "potentia"}
    lines = []
    for row in ordered:
        line = row | {"set": row["cell"]["set"], "method": row["cell"]["method"]}
        other = ours.get(line["set"], {})
        if line["method"] != "potentia" and "wrong_pixels" in row and "wrong_pixels" in other:
            line["difference"] = "{:+.4f} ({:+.4f} to {:+.4f})".format(*difference_interval(row, other))
        lines.append(line)
    return [Table("The image command with defaults, and trees on scikit-image's multi-scale features", columns, lines)]


_CELLS = grid(set=tuple(SETS), method=METHODS)
STUDY = Study("images", _CELLS, _CELLS, run, tables, load=load, needs=("set",))

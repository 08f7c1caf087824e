"""Label maps of images: compared with masks, their regions numbered and measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import ndimage

from ..base.types import Ints, PotentiaError
from ..metrics import boundary_counts, confusion_matrix, segmentation_scores
from .image_files import paired_files, read_mask
from .pixel_values import Classes, code_colours, find_classes, parse_void, show_code

#: Images that a report shows of the worst, and of the best.
_SHOWN = 3
#: What is measured of an instance; places are in pixels.
INSTANCE_COLUMNS = ("image", "class", "instance", "area", "row", "column", "top", "left", "bottom", "right")


def find_instances(labels: Ints, chosen: Sequence[int]) -> tuple[Ints, list[dict[str, Any]]]:
    """Connected regions of classes: a map of their numbers from 1, 0 elsewhere, and a line with measures of each.

    Neighbours share a side. Of volumes, `row` and what follows are those of the last two axes.
    """
    numbered = np.zeros(labels.shape, dtype=np.int64)
    lines: list[dict[str, Any]] = []
    for k in chosen:
        regions, n = ndimage.label(labels == k)
        areas = np.bincount(regions.ravel(), minlength=n + 1)[1:]
        centres = ndimage.center_of_mass(regions > 0, regions, range(1, n + 1))
        for number, box in enumerate(ndimage.find_objects(regions)):
            rows, columns = box[-2:]
            lines.append({
                "class": k, "instance": len(lines) + 1, "area": int(areas[number]),
                "row": round(float(centres[number][-2]), 2), "column": round(float(centres[number][-1]), 2),
                "top": rows.start, "left": columns.start, "bottom": rows.stop, "right": columns.stop,
            })  # fmt: skip
            numbered[box][regions[box] == number + 1] = len(lines)
    return numbered, lines


def compare_maps(name: str, truth: Ints, labels: Ints, classes: Classes) -> tuple[dict[str, Any], Ints, Ints]:
    """What a report shows of an image, its confusion matrix (truth by prediction) and boundary counts."""
    n = len(classes)
    confusion = confusion_matrix(truth, labels, n)
    error = 1.0 - float(np.trace(confusion)) / max(1, int(confusion.sum()))
    colours = code_colours(np.array(classes.colours))
    shown = {"name": name, "error": error, "truth": truth, "prediction": labels, "colours": colours}
    return shown, confusion, boundary_counts(truth, labels, n)


def summed_scores(compared: Iterable[tuple[dict[str, Any], Ints, Ints]], classes: Classes) -> dict[str, Any]:
    """Scores of all images that `compare_maps` compared, their errors, and "shown": the worst and the best of them."""
    n, images = len(classes), list[dict[str, Any]]()
    shown: list[dict[str, Any]] = []
    confusion, boundary = np.zeros((n, n), dtype=np.int64), np.zeros((n, 4), dtype=np.int64)
    for one, counts, borders in compared:
        confusion += counts
        boundary += borders
        images.append({key: one[key] for key in ("name", "error")})
        ordered = sorted([*shown, one], key=lambda image: -image["error"])
        shown = ordered[:_SHOWN] + ordered[_SHOWN:][-_SHOWN:]
    scores = segmentation_scores(confusion, classes.names, boundary)
    return {"n_images": len(images), **scores, "images": images, "shown": shown}


def evaluate_maps(folder: Path, masks: Path, void: str | None = None) -> dict[str, Any]:
    """Scores of the label maps in a folder, of any tool, against masks of their names.

    What `potentia predict` wrote has them in labels/, and its classes in classes.csv; else every value is a class.
    """
    pairs = paired_files(folder / "labels" if (folder / "labels").is_dir() else folder, masks)
    found, truths = ([read_mask(pair[k]) for pair in pairs] for k in (0, 1))
    palette = folder / "classes.csv" if (folder / "classes.csv").is_file() else None
    coloured = truths[0].coloured
    unknown = [-1, *parse_void(void, coloured)]
    values = [{int(v) for mask in part for v in np.unique(mask.codes)} - {*unknown} for part in (found, truths)]
    if not (values[0] & values[1]) - {0}:
        texts = [", ".join(show_code(v, coloured) for v in sorted(part)[:6]) for part in values]
        raise PotentiaError(
            f"{folder} has the values {texts[0]}, but {masks} has {texts[1]}: write them in the same values."
        )
    classes = find_classes([*truths, *found], palette, void, "keep")

    def compared() -> Iterator[tuple[dict[str, Any], Ints, Ints]]:
        for (image, mask), own, true in zip(pairs, found, truths, strict=True):
            labels, truth = classes.labels(own, image.path), classes.labels(true, mask.path)
            if labels.shape != truth.shape:
                raise PotentiaError(f"{mask.path} has shape {truth.shape}, but {image.path} {labels.shape}.")
            if labels.min() < 0:
                raise PotentiaError(f"{image.path}: a predicted pixel is void; every pixel needs a class.")
            yield compare_maps(image.name, truth, labels, classes)

    return summed_scores(compared(), classes)


def score_tables(facts: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Takes scores per class, the confusion matrix and the reliability curve out of facts, as tables."""
    shown = {"iou": "IoU", "f1": "F1", "boundary_f1": "boundary F1"}
    classes = [{shown.get(k, k): v for k, v in line.items()} for line in facts.pop("classes")]
    names = [line["class"] for line in classes]
    confusion = [
        {"truth": name, **dict(zip(names, counts, strict=True))}
        for name, counts in zip(names, facts.pop("confusion"), strict=True)
    ]
    images = sorted(facts.pop("images"), key=lambda line: -line["error"])
    tables = {"classes": classes, "pixels by truth and prediction": confusion, "worst images": images[:5]}
    reliability = facts.pop("reliability", None)
    return tables | ({"calibration": reliability} if reliability else {})

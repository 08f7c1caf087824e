"""Rows about the user's own runs, kept beside the model so that `potentia report` shows them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..report.image_panels import pack
from ..report.rows import append_row, read_rows, versions
from .common import plain

#: What is shown of a label map: longer sides are reduced.
_LONGEST = 128


def runs_folder(model: Path) -> Path:
    """Where the rows of a model's runs are."""
    return model.with_name(model.name + ".runs")


def keep_run(
    model: Path,
    command: str,
    source: Path,
    facts: Mapping[str, Any],
    seconds: float,
    history: Sequence[Mapping[str, Any]] = (),
    shown: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Add a row about a run of train or evaluate; training begins a new file.

    facts: what the command prints. shown: images with their truth, marginals and prediction as arrays.
    """
    path = runs_folder(model) / "rows.jsonl"
    path.parent.mkdir(exist_ok=True)
    if command == "train":
        path.unlink(missing_ok=True)
    cell = {"command": command, "run": len(read_rows(path)) + 1, "data": str(source)}
    moved = {"classes": "class_scores", "images": "image_errors"}
    row = {"cell": cell, **{moved.get(key, key): value for key, value in facts.items()}}
    row |= {"seconds": seconds, "versions": versions()}
    if command == "train":
        row.pop("class_scores", None)  # names only
    if history:
        row["history"] = list(history)
    if shown:
        row["pictures"] = [_packed(image) for image in shown]
    append_row(path, plain(row))


def report_source(given: Path) -> Path:
    """The folder that a report is about: of a model, that of its runs."""
    return runs_folder(given) if given.is_file() and os.path.isdir(runs_folder(given)) else given


def _packed(image: Mapping[str, Any]) -> dict[str, Any]:
    """An image as rows keep it; of a volume its middle plane."""
    arrays = {key: np.asarray(image[key]) for key in ("input", "truth", "marginals", "prediction")}
    if arrays["truth"].ndim == 3:
        arrays = {key: value[len(value) // 2] for key, value in arrays.items()}
    step = -(-max(arrays["truth"].shape) // _LONGEST)
    small = {key: value[::step, ::step] for key, value in arrays.items()}
    states = {key: "".join(chr(48 + int(k)) for k in small[key].ravel()) for key in ("truth", "prediction")}
    return {
        "name": f"{image['name']}: error {image['error']:.4f}",
        "input": pack(small["input"] / 255.0),
        "marginals": pack(small["marginals"]),
        **states,
    }

"""Cells of tables 2 and 3 of MBL-tpami: truncated fitting of pictures by loss, inference and number of iterations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..data.example import Example
from ..data.pictures import LabelledImage
from ..estimators import CRF
from ..inference.base import Inference
from ..inference.message_passing import TRW
from ..learn.risk import MarginalRisk
from ..potentials import Potential
from ..report.pictures import Original
from ..report.tables import Column
from .experiment import Table
from .figures import grid_size
from .marginal_cells import LOCAL, NAMES, loss_named, train, training_facts, truncated_inference
from .marginal_pictures import draw_pictures, pack, unpack
from .rows import Cell, Row

#: Errors (training, test) by number of iterations, empty for what the paper has not; 0 stands for losses that need no
#: inference to train.
Printed = Mapping[tuple[str, str], Mapping[int, tuple[float, float]]]

#: Inference as the tables print it.
_INFERENCE = {"trw": "trw", "mean_field": "mean field", "trw_raster": "trw, raster and back"}

#: Examples per call of prediction, to bound memory.
_CHUNK = 64


@dataclass(frozen=True)
class PictureSet:
    """A set of pictures with its printed table.

    Attributes:
        title: for tables.
        pictures: pictures(split, fold), as many as there are.
        examples: features and graphs of pictures.
        paper: errors by (loss, inference) and iterations.
        steps: L-BFGS steps on the first `incremental` pictures, half as many on twice as many, and so on.
        shown: test pictures whose marginals rows keep.
        colours: of marginals (h, w, states), for figures.
        error: share of labels wrong, of a model on pictures and their examples.
    """

    title: str
    pictures: Callable[[str, int], list[LabelledImage]]
    examples: Callable[[Sequence[LabelledImage]], list[Example]]
    paper: Printed
    steps: int
    incremental: int
    shown: tuple[int, ...]
    colours: Callable[[np.ndarray], np.ndarray]
    error: Callable[[CRF, Sequence[LabelledImage], Sequence[Example]], float]


def learner_of(cell: Cell, pictures: PictureSet) -> MarginalRisk:
    """The paper's ridges and iterations; models trained without inference predict with TRW to a threshold of 1e-5."""
    local = cell["loss"] in LOCAL
    found: Inference = TRW(iterations=1) if cell["loss"] == "independent" else TRW(iterations=1000, tol=1e-5)
    learner = MarginalRisk(
        loss_named(cell["loss"]),
        found if local else truncated_inference(cell["inference"], cell["rounds"]),
        ridge=1e-4 if local else 1e-3,
        iterations=pictures.steps,
        incremental=pictures.incremental,
        tol=1e-4,
        track_error=False,
    )
    return replace(learner, iterations=3, incremental=None) if cell["quick"] else learner


def prepare(pictures: PictureSet, quick: bool) -> Callable[[Cell], Row]:
    """What runs one cell."""

    @cache
    def load(split: str, fold: int) -> tuple[list[LabelledImage], list[Example]]:
        chosen = pictures.pictures(split, fold)
        chosen = chosen[:3] if quick else chosen
        return chosen, pictures.examples(chosen)

    @cache
    def surrogate(fold: int) -> Mapping[str, Potential]:
        """Where smoothed errors begin: the surrogate likelihood of (nearly) converged inference."""
        cell = {"loss": "surrogate_likelihood", "inference": "trw", "rounds": 20, "quick": quick}
        learner = replace(learner_of(cell, pictures), inference=TRW(iterations=60, tol=1e-3))
        return train(learner, load("train", fold)[1]).potentials_

    def run(cell: Cell) -> Row:
        learn, test = load("train", cell["fold"]), load("test", cell["fold"])
        start = surrogate(cell["fold"]) if cell["loss"].startswith("smoothed") else None
        learner = learner_of(cell, pictures)
        model = train(learner, learn[1], pairs=cell["loss"] != "independent", start=start)
        shown = [test[1][k] for k in pictures.shown if k < len(test[1])]
        marginals = [
            m.reshape(*grid_size(e), -1) for m, e in zip(model.predict_marginals(shown), shown, strict=True)
        ]
        return {
            "train_error": pictures.error(model, *learn),
            "test_error": pictures.error(model, *test),
            **training_facts(model),
            # of two states one says all
            "pictures": [pack(m[..., 1:] if m.shape[2] == 2 else m) for m in marginals],
        }

    return run


def share_wrong(model: CRF, pictures: Sequence[LabelledImage], examples: Sequence[Example]) -> float:
    """Share of the examples' known labels predicted wrong."""
    wrong = known = 0
    for first in range(0, len(examples), _CHUNK):
        part = examples[first : first + _CHUNK]
        for example, labels in zip(part, model.predict(part), strict=True):
            assert example.labels is not None
            seen = example.labels >= 0
            wrong += int(np.count_nonzero(labels[seen] != example.labels[seen]))
            known += int(np.count_nonzero(seen))
    return wrong / known


def tables(pictures: PictureSet, rows: Sequence[Row]) -> list[Table]:
    """Test and training errors by loss and inference, a column per number of iterations; ours / the paper's.

    What the paper has not comes in tables of its own.
    """
    theirs = [key for key, line in pictures.paper.items() if line]
    ours = [key for key, line in pictures.paper.items() if not line]
    found = []
    for keys, note in ((theirs, " (ours / paper)"), (ours, ", not in the paper")):
        shown = [row for row in rows if _key(row)[:2] in keys]
        rounds = {r for key in keys for r in pictures.paper[key]} | {_key(row)[2] for row in shown}
        for part in ("test", "train"):
            if shown or keys is theirs:
                lines = [_line(pictures, key, sorted(rounds), shown, part) for key in keys]
                found.append((f"{pictures.title}, {part} error{note}", _columns(sorted(rounds)), lines))
    return found


def _columns(rounds: Sequence[int]) -> list[Column]:
    names = {r: f"{r} iteration{'s' if r > 1 else ''}" if r else "no inference" for r in rounds}
    first = [Column("loss", "loss"), Column("inference", "inference")]
    return first + [Column(name, str(r), str) for r, name in names.items()]


def _line(
    pictures: PictureSet, key: tuple[str, str], rounds: Sequence[int], rows: Sequence[Row], part: str
) -> dict[str, Any]:
    """One loss and inference: its errors by number of iterations."""
    printed = pictures.paper[key]
    line: dict[str, Any] = {"loss": NAMES[key[0]], "inference": _INFERENCE[key[1]]}
    for r in rounds:
        own = [row[f"{part}_error"] for row in rows if _key(row) == (*key, r)]
        if own:
            theirs = f" / {printed[r][part == 'test']:.3f}" if r in printed else " / –" if printed else ""
            line[str(r)] = f"{np.mean(own):.3f}{theirs}"
    return line


def _key(row: Row) -> tuple[str, str, int]:
    cell = row["cell"]
    return cell["loss"], cell["inference"], cell["rounds"]


def originals(pictures: PictureSet, fold: int, quick: bool) -> list[Original]:
    """The pictures whose marginals rows keep, and their classes."""
    chosen = pictures.pictures("test", fold)
    most = 3 if quick else len(chosen)
    return [(chosen[k].image / 255.0, chosen[k].labels) for k in pictures.shown if k < most]


def draw(pictures: PictureSet, rows: Sequence[Row], quick: bool, out: Path) -> None:
    """Marginals of some test pictures, the largest number of iterations of each loss and inference."""
    best: dict[tuple[str, str], Row] = {}
    shown = [r for r in rows if r["cell"]["fold"] == 0 and r["cell"]["inference"] != "trw_raster"]
    for row in sorted(shown, key=lambda r: r["cell"]["rounds"]):
        best[row["cell"]["loss"], row["cell"]["inference"]] = row
    lines = []
    for number, (image, labels) in enumerate(originals(pictures, 0, quick)):
        states = np.maximum(labels, 0)[..., None] == np.arange(labels.max() + 1)
        truth = np.zeros((*labels.shape, max(states.shape[2], 2)))
        truth[..., : states.shape[2]] = states & (labels >= 0)[..., None]
        line = [("input", image), ("truth", pictures.colours(truth))]
        for key in pictures.paper:
            if key in best:
                name = NAMES[key[0]] + (" (MF)" if key[1] == "mean_field" else "")
                line.append((name, pictures.colours(unpack(best[key]["pictures"][number]))))
        lines.append(line)
    draw_pictures(lines, out / "marginals.png")

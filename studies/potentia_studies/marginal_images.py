"""Tables 2 and 3 of MBL-tpami: truncated fitting of images by loss, inference and number of iterations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import potentia as pt
from potentia.app.report.rows import Cell, Row, Table
from potentia.features.colour import upsample_marginals

from .figures import Figure, grid_size, image_figure, strips
from .marginal import LOCAL, NAMES, CellData, ExamplesOfImages, loss_named, run_loss, truncated_inference
from .public_sets import LabelledImage
from .row_images import Original, pack
from .study import Originals, Rows, Study, matrix

#: Errors (training, test) by number of iterations, empty if the paper reports none; 0 stands for losses that need no
#: inference to train.
Printed = Mapping[tuple[str, str], Mapping[int, tuple[float, float]]]

#: Inference as the tables print it.
_INFERENCE = {"trw": "trw", "mean_field": "mean field", "trw_raster": "trw, raster and back"}

#: Examples per call of prediction, to bound memory.
_CHUNK = 64


def printed(rounds: Sequence[int], lines: Iterable[tuple[Any, ...]]) -> dict[tuple[str, str], Any]:
    """A table from lines (loss, inference, errors of each number of iterations, or of the one without inference)."""
    return {
        (loss, inference): dict(zip(rounds if len(errors) > 1 else (0,), errors, strict=True))
        for loss, inference, *errors in lines
    }


@dataclass(frozen=True)
class SegmentationSet:
    """A set of images with its printed table.

    Attributes:
        name: of the study.
        title: for tables.
        cells, quick: (loss, inference, rounds) in the order of running.
        folds: of cross-validation.
        images: images(split, fold), as many as there are.
        examples: features and graphs of images.
        paper: errors by (loss, inference) and iterations.
        steps: L-BFGS steps on the first `incremental` images, half as many on twice as many, and so on.
        shown: test images whose marginals rows keep.
        error: share of labels wrong, of a model on a part of the data.
    """

    name: str
    title: str
    cells: Sequence[tuple[str, str, int]]
    quick: Sequence[tuple[str, str, int]]
    folds: int
    images: Callable[[str, int], list[LabelledImage]]
    examples: Callable[[Sequence[LabelledImage]], list[pt.Example]]
    paper: Printed
    steps: int
    incremental: int
    shown: tuple[int, ...]
    error: Callable[[pt.CRF, ExamplesOfImages], float]

    def study(self) -> Study:
        """The set as a study."""
        cells, quick = (
            [{"loss": loss, "inference": name, "rounds": rounds} for loss, name, rounds in part]
            for part in (self.cells, self.quick)
        )
        return Study(
            self.name, cells, quick, self.run, self.tables, {"marginals": self.draw}, self.load, ("fold",),
            self.folds, self.originals,
        )  # fmt: skip

    def load(self, quick: bool, fold: int) -> CellData:
        """Training and test images of a fold; quick: three of each."""
        chosen = [self.images(split, fold)[: 3 if quick else None] for split in ("train", "test")]
        train, test = (ExamplesOfImages(self.examples(images), images) for images in chosen)
        likelihood = self.learner("surrogate_likelihood", "trw", 20, quick)
        return CellData(train, test, replace(likelihood, inference=pt.TRW(iterations=60, tol=1e-3)))

    def learner(self, loss: str, inference: str, rounds: int, quick: bool) -> pt.MarginalRisk:
        """The paper's ridges and iterations; models trained without inference predict with TRW to a threshold."""
        local = loss in LOCAL
        found: pt.extend.Inference = (
            pt.TRW(iterations=1) if loss == "independent" else pt.TRW(iterations=1000, tol=1e-5)
        )
        learner = pt.MarginalRisk(
            loss_named(loss),
            found if local else truncated_inference(inference, rounds),
            ridge=1e-4 if local else 1e-3,
            iterations=self.steps,
            incremental=self.incremental,
            tol=1e-4,
            track_error=False,
        )
        return replace(learner, iterations=3, incremental=None) if quick else learner

    def run(self, cell: Cell, data: CellData) -> Row:
        """Train, measure, and keep marginals of some test images."""
        learner = self.learner(*_key(cell), cell["quick"])
        model, row = run_loss(cell, data, learner, self.error)
        shown = [data.test.examples[k] for k in self.shown if k < len(data.test.examples)]
        found = zip(model.predict_marginals(shown), shown, strict=True)
        marginals = [m.reshape(*grid_size(example), -1) for m, example in found]
        # of two states one says all
        return row | {"pictures": [pack(m[..., 1:] if m.shape[2] == 2 else m) for m in marginals]}

    def originals(self, quick: bool, fold: int) -> list[Original]:
        """The images whose marginals rows keep, and their classes."""
        chosen = self.images("test", fold)[: 3 if quick else None]
        return [(chosen[k].image / 255.0, chosen[k].labels) for k in self.shown if k < len(chosen)]

    def tables(self, rows: Rows) -> list[Table]:
        """Test and training errors by loss and inference, a column per number of iterations; ours / the paper's.

        Cells that the paper does not have are in separate tables.
        """
        theirs = [key for key, line in self.paper.items() if line]
        ours = [key for key, line in self.paper.items() if not line]
        found = []
        for keys, note in ((theirs, " (ours / paper)"), (ours, ", not in the paper")):
            shown = [row for row in rows if _key(row["cell"])[:2] in keys]
            rounds = {r for key in keys for r in self.paper[key]} | {row["cell"]["rounds"] for row in shown}
            lines = {key: (NAMES[key[0]], _INFERENCE[key[1]]) for key in keys}
            columns = {r: f"{r} iteration{'s' * (r > 1)}" if r else "no inference" for r in sorted(rounds)}
            for part in ("test", "train"):
                if shown or keys is theirs:
                    title = f"{self.title}, {part} error{note}"
                    found.append(matrix(title, ["loss", "inference"], lines, columns, self._entries(shown, part)))
        return found

    def _entries(self, rows: Rows, part: str) -> dict[tuple[Any, Any], str]:
        """Mean errors over folds by (loss, inference) and number of iterations, beside the paper's."""
        errors: dict[tuple[Any, Any], list[float]] = {}
        for row in rows:
            *key, rounds = _key(row["cell"])
            errors.setdefault((tuple(key), rounds), []).append(row[f"{part}_error"])
        found = {}
        for (key, rounds), own in errors.items():
            paper = self.paper[key]
            theirs = f" / {paper[rounds][part == 'test']:.3f}" if rounds in paper else " / –" if paper else ""
            found[key, rounds] = f"{np.mean(own):.3f}{theirs}"
        return found

    def draw(self, rows: Rows, originals: Originals) -> Figure | None:
        """Marginals of some test images, the largest number of iterations of each loss and inference."""
        first = sorted((r for r in rows if r["cell"]["fold"] == 0), key=lambda r: int(r["cell"]["rounds"]))
        best = {_key(row["cell"])[:2]: row for row in first}
        keys = [key for key in self.paper if key in best and key[1] != "trw_raster"]
        named = [(NAMES[key[0]] + " (MF)" * (key[1] == "mean_field"), best[key]) for key in keys]
        return image_figure(strips(named, originals(named[0][1]["cell"]), "marginals")) if named else None


def _key(cell: Cell) -> tuple[str, str, int]:
    return cell["loss"], cell["inference"], cell["rounds"]


def share_wrong(model: pt.CRF, part: ExamplesOfImages) -> float:
    """Share of the examples' known labels predicted wrong."""

    def compared(numbers: Sequence[int]) -> Iterable[tuple[Any, Any]]:
        examples = [part.examples[k] for k in numbers]
        return zip((e.labels for e in examples), model.predict(examples), strict=True)

    return _share(part, compared)


def full_size_error(model: pt.CRF, part: ExamplesOfImages) -> float:
    """Share of known pixels wrong at full size, where marginals are interpolated before the best class is taken."""

    def compared(numbers: Sequence[int]) -> Iterable[tuple[Any, Any]]:
        found = model.predict_marginals([part.examples[k] for k in numbers])
        for k, marginals in zip(numbers, found, strict=True):
            truth = part.images[k].labels
            size = grid_size(part.examples[k])
            yield truth, upsample_marginals(marginals, size, truth.shape).argmax(axis=2)

    return _share(part, compared)


def _share(part: ExamplesOfImages, compared: Callable[[Sequence[int]], Iterable[tuple[Any, Any]]]) -> float:
    """Share of known labels wrong, where compared(numbers) gives (truth, found) of these examples."""
    wrong = known = 0
    for first in range(0, len(part.examples), _CHUNK):
        for truth, found in compared(range(first, min(first + _CHUNK, len(part.examples)))):
            wrong += int(np.count_nonzero((truth != found) & (truth >= 0)))
            known += int(np.count_nonzero(truth >= 0))
    return wrong / known

"""`fitting-speed`: figure 7 of MBL-tpami, truncation against perturbation and back-propagation to a threshold."""

from __future__ import annotations

import time
from typing import Any

import potentia as pt
from potentia.app.report.rows import Cell, Column, Row, Table, grid

from . import marginal, public_sets
from .figures import Figure, name_axes, panels, values_of
from .marginal import CellData, ExamplesOfImages, training_facts, truncated_inference
from .marginal_images import full_size_error
from .marginal_sets import background_examples
from .study import Originals, Rows, Study

N_IMAGES = 100
ROUNDS = (1, 5, 10, 20)
THRESHOLDS = (1e-1, 1e-2, 1e-3, 1e-4)
#: Processor seconds of training, of all cores together; a step that has begun is finished.
LIMIT = 240.0
#: Iterations after which inference or back-propagation to a threshold is cut off.
_MOST = 200


def learner_of(cell: Cell) -> pt.MarginalRisk:
    """The univariate logistic loss; where a search direction is bad, L-BFGS restarts."""
    steps = 3 if cell["quick"] else 1000
    options: dict[str, Any] = {"ridge": 1e-3, "iterations": steps, "tol": 0.0, "track_error": False}
    if cell["gradient"] == "truncated":
        return pt.MarginalRisk("univariate_logistic", truncated_inference("trw", cell["rounds"]), **options)
    threshold = cell["threshold"]
    back = pt.gradients.BackPropagation(threshold, _MOST)
    gradient = back if cell["gradient"] == "backpropagation" else pt.gradients.Perturbation()
    return pt.MarginalRisk("univariate_logistic", pt.TRW(iterations=_MOST, tol=threshold), gradient, **options)


def load(quick: bool) -> CellData:
    """The first images of the standard split."""
    whole = (public_sets.stanford_backgrounds(split=split) for split in ("train", "test"))
    chosen = [images[: 3 if quick else N_IMAGES] for images in whole]
    train, test = (ExamplesOfImages(background_examples(images), images) for images in chosen)
    return CellData(train, test)


def run(cell: Cell, data: CellData) -> Row:
    """Train for the time allowed, noting processor time and objective after every step."""
    curve: list[tuple[float, float]] = []
    begun = time.process_time()

    def after(history: list[dict[str, Any]]) -> bool:
        curve.append((time.process_time() - begun, history[-1]["objective"]))
        return curve[-1][0] > LIMIT

    model = marginal.train(learner_of(cell), data.train.examples, callback=after)
    # what counts is prediction at convergence, whatever the training looked at
    model.inference = pt.TRW(iterations=200, tol=1e-4)
    return {
        "train_error": full_size_error(model, data.train),
        "test_error": full_size_error(model, data.test),
        "limit": LIMIT,
        "curve": [[float(f"{value:.5g}") for value in point] for point in curve],
        **training_facts(model),
    }


def name_of(cell: Cell) -> str:
    """What a curve is called."""
    if cell["gradient"] == "truncated":
        return f"truncated, {cell['rounds']} iteration{'s' * (cell['rounds'] > 1)}"
    return f"{cell['gradient']}, {cell['threshold']:g}"


def tables(rows: Rows) -> list[Table]:
    """Objectives and errors reached in the time allowed."""
    number = "{:.3f}".format
    columns = [
        Column("gradient", "name"),
        Column("L-BFGS steps", "iterations", str),
        Column("processor seconds", "time", "{:.0f}".format),
        Column("objective", "objective", number),
        Column("train error", "train_error", number),
        Column("test error", "test_error", number),
    ]
    lines = [row | {"name": name_of(row["cell"]), "time": row["curve"][-1][0]} for row in rows]
    return [Table(f"Backgrounds, {N_IMAGES} images: at the end of training (figure 7)", columns, lines)]


def draw(rows: Rows, originals: Originals) -> Figure:
    """Figure 7: objective against processor time, a panel per gradient method."""
    methods = values_of(rows, "gradient")
    figure, axes = panels(1, len(methods), (3.3, 3.2), sharex=True, sharey=True)
    for ax, method in zip(axes[0], methods, strict=True):
        for row in (r for r in rows if r["cell"]["gradient"] == method):
            ax.plot(*zip(*row["curve"], strict=True), label=name_of(row["cell"]).partition(", ")[2])
        name_axes(ax, method, "processor seconds", "objective")
        title = None if method == "truncated" else "threshold"
        ax.legend(fontsize=7, frameon=False, title=title, title_fontsize=7)
    return figure


def _cells(rounds: tuple[int, ...], thresholds: tuple[float, ...]) -> list[Cell]:
    """Truncation by iterations, then the others by threshold."""
    others = grid(threshold=thresholds, gradient=("backpropagation", "perturbation"))
    return grid(gradient=("truncated",), rounds=rounds) + others


STUDY = Study(
    "fitting-speed", _cells(ROUNDS, THRESHOLDS), _cells((5,), (1e-2,)), run, tables, {"fitting_speed": draw}, load
)

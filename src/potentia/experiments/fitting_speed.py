"""`fitting-speed`: figure 7 of MBL-tpami, truncation against perturbation and back-propagation to a threshold."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from .._types import ConvergenceWarning
from ..adjoint import BackPropagation, Perturbation
from ..data.example import Example
from ..data.pictures import LabelledImage, stanford_backgrounds
from ..estimators import CRF
from ..inference.message_passing import TRW
from ..learn.risk import MarginalRisk
from ..potentials import Linear
from ..report.tables import Column
from .backgrounds_mbl import examples_of, full_size_error
from .experiment import Table
from .marginal_cells import training_facts, truncated_inference
from .rows import Cell, Row

N_PICTURES = 100
ROUNDS = (1, 5, 10, 20)
THRESHOLDS = (1e-1, 1e-2, 1e-3, 1e-4)
#: Processor seconds of training, of all cores together; a step that has begun is finished.
LIMIT = 240.0
#: Iterations after which inference or back-propagation to a threshold is cut off.
_MOST = 200


def cells(quick: bool, full: bool) -> list[Cell]:
    """Truncation by iterations, then the others by threshold."""
    base = {"study": "fitting-speed", "quick": quick, "seed": 0}
    rounds, thresholds = ((5,), (1e-2,)) if quick else (ROUNDS, THRESHOLDS)
    found = [base | {"gradient": "truncated", "rounds": r} for r in rounds]
    names = ("backpropagation", "perturbation")
    return found + [base | {"gradient": name, "threshold": t} for t in thresholds for name in names]


def learner_of(cell: Cell) -> MarginalRisk:
    """The univariate logistic loss; where a search direction is bad, L-BFGS begins anew."""
    steps = 3 if cell["quick"] else 1000
    options: dict[str, Any] = {"ridge": 1e-3, "iterations": steps, "tol": 0.0, "track_error": False}
    if cell["gradient"] == "truncated":
        return MarginalRisk("univariate_logistic", truncated_inference("trw", cell["rounds"]), **options)
    threshold = cell["threshold"]
    gradient = BackPropagation(threshold, _MOST) if cell["gradient"] == "backpropagation" else Perturbation()
    inference = TRW(iterations=_MOST, tol=threshold)
    return MarginalRisk("univariate_logistic", inference, gradient, **options)


def prepare(quick: bool) -> Callable[[Cell], Row]:
    """What runs one cell."""

    @cache
    def load(split: str) -> tuple[list[LabelledImage], list[Example]]:
        pictures = stanford_backgrounds(split=split)[: 3 if quick else N_PICTURES]
        return pictures, examples_of(pictures)

    def run(cell: Cell) -> Row:
        learn, test = load("train"), load("test")
        model = CRF({"node": Linear(intercept=False), "edge": Linear(intercept=False)}, learner_of(cell))
        curve: list[tuple[float, float]] = []
        begun = time.process_time()

        def after(history: list[dict[str, Any]]) -> bool:
            curve.append((time.process_time() - begun, history[-1]["objective"]))
            return curve[-1][0] > LIMIT

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(learn[1], callback=after)
        # what counts is prediction at convergence, whatever the training looked at
        model.inference_ = TRW(iterations=200, tol=1e-4)
        return {
            "train_error": full_size_error(model, *learn),
            "test_error": full_size_error(model, *test),
            "limit": LIMIT,
            "curve": [[float(f"{value:.5g}") for value in point] for point in curve],
            **training_facts(model),
        }

    return run


def name_of(cell: Cell) -> str:
    """What a curve is called."""
    if cell["gradient"] == "truncated":
        return f"truncated, {cell['rounds']} iteration{'s' * (cell['rounds'] > 1)}"
    return f"{cell['gradient']}, {cell['threshold']:g}"


def tables(rows: Sequence[Row]) -> list[Table]:
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
    return [(f"Backgrounds, {N_PICTURES} pictures: at the end of training (figure 7)", columns, lines)]


def draw(rows: Sequence[Row], quick: bool, out: Path) -> None:
    """Figure 7: objective against processor time, a panel per gradient method."""
    from matplotlib.figure import Figure

    methods = list(dict.fromkeys(row["cell"]["gradient"] for row in rows))
    figure = Figure(figsize=(3.3 * len(methods), 3.2), layout="constrained")
    panels = figure.subplots(1, len(methods), sharex=True, sharey=True, squeeze=False)[0]
    for panel, method in zip(panels, methods, strict=True):
        for row in (r for r in rows if r["cell"]["gradient"] == method):
            label = name_of(row["cell"]).partition(", ")[2]
            panel.plot(*zip(*row["curve"], strict=True), label=label)
        panel.set_title(method, fontsize=9)
        panel.set_xlabel("processor seconds", fontsize=8)
        panel.set_ylabel("objective", fontsize=8)
        panel.label_outer()
        title = None if method == "truncated" else "threshold"
        panel.legend(fontsize=7, frameon=False, title=title, title_fontsize=7)
    figure.savefig(out / "fitting_speed.png", dpi=150)

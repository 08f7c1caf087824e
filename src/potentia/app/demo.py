"""The demo: joint CRFs that denoise images, and a network of labels of handwritten digits, in about a minute."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_digits

from .. import metrics
from ..base.types import ConvergenceWarning, Floats, Ints
from ..features import datasets
from ..features.example import Example
from ..inference.messages import TRW
from ..learn.iterated import IteratedLogistic
from ..learn.risk import MarginalRisk
from ..models.crf import CRF
from ..models.multilabel.independent import IndependentClassifiers
from ..models.multilabel.lmsbn import LMSBN
from ..potentials import MLP, Boosting, Linear, Potential, Zero
from .pixel_values import as_shown
from .report.figures import kept_image
from .report.page import report
from .report.rows import Cell, Row, Say, grid, run_cells


class DemoSize(NamedTuple):
    """How much there is to learn from, and for how long."""

    images: int = 4
    side: int = 64
    iterations: int = 20
    rounds: int = 50
    digits: int = 600


FULL = DemoSize()
#: What rows keep of a history.
_HISTORY = ("iteration", "objective", "train_error", "validation_error", "seconds")

#: Test images that the rows keep, and the colours of their classes.
_SHOWN = 3
_COLOURS = np.array([[24, 36, 52], [240, 228, 66]])

#: What is learned on images: the learner, and the potentials of nodes and pairs; the fastest first.
MODELS = (
    ("iterated", "linear", "zero"),
    ("marginal risk", "linear", "linear"),
    ("iterated", "linear", "linear"),
    ("iterated", "mlp", "mlp"),
    ("iterated", "boosting", "boosting"),
)

#: What is true of a digit: six labels of which only ten combinations occur.
LABELS = {
    "even": {0, 2, 4, 6, 8},
    "prime": {2, 3, 5, 7},
    "above four": {5, 6, 7, 8, 9},
    "multiple of three": {0, 3, 6, 9},
    "closed loop": {0, 6, 8, 9},
    "straight stroke": {1, 4, 7},
}
#: Models of labels; a name that ends in "greedy" decodes greedily.
SYSTEMS = {
    "independent": partial(IndependentClassifiers, 1e-3),
    "independent, RBF kernel": partial(IndependentClassifiers, 1e-3, kernel="rbf"),
    "LMSBN": partial(LMSBN, 1e-3),
    "LMSBN, greedy": partial(LMSBN, 1e-3),
    "LMSBN, RBF kernel": partial(LMSBN, 1e-3, kernel="rbf"),
}


def run(
    out: Path, seed: int = 0, size: DemoSize = FULL, say: Say = lambda text: None, progress: bool = False
) -> tuple[dict[str, list[Row]], Path]:
    """Train and evaluate all models, write rows and the report page; return the rows by study, and the page's path."""
    data = (
        f"synthetic, {size.images} training and {size.images} test images of {size.side} x {size.side}, smaller "
        "than the 16 and 16 of 100 x 100 in ILR-nips sec. 8, so that errors are not comparable with its table"
    )
    say(f"denoising: {data}")
    sets = [datasets.denoising(size.images, (size.side, size.side), seed=2 * seed + k) for k in (0, 1)]
    cells = [dict(zip(("learner", "node", "edge"), model, strict=True)) for model in MODELS]
    run_images = partial(_run_images, size, sets[0], sets[1], data, progress)
    found = {"denoising": _fresh(cells, seed, run_images, out / "denoising", say)}
    say("multi-label: which of six statements hold for a handwritten digit")
    digits = _digits(size, seed)
    found["multilabel"] = _fresh(
        grid(system=SYSTEMS), seed, lambda cell: _run_labels(cell, *digits), out / "multilabel", say
    )
    return found, report(out)


def _fresh(cells: Sequence[Cell], seed: int, run: Callable[[Cell], Row], out: Path, say: Say) -> list[Row]:
    """Rows of all cells; those of an earlier demo are not taken."""
    (out / "rows.jsonl").unlink(missing_ok=True)
    base: Cell = {"quick": True, "seed": seed, "study": f"demo-{out.name}"}
    return run_cells([base | cell for cell in cells], run, out, say)


# -- images ------------------------------------------------------------------------------------------------


def _run_images(
    size: DemoSize, train: list[Example], test: list[Example], data: str, progress: bool, cell: Cell
) -> Row:
    """Train, predict, and keep what tables, curves and images need."""
    potentials = {kind: _potential(cell[kind], size) for kind in ("node", "edge")}
    model, row = fit_row(CRF(potentials, _learner(cell, size.iterations)), train, test, progress)
    shown, images = test[:_SHOWN], []
    for example, soft, labels in zip(shown, model.predict_marginals(shown), model.predict(shown), strict=True):
        assert example.labels is not None
        seen = as_shown(example.features["node"][:, 1].reshape(size.side, size.side, 1))
        maps = {"truth": example.labels, "prediction": labels, "uncertainty": 1.0 - soft.max(axis=1)}
        square = {name: values.reshape(size.side, size.side) for name, values in maps.items()}
        images.append(kept_image({"name": example.name, "input": seen, "colours": _COLOURS, **square}))
    return row | {"data": data, "curves": curves(model), "pictures": images}


def _potential(name: str, size: DemoSize) -> Potential:
    """A potential by its name in `MODELS`."""
    # few images make few steps of a network: longer ones than the paper's, of a smaller network
    mlp = MLP(hidden=30, learning_rate=0.5, epochs=4)
    return {"boosting": Boosting(rounds=size.rounds), "mlp": mlp, "linear": Linear(), "zero": Zero()}[name]


def _learner(cell: Cell, n: int) -> Any:
    """The learner of a cell of the demo."""
    if cell["learner"] == "marginal risk":
        inference = TRW(iterations=10, tol=0.0)
        return MarginalRisk("univariate_logistic", inference, iterations=2 * n, tol=1e-3)
    if cell["node"] == "linear":
        seen = [*range(1, 10), *range(10, 10 * n + 1, 5)]
        return IteratedLogistic(0.1, 10 * n, sweeps=25, tol=1e-3, solver="direct", track_error=seen)
    return IteratedLogistic(0.1, n, sweeps=10, tol=0.0, solver="alternating")


# -- labels ------------------------------------------------------------------------------------------------


def _digits(size: DemoSize, seed: int) -> tuple[Floats, Ints, Floats, Ints]:
    """Training and test rows and labels, from scikit-learn's digits."""
    pixels, digit = load_digits(return_X_y=True)
    labels = np.array([[int(d in members) for members in LABELS.values()] for d in digit])
    order = np.random.default_rng(seed).permutation(len(digit))
    train, test = order[: size.digits], order[size.digits :]
    return pixels[train] / 16.0, labels[train], pixels[test] / 16.0, labels[test]


def _run_labels(cell: Cell, X: Floats, Y: Ints, X_test: Floats, Y_test: Ints) -> Row:
    """Fit and evaluate one of the `SYSTEMS`; a row of measures."""
    model: Any = SYSTEMS[cell["system"]]().fit(X, Y)
    greedy = cell["system"].endswith("greedy")
    row: Row = {
        **metrics.all_measures(Y_test, model.predict_greedy(X_test) if greedy else model.predict(X_test)),
        "data": f"scikit-learn's digits, {len(X)} training and {len(X_test)} test rows, {len(LABELS)} labels",
    }
    if hasattr(model, "couplings_") and not greedy:
        row |= {"labels": list(LABELS), "couplings": model.couplings_.round(3).tolist()}
    return row


def fit_row(model: CRF, train: Sequence[Example], test: Sequence[Example], progress: bool = False) -> tuple[CRF, Row]:
    """The fitted model, and what rows say of any fit: errors, the history, and whether a tolerance was met."""
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):  # the row says it
        model.fit(train, validation=test, progress=progress)
    history = [{k: h[k] for k in _HISTORY if k in h} for h in model.history_]
    last = history[-1] if history else {}
    learner: Any = model.learner
    return model, {
        "test_error": last["validation_error"] if "validation_error" in last else 1.0 - model.score(test),
        "train_error": last["train_error"] if "train_error" in last else 1.0 - model.score(train),
        "iterations": len(history),
        "settled": model.converged_ if learner.tol else None,
        "history": history,
    }


def curves(model: CRF, points: int = 101) -> dict[str, Any]:
    """Learned functions of one feature (after a constant) on a grid of 0..1, per kind: {"x": [...], "f": [...]}."""
    rows = np.column_stack([np.ones(points), np.linspace(0.0, 1.0, points)])
    return {
        kind: {"x": rows[:, 1].tolist(), "f": potential.scores(rows).round(4).tolist()}
        for kind, potential in model.potentials_.items()
        if potential.n_features_ == 2
    }

"""Iterated logistic regression: the 5 x 5 tables of ILR-nips, ILR-slides and ILR-chapter, and what else they show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ..data.example import Example
from ..data.pictures import LabelledImage, horses, stanford_backgrounds
from ..data.synthetic import denoising
from ..estimators import CRF
from ..features.image import image_examples
from ..inference.message_passing import Schedule
from ..learn.iterated import IteratedLogistic
from ..potentials import MLP, Boosting, Constant, Linear, Potential, Zero
from . import ilr_paper
from .rows import Cell, Row, key_of, run_cells

CLASSES = ("zero", "constant", "linear", "boosting", "mlp")
CONVEX = ("zero", "constant", "linear")
#: Test examples whose predictions rows keep.
SHOWN = 3


@dataclass(frozen=True)
class IlrStudy:
    """A data set with its table: examples (quick or full), the paper's errors, and what is said about the data.

    pictures: real pictures of a split, whose examples are `image_examples` with `options`; None for synthetic ones.
    """

    name: str
    title: str
    paper_train: Sequence[Sequence[float]]
    paper_test: Sequence[Sequence[float]]
    data: str
    #: Further parts beside the table.
    parts: tuple[str, ...] = ()
    pictures: Callable[[str], list[LabelledImage]] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    #: Passes of an MLP over the rows per learning iteration: fewer where rows are more.
    epochs: int = 5
    #: Iterations after which errors are noted for the learning curves; predicting costs as much as learning.
    tracked: tuple[int, ...] = (1, 2, 3, 5, 8, 12, 18, 25, 40, 60, 100, 200)
    #: How messages are passed in learning, and when they rest.
    schedule: Schedule = "sequential"
    rest: float | None = None

    def load(self, quick: bool) -> tuple[list[Example], list[Example]]:
        """Training and test examples; quick: a few small ones."""
        if self.pictures is None:
            n, size = (3, (40, 40)) if quick else (16, (100, 100))
            return denoising(n, size, seed=0), denoising(n, size, seed=1)
        chosen = [self.pictures(split)[: 6 if quick else None] for split in ("train", "test")]
        train, test = (image_examples(part, **self.options) for part in chosen)
        return train, test


STUDIES = {
    "denoising": IlrStudy(
        "denoising",
        "Denoising: univariate error",
        ilr_paper.DENOISING_TRAIN,
        ilr_paper.DENOISING_TEST,
        "synthetic, 16 training and 16 test images of 100 x 100 [ILR-nips sec. 8]",
        ("modes", "epsilon", "refit"),
    ),
    "horses-ilr": IlrStudy(
        "horses-ilr",
        "Horses: univariate error",
        ilr_paper.HORSES_TRAIN,
        ilr_paper.HORSES_TEST,
        "Weizmann horses, 200 training and 128 test pictures reduced to a quarter of their sides (about 66 x 53); "
        "features of single pixels are computed at full size, then averaged",
        pictures=lambda split: horses(split=split),
        options={"n_states": 2, "reduce": 0.25, "when": "after"},
        epochs=1,
        schedule="coloured",
        rest=1e-3,
    ),
    "backgrounds-ilr": IlrStudy(
        "backgrounds-ilr",
        "Stanford backgrounds: univariate error",
        ilr_paper.BACKGROUNDS_TRAIN,
        ilr_paper.BACKGROUNDS_TEST,
        "Stanford backgrounds, 572 training and 143 test pictures reduced to 20 % before features",
        ("drawn",),
        pictures=lambda split: stanford_backgrounds(split=split),
        options={"n_states": 8, "reduce": 0.2},
        epochs=1,
        tracked=(1, 5, 12, 25, 100),
        schedule="coloured",
        rest=1e-2,
    ),
}


def make_potential(name: str, kind: str, cell: Cell, epochs: int) -> Potential:
    """A potential of one of the papers' classes with the papers' settings."""
    if name == "boosting":
        drawn = cell.get("drawn", FEW) if kind == "edge" else FEW
        rounds = 20 if cell["quick"] else 200
        return Boosting(rounds, subsample=drawn, refit=cell["refit"], seed=cell["seed"])
    if name == "mlp":  # the step sizes of ILR-nips sec. 8
        rate, passes = 0.25 if kind == "node" else 0.05, 1 if cell["quick"] else epochs
        return MLP(learning_rate=rate, epochs=passes, seed=cell["seed"])
    return {"zero": Zero, "constant": Constant, "linear": Linear}[name]()


MODES = ("joint", "univariate_fixed", "piecewise")
#: Rows that a tree is fitted to: the chapter's number, and enough for the 64 configurations of the pairs of 8 classes.
FEW, MANY = 10_000, 100_000
EPSILONS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def _importance(pair: tuple[str, str]) -> tuple[bool, bool, int]:
    """Sorts cells by what they tell: nodes that see x first, and among these equal classes and the best cells."""
    node, edge = pair
    rank = CLASSES.index(node) + CLASSES.index(edge)
    return node in ("zero", "constant"), node != edge, -rank


def cells(study: IlrStudy, quick: bool) -> list[Cell]:
    """The table's cells, then those of the study's other parts that are not in the table already."""
    base = {"study": study.name, "quick": quick, "epsilon": 0.1, "mode": "joint", "refit": True, "seed": 0}
    classes = ("zero", "linear", "boosting") if quick else CLASSES
    pairs = sorted(product(classes, classes), key=_importance)
    found = [base | {"node": node, "edge": edge} for node, edge in pairs]
    both = base | {"node": "boosting", "edge": "boosting"}
    if "modes" in study.parts:
        found += [base | {"node": "mlp", "edge": "linear", "mode": mode} for mode in MODES]
    if "epsilon" in study.parts:
        found += [both | {"epsilon": epsilon} for epsilon in ((0.1, 1.0) if quick else EPSILONS)]
    if "refit" in study.parts:
        found.append(both | {"refit": False})
    if "drawn" in study.parts and not quick:
        found.append(both | {"drawn": MANY})
    return list({key_of(cell): cell for cell in found}.values())


def is_plain(cell: Cell) -> bool:
    """Whether a cell belongs to the 5 x 5 table."""
    return bool(cell["mode"] == "joint" and cell["epsilon"] == 0.1 and cell["refit"] and "drawn" not in cell)


def solver_of(cell: Cell) -> str:
    """Direct for convex classes, mixed where one meets another that is not.

    Of the small synthetic images, MLPs beside a convex class are trained directly, too: there the hundreds of passes
    over all rows that this takes are cheap, and they find better functions than 25 stochastic ones.
    """
    classes = {cell["node"], cell["edge"]}
    if cell["mode"] != "joint" or not classes & set(CONVEX):
        return "alternating"
    direct = CONVEX if STUDIES[cell["study"]].pictures is not None else (*CONVEX, "mlp")
    return "direct" if classes <= set(direct) else "mixed"


def learner_of(cell: Cell) -> IteratedLogistic:
    """Direct cells run until the objective falls by less than 1e-4 in ten steps, others for 25 iterations."""
    quick, solver, study = cell["quick"], solver_of(cell), STUDIES[cell["study"]]
    direct = solver == "direct"
    blind = study.pictures is not None and cell["node"] in (
        "zero",
        "constant",
    )  # no curves of nodes that see nothing
    most, few = (400, 10) if direct else (25, 3)
    return IteratedLogistic(
        cell["epsilon"],
        few if quick else most,
        sweeps=5 if quick else 25,
        rest=study.rest,
        tol=1e-4 if direct else 0.0,
        mode=cell["mode"],
        solver=solver,
        schedule=study.schedule,
        track_error=quick or (() if blind else study.tracked),
    )


def run_cell(cell: Cell, study: IlrStudy, train: list[Example], test: list[Example]) -> Row:
    """Train and evaluate one cell."""
    import warnings

    from .._types import ConvergenceWarning

    potentials = {kind: make_potential(cell[kind], kind, cell, study.epochs) for kind in ("node", "edge")}
    learner = learner_of(cell)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the row says it
        model = CRF(potentials, learner).fit(train, validation=test)
    history = [
        {
            k: row[k]
            for k in ("iteration", "objective", "train_error", "validation_error", "seconds")
            if k in row
        }
        for row in model.history_
    ]
    shown = (
        {"curves": curves(model), "pictures": pictures(model, test)} if cell["node"] == cell["edge"] else {}
    )
    settled = len(history) < learner.iterations if learner.solver == "direct" else None
    last = history[-1] if history else {}
    return {
        "train_error": last["train_error"] if "train_error" in last else 1.0 - model.score(train),
        "test_error": last["validation_error"] if "validation_error" in last else 1.0 - model.score(test),
        "solver": learner.solver,
        "schedule": learner.schedule,
        "iterations": len(history),
        "settled": settled,
        "history": history,
        "data": study.data,
        **shown,
    }


def curves(model: CRF, points: int = 101) -> dict[str, Any]:
    """Learned functions of one feature (after a constant) on a grid of 0..1, per kind: {"x": [...], "f": [...]}."""
    grid = np.linspace(0.0, 1.0, points)
    found = {}
    for kind, potential in model.potentials_.items():
        if potential.n_features_ == 2:
            scores = potential.scores(np.column_stack([np.ones(points), grid]))
            found[kind] = {"x": grid.tolist(), "f": scores.round(4).tolist()}
    return found


def pictures(model: CRF, test: list[Example]) -> list[str]:
    """Predicted labels of the first test examples as strings of digits."""
    return ["".join(map(str, labels.tolist())) for labels in model.predict(test[:SHOWN])]


def run(name: str, quick: bool, out: Path, say: Callable[[str], None]) -> list[Row]:
    """All cells of a study; finished ones are taken from out/rows.jsonl."""
    study = STUDIES[name]

    @cache
    def load() -> tuple[list[Example], list[Example]]:
        return study.load(quick)

    return run_cells(cells(study, quick), lambda cell: run_cell(cell, study, *load()), out, say)

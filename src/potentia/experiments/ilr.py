"""Iterated logistic regression: the 5 x 5 tables of ILR-nips, ILR-slides and ILR-chapter, and what else they show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..data.example import Example
from ..data.pictures import horses, stanford_backgrounds
from ..data.synthetic import denoising
from ..estimators import CRF
from ..features.image import image_examples
from ..learn.iterated import IteratedLogistic
from ..potentials import MLP, Boosting, Constant, Linear, Potential, Zero
from .rows import Cell, Row, key_of, run_cells

CLASSES = ("zero", "constant", "linear", "boosting", "mlp")
CONVEX = ("zero", "constant", "linear")

# Tables as printed: rows are univariate classes, columns pairwise classes, in the order of CLASSES.
_DENOISING_TEST = [  # ILR-nips table 1; the training errors are from ILR-slides
    [0.502, 0.502, 0.502, 0.511, 0.502],
    [0.502, 0.502, 0.502, 0.510, 0.502],
    [0.444, 0.077, 0.059, 0.049, 0.034],
    [0.444, 0.034, 0.015, 0.009, 0.007],
    [0.445, 0.032, 0.015, 0.009, 0.008],
]
_DENOISING_TRAIN = [
    [0.490, 0.490, 0.490, 0.465, 0.490],
    [0.490, 0.490, 0.490, 0.465, 0.490],
    [0.443, 0.077, 0.059, 0.056, 0.033],
    [0.429, 0.032, 0.014, 0.012, 0.008],
    [0.435, 0.031, 0.014, 0.011, 0.008],
]
_HORSES_TEST = [
    [0.246, 0.246, 0.247, 0.244, 0.245],
    [0.246, 0.246, 0.247, 0.244, 0.245],
    [0.185, 0.185, 0.168, 0.154, 0.156],
    [0.103, 0.098, 0.092, 0.084, 0.086],
    [0.096, 0.094, 0.087, 0.080, 0.081],
]
_HORSES_TRAIN = [
    [0.211, 0.211, 0.212, 0.211, 0.210],
    [0.211, 0.211, 0.212, 0.211, 0.210],
    [0.141, 0.139, 0.126, 0.111, 0.113],
    [0.087, 0.079, 0.074, 0.069, 0.068],
    [0.054, 0.051, 0.046, 0.043, 0.041],
]
_BACKGROUNDS_TRAIN = [
    [0.853, 0.641, 0.553, 0.470, 0.497],
    [0.769, 0.640, 0.553, 0.470, 0.497],
    [0.322, 0.304, 0.283, 0.272, 0.272],
    [0.289, 0.259, 0.249, 0.239, 0.239],
    [0.262, 0.226, 0.216, 0.210, 0.209],
]
_BACKGROUNDS_TEST = [
    [0.863, 0.673, 0.593, 0.483, 0.518],
    [0.793, 0.673, 0.593, 0.485, 0.518],
    [0.345, 0.329, 0.304, 0.296, 0.296],
    [0.331, 0.304, 0.296, 0.287, 0.284],
    [0.310, 0.281, 0.280, 0.271, 0.272],
]


@dataclass(frozen=True)
class Study:
    """A data set with its table: examples (quick or full), the paper's errors, and what is said about the data."""

    name: str
    title: str
    load: Callable[[bool], tuple[list[Example], list[Example]]]
    paper_train: Sequence[Sequence[float]]
    paper_test: Sequence[Sequence[float]]
    data: str
    #: Further parts beside the table.
    parts: tuple[str, ...] = ()
    #: Largest number of L-BFGS steps of a convex cell.
    direct_steps: int = 400


def _load_denoising(quick: bool) -> tuple[list[Example], list[Example]]:
    n, size = (3, (40, 40)) if quick else (16, (100, 100))
    return denoising(n, size, seed=0), denoising(n, size, seed=1)


def _load_horses(quick: bool) -> tuple[list[Example], list[Example]]:
    pictures = [horses(split=split, size="quarter") for split in ("train", "test")]
    train, test = (image_examples(p[:6] if quick else p, n_states=2) for p in pictures)
    return train, test


def _load_backgrounds(quick: bool) -> tuple[list[Example], list[Example]]:
    pictures = [stanford_backgrounds(split=split) for split in ("train", "test")]
    train, test = (image_examples(p[:6] if quick else p, n_states=8, reduce=0.2) for p in pictures)
    return train, test


STUDIES = {
    "denoising": Study(
        "denoising",
        "Denoising: univariate error",
        _load_denoising,
        _DENOISING_TRAIN,
        _DENOISING_TEST,
        "synthetic, 16 training and 16 test images of 100 x 100 [ILR-nips sec. 8]",
        ("modes", "epsilon", "refit"),
    ),
    "horses-ilr": Study(
        "horses-ilr",
        "Horses: univariate error",
        _load_horses,
        _HORSES_TRAIN,
        _HORSES_TEST,
        "Weizmann horses, 200 training and 128 test pictures, quarter size (about 66 x 53)",
    ),
    "backgrounds-ilr": Study(
        "backgrounds-ilr",
        "Stanford backgrounds: univariate error",
        _load_backgrounds,
        _BACKGROUNDS_TRAIN,
        _BACKGROUNDS_TEST,
        "Stanford backgrounds, 572 training and 143 test pictures reduced to 20 % before features",
    ),
}


def make_potential(name: str, kind: str, quick: bool, refit: bool = True) -> Potential:
    """A potential of one of the papers' classes with the papers' settings."""
    if name == "boosting":
        return Boosting(rounds=20 if quick else 200, refit=refit)
    if name == "mlp":  # the step sizes of ILR-nips sec. 8
        return MLP(learning_rate=0.25 if kind == "node" else 0.05, epochs=1 if quick else 5)
    return {"zero": Zero, "constant": Constant, "linear": Linear}[name]()


MODES = ("joint", "univariate_fixed", "piecewise")
EPSILONS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def cells(study: Study, quick: bool) -> list[Cell]:
    """The table's cells, then those of the study's other parts that are not in the table already."""
    base = {"study": study.name, "quick": quick, "epsilon": 0.1, "mode": "joint", "refit": True, "seed": 0}
    classes = ("zero", "linear", "boosting") if quick else CLASSES
    # the rows at chance, zero and constant, come last
    found = [base | {"node": node, "edge": edge} for node in reversed(classes) for edge in classes]
    both = base | {"node": "boosting", "edge": "boosting"}
    if "modes" in study.parts:
        found += [base | {"node": "mlp", "edge": "linear", "mode": mode} for mode in MODES]
    if "epsilon" in study.parts:
        found += [both | {"epsilon": epsilon} for epsilon in ((0.1, 1.0) if quick else EPSILONS)]
    if "refit" in study.parts:
        found.append(both | {"refit": False})
    return list({key_of(cell): cell for cell in found}.values())


def learner_of(cell: Cell, study: Study) -> IteratedLogistic:
    """Convex cells are minimised directly until the objective falls by less than 1e-4; others run 25 iterations."""
    quick = cell["quick"]
    if cell["mode"] == "joint" and cell["node"] in CONVEX and cell["edge"] in CONVEX:
        steps = 10 if quick else study.direct_steps
        return IteratedLogistic(
            cell["epsilon"],
            iterations=steps,
            sweeps=5 if quick else 25,
            tol=1e-4,
            solver="direct",
            track_error=False,
        )
    return IteratedLogistic(
        cell["epsilon"], iterations=3 if quick else 25, sweeps=5 if quick else 25, mode=cell["mode"]
    )


def run_cell(cell: Cell, study: Study, train: list[Example], test: list[Example]) -> Row:
    """Train and evaluate one cell."""
    import warnings

    from .._types import ConvergenceWarning

    potentials = {
        kind: make_potential(cell[kind], kind, cell["quick"], cell["refit"]) for kind in ("node", "edge")
    }
    learner = learner_of(cell, study)
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
    return {
        "train_error": 1.0 - model.score(train),
        "test_error": 1.0 - model.score(test),
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


def pictures(model: CRF, test: list[Example], n: int = 3) -> list[str]:
    """Predicted labels of the first test examples as strings of digits."""
    return ["".join(map(str, labels.tolist())) for labels in model.predict(test[:n])]


def run(name: str, quick: bool, out: Path, say: Callable[[str], None]) -> list[Row]:
    """All cells of a study; finished ones are taken from out/rows.jsonl."""
    study = STUDIES[name]

    @cache
    def load() -> tuple[list[Example], list[Example]]:
        return study.load(quick)

    return run_cells(cells(study, quick), lambda cell: run_cell(cell, study, *load()), out, say)

"""Iterated logistic regression: running one cell of the 5 x 5 tables of ILR-nips, ILR-slides and ILR-chapter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, cast

import numpy as np

import potentia as pt
from potentia.app.demo import curves, fit_row
from potentia.app.report.rows import Cell, Row, key_of
from potentia.features.colour import reduce_labels, resize
from potentia.features.image import reduced_size
from potentia.inference.messages import Schedule
from potentia.learn.iterated import Solver

from .figures import grid_size
from .public_sets import LabelledImage, image_examples
from .row_images import Original

CLASSES = ("zero", "constant", "linear", "boosting", "mlp")
CONVEX = ("zero", "constant", "linear")
MODES = ("joint", "univariate_fixed", "piecewise")
EPSILONS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
#: Rows that a tree is fitted to: the chapter's number, and enough for the 64 configurations of the pairs of 8 classes.
FEW, MANY = 10_000, 100_000
#: Test examples whose predictions rows keep.
_SHOWN = 3
Data = tuple[list[pt.Example], list[pt.Example]]


@dataclass(frozen=True)
class IlrSet:
    """A data set with its table: the paper's errors by class of nodes and of pairs, and what is said about the data.

    images: real images of a split, whose examples are `image_examples` with `options`; None for synthetic ones.
    """

    name: str
    title: str
    data: str
    paper_train: Sequence[Sequence[float]]
    paper_test: Sequence[Sequence[float]]
    #: Further parts beside the table.
    parts: tuple[str, ...] = ()
    images: Callable[[str], list[LabelledImage]] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    #: Passes of an MLP over the rows per learning iteration: fewer where rows are more.
    epochs: int = 5
    #: Iterations after which errors are noted for the learning curves; predicting costs as much as learning.
    tracked: tuple[int, ...] = (1, 2, 3, 5, 8, 12, 18, 25, 40, 60, 100, 200)
    #: How messages are passed in learning, and when that stops.
    schedule: Schedule = "sequential"
    message_tol: float | None = None

    def load(self, quick: bool) -> Data:
        """Training and test examples; quick: a few small ones."""
        if self.images is None:
            n, size = (3, (40, 40)) if quick else (16, (100, 100))
            return pt.datasets.denoising(n, size, seed=0), pt.datasets.denoising(n, size, seed=1)
        chosen = [self.images(split)[: 6 if quick else None] for split in ("train", "test")]
        train, test = (image_examples(part, **self.options) for part in chosen)
        return train, test

    def originals(self, quick: bool) -> list[Original]:
        """What the test examples show whose predictions rows keep, and their classes, at the examples' size."""
        if self.images is None:
            shown = self.load(quick)[1][:_SHOWN]
            seen = [e.features["node"][:, 1].reshape(grid_size(e)) for e in shown]
            return [(x, np.asarray(e.labels).reshape(x.shape)) for x, e in zip(seen, shown, strict=True)]
        found = []
        for labelled in self.images("test")[:_SHOWN]:
            size = reduced_size(labelled.labels.shape, self.options["reduce"])
            classes = reduce_labels(labelled.labels, size, self.options["n_states"])
            found.append((resize(labelled.image, size) / 255.0, classes))
        return found

    def cells(self, quick: bool) -> list[Cell]:
        """The table's cells, then those of the set's other parts that are not in the table already."""
        base = {"epsilon": 0.1, "mode": "joint", "refit": True}
        classes = ("zero", "linear", "boosting") if quick else CLASSES
        pairs = sorted(product(classes, classes), key=_importance)
        both = base | {"node": "boosting", "edge": "boosting"}
        further = {
            "modes": [base | {"node": "mlp", "edge": "linear", "mode": mode} for mode in MODES],
            "epsilon": [both | {"epsilon": epsilon} for epsilon in ((0.1, 1.0) if quick else EPSILONS)],
            "refit": [both | {"refit": False}],
            "drawn": [] if quick else [both | {"drawn": MANY}],
        }
        found = [base | {"node": node, "edge": edge} for node, edge in pairs]
        found += [cell for part in self.parts for cell in further[part]]
        return list({key_of(cell): cell for cell in found}.values())

    def run(self, cell: Cell, data: Data) -> Row:
        """Train and evaluate one cell."""
        potentials = {kind: make_potential(cell[kind], kind, cell, self.epochs) for kind in ("node", "edge")}
        learner = self.learner(cell)
        model, row = fit_row(pt.CRF(potentials, learner), *data)
        row |= {"solver": learner.solver, "schedule": learner.schedule, "data": self.data}
        if cell["node"] == cell["edge"]:
            found = model.predict(data[1][:_SHOWN])
            row |= {"curves": curves(model), "pictures": ["".join(map(str, y.tolist())) for y in found]}
        return row

    def learner(self, cell: Cell) -> pt.IteratedLogistic:
        """Direct cells run until the objective falls by less than 1e-4 in ten steps, others for 25 iterations."""
        quick, solver = cell["quick"], self.solver(cell)
        # no curves of nodes that see nothing
        blind = self.images is not None and cell["node"] in ("zero", "constant")
        most, few = (400, 10) if solver == "direct" else (25, 3)
        return pt.IteratedLogistic(
            cell["epsilon"],
            few if quick else most,
            sweeps=5 if quick else 25,
            message_tol=self.message_tol,
            tol=1e-4 if solver == "direct" else 0.0,
            solver=solver,
            schedule=self.schedule,
            track_error=quick or (() if blind else self.tracked),
        )

    def solver(self, cell: Cell) -> Solver:
        """Direct for convex classes, mixed where one meets another that is not.

        Of the small synthetic images, MLPs beside a convex class are trained directly, too: there the hundreds of
        passes over all rows that this takes are cheap, and they find better functions than 25 stochastic ones.
        """
        classes = {cell["node"], cell["edge"]}
        if cell["mode"] != "joint":
            return cast(Solver, cell["mode"])
        if not classes & set(CONVEX):
            return "alternating"
        direct = CONVEX if self.images is not None else (*CONVEX, "mlp")
        return "direct" if classes <= set(direct) else "mixed"


def make_potential(name: str, kind: str, cell: Cell, epochs: int) -> pt.extend.Potential:
    """A potential of one of the papers' classes with the papers' settings."""
    if name == "boosting":
        drawn = cell.get("drawn", FEW) if kind == "edge" else FEW
        rounds = 20 if cell["quick"] else 200
        return pt.Boosting(rounds, subsample=drawn, refit=cell["refit"], seed=cell["seed"])
    if name == "mlp":  # the step sizes of ILR-nips sec. 8
        rate, passes = 0.25 if kind == "node" else 0.05, 1 if cell["quick"] else epochs
        return pt.MLP(learning_rate=rate, epochs=passes, seed=cell["seed"])
    return {"zero": pt.Zero, "constant": pt.Constant, "linear": pt.Linear}[name]()


def _importance(pair: tuple[str, str]) -> tuple[bool, bool, int]:
    """Sorts cells by what they tell: nodes that see x first, and among these equal classes and the best cells."""
    node, edge = pair
    rank = CLASSES.index(node) + CLASSES.index(edge)
    return node in ("zero", "constant"), node != edge, -rank


def is_plain(cell: Cell) -> bool:
    """Whether a cell belongs to the 5 x 5 table."""
    return bool(cell["mode"] == "joint" and cell["epsilon"] == 0.1 and cell["refit"] and "drawn" not in cell)

"""`misspecification`: figures 1 and 2 of MBL-tpami, losses with exact inference where the model is not the data's.

The data come from x and y, both chains, with x_i tied to y_i; then x is shifted in a circle against y. What is fitted
is p(x | y), a chain over x with free scores at every place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from .._types import Floats, Ints
from ..data.example import Example
from ..estimators import CRF
from ..graph.structure import Graph
from ..graph.union import Union
from ..inference.exact import Exact
from ..learn.risk import MarginalRisk
from ..report.tables import Column
from .experiment import Table
from .marginal_cells import train
from .rows import Cell, Row

LOSSES = ("likelihood", "univariate_logistic", "clique_logistic")
#: The paper prints neither the chain's length nor the sizes.
LENGTH = 20
SHIFTS = (0, 1, 3, 10)
SIZES = (10, 30, 100, 300, 1000)
N_MODELS, N_TEST = 32, 1000
#: Small enough to leave 1000 examples alone, enough to keep ten from scores without end.
_RIDGE = 1e-5


def cells(quick: bool, full: bool) -> list[Cell]:
    """Shifts by losses; a cell is one model, so that 32 of them survive interruption."""
    base = {"study": "misspecification", "quick": quick}
    shifts, models = ((0, 3), 1) if quick else (SHIFTS, N_MODELS)
    return [
        base | {"shift": shift, "loss": loss, "seed": seed}
        for seed in range(models)
        for shift in shifts
        for loss in LOSSES
    ]


@cache
def joint_model(length: int) -> Graph:
    """x_0, ..., x_n-1, y_0, ..., y_n-1: pairs along x, along y and between x_i and y_i."""
    i = np.arange(length)
    along = np.stack([i[:-1], i[1:]], axis=1)
    pairs = np.concatenate([along, along + length, np.stack([i, i + length], axis=1)])
    return Graph(np.full(2 * length, 2), {"node": np.arange(2 * length)[:, None], "edge": pairs})


def random_scores(length: int, rng: np.random.Generator) -> dict[str, Floats]:
    """theta(x_i) uniform in [-1, 1]; theta(a, b) = t where a = b and -t elsewhere, t uniform in [-1, 1]."""
    node = rng.uniform(-1.0, 1.0, (2 * length, 2))
    node[length:] = 0.0
    t = rng.uniform(-1.0, 1.0, 3 * length - 2)
    return {"node": node, "edge": t[:, None, None] * np.array([[1.0, -1.0], [-1.0, 1.0]])}


@cache
def sampled(seed: int, length: int, n: int) -> tuple[Ints, Ints]:
    """n samples of x and y, each (n, length)."""
    rng = np.random.default_rng([seed, 0])
    theta = random_scores(length, rng)
    labels = Exact().sample(joint_model(length), theta, n, seed=seed)
    return labels[:, :length], labels[:, length:]


def chains(x: Ints, y: Ints) -> Example:
    """All samples as one graph of chains over x; every place has its own parameters."""
    n, length = x.shape
    union = Union([Graph.chain(length, n_states=2)] * n)
    place = np.eye(length)
    node = np.concatenate([place[None] * (1 - y)[..., None], place[None] * y[..., None]], axis=2)
    edge = np.tile(np.eye(length - 1), (n, 1))
    return Example(union.graph, {"node": node.reshape(n * length, -1), "edge": edge}, x.ravel())


def prepare(quick: bool) -> Callable[[Cell], Row]:
    """What runs one cell."""
    length = 8 if quick else LENGTH
    sizes = (30,) if quick else SIZES
    n_test = 100 if quick else N_TEST

    def run(cell: Cell) -> Row:
        x, y = sampled(cell["seed"], length, max(sizes) + n_test)
        shifted = np.roll(x, cell["shift"], axis=1)
        test = chains(shifted[-n_test:], y[-n_test:])
        errors, model = [], None
        for size in sizes:
            model = fitted(cell["loss"], chains(shifted[:size], y[:size]))
            errors.append(round(1.0 - model.score([test]), 5))
        row: Row = {"sizes": list(sizes), "test_errors": errors, "ridge": _RIDGE, "length": length}
        if cell["seed"] == 0 and model is not None:
            row |= _example_marginals(cell, model, y[-1:], length)
        return row

    return run


def fitted(loss: str, example: Example) -> CRF:
    """Trained with exact inference and its gradient."""
    return train(
        MarginalRisk(loss, Exact(), ridge=_RIDGE, iterations=100, tol=1e-3, track_error=False), [example]
    )


def _example_marginals(cell: Cell, model: CRF, y: Ints, length: int) -> dict[str, list[float]]:
    """Exact and predicted probabilities of x_i = 1 given one y."""
    theta = random_scores(length, np.random.default_rng([cell["seed"], 0]))
    given = {length + i: int(state) for i, state in enumerate(y[0])}
    exact = Exact().infer(joint_model(length), theta, observed=given).variable_marginals[:length, 1]
    predicted = model.predict_marginals([chains(np.zeros_like(y), y)])[0][:, 1]
    return {
        "exact": np.roll(exact, cell["shift"]).round(4).tolist(),
        "predicted": predicted.round(4).tolist(),
    }


def means(rows: Sequence[Row]) -> dict[tuple[int, str], Floats]:
    """Test error by (shift, loss), a mean over models for each size."""
    found: dict[tuple[int, str], list[list[float]]] = {}
    for row in rows:
        found.setdefault((row["cell"]["shift"], row["cell"]["loss"]), []).append(row["test_errors"])
    return {key: np.mean(errors, axis=0) for key, errors in found.items()}


def tables(rows: Sequence[Row]) -> list[Table]:
    """Mean test error with the most data, by shift and loss."""
    mean, size = means(rows), rows[0]["sizes"][-1]
    columns = [
        Column("shift", "shift", str),
        *(Column(loss.replace("_", " "), loss, "{:.4f}".format) for loss in LOSSES),
    ]
    lines: list[dict[str, Any]] = []
    for shift in sorted({key[0] for key in mean}):
        own = {loss: mean[shift, loss][-1] for loss in LOSSES if (shift, loss) in mean}
        lines.append({"shift": shift, **own})
    models = len({row["cell"]["seed"] for row in rows})
    return [(f"Mean test error of {models} models with {size} examples (figure 1)", columns, lines)]


def draw(rows: Sequence[Row], quick: bool, out: Path) -> None:
    """Figure 1: error against data, and figure 2: marginals of one input; a panel per shift."""
    mean = means(rows)
    shifts = sorted({key[0] for key in mean})
    _panels(shifts, out / "errors.png", lambda panel, shift: _errors(panel, shift, mean, rows[0]["sizes"]))
    shown = {(r["cell"]["shift"], r["cell"]["loss"]): r for r in rows if "exact" in r}
    _panels(shifts, out / "marginals.png", lambda panel, shift: _marginals(panel, shift, shown))


def _panels(shifts: Sequence[int], path: Path, fill: Callable[[Any, int], None]) -> None:
    from matplotlib.figure import Figure

    columns = min(4, len(shifts))
    lines = -(-len(shifts) // columns)
    figure = Figure(figsize=(3.2 * columns, 2.6 * lines + 0.5), layout="constrained")
    panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for panel, shift in zip(panels.ravel(), shifts, strict=False):
        fill(panel, shift)
        panel.set_title(f"shift {shift}", fontsize=9)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8, frameon=False)
    figure.savefig(path, dpi=150)


def _errors(panel: Any, shift: int, mean: dict[tuple[int, str], Floats], sizes: Sequence[int]) -> None:
    for loss in LOSSES:
        panel.plot(sizes, mean[shift, loss], marker=".", label=loss.replace("_", " "))
    panel.set_xscale("log")
    panel.set_xlabel("training examples", fontsize=8)
    panel.set_ylabel("test error", fontsize=8)
    panel.label_outer()


def _marginals(panel: Any, shift: int, shown: dict[tuple[int, str], Row]) -> None:
    exact = shown[shift, LOSSES[0]]["exact"]
    panel.plot(exact, color="black", linewidth=2.5, alpha=0.4, label="exact")
    for loss in LOSSES:
        panel.plot(shown[shift, loss]["predicted"], label=loss.replace("_", " "))
    panel.set_ylim(0.0, 1.0)
    panel.set_xlabel("$i$", fontsize=8)
    panel.set_ylabel("$p(x_i = 1 \\mid y)$", fontsize=8)
    panel.label_outer()

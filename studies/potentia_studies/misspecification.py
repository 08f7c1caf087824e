"""`misspecification`: figures 1 and 2 of MBL-tpami, losses with exact inference where the model is not the data's.

The data come from x and y, both chains, with x_i tied to y_i; then x is shifted in a circle against y. What is fitted
is p(x | y), a chain over x with free scores at every place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

import potentia as pt
from potentia.app.report.rows import Cell, Row, Table, grid
from potentia.base.types import Floats, Ints

from .figures import Figure, name_axes, panels, share_legend, values_of
from .marginal import train
from .study import Originals, Rows, Study, matrix

LOSSES = ("likelihood", "univariate_logistic", "clique_logistic")
#: The paper prints neither the chain's length nor the sizes.
LENGTH = 20
SHIFTS = (0, 1, 3, 10)
SIZES = (10, 30, 100, 300, 1000)
N_MODELS, N_TEST = 32, 1000
#: Small enough to leave 1000 examples alone, enough to keep ten from scores without end.
_RIDGE = 1e-5


@cache
def joint_model(length: int) -> pt.Graph:
    """x_0, ..., x_n-1, y_0, ..., y_n-1: pairs along x, along y and between x_i and y_i."""
    i = np.arange(length)
    along = np.stack([i[:-1], i[1:]], axis=1)
    pairs = np.concatenate([along, along + length, np.stack([i, i + length], axis=1)])
    return pt.Graph(np.full(2 * length, 2), {"node": np.arange(2 * length)[:, None], "edge": pairs})


def random_scores(length: int, rng: np.random.Generator) -> dict[str, Floats]:
    """theta(x_i) uniform in [-1, 1]; theta(a, b) = t where a = b and -t elsewhere, t uniform in [-1, 1]."""
    node = rng.uniform(-1.0, 1.0, (2 * length, 2))
    node[length:] = 0.0
    t = rng.uniform(-1.0, 1.0, 3 * length - 2)
    return {"node": node, "edge": t[:, None, None] * np.array([[1.0, -1.0], [-1.0, 1.0]])}


class Samples(NamedTuple):
    """Samples of x and y, each (n, length): the first `sizes` are to train on, the last `n_test` to test."""

    x: Ints
    y: Ints
    sizes: tuple[int, ...]
    n_test: int


def load(quick: bool, seed: int) -> Samples:
    """Samples of a random model."""
    length, sizes, n_test = (8, (30,), 100) if quick else (LENGTH, SIZES, N_TEST)
    theta = random_scores(length, np.random.default_rng([seed, 0]))
    labels = pt.Exact().sample(joint_model(length), theta, max(sizes) + n_test, seed=seed)
    return Samples(labels[:, :length], labels[:, length:], sizes, n_test)


def chains(x: Ints, y: Ints) -> pt.Example:
    """All samples as one graph of chains over x; every place has its own parameters."""
    n, length = x.shape
    union = pt.extend.Union([pt.Graph.chain(length, n_states=2)] * n)
    place = np.eye(length)
    node = np.concatenate([place[None] * (1 - y)[..., None], place[None] * y[..., None]], axis=2)
    edge = np.tile(np.eye(length - 1), (n, 1))
    return pt.Example(union.graph, {"node": node.reshape(n * length, -1), "edge": edge}, x.ravel())


def run(cell: Cell, data: Samples) -> Row:
    """Test errors by number of training examples; of the first model also marginals of one input."""
    shifted, y = np.roll(data.x, cell["shift"], axis=1), data.y
    test = chains(shifted[-data.n_test :], y[-data.n_test :])
    models = [fitted(cell["loss"], chains(shifted[:size], y[:size])) for size in data.sizes]
    errors = [round(1.0 - model.score([test]), 5) for model in models]
    length = y.shape[1]
    row = {"sizes": list(data.sizes), "test_errors": errors, "ridge": _RIDGE, "length": length}
    return row | (_example_marginals(cell, models[-1], y[-1:], length) if cell["seed"] == 0 else {})


def fitted(loss: str, example: pt.Example) -> pt.CRF:
    """Trained with exact inference and its gradient."""
    return train(
        pt.MarginalRisk(loss, pt.Exact(), ridge=_RIDGE, iterations=100, tol=1e-3, track_error=False), [example]
    )


def _example_marginals(cell: Cell, model: pt.CRF, y: Ints, length: int) -> dict[str, list[float]]:
    """Exact and predicted probabilities of x_i = 1 given one y."""
    theta = random_scores(length, np.random.default_rng([cell["seed"], 0]))
    given = {length + i: int(state) for i, state in enumerate(y[0])}
    exact = pt.Exact().infer(joint_model(length), theta, observed=given).variable_marginals[:length, 1]
    predicted = model.predict_marginals([chains(np.zeros_like(y), y)])[0][:, 1]
    return {"exact": np.roll(exact, cell["shift"]).round(4).tolist(), "predicted": predicted.round(4).tolist()}


def means(rows: Rows) -> dict[tuple[int, str], Floats]:
    """Test error by (shift, loss), a mean over models for each size."""
    found: dict[tuple[int, str], list[list[float]]] = {}
    for row in rows:
        found.setdefault((row["cell"]["shift"], row["cell"]["loss"]), []).append(row["test_errors"])
    return {key: np.mean(errors, axis=0) for key, errors in found.items()}


def tables(rows: Rows) -> list[Table]:
    """Mean test error with the most data, by shift and loss."""
    models, size = len(values_of(rows, "seed")), rows[0]["sizes"][-1]
    title = f"Mean test error of {models} models with {size} examples (figure 1)"
    lines = {shift: (str(shift),) for shift in sorted(values_of(rows, "shift"))}
    entries = {key: f"{errors[-1]:.4f}" for key, errors in means(rows).items()}
    return [matrix(title, ["shift"], lines, {loss: _name(loss) for loss in LOSSES}, entries)]


def error_curves(rows: Rows, originals: Originals) -> Figure:
    """Figure 1: error against data."""
    mean = means(rows)

    def fill(ax: Any, shift: int) -> None:
        for loss in LOSSES:
            ax.plot(rows[0]["sizes"], mean[shift, loss], marker=".", label=_name(loss))
        ax.set_xscale("log")

    return _by_shift(sorted(values_of(rows, "shift")), fill, "training examples", "test error")


def example_marginals(rows: Rows, originals: Originals) -> Figure:
    """Figure 2: marginals of one input."""
    shown = {(r["cell"]["shift"], r["cell"]["loss"]): r for r in rows if "exact" in r}

    def fill(ax: Any, shift: int) -> None:
        exact = shown[shift, LOSSES[0]]["exact"]
        ax.plot(exact, color="black", linewidth=2.5, alpha=0.4, label="exact")
        for loss in LOSSES:
            ax.plot(shown[shift, loss]["predicted"], label=_name(loss))
        ax.set_ylim(0.0, 1.0)

    return _by_shift(sorted(values_of(rows, "shift")), fill, "$i$", "$p(x_i = 1 \\mid y)$")


def _by_shift(shifts: Sequence[int], fill: Callable[[Any, int], None], x: str, y: str) -> Figure:
    figure, axes = panels(1, len(shifts), (3.2, 3.1), sharex=True, sharey=True)
    for ax, shift in zip(axes[0], shifts, strict=True):
        fill(ax, shift)
        name_axes(ax, f"shift {shift}", x, y)
    share_legend(figure, axes)
    return figure


def _name(loss: str) -> str:
    return loss.replace("_", " ")


STUDY = Study(
    "misspecification",
    # a cell is one model, so that 32 of them survive interruption
    grid(seed=range(N_MODELS), shift=SHIFTS, loss=LOSSES),
    grid(seed=(0,), shift=(0, 3), loss=LOSSES),
    run,
    tables,
    {"errors": error_curves, "marginals": example_marginals},
    load,
    needs=("seed",),
)

"""`perturbation`: figure 3 of MBL-tpami, the error of perturbed gradients against the size of the perturbation."""

from __future__ import annotations

import numpy as np

import potentia as pt
from potentia.app.report.rows import Cell, Column, Row, Table, grid
from potentia.base.types import Floats
from potentia.gradients.base import Gradient

from .figures import Figure, name_axes, panels, share_legend, values_of
from .study import Originals, Rows, Study

STRENGTHS = (0.5, 1.0, 2.0)
SIDES = (1, 2, 4)
MULTIPLIERS = tuple(10.0**k for k in range(-4, 5))
N_MODELS = 10
_SIZE = (10, 10)
_TITLES = {"trw": "TRW", "mean_field": "mean field"}


def converged(name: str) -> pt.extend.Inference:
    """Until marginals change by less than 1e-15 (the paper's threshold), which rounding may never allow."""
    return (pt.TRW if name == "trw" else pt.MeanField)(iterations=1000, tol=1e-15)


def run(cell: Cell, _: None) -> Row:
    """Errors by sides and multipliers, which share the cell's models: a geometric mean over them."""
    models = 2 if cell["quick"] else N_MODELS
    errors = np.array([gradient_errors(cell, number) for number in range(models)])
    # models differ by orders of magnitude
    mean = np.exp(np.log(np.maximum(errors, 1e-17)).mean(axis=0))
    shown = {str(n): [float(f"{e:.3e}") for e in line] for n, line in zip(SIDES, mean, strict=True)}
    return {"multipliers": list(MULTIPLIERS), "errors": shown, "models": models}


def gradient_errors(cell: Cell, number: int) -> Floats:
    """Errors (sides, multipliers) on one random model, the largest of all components over the largest of the truth.

    The truth is back-propagation through all iterations, which at convergence is the exact gradient.
    """
    rng = np.random.default_rng([cell["seed"], number])
    graph = pt.Graph.grid(_SIZE, n_states=2)
    theta = {
        "node": rng.normal(size=(graph.n_variables, 2)),
        "edge": rng.normal(scale=cell["strength"], size=(len(graph.scopes["edge"]), 2, 2)),
    }
    y, inference = rng.integers(0, 2, graph.n_variables), converged(cell["inference"])

    def gradient(method: Gradient) -> Floats:
        _, slopes = pt.loss_and_gradient("univariate_logistic", inference, graph, theta, y, method)
        return np.concatenate([np.ravel(slopes["node"]), np.ravel(slopes["edge"])])

    truth = gradient(pt.gradients.Truncated())
    off = [[np.abs(gradient(pt.gradients.Perturbation(n, m)) - truth).max() for m in MULTIPLIERS] for n in SIDES]
    found: Floats = np.array(off) / np.abs(truth).max()
    return found


def tables(rows: Rows) -> list[Table]:
    """The error with two sides and multiplier 1, which the paper chose, and the smallest of all multipliers."""
    columns = [Column("inference", "inference"), Column("strength s", "strength", str)]
    columns += [Column(f"{s}-sided, m = 1 (best m)", str(s), str) for s in SIDES]
    at = MULTIPLIERS.index(1.0)
    lines = [row["cell"] | {n: f"{e[at]:.1e} ({min(e):.1e})" for n, e in row["errors"].items()} for row in rows]
    return [Table("Largest error of a perturbed gradient, relative (figure 3)", columns, lines)]


def draw(rows: Rows, originals: Originals) -> Figure:
    """Figure 3: error against multiplier; lines are inference methods, columns strengths."""
    names, strengths = values_of(rows, "inference"), sorted(values_of(rows, "strength"))
    figure, axes = panels(len(names), len(strengths), (3.2, 2.7), sharex=True, sharey=True)
    for row in rows:
        name, strength = row["cell"]["inference"], row["cell"]["strength"]
        ax = axes[names.index(name), strengths.index(strength)]
        for sides, errors in row["errors"].items():
            ax.plot(row["multipliers"], errors, marker=".", label=f"{sides}-sided")
        ax.set(xscale="log", yscale="log")
        name_axes(ax, f"{_TITLES[name]}, s = {strength:g}", "multiplier m", "relative error")
    share_legend(figure, axes)
    return figure


STUDY = Study(
    "perturbation",
    grid(inference=_TITLES, strength=STRENGTHS),
    grid(inference=_TITLES, strength=(1.0,)),
    run,
    tables,
    {"perturbation": draw},
)

"""`perturbation`: figure 3 of MBL-tpami, the error of perturbed gradients against the size of the perturbation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._types import Floats
from ..adjoint import Perturbation, Truncated
from ..adjoint.gradient import Gradient, loss_and_gradient
from ..graph.structure import Graph
from ..inference.base import Inference
from ..inference.mean_field import MeanField
from ..inference.message_passing import TRW
from ..report.tables import Column
from .experiment import Table
from .rows import Cell, Row

STRENGTHS = (0.5, 1.0, 2.0)
SIDES = (1, 2, 4)
MULTIPLIERS = tuple(10.0**k for k in range(-4, 5))
N_MODELS = 10
_SIZE = (10, 10)
_TITLES = {"trw": "TRW", "mean_field": "mean field"}


def cells(quick: bool, full: bool) -> list[Cell]:
    """Inference methods by strengths of interaction; the sides and multipliers of a cell share their models."""
    base = {"study": "perturbation", "quick": quick, "seed": 0}
    strengths = (1.0,) if quick else STRENGTHS
    return [base | {"inference": name, "strength": s} for name in ("trw", "mean_field") for s in strengths]


def converged(name: str) -> Inference:
    """Until marginals change by less than 1e-15 (the paper's threshold), which rounding may never allow."""
    return (TRW if name == "trw" else MeanField)(iterations=1000, tol=1e-15)


def prepare(quick: bool) -> Callable[[Cell], Row]:
    """What runs one cell."""
    models = 2 if quick else N_MODELS

    def run(cell: Cell) -> Row:
        errors = np.array([gradient_errors(cell, number) for number in range(models)])
        # models differ by orders of magnitude
        mean = np.exp(np.log(np.maximum(errors, 1e-17)).mean(axis=0))
        shown = {str(n): [float(f"{e:.3e}") for e in line] for n, line in zip(SIDES, mean, strict=True)}
        return {"multipliers": list(MULTIPLIERS), "errors": shown, "models": models}

    return run


def gradient_errors(cell: Cell, number: int) -> Floats:
    """Errors (sides, multipliers) on one random model, the largest of all components over the largest of the truth.

    The truth is back-propagation through all iterations, which at convergence is the exact gradient.
    """
    rng = np.random.default_rng([cell["seed"], number])
    graph = Graph.grid(_SIZE, n_states=2)
    theta = {
        "node": rng.normal(size=(graph.n_variables, 2)),
        "edge": rng.normal(scale=cell["strength"], size=(len(graph.scopes["edge"]), 2, 2)),
    }
    y, inference = rng.integers(0, 2, graph.n_variables), converged(cell["inference"])

    def gradient(method: Gradient) -> Floats:
        _, slopes = loss_and_gradient("univariate_logistic", inference, graph, theta, y, method)
        return np.concatenate([np.ravel(slopes["node"]), np.ravel(slopes["edge"])])

    truth = gradient(Truncated())
    off = [[np.abs(gradient(Perturbation(n, m)) - truth).max() for m in MULTIPLIERS] for n in SIDES]
    found: Floats = np.array(off) / np.abs(truth).max()
    return found


def tables(rows: Sequence[Row]) -> list[Table]:
    """The error with two sides and multiplier 1, which the paper chose, and the smallest of all multipliers."""
    columns = [Column("inference", "inference"), Column("strength s", "strength", str)]
    columns += [Column(f"{s}-sided, m = 1 (best m)", str(s), str) for s in SIDES]
    lines = []
    for row in rows:
        line: dict[str, Any] = {k: row["cell"][k] for k in ("inference", "strength")}
        at = row["multipliers"].index(1.0)
        for sides, errors in row["errors"].items():
            line[sides] = f"{errors[at]:.1e} ({min(errors):.1e})"
        lines.append(line)
    return [("Largest error of a perturbed gradient, relative (figure 3)", columns, lines)]


def draw(rows: Sequence[Row], quick: bool, out: Path) -> None:
    """Figure 3: error against multiplier; rows are inference methods, columns strengths."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(r["cell"]["inference"] for r in rows))
    strengths = sorted({r["cell"]["strength"] for r in rows})
    figure = Figure(figsize=(3.0 * len(strengths) + 0.5, 2.5 * len(names) + 0.5), layout="constrained")
    panels = figure.subplots(len(names), len(strengths), sharex=True, sharey=True, squeeze=False)
    for row in rows:
        name, strength = row["cell"]["inference"], row["cell"]["strength"]
        panel = panels[names.index(name), strengths.index(strength)]
        for sides, errors in row["errors"].items():
            panel.plot(row["multipliers"], errors, marker=".", label=f"{sides}-sided")
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_title(f"{_TITLES[name]}, s = {strength:g}", fontsize=9)
        panel.set_xlabel("multiplier m", fontsize=8)
        panel.set_ylabel("relative error", fontsize=8)
        panel.label_outer()
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    figure.savefig(out / "perturbation.png", dpi=150)

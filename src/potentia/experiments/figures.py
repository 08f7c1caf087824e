"""Pictures of iterated logistic regression's studies, drawn from rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..data.example import Example
from .ilr import CLASSES, Study
from .rows import Row


def _table_rows(rows: Sequence[Row]) -> dict[tuple[str, str], Row]:
    """Rows of the table: joint training at epsilon 0.1 with refitted leaves, by (node, edge)."""
    return {
        (row["cell"]["node"], row["cell"]["edge"]): row
        for row in rows
        if row["cell"]["mode"] == "joint" and row["cell"]["epsilon"] == 0.1 and row["cell"]["refit"]
    }


def learning_curves(rows: Sequence[Row], path: Path) -> None:
    """Train (dashed) and test (solid) error against learning iterations, a panel per univariate class."""
    from matplotlib.figure import Figure

    table = {key: row for key, row in _table_rows(rows).items() if "train_error" in row["history"][-1]}
    nodes = [name for name in CLASSES if any(key[0] == name for key in table)]
    if not nodes:
        return
    figure = Figure(figsize=(3.2 * len(nodes), 3.2), layout="constrained")
    panels = figure.subplots(1, len(nodes), sharey=True, squeeze=False)[0]
    for panel, node in zip(panels, nodes, strict=True):
        for number, edge in enumerate(CLASSES):
            if (node, edge) in table:
                history = table[node, edge]["history"]
                steps = [h["iteration"] for h in history]
                colour = f"C{number}"
                panel.plot(
                    steps, [h["validation_error"] for h in history], color=colour, label=f"{edge} pairs"
                )
                panel.plot(
                    steps, [h["train_error"] for h in history], color=colour, linestyle="--", linewidth=1
                )
        panel.set_title(f"{node} nodes")
        panel.set_xlabel("learning iteration")
        panel.set_yscale("log")
    panels[0].set_ylabel("error (dashed: training)")
    handles = {h.get_label(): h for panel in panels for h in panel.get_legend_handles_labels()[0]}
    figure.legend(handles.values(), handles.keys(), loc="outside right center", fontsize=8)
    figure.savefig(path, dpi=130)


def potential_curves(rows: Sequence[Row], path: Path) -> None:
    """Learned univariate and pairwise functions of their one feature, a column per class."""
    from matplotlib.figure import Figure

    found = [r for (node, edge), r in _table_rows(rows).items() if node == edge and r.get("curves")]
    found = [r for r in found if r["cell"]["node"] in ("linear", "boosting", "mlp")]
    if not found:
        return
    figure = Figure(figsize=(3.2 * len(found), 5.0), layout="constrained")
    panels = figure.subplots(2, len(found), squeeze=False)
    for column, row in enumerate(sorted(found, key=lambda r: CLASSES.index(r["cell"]["node"]))):
        for line, (kind, names) in enumerate((("node", ["0", "1"]), ("edge", ["00", "01", "10", "11"]))):
            x, f = np.array(row["curves"][kind]["x"]), np.array(row["curves"][kind]["f"])
            # only differences between configurations matter
            panels[line, column].plot(x, f - f.mean(axis=1, keepdims=True), label=[f"y = {n}" for n in names])
            panels[line, column].set_xlabel("feature")
        panels[0, column].set_title(row["cell"]["node"])
    panels[0, 0].set_ylabel("univariate score")
    panels[1, 0].set_ylabel("pairwise score")
    panels[0, -1].legend(fontsize=8)
    panels[1, -1].legend(fontsize=8)
    figure.savefig(path, dpi=130)


def predictions(
    rows: Sequence[Row], test: Sequence[Example], sizes: Sequence[tuple[int, int]], path: Path
) -> None:
    """Input, truth and the prediction of every class (same class for nodes and pairs) on the first test pictures."""
    from matplotlib.figure import Figure

    found = [r for (node, edge), r in _table_rows(rows).items() if node == edge and r.get("pictures")]
    found.sort(key=lambda r: CLASSES.index(r["cell"]["node"]))
    if not found:
        return
    n = len(found[0]["pictures"])
    figure = Figure(figsize=(1.7 * (len(found) + 2), 1.9 * n), layout="constrained")
    panels = figure.subplots(n, len(found) + 2, squeeze=False)
    for k in range(n):
        node = test[k].features["node"]
        # after the constant: the one feature, or red, green and blue
        shown: list[tuple[str, Any]] = [("input", node[:, 1:4].mean(axis=1))]
        shown.append(("truth", test[k].labels))
        shown += [(r["cell"]["node"], [int(c) for c in r["pictures"][k]]) for r in found]
        for panel, (title, values) in zip(panels[k], shown, strict=True):
            panel.imshow(np.asarray(values).reshape(sizes[k]), cmap="gray" if title == "input" else "viridis")
            panel.set_axis_off()
            if k == 0:
                panel.set_title(title, fontsize=9)
    figure.savefig(path, dpi=130)


def epsilon_curve(rows: Sequence[Row], path: Path) -> None:
    """Error of boosted nodes and pairs against epsilon."""
    from matplotlib.figure import Figure

    both = [r for r in rows if r["cell"]["node"] == r["cell"]["edge"] == "boosting" and r["cell"]["refit"]]
    both = sorted((r for r in both if r["cell"]["mode"] == "joint"), key=lambda r: r["cell"]["epsilon"])
    if len(both) < 2:
        return
    figure = Figure(figsize=(4.2, 3.2), layout="constrained")
    panel = figure.subplots()
    epsilons = [r["cell"]["epsilon"] for r in both]
    panel.plot(epsilons, [r["test_error"] for r in both], marker="o", label="test")
    panel.plot(epsilons, [r["train_error"] for r in both], marker="o", linestyle="--", label="training")
    panel.set_xscale("log")
    panel.set_xlabel("epsilon")
    panel.set_ylabel("error, boosting nodes and pairs")
    panel.legend()
    figure.savefig(path, dpi=130)


def draw(
    study: Study, rows: Sequence[Row], test: Sequence[Example], sizes: Sequence[tuple[int, int]], out: Path
) -> None:
    """All figures that the rows allow."""
    learning_curves(rows, out / "learning_curves.png")
    potential_curves(rows, out / "potentials.png")
    predictions(rows, test, sizes, out / "predictions.png")
    if "epsilon" in study.parts:
        epsilon_curve(rows, out / "epsilon.png")

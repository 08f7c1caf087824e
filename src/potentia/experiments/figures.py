"""Pictures of iterated logistic regression's studies, drawn from rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..data.example import Example
from ..features.image import reduced_size
from ..features.resize import reduce_labels, resize
from ..report.pictures import Original
from .ilr import CLASSES, SHOWN, STUDIES, IlrStudy, is_plain
from .rows import Row


def _table_rows(rows: Sequence[Row]) -> dict[tuple[str, str], Row]:
    """Rows of the table: joint training at epsilon 0.1 with refitted leaves, by (node, edge)."""
    return {(row["cell"]["node"], row["cell"]["edge"]): row for row in rows if is_plain(row["cell"])}


def learning_curves(rows: Sequence[Row], path: Path) -> None:
    """Train (dashed) and test (solid) error against learning iterations, a panel per univariate class."""
    from matplotlib.figure import Figure

    tracked = {
        key: [h for h in row["history"] if "train_error" in h] for key, row in _table_rows(rows).items()
    }
    table = {key: history for key, history in tracked.items() if history}
    nodes = [name for name in CLASSES if any(key[0] == name for key in table)]
    if not nodes:
        return
    figure = Figure(figsize=(3.2 * len(nodes), 3.2), layout="constrained")
    panels = figure.subplots(1, len(nodes), sharey=True, squeeze=False)[0]
    for panel, node in zip(panels, nodes, strict=True):
        for number, edge in enumerate(CLASSES):
            if (node, edge) in table:
                history = table[node, edge]
                steps = [h["iteration"] for h in history]
                colour = f"C{number}"
                panel.plot(
                    steps, [h["validation_error"] for h in history], color=colour, label=f"{edge} pairs"
                )
                panel.plot(
                    steps, [h["train_error"] for h in history], color=colour, linestyle="--", linewidth=1
                )
        panel.set_title(f"{node} nodes")
        panel.set_xlabel("learning iteration (or L-BFGS step)", fontsize=9)
        panel.set_xscale("log")
        panel.set_yscale("log")
    panels[0].set_ylabel("error (dashed: training)")
    handles = {str(h.get_label()): h for panel in panels for h in panel.get_legend_handles_labels()[0]}
    names = [f"{edge} pairs" for edge in CLASSES if f"{edge} pairs" in handles]
    figure.legend([handles[n] for n in names], names, loc="outside right center", fontsize=8)
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
    for line in panels:
        line[-1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.savefig(path, dpi=130)


def grid_size(example: Example) -> tuple[int, int]:
    """Height and width of a grid in raster order: the second edge of pixel 0 leads to the next row."""
    first = example.graph.scopes["edge"]
    step = int((first[:, 1] - first[:, 0]).max())
    return example.graph.n_variables // step, step


def predictions(rows: Sequence[Row], test: Sequence[Example], path: Path) -> None:
    """Input, truth and the prediction of every class (same class for nodes and pairs) on the first test pictures."""
    from matplotlib.figure import Figure

    found = [r for (node, edge), r in _table_rows(rows).items() if node == edge and r.get("pictures")]
    found.sort(key=lambda r: CLASSES.index(r["cell"]["node"]))
    if not found:
        return
    n = len(found[0]["pictures"])
    sizes = [grid_size(example) for example in test[:n]]
    width = 1.7 * (len(found) + 2)
    heights = [h / w for h, w in sizes]
    figure = Figure(figsize=(width, 1.7 * sum(heights) + 0.3), layout="constrained")
    panels = figure.subplots(n, len(found) + 2, squeeze=False, height_ratios=heights)
    for k in range(n):
        labels = [("truth", test[k].labels)]
        labels += [(r["cell"]["node"], np.array([int(c) for c in r["pictures"][k]])) for r in found]
        panels[k, 0].imshow(_input(test[k]).reshape(*sizes[k], -1), cmap="gray")
        _show_labels(panels[k, 1:], labels, sizes[k], int(test[k].graph.n_states.max()))
        for panel, title in zip(panels[k], ["input", *(name for name, _ in labels)], strict=True):
            panel.set_axis_off()
            if k == 0:
                panel.set_title(title, fontsize=9)
    figure.savefig(path, dpi=130)


def _input(example: Example) -> Any:
    """What the picture shows, from the features after the constant: red, green and blue, or the one there is."""
    node = example.features["node"]
    return np.clip(node[:, 1:4], 0.0, 1.0) if node.shape[1] >= 4 else node[:, 1:2]


def _show_labels(
    panels: Any, labels: Sequence[tuple[str, Any]], size: tuple[int, int], n_states: int
) -> None:
    """One colour per class, the same in all panels; unknown stays white."""
    colours = "viridis" if n_states == 2 else "tab10"
    top = 1 if n_states == 2 else 9
    for panel, (_, values) in zip(panels, labels, strict=True):
        shown = np.ma.masked_less(np.asarray(values).reshape(size), 0)
        panel.imshow(shown, cmap=colours, vmin=0, vmax=top, interpolation="nearest")


@cache
def originals(name: str, quick: bool) -> list[Original]:
    """What the test examples show whose predictions rows keep, and their classes, at the examples' size."""
    study = STUDIES[name]
    if study.pictures is None:
        test = study.load(quick)[1][:SHOWN]
        return [
            (_input(e).reshape(*grid_size(e), -1), np.asarray(e.labels).reshape(grid_size(e))) for e in test
        ]
    found = []
    for picture in study.pictures("test")[:SHOWN]:
        size = reduced_size(picture.labels.shape, study.options["reduce"])
        classes = reduce_labels(picture.labels, size, study.options["n_states"])
        found.append((resize(picture.image, size) / 255.0, classes))
    return found


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
    panel.set_xticks(epsilons, [f"{e:g}" for e in epsilons])
    panel.minorticks_off()
    panel.set_ylim(bottom=0.0)
    panel.set_xlabel("epsilon")
    panel.set_ylabel("error, boosting nodes and pairs")
    panel.legend()
    figure.savefig(path, dpi=130)


def draw(study: IlrStudy, rows: Sequence[Row], test: Sequence[Example], out: Path) -> None:
    """All figures that the rows allow."""
    learning_curves(rows, out / "learning_curves.png")
    potential_curves(rows, out / "potentials.png")
    predictions(rows, test, out / "predictions.png")
    if "epsilon" in study.parts:
        epsilon_curve(rows, out / "epsilon.png")

"""Tables and figures of iterated logistic regression's studies, ours beside the papers'."""

from __future__ import annotations

from typing import Any

from potentia.app.plot import draw_lines, history_lines, score_lines
from potentia.app.report.rows import Column, Row, Table

from .figures import Figure, image_figure, panels, share_legend, strips
from .ilr import CLASSES, FEW, MANY, IlrSet, is_plain
from .study import Originals, Rows, matrix

#: Errors of MLP nodes with linear pairs [ILR-slides].
_PAPER_MODES = {"joint": 0.015, "univariate_fixed": 0.095, "piecewise": 0.438}
_LEAVES = {True: "refitted on the loss", False: "mean gradients"}
_ERROR = "{:.4f}".format
_TEST_AND_TRAINING = (Column("test", "test_error", _ERROR), Column("training", "train_error", _ERROR))


def tables(own: IlrSet, rows: Rows) -> list[Table]:
    """Test and training errors, how the cells were run, and the set's other parts."""
    squares = _plain(rows)
    place = {name: k for k, name in enumerate(CLASSES)}
    found = []
    for key, part, paper in (("test_error", "test", own.paper_test), ("train_error", "training", own.paper_train)):
        entries = {(a, b): f"{r[key]:.4f} / {paper[place[a]][place[b]]:.3f}" for (a, b), r in squares.items()}
        found.append(_square(f"{own.title}, {part} (ours / paper)", entries))
    efforts = {pair: f"{row['iterations']}, {row['seconds']:.0f} s" for pair, row in squares.items()}
    title = f"{own.title.partition(':')[0]}: iterations, or L-BFGS steps of convex cells, and seconds"
    found.append(_square(title, efforts))
    parts = {"modes": _modes, "epsilon": _epsilons, "refit": _refit, "drawn": _drawn}
    return found + [make(rows) for part, make in parts.items() if part in own.parts]


def _plain(rows: Rows) -> dict[tuple[str, str], Row]:
    """Rows of the 5 x 5 table, joint training at epsilon 0.1 with refitted leaves, by (node, edge)."""
    return {(row["cell"]["node"], row["cell"]["edge"]): row for row in rows if is_plain(row["cell"])}


def _square(title: str, entries: dict[tuple[Any, Any], str]) -> Table:
    lines = {name: (name,) for name in CLASSES}
    return matrix(title, ["nodes \\ pairs"], lines, {name: name for name in CLASSES}, entries)


def _modes(rows: Rows) -> Table:
    lines = [
        {"mode": row["cell"]["mode"], "ours": row["test_error"], "paper": _PAPER_MODES[row["cell"]["mode"]]}
        for row in rows
        if row["cell"]["node"] == "mlp" and row["cell"]["edge"] == "linear"
    ]
    columns = [Column("training", "mode"), Column("ours", "ours", _ERROR), Column("paper", "paper", _ERROR)]
    return Table("MLP nodes, linear pairs: test error", columns, lines)


def _boosted(rows: Rows) -> list[Row]:
    """Boosting nodes with boosting pairs, trained jointly, by epsilon."""
    both = [r for r in rows if r["cell"]["node"] == r["cell"]["edge"] == "boosting" and r["cell"]["mode"] == "joint"]
    return sorted(both, key=lambda r: float(r["cell"]["epsilon"]))


def _epsilons(rows: Rows) -> Table:
    lines = [row | {"epsilon": row["cell"]["epsilon"]} for row in _boosted(rows) if row["cell"]["refit"]]
    columns = [Column("epsilon", "epsilon", str), *_TEST_AND_TRAINING]
    return Table("Boosting nodes, boosting pairs: error against epsilon", columns, lines)


def _refit(rows: Rows) -> Table:
    own = [row for row in _boosted(rows) if row["cell"]["epsilon"] == 0.1]
    lines = [row | {"leaves": _LEAVES[row["cell"]["refit"]]} for row in own]
    columns = [Column("leaves", "leaves"), *_TEST_AND_TRAINING]
    return Table("Boosting nodes, boosting pairs: leaves", columns, lines)


def _drawn(rows: Rows) -> Table:
    """Boosted pairs by the rows that their trees are fitted to, beside linear pairs."""
    named = {"linear": "linear"} | {n: f"boosted, {n:,} rows a tree" for n in (FEW, MANY)}
    beside = [r for r in rows if r["cell"]["node"] == "boosting"]
    found = {r["cell"].get("drawn", FEW) if (e := r["cell"]["edge"]) == "boosting" else e: r for r in beside}
    lines = [
        found[key] | {"pairs": name, "objective": found[key]["history"][-1]["objective"]}
        for key, name in named.items()
        if key in found
    ]
    objective = Column("objective", "objective", "{:,.0f}".format)
    columns = [Column("pairs", "pairs"), *_TEST_AND_TRAINING, objective]
    return Table("Boosting nodes: pairs by the rows their trees are fitted to", columns, lines)


# -- figures -----------------------------------------------------------------------------------------------


def learning_curves(rows: Rows, originals: Originals) -> Figure | None:
    """Train (dashed) and test (solid) error against learning iterations, a panel per univariate class."""
    table = {pair: lines for pair, row in _plain(rows).items() if (lines := history_lines(row["history"]))}
    nodes = [name for name in CLASSES if any(node == name for node, _ in table)]
    if not nodes:
        return None
    figure, axes = panels(1, len(nodes), (3.2, 3.2), sharey=True)
    for ax, node in zip(axes[0], nodes, strict=True):
        for number, edge in enumerate(CLASSES):
            for line in table.get((node, edge), ()):
                name = "_" if line.dashed else f"{edge} pairs"
                draw_lines(ax, [line._replace(name=name, colour=number)])
        ax.set(title=f"{node} nodes", xscale="log", yscale="log")
        ax.set_xlabel("learning iteration (or L-BFGS step)", fontsize=9)
    axes[0, 0].set_ylabel("error (dashed: training)")
    share_legend(figure, axes, right=True)
    return figure


def _same_class(rows: Rows, what: str) -> dict[str, Row]:
    """Rows with the same class for nodes and pairs that keep curves or images, by class."""
    plain = _plain(rows)
    return {c: plain[c, c] for c in CLASSES if (c, c) in plain and plain[c, c].get(what)}


def potential_curves(rows: Rows, originals: Originals) -> Figure | None:
    """Learned univariate and pairwise functions of their one feature, a column per class."""
    found = {c: row for c, row in _same_class(rows, "curves").items() if c in ("linear", "boosting", "mlp")}
    if not found:
        return None
    figure, axes = panels(2, len(found), (3.2, 2.5))
    for column, (name, row) in zip(axes.T, found.items(), strict=True):
        for ax, (kind, curve) in zip(column, row["curves"].items(), strict=True):
            draw_lines(ax, score_lines(curve["x"], curve["f"], kind))
            ax.set_xlabel("feature")
        column[0].set_title(name)
    for line, text in zip(axes, ("univariate score", "pairwise score"), strict=True):
        line[0].set_ylabel(text)
        line[-1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def predictions(rows: Rows, originals: Originals) -> Figure | None:
    """Input, truth and the prediction of every class (same class for nodes and pairs) on the first test images."""
    found = list(_same_class(rows, "pictures").items())
    return image_figure(strips(found, originals(rows[0]["cell"]), "prediction")) if found else None


def epsilon_curve(rows: Rows, originals: Originals) -> Figure | None:
    """Error of boosted nodes and pairs against epsilon."""
    both = [row for row in _boosted(rows) if row["cell"]["refit"]]
    if len(both) < 2:
        return None
    figure, axes = panels(1, 1, (4.2, 3.2))
    ax, epsilons = axes[0, 0], [row["cell"]["epsilon"] for row in both]
    ax.plot(epsilons, [row["test_error"] for row in both], marker="o", label="test")
    ax.plot(epsilons, [row["train_error"] for row in both], marker="o", linestyle="--", label="training")
    ax.set(xscale="log", xlabel="epsilon", ylabel="error, boosting nodes and pairs")
    ax.set_xticks(epsilons, [f"{e:g}" for e in epsilons])
    ax.minorticks_off()
    ax.set_ylim(bottom=0.0)
    ax.legend()
    return figure


FIGURES = {"learning_curves": learning_curves, "potentials": potential_curves, "predictions": predictions}

"""Tables of iterated logistic regression's studies, ours beside the papers'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..report.tables import Column
from .experiment import Table
from .ilr import CLASSES, FEW, MANY, IlrStudy, is_plain
from .rows import Row

#: Errors of MLP nodes with linear pairs [ILR-slides].
_PAPER_MODES = {"joint": 0.015, "univariate_fixed": 0.095, "piecewise": 0.438}
_LEAVES = {True: "refitted on the loss", False: "mean gradients"}
_ERROR = "{:.4f}".format
_TEST_AND_TRAINING = (Column("test", "test", _ERROR), Column("training", "train", _ERROR))


def tables(study: IlrStudy, rows: Sequence[Row]) -> list[Table]:
    """Test and training errors, how the cells were run, and the study's other parts."""
    found = [_square(study, rows, what) for what in ("test_error", "train_error")]
    found.append(_square(study, rows, "effort"))
    parts = {"modes": _modes, "epsilon": _epsilons, "refit": _refit, "drawn": _drawn}
    found += [make(rows) for part, make in parts.items() if part in study.parts]
    return found


def _square(study: IlrStudy, rows: Sequence[Row], what: str) -> Table:
    """A 5 x 5 table: of one error, ours / the paper's, or of iterations and time."""
    columns = [Column("nodes \\ pairs", "node"), *(Column(edge, edge, str) for edge in CLASSES)]
    lines: list[dict[str, Any]] = [{"node": node} for node in CLASSES]
    for row in rows:
        node, edge = row["cell"]["node"], row["cell"]["edge"]
        if is_plain(row["cell"]):
            i, j = CLASSES.index(node), CLASSES.index(edge)
            lines[i][edge] = _entry(study, row, what, i, j)
    titles = {
        "test_error": "test (ours / paper)",
        "train_error": "training (ours / paper)",
        "effort": "iterations, or L-BFGS steps of convex cells, and seconds",
    }
    title = study.title.partition(":")[0] + ":" if what == "effort" else f"{study.title},"
    return f"{title} {titles[what]}", columns, lines


def _entry(study: IlrStudy, row: Row, what: str, i: int, j: int) -> str:
    if what == "effort":
        return f"{row['iterations']}, {row['seconds']:.0f} s"
    paper = study.paper_test if what == "test_error" else study.paper_train
    return f"{row[what]:.4f} / {paper[i][j]:.3f}"


def _modes(rows: Sequence[Row]) -> Table:
    lines = [
        {"mode": r["cell"]["mode"], "ours": r["test_error"], "paper": _PAPER_MODES[r["cell"]["mode"]]}
        for r in rows
        if r["cell"]["node"] == "mlp" and r["cell"]["edge"] == "linear"
    ]
    columns = [Column("training", "mode"), Column("ours", "ours", _ERROR), Column("paper", "paper", _ERROR)]
    return "MLP nodes, linear pairs: test error", columns, lines


def _boosted(rows: Sequence[Row]) -> list[Row]:
    """Boosting nodes with boosting pairs, trained jointly, by epsilon."""
    both = [r for r in rows if r["cell"]["node"] == r["cell"]["edge"] == "boosting"]
    return sorted(
        (r for r in both if r["cell"]["mode"] == "joint"), key=lambda r: float(r["cell"]["epsilon"])
    )


def _epsilons(rows: Sequence[Row]) -> Table:
    lines = [
        {"epsilon": r["cell"]["epsilon"], "test": r["test_error"], "train": r["train_error"]}
        for r in _boosted(rows)
        if r["cell"]["refit"]
    ]
    columns = [Column("epsilon", "epsilon", str), *_TEST_AND_TRAINING]
    return "Boosting nodes, boosting pairs: error against epsilon", columns, lines


def _refit(rows: Sequence[Row]) -> Table:
    lines = [
        {"leaves": _LEAVES[r["cell"]["refit"]], "test": r["test_error"], "train": r["train_error"]}
        for r in _boosted(rows)
        if r["cell"]["epsilon"] == 0.1
    ]
    return "Boosting nodes, boosting pairs: leaves", [Column("leaves", "leaves"), *_TEST_AND_TRAINING], lines


def _drawn(rows: Sequence[Row]) -> Table:
    """Boosted pairs by the rows that their trees are fitted to, beside linear pairs."""
    named = {"linear": "linear"} | {n: f"boosted, {n:,} rows a tree" for n in (FEW, MANY)}
    beside = [r for r in rows if r["cell"]["node"] == "boosting"]
    found = {r["cell"].get("drawn", FEW) if (e := r["cell"]["edge"]) == "boosting" else e: r for r in beside}
    lines = [
        {
            "pairs": name,
            "test": found[key]["test_error"],
            "train": found[key]["train_error"],
            "objective": found[key]["history"][-1]["objective"],
        }
        for key, name in named.items()
        if key in found
    ]
    columns = [
        Column("pairs", "pairs"),
        *_TEST_AND_TRAINING,
        Column("objective", "objective", "{:,.0f}".format),
    ]
    return "Boosting nodes: pairs by the rows their trees are fitted to", columns, lines

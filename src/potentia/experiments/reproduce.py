"""`potentia reproduce`: run a study and print its tables, ours beside the paper's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .._types import PotentiaError
from ..data.example import Example
from ..report.tables import Column
from .figures import draw
from .ilr import CLASSES, MODES, STUDIES, Study, run
from .rows import Row

#: Errors of MLP nodes with linear pairs [ILR-slides].
_PAPER_MODES = {"joint": 0.015, "univariate_fixed": 0.095, "piecewise": 0.438}


def reproduce(name: str, quick: bool, out: Path, say: Callable[[str], None]) -> list[Row]:
    """Run what is not done yet, draw the figures into `out`, and return all rows."""
    if name not in STUDIES:
        raise PotentiaError(f"there is no study {name!r}; there are {', '.join(STUDIES)}")
    study = STUDIES[name]
    rows = run(name, quick, out, say)
    _, test = study.load(quick)
    draw(study, rows, test, [_size(example) for example in test], out)
    return rows


def _size(example: Example) -> tuple[int, int]:
    """Height and width of a grid in raster order: the second edge of pixel 0 leads to the next row."""
    first = example.graph.scopes["edge"]
    step = int((first[:, 1] - first[:, 0]).max())
    return example.graph.n_variables // step, step


def tables(name: str, rows: Sequence[Row]) -> list[tuple[str, list[Column], list[dict[str, Any]]]]:
    """Titles, columns and rows to print."""
    study = STUDIES[name]
    found = [_error_table(study, rows, part) for part in ("test_error", "train_error")]
    modes = [r for r in rows if r["cell"]["node"] == "mlp" and r["cell"]["edge"] == "linear"]
    if "modes" in study.parts and len(modes) >= len(MODES):
        lines = [
            {"mode": r["cell"]["mode"], "ours": r["test_error"], "paper": _PAPER_MODES[r["cell"]["mode"]]}
            for r in modes
        ]
        number = "{:.3f}".format
        columns = [
            Column("training", "mode"),
            Column("ours", "ours", number),
            Column("paper", "paper", number),
        ]
        found.append(("MLP nodes, linear pairs: test error", columns, lines))
    return found


def _error_table(
    study: Study, rows: Sequence[Row], part: str
) -> tuple[str, list[Column], list[dict[str, Any]]]:
    """The 5 x 5 table of one error: ours / the paper's."""
    paper = study.paper_test if part == "test_error" else study.paper_train
    columns = [Column("nodes \\ pairs", "node"), *(Column(edge, edge, str) for edge in CLASSES)]
    lines = []
    for i, node in enumerate(CLASSES):
        line: dict[str, Any] = {"node": node}
        for j, edge in enumerate(CLASSES):
            for row in rows:
                cell = row["cell"]
                plain = cell["mode"] == "joint" and cell["epsilon"] == 0.1 and cell["refit"]
                if plain and (cell["node"], cell["edge"]) == (node, edge):
                    line[edge] = f"{row[part]:.3f} / {paper[i][j]:.3f}"
        lines.append(line)
    kind = "test" if part == "test_error" else "training"
    return f"{study.title}, {kind} (ours / paper)", columns, lines

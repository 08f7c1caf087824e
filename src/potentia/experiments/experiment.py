"""What every one of the papers' experiments offers to `potentia reproduce`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..report.pictures import Original
from ..report.tables import Column
from .rows import Cell, Row, run_cells

#: Title, columns and lines to print.
Table = tuple[str, list[Column], list[dict[str, Any]]]

Say = Callable[[str], None]


@dataclass(frozen=True)
class Experiment:
    """What runs the cells, and the tables and figures that their rows make.

    Attributes:
        run: run(quick, full, folder, say) gives the rows of all cells, of which finished ones are in folder/rows.jsonl.
        tables: ours beside the paper's.
        draw: draw(rows, quick, folder) writes the figures that the rows allow.
        originals: of the pictures that a cell's row keeps predictions of, read from the data anew.
    """

    run: Callable[[bool, bool, Path, Say], list[Row]]
    tables: Callable[[Sequence[Row]], list[Table]]
    draw: Callable[[Sequence[Row], bool, Path], None]
    originals: Callable[[Cell], list[Original]] = lambda cell: []


def runner(
    cells: Callable[[bool, bool], list[Cell]], prepare: Callable[[bool], Callable[[Cell], Row]]
) -> Callable[[bool, bool, Path, Say], list[Row]]:
    """An experiment's `run` from its cells(quick, full) and prepare(quick), which gives what runs one cell."""
    return lambda quick, full, out, say: run_cells(cells(quick, full), prepare(quick), out, say)

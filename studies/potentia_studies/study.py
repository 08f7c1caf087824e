"""`Study`: one of the papers' experiments as data; and the runner that all studies share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from PIL import Image

from potentia.app.report.rows import Cell, Column, Row, Say, Table, run_cells
from potentia.base.files import replacing

from .row_images import Original

Rows = Sequence[Row]
Originals = Callable[[Cell], list[Original]]


@dataclass(frozen=True)
class Study:
    """A study: which cells there are, and how to load, run, tabulate and draw.

    Attributes:
        name: also the "study" of its cells.
        cells: all cells in the order of running, each with its identifying values; see `all_cells`.
        quick: the few cells of a quick run.
        load: load(quick, *values) gives the data of a cell; values are those of the cell's `needs`.
        run: run(cell, data) gives the cell's result.
        tables: of rows, ours beside the paper's.
        figures: by file name, figure(rows, originals) or None if the rows allow none.
        needs: keys of a cell that choose its data.
        folds: of cross-validation, of which the first is run by default; 0 where cells have no "fold".
        originals: originals(quick, *values), what the images in rows show.
    """

    name: str
    cells: Sequence[Cell]
    quick: Sequence[Cell]
    run: Callable[[Cell, Any], Row]
    tables: Callable[[Rows], list[Table]]
    figures: Mapping[str, Callable[[Rows, Originals], Figure | None]] = field(default_factory=dict)
    load: Callable[..., Any] = lambda quick: None
    needs: tuple[str, ...] = ()
    folds: int = 0
    originals: Callable[..., list[Original]] = lambda quick, *values: []

    def all_cells(self, quick: bool, full: bool = False) -> list[Cell]:
        """The cells of a run; full: of all folds."""
        base = {"study": self.name, "quick": quick, "seed": 0}
        own = [base | cell for cell in (self.quick if quick else self.cells)]
        if not self.folds:
            return own
        return [cell | {"fold": fold} for fold in range(self.folds if full else 1) for cell in own]

    def reproduce(self, quick: bool, out: Path, say: Say = lambda text: None, full: bool = False) -> Rows:
        """Run the cells that have no row in out/rows.jsonl yet, draw all figures, and return all rows."""
        load = lru_cache(1)(self.load)  # cells of the same data follow one another
        rows = run_cells(self.all_cells(quick, full), lambda cell: self.run(cell, load(*self._choice(cell))), out, say)
        for name, figure in self.figures.items():
            drawn = figure(rows, self.originals_of)
            if drawn is not None:
                save_figure(drawn, out / f"{name}.png")
        return rows

    def originals_of(self, cell: Cell) -> list[Original]:
        """What the images in a cell's row show, read from the data again."""
        return self._originals(*self._choice(cell))

    @cached_property
    def _originals(self) -> Callable[..., list[Original]]:
        return cache(self.originals)

    def _choice(self, cell: Cell) -> list[Any]:
        return [cell[key] for key in ("quick", *self.needs)]


def save_figure(figure: Figure, path: Path) -> None:
    """Write a PNG file of 256 colours, a third of the size of one in full colour."""
    drawn = BytesIO()
    figure.savefig(drawn, dpi=120)
    colours = Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    with replacing(path) as raw:
        colours.save(raw, format="PNG", optimize=True)


def matrix(
    title: str,
    heads: Sequence[str],
    lines: Mapping[Any, Sequence[str]],
    columns: Mapping[Any, str],
    entries: Mapping[tuple[Any, Any], str],
) -> Table:
    """A table of entries by (line, column); lines and columns are shown in order, under `heads` and their names."""
    shown = [Column(head, head) for head in heads] + [Column(text, str(k), str) for k, text in columns.items()]
    body = [
        dict(zip(heads, names, strict=True)) | {str(k): entries[key, k] for k in columns if (key, k) in entries}
        for key, names in lines.items()
    ]
    return Table(title, shown, body)


def part_rows(rows: Rows, name: str) -> list[Row]:
    """The rows whose cells are of this "part", with what is in their cells."""
    return [{**row["cell"], **row} for row in rows if row["cell"]["part"] == name]

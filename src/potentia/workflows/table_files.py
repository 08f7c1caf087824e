"""Tables from CSV and Parquet files, as columns of text."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .._available import check_memory
from .._files import replacing
from .._text import check_pieces, read_text
from .._types import PotentiaError
from .outputs import write_text

#: A column's cells as text, None if the value is missing.
Column = list[str | None]
Table = dict[str, Column]

#: Rows of a Parquet file that are read at a time, and bytes of a short cell as a string in a list.
_BATCH, _CELL_BYTES = 1 << 14, 64
#: Texts that stand for a missing value, in any case.
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})


def read_table(path: Path) -> Table:
    """The columns of a table: Parquet where the name ends in .parquet, else CSV with a header.

    CSV is UTF-8 with commas, semicolons or tabs, whichever the header has most of.
    """
    if not path.is_file():
        raise PotentiaError(f"{path}: there is no such file.")
    table = _parquet(path) if path.suffix.lower() == ".parquet" else _csv(path)
    if not table or not next(iter(table.values())):
        raise PotentiaError(f"{path} has no rows.")
    return table


def write_table(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Columns as Parquet where the name ends in .parquet, else as CSV; whole or not at all."""
    if path.suffix.lower() == ".parquet":
        arrow, parquet = _pyarrow()
        with replacing(path) as raw:
            parquet.write_table(arrow.table({name: _typed(column) for name, column in columns.items()}), raw)
        return
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_no_formula, columns))
    writer.writerows(map(_no_formula, row) for row in zip(*columns.values(), strict=True))
    write_text(path, text.getvalue())


def _no_formula(cell: Any) -> Any:
    """A cell that a spreadsheet would run as a formula, as text: with an apostrophe in front; numbers stay."""
    if not isinstance(cell, str) or not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def _csv(path: Path) -> Table:
    text = read_text(path, "utf-8-sig")
    head = text.partition("\n")[0]
    delimiter = max(",;\t", key=head.count)
    check_pieces(path, text, f"{delimiter}\n")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        names = [name.strip() for name in next(reader, [])]
        rows = list(reader)
    except csv.Error as error:
        raise PotentiaError(f"{path}, line {reader.line_num}: {error}.") from None
    _check_names(path, names)
    while rows and not rows[-1]:
        rows.pop()
    # where there is one column, a blank line is a row whose cell is missing
    rows = [row or [""] for row in rows] if len(names) == 1 else [row for row in rows if row]
    for number, row in enumerate(rows, 1):
        if len(row) != len(names):
            raise PotentiaError(f"{path}: row {number} has {len(row)} cells, but the header {len(names)}.")
    return {name: [_cell(row[k]) for row in rows] for k, name in enumerate(names)}


def _parquet(path: Path) -> Table:
    arrow, parquet = _pyarrow()
    try:
        with parquet.ParquetFile(path) as file:
            names, n_rows = file.schema_arrow.names, file.metadata.num_rows
            _check_names(path, names)
            _check_cells(path, n_rows, _CELL_BYTES * len(names))
            table: Table = {name: [] for name in names}
            done = 0
            for batch in file.iter_batches(_BATCH):
                done, size = done + batch.num_rows, 0
                for name, column in zip(names, batch.columns, strict=True):
                    cells = [_text(value) for value in column.to_pylist()]
                    size += sum(len(cell) for cell in cells if cell)
                    table[name] += cells
                # a text that the file holds once may stand in every row
                _check_cells(path, n_rows - done, size / max(batch.num_rows, 1))
    except PotentiaError:
        raise
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise PotentiaError(f"{path}: this is not a readable Parquet file ({error}).") from None
    return table


def _check_cells(path: Path, n_rows: int, row_bytes: float) -> None:
    check_memory(
        n_rows * row_bytes, f"{path}, a table of {n_rows} further rows,", "cut it into several files"
    )


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise PotentiaError("Parquet files need pyarrow (pip install potentia[parquet]).") from None
    return pyarrow, parquet


def _check_names(path: Path, names: Sequence[str]) -> None:
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise PotentiaError(f"{path} has two columns {twice!r}.")


def _typed(column: Sequence[Any]) -> list[Any]:
    """Numbers as they are, and texts as whole numbers where all are some, spelled as numbers are."""
    if not all(isinstance(cell, str) for cell in column):
        return list(column)
    if all(cell.lstrip("-").isdecimal() and str(int(cell)) == cell for cell in column):
        return [int(cell) for cell in column]
    return list(column)


def _cell(text: str) -> str | None:
    cell = text.strip()
    return None if cell.lower() in MISSING else cell


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(int(value))
    return None if value is None else _cell(str(value))

"""Tables from CSV and Parquet files, as columns of text."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..base.files import check_pieces, read_text, replacing
from ..base.resources import check_memory
from ..base.types import Floats, Ints, PotentiaError
from .pipeline import write_text

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
    runs = isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{cell}" if runs and not _is_number(cell) else cell


def _csv(path: Path) -> Table:
    """The columns of a CSV file, whose delimiter is the most frequent in its first line."""
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
    """The columns of a Parquet file as texts, read in batches of bounded memory."""
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
    """Refuse a table that does not fit in memory."""
    what = f"{path}, a table of {n_rows} further rows,"
    check_memory(n_rows * row_bytes, what, "cut it into several files")


def _pyarrow() -> tuple[Any, Any]:
    """pyarrow and its parquet module, or a sentence that says how to install them."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise PotentiaError("Parquet files need pyarrow (pip install potentia[parquet]).") from None
    return pyarrow, parquet


def _check_names(path: Path, names: Sequence[str]) -> None:
    """Refuse two columns of one name."""
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise PotentiaError(f"{path} has two columns {twice!r}.")


def _typed(column: Sequence[Any]) -> list[Any]:
    """A column with texts turned into integers if every cell is an integer in plain spelling, else unchanged."""
    texts = all(isinstance(cell, str) for cell in column)
    whole = texts and all(cell.lstrip("-").isdecimal() and str(int(cell)) == cell for cell in column)
    return [int(cell) for cell in column] if whole else list(column)


def _cell(text: str) -> str | None:
    """A cell's text; None if it is missing."""
    cell = text.strip()
    return None if cell.lower() in MISSING else cell


def _text(value: Any) -> str | None:
    """A value of a Parquet file as a cell's text."""
    if isinstance(value, bool):
        return str(int(value))
    return None if value is None else _cell(str(value))


#: Words for a label that is present, and for one that is absent.
_YES = {
    "yes", "y", "true", "t", "ja", "j", "wahr", "oui", "vrai", "si", "sí", "sim", "da", "positive", "pos", "on"
}  # fmt: skip
_NO = {"no", "n", "false", "f", "nein", "falsch", "non", "faux", "não", "net", "nej", "negative", "neg", "off"}
#: Names of columns that number rows.
_ROW_NAMES = frozenset({"", "id", "index", "row", "row_id"})
#: Different texts beyond which a column names rows rather than sorts them.
_MOST = 1000
#: Number of missing values in training from which on a column gets an indicator of missing values.
_SEVERAL = 5
#: The largest standardised number, which models that compute in float32 still take.
_LARGEST = float(np.finfo(np.float32).max)


@dataclass
class Feature:
    """A column as features: a standardised number, or one-hot encoded texts that training had.

    A missing number counts as the mean of training, with an indicator beside it where training had several missing;
    a missing text, or one that training did not have, counts as none of the texts.
    """

    name: str
    mean: float = 0.0
    scale: float = 1.0
    texts: list[str] | None = None
    missing: bool = False

    @property
    def width(self) -> int:
        """How many features the column has."""
        return 1 + self.missing if self.texts is None else len(self.texts)

    def knows(self, column: Column) -> bool | None:
        """Whether training had any of a column's texts; None for columns of numbers or without values."""
        given = {_category(cell) for cell in column if cell is not None}
        return None if self.texts is None or not given else not given.isdisjoint(self.texts)

    def matrix(self, column: Column) -> Floats:
        """The column's features, (n, 1), (n, 2) or (n, number of texts)."""
        if self.texts is not None:
            same = [[_category(cell) == text for text in self.texts] for cell in column]
            return np.array(same, dtype=float).reshape(len(column), len(self.texts))
        values = np.array([_number(cell, self.name, row) for row, cell in enumerate(column, 1)])
        lost = np.isnan(values)
        with np.errstate(over="ignore"):
            numbers = (np.where(lost, self.mean, values) - self.mean) / self.scale
        huge = np.abs(numbers) > _LARGEST
        if huge.any():
            row = int(huge.argmax())
            raise PotentiaError(
                f"row {row + 1} of column {self.name!r} is {column[row]!r}, too large to compute with: training had "
                f"{self.mean:.4g} on average, with a standard deviation of {self.scale:.4g}."
            )
        return np.column_stack([numbers, lost] if self.missing else [numbers])


def learn_feature(name: str, column: Column, categorical: bool = False) -> Feature:
    """A column of numbers where every value is one, unless it is categorical; else of texts."""
    known = [cell for cell in column if cell is not None]
    if not known:
        raise PotentiaError(f"column {name!r} has no values; --ignore {name} leaves it out.")
    if not categorical and all(_is_number(cell) for cell in known):
        values = np.array([_number(cell, name, row) for row, cell in enumerate(column, 1)])
        with np.errstate(over="ignore", invalid="ignore"):
            mean, scale = float(np.nanmean(values)), float(np.nanstd(values))
        if not np.isfinite(mean) or not np.isfinite(scale):
            raise PotentiaError(f"column {name!r} has numbers too large to compute with: scale the column.")
        lost = len(column) - len(known) >= _SEVERAL
        return Feature(name, mean, scale if scale > 0 else 1.0, missing=lost)
    texts = sorted({str(_category(cell)) for cell in known})
    if len(texts) > _MOST:
        raise PotentiaError(f"column {name!r} has {len(texts)} different texts; --ignore {name} leaves it out.")
    return Feature(name, texts=texts)


@dataclass
class Label:
    """A label's values as text, the absent one first; a label that was constant in training has one.

    `texts`: the values as training's table spells them.
    """

    name: str
    values: list[str]
    texts: list[str]

    @property
    def present(self) -> int:
        """What the last value is coded as: a lone value is present where it is a number above zero."""
        lone = self.values[-1]
        return int(len(self.values) == 2 or (_is_number(lone) and float(lone) > 0))

    @property
    def shown(self) -> str:
        """Its name for columns of probabilities, with the value that counts as present where values are texts."""
        if all(map(_is_number, self.texts)):
            return self.name
        return f"{self.name}={self.texts[-1 if self.present else 0]}"

    def encode(self, column: Column) -> Ints:
        """1 where present, 0 where absent; refuses values that training did not have."""
        cells = [_plain(cell, self.name, row) for row, cell in enumerate(column, 1)]
        strange = list(dict.fromkeys(cell for cell in cells if cell not in self.values))
        if len(strange) + len(self.values) > 2:
            known = " and ".join(map(repr, self.values))
            raise PotentiaError(f"label {self.name!r} has the value {strange[0]!r}, but training had {known}.")
        last = np.array([cell == self.values[-1] for cell in cells])
        return np.where(last, self.present, 1 - self.present)

    def decode(self, states: Ints) -> list[str]:
        """States as training's texts."""
        return [self.texts[-1] if state == self.present else self.texts[0] for state in states]


def learn_label(name: str, column: Column) -> Label:
    """The values of a label, the present one last: of numbers the larger, of texts a word for yes, else the rarer."""
    spelled: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for row, cell in enumerate(column, 1):
        value = _plain(cell, name, row)
        spelled.setdefault(value, str(cell))
        counts[value] += 1
    if len(spelled) > 2:
        shown = ", ".join(map(repr, sorted(spelled)[:3])) + (", ..." if len(spelled) > 3 else "")
        raise PotentiaError(f"label {name!r} takes {len(spelled)} values ({shown}); a label takes two.")
    if all(_is_number(value) for value in spelled):
        values = sorted(spelled, key=float)
    else:
        # equally frequent ones in the order of the alphabet
        values = sorted(spelled, key=lambda value: (_meaning(value), -counts[value], value.casefold()))
    return Label(name, values, [spelled[value] for value in values])


def is_row_number(name: str, column: Column) -> bool:
    """Whether a column numbers the rows: called id or index, or without a name, and whole numbers that all differ."""
    if name.casefold() not in _ROW_NAMES and not name.casefold().startswith("unnamed:"):
        return False
    whole = all(cell is not None and _is_number(cell) and float(cell).is_integer() for cell in column)
    return whole and len(set(column)) == len(column) > 2


def _meaning(value: str) -> int:
    """1 for a word that says yes, -1 for one that says no, else 0."""
    word = value.strip().casefold()
    return int(word in _YES) - int(word in _NO)


def _is_number(cell: str) -> bool:
    """Whether a cell is a number, without underscores."""
    with suppress(ValueError):
        float(cell)
        return "_" not in cell  # which Python takes for a separator of digits
    return False


def _category(cell: str | None) -> str | None:
    """A category with one spelling per number, so that 1 and 1.0 are one."""
    if cell is None or not _is_number(cell) or not float(cell).is_integer():
        return cell
    return str(int(float(cell)))


def _number(cell: str | None, name: str, row: int) -> float:
    """A cell as a number, NaN where missing."""
    if cell is None:
        return np.nan
    if not _is_number(cell) or not np.isfinite(float(cell)):
        raise PotentiaError(f"row {row} of column {name!r} is {cell!r}, which is not a finite number.")
    return float(cell)


def _plain(cell: str | None, name: str, row: int) -> str:
    """A label's cell with one spelling per number, so that 1 and 1.0 are one value."""
    if cell is None:
        raise PotentiaError(f"row {row} has no value for the label {name!r}.")
    if not _is_number(cell):
        return cell
    number = float(cell)
    return str(int(number)) if number.is_integer() else repr(number)

"""Tables from CSV and Parquet files, as columns of text."""

from __future__ import annotations

import csv
import datetime
import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import HashingVectorizer

from ..base.files import check_pieces, read_text, replacing
from ..base.resources import check_memory
from ..base.types import Ints, PotentiaError, is_number, shown, warn_caller
from .pipeline import write_text

#: A column's cells as text, None if the value is missing.
Column = list[str | None]
Table = dict[str, Column]

#: Rows of a Parquet file that are read at a time, and bytes of a short cell as a string in a list.
_BATCH, _CELL_BYTES = 1 << 14, 64
#: What the delimiter of a CSV file is recognised from.
_HEAD_ROWS, _HEAD_CHARACTERS = 20, 1 << 16
#: Texts that stand for a missing value, in any case.
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})


def read_table(path: Path) -> Table:
    """The columns of a table: Parquet where the name ends in .parquet, else CSV with a header.

    CSV is UTF-8, or else Windows-1252, with commas, semicolons or tabs, whichever cut its first lines evenly.
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
    return f"'{cell}" if runs and not is_number(cell) else cell


def _csv(path: Path) -> Table:
    """The columns of a CSV file."""
    text = _decoded(path)
    if text[:4].lower() == "sep=":  # a line that tells Excel the delimiter
        text = text.partition("\n")[2]
    delimiter = _delimiter(text)
    check_pieces(path, text, f"{delimiter}\n")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        names = [name.strip() for name in next(reader, [])]
        rows = list(reader)
    except csv.Error as error:
        raise PotentiaError(f"{path}, line {reader.line_num}: {error}.") from None
    while rows and not any(cell.strip() for cell in rows[-1]):
        rows.pop()
    # where there is one column, a blank line is a row whose cell is missing
    rows = [row or [""] for row in rows] if len(names) == 1 else [row for row in rows if row]
    for number, row in enumerate(rows, 1):
        if len(row) != len(names):
            raise PotentiaError(f"{path}: row {number} has {len(row)} cells, but the header {len(names)}.")
    # delimiters at the end of lines make columns without name or cells
    kept = [k for k, name in enumerate(names) if name or any(row[k].strip() for row in rows)]
    _check_names(path, [names[k] for k in kept])
    return {names[k]: [_cell(row[k]) for row in rows] for k in kept}


def _decoded(path: Path) -> str:
    """The text of a file in UTF-8 or UTF-16 or, where it is neither, in Windows-1252, which extends Latin-1."""
    try:
        return read_text(path, "utf-8-sig")
    except PotentiaError as error:
        if not isinstance(error.__context__, UnicodeDecodeError):
            raise
    try:
        text = read_text(path, "cp1252")
    except PotentiaError:
        raise PotentiaError(f"{path}: the text is not UTF-8; save the table in UTF-8.") from None
    warn_caller(f"{path}: the text is not UTF-8, so it is read as Windows-1252 (Latin-1).", UserWarning)
    return text


def _delimiter(text: str) -> str:
    """The delimiter that cuts most of the first lines into as many cells as the header, and that into most cells."""
    ranks = []
    for place, delimiter in enumerate(",;\t"):
        lines = io.StringIO(text[:_HEAD_CHARACTERS], newline="")
        with suppress(csv.Error):
            rows = [row for row, _ in zip(csv.reader(lines, delimiter=delimiter), range(_HEAD_ROWS), strict=False)]
            width = len(rows[0]) if rows else 0
            alike = sum(len(row) == width for row in rows if row)
            ranks.append((width > 1, alike, width, -place, delimiter))
    return max(ranks)[-1] if ranks else ","


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
    whole = all(isinstance(cell, str) and _WHOLE.fullmatch(cell) for cell in column)
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
#: Different tags that lists of tags may have.
_MOST_TAGS = 1000
#: Features of a column of text.
_HASHES = 2048
#: Number of missing values in training from which on a column gets an indicator of missing values.
_SEVERAL = 5
#: The largest standardised number, which models that compute in float32 still take.
_LARGEST = float(np.finfo(np.float32).max)


@dataclass
class Feature:
    """A column as features: a standardised number, one-hot encoded texts that training had, or hashed n-grams.

    A missing number counts as the mean of training, with an indicator beside it where training had several missing;
    a missing text, or one that training did not have, counts as none of the texts.

    style: of `STYLES`; the features of "text" are counts of words and of pairs of neighbouring words by hash, of
    length 1 in every row.
    """

    name: str
    mean: float = 0.0
    scale: float = 1.0
    texts: list[str] | None = None
    missing: bool = False
    style: str = "plain"

    @property
    def width(self) -> int:
        """How many features the column has."""
        if self.style == "text":
            return _HASHES
        return 1 + self.missing if self.texts is None else len(self.texts)

    def knows(self, column: Column) -> bool | None:
        """Whether training had any of a column's texts; None for columns of numbers or without values."""
        given = {_category(cell) for cell in column if cell is not None}
        return None if self.texts is None or not given else not given.isdisjoint(self.texts)

    def matrix(self, column: Column) -> Any:
        """The column's features, (n, 1), (n, 2) or (n, number of texts); sparse those of text."""
        if self.style == "text":
            hashes = HashingVectorizer(ngram_range=(1, 2), n_features=_HASHES)
            return sparse.csr_array(hashes.transform([cell or "" for cell in column]))
        if self.texts is not None:
            same = [[_category(cell) == text for text in self.texts] for cell in column]
            return np.array(same, dtype=float).reshape(len(column), len(self.texts))
        values = np.array([_number(cell, self.name, row, self.style) for row, cell in enumerate(column, 1)])
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
    style = None if categorical else _style(name, known)
    if style is not None:
        values = np.array([_number(cell, name, row, style) for row, cell in enumerate(column, 1)])
        with np.errstate(over="ignore", invalid="ignore"):
            mean, scale = float(np.nanmean(values)), float(np.nanstd(values))
        if not np.isfinite(mean) or not np.isfinite(scale):
            raise PotentiaError(f"column {name!r} has numbers too large to compute with: scale the column.")
        lost = len(column) - len(known) >= _SEVERAL
        return Feature(name, mean, scale if scale > 0 else 1.0, missing=lost, style=style)
    texts = sorted({str(_category(cell)) for cell in known})
    if len(texts) > _MOST:
        raise PotentiaError(
            f"column {name!r} has {len(texts)} different texts; --ignore {name} leaves it out, and --text "
            f"{name} reads its words."
        )
    return Feature(name, texts=texts)


#: How a column writes numbers: as Python reads them; with a decimal point or comma, thousands separators, currencies
#: and %; as dates by the order of year, month and day.
NUMBERS = ("plain", "point", "comma", "ymd", "dmy", "mdy")
#: How a column is read: as numbers, or as text of words. A column of categories has the style "plain" and texts.
STYLES = (*NUMBERS, "text")
_CURRENCY = re.compile(r"[$€£¥₹]|(?<![A-Za-z])(?:USD|EUR|GBP|CHF|JPY|kr)(?![A-Za-z])")
_GROUPED = {
    style: re.compile(rf"[-+]?(\d+|[1-9]\d{{0,2}}({group}\d{{3}})+)?({point}\d*)?([eE][-+]?\d+)?")
    for style, point, group in (("point", r"\.", r"[,' ]"), ("comma", ",", r"[.' ]"))
}
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")
_DATE = re.compile(
    r"(\d{1,4})([-./])(\d{1,2})\2(\d{1,4})(?:[T ]+(\d{1,2}):(\d{2})(?::(\d{2})(?:\.\d+)?)?(?:Z|[-+]\d\d:?\d\d)?)?"
)


def _style(name: str, known: Sequence[str]) -> str | None:
    """How a column writes its numbers, of `NUMBERS`; None for a column of texts."""
    if all(map(is_number, known)):
        return "plain"
    fitting = [style for style in NUMBERS[1:] if all(_read(cell, style) is not None for cell in known)]
    if fitting == ["dmy", "mdy"] and any(_read(cell, "dmy") != _read(cell, "mdy") for cell in known):
        raise PotentiaError(
            f"column {name!r} has dates such as {known[0]!r}, whose day and month cannot be told apart: write them as "
            "2024-12-31."
        )
    symbols = sorted({found[0] for cell in known if fitting and (found := _CURRENCY.search(cell))})
    if len(symbols) > 1:
        raise PotentiaError(f"column {name!r} mixes the currencies {' and '.join(symbols)}: convert them to one.")
    # 1,200 is more often a number above a thousand than one with three decimals
    return fitting[0] if fitting else None


def _read(cell: str, style: str) -> float | None:
    """A cell as a number in one of `NUMBERS`, a date as days; None if it is none."""
    if style == "plain":
        return float(cell) if is_number(cell) else None
    return _amount(cell, style) if style in _GROUPED else _days(cell, style)


def _amount(cell: str, style: str) -> float | None:
    text = re.sub(r"[\u00a0\u202f\u2009]", " ", cell).replace("\u2212", "-").replace("\u2019", "'")
    text = re.sub(r"^([-+]) +", r"\1", _CURRENCY.sub("", text).strip())
    number = text.removesuffix("%").strip()
    if not any(map(str.isdigit, number)) or not _GROUPED[style].fullmatch(number):
        return None
    value = float(re.sub(r"[' ]", "", number.replace("," if style == "point" else ".", "")).replace(",", "."))
    return value / 100.0 if text.endswith("%") else value


def _days(cell: str, order: str) -> float | None:
    found = _DATE.fullmatch(cell)
    if found is None or (order == "mdy" and found[2] == "."):
        return None
    first, last = found[1], found[4]
    if (len(first), len(last) < 3) != (4, True) if order == "ymd" else len(first) > 2 or len(last) not in (2, 4):
        return None
    parts = dict(zip(order, (int(first), int(found[3]), int(last)), strict=True))
    century = 0 if parts["y"] > 99 else 1900 if parts["y"] > 68 else 2000
    try:
        day = datetime.date(century + parts["y"], parts["m"], parts["d"]).toordinal()
    except ValueError:
        return None
    hour, minute, second = (int(part or 0) for part in found.groups()[4:])
    return day + (hour + (minute + second / 60.0) / 60.0) / 24.0


@dataclass
class Label:
    """A label's values as text, the absent one first; a label that was constant in training has one.

    `texts`: the values as training's table spells them; of marks in a column that is blank elsewhere, the absent one is
    empty. Where `separator` is given, the label is a tag, the last of `texts`, in lists of tags in `column`.
    """

    name: str
    values: list[str]
    texts: list[str]
    column: str = ""
    separator: str = ""

    @property
    def source(self) -> str:
        """The column that has the label."""
        return self.column or self.name

    @property
    def present(self) -> int:
        """What the last value is coded as: a lone value is present where it is a number above zero."""
        lone = self.values[-1]
        return int(len(self.values) == 2 or (is_number(lone) and float(lone) > 0))

    @property
    def shown(self) -> str:
        """Its name for columns of probabilities, with the value that counts as present where values are texts."""
        if self.separator or all(map(is_number, self.texts)):
            return self.name
        return f"{self.name}={self.texts[-1 if self.present else 0]}"

    def encode(self, column: Column) -> Ints:
        """1 where present, 0 where absent, -1 where missing; refuses values that training did not have."""
        if self.separator:
            return np.array([self.texts[-1] in tags_of(cell, self.separator) for cell in column], dtype=np.int64)
        blank = "" if "" in self.values else None
        cells = [blank if cell is None else _plain(cell) for cell in column]
        strange = list(dict.fromkeys(cell for cell in cells if cell is not None and cell not in self.values))
        if len(strange) + len(self.values) > 2:
            known = " and ".join(map(repr, self.values))
            raise PotentiaError(f"label {self.name!r} has the value {strange[0]!r}, but training had {known}.")
        codes = {None: -1, self.values[-1]: self.present}
        return np.array([codes.get(cell, 1 - self.present) for cell in cells], dtype=np.int64)

    def decode(self, states: Ints) -> list[str]:
        """States as training's texts."""
        return [self.texts[-1] if state == self.present else self.texts[0] for state in states]


def tags_of(cell: str | None, separator: str) -> list[str]:
    """The tags of a cell."""
    return [tag for part in (cell or "").split(separator) if (tag := part.strip())]


def learn_labels(name: str, column: Column) -> list[Label]:
    """The label of a column or, of a column of lists of tags such as "a|b", a label for each tag."""
    for separator in "|;,":
        if any(separator in (cell or "") for cell in column):
            tags = sorted({tag for cell in column for tag in tags_of(cell, separator)})
            listed = separator == "|" or len({cell for cell in column if cell}) > 2
            if listed and 2 <= len(tags) <= _MOST_TAGS:
                return [Label(f"{name}={tag}", ["", tag], ["", tag], name, separator) for tag in tags]
    return [learn_label(name, column)]


def learn_label(name: str, column: Column) -> Label:
    """The values of a label, the present one last: of numbers the larger, of texts a word for yes, else the rarer.

    In a column of one mark, such as x, blank cells are absent; beside two values, they are missing.
    """
    known = [cell for cell in column if cell is not None]
    if len(set(known)) == 1 and None in column:
        mark = known[0]
        absent = float(mark) <= 0 if is_number(mark) else _meaning(mark) < 0
        if not absent:
            return Label(name, ["", _plain(mark)], ["", mark])
    counts = Counter(map(_plain, known))
    spelled = {_plain(cell): cell for cell in reversed(known)}  # as first spelled
    if len(spelled) < 2 and None in column:
        row = column.index(None) + 1
        raise PotentiaError(f"row {row} has no value for the label {name!r}: fill it in, or leave out the row.")
    if len(spelled) > 2:
        shown = ", ".join(map(repr, sorted(spelled)[:3])) + (", ..." if len(spelled) > 3 else "")
        raise PotentiaError(f"label {name!r} takes {len(spelled)} values ({shown}); a label takes two.")
    if all(map(is_number, counts)):
        values = sorted(counts, key=float)
    else:
        # equally frequent ones in the order of the alphabet
        values = sorted(counts, key=lambda value: (_meaning(value), -counts[value], value.casefold()))
    return Label(name, values, [spelled[value] for value in values])


def is_row_number(name: str, column: Column) -> bool:
    """Whether a column numbers the rows: called id or index, or without a name, and whole numbers that all differ."""
    if name.casefold() not in _ROW_NAMES and not name.casefold().startswith("unnamed:"):
        return False
    whole = all(cell is not None and is_number(cell) and float(cell).is_integer() for cell in column)
    return whole and len(set(column)) == len(column) > 2


def _meaning(value: str) -> int:
    """1 for a word that says yes, -1 for one that says no, else 0."""
    word = value.strip().casefold()
    return int(word in _YES) - int(word in _NO)


def _category(cell: str | None) -> str | None:
    """A category with one spelling per number, so that 1 and 1.0 are one."""
    if cell is None or not is_number(cell) or not float(cell).is_integer():
        return cell
    return str(int(float(cell)))


def _number(cell: str | None, name: str, row: int, style: str = "plain") -> float:
    """A cell as a number, NaN where missing; with a decimal point it may be plain, too."""
    if cell is None:
        return np.nan
    value = _read(cell, style)
    if value is None and style == "point":
        value = _read(cell, "plain")
    if value is None or not np.isfinite(value):
        what = "a date" if style in NUMBERS[3:] else "a finite number"
        raise PotentiaError(f"row {row} of column {name!r} is {shown(cell)}, which is not {what}.")
    return value


def _plain(cell: str) -> str:
    """A label's cell with one spelling per number, so that 1 and 1.0 are one value."""
    if not is_number(cell):
        return cell
    number = float(cell)
    return str(int(number)) if number.is_integer() else repr(number)

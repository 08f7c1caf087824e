"""Result rows on disk: JSON lines, each with the cell that it is the result of."""

from __future__ import annotations

import json
import platform
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from ...base.files import locked_folder, replacing
from ...base.html import Markup, tag
from ...base.types import PotentiaError, printable

#: Packages whose versions go into every row.
_PACKAGES = ("numpy", "scipy", "numba", "scikit-learn")
#: The values that identify a run, and its result.
Cell = dict[str, Any]
Row = dict[str, Any]


def versions() -> dict[str, str]:
    """The versions that a row's result was made with."""
    return {name: version(name) for name in _PACKAGES} | {"python": platform.python_version()}


def read_rows(path: Path) -> list[Row]:
    """Rows of a file of JSON lines; empty if there is no file. A last line cut short by a crash is dropped."""
    if not path.exists():
        return []
    if not path.is_file():
        raise PotentiaError(f"{path} is not a file.")
    rows = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise PotentiaError(f"{path} is not UTF-8 text.") from None
    except OSError as error:
        raise PotentiaError(f"{path} cannot be read: {error.strerror or error}.") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        # the decoder also refuses numbers of thousands of digits and deep nesting
        except (ValueError, RecursionError):
            if number < len(lines):
                raise PotentiaError(f"{path}, line {number} is not JSON.") from None
            continue
        if not isinstance(row, dict) or not isinstance(row.get("cell"), dict):
            raise PotentiaError(f"{path}, line {number} is not a result row: it has no cell.")
        rows.append(row)
    return rows


def append_row(path: Path, row: Row) -> None:
    """Add a row; runs that write to one folder at a time wait for each other."""
    with locked_folder(path.parent), replacing(path) as raw:
        # the file is rewritten, because a line cut short by a crash must not run into this one
        for known in [*read_rows(path), row]:
            raw.write(json.dumps(known).encode() + b"\n")


#: The number a shown value begins with, by which columns of text such as "0.01 / 0.02" are sorted.
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?([eE][-+]?\d+)?")


class Column(NamedTuple):
    """A heading, the key of the row it shows, and how to print a value (None: as text, left-aligned)."""

    heading: str
    key: str
    show: Callable[[Any], str] | None = None


class Table(NamedTuple):
    """A title, columns, and the lines they show."""

    title: str
    columns: list[Column]
    lines: list[dict[str, Any]]

    def _repr_html_(self) -> str:
        """The table as HTML, for notebooks."""
        return html_table(self)


def shown(column: Column, line: Mapping[str, Any]) -> str:
    """A cell's text; a dash where the key is missing."""
    value = line.get(column.key)
    return "–" if value is None else printable((column.show or str)(value))


def print_table(title: str, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows under headings; numbers align right. A missing key shows as a dash."""
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    # Text: names of files and classes may hold brackets, which Rich would take for markup
    grid = Grid(title=Text(title), title_justify="left")
    for column in columns:
        grid.add_column(Text(column.heading), justify="left" if column.show is None else "right")
    for row in rows:
        grid.add_row(*(Text(shown(column, row)) for column in columns))
    console = Console()
    # piped output has no terminal to fit: never cut a cell there
    (console if console.is_terminal else Console(width=200)).print(grid)


def html_table(table: Table) -> Markup:
    """The table as HTML; cells carry the number to sort by, and what stands behind a slash is the paper's.

    Text in later columns is a detail, which a narrow screen shows below the first column, so that a row has its name
    while numbers scroll.
    """
    paired = "ours / paper" in table.title
    heads = [
        tag("th", column.heading, scope="col", class_=_class(column, place))
        for place, column in enumerate(table.columns)
    ]
    body = [
        tag("tr", *(_cell(table.columns, line, place, paired) for place in range(len(table.columns))))
        for line in table.lines
    ]
    return tag(
        "table", tag("caption", tag("span", table.title)), tag("thead", tag("tr", *heads)), tag("tbody", *body),
        class_="sortable",
    )  # fmt: skip


#: A cell of a matrix: its text, which of two colours it has, how much of it (0 to 1), and a note or None.
Shaded = tuple[str, bool, float, str | None]


def shaded_table(name: str, labels: Sequence[str], cells: Sequence[Sequence[Shaded]], corner: str = "") -> Markup:
    """A square matrix as HTML, with the same labels for its lines and columns."""
    lines = []
    for label, line in zip(labels, cells, strict=True):
        row = [
            tag("td", text, class_="plus" if plus else "minus", style=f"--share: {share * 60:.0f}%", title=note)
            for text, plus, share, note in line
        ]  # fmt: skip
        lines.append(tag("tr", tag("th", label, scope="row"), *row))
    head = tag("tr", tag("td", corner), *(tag("th", label, scope="col") for label in labels))
    caption = tag("caption", tag("span", name))
    return tag("table", caption, tag("thead", head), tag("tbody", *lines), class_="matrix")


def scrolled(table: Markup, label: str) -> Markup:
    """A table that scrolls by itself where the screen is narrow; `label` is what a screen reader says."""
    return tag("div", table, class_="scroll", role="region", tabindex="0", aria_label=label)


def _class(column: Column, place: int) -> str | None:
    """CSS class of a cell: numbers, or texts in later columns."""
    return "number" if column.show is not None else "detail" if place else None


def _cell(columns: Sequence[Column], line: Mapping[str, Any], place: int, paired: bool) -> Markup:
    """A cell as HTML, with the number to sort by; `paired`: the paper's number stands behind a slash."""
    column = columns[place]
    text = shown(column, line)
    if place == 0:
        details = ", ".join(shown(c, line) for k, c in enumerate(columns) if _class(c, k) == "detail")
        return tag("th", text, scope="row", data_value=_sort_key(column, line, text), data_details=details or None)
    ours, slash, paper = text.partition(" / ") if paired else (text, "", "")
    content: list[str] = [ours]
    if slash:
        content += [" ", tag("span", f"/ {paper}", class_="paper")]
    return tag("td", *content, class_=_class(column, place), data_value=_sort_key(column, line, text))


def _sort_key(column: Column, line: Mapping[str, Any], text: str) -> str | None:
    """The number of a cell; None if it is text."""
    value = line.get(column.key)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value)
    match = _NUMBER.match(text) if column.show is not None else None
    return match[0] if match else None


#: Keys of a cell that say where it belongs, not what it is.
_PLACE = ("study", "quick")
#: Keys of a cell whose values need no name: "evaluate", not "command evaluate".
_PLAIN = ("command", "data")
#: Keys of a row that are no measures.
_OTHER = (
    "cell", "data", "seconds", "learner", "versions", "curves", "pictures", "image_errors", "card", "training_share"
)  # fmt: skip
#: Headings of measures whose keys do not read well.
_HEADINGS = {
    "settled": "converged", "hamming_loss": "Hamming loss", "f_micro": "F1 (micro)", "f_macro": "F1 (macro)",
    "f_samples": "F1 (samples)", "n_images": "images", "cross_fitted_accuracy": "cross-fitted accuracy",
    "mean_iou": "mean IoU", "mean_f1": "mean F1", "mean_boundary_f1": "mean boundary F1", "span_f1": "span F1",
}  # fmt: skip
_LONG = 40
#: A value that more than this share of runs have is left out of their names.
_MOST = 0.7


class StudyResults(NamedTuple):
    """Rows of one study: its name, its identifier on the page, its rows, and tables beside that of all runs."""

    name: str
    anchor: str
    rows: Sequence[Row]
    tables: Sequence[Table] = ()

    @property
    def runs(self) -> list[tuple[str, Row]]:
        """Every run's name and row."""
        return list(zip(names(self.rows), self.rows, strict=True))


def varying(rows: Sequence[Row]) -> list[str]:
    """Keys of cells that tell runs apart, those that have a usual value last."""
    keys = dict.fromkeys(key for row in rows for key in row["cell"] if key not in _PLACE)
    different = [key for key in keys if len({str(row["cell"].get(key)) for row in rows}) > 1]
    return sorted(different, key=lambda key: _usual(key, rows) is not None)


def _usual(key: str, rows: Sequence[Row]) -> str | None:
    """The value that most runs have, if there is one."""
    value, count = Counter(str(row["cell"].get(key)) for row in rows).most_common(1)[0]
    return value if count > _MOST * len(rows) else None


def names(rows: Sequence[Row]) -> list[str]:
    """A name per run: what varies, without what most of the runs share."""
    keys = varying(rows) or [key for key in rows[0]["cell"] if key not in _PLACE]
    usual = {key: _usual(key, rows) for key in keys}
    run_names = []
    for row in rows:
        parts = [(key, str(row["cell"][key])) for key in keys if key in row["cell"]]
        named = [_named(key, value) for key, value in parts if value != usual[key]]
        run_names.append(", ".join(named or [_named(key, value) for key, value in parts]))
    return run_names


def _named(key: str, value: str) -> str:
    """A value with its name, unless it needs none."""
    return value if key in _PLAIN else f"{key} {value}"


def runs_table(title: str, rows: Sequence[Row]) -> Table:
    """All runs: what varies, every measure, and the time."""
    keys = varying(rows) or [key for key in rows[0]["cell"] if key not in _PLACE]
    named = {key for row in rows for key in row["cell"]}
    every = dict.fromkeys(key for row in rows for key in row if key not in named)
    measures = [key for key in every if _is_measure(key, rows)]
    columns = [Column(_heading(key), key, _show([row["cell"].get(key) for row in rows])) for key in keys]
    columns += [Column(_heading(key), key, _show([row.get(key) for row in rows])) for key in measures]
    columns.append(Column("seconds", "seconds", "{:.1f}".format))
    return Table(title, columns, [row | row["cell"] for row in rows])


def study_facts(rows: Sequence[Row]) -> dict[str, str]:
    """Run facts: data, settings common to all runs, seeds, time, convergence, versions."""
    facts = {"runs": str(len(rows))}
    data = dict.fromkeys(str(row["data"]) for row in rows if row.get("data"))
    if data:
        facts["data"] = "; ".join(data)
    different = varying(rows)
    common = {k: v for k, v in rows[0]["cell"].items() if k not in (*_PLACE, "seed", *different)}
    if common and len(rows) > 1:
        facts["common to all runs"] = ", ".join(f"{key} {value}" for key, value in common.items())
    if any(row["cell"].get("quick") for row in rows):
        facts["size"] = "a quick version, smaller than the paper's"
    seeds = sorted({row["cell"]["seed"] for row in rows if "seed" in row["cell"]})
    if seeds:
        facts["seed" if len(seeds) == 1 else "seeds"] = ", ".join(map(str, seeds))
    facts["time"] = f"{duration(sum(row.get('seconds', 0.0) for row in rows))} in all"
    facts |= _convergence(rows)
    versions = dict.fromkeys(tuple(row.get("versions", {}).items()) for row in rows)
    texts = [", ".join(f"{name} {number}" for name, number in each) for each in versions]
    return facts | {"versions": "; ".join(texts)}


def _convergence(rows: Sequence[Row]) -> dict[str, str]:
    """How many runs converged, and which did not."""
    known = [
        (name, row["settled"]) for name, row in zip(names(rows), rows, strict=True) if row.get("settled") is not None
    ]
    fixed = sum("iterations" in row and "settled" in row and row["settled"] is None for row in rows)
    parts = []
    if known:
        open_ = [name for name, settled in known if not settled]
        stopped = f" (not {'; '.join(open_)})" if open_ else ""
        parts.append(f"{len(known) - len(open_)} of {len(known)} runs with a tolerance converged{stopped}")
    if fixed:
        parts.append(f"{fixed} ran a fixed number of iterations")
    return {"convergence": "; ".join(parts)} if parts else {}


def duration(seconds: float) -> str:
    """A time in words."""
    if seconds < 120:
        return f"{seconds:.1f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


def number(value: Any) -> str:
    """A number with four digits; whole numbers in full, yes and no, options as name = value."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {number(v)}" for key, v in value.items())
    return str(value)


def _is_measure(key: str, rows: Sequence[Row]) -> bool:
    """Numbers, flags and options, and short texts that vary."""
    if key in _OTHER:
        return False
    values = [row[key] for row in rows if row.get(key) is not None]
    if key.endswith("_errors"):
        return True
    if not values or any(isinstance(value, list) for value in values):
        return False
    if any(isinstance(v, str) for v in values):
        return len(set(map(str, values))) > 1 and max(len(str(v)) for v in values) <= _LONG
    inner = [value for v in values if isinstance(v, Mapping) for value in v.values()]
    return not any(isinstance(value, Mapping | list) for value in inner)


def _show(values: Sequence[Any]) -> Callable[[Any], str] | None:
    """How to print a column of these values; None for texts."""
    known = [value for value in values if value is not None]
    if values and all(isinstance(v, float) and (v == 0 or 1e-3 <= abs(v) < 10) for v in known):
        return "{:.4f}".format  # four decimals say enough of all of them
    if any(isinstance(v, list) for v in known):
        return lambda several: ", ".join(f"{v:.4f}" for v in several)
    return number if any(isinstance(v, int | float | Mapping) for v in known) else None


def _heading(key: str) -> str:
    """The heading of a measure."""
    return _HEADINGS.get(key) or key.replace("_", " ")


#: Measures that are printed as soon as a row is there, beside those that end in "error".
_MEASURES = ("accuracy", "exact_match", "hamming_loss", "span_f1", "mean_iou")

Say = Callable[[str], None]


def grid(**values: Iterable[Any]) -> list[Cell]:
    """The cells of all combinations of values, the last key varying fastest."""
    return [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]


def key_of(cell: Cell) -> str:
    """The values that identify a cell."""
    return json.dumps(cell, sort_keys=True)


def run_cells(cells: Iterable[Cell], run: Callable[[Cell], Row], out: Path, say: Say = lambda text: None) -> list[Row]:
    """Run every cell that has no row in out/rows.jsonl yet, adding its row at once; all rows of the given cells."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "rows.jsonl"
    facts = versions()
    rows = []
    for cell in cells:
        key = key_of(cell)
        # this run or another may have written it
        row = next((row for row in reversed(read_rows(path)) if key_of(row["cell"]) == key), None)
        if row is None:
            begun = time.perf_counter()
            result = run(cell)
            row = {"cell": cell, **result, "seconds": time.perf_counter() - begun, "versions": facts}
            append_row(path, row)
            text = ", ".join(f"{k} {v}" for k, v in cell.items() if k not in ("study", "quick", "seed"))
            say(f"{text}: {_summary(row)}")
        rows.append(row)
    return rows


def _summary(row: Row) -> str:
    """The measures of a row in one line."""
    shares = [k for k, v in row.items() if isinstance(v, float) and (k.endswith("error") or k in _MEASURES)]
    return ", ".join([*(f"{k.replace('_', ' ')} {row[k]:.4f}" for k in shares), f"{row['seconds']:.1f} s"])

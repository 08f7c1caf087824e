"""Tables from rows of facts: on the terminal, in a notebook, on the report page."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from .._html import Markup, tag
from .._types import printable

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


class Shaded(NamedTuple):
    """A cell of a matrix: its text, which of two colours it has and how much of it (0 to 1), and a note."""

    text: str
    plus: bool
    share: float
    note: str | None = None


def shaded_table(
    name: str, labels: Sequence[str], cells: Sequence[Sequence[Shaded]], corner: str = ""
) -> Markup:
    """A square matrix as HTML, with the same labels for its lines and columns."""
    lines = []
    for label, line in zip(labels, cells, strict=True):
        row = [
            tag("td", cell.text, class_="plus" if cell.plus else "minus", style=f"--share: {cell.share * 60:.0f}%",
                title=cell.note)
            for cell in line
        ]  # fmt: skip
        lines.append(tag("tr", tag("th", label, scope="row"), *row))
    head = tag("tr", tag("td", corner), *(tag("th", label, scope="col") for label in labels))
    caption = tag("caption", tag("span", name))
    return tag("table", caption, tag("thead", head), tag("tbody", *lines), class_="matrix")


def scrolled(table: Markup, label: str) -> Markup:
    """A table that scrolls by itself where the screen is narrow; `label` is what a screen reader says."""
    return tag("div", table, class_="scroll", role="region", tabindex="0", aria_label=label)


def _class(column: Column, place: int) -> str | None:
    return "number" if column.show is not None else "detail" if place else None


def _cell(columns: Sequence[Column], line: Mapping[str, Any], place: int, paired: bool) -> Markup:
    column = columns[place]
    text = shown(column, line)
    if place == 0:
        details = ", ".join(shown(c, line) for k, c in enumerate(columns) if _class(c, k) == "detail")
        return tag(
            "th", text, scope="row", data_value=_sort_key(column, line, text), data_details=details or None
        )
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
    found = _NUMBER.match(text) if column.show is not None else None
    return found[0] if found else None

"""Terminal tables from rows of facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


class Column(NamedTuple):
    """A heading, the key of the row it shows, and how to print a value (None: as text, left-aligned)."""

    heading: str
    key: str
    show: Callable[[Any], str] | None = None


def print_table(title: str, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows under headings; numbers align right. A missing key shows as a dash."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column.heading, justify="left" if column.show is None else "right")
    for row in rows:
        table.add_row(*("–" if row.get(c.key) is None else (c.show or str)(row[c.key]) for c in columns))
    console = Console()
    # piped output has no terminal to fit: never cut a cell there
    (console if console.is_terminal else Console(width=200)).print(table)

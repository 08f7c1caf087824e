"""Tables of full runs in a Markdown page.

    python -m potentia.lab.document experiments/results docs/reproduction.md

The page is written by hand, but for what stands between `<!-- rows: NAME -->` and `<!-- end -->`: that is replaced by
the tables of experiment NAME, made from RESULTS/NAME/rows.jsonl.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from .._types import PotentiaError
from ..report.rows import read_rows
from ..report.tables import Table, shown
from .studies import study_named

_PART = re.compile(r"(<!-- rows: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def markdown(table: Table) -> str:
    """A titled Markdown table; a missing value is a dash."""
    cells = [[c.heading for c in table.columns], ["---"] * len(table.columns)]
    cells += [[shown(column, line) for column in table.columns] for line in table.lines]
    return "\n".join([f"{table.title}:", "", *(f"| {' | '.join(line)} |" for line in cells)])


def fill(page: str, results: Path) -> str:
    """The page with the tables of every experiment it names; an experiment without rows keeps what stands there."""

    def part(found: re.Match[str]) -> str:
        opening, name, closing = found.groups()
        rows = [row for row in read_rows(results / name / "rows.jsonl") if not row["cell"].get("quick")]
        if not rows:
            return found[0]
        return (
            opening
            + "".join(f"\n{markdown(table)}\n" for table in study_named(name).tables(rows))
            + f"\n{closing}"
        )

    return _PART.sub(part, page)


def main(arguments: list[str]) -> None:
    """Fill the page in place."""
    if len(arguments) != 2:
        raise PotentiaError("usage: python -m potentia.lab.document RESULTS PAGE.")
    results, page = map(Path, arguments)
    page.write_text(fill(page.read_text(), results))


if __name__ == "__main__":
    main(sys.argv[1:])

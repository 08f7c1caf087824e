"""Tables of full runs in a Markdown page.

    python -m potentia.experiments.document experiments/results docs/reproduction.md

The page is written by hand, but for what stands between `<!-- rows: NAME -->` and `<!-- end -->`: that is replaced by
the tables of experiment NAME, made from RESULTS/NAME/rows.jsonl.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from .._types import PotentiaError
from .experiment import Table
from .reproduce import tables
from .rows import read_rows

_PART = re.compile(r"(<!-- rows: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def markdown(table: Table) -> str:
    """A titled Markdown table; a missing value is a dash."""
    title, columns, lines = table
    shown = [[c.heading for c in columns], ["---"] * len(columns)]
    shown += [
        ["–" if line.get(c.key) is None else (c.show or str)(line[c.key]) for c in columns] for line in lines
    ]
    return "\n".join([f"{title}:", "", *(f"| {' | '.join(cells)} |" for cells in shown)])


def fill(page: str, results: Path) -> str:
    """The page with the tables of every experiment it names; an experiment without rows keeps what stands there."""

    def part(found: re.Match[str]) -> str:
        opening, name, closing = found.groups()
        rows = [row for row in read_rows(results / name / "rows.jsonl") if not row["cell"].get("quick")]
        if not rows:
            return found[0]
        return opening + "".join(f"\n{markdown(table)}\n" for table in tables(name, rows)) + f"\n{closing}"

    return _PART.sub(part, page)


def main(arguments: list[str]) -> None:
    """Fill the page in place."""
    if len(arguments) != 2:
        raise PotentiaError("usage: python -m potentia.experiments.document RESULTS PAGE")
    results, page = map(Path, arguments)
    page.write_text(fill(page.read_text(), results))


if __name__ == "__main__":
    main(sys.argv[1:])

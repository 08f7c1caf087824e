"""Tables and numbers of the README and the documentation, made from stored rows.

    python -m potentia_studies.document [PAGE ...]

Run in the project's folder. Pages are written by hand, except for what stands between one of these comments and
`<!-- end -->`, which is replaced:

    <!-- rows: NAME -->          the tables of study NAME, from studies/results/NAME/rows.jsonl
    <!-- bench: PART ... -->     the tables of these parts of `potentia bench`, from studies/benchmarks/*.jsonl
    <!-- competition: UAI -->    the tables of the UAI competition, from studies/results/competition/rows.jsonl
    <!-- headline: NAME -->      a short table of the README, from either: see `headlines`
    <!-- value: NAME -->         a number in a sentence, from either: see `values`; never at the beginning of a line,
                                 where Markdown would end the paragraph

Without arguments, all pages with such comments are rebuilt.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from potentia.app.report.rows import Table, shown
from potentia.base.files import replacing

from . import competition
from .bench.run import PARTS
from .headlines import HEADLINES
from .stored import bench_rows, study_rows
from .studies import study_named
from .values import value

_VALUE = re.compile(r"(<!-- value: ([^\n]+?) -->)[^\n]*?(<!-- end -->)")
_PART = re.compile(r"(<!-- (rows|bench|headline|competition): ([^\n]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def markdown(table: Table) -> str:
    """A Markdown table under its title, if it has one; a missing value is a dash."""
    cells = [[c.heading for c in table.columns], ["---" if c.show is None else "---:" for c in table.columns]]
    cells += [[shown(column, line) for column in table.columns] for line in table.lines]
    title = [f"{table.title}:", ""] if table.title else []
    return "\n".join([*title, *(f"| {' | '.join(line)} |" for line in cells)])


def pages(root: Path) -> list[Path]:
    """The README and the pages of the documentation that have tables or numbers made from rows."""
    found = [page for page in (root / "README.md", *sorted((root / "docs").rglob("*.md"))) if page.exists()]
    return [page for page in found if any(rule.search(page.read_text()) for rule in (_PART, _VALUE))]


def fill(page: str, root: Path) -> str:
    """The page with the tables and numbers that it names; a table without rows stays as it is."""

    def part(found: re.Match[str]) -> str:
        opening, kind, names, closing = found.groups()
        made = _TABLES[kind](names, root)
        return opening + "".join(f"\n{markdown(table)}\n" for table in made) + f"\n{closing}" if made else found[0]

    return _VALUE.sub(lambda found: found[1] + value(found[2], root) + found[3], _PART.sub(part, page))


def _study_tables(name: str, root: Path) -> list[Table]:
    rows = study_rows(name, root)
    return study_named(name).tables(rows) if rows else []


def _bench_tables(names: str, root: Path) -> list[Table]:
    tables = [part.table(bench_rows(root)) for part in PARTS if part.name in names.split()]
    return [table for table in tables if table.lines]


def _headline_tables(name: str, root: Path) -> list[Table]:
    return HEADLINES[name](root)


def _competition_tables(name: str, root: Path) -> list[Table]:
    rows = study_rows("competition", root)
    return competition.tables(rows) if rows else []


_TABLES = {
    "rows": _study_tables, "bench": _bench_tables, "headline": _headline_tables, "competition": _competition_tables,
}  # fmt: skip


def main(arguments: list[str]) -> None:
    """Rebuild the tables and numbers of pages in place."""
    root = Path()
    for page in map(Path, arguments) if arguments else pages(root):
        text = fill(page.read_text(), root)
        with replacing(page) as raw:
            raw.write(text.encode())


if __name__ == "__main__":
    main(sys.argv[1:])

"""The report page: one HTML file that needs nothing else, made from result rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from importlib.resources import files
from itertools import count
from pathlib import Path
from string import Template

from .._files import regular, replacing
from .._html import Markup, tag
from .._types import PotentiaError
from .._version import __version__
from .image_panels import Original
from .rows import Cell, Row, read_rows
from .runs import StudyResults
from .sections import study_section
from .tables import Table

#: Tables of a study beside that of all its runs, by its name and rows.
Tables = Callable[[str, Sequence[Row]], Sequence[Table]]

#: What the images of a row show, by its study's name and its cell.
Originals = Callable[[str, Cell], Sequence[Original]]


def report(
    folder: Path,
    out: Path | None = None,
    tables: Tables = lambda name, rows: (),
    originals: Originals = lambda name, cell: (),
) -> Path:
    """Write the page of all rows.jsonl files under a folder; returns its path (default: report.html in the folder)."""
    if not folder.is_dir():
        raise PotentiaError(f"{folder} is not a folder.")
    path = regular(out or folder / "report.html")
    studies = find_studies(folder, tables, originals)
    if not studies:
        raise PotentiaError(
            f"{folder} holds no rows.jsonl with rows: run `potentia demo` or `potentia reproduce`."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    text = page(studies, _title(folder))
    with replacing(path) as raw:
        raw.write(text.encode())
    return path


def find_studies(folder: Path, tables: Tables, originals: Originals) -> list[StudyResults]:
    """A study per file of rows, named by its folder."""
    found: list[StudyResults] = []
    for path in sorted(folder.rglob("rows.jsonl")):
        rows = read_rows(path)
        if rows:
            place = path.parent.relative_to(folder).as_posix()
            name = _title(folder) if place == "." else place
            study = str(rows[0]["cell"].get("study", name))
            seen = [originals(study, row["cell"]) if row.get("pictures") else () for row in rows]
            anchor = _anchor(name, {other.anchor for other in found})
            found.append(StudyResults(name, anchor, rows, tables(study, rows), seen))
    return found


def _title(folder: Path) -> str:
    """The folder's name; the runs of a model are named as the model."""
    return folder.resolve().name.removesuffix(".runs")


def _anchor(name: str, taken: Collection[str]) -> str:
    """A study's name as an identifier in HTML that no other study has."""
    plain = "study-" + (re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "other")
    numbered = (f"{plain}-{k}" for k in count(2))
    return plain if plain not in taken else next(anchor for anchor in numbered if anchor not in taken)


def page(studies: Sequence[StudyResults], title: str) -> str:
    """The whole page as text."""
    entries = [tag("li", tag("a", study.name, href=f"#{study.anchor}")) for study in studies]
    here = files(__package__)
    return Template(here.joinpath("page.html").read_text(encoding="utf-8")).substitute(
        title=tag("title", f"{title} – potentia report"),
        heading=tag("h1", f"Results: {title}"),
        version=__version__,
        style=here.joinpath("page.css").read_text(encoding="utf-8"),
        script=here.joinpath("page.js").read_text(encoding="utf-8"),
        contents=tag("ul", *entries),
        studies=Markup("\n".join(_section(study) for study in studies)),
    )


def _section(study: StudyResults) -> Markup:
    """A study's part of the page; one sentence where its rows hold something else than results."""
    try:
        return study_section(study)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise PotentiaError(
            f"the rows of {study.name} cannot be shown ({type(error).__name__}: {error})."
        ) from None

"""`potentia reproduce`: run an experiment and print its tables, ours beside the paper's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from .._types import PotentiaError
from ..report.pictures import Original
from ..report.tables import Table
from . import figures, ilr, ilr_tables, mbl, scene, search_speed
from .experiment import Experiment
from .rows import Cell, Row


def _of_ilr(study: ilr.IlrStudy) -> Experiment:
    return Experiment(
        run=lambda quick, full, out, say: ilr.run(study.name, quick, out, say),
        tables=lambda rows: ilr_tables.tables(study, rows),
        draw=lambda rows, quick, out: figures.draw(study, rows, study.load(quick)[1], out),
        originals=lambda cell: figures.originals(study.name, cell["quick"]),
    )


def _of_module(module: ModuleType) -> Experiment:
    return Experiment(
        run=lambda quick, full, out, say: module.run(quick, out, say),
        tables=module.tables,
        draw=lambda rows, quick, out: module.draw(rows, out),
    )


EXPERIMENTS: dict[str, Experiment] = {
    **{name: _of_ilr(study) for name, study in ilr.STUDIES.items()},
    **mbl.EXPERIMENTS,
    "scene": _of_module(scene),
    "search-speed": _of_module(search_speed),
}


def reproduce(name: str, quick: bool, out: Path, say: Callable[[str], None], full: bool = False) -> list[Row]:
    """Run what is not done yet, draw the figures into `out`, and return all rows."""
    experiment = _experiment(name)
    rows = experiment.run(quick, full, out, say)
    experiment.draw(rows, quick, out)
    return rows


def tables(name: str, rows: Sequence[Row]) -> list[Table]:
    """Titles, columns and rows to print."""
    return [Table(*table) for table in _experiment(name).tables(rows)]


def originals(name: str, cell: Cell) -> list[Original]:
    """What a cell's row keeps predictions of; nothing where the data is not there."""
    try:
        return _experiment(name).originals(cell)
    except PotentiaError:
        return []


def _experiment(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise PotentiaError(f"there is no study {name!r}; there are {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]

"""The papers' studies by name, for `potentia reproduce` and `potentia report`."""

from __future__ import annotations

from potentia.app.report.figures import Original
from potentia.app.report.rows import Cell, Table
from potentia.base.types import PotentiaError

from . import (
    berkeley,
    fitting_speed,
    horses_network,
    ilr_sets,
    images,
    learners,
    marginal_sets,
    misspecification,
    multilabel_tables,
    parsers,
    perturbation,
    scene,
    search_speed,
    tagging,
)
from .study import Rows, Study

STUDIES = {
    study.name: study
    for study in (
        *ilr_sets.STUDIES,
        misspecification.STUDY,
        perturbation.STUDY,
        berkeley.STUDY,
        *marginal_sets.STUDIES,
        fitting_speed.STUDY,
        horses_network.STUDY,
        scene.STUDY,
        multilabel_tables.STUDY,
        search_speed.STUDY,
        tagging.STUDY,
        parsers.STUDY,
        images.STUDY,
        learners.STUDY,
    )
}


def study_named(name: str) -> Study:
    """A study by its name."""
    if name not in STUDIES:
        raise PotentiaError(f"There is no study {name!r}; there are {', '.join(STUDIES)}.")
    return STUDIES[name]


def report_tables(name: str, rows: Rows) -> list[Table]:
    """A study's tables, where it is one of the papers'."""
    return STUDIES[name].tables(rows) if name in STUDIES else []


def report_originals(name: str, cell: Cell) -> list[Original]:
    """What a row's images show, where its study is one of the papers' and its data is there."""
    try:
        return STUDIES[name].originals_of(cell) if name in STUDIES and "quick" in cell else []
    except PotentiaError:
        return []

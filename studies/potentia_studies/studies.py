"""The papers' studies by name, for `potentia reproduce` and `potentia report`."""

from __future__ import annotations

import sys
import zlib
from contextlib import suppress
from itertools import zip_longest

from potentia.app.report.rows import Row, Table
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
from .row_images import Original, kept
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
    """A study's tables, where it is one of the papers'; empty if the rows are of an older version."""
    try:
        return STUDIES[name].tables(rows) if name in STUDIES else []
    except KeyError as unknown:
        # its table of all runs is still there
        print(f"potentia: no tables of {name}: {unknown} is missing in its rows or not known", file=sys.stderr)
        return []


def complete_row(name: str, row: Row) -> Row:
    """A row with its images as pages show them, beside what they show where the study's data is there."""
    kept_here = row.get("pictures")
    if name not in STUDIES or not isinstance(kept_here, list):
        return row
    originals: list[Original] = []
    with suppress(PotentiaError):
        originals = STUDIES[name].originals_of(row["cell"]) if "quick" in row["cell"] else []
    beside = zip_longest(kept_here, originals[: len(kept_here)])
    try:
        return row | {"pictures": [kept(image, original) for image, original in beside]}
    except (LookupError, TypeError, ValueError, zlib.error):  # of an older version of the study
        return row

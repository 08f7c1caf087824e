"""Marginal-based learning: the figures and tables of MBL-tpami by name."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from types import ModuleType

from ..report.pictures import Original
from . import (
    backgrounds_mbl,
    berkeley,
    fitting_speed,
    horses_mbl,
    misspecification,
    perturbation,
    picture_cells,
)
from .experiment import Experiment, runner
from .picture_cells import PictureSet


def _of(module: ModuleType) -> Experiment:
    return Experiment(runner(module.cells, module.prepare), module.tables, module.draw)


def _of_pictures(module: ModuleType, pictures: PictureSet) -> Experiment:
    @cache
    def originals(fold: int, quick: bool) -> list[Original]:
        return picture_cells.originals(pictures, fold, quick)

    return Experiment(
        run=runner(module.cells, lambda quick: picture_cells.prepare(pictures, quick)),
        tables=lambda rows: picture_cells.tables(pictures, rows),
        draw=lambda rows, quick, out: picture_cells.draw(pictures, rows, quick, out),
        originals=lambda cell: originals(cell["fold"], cell["quick"]),
    )


EXPERIMENTS: dict[str, Experiment] = {
    "misspecification": _of(misspecification),
    "perturbation": _of(perturbation),
    "denoising-berkeley": replace(_of(berkeley), originals=berkeley.originals),
    "horses": _of_pictures(horses_mbl, horses_mbl.HORSES),
    "backgrounds": _of_pictures(backgrounds_mbl, backgrounds_mbl.BACKGROUNDS),
    "fitting-speed": _of(fitting_speed),
}

"""The user's own data, from files to a saved pipeline and from a pipeline to files.

`images` (folders of images and masks), `tables` (rows with several labels), `sequences` (tokens in columns): each
has `train`, which gives a `Pipeline`, and a pipeline class that predicts and evaluates; `cli` is the command line.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .pipeline import Pipeline
    from .training import Run

__all__ = ["Pipeline", "Run"]

if not TYPE_CHECKING:  # imported at first use, because training brings all learners along

    def __getattr__(name):
        if name in __all__:
            return getattr(import_module(".pipeline" if name == "Pipeline" else ".training", __name__), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

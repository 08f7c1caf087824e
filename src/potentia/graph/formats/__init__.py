"""Model files of other tools, a module each: `read(path)` gives a `Model`, `write(path, graph, theta)` a file."""

from __future__ import annotations

from ..model_files import Model
from . import bif, cfn, fg, wcsp

__all__ = ["Model", "bif", "cfn", "fg", "wcsp"]

"""Model files of other tools, a module each: `read(path)` gives a `Model`, `write(path, graph, theta)` a file."""

from __future__ import annotations

from . import bif, cfn, fg, wcsp
from .model import Model

__all__ = ["Model", "bif", "cfn", "fg", "wcsp"]

"""Vectors of eight doubles for loops that LLVM does not vectorise well by itself.

A product with a small table keeps its running sums in registers and reads the table strictly in order, and loops over
few lanes cost more to start than to run; both need explicit vectors: LLVM's, or as plain twins tuples. Eight doubles
are one AVX-512 register, two of AVX2, four of NEON: enough independent sums to hide the latency of a multiplication.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .jit import PLAIN

#: Doubles per vector; tables are stored in chunks of this many lanes.
CHUNK = 8

_lanes = import_module(".simd_plain" if PLAIN else ".simd_llvm", __package__)


def __getattr__(name: str) -> Any:
    """The operations: add8, load8 and so on."""
    return getattr(_lanes, name)

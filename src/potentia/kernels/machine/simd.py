"""Vectors of eight doubles for loops that LLVM does not vectorise well by itself.

A product with a small table keeps its running sums in registers and reads the table strictly in order, and loops over
few lanes cost more to start than to run; both need explicit vectors: LLVM's, or as plain twins tuples.
"""

from __future__ import annotations

from .jit import PLAIN

#: Doubles per vector; tables are stored in chunks of this many lanes.
CHUNK = 8

if PLAIN:
    from .simd_plain import (
        above8,
        add8,
        below8,
        bits_of,
        div8,
        double_of,
        fma8,
        load8,
        max8,
        min8,
        mul8,
        pick8,
        prefetch,
        run8,
        spread8,
        store8,
        sub8,
        sum8,
        transpose8,
        zero8,
    )
else:
    from .simd_llvm import (
        above8,
        add8,
        below8,
        bits_of,
        div8,
        double_of,
        fma8,
        load8,
        max8,
        min8,
        mul8,
        pick8,
        prefetch,
        run8,
        spread8,
        store8,
        sub8,
        sum8,
        transpose8,
        zero8,
    )

__all__ = [
    "CHUNK",
    "above8",
    "add8",
    "below8",
    "bits_of",
    "div8",
    "double_of",
    "fma8",
    "load8",
    "max8",
    "min8",
    "mul8",
    "pick8",
    "prefetch",
    "run8",
    "spread8",
    "store8",
    "sub8",
    "sum8",
    "transpose8",
    "zero8",
]

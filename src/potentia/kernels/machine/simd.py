"""Vectors of eight doubles for loops that LLVM does not vectorise well by itself.

A product with a small table keeps its running sums in registers and reads the table strictly in order, and loops over
few lanes cost more to start than to run; both need explicit vectors: LLVM's, or as plain twins tuples. Eight doubles
are one AVX-512 register, two of AVX2, four of NEON: enough independent sums to hide the latency of a multiplication.
"""

from __future__ import annotations

from importlib import import_module

from .jit import PLAIN

#: Doubles per vector; tables are stored in chunks of this many lanes.
CHUNK = 8

_lanes = import_module(".simd_plain" if PLAIN else ".simd_llvm", __package__)

above8 = _lanes.above8
add8 = _lanes.add8
bits_of = _lanes.bits_of
div8 = _lanes.div8
double_of = _lanes.double_of
fma8 = _lanes.fma8
load8 = _lanes.load8
max8 = _lanes.max8
min8 = _lanes.min8
mul8 = _lanes.mul8
pick8 = _lanes.pick8
prefetch = _lanes.prefetch
run8 = _lanes.run8
spread8 = _lanes.spread8
store8 = _lanes.store8
sub8 = _lanes.sub8
sum8 = _lanes.sum8
transpose8 = _lanes.transpose8
zero8 = _lanes.zero8

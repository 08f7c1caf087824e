"""exp and log as straight-line arithmetic, so that LLVM vectorises any loop that calls them.

`math.exp` is a library call, which keeps a loop scalar; these are polynomials on bit patterns and need nothing
beyond AVX2. Both are within 2 units in the last place of the true value over the stated domains.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .machine.jit import njit
from .machine.simd import bits_of, double_of

#: Compile options shared by every kernel: `contract` permits fused multiply-add and nothing that would change
#: the meaning of infinities; the numpy error model keeps division free of branches.
KERNEL: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
#: The same for sums that may be reordered (in a fixed way), or they would stay scalar.
SUMS: dict[str, Any] = {**KERNEL, "fastmath": {"contract", "reassoc"}}

# 1.5 * 2^52: adding it rounds a double to an integer held in the low mantissa bits.
_MAGIC = 6755399441055744.0
_LOG2E = 1.4426950408889634
_LN2_HIGH = 0.6931471805598903  # ln 2 with its last 11 bits clear, so that k * _LN2_HIGH is exact
_LN2_LOW = 5.497923018708371e-14
#: The smallest number whose logarithm `log` takes.
TINY = 2.2250738585072014e-308
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD


@njit(inner=True, **KERNEL)
def exp(x):
    """e^x for x <= 709; 0 below -708 (so also at -inf)."""
    clipped = x if x > -708.0 else -708.0
    shifted = clipped * _LOG2E + _MAGIC
    k = shifted - _MAGIC
    r = (clipped - k * _LN2_HIGH) - k * _LN2_LOW
    # Taylor to degree 12 on |r| <= ln(2)/2, grouped (Estrin) to shorten the dependency chain
    r2 = r * r
    r4 = r2 * r2
    low = (1.0 + r) + r2 * (0.5 + r * 0.16666666666666666)
    mid = (0.041666666666666664 + r * 0.008333333333333333) + r2 * (0.001388888888888889 + r * 0.0001984126984126984)
    high = (2.48015873015873e-05 + r * 2.7557319223985893e-06) + r2 * (
        2.755731922398589e-07 + r * 2.505210838544172e-08
    )
    p = low + r4 * (mid + r4 * (high + r4 * 2.08767569878681e-09))
    result = double_of(bits_of(p) + (bits_of(shifted) << 52))
    return result if x >= -708.0 else 0.0


@njit(inner=True, **KERNEL)
def log(x):
    """Natural logarithm of a normal positive double; -inf for anything below 2.2e-308 (so also at 0)."""
    bits = bits_of(x)
    # exponent such that the mantissa lies in [sqrt(1/2), sqrt(2))
    shift = ((bits - _SQRT_HALF_BITS) >> 52) << 52
    mantissa = double_of(bits - shift)
    # integer to double without a conversion instruction (AVX2 has none for 64 bits)
    k = double_of((shift >> 52) + bits_of(_MAGIC)) - _MAGIC
    f = mantissa - 1.0
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    t1 = w * (0.3999999999940942 + w * (0.22222198432149784 + w * 0.15313837699209373))
    t2 = z * (0.6666666666666735 + w * (0.2857142874366239 + w * (0.1818357216161805 + w * 0.14798198605116586)))
    half = 0.5 * f * f
    value = k * _LN2_HIGH - ((half - (s * (half + (t1 + t2)) + k * _LN2_LOW)) - f)
    return value if x >= TINY else -np.inf

"""One pass over score tables that finds what may not be there."""

from __future__ import annotations

import numpy as np
from numba import njit

from .vecmath import KERNEL

#: Finite scores beyond this are refused: sums of them would leave the range of doubles.
LARGEST = 1e100


@njit(**KERNEL)
def first_bad_table(values, offset, size):
    """The first table with NaN, +inf or a finite score beyond LARGEST (code 1) or only -inf (code 2); (-1, 0) if none.

    Table r is values[offset[r] : offset[r] + size[r]].
    """
    for r in range(offset.size):
        peak = -np.inf
        for k in range(offset[r], offset[r] + size[r]):
            v = values[k]
            if not v <= LARGEST or (v < -LARGEST and v > -np.inf):
                return r, 1
            peak = max(peak, v)
        if peak == -np.inf:
            return r, 2
    return -1, 0

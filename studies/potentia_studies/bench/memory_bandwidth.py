"""Reading an array as fast as the machine can: the floor that benchmarks compare with."""

from __future__ import annotations

from potentia.kernels.machine.jit import njit
from potentia.kernels.machine.simd import CHUNK, add8, fma8, load8, spread8, store8
from potentia.kernels.vecmath import KERNEL


@njit(**KERNEL)
def multiply_add(values, out):
    """out (8) = sums of 1.5 * values over every eighth entry (whole groups of 32 only)."""
    s0, s1, s2, s3 = spread8(0.0), spread8(0.0), spread8(0.0), spread8(0.0)
    factor = spread8(1.5)
    for k in range(0, values.size - 4 * CHUNK + 1, 4 * CHUNK):
        s0 = fma8(load8(values, k), factor, s0)
        s1 = fma8(load8(values, k + CHUNK), factor, s1)
        s2 = fma8(load8(values, k + 2 * CHUNK), factor, s2)
        s3 = fma8(load8(values, k + 3 * CHUNK), factor, s3)
    store8(out, 0, add8(add8(s0, s1), add8(s2, s3)))


@njit(**KERNEL)
def repeat_multiply_add(values, times, out):
    """`multiply_add` again and again, on values that stay in the cache."""
    for _ in range(times):
        multiply_add(values, out)

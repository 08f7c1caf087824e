"""`simd` as tuples of eight doubles, which any compiler of Python takes, and which run as Python."""

from __future__ import annotations

import numpy as np

from .jit import njit

_OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}


@njit(inner=True, **_OPTIONS)
def _flat(array):
    """The array with one axis, as vectors index it."""
    if array.ndim == 1:
        return array
    return array.reshape(array.size)


@njit(inner=True, **_OPTIONS)
def load8(array, index):
    """array[index : index + 8] of the flattened array of doubles or floats."""
    flat = _flat(array)
    a, b, c, d = flat[index], flat[index + 1], flat[index + 2], flat[index + 3]
    e, f, g, h = flat[index + 4], flat[index + 5], flat[index + 6], flat[index + 7]
    wide = np.float64
    return (wide(a), wide(b), wide(c), wide(d), wide(e), wide(f), wide(g), wide(h))


@njit(inner=True, **_OPTIONS)
def run8(index, at):
    """index[at], if index[at : at + 8] are consecutive numbers; else -1."""
    flat = _flat(index)
    first = np.int64(flat[at])
    for k in range(1, 8):
        if np.int64(flat[at + k]) != first + k:
            return -1
    return first


@njit(inner=True, **_OPTIONS)
def store8(array, index, value):
    """array[index : index + 8] = value."""
    flat = _flat(array)
    for k in range(8):
        flat[index + k] = value[k]


@njit(inner=True, **_OPTIONS)
def spread8(value):
    """Eight copies of one double."""
    return (value, value, value, value, value, value, value, value)


def _lanewise(operation):
    """The function of two to four vectors that applies a function of four numbers to each of the eight lanes."""
    of = njit(inner=True, **_OPTIONS)(operation)
    none = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)

    def lanes(a, b, c=none, d=none):
        """The operation lane by lane."""
        return (
            of(a[0], b[0], c[0], d[0]), of(a[1], b[1], c[1], d[1]), of(a[2], b[2], c[2], d[2]),
            of(a[3], b[3], c[3], d[3]), of(a[4], b[4], c[4], d[4]), of(a[5], b[5], c[5], d[5]),
            of(a[6], b[6], c[6], d[6]), of(a[7], b[7], c[7], d[7]),
        )  # fmt: skip

    return njit(inner=True, **_OPTIONS)(lanes)


# as in `simd_llvm`, comparisons with nan are false
add8 = _lanewise(lambda a, b, _c, _d: a + b)
sub8 = _lanewise(lambda a, b, _c, _d: a - b)
mul8 = _lanewise(lambda a, b, _c, _d: a * b)
div8 = _lanewise(lambda a, b, _c, _d: a / b)
fma8 = _lanewise(lambda a, b, c, _d: a * b + c)
max8 = _lanewise(lambda a, b, _c, _d: a if a > b else b)
min8 = _lanewise(lambda a, b, _c, _d: a if a < b else b)
above8 = _lanewise(lambda a, b, _c, _d: a if a > 0.0 else b)
pick8 = _lanewise(lambda a, b, x, y: x if a < b else y)


@njit(inner=True, **_OPTIONS)
def sum8(a):
    """The sum of a vector's eight entries, in pairs."""
    return ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7]))


@njit(inner=True, **_OPTIONS)
def transpose8(source, at, step, target, to, stride):
    """target[to + j * stride + i] = source[at + i * step + j] for i and j in 0..7."""
    read, write = _flat(source), _flat(target)
    for j in range(8):
        for i in range(8):
            write[to + j * stride + i] = read[at + i * step + j]


@njit(inner=True, **_OPTIONS)
def bits_of(x):
    """The bit pattern of a double as a 64-bit integer."""
    return np.float64(x).view(np.int64)


@njit(inner=True, **_OPTIONS)
def double_of(k):
    """The double with this bit pattern."""
    return np.int64(k).view(np.float64)

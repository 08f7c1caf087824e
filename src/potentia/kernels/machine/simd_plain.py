"""`simd` as tuples of eight doubles, which any compiler of Python takes, and which run as Python."""

from __future__ import annotations

import numpy as np

from .jit import njit

_OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}


@njit(inner=True, **_OPTIONS)
def _flat(array):
    if array.ndim == 1:
        return array
    return array.reshape(array.size)


@njit(inner=True, **_OPTIONS)
def zero8():
    """Eight zeros."""
    return (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


@njit(inner=True, **_OPTIONS)
def load8(array, index):
    """array[index : index + 8] of the flattened array of doubles or floats."""
    flat = _flat(array)
    return (
        np.float64(flat[index + 0]),
        np.float64(flat[index + 1]),
        np.float64(flat[index + 2]),
        np.float64(flat[index + 3]),
        np.float64(flat[index + 4]),
        np.float64(flat[index + 5]),
        np.float64(flat[index + 6]),
        np.float64(flat[index + 7]),
    )


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


@njit(inner=True, **_OPTIONS)
def fma8(a, b, c):
    """a * b + c."""
    return (
        a[0] * b[0] + c[0],
        a[1] * b[1] + c[1],
        a[2] * b[2] + c[2],
        a[3] * b[3] + c[3],
        a[4] * b[4] + c[4],
        a[5] * b[5] + c[5],
        a[6] * b[6] + c[6],
        a[7] * b[7] + c[7],
    )


@njit(inner=True, **_OPTIONS)
def add8(a, b):
    """a + b."""
    return (
        a[0] + b[0],
        a[1] + b[1],
        a[2] + b[2],
        a[3] + b[3],
        a[4] + b[4],
        a[5] + b[5],
        a[6] + b[6],
        a[7] + b[7],
    )


@njit(inner=True, **_OPTIONS)
def sub8(a, b):
    """a - b."""
    return (
        a[0] - b[0],
        a[1] - b[1],
        a[2] - b[2],
        a[3] - b[3],
        a[4] - b[4],
        a[5] - b[5],
        a[6] - b[6],
        a[7] - b[7],
    )


@njit(inner=True, **_OPTIONS)
def mul8(a, b):
    """a * b."""
    return (
        a[0] * b[0],
        a[1] * b[1],
        a[2] * b[2],
        a[3] * b[3],
        a[4] * b[4],
        a[5] * b[5],
        a[6] * b[6],
        a[7] * b[7],
    )


@njit(inner=True, **_OPTIONS)
def div8(a, b):
    """a / b."""
    return (
        a[0] / b[0],
        a[1] / b[1],
        a[2] / b[2],
        a[3] / b[3],
        a[4] / b[4],
        a[5] / b[5],
        a[6] / b[6],
        a[7] / b[7],
    )


@njit(inner=True, **_OPTIONS)
def below8(a):
    """The smaller of a and 0; 0 where a is nan."""
    return (
        a[0] if a[0] < 0.0 else 0.0,
        a[1] if a[1] < 0.0 else 0.0,
        a[2] if a[2] < 0.0 else 0.0,
        a[3] if a[3] < 0.0 else 0.0,
        a[4] if a[4] < 0.0 else 0.0,
        a[5] if a[5] < 0.0 else 0.0,
        a[6] if a[6] < 0.0 else 0.0,
        a[7] if a[7] < 0.0 else 0.0,
    )


@njit(inner=True, **_OPTIONS)
def above8(a, b):
    """a where it is above 0, b elsewhere."""
    return (
        a[0] if a[0] > 0.0 else b[0],
        a[1] if a[1] > 0.0 else b[1],
        a[2] if a[2] > 0.0 else b[2],
        a[3] if a[3] > 0.0 else b[3],
        a[4] if a[4] > 0.0 else b[4],
        a[5] if a[5] > 0.0 else b[5],
        a[6] if a[6] > 0.0 else b[6],
        a[7] if a[7] > 0.0 else b[7],
    )


@njit(inner=True, **_OPTIONS)
def pick8(a, b, x, y):
    """x where a is below b, y elsewhere."""
    return (
        x[0] if a[0] < b[0] else y[0],
        x[1] if a[1] < b[1] else y[1],
        x[2] if a[2] < b[2] else y[2],
        x[3] if a[3] < b[3] else y[3],
        x[4] if a[4] < b[4] else y[4],
        x[5] if a[5] < b[5] else y[5],
        x[6] if a[6] < b[6] else y[6],
        x[7] if a[7] < b[7] else y[7],
    )


@njit(inner=True, **_OPTIONS)
def max8(a, b):
    """The larger of a and b; b where a is nan."""
    return (
        a[0] if a[0] > b[0] else b[0],
        a[1] if a[1] > b[1] else b[1],
        a[2] if a[2] > b[2] else b[2],
        a[3] if a[3] > b[3] else b[3],
        a[4] if a[4] > b[4] else b[4],
        a[5] if a[5] > b[5] else b[5],
        a[6] if a[6] > b[6] else b[6],
        a[7] if a[7] > b[7] else b[7],
    )


@njit(inner=True, **_OPTIONS)
def min8(a, b):
    """The smaller of a and b; b where a is nan."""
    return (
        a[0] if a[0] < b[0] else b[0],
        a[1] if a[1] < b[1] else b[1],
        a[2] if a[2] < b[2] else b[2],
        a[3] if a[3] < b[3] else b[3],
        a[4] if a[4] < b[4] else b[4],
        a[5] if a[5] < b[5] else b[5],
        a[6] if a[6] < b[6] else b[6],
        a[7] if a[7] < b[7] else b[7],
    )


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
def prefetch(array, index, level):
    """Nothing: a hint has no effect on results."""


@njit(inner=True, **_OPTIONS)
def bits_of(x):
    """The bit pattern of a double as a 64-bit integer."""
    return np.float64(x).view(np.int64)


@njit(inner=True, **_OPTIONS)
def double_of(k):
    """The double with this bit pattern."""
    return np.int64(k).view(np.float64)

"""Large arrays whose memory is used again: the first touch of fresh pages often costs more than the work on them."""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from ._available import check_memory
from ._types import Floats

#: Arrays below this many entries are left to the allocator.
_SMALL = 2**16
#: Entries of a cache line, at which arrays begin: vectors of eight then touch one line, not two.
_LINE = 8
#: Idle memory kept, in entries (512 MiB).
_IDLE = 2**26

_lock = threading.Lock()
_idle: list[Floats] = []
#: Where the end of an array's use leaves its memory; that may happen anywhere, so it takes no lock.
_returned: deque[Floats] = deque()


def borrow(shape: Sequence[int]) -> Floats:
    """An uninitialised float64 array; its memory comes back by itself once neither it nor a view of it is in use."""
    n = math.prod(shape)
    if n < _SMALL:
        return np.empty(shape)
    # a base that is no array: views of views then lead back to this very object, whose end is the end of their use
    store = _take(n + _LINE)
    skipped = -store.ctypes.data % (8 * _LINE)
    array = np.frombuffer(store.data, dtype=np.float64, count=n, offset=skipped)
    weakref.finalize(array, _returned.append, store).atexit = False
    return array.reshape(shape)


def borrow_like(shape: Sequence[int], dtype: DTypeLike) -> Floats:
    """The same of float64 or float32."""
    if np.dtype(dtype) == np.float64:
        return borrow(shape)
    n = math.prod(shape)
    halves = borrow((-(-n // 2),)).view(dtype)
    return halves[:n].reshape(shape)


def borrow_zeros(shape: Sequence[int]) -> Floats:
    """The same, zero."""
    array = borrow(shape)
    array.fill(0.0)
    return array


def _take(n: int) -> Floats:
    with _lock:
        while _returned:
            _idle.append(_returned.popleft())
        while sum(kept.size for kept in _idle) > _IDLE:
            _idle.pop(0)
        fitting = [k for k, store in enumerate(_idle) if n <= store.size <= 2 * n]
        if fitting:
            return _idle.pop(min(fitting, key=lambda k: _idle[k].size))
    check_memory(
        8.0 * n, f"a table of {n} numbers", "use fewer variables or states, or several smaller graphs"
    )
    return np.empty(n)

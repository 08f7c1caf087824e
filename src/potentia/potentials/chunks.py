"""Work on many rows in pieces of bounded size, by a pool of threads where the kernels release the interpreter lock."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

#: Doubles per piece: large enough to hide the cost of a call, small enough to stay in cache.
_PIECE = 1 << 18
_NAME = "potentials"
_pool: ThreadPoolExecutor | None = None
_threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_threads(n: int) -> None:
    """Use n threads inside potentials; 1 where a caller already runs several fits side by side."""
    global _threads
    _threads = max(1, int(n))
    _forget_pool()


def _forget_pool() -> None:
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    # a forked child inherits the pool object but none of its threads
    os.register_at_fork(after_in_child=_forget_pool)


def row_chunks(n_rows: int, width: int) -> list[slice]:
    """Consecutive slices of rows, each of about _PIECE numbers when a row holds `width` of them."""
    size = max(256, _PIECE // max(1, width))
    return [slice(start, min(start + size, n_rows)) for start in range(0, n_rows, size)]


def map_chunks(function: Callable[[slice], T], n_rows: int, width: int, threaded: bool = True) -> list[T]:
    """function(rows) for every chunk, results in the order of the rows whatever the number of threads."""
    global _pool
    chunks = row_chunks(n_rows, width)
    # a pool's thread that waited for the same pool would wait for ever
    inside = threading.current_thread().name.startswith(_NAME)
    if not threaded or inside or _threads == 1 or len(chunks) == 1:
        return [function(rows) for rows in chunks]
    if _pool is None:
        _pool = ThreadPoolExecutor(_threads, thread_name_prefix=_NAME)
    return list(_pool.map(function, chunks))

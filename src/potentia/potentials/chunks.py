"""Work on many rows in pieces of bounded size, by threads where the kernels release the interpreter lock."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar

from potentia._threads import thread_count

P = TypeVar("P")
T = TypeVar("T")

#: Doubles per piece: large enough to hide the cost of a call, small enough to stay in cache.
_PIECE = 1 << 18
_pools: dict[int, ThreadPoolExecutor] = {}

if hasattr(os, "register_at_fork"):
    # a forked child inherits the pool objects but none of their threads
    os.register_at_fork(after_in_child=_pools.clear)


def row_chunks(n_rows: int, width: int) -> list[slice]:
    """Consecutive slices of rows, each of about _PIECE numbers when a row holds `width` of them."""
    size = max(256, _PIECE // max(1, width))
    return [slice(start, min(start + size, n_rows)) for start in range(0, n_rows, size)]


def map_chunks(function: Callable[[slice], T], n_rows: int, width: int, threaded: bool = True) -> list[T]:
    """function(rows) for every chunk, results in the order of the rows whatever the number of threads."""
    chunks = row_chunks(n_rows, width)
    return _map(function, chunks) if threaded else [function(rows) for rows in chunks]


def map_parts(function: Callable[[int, int], T], n: int) -> list[T]:
    """function(start, stop) over one part of 0..n per thread; the parts must not depend on each other."""
    parts = min(n, thread_count(None))
    cuts = [n * k // parts for k in range(parts + 1)]
    return _map(lambda part: function(*part), list(pairwise(cuts)))


def _map(function: Callable[[P], T], items: list[P]) -> list[T]:
    threads = thread_count(None)
    # one of the library's own threads must not wait for a pool it may belong to
    inside = threading.current_thread().name.startswith("potentia")
    if inside or threads == 1 or len(items) == 1:
        return [function(item) for item in items]
    if threads not in _pools:
        _pools[threads] = ThreadPoolExecutor(threads, thread_name_prefix="potentia-rows")
    return list(_pools[threads].map(function, items))

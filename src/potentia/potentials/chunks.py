"""Work on many rows in pieces of bounded size, by threads where the kernels release the interpreter lock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from typing import TypeVar

from potentia._threads import map_items, thread_count

P = TypeVar("P")
T = TypeVar("T")

#: Doubles per piece: large enough to hide the cost of a call, small enough to stay in cache.
_PIECE = 1 << 18
#: Held while pieces are worked on that must not be worked on by several threads.
_ALONE = threading.RLock()


def row_chunks(n_rows: int, width: int) -> list[slice]:
    """Consecutive slices of rows, each of about _PIECE numbers when a row holds `width` of them."""
    size = max(256, _PIECE // max(1, width))
    return [slice(start, min(start + size, n_rows)) for start in range(0, n_rows, size)]


def map_chunks(function: Callable[[slice], T], n_rows: int, width: int, threaded: bool = True) -> list[T]:
    """function(rows) for every chunk, results in the order of the rows whatever the number of threads.

    Where it is not `threaded`, other threads that call it so wait.
    """
    chunks = row_chunks(n_rows, width)
    if threaded:
        return _map(function, chunks)
    with _ALONE:
        return [function(rows) for rows in chunks]


def map_parts(function: Callable[[int, int], T], n: int) -> list[T]:
    """function(start, stop) over one part of 0..n per thread; the parts must not depend on each other."""
    parts = min(n, thread_count(None))
    cuts = [n * k // parts for k in range(parts + 1)]
    return _map(lambda part: function(*part), list(pairwise(cuts)))


def _map(function: Callable[[P], T], items: list[P]) -> list[T]:
    # one of the library's own threads must not wait for the pool it belongs to
    inside = threading.current_thread().name.startswith("potentia")
    return map_items(function, items, 1 if inside else thread_count(None))

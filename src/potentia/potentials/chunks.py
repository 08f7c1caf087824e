"""Work on many rows in pieces of bounded size, by threads where the kernels release the interpreter lock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import reduce
from itertools import pairwise
from typing import Any, TypeVar

from potentia._threads import iterate_items, map_items, thread_count
from potentia.parallel.backend import add

T = TypeVar("T")

#: Doubles per piece: large enough to hide the cost of a call, small enough to stay in cache.
_PIECE = 1 << 18
#: Held while pieces are worked on that must not be worked on by several threads.
_ALONE = threading.RLock()


def row_chunks(n_rows: int, width: int, least: int = 256) -> list[slice]:
    """Consecutive slices of rows, each of about _PIECE numbers when a row holds `width` of them."""
    size = max(least, _PIECE // max(1, width))
    return [slice(start, min(start + size, n_rows)) for start in range(0, n_rows, size)]


def map_chunks(function: Callable[[slice], T], n_rows: int, width: int, threaded: bool = True) -> list[T]:
    """function(rows) for every chunk, results in the order of the rows whatever the number of threads.

    Where it is not `threaded`, other threads that call it so wait.
    """
    chunks = row_chunks(n_rows, width)
    if threaded:
        return map_items(function, chunks, thread_count(None))
    with _ALONE:
        return [function(rows) for rows in chunks]


def sum_chunks(
    function: Callable[[slice], Any], n_rows: int, width: int, threaded: bool = True, least: int = 256
) -> Any:
    """The sum of function(rows) over chunks, added up in the order of the rows; None where there are no rows.

    Results are added as they come, few are held at a time. `least`: rows that a chunk has at least.
    """
    chunks = row_chunks(n_rows, width, least)
    with nullcontext() if threaded else _ALONE:
        results = iterate_items(function, chunks, thread_count(None) if threaded else 1)
        return reduce(add, results, None)


def map_parts(function: Callable[[int, int], T], n: int) -> list[T]:
    """function(start, stop) over one part of 0..n per thread; the parts must not depend on each other."""
    parts = min(n, thread_count(None))
    cuts = [n * k // parts for k in range(parts + 1)]
    return map_items(lambda part: function(*part), list(pairwise(cuts)), parts)

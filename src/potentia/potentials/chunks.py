"""Work on many rows in pieces of bounded size, by threads where the kernels release the interpreter lock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
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


def row_chunks(n_rows: int, width: int, least: int = 256, ptr: Sequence[int] | None = None) -> list[slice]:
    """Consecutive slices of rows, each of about _PIECE numbers when a row holds `width` of them.

    With `ptr`, offsets of examples in the rows, slices are whole examples, at least one each.
    """
    size = max(least, _PIECE // max(1, width))
    if ptr is None:
        return [slice(start, min(start + size, n_rows)) for start in range(0, n_rows, size)]
    cuts = [0]
    for start, stop in pairwise(ptr):
        if stop - cuts[-1] > size and start > cuts[-1]:
            cuts.append(start)
    return [slice(a, b) for a, b in pairwise([*cuts, n_rows]) if b > a]


def map_chunks(
    function: Callable[[slice], T],
    n_rows: int,
    width: int,
    threaded: bool = True,
    ptr: Sequence[int] | None = None,
) -> list[T]:
    """function(rows) for every chunk, results in the order of the rows whatever the number of threads.

    Where it is not `threaded`, other threads that call it so wait. `ptr` as in `row_chunks`.
    """
    chunks = row_chunks(n_rows, width, ptr=ptr)
    if threaded:
        return map_items(function, chunks, thread_count(None))
    with _ALONE:
        return [function(rows) for rows in chunks]


def sum_chunks(
    function: Callable[[slice], Any],
    n_rows: int,
    width: int,
    threaded: bool = True,
    least: int = 256,
    ptr: Sequence[int] | None = None,
) -> Any:
    """The sum of function(rows) over chunks, added up in the order of the rows; None if there are no rows.

    Results are added as they come, few are held at a time. `least`: rows that a chunk has at least. `ptr` as in
    `row_chunks`.
    """
    chunks = row_chunks(n_rows, width, least, ptr)
    with nullcontext() if threaded else _ALONE:
        results = iterate_items(function, chunks, thread_count(None) if threaded else 1)
        return reduce(add, results, None)


def map_parts(function: Callable[[int, int], T], n: int) -> list[T]:
    """function(start, stop) over one part of 0..n per thread; the parts must not depend on each other."""
    parts = min(n, thread_count(None))
    cuts = [n * k // parts for k in range(parts + 1)]
    return map_items(lambda part: function(*part), list(pairwise(cuts)), parts)

"""Inputs of potentials: feature matrices of many examples stacked as one, or arrays of whole examples."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import reduce
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from ..base.backend import add
from ..base.resources import iterate_items, map_items, thread_count
from ..base.types import Floats, Ints, finite_array, lazy

T = TypeVar("T")

#: Examples with fewer rows than this on average are joined after all: visiting them one by one would take longer.
_FEW_ROWS = 256


class Inputs:
    """The input of a potential with `unit = "example"`: an array per example, and which of its regions are rows.

    Args:
        arrays: one per example, of any shape and number type.
        sizes: the number of regions of each example.
        rows: numbers of the regions that are rows, counted over all examples; None for all of them, in order.

    Indexing with a slice or with row numbers gives those rows, with the whole arrays of their examples.
    """

    def __init__(self, arrays: Sequence[Any], sizes: Sequence[int], rows: Ints | None = None) -> None:
        self.arrays, self.sizes, self.rows = list(arrays), [int(size) for size in sizes], rows
        self._first: Ints = np.cumsum([0, *self.sizes], dtype=np.int64)
        self.shape = (int(self._first[-1]) if rows is None else len(rows), 0)

    @classmethod
    def join(cls, parts: Sequence[Inputs]) -> Inputs:
        """Inputs below each other."""
        arrays = [array for part in parts for array in part.arrays]
        sizes = [size for part in parts for size in part.sizes]
        if all(part.rows is None for part in parts):
            return cls(arrays, sizes)
        first = np.cumsum([0, *(part._first[-1] for part in parts)])
        return cls(arrays, sizes, np.concatenate([p._numbers + k for p, k in zip(parts, first, strict=False)]))

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def _numbers(self) -> Ints:
        """Numbers of the regions that are rows, counted over all examples."""
        return np.arange(len(self)) if self.rows is None else self.rows

    @lazy
    def ptr(self) -> list[int]:
        """Offsets of the examples in the rows; one without rows is left out."""
        example = np.searchsorted(self._first, self._numbers, side="right")
        return [0, *(np.flatnonzero(np.diff(example)) + 1).tolist(), len(self)] if len(self) else [0]

    def __getitem__(self, rows: Any) -> Inputs:
        if isinstance(rows, slice) and rows == slice(None):
            return self
        numbers = self._numbers[rows]
        example = np.searchsorted(self._first, numbers, side="right") - 1
        used, new = np.unique(example, return_inverse=True)
        sizes = [self.sizes[k] for k in used]
        first = np.cumsum([0, *sizes])
        regions = numbers - self._first[example] + first[new.reshape(-1)]
        whole = len(regions) == first[-1] and np.array_equal(regions, np.arange(len(regions)))
        return Inputs([self.arrays[k] for k in used], sizes, None if whole else regions)

    def pick(self, table: Any) -> Any:
        """The rows of a table (n, ...) of all regions of all examples."""
        return table if self.rows is None else table[self.rows]

    def map(self, function: Callable[[Any], Any]) -> Any:
        """The rows of function(array), (n_regions, ...), of all examples below each other."""
        return self.pick(np.concatenate([function(array) for array in self.arrays]))

    def check(self) -> Inputs:
        """Inputs with arrays of finite numbers; refuses others."""
        arrays = [finite_array(array, f"input {k}") for k, array in enumerate(self.arrays)]
        return Inputs(arrays, self.sizes, self.rows)


class Stack:
    """Matrices (n_k, d), dense or CSR, below each other; slices are float64 (or CSR of float64).

    Dense matrices of many rows are referred to, not copied, and keep their precision: rows are widened as they are
    read. Small or sparse ones are joined.

    Args:
        blocks: the matrices.
        rows: per matrix the numbers of its rows that take part, or None for all.
    """

    def __init__(self, blocks: Sequence[Any], rows: Sequence[Ints | None] | None = None) -> None:
        chosen = [None] * len(blocks) if rows is None else list(rows)
        sizes = [b.shape[0] if r is None else len(r) for b, r in zip(blocks, chosen, strict=True)]
        sparse = any(hasattr(block, "tocsr") for block in blocks)
        if sparse or (len(blocks) > 1 and sum(sizes) < _FEW_ROWS * len(blocks)):
            parts = [b if r is None else b[r] for b, r in zip(blocks, chosen, strict=True)]
            blocks, chosen, sizes = [join_matrices(parts)], [None], [sum(sizes)]
        self._blocks, self._rows = list(blocks), chosen
        self._ptr: Ints = np.cumsum([0, *sizes], dtype=np.int64)
        self.shape = int(self._ptr[-1]), int(blocks[0].shape[1])

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def sparse(self) -> bool:
        """Whether slices are CSR."""
        return not isinstance(self._blocks[0], np.ndarray)

    @property
    def row_entries(self) -> int:
        """Numbers stored per row, on average."""
        return self._blocks[0].nnz // max(len(self), 1) if self.sparse else self.shape[1]

    def __getitem__(self, rows: Any) -> Any:
        if len(self._blocks) == 1:
            chosen = self._rows[0]
            matrix = self._blocks[0]
            if chosen is not None or not (isinstance(rows, slice) and rows == slice(None)):
                matrix = matrix[rows if chosen is None else chosen[rows]]
            if isinstance(matrix, np.ndarray):
                return np.ascontiguousarray(matrix, dtype=np.float64)
            return matrix.astype(np.float64, copy=False)
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self))
            return self._range(start, max(start, stop))
        return self._some(np.asarray(rows))

    def _range(self, start: int, stop: int) -> Floats:
        """Consecutive rows; a view where one float64 matrix holds them all."""
        first = int(np.searchsorted(self._ptr, start, side="right")) - 1
        if first < len(self._blocks) and stop <= self._ptr[first + 1]:
            piece = self._piece(first, start - self._ptr[first], stop - self._ptr[first])
            return np.ascontiguousarray(piece, dtype=np.float64)
        x = np.empty((stop - start, self.shape[1]))
        done = start
        while done < stop:
            last = min(stop, int(self._ptr[first + 1]))
            x[done - start : last - start] = self._piece(first, done - self._ptr[first], last - self._ptr[first])
            done, first = last, first + 1
        return x

    def _piece(self, block: int, start: int, stop: int) -> Any:
        """Rows start .. stop - 1 of one matrix, of those that take part."""
        chosen = self._rows[block]
        return self._blocks[block][slice(start, stop) if chosen is None else chosen[start:stop]]

    def _some(self, rows: Ints) -> Floats:
        """Any rows in any order, gathered matrix by matrix."""
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        cuts = np.searchsorted(ordered, self._ptr)
        x = np.empty((len(rows), self.shape[1]))
        for block in np.flatnonzero(np.diff(cuts)):
            span, chosen = slice(cuts[block], cuts[block + 1]), self._rows[block]
            local = ordered[span] - self._ptr[block]
            x[order[span]] = self._blocks[block][local if chosen is None else chosen[local]]
        return x


def join_matrices(parts: Sequence[Any]) -> Any:
    """Matrices below each other, in the widest of their number types; CSR of float64 if any is sparse."""
    if not any(hasattr(part, "tocsr") for part in parts):
        return np.concatenate(parts)
    from scipy import sparse

    joined = parts[0].tocsr() if len(parts) == 1 else sparse.vstack(parts, format="csr")
    return joined.astype(np.float64, copy=False)


def example_ptr(x: Any) -> list[int] | None:
    """Offsets of the examples in rows that come by whole examples; None for rows of features."""
    return x.ptr if isinstance(x, Inputs) else None


def is_sparse(x: Any) -> bool:
    """Whether rows of these features are CSR."""
    return x.sparse if isinstance(x, Stack) else hasattr(x, "tocsr")


def stored_per_row(x: Any) -> int:
    """Numbers that a row of sparse features stores, on average."""
    return x.row_entries if isinstance(x, Stack) else int(x.nnz) // max(x.shape[0], 1)


# -- pieces of rows ---------------------------------------------------------------------------------------------

#: Doubles per piece: large enough to hide the cost of a call, small enough to stay in cache.
_PIECE = 1 << 18
#: Locked while pieces are worked on that must not be worked on by several threads.
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
    function: Callable[[slice], T], n_rows: int, width: int, threaded: bool = True, ptr: Sequence[int] | None = None
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

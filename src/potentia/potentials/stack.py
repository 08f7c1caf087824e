"""Feature matrices of many examples read as one, without joining them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base.types import Floats, Ints

#: Examples with fewer rows than this on average are joined after all: visiting them one by one would take longer.
_FEW_ROWS = 256


class Stack:
    """Matrices (n_k, d), dense or CSR, below each other; slices are float64 (or CSR of float64).

    Dense matrices of many rows are referred to, not copied, and keep their precision: rows are widened as they are
    read. Small or sparse ones are joined.

    Args:
        blocks: the matrices.
        kept: per matrix the numbers of its rows that take part, or None for all.
    """

    def __init__(self, blocks: Sequence[Any], kept: Sequence[Ints | None] | None = None) -> None:
        chosen = [None] * len(blocks) if kept is None else list(kept)
        sizes = [b.shape[0] if rows is None else len(rows) for b, rows in zip(blocks, chosen, strict=True)]
        sparse = any(hasattr(block, "tocsr") for block in blocks)
        if sparse or (len(blocks) > 1 and sum(sizes) < _FEW_ROWS * len(blocks)):
            parts = [b if rows is None else b[rows] for b, rows in zip(blocks, chosen, strict=True)]
            blocks, chosen, sizes = [join_matrices(parts)], [None], [sum(sizes)]
        self._blocks, self._kept = list(blocks), chosen
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
            own = self._kept[0]
            if own is None and isinstance(rows, slice) and rows == slice(None):
                return _wide(self._blocks[0])
            return _wide(self._blocks[0][rows if own is None else own[rows]])
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self))
            return self._range(start, max(start, stop))
        return self._some(np.asarray(rows))

    def _range(self, start: int, stop: int) -> Floats:
        """Consecutive rows; a view where one float64 matrix holds them all."""
        first = int(np.searchsorted(self._ptr, start, side="right")) - 1
        if first < len(self._blocks) and stop <= self._ptr[first + 1]:
            return _wide(self._piece(first, start - self._ptr[first], stop - self._ptr[first]))
        found = np.empty((stop - start, self.shape[1]))
        done = start
        while done < stop:
            last = min(stop, int(self._ptr[first + 1]))
            found[done - start : last - start] = self._piece(
                first, done - self._ptr[first], last - self._ptr[first]
            )
            done, first = last, first + 1
        return found

    def _piece(self, block: int, start: int, stop: int) -> Any:
        own = self._kept[block]
        return self._blocks[block][slice(start, stop) if own is None else own[start:stop]]

    def _some(self, rows: Ints) -> Floats:
        """Any rows in any order, gathered matrix by matrix."""
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        cuts = np.searchsorted(ordered, self._ptr)
        found = np.empty((len(rows), self.shape[1]))
        for block in np.flatnonzero(np.diff(cuts)):
            span, own = slice(cuts[block], cuts[block + 1]), self._kept[block]
            local = ordered[span] - self._ptr[block]
            found[order[span]] = self._blocks[block][local if own is None else own[local]]
        return found


def join_matrices(parts: Sequence[Any]) -> Any:
    """Matrices below each other, in the widest of their number types; CSR of float64 if any is sparse."""
    if not any(hasattr(part, "tocsr") for part in parts):
        return np.concatenate(parts)
    from scipy import sparse

    joined = parts[0].tocsr() if len(parts) == 1 else sparse.vstack(parts, format="csr")
    return joined.astype(np.float64, copy=False)


def _wide(matrix: Any) -> Any:
    """The rows in float64, as kernels take them."""
    if hasattr(matrix, "tocsr"):
        return matrix.astype(np.float64, copy=False)
    return np.ascontiguousarray(matrix, dtype=np.float64)

"""Arrays of whole examples, read by potentials that look at more than one region at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ..base.types import Ints, finite_array


class Inputs:
    """What a potential with `unit = "example"` reads: an array per example, and which of its regions are rows.

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
        return cls(
            arrays, sizes, np.concatenate([p._numbers + k for p, k in zip(parts, first, strict=False)])
        )

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def _numbers(self) -> Ints:
        return np.arange(len(self)) if self.rows is None else self.rows

    @cached_property
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
        own = numbers - self._first[example] + first[new.reshape(-1)]
        whole = len(own) == first[-1] and np.array_equal(own, np.arange(len(own)))
        return Inputs([self.arrays[k] for k in used], sizes, None if whole else own)

    def pick(self, table: Any) -> Any:
        """The rows of a table (n, ...) of all regions of all examples."""
        return table if self.rows is None else table[self.rows]

    def map(self, function: Callable[[Any], Any]) -> Any:
        """The rows of function(array), (n_regions, ...), of all examples below each other."""
        return self.pick(np.concatenate([function(array) for array in self.arrays]))

    def check(self) -> Inputs:
        """The same with arrays of finite numbers, or a sentence about the first that is not."""
        arrays = [finite_array(array, f"input {k}") for k, array in enumerate(self.arrays)]
        return Inputs(arrays, self.sizes, self.rows)


def example_ptr(x: Any) -> list[int] | None:
    """Offsets of the examples in rows that come by whole examples; None for rows of features."""
    return x.ptr if isinstance(x, Inputs) else None

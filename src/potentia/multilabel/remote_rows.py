"""`RemoteRows`: a matrix of features that the workers of a cluster read for themselves, and this process never has."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

from .._types import Floats, Ints
from ..parallel.connection import map_anywhere

T = TypeVar("T")


class RowSource(Protocol):
    """Where rows come from; equal keys are equal rows."""

    @property
    def key(self) -> str: ...

    def rows(self) -> Floats: ...


#: The matrix read last by this process: labels are learned one after another from the same one.
_read_last: dict[str, Floats] = {}


class RemoteRows:
    """Rows (n, d) of a source, or some of them, which whoever computes with them reads; products are computed there.

    Attributes:
        shape: (n, d).
        chosen: numbers of the source's rows; None for all.
    """

    def __init__(self, source: RowSource, shape: tuple[int, int], chosen: Ints | None = None) -> None:
        self.source, self.shape, self.chosen = source, shape, chosen

    def __getitem__(self, numbers: Ints) -> RemoteRows:
        chosen = numbers if self.chosen is None else self.chosen[numbers]
        return RemoteRows(self.source, (len(chosen), self.shape[1]), chosen)

    def __matmul__(self, weights: Any) -> Floats:
        return self.ask(partial(_product, weights))

    def ask(self, function: Callable[[Floats], T]) -> T:
        """function(rows), computed by a worker."""
        found: T = map_anywhere(partial(_apply, function), [self])[0]
        return found

    def read(self) -> Floats:
        """The rows, in this process, which keeps the matrix that it read last."""
        if self.source.key not in _read_last:
            _read_last.clear()
            _read_last[self.source.key] = self.source.rows()
        matrix = _read_last[self.source.key]
        return matrix if self.chosen is None else matrix[self.chosen]


def forget_rows() -> None:
    """Let go of the matrix that this process keeps."""
    _read_last.clear()


def _apply(function: Callable[[Floats], T], rows: RemoteRows) -> T:
    return function(rows.read())


def _product(weights: Any, rows: Floats) -> Floats:
    found: Floats = rows @ weights
    return found

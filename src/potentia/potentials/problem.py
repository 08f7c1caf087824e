"""The oracle's whole world, checked: rows of features, targets, biases and weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from potentia._types import Floats, Ints, PotentiaError
from potentia.parallel.backend import Backend, Local
from potentia.potentials.chunks import map_chunks, sum_chunks
from potentia.potentials.inputs import Inputs, example_ptr
from potentia.potentials.stack import Stack, join_matrices

NO_ROWS: Floats = np.zeros((0, 0))
NO_WEIGHT: Floats = np.zeros(0)
NO_LABELS: Ints = np.zeros(0, np.int64)


#: What a table of rows is asked for by: a kind, or a selection of its rows and the kind.
RowKey = str | tuple[str, str]


class BiasRows(Protocol):
    """What a bias must offer: a shape (N, K) and rows on demand, by slice or by array of row numbers.

    An array does; so does an object that makes rows when asked, for tables too large to hold. Several threads
    may ask at once.
    """

    shape: tuple[int, ...]

    def __getitem__(self, rows: Any, /) -> Any: ...


class Batch:
    """Some rows as the kernels take them; absent arrays have no rows. Features and biases are read on demand."""

    def __init__(self, table: Rows, rows: Any) -> None:
        self._table, self._rows = table, rows
        self._x: Any = None
        self._bias: Floats | None = None

    # no `cached_property`, which before Python 3.12 lets one thread compute at a time
    @property
    def x(self) -> Any:
        """Features (n, d) in float64, dense or CSR; or `Inputs`."""
        if self._x is None:
            self._x = self._table.x[self._rows]
        return self._x

    @property
    def bias(self) -> Floats:
        """Biases (n, K)."""
        if self._bias is None:
            bias = self._table.bias
            self._bias = NO_ROWS if bias is None else np.ascontiguousarray(bias[self._rows], dtype=np.float64)
        return self._bias

    @property
    def labels(self) -> Ints:
        """Labels (n,); none with soft targets."""
        return self._table.labels[self._rows] if len(self._table.labels) else NO_LABELS

    @property
    def soft(self) -> Floats:
        """Target distributions (n, K); none with labels."""
        return self._table.soft[self._rows] if len(self._table.soft) else NO_ROWS

    @property
    def weight(self) -> Floats:
        """Weights (n,)."""
        return self._table.weight[self._rows] if len(self._table.weight) else NO_WEIGHT

    @property
    def scores(self) -> Floats | None:
        """f(x) of these rows before the fit, if available."""
        return None if self._table.scores is None else self._table.scores[self._rows]

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.labels) or len(self.soft)

    @property
    def targets(self) -> tuple[Floats, Ints, Floats, Floats]:
        """(bias, labels, soft, weight), the kernels' common arguments."""
        return self.bias, self.labels, self.soft, self.weight

    def table(self) -> Rows:
        """A copy of these rows as a table."""
        bias = self.bias if len(self.bias) else None
        return Rows(self.x, self.labels, self.soft, bias, self.weight, self.scores)


@dataclass(frozen=True)
class Rows:
    """Rows in one place.

    x (N, d) or `Inputs`, labels (N,) or soft targets (N, K), bias (N, K), weight (N,), f(x) if kept.
    """

    x: Any
    labels: Ints
    soft: Floats
    bias: BiasRows | None
    weight: Floats
    scores: Floats | None = None

    def __len__(self) -> int:
        return int(self.x.shape[0])

    @property
    def total_weight(self) -> float:
        """Sum of the weights."""
        return float(self.weight.sum()) if len(self.weight) else float(len(self))

    def take(self, rows: slice | NDArray[Any]) -> Batch:
        """The given rows, by slice or row numbers."""
        return Batch(self, rows)

    def sum(self, function: Callable[..., Any], args: Sequence[Any], width: int, threaded: bool) -> Any:
        """The sum of function(batch, *args) over pieces of consecutive rows."""
        least = 256
        if is_sparse(self.x):
            stored = stored_per_row(self.x)
            # a piece makes a dense gradient, which must not cost more than the rows themselves
            width = width - self.x.shape[1] + stored
            least = max(least, 4 * self.x.shape[1] // max(stored, 1))
        ptr = example_ptr(self.x)
        return sum_chunks(
            lambda rows: function(self.take(rows), *args), len(self), width, threaded, least, ptr
        )


def is_sparse(x: Any) -> bool:
    """Whether rows of these features are CSR."""
    return x.sparse if isinstance(x, Stack) else hasattr(x, "tocsr")


def stored_per_row(x: Any) -> int:
    """Numbers that a row of sparse features stores, on average."""
    return x.row_entries if isinstance(x, Stack) else int(x.nnz) // max(x.shape[0], 1)


class Tables(ABC):
    """Something with tables of rows by kind, and the verbs by which a `Problem` reaches them."""

    @abstractmethod
    def rows(self, key: RowKey) -> Rows:
        """The rows of a kind, or of a selection of them."""

    def sum_rows(
        self, key: RowKey, function: Callable[..., Any], args: Sequence[Any], width: int, threaded: bool
    ) -> Any:
        """The sum of function(batch, *args) over this part's rows; None if there are none."""
        return self.rows(key).sum(function, args, width, threaded)

    def draw_rows(self, rows: Any, key: RowKey) -> Rows | None:
        """Some of the rows, gathered."""
        return self.rows(key).take(rows).table() if len(rows) else None

    def collect_rows(
        self, key: RowKey, function: Callable[..., Any], args: Sequence[Any], width: int, threaded: bool
    ) -> list[Any]:
        """function(batch, *args) of pieces of consecutive rows, in order."""
        table = self.rows(key)
        ptr = example_ptr(table.x)
        return map_chunks(lambda rows: function(table.take(rows), *args), len(table), width, threaded, ptr)

    def row_cuts(self, key: RowKey) -> list[int] | None:
        """Offsets of the examples in this part's rows, where those come by whole examples."""
        return example_ptr(self.rows(key).x)


class _One(Tables):
    def __init__(self, table: Rows) -> None:
        self._table = table

    def rows(self, key: RowKey) -> Rows:
        return self._table


class Problem:
    """Fit f to the rows of a kind, wherever they are: through `sum`, `draw` and `collect`.

    Attributes:
        n_rows, n_features, n_outputs: N, d and K.
        total_weight: sum of the rows' weights.
    """

    def __init__(
        self,
        tables: Backend,
        key: RowKey,
        sizes: Sequence[int],
        n_features: int,
        n_outputs: int,
        weight: float,
    ) -> None:
        self._tables, self._key = tables, key
        self._ptr: Ints = np.cumsum([0, *sizes], dtype=np.int64)
        self.n_rows, self.n_features, self.n_outputs = int(self._ptr[-1]), n_features, n_outputs
        self.total_weight = weight

    @classmethod
    def of(cls, table: Rows, n_outputs: int) -> Problem:
        """Rows that are all in memory."""
        return cls(
            Local([_One(table)]), "", [len(table)], int(table.x.shape[1]), n_outputs, table.total_weight
        )

    def sum(
        self, function: Callable[..., Any], *args: Any, width: int | None = None, threaded: bool = True
    ) -> Any:
        """The sum over all rows of function(batch, *args), called for pieces of consecutive rows.

        It returns a number, an array, or a tuple of them. `width`: numbers that a row takes while it is worked on,
        which sets the size of pieces. `threaded`: several threads may call it at once.
        """
        return self._tables.total("sum_rows", self._key, function, args, self._width(width), threaded)

    def draw(self, rows: slice | NDArray[Any]) -> Batch:
        """The given rows, by slice or row numbers, gathered here."""
        if self._tables.n_parts == 1 and self.local:
            return self.only.take(rows)
        numbers = np.arange(self.n_rows)[rows] if isinstance(rows, slice) else np.asarray(rows)
        order = np.argsort(numbers, kind="stable")
        cuts = np.searchsorted(numbers[order], self._ptr)
        local = [
            numbers[order[a:b]] - first
            for a, b, first in zip(cuts[:-1], cuts[1:], self._ptr[:-1], strict=True)
        ]
        found = [t for t in self._tables.each("draw_rows", self._key, own=local) if t is not None]
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return _join(found).take(back)

    def batches(self, order: Ints, size: int, together: int) -> Iterator[Batch]:
        """The rows in this order, `size` at a time; those of `together` batches are gathered at once."""
        for first in range(0, len(order), together * size):
            table = self.draw(order[first : first + together * size]).table()
            for start in range(0, len(table), size):
                yield table.take(slice(start, start + size))

    def collect(
        self, function: Callable[..., Any], *args: Any, width: int | None = None, threaded: bool = True
    ) -> Any:
        """function(batch, *args) (n, ...) of all rows below each other, for results that are small."""
        parts = self._tables.each("collect_rows", self._key, function, args, self._width(width), threaded)
        return np.concatenate([piece for part in parts for piece in part])

    def example_ptr(self) -> Ints:
        """Offsets of the examples in the rows (n_examples + 1), for potentials with `unit = "example"`."""
        cuts = zip(self._tables.each("row_cuts", self._key), self._ptr[:-1].tolist(), strict=True)
        return np.array([0, *(first + end for own, first in cuts for end in (own or [0])[1:])])

    @property
    def local(self) -> bool:
        """Whether all rows are in this process."""
        return isinstance(self._tables, Local)

    def _width(self, width: int | None) -> int:
        return self.n_features + 3 * self.n_outputs if width is None else width

    @property
    def only(self) -> Rows:
        """The rows, where they are all in one part of this process."""
        if self._tables.n_parts > 1 or not isinstance(self._tables, Local):
            raise PotentiaError(
                "These rows are in several parts, or not in memory: a potential for them uses problem.sum and "
                "problem.draw instead of reading problem.x."
            )
        table: Rows = self._tables.parts[0].rows(self._key)
        return table

    @property
    def x(self) -> Any:
        """All features (N, d), where there is one part."""
        x = self.only.x
        return x[:] if isinstance(x, Stack) else x

    @property
    def labels(self) -> Ints:
        """All labels (N,), or none with soft targets, where there is one part."""
        return self.only.labels

    @property
    def soft(self) -> Floats:
        """All soft targets (N, K), or none, where there is one part."""
        return self.only.soft

    @property
    def bias(self) -> BiasRows | None:
        """All biases (N, K), where there is one part."""
        return self.only.bias

    @property
    def weight(self) -> Floats:
        """All weights (N,), or none, where there is one part."""
        return self.only.weight

    def take(self, rows: slice | NDArray[Any]) -> Batch:
        """The same as `draw`."""
        return self.draw(rows)


def _join(tables: Sequence[Rows]) -> Rows:
    """Tables below each other."""
    first = tables[0]
    join = Inputs.join if isinstance(first.x, Inputs) else join_matrices
    x = join([t.x for t in tables])
    bias = None if first.bias is None else np.concatenate([t.bias[:] for t in tables if t.bias is not None])
    scores = (
        None if first.scores is None else np.concatenate([t.scores for t in tables if t.scores is not None])
    )
    labels, soft, weight = (
        np.concatenate([getattr(t, name) for t in tables]) for name in ("labels", "soft", "weight")
    )
    return Rows(x, labels, soft, bias, weight, scores)

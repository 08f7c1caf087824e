"""`Problem`: fit a function to rows wherever they are, in pieces of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ..base.backend import Backend, Local
from ..base.resources import map_items, thread_count
from ..base.types import ArrayLike, Floats, Ints, PotentiaError, check_count, lazy, plain_array, real_numbers
from ..kernels.linear_losses import loss_rows
from .inputs import Inputs, example_ptr, is_sparse, join_matrices, map_chunks, stored_per_row, sum_chunks

T = TypeVar("T")


def map_parts(function: Callable[[int, int], T], n: int) -> list[T]:
    """function(start, stop) over one part of 0..n per thread; the parts must not depend on each other."""
    parts = min(n, thread_count(None))
    cuts = [n * k // parts for k in range(parts + 1)]
    return map_items(lambda part: function(*part), list(pairwise(cuts)), parts)


NO_ROWS: Floats = np.zeros((0, 0))
NO_WEIGHT: Floats = np.zeros(0)
NO_LABELS: Ints = np.zeros(0, np.int64)


class Batch:
    """Some rows as the kernels take them; absent arrays have no rows. Each array is read at first use."""

    def __init__(self, table: Rows, rows: Any) -> None:
        self._table, self._rows = table, rows

    @lazy
    def x(self) -> Any:
        """Features (n, d) in float64, dense or CSR; or `Inputs`."""
        return self._table.x[self._rows]

    @lazy
    def bias(self) -> Floats:
        """Biases (n, K)."""
        bias = self._table.bias
        if bias is None:
            return NO_ROWS
        rows = bias.make(self._rows) if isinstance(bias, OnDemand) else bias[self._rows]
        return np.ascontiguousarray(rows, dtype=np.float64)

    @lazy
    def labels(self) -> Ints:
        """Labels (n,); none with soft targets."""
        return self._table.labels[self._rows] if len(self._table.labels) else NO_LABELS

    @lazy
    def soft(self) -> Floats:
        """Target distributions (n, K); none with labels."""
        return self._table.soft[self._rows] if len(self._table.soft) else NO_ROWS

    @lazy
    def weight(self) -> Floats:
        """Weights (n,)."""
        return self._table.weight[self._rows] if len(self._table.weight) else NO_WEIGHT

    @lazy
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

    def loss(self, scores: Floats) -> float:
        """The summed biased logistic loss at scores f(x) (n, K)."""
        return float(loss_rows(np.ascontiguousarray(scores, dtype=np.float64), *self.targets, NO_ROWS))

    def loss_and_slope(self, scores: Floats) -> tuple[float, Floats]:
        """The summed biased logistic loss at scores f(x) (n, K), and its derivatives by them, (n, K)."""
        scores = np.ascontiguousarray(scores, dtype=np.float64)
        slope = np.empty_like(scores)
        return float(loss_rows(scores, *self.targets, slope)), slope

    def table(self) -> Rows:
        """A copy of these rows as a table."""
        bias = self.bias if len(self.bias) else None
        return Rows(self.x, self.labels, self.soft, bias, self.weight, self.scores)


class OnDemand:
    """A table (N, K) that is too large to hold: `make` gives the rows of a slice or of row numbers."""

    def __init__(self, shape: tuple[int, int], make: Callable[[Any], Floats]) -> None:
        self.shape, self.make = shape, make

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Floats:
        return self.make(rows)


@dataclass(frozen=True)
class Rows:
    """Rows in one place.

    x (N, d) or `Inputs`, labels (N,) or soft targets (N, K), bias (N, K) or None, weight (N,), f(x) if known. The bias
    is an array, or `OnDemand`, which several threads may ask at once.
    """

    x: Any
    labels: Ints
    soft: Floats
    bias: Any
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
        return sum_chunks(lambda rows: function(self.take(rows), *args), len(self), width, threaded, least, ptr)

    def pieces(self, function: Callable[..., T], args: Sequence[Any], width: int, threaded: bool) -> list[T]:
        """function(batch, *args) of pieces of consecutive rows, in order."""
        ptr = example_ptr(self.x)
        return map_chunks(lambda rows: function(self.take(rows), *args), len(self), width, threaded, ptr)


#: The rows of a kind in a part, of the part and its state.
RowsOf = Callable[[Any, Any], Rows]


def _of_rows(part: Any, state: Any, rows_of: RowsOf, function: Callable[..., T], *args: Any) -> tuple[Any, T]:
    """A function of a part's rows."""
    return state, function(rows_of(part, state), *args)


def _draw_rows(part: Any, state: Any, rows: Any, rows_of: RowsOf) -> tuple[Any, Rows | None]:
    """Some of a part's rows, gathered."""
    return state, rows_of(part, state).take(rows).table() if len(rows) else None


def _row_cuts(table: Rows) -> list[int] | None:
    """Offsets of the examples in rows, where those come by whole examples."""
    return example_ptr(table.x)


def _itself(part: Rows, state: Any) -> Rows:
    """All rows of a part that is a table."""
    return part


class Problem:
    """Fit f to the rows of a kind, wherever they are: through `sum`, `draw` and `collect`.

    Attributes:
        n_rows, n_features, n_outputs: N, d and K.
        total_weight: sum of the rows' weights.
        local: whether all rows are in this process.
    """

    def __init__(
        self,
        parts: Backend,
        states: Any,
        rows_of: RowsOf,
        sizes: Sequence[int],
        n_features: int,
        n_outputs: int,
        weight: float,
    ) -> None:
        self._parts, self._states, self._rows_of = parts, states, rows_of
        self._ptr: Ints = np.cumsum([0, *sizes], dtype=np.int64)
        self.n_rows, self.n_features, self.n_outputs = int(self._ptr[-1]), n_features, n_outputs
        self.total_weight = weight

    @classmethod
    def of(cls, table: Rows, n_outputs: int) -> Problem:
        """Rows that are all in memory."""
        n_features = int(table.x.shape[1])
        return cls(Local([table]), None, _itself, [len(table)], n_features, n_outputs, table.total_weight)

    def sum(self, function: Callable[..., Any], *args: Any, width: int | None = None, threaded: bool = True) -> Any:
        """The sum over all rows of function(batch, *args), called for pieces of consecutive rows.

        It returns a number, an array, or a tuple of them. `width`: numbers that a row takes while it is worked on,
        which sets the size of pieces. `threaded`: several threads may call it at once.
        """
        given = self._rows_of, Rows.sum, function, args, self._width(width), threaded
        return self._parts.total(_of_rows, self._states, *given)[1]

    def draw(self, rows: slice | NDArray[Any]) -> Batch:
        """The given rows, by slice or row numbers, gathered here."""
        if self._parts.n_parts == 1 and self.local:
            table = self._rows_of(cast(Local, self._parts).parts[0], (self._states or ({},))[0])
            return table.take(rows)
        numbers = np.arange(self.n_rows)[rows] if isinstance(rows, slice) else np.asarray(rows)
        order = np.argsort(numbers, kind="stable")
        cuts = np.searchsorted(numbers[order], self._ptr)
        local = [numbers[order[a:b]] - first for a, b, first in zip(cuts[:-1], cuts[1:], self._ptr[:-1], strict=True)]
        _, tables = self._parts.map(_draw_rows, self._states, self._rows_of, own=local)
        tables = [table for table in tables if table is not None]
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return _join(tables).take(back)

    def batches(self, order: Ints, size: int, together: int) -> Iterator[Batch]:
        """The rows in this order, `size` at a time; those of `together` batches are gathered at once."""
        for first in range(0, len(order), together * size):
            table = self.draw(order[first : first + together * size]).table()
            for start in range(0, len(table), size):
                yield table.take(slice(start, start + size))

    def collect(self, function: Callable[..., Any], *args: Any, width: int | None = None, threaded: bool = True) -> Any:
        """function(batch, *args) (n, ...) of all rows below each other, for results that are small."""
        given = self._rows_of, Rows.pieces, function, args, self._width(width), threaded
        parts = self._parts.map(_of_rows, self._states, *given)[1]
        return np.concatenate([piece for part in parts for piece in part])

    def example_ptr(self) -> Ints:
        """Offsets of the examples in the rows (n_examples + 1), for potentials with `unit = "example"`."""
        _, of_parts = self._parts.map(_of_rows, self._states, self._rows_of, _row_cuts)
        cuts = zip(of_parts, self._ptr[:-1].tolist(), strict=True)
        return np.array([0, *(first + end for ends, first in cuts for end in (ends or [0])[1:])])

    @property
    def local(self) -> bool:
        """Whether all rows are in this process."""
        return self._parts.in_memory

    def _width(self, width: int | None) -> int:
        """Numbers a row takes while it is worked on, by default its features, scores, bias and slope."""
        return self.n_features + 3 * self.n_outputs if width is None else width


def _join(tables: Sequence[Rows]) -> Rows:
    """Tables below each other."""
    first = tables[0]
    join = Inputs.join if isinstance(first.x, Inputs) else join_matrices
    x = join([t.x for t in tables])
    bias = None if first.bias is None else np.concatenate([t.bias[:] for t in tables if t.bias is not None])
    scores = None if first.scores is None else np.concatenate([t.scores for t in tables if t.scores is not None])
    labels, soft = (np.concatenate([getattr(t, name) for t in tables]) for name in ("labels", "soft"))
    weight = NO_WEIGHT
    if any(len(t.weight) for t in tables):
        weight = np.concatenate([t.weight if len(t.weight) else np.ones(len(t)) for t in tables])
    return Rows(x, labels, soft, bias, weight, scores)


def make_problem(
    x: Any, y: ArrayLike, bias: Any, weight: ArrayLike | None, n_outputs: int | None, unit: str = "row"
) -> Problem:
    """Check everything, drop rows of weight zero, and settle the number of configurations."""
    target = plain_array(y, "y")
    if target.ndim not in (1, 2):
        raise PotentiaError(f"y must be labels (N,) or target distributions (N, K), got shape {target.shape}.")
    if len(target) == 0:
        raise PotentiaError("There are no rows to fit on: y is empty.")
    features = check_features(x, len(target), unit)
    if features.shape[0] != len(target):
        raise PotentiaError(f"x has {features.shape[0]} rows but y has {len(target)}.")
    if bias is not None and (isinstance(bias, np.ndarray) or not hasattr(bias, "shape")):
        bias = real_numbers(bias, "bias")
    n_outputs = _count_outputs(target, bias, n_outputs)
    labels, soft = _check_target(target, n_outputs)
    weights = _check_weight(weight, len(target))
    table = Rows(features, labels, soft, bias, weights)
    if bias is not None:
        _check_bias(table, n_outputs)
    return Problem.of(_drop_weightless(table), n_outputs)


def check_features(x: Any, n_rows: int | None = None, unit: str = "row") -> Any:
    """x as a finite float64 matrix (N, d) in row order, or CSR; None stands for rows without features.

    With unit "example" it must be `Inputs`.
    """
    if isinstance(x, Inputs) != (unit == "example"):
        raise PotentiaError(
            f"this potential reads whole examples, so x must be Inputs, not {type(x).__name__}."
            if unit == "example"
            else "this potential reads features (N, d) of rows, not Inputs of whole examples."
        )
    if isinstance(x, Inputs):
        return x.check()
    if x is None:
        if n_rows is None:
            raise PotentiaError("x is None, so the number of rows is unknown: pass an array of shape (N, 0).")
        return np.zeros((n_rows, 0))
    if hasattr(x, "tocsr"):
        if unit != "sparse row":
            raise PotentiaError("x is sparse, but this potential takes dense features: use Linear or x.toarray().")
        x = x.tocsr().astype(np.float64)
        values = x.data
    else:
        x = values = np.ascontiguousarray(real_numbers(x, "x"))
    if x.ndim != 2:
        raise PotentiaError(f"x must have shape (N, d), got {x.shape}.")
    finite = map_chunks(lambda rows: bool(np.isfinite(values[rows]).all()), len(values), x.shape[1])
    if not all(finite):
        where = _first_bad(x)
        raise PotentiaError(f"x of shape {x.shape} holds a value that is not finite at {where}.")
    return x


def _first_bad(x: Any) -> str:
    """Where the first value lies that is not finite, for a message."""
    if hasattr(x, "tocoo"):
        entries = x.tocoo()
        bad = np.flatnonzero(~np.isfinite(entries.data))[0]
        return f"row {entries.row[bad]}, feature {entries.col[bad]}"
    row, feature = np.argwhere(~np.isfinite(x))[0]
    return f"row {row}, feature {feature}"


def _count_outputs(y: NDArray[Any], bias: Any, n_outputs: int | None) -> int:
    """K from the keyword, the bias or soft targets, which must agree; else from the largest label."""
    said: dict[str, int] = {}
    if n_outputs is not None:
        check_count("n_outputs", n_outputs, 1)
        said["n_outputs"] = int(n_outputs)
    if bias is not None:
        if len(bias.shape) != 2 or bias.shape[0] != len(y):
            raise PotentiaError(f"bias must have shape ({len(y)}, K), got {tuple(bias.shape)}.")
        said["bias"] = int(bias.shape[1])
    if y.ndim == 2:
        said["y"] = int(y.shape[1])
    if len(set(said.values())) > 1:
        text = ", ".join(f"{name} says {count}" for name, count in said.items())
        raise PotentiaError(f"The number of configurations is contradictory: {text}.")
    count = next(iter(said.values())) if said else int(y.max()) + 1
    if count < 1:
        raise PotentiaError(f"There must be at least one configuration, got {count}.")
    return count


def _check_target(y: NDArray[Any], n_outputs: int) -> tuple[Ints, Floats]:
    """Labels (N,) or distributions (N, K) as the kernels take them, one of them empty."""
    if y.ndim == 2:
        soft = np.ascontiguousarray(real_numbers(y, "y"))
        bad = np.flatnonzero(~((soft >= 0).all(1) & (np.abs(soft.sum(1) - 1) <= 1e-6)))
        if len(bad):
            raise PotentiaError(f"y must hold distributions: row {bad[0]} is not non-negative with sum 1.")
        return NO_LABELS, soft
    if not np.issubdtype(y.dtype, np.integer):
        raise PotentiaError(f"y must hold integer labels or be of shape (N, K), got dtype {y.dtype}.")
    bad = np.flatnonzero((y < 0) | (y >= n_outputs))
    if len(bad):
        raise PotentiaError(f"y holds {y[bad[0]]} at row {bad[0]}, outside 0..{n_outputs - 1}.")
    return np.ascontiguousarray(y, dtype=np.int64), NO_ROWS


def _check_weight(weight: ArrayLike | None, n_rows: int) -> Floats:
    """Weights (N,), finite and not negative; empty for None."""
    if weight is None:
        return NO_WEIGHT
    weights = np.ascontiguousarray(real_numbers(weight, "weight"))
    if weights.shape != (n_rows,):
        raise PotentiaError(f"weight must have shape ({n_rows},), got {weights.shape}.")
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise PotentiaError("weight must be finite and not negative.")
    if not (weights > 0).any():
        raise PotentiaError("There are no rows to fit on: every weight is zero.")
    return weights


def _check_bias(table: Rows, n_outputs: int) -> None:
    """-inf forbids a configuration, but not one that the row's target holds."""

    def first_bad(rows: slice) -> int:
        """Number of the first bad row of a piece, -1 if there is none."""
        batch = table.take(rows)
        wrong = np.isnan(batch.bias).any(1) | (batch.bias == np.inf).any(1)
        if len(batch.labels):
            wrong |= batch.bias[np.arange(len(batch.labels)), batch.labels] == -np.inf
        else:
            wrong |= ((batch.bias == -np.inf) & (batch.soft > 0)).any(1)
        return rows.start + int(wrong.argmax()) if wrong.any() else -1

    bad = [row for row in map_chunks(first_bad, len(table), 4 * n_outputs) if row >= 0]
    if bad:
        raise PotentiaError(f"bias row {bad[0]} holds NaN or +inf, or forbids the row's own label with -inf.")


def _drop_weightless(table: Rows) -> Rows:
    """The rows of weight above zero."""
    if not len(table.weight) or (table.weight > 0).all():
        return table
    return table.take(np.flatnonzero(table.weight > 0)).table()

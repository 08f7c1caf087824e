"""What users give a potential, checked: features, targets, biases and weights become a `Problem`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from potentia._options import check_count
from potentia._types import ArrayLike, Floats, Ints, PotentiaError, plain_array, real_numbers
from potentia.potentials.chunks import map_chunks
from potentia.potentials.inputs import Inputs
from potentia.potentials.problem import NO_LABELS, NO_ROWS, NO_WEIGHT, Problem, Rows


def make_problem(
    x: Any,
    y: ArrayLike,
    bias: Any,
    weight: ArrayLike | None,
    n_outputs: int | None,
    sparse: bool,
    unit: str = "row",
) -> Problem:
    """Check everything, drop rows of weight zero, and settle the number of configurations."""
    target = plain_array(y, "y")
    if target.ndim not in (1, 2):
        raise PotentiaError(
            f"y must be labels (N,) or target distributions (N, K), got shape {target.shape}."
        )
    if len(target) == 0:
        raise PotentiaError("There are no rows to fit on: y is empty.")
    features = check_features(x, sparse, len(target), unit)
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


def check_features(x: Any, sparse: bool, n_rows: int | None = None, unit: str = "row") -> Any:
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
        if not sparse:
            raise PotentiaError(
                "x is sparse, but this potential takes dense features: use Linear or x.toarray()."
            )
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
    if not len(table.weight) or (table.weight > 0).all():
        return table
    return table.take(np.flatnonzero(table.weight > 0)).table()

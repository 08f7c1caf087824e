"""Weights of rows and of labels' values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from sklearn.utils.validation import _check_sample_weight

from .._options import check_choice, check_positive
from .._types import Floats, PotentiaError, shown

#: None, "balanced", or the weights of a label's smaller value, 0, and of its larger, 1.
ClassWeight = Literal["balanced"] | Mapping[int, float] | None


def check_class_weight(value: object) -> None:
    """Refuse anything but weights of two values."""
    if value is None:
        return
    if not isinstance(value, Mapping):
        check_choice("class_weight", value, ("balanced",), "a dictionary or None")
        return
    if not set(value) <= {0, 1}:
        raise PotentiaError(
            f"class_weight has the keys 0 and 1, for a label's smaller and larger value, not {shown(value)}."
        )
    for key, weight in value.items():
        check_positive(f"class_weight[{key}]", weight)


def row_weights(sample_weight: Any, X: Any) -> Floats:
    """A weight per row, not negative, of mean 1 over the rows whose weight is not zero."""
    if sample_weight is None:
        return np.ones(X.shape[0])
    try:
        weight: Floats = _check_sample_weight(sample_weight, X, dtype=np.float64)
    except ValueError as error:
        raise PotentiaError(" ".join(str(error).split())) from None
    if weight.min() < 0 or not weight.any():
        raise PotentiaError("sample_weight must be numbers of at least 0, some of them above it.")
    return weight / weight[weight > 0].mean()


def label_weights(weight: Floats, signs: Floats, class_weight: ClassWeight) -> Floats:
    """Weights (n, V) of the rows' labels: those of the rows times those of the labels' values.

    "balanced": a label's two values have the same weight in sum.
    """
    found = np.repeat(weight[:, None], signs.shape[1], axis=1)
    if class_weight is None:
        return found
    if isinstance(class_weight, Mapping):
        return found * np.where(signs > 0, class_weight.get(1, 1.0), class_weight.get(0, 1.0))
    present = np.sum(found * (signs > 0), axis=0)
    total = found.sum(axis=0)
    balanced: Floats = found * np.where(signs > 0, total / (2.0 * present), total / (2.0 * (total - present)))
    return balanced

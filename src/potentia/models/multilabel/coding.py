"""Labels as given, coded as signs: any two values per column become -1 and +1, and back."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from ...base.types import Bools, Floats, PotentiaError


class Coding(NamedTuple):
    """What each of K labels' values mean.

    classes: per label its values in ascending order, one or two. signs: what a label of one value is coded as, 0
    for a label of two. flat: the labels were given as one column without a second axis.
    """

    classes: list[np.ndarray]
    signs: Floats
    flat: bool

    @property
    def varying(self) -> Bools:
        """Which labels take two values."""
        return self.signs == 0

    def encode(self, y: Any, names: list[str]) -> Floats:
        """Labels (n, K) as signs; refuses values that training did not show.

        The other value of a label that was constant in training is any other value: its sign is the opposite.
        """
        columns = _columns(as_labels(y))
        if columns.shape[1] != len(self.classes):
            raise PotentiaError(f"y has {columns.shape[1]} labels, the model has {len(self.classes)}.")
        signs = np.empty(columns.shape)
        for k, values in enumerate(self.classes):
            column = columns[:, k]
            high = column == values[-1]
            if len(values) == 1:
                signs[:, k] = np.where(high, self.signs[k], -self.signs[k])
                continue
            if not np.all(high | (column == values[0])):
                raise PotentiaError(
                    f"label {names[k]} of y has values other than {values[0]!r} and {values[1]!r}."
                )
            signs[:, k] = np.where(high, 1.0, -1.0)
        return signs

    def decode(self, signs: np.ndarray) -> np.ndarray:
        """Labels (n, K) in the values given in training, from the signs (n, K') of those that vary."""
        kind = np.result_type(*self.classes) if _plain(self.classes) else np.dtype(object)
        found, columns = np.empty((len(signs), len(self.classes)), dtype=kind), iter(signs.T)
        for k, values in enumerate(self.classes):
            found[:, k] = values[0] if len(values) == 1 else np.where(next(columns) > 0, values[1], values[0])
        return found[:, 0] if self.flat else found

    def beside_constant(self, values: np.ndarray, constant: Floats) -> np.ndarray:
        """Values (n, K') of the labels that vary, with those (K) of the constant ones in their places, (n, K)."""
        found = np.tile(constant, (len(values), 1))
        found[:, self.varying] = values
        return found

    @property
    def probabilities(self) -> Floats:
        """P(label is the larger of its values) (K), where it is constant."""
        return (self.signs + 1.0) / 2.0

    @property
    def public(self) -> np.ndarray | list[np.ndarray]:
        """`classes_` as scikit-learn has it: a flat label's values; 0/1 labels' numbers; else values per label."""
        if self.flat:
            return self.classes[0]
        if all(v.dtype.kind in "biuf" and set(v.tolist()) <= {0, 1} for v in self.classes):
            return np.arange(len(self.classes))
        return self.classes


def learn_coding(y: np.ndarray, names: list[str]) -> Coding:
    """The coding of training labels (n, K) or (n,): the larger of a label's two values is +1.

    A label of one value is -1 unless the value is a number above zero.
    """
    columns = _columns(y)
    classes, signs = [], np.zeros(columns.shape[1])
    for k, name in enumerate(names):
        try:
            values = np.unique(columns[:, k])
        except TypeError:
            raise PotentiaError(f"label {name} mixes values that cannot be compared.") from None
        if len(values) > 2:
            raise PotentiaError(_too_many(name, values, y.ndim == 1))
        if len(values) == 1:
            number = isinstance(values[0], bool | int | float | np.bool_ | np.number)
            signs[k] = 1.0 if number and values[0] > 0 else -1.0
        classes.append(values)
    return Coding(classes, signs, y.ndim == 1)


def as_labels(y: Any) -> np.ndarray:
    """Labels as an array (n, K) or (n,) without missing values; sparse labels are spread out."""
    try:
        labels = np.asarray(y.toarray() if sparse.issparse(y) else y)
    except ValueError:
        raise PotentiaError(
            "y is no array (n, K) or (n,): turn lists of each row's labels into columns of 0 and 1, as "
            "sklearn.preprocessing.MultiLabelBinarizer does."
        ) from None
    if labels.ndim not in (1, 2):
        raise PotentiaError(f"y must have one or two axes, not {labels.ndim}.")
    if labels.ndim == 2 and labels.shape[1] == 0:
        raise PotentiaError(f"y has no labels: its shape is {labels.shape}.")
    if labels.dtype.kind == "c":
        raise PotentiaError("y holds complex numbers. Complex data not supported.")
    if labels.dtype.kind == "f" and not np.all(np.isfinite(labels)):
        raise PotentiaError("Input y contains NaN or infinity.")
    if labels.dtype.kind == "O" and any(v is None or v != v for v in labels.ravel()):
        raise PotentiaError("Input y contains NaN or None.")
    if labels.dtype.kind == "O" and not all(isinstance(v, Hashable) for v in labels.ravel()):
        raise PotentiaError("y must hold numbers or texts, not lists or other objects.")
    return labels


def _columns(labels: np.ndarray) -> np.ndarray:
    return labels[:, None] if labels.ndim == 1 else labels


def label_names(y: Any, n_labels: int) -> list[str]:
    """Names of a data frame's columns (or a series' name); otherwise the columns' numbers."""
    columns = getattr(y, "columns", None)
    if columns is not None:
        return [str(name) for name in columns]
    name = getattr(y, "name", None)
    return [str(k) for k in range(n_labels)] if name is None else [str(name)]


def _plain(classes: list[np.ndarray]) -> bool:
    """Whether one array type holds all labels' values without changing them."""
    kinds = {values.dtype.kind for values in classes}
    return len(kinds) == 1 or kinds <= set("iuf")


def _too_many(name: str, values: np.ndarray, flat: bool) -> str:
    shown = ", ".join(str(v) for v in values[:3]) + (", ..." if len(values) > 3 else "")
    if flat:
        numbers = values.dtype.kind == "f" and bool(np.any(values != np.floor(values)))
        kind = "continuous. Unknown label type: continuous" if numbers else "multiclass"
        return f"Only binary classification is supported. The type of the target is {kind}; y takes {shown}."
    return f"label {name} of y takes {len(values)} values ({shown}); every label must take two."

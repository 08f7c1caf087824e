"""Checks of rows, weights, options and labels, and the coding of labels of any two values as -1 and +1."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.utils.sparsefuncs import mean_variance_axis
from sklearn.utils.validation import _check_sample_weight, validate_data

from ...base.types import Bools, Floats, PotentiaError, check_choice, check_count, check_positive, shown, warn_caller
from ...features.offsets import CONSTANT_SHARE, FAR
from .hinge import RemoteRows


class Coding(NamedTuple):
    """The values of K labels and their signs.

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
        """Labels (n, K) as signs, 0 for missing ones; refuses values that training did not show.

        The other value of a label that was constant in training is any other value: its sign is the opposite.
        """
        return self.signs_of(*self.read(y), names)

    def read(self, y: Any) -> tuple[np.ndarray, Bools]:
        """Labels as an array, and which are missing: -1 is, unless it is a label's value."""
        return as_labels(y, not any(values.dtype.kind in "if" and -1 in values for values in self.classes))

    def signs_of(self, labels: np.ndarray, missing: Bools, names: list[str]) -> Floats:
        """`encode` of labels that have been checked."""
        columns, missing = _columns(labels), _columns(missing)
        if columns.shape[1] != len(self.classes):
            raise PotentiaError(f"y has {columns.shape[1]} labels, the model has {len(self.classes)}.")
        signs = np.empty(columns.shape)
        for k, values in enumerate(self.classes):
            column = columns[:, k]
            high = column == values[-1]
            if len(values) == 1:
                signs[:, k] = np.where(high, self.signs[k], -self.signs[k])
                continue
            if not np.all(high | (column == values[0]) | missing[:, k]):
                raise PotentiaError(f"label {names[k]} of y has values other than {values[0]!r} and {values[1]!r}.")
            signs[:, k] = np.where(high, 1.0, -1.0)
        signs[missing] = 0.0
        return signs

    def decode(self, signs: np.ndarray) -> np.ndarray:
        """Labels (n, K) in the values given in training, from the signs (n, K') of those that vary."""
        # one array type that holds all labels' values without changing them
        kinds = {values.dtype.kind for values in self.classes}
        plain = len(kinds) == 1 or kinds <= set("iuf")
        kind = np.result_type(*self.classes) if plain else np.dtype(object)
        labels, columns = np.empty((len(signs), len(self.classes)), dtype=kind), iter(signs.T)
        for k, values in enumerate(self.classes):
            labels[:, k] = values[0] if len(values) == 1 else np.where(next(columns) > 0, values[1], values[0])
        return labels[:, 0] if self.flat else labels

    def beside_constant(self, values: np.ndarray, constant: Floats) -> np.ndarray:
        """Values (n, K') of the labels that vary, with those (K) of the constant ones in their places, (n, K)."""
        filled = np.tile(constant, (len(values), 1))
        filled[:, self.varying] = values
        return filled

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


def learn_coding(y: np.ndarray, missing: Bools, names: list[str]) -> Coding:
    """The coding of training labels (n, K) or (n,): the larger of a label's two values is +1.

    A label of one value is -1 unless the value is a number above zero.
    """
    columns, missing = _columns(y), _columns(missing)
    classes, signs = [], np.zeros(columns.shape[1])
    for k, name in enumerate(names):
        try:
            values = np.unique(columns[~missing[:, k], k])
        except TypeError:
            raise PotentiaError(f"label {name} mixes values that cannot be compared.") from None
        if len(values) == 0:
            raise PotentiaError(f"label {name} of y is missing in all rows: leave it out.")
        if len(values) > 2:
            raise PotentiaError(_too_many(name, values, y.ndim == 1))
        if len(values) == 1:
            number = isinstance(values[0], bool | int | float | np.bool_ | np.number)
            signs[k] = 1.0 if number and values[0] > 0 else -1.0
        classes.append(values)
    return Coding(classes, signs, y.ndim == 1)


def as_labels(y: Any, minus: bool | None = None) -> tuple[np.ndarray, Bools]:
    """Labels as an array (n, K) or (n,), and which are missing; sparse labels are spread out.

    Missing are NaN and None, and -1 if `minus`, or by default if all labels are -1, 0 or 1 and some are 0.
    """
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
    missing = np.zeros(labels.shape, dtype=bool)
    if labels.dtype.kind == "f":
        missing = np.isnan(labels)
        if np.isinf(labels).any():
            raise PotentiaError("Input y contains infinity.")
    elif labels.dtype.kind == "O":
        missing = np.array([_is_missing(v) for v in labels.ravel()], dtype=bool).reshape(labels.shape)
        if not all(isinstance(v, Hashable) for v in labels.ravel()):
            raise PotentiaError("y must hold numbers or texts, not lists or other objects.")
        if missing.any() and all(isinstance(v, float | int | np.number) for v in labels[~missing]):
            labels = np.where(missing, np.nan, labels).astype(float)
    if labels.dtype.kind in "fi":
        known = labels[~missing]
        if minus is None:
            minus = bool(np.any(known == 0) and np.all((known == -1) | (known == 0) | (known == 1)))
        if minus:
            missing |= labels == -1
    return labels, missing


def _is_missing(value: Any) -> bool:
    """Whether a value is None, NaN or pandas' NA."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or (value != value) is True


def _columns(labels: np.ndarray) -> np.ndarray:
    """Labels as (n, K), also those of one column."""
    return labels[:, None] if labels.ndim == 1 else labels


def label_names(y: Any, n_labels: int) -> list[str]:
    """Names of a data frame's columns (or a series' name); otherwise the columns' numbers."""
    if hasattr(y, "columns"):
        return [str(name) for name in y.columns]
    name = getattr(y, "name", None)
    return [str(k) for k in range(n_labels)] if name is None else [str(name)]


def _too_many(name: str, values: np.ndarray, flat: bool) -> str:
    """The message for a label of more than two values, in scikit-learn's words where y is flat."""
    some = ", ".join(str(v) for v in values[:3]) + (", ..." if len(values) > 3 else "")
    if flat:
        numbers = values.dtype.kind == "f" and bool(np.any(values != np.floor(values)))
        kind = "continuous. Unknown label type: continuous" if numbers else "multiclass"
        return f"Only binary classification is supported. The type of the target is {kind}; y takes {some}."
    return f"label {name} of y takes {len(values)} values ({some}); every label must take two."


# -- rows ------------------------------------------------------------------------------------------------------

#: The largest number that features may hold: some classifiers compute in single precision.
_HUGE = float(np.finfo(np.float32).max)


def check_rows(estimator: Any, X: Any, reset: bool) -> Any:
    """Rows as float64, C-contiguous or CSR with sorted indices; scikit-learn's complaints become one line.

    reset: learn the features' number and names; otherwise refuse other columns than training had.
    """
    if isinstance(X, RemoteRows):  # which whoever reads them has checked
        estimator.n_features_in_ = X.shape[1]
        return X
    try:
        X = validate_data(estimator, X, reset=reset, accept_sparse="csr", dtype=np.float64, order="C")
    except (TypeError, ValueError) as error:
        text = " ".join(str(error).split())
        # a TypeError where scikit-learn asks for one
        kind = TypeError if isinstance(error, TypeError) else PotentiaError
        raise kind(text if re.search(r"\bX\b", text) else f"X is no table of numbers: {text}") from None
    if sparse.issparse(X) and not X.has_sorted_indices:
        X = X.sorted_indices()
    values = X.data if sparse.issparse(X) else X
    if max(values.max(initial=0.0), -values.min(initial=0.0)) > _HUGE:
        at = np.flatnonzero(np.abs(values) > _HUGE)[0]
        column = X.indices[at] if sparse.issparse(X) else at % X.shape[1]
        raise PotentiaError(f"feature {column} of X holds numbers too large to compute with: scale the features.")
    return X


#: Standard deviations that a feature's mean may be away from zero if another feature can take the place of the
#: constant.
_HOPELESS = 1e3
#: Numbers that are looked at together.
_BLOCK = 1 << 20


def warn_of_far_features(X: Any) -> None:
    """Warn of a feature whose mean exceeds its spread by far: linear functions have a penalised constant, too."""
    feature = X.ask(far_feature) if isinstance(X, RemoteRows) else far_feature(X)
    if feature is not None:
        warn_caller(
            f"feature {feature} of X has a mean more than {FAR:g} times its standard deviation, so that a linear "
            "function hardly sees it vary: standardise the features.",
            UserWarning,
        )


def far_feature(X: Any) -> int | None:
    """The first feature whose mean exceeds its spread by far, of dense or CSR rows, which are read in blocks."""
    n, d = X.shape
    # of a sparse feature, more zeros than this make it vary enough
    if n == 0 or (sparse.issparse(X) and not (np.bincount(X.indices, minlength=d) >= n * (1 - 1 / (1 + FAR**2))).any()):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        centre, spread = _moments(X)
        mean = np.abs(centre)
        off = mean > FAR * spread
        # what a weight of 1 adds to the score as a constant: that of the intercept, or another feature's mean
        constants = np.concatenate([[1.0], np.where(off, mean, 0.0)])
        top = int(constants.argmax())
        best = np.full(d, constants[top])
        if top > 0:
            best[top - 1] = np.delete(constants, top).max()
        far = off & ((mean > FAR * spread * best) | (mean > _HOPELESS * spread))
        far &= spread > CONSTANT_SHARE * mean
    return int(far.argmax()) if far.any() else None


def _moments(X: Any) -> tuple[Floats, Floats]:
    """Means and standard deviations (d) of features."""
    n, d = X.shape
    if sparse.issparse(X):
        X.sum_duplicates()
        mean, variance = mean_variance_axis(X, axis=0)
        return mean, np.sqrt(variance)
    mean, squares, size = X.mean(axis=0), np.zeros(d), max(1, _BLOCK // max(d, 1))
    for first in range(0, n, size):
        squares += ((X[first : first + size] - mean) ** 2).sum(axis=0)
    return mean, np.sqrt(squares / n)


# -- weights ---------------------------------------------------------------------------------------------------

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

    "balanced": a label's two values have the same weight in sum. Missing labels, of sign 0, have the weight 0.
    """
    weights: Floats = np.where(signs == 0, 0.0, weight[:, None])
    if class_weight is None:
        return weights
    if isinstance(class_weight, Mapping):
        return weights * np.where(signs > 0, class_weight.get(1, 1.0), class_weight.get(0, 1.0))
    present, total = np.sum(weights * (signs > 0), axis=0), weights.sum(axis=0)
    return weights * np.where(signs > 0, total / (2.0 * present), total / (2.0 * (total - present)))


# -- options ---------------------------------------------------------------------------------------------------


def check_seed(value: object) -> None:
    """A seed as scikit-learn has it: a whole number, a RandomState or None."""
    if value is not None and not isinstance(value, np.random.RandomState):
        check_count("random_state", value)

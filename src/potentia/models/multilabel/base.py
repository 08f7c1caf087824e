"""Files of multi-label estimators: JSON and arrays, checked by the schema that each class declares."""

from __future__ import annotations

import logging
import os
import re
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from threading import Lock
from typing import Any, ClassVar, Literal, Self

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from ...base.options import check_choice, check_count, check_flag, check_positive, check_type
from ...base.progress import Bar
from ...base.saving import (
    Registered,
    SavedFunction,
    build,
    decode,
    digest_of,
    encode,
    read_file,
    reading,
    saved_name,
    stable_repr,
    write_file,
)
from ...base.schema import FLAG, TEXT, Array, Count, Items, Kind, Rule, Schema, Size, check
from ...base.types import Floats, PotentiaError, shown
from ...learn.checkpoint import Checkpoint
from .coding import Coding, as_labels, label_names, learn_coding
from .features import RemoteRows, Solution, warn_of_far_features


class SavedClassifier(Registered):
    """What a classifier of K labels, V of which vary, needs to be saved and loaded.

    A subclass extends `saved`, whose names are those of JSON fields and of arrays, and defines `_state` and `_restore`.
    """

    #: What a file holds; see `potentia.base.schema`.
    saved: ClassVar[Schema] = {
        "params": Kind((dict,)),
        "label_names": Items(TEXT, "K"),
        "flat": FLAG,
        "feature_names": Items(TEXT),
        "n_features": Count("d", 1),
        "signs": Array("f8", ("K",)),
        "classes": Items(Array("label", ("*",)), "K"),
        "values": Rule(lambda found: _fit_each_other(found), "of the labels do not fit their signs"),
        "V": Size(lambda found: np.sum(found["signs"] == 0)),
    }

    classes_: np.ndarray | list[np.ndarray]
    label_names_: list[str]
    n_labels_: int
    n_features_in_: int
    feature_names_in_: np.ndarray
    get_params: Callable[..., dict[str, Any]]
    _coding: Coding

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file of JSON and arrays, without code."""
        write_file(path, saved_name(type(self)), *self.state())

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The fitted model as JSON and arrays."""
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self)
        name, coding = type(self).__name__, self._coding
        content = {
            "params": {
                k: encode(_by_name(v), f"{k} of {name}") for k, v in self.get_params(deep=False).items()
            },
            "label_names": self.label_names_,
            "flat": coding.flat,
            "feature_names": getattr(self, "feature_names_in_", np.empty(0)).tolist(),
            "n_features": self.n_features_in_,
        }
        arrays = {f"classes/{k}": _storable(values) for k, values in enumerate(coding.classes)}
        own_content, own_arrays = self._state()
        return content | own_content, arrays | {"signs": coding.signs} | own_arrays

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """A model written by `save`; predictions are identical."""
        with reading(path):
            return cls.from_state(*read_file(path, saved_name(cls)))

    @classmethod
    def from_state(cls, content: dict[str, Any], arrays: dict[str, Any]) -> Self:
        """The model that `state` described."""
        classes = [arrays[f"classes/{k}"] for k in range(sum(name.startswith("classes/") for name in arrays))]
        found = check(cls.saved, {**content, **arrays, "classes": classes}, cls.__name__)
        model: Self = build(cls, {name: decode(value) for name, value in found["params"].items()})
        model._check_options()
        model._coding = Coding(found["classes"], found["signs"], found["flat"])
        model.label_names_, model.n_labels_ = found["label_names"], len(found["label_names"])
        model.classes_ = model._coding.public
        model.n_features_in_ = found["n_features"]
        if found["feature_names"]:
            model.feature_names_in_ = np.array(found["feature_names"], dtype=object)
        model._restore(found, arrays)
        return model

    def _check_options(self) -> None:
        """Refuse bad options before any work."""

    def _state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """JSON and arrays of what `_fit` has learned."""
        return {}, {}

    def _restore(self, found: dict[str, Any], arrays: dict[str, Any]) -> None:
        """Take what `_state` gave from the values found by the schema, or from all arrays."""


def _fit_each_other(found: dict[str, Any]) -> bool:
    """Whether every label has two ascending values and the sign 0, or one value and the sign 1 or -1."""
    names, n_names = found["label_names"], len(found["feature_names"])
    return (
        all(
            len(values) == (2 if sign == 0 else 1)
            and (sign in (-1.0, 1.0) if len(values) == 1 else bool(values[0] < values[1]))
            for values, sign in zip(found["classes"], found["signs"], strict=True)
        )
        and len(names) >= 1
        and (not found["flat"] or len(names) == 1)
        and n_names in (0, found["n_features"])
    )


def _by_name(value: Any) -> Any:
    """An option with other libraries' estimators as their names; what they have learned is in the arrays."""
    if isinstance(value, list | tuple):
        return [_by_name(item) for item in value]
    if isinstance(value, Registered | type) or not hasattr(value, "get_params"):
        return value
    return SavedFunction(f"{type(value).__module__}.{type(value).__qualname__}")


def _storable(values: np.ndarray) -> np.ndarray:
    """Labels' values as an array that needs no pickle: objects must be text."""
    if values.dtype.kind != "O":
        return values
    if not all(isinstance(v, str) for v in values):
        raise PotentiaError("labels whose values are objects other than text cannot be saved.")
    return values.astype(str)


#: Seconds between writings of the file: it is written whole.
_EVERY = 5.0


#: A problem's solutions from its number, its columns of signs and its solver.
Take = Callable[[int, int, Callable[[], list[Solution]]], list[Solution]]


class FitProgress:
    """Arrays by name, such as the solution of a label's problem by the stage of the fit and its number there.

    A fit solves the same problems in the same stages each time, so that numbers are names enough. Without a
    checkpoint nothing is kept.
    """

    def __init__(self, bar: Bar, checkpoint: str | os.PathLike[str] | Checkpoint | None = None) -> None:
        check_type("checkpoint", checkpoint, str, os.PathLike, Checkpoint, optional=True)
        self._bar, self._given = bar, checkpoint
        self._checkpoint: Checkpoint | None = None
        self._in_use = ExitStack()
        self._found: dict[str, Floats] = {}
        self._stage, self._lock, self._written = 0, Lock(), time.monotonic()

    def open(self, mark: Callable[[], str]) -> None:
        """Take up what the file holds; a file given by its path must belong to the fit of that mark."""
        if self._given is not None:
            given = self._given
            self._checkpoint = given if isinstance(given, Checkpoint) else Checkpoint(given, mark())
            self._in_use.enter_context(self._checkpoint)
            saved = self._checkpoint.load()
            self._found = {} if saved is None else saved["arrays"]

    def close(self) -> None:
        """Let other fits use the file."""
        self._in_use.close()

    def stage(self, problems: int, width: int, path: int = 1) -> Take:
        """Begin a stage of `problems` problems with `width` features, each solved `path` times.

        What it returns takes a problem's number, its columns of signs and its solver, and gives its solutions.
        """
        stage, self._stage = self._stage, self._stage + 1
        self._bar.begin("labels", problems)

        def take(number: int, columns: int, solve: Callable[[], list[Solution]]) -> list[Solution]:
            name = f"{stage}/{number}"
            packed = self.get(name, (path * (3 + columns + width),))
            if packed is not None:
                solutions = [_unpacked(part, columns) for part in np.split(packed, path)]
            else:
                solutions = solve()
                self.put({name: np.concatenate([_packed(s) for s in solutions])})
            self._bar.advance()
            return solutions

        return take

    def get(self, name: str, shape: tuple[int, ...]) -> Floats | None:
        """The array that was put under a name, in this fit or in the one it resumes; it must have this shape."""
        schema: Schema = {name: Array("f8", shape, optional=True)}
        try:
            found: Floats | None = check(schema, self._found, "checkpoint")[name]
            return found
        except PotentiaError as error:
            path = "" if self._checkpoint is None else f"{self._checkpoint.path}: "
            raise PotentiaError(f"{path}{str(error).rstrip('.')}; delete it to start again.") from None

    def put(self, arrays: dict[str, Floats]) -> None:
        """Keep copies of some arrays."""
        if self._checkpoint is None:
            return
        with self._lock:
            self._found |= {name: array.copy() for name, array in arrays.items()}
        if time.monotonic() - self._written > _EVERY:
            self.write()

    def write(self) -> None:
        """Write the file now; other threads wait, as they might still find something."""
        with self._lock:
            if self._checkpoint is not None and self._found:
                self._checkpoint.save({"history": [], "potentials": {}, "arrays": self._found})
            self._written = time.monotonic()


def _packed(solution: Solution) -> Floats:
    head = [solution.bias, float(solution.converged), float(len(solution.signs))]
    return np.concatenate([head, solution.signs, solution.own])


def _unpacked(packed: Floats, columns: int) -> Solution:
    p = 3 + columns
    return Solution(packed[p:], float(packed[0]), packed[3:p], bool(packed[1]))


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


_LOG = logging.getLogger(__name__)


class MultiLabelClassifier(SavedClassifier, ClassifierMixin, BaseEstimator):
    """A classifier of K labels of two values each; subclasses see only labels that vary, as signs -1 and +1.

    `fit(X, y)` takes X (n, d), dense or sparse, and y (n, K), or (n,) for one label; every column has two values of
    any kind, of which the larger is called positive. A label that is constant in training is always predicted as
    that constant, is not part of the model, and has the score +1 or -1 (+1 if its value is a number above zero).

    After `fit`: `label_names_` (columns of a data frame, or "0", "1", ...), `n_labels_`, `n_features_in_`, and
    `classes_` as scikit-learn has it: the two values of a flat y; the labels' numbers where y (n, K) holds 0 and 1;
    otherwise a list of the values of each label.

    A subclass implements `_fit` and `_decide`, and overrides `_predict_signs` where a label is not just the sign of
    its own score. X arrives as float64, C-contiguous or CSR; what arrives must not be written to.
    """

    class_weight: Any = None

    @abstractmethod
    def _fit(self, X: Any, signs: Floats, weight: Floats) -> None:
        """Learn from X (n, d) and signs (n, K'), C-contiguous, of the K' >= 1 labels that vary.

        weight (n, K'): of each row's label; all 1 but for estimators that take weights, see `weights`.
        """

    def _fit_nothing(self) -> None:
        """Called instead of `_fit` where no label varies."""

    @abstractmethod
    def _decide(self, X: Any) -> Floats:
        """Scores (n, K') of the labels that vary; above zero speaks for +1."""

    def _probabilities(self, X: Any) -> Floats:
        """P(+1) (n, K') of the labels that vary: 1 / (1 + exp(-score)) unless a subclass knows better."""
        return 1.0 / (1.0 + np.exp(-np.clip(self._decide(X), -500, 500)))

    def _predict_signs(self, X: Any) -> np.ndarray:
        """Signs (n, K') of the labels that vary; a score of zero is -1, as in scikit-learn."""
        return np.where(self._decide(X) > 0, 1, -1)

    # -- faces ---------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from rows X (n, d) and their labels y (n, K) or (n,)."""
        return self._learn(X, y, None)

    def _learn(self, X: Any, y: Any, sample_weight: Any) -> Self:
        if y is None:
            raise PotentiaError(
                f"{type(self).__name__} requires y to be passed, but the target y is None: labels (n, K) or (n,)."
            )
        self._check_options()
        X = self._validated(X)
        labels = as_labels(y)
        if X.shape[0] != len(labels):
            raise PotentiaError(f"X has {X.shape[0]} rows but y has {len(labels)}.")
        names = label_names(y, 1 if labels.ndim == 1 else labels.shape[1])
        weight = row_weights(sample_weight, X)
        # a row of weight zero is as if it were not there
        X, labels, weight = (
            (X, labels, weight) if weight.all() else (part[weight > 0] for part in (X, labels, weight))
        )
        self._coding = learn_coding(labels, names)
        self.label_names_, self.n_labels_ = names, len(names)
        self.classes_ = self._coding.public
        varying = self._coding.varying
        if varying.any():
            signs = np.ascontiguousarray(self._signs(labels)[:, varying])
            if getattr(self, "kernel", None) is None:
                warn_of_far_features(X)
            self._fit(X, signs, label_weights(weight, signs, self.class_weight))
        else:
            self._fit_nothing()
        _LOG.info("%s: learned %d labels from %d rows", type(self).__name__, len(names), X.shape[0])
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Labels (n, K), or (n,) after a flat y, in the values given in training."""
        X = self._checked(X)
        return self._coding.decode(self._if_any_varies(self._predict_signs, X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Share of rows of which all labels are predicted correctly; y has its columns in the order of training."""
        names = [str(name) for name in getattr(y, "columns", self.label_names_)]
        if names != self.label_names_ and set(names) == set(self.label_names_):
            before = ", ".join(self.label_names_)
            raise PotentiaError(
                f"the columns of y are {', '.join(names)}, but in training their order was {before}."
            )
        return float(super().score(X, y, sample_weight))

    def predict_proba(self, X: Any) -> Floats:
        """P(label is the larger of its values) (n, K); after a flat y, as in scikit-learn, of both values (n, 2)."""
        X = self._checked(X)
        own = self._if_any_varies(self._probabilities, X)
        found = self._coding.beside_constant(own, self._coding.probabilities)
        return np.hstack([1.0 - found, found]) if self._coding.flat else found

    def decision_function(self, X: Any) -> Floats:
        """Scores (n, K), or (n,) after a flat y; above zero speaks for the larger of a label's values."""
        X = self._checked(X)
        scores = self._coding.beside_constant(self._if_any_varies(self._decide, X), self._coding.signs)
        return scores[:, 0] if self._coding.flat else scores

    # -- parts for subclasses --------------------------------------------------------------------------------

    def _checked(self, X: Any) -> Any:
        """X as the fitted model expects it; refuses other columns than training had."""
        check_is_fitted(self)
        return self._validated(X, reset=False)

    def _validated(self, X: Any, **options: Any) -> Any:
        """Rows as float64; scikit-learn's complaints, which take several lines, become one."""
        if isinstance(X, RemoteRows):  # which whoever reads them has checked
            self.n_features_in_ = X.shape[1]
            return X
        try:
            found = _doubles(validate_data(self, X, **_CHECKS, **options))
        except (TypeError, ValueError) as error:
            text = " ".join(str(error).split())
            # a TypeError where scikit-learn asks for one
            kind = TypeError if isinstance(error, TypeError) else PotentiaError
            raise kind(text if re.search(r"\bX\b", text) else f"X is no table of numbers: {text}") from None
        _refuse_huge(found)
        return found

    def _signs(self, y: Any) -> Floats:
        """Labels as signs (n, K), constant ones included."""
        return self._coding.encode(y, self.label_names_)

    def _if_any_varies(self, function: Callable[[Any], np.ndarray], X: Any) -> np.ndarray:
        """function(X) (n, K'), which is not called where all labels are constant."""
        return function(X) if self._coding.varying.any() else np.empty((X.shape[0], 0))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_class = False
        tags.classifier_tags.multi_label = True
        tags.target_tags.multi_output = True
        return tags


def _refuse_huge(X: Any) -> None:
    """Refuse numbers that single precision cannot hold, which some classifiers compute in."""
    values = X.data if sparse.issparse(X) else X
    if max(values.max(initial=0.0), -values.min(initial=0.0)) > _HUGE:
        at = np.flatnonzero(np.abs(values) > _HUGE)[0]
        column = X.indices[at] if sparse.issparse(X) else at % X.shape[1]
        raise PotentiaError(
            f"feature {column} of X holds numbers too large to compute with: scale the features."
        )


def check_seed(name: str, value: object) -> None:
    """A seed as scikit-learn has it: a whole number, a RandomState or None."""
    if value is not None and not isinstance(value, np.random.RandomState):
        check_count(name, value)


def check_classifier(estimator: object) -> None:
    """None, or an object with the methods of a scikit-learn classifier that has scores."""
    methods = ("fit", "predict", "decision_function", "get_params")
    if isinstance(estimator, SavedFunction):
        return  # of a loaded model, which can predict but not be fitted again
    if estimator is not None and not all(callable(getattr(estimator, name, None)) for name in methods):
        raise PotentiaError(
            f"estimator must be a classifier with decision_function or None, not {shown(estimator)}."
        )


#: The largest number that features may hold.
_HUGE = float(np.finfo(np.float32).max)
_CHECKS = {"accept_sparse": "csr", "dtype": np.float64, "order": "C"}


def _doubles(X: Any) -> Any:
    """Sparse rows with sorted indices, so that kernels meet one layout."""
    if sparse.issparse(X) and not X.has_sorted_indices:
        X = X.sorted_indices()
    return X


class ResumableClassifier(MultiLabelClassifier):
    """Base of estimators that keep what a fit has found so far."""

    random_state: Any
    _solved: FitProgress | None = None

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        progress: bool = False,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
    ) -> Self:
        """Learn from rows X (n, d) and their labels y (n, K) or (n,).

        Args:
            progress: show a progress bar.
            checkpoint: a file that keeps what is found every few seconds and at Ctrl-C; if it exists, the fit resumes
                from there. One of other data or options, an integer `random_state` among them, is refused.
        """
        return self._resume(X, y, None, progress, checkpoint)

    def _resume(self, X: Any, y: Any, sample_weight: Any, progress: bool, checkpoint: Any) -> Self:
        check_flag("progress", progress)
        with Bar(progress) as bar:
            self._solved = solved = FitProgress(bar, checkpoint)
            try:
                return self._learn(X, y, sample_weight)
            except KeyboardInterrupt:
                solved.write()
                raise
            finally:
                solved.close()
                del self._solved

    def _seed(self, X: Any, signs: Floats, weight: Floats) -> int:
        """The seed of a fit to rows, signs and weights, whose checkpoint is opened if it has one."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        if self._solved is not None:
            self._solved.open(lambda: self._mark(X, signs, weight, seed))
        return seed

    def _mark(self, X: Any, signs: Floats, weight: Floats, seed: int) -> str:
        """What a checkpoint of this fit is known by."""
        options = {k: v for k, v in self.get_params(deep=False).items() if k != "random_state"}
        rows = (X.data, X.indices, X.indptr) if sparse.issparse(X) else (X,)
        return digest_of([stable_repr((type(self).__name__, options, seed)), *rows, signs, weight])


class WeightedClassifier(ResumableClassifier):
    """Base of estimators whose rows and labels' values may have weights; a subclass has the option `class_weight`."""

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        progress: bool = False,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
    ) -> Self:
        """Learn from rows X (n, d), their labels y (n, K) or (n,), and weights (n) of the rows' losses.

        Args:
            sample_weight: numbers of at least 0; only their ratios matter, and a row of weight 0 is left out.
            progress, checkpoint: as of other estimators: a progress bar, and a file from which a fit resumes.
        """
        return self._resume(X, y, sample_weight, progress, checkpoint)

    def _check_options(self) -> None:
        super()._check_options()
        check_class_weight(self.class_weight)

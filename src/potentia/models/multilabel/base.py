"""`MultiLabelClassifier`: fit, predict and files of all classifiers of labels, and how their fits resume."""

from __future__ import annotations

import logging
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from threading import Lock
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

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
from ...base.types import Bools, Floats, PotentiaError, check_choice, check_count, check_flag, check_type
from ...conformal import check_coverage
from ...kernels.search import Rules
from ...learn.checkpoint import Checkpoint
from .constraints import Constraint, Constraints, among_varying, check_labels, make_rules, read_constraints
from .hinge import Kernel
from .inputs import (
    Coding,
    as_labels,
    check_rows,
    label_names,
    label_weights,
    learn_coding,
    row_weights,
    warn_of_far_features,
)
from .sets import HeldOut, LabellingSets, LabelSets, Ranked

_LOG = logging.getLogger(__name__)
#: Seconds between two writes of a checkpoint, which is written whole.
_EVERY = 5.0


class Solved:
    """Solutions of a fit by name: those of its checkpoint and those it adds. Without a checkpoint none are stored.

    A fit solves the same problems in the same stages each time, so that their numbers are names enough.
    """

    def __init__(self, bar: Bar | None = None, checkpoint: Checkpoint | None = None) -> None:
        self._bar, self._checkpoint = bar, checkpoint
        saved = None if checkpoint is None else checkpoint.load()
        self._arrays: dict[str, Floats] = {} if saved is None else saved["arrays"]
        self._stage, self._lock, self._written = 0, Lock(), time.monotonic()

    def begin(self, problems: int) -> int:
        """The number of the next stage, which has this many problems."""
        if self._bar is not None:
            self._bar.begin("labels", problems)
        self._stage += 1
        return self._stage - 1

    def take(self, name: str, shape: tuple[int, ...], solve: Callable[[], Floats]) -> Floats:
        """The solution of a problem of the stage: stored by an interrupted fit, or solve()."""
        solution = self.get(name, shape)
        if solution is None:
            solution = solve()
            self.put({name: solution})
        if self._bar is not None:
            self._bar.advance()
        return solution

    def get(self, name: str, shape: tuple[int, ...]) -> Floats | None:
        """The array stored under a name, which must have this shape; None if there is none."""
        if name not in self._arrays or self._checkpoint is None:
            return None
        try:
            array: Floats = check({name: Array("f8", shape)}, self._arrays, "checkpoint")[name]
        except PotentiaError as error:
            raise PotentiaError(
                f"{self._checkpoint.path}: {str(error).rstrip('.')}; delete it to start again."
            ) from None
        return array

    def put(self, arrays: dict[str, Floats]) -> None:
        """Store copies of some arrays, and now and then write the checkpoint."""
        if self._checkpoint is not None:
            with self._lock:
                self._arrays |= {name: array.copy() for name, array in arrays.items()}
            if time.monotonic() - self._written > _EVERY:
                self.write()

    def write(self) -> None:
        """Write the checkpoint; other threads wait with what they add."""
        with self._lock:
            if self._checkpoint is not None and self._arrays:
                self._checkpoint.save({"history": [], "potentials": {}, "arrays": self._arrays})
            self._written = time.monotonic()


@contextmanager
def resuming(checkpoint: Checkpoint | None, progress: bool) -> Iterator[Solved]:
    """The solutions of a fit so far; its checkpoint is locked meanwhile, and written at Ctrl-C."""
    with checkpoint or nullcontext(), Bar(True) if progress else nullcontext() as bar:
        solved = Solved(bar, checkpoint)
        try:
            yield solved
        except KeyboardInterrupt:
            solved.write()
            raise


def _consistent(saved: dict[str, Any]) -> bool:
    """Whether every label has two ascending values and the sign 0, or one value and the sign 1 or -1."""
    names, n_names = saved["label_names"], len(saved["feature_names"])
    return (
        all(
            len(values) == (2 if sign == 0 else 1)
            and (sign in (-1.0, 1.0) if len(values) == 1 else bool(values[0] < values[1]))
            for values, sign in zip(saved["classes"], saved["signs"], strict=True)
        )
        and len(names) >= 1
        and (not saved["flat"] or len(names) == 1)
        and n_names in (0, saved["n_features"])
    )


class FitTask(NamedTuple):
    """Training data: X (n, d) as float64, C-contiguous or CSR; signs and weights of the V labels that vary.

    signs (n, V): C-contiguous, of V >= 1 labels. weight (n, V): of each row's labels; 0 for those that are missing, of
    which the sign is the label's more frequent one. seed: drawn from `random_state`.
    solved: solutions stored by an interrupted fit. Nothing here may be written to.
    """

    X: Any
    signs: Floats
    weight: Floats
    seed: int
    solved: Solved

    @property
    def known(self) -> Bools:
        """Which labels (n, V) are not missing."""
        return self.weight > 0


class MultiLabelClassifier(Registered, ClassifierMixin, BaseEstimator):
    """A classifier of K labels of two values each; subclasses see only the V labels that vary, as signs -1 and +1.

    `fit(X, y)` takes X (n, d), dense or sparse, and y (n, K), or (n,) for one label; every column has two values of
    any kind, of which the larger is called positive. Labels may be missing: NaN, None, or -1 beside 0 and 1. A label
    that is constant in training is always predicted as that constant, is not part of the model, and has the score +1
    or -1 (+1 if its value is a number above zero).

    After `fit`: `label_names_` (columns of a data frame, or "0", "1", ...), `n_labels_`, `n_features_in_`, and
    `classes_` as scikit-learn has it: the two values of a flat y; the labels' numbers where y (n, K) holds 0 and 1;
    otherwise a list of the values of each label.

    A subclass implements `_fit` and `_decide`, overrides `_predict_signs` where a label is not just the sign of its
    score, and to be saved extends `saved` and defines `_state` and `_restore`.
    """

    #: Contents of a file; names are those of JSON fields and of arrays. See `potentia.base.schema`.
    saved: ClassVar[Schema] = {
        "params": Kind((dict,)),
        "label_names": Items(TEXT, "K"),
        "flat": FLAG,
        "feature_names": Items(TEXT),
        "n_features": Count("d", 1),
        "signs": Array("f8", ("K",)),
        "classes": Items(Array("label", ("*",)), "K"),
        "values": Rule(_consistent, "of the labels do not fit their signs"),
        "V": Size(lambda saved: np.sum(saved["signs"] == 0)),
        "held_out/labels": Array("f8", ("c", "K"), low=-1, finite=False, optional=True),
        "held_out/whole": Array("f8", ("c",), low=-1, finite=False, optional=True),
        "held_out": Rule(
            lambda saved: (saved["held_out/labels"] is None) == (saved["held_out/whole"] is None), "is incomplete"
        ),
    }

    class_weight: Any = None
    constraints: Constraints = None
    alpha: Any
    kernel: Kernel = None
    random_state: Any = 0
    classes_: np.ndarray | list[np.ndarray]
    label_names_: list[str]
    n_labels_: int
    n_features_in_: int
    feature_names_in_: np.ndarray
    gamma_: float
    intercept_: Floats
    coef_: Floats
    dual_coef_: Floats
    _coding: Coding
    _constraints: list[Constraint]
    _X: Any = None
    _held_out: HeldOut | None = None

    @abstractmethod
    def _check_options(self) -> None:
        """Refuse bad options before any work."""

    @abstractmethod
    def _fit(self, task: FitTask) -> None:
        """Learn the labels that vary."""

    def _fit_nothing(self) -> None:
        """Called instead of `_fit` where no label varies."""

    @abstractmethod
    def _decide(self, X: Any) -> Floats:
        """Scores (n, V) of the labels that vary; above zero speaks for +1."""

    def _probabilities(self, X: Any) -> Floats:
        """P(+1) (n, V) of the labels that vary: 1 / (1 + exp(-score)) unless a subclass knows better."""
        return 1.0 / (1.0 + np.exp(-np.clip(self._decide(X), -500, 500)))

    def _predict_signs(self, X: Any) -> np.ndarray:
        """Signs (n, V) of the labels that vary; a score of zero is -1, as in scikit-learn.

        With constraints, the labelling that satisfies them whose scores have the largest sum.
        """
        from .network import project  # which imports this module

        return project(self._decide(X), self._rules)

    # -- fitting ---------------------------------------------------------------------------------------------

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
            progress: show a progress bar.
            checkpoint: a file that stores what is solved every few seconds and at Ctrl-C; if it exists, the fit resumes
                from there. One of other data or options, an integer `random_state` among them, is refused.
        """
        check_flag("progress", progress)
        check_type("checkpoint", checkpoint, str, os.PathLike, Checkpoint, optional=True)
        if y is None:
            raise PotentiaError(
                f"{type(self).__name__} requires y to be passed, but the target y is None: labels (n, K) or (n,)."
            )
        self._check_options()
        X, (labels, missing) = check_rows(self, X, reset=True), as_labels(y)
        if X.shape[0] != len(labels):
            raise PotentiaError(f"X has {X.shape[0]} rows but y has {len(labels)}.")
        names = label_names(y, 1 if labels.ndim == 1 else labels.shape[1])
        weight = row_weights(sample_weight, X)
        if missing.any():
            weight[missing.reshape(len(labels), -1).all(axis=1)] = 0.0
        if not weight.all():  # a row of weight zero is as if it were not there
            kept = weight > 0
            X, labels, missing, weight = X[kept], labels[kept], missing[kept], weight[kept]
        self._set_labels(learn_coding(labels, missing, names), names)
        varying, every = self._coding.varying, self._coding.signs_of(labels, missing, names)
        check_labels(self._constraints, every)
        if varying.any():
            signs = np.ascontiguousarray(every[:, varying])
            weight = label_weights(weight, signs, self.class_weight)
            signs = np.where(signs == 0, np.where(signs.sum(axis=0) > 0, 1.0, -1.0), signs)
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            if self.kernel is None:
                warn_of_far_features(X)
            if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
                checkpoint = Checkpoint(checkpoint, self._mark(X, signs, weight, seed))
            with resuming(checkpoint, progress) as solved:
                self._fit(FitTask(X, signs, weight, seed, solved))
        else:
            self._fit_nothing()
        _LOG.info("%s: learned %d labels from %d rows", type(self).__name__, len(names), X.shape[0])
        return self

    def _set_labels(self, coding: Coding, names: list[str]) -> None:
        """Take the labels' coding, and the attributes that follow from it."""
        self._coding, self.classes_ = coding, coding.public
        self.label_names_, self.n_labels_, self._held_out = names, len(names), None
        self._constraints = read_constraints(self.constraints, names)

    @property
    def _rules(self) -> Rules:
        """The constraints on the labels that vary, by number among them."""
        return make_rules(self._varying_constraints, np.arange(np.sum(self._coding.varying)))

    @property
    def _varying_constraints(self) -> tuple[Constraint, ...]:
        """The constraints on the labels that vary, which are numbered among themselves."""
        return tuple(among_varying(self._constraints, np.flatnonzero(self._coding.varying), self._coding.signs))

    def _mark(self, X: Any, signs: Floats, weight: Floats, seed: int) -> str:
        """Digest of data and options, by which a checkpoint of this fit is recognised."""
        options = {k: v for k, v in self.get_params(deep=False).items() if k not in ("random_state", "constraints")}
        options["constraints"] = self._constraints
        rows = (X.data, X.indices, X.indptr) if sparse.issparse(X) else (X,)
        return digest_of([stable_repr((type(self).__name__, options, seed)), *rows, signs, weight])

    # -- predicting ------------------------------------------------------------------------------------------

    def predict(self, X: Any) -> np.ndarray:
        """Labels (n, K), or (n,) after a flat y, in the values given in training."""
        signs = self._if_any_varies(self._predict_signs, X)
        return self._coding.decode(signs)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Share of rows of which all labels that are known are predicted correctly; columns as in training."""
        names = [str(name) for name in getattr(y, "columns", self.label_names_)]
        if names != self.label_names_ and set(names) == set(self.label_names_):
            before = ", ".join(self.label_names_)
            raise PotentiaError(f"the columns of y are {', '.join(names)}, but in training their order was {before}.")
        check_is_fitted(self)
        labels, missing = self._coding.read(y)
        if missing.any():
            y = np.where(missing, self.predict(X), labels).astype(labels.dtype)
        return float(super().score(X, y, sample_weight))

    def predict_proba(self, X: Any) -> Floats:
        """P(label is the larger of its values) (n, K); after a flat y, as in scikit-learn, of both values (n, 2)."""
        p = self._positive(X)
        return np.hstack([1.0 - p, p]) if self._coding.flat else p

    def _positive(self, X: Any) -> Floats:
        """P(label is the larger of its values) (n, K)."""
        varying = self._if_any_varies(self._probabilities, X)
        return self._coding.beside_constant(varying, self._coding.probabilities)

    def decision_function(self, X: Any) -> Floats:
        """Scores (n, K), or (n,) after a flat y; above zero speaks for the larger of a label's values."""
        varying = self._if_any_varies(self._decide, X)
        scores = self._coding.beside_constant(varying, self._coding.signs)
        return scores[:, 0] if self._coding.flat else scores

    # -- conformal sets ----------------------------------------------------------------------------------------

    def calibrate(self, X: Any, y: Any) -> Self:
        """Keep what `predict_set` needs of rows X and their labels y, which must not have been used in `fit`.

        Replaces what was kept before. Missing labels are left out.
        """
        X = self._checked(X)
        signs = self._coding.encode(y, self.label_names_)
        if len(signs) != X.shape[0]:
            raise PotentiaError(f"X has {X.shape[0]} rows but y {len(signs)}.")
        check_labels(self._constraints, signs)
        varying, constant = self._coding.varying, self._coding.signs
        p = self._positive(X)
        labels = np.where(varying | (signs == constant), np.where(signs > 0, 1.0 - p, p), np.inf)
        whole, complete = np.full(len(signs), -1.0), np.flatnonzero(np.all(signs != 0, axis=1))
        if varying.any() and self._ranks and complete.size:
            own = np.ascontiguousarray(signs[complete][:, varying])
            loss = self._ranked(X[complete], 1).excess(self._losses_of(X[complete], own))
            whole[complete] = np.where(np.all(varying | (signs[complete] == constant), axis=1), loss, np.inf)
        self._held_out = HeldOut(np.where(signs == 0, -1.0, labels), whole)
        return self

    def predict_set(
        self, X: Any, coverage: float = 0.9, of: Literal["labels", "labellings"] = "labels", limit: int = 256
    ) -> LabelSets | LabellingSets:
        """Sets that contain the truth of a further row with probability at least `coverage`, after `calibrate`.

        Split conformal prediction [Vovk et al. 2005]: guaranteed for each label ("labels"), or for the labelling of the
        row as a whole ("labellings"), if the rows of `calibrate` and these are exchangeable, on average over both. A
        label's set holds its values of large enough probability: one, both, or none. A row's set holds the labellings
        whose loss (minus the log-probability, or the sum of hinge losses) exceeds the least by little enough; it is
        cut at `limit` labellings, and says so.
        """
        X = self._checked(X)
        check_coverage(coverage)
        check_choice("of", of, ("labels", "labellings"))
        check_count("limit", limit, 1)
        if self._held_out is None:
            raise PotentiaError("call calibrate with rows that were not used in fit first.")
        if of == "labels":
            p, top = self._positive(X), self._held_out.label_thresholds(coverage)
            return LabelSets(p <= top, 1.0 - p <= top)
        if not self._ranks:
            raise PotentiaError(f"{type(self).__name__} has no sets of labellings: LMSBN and LabelNetwork have.")
        if not self._coding.varying.any():
            labels = self._coding.decode(np.empty((X.shape[0], 0)))
            return LabellingSets(list(labels[:, None]), np.ones(len(labels), dtype=bool))
        ranked = self._ranked(X, limit)
        numbers, complete = ranked.within(self._held_out.whole_threshold(coverage))
        complete &= np.array([len(own) <= limit for own in numbers], dtype=bool)
        return LabellingSets([self._coding.decode(ranked.signs[own[:limit]]) for own in numbers], complete)

    #: Whether labellings can be ranked: then `_ranked` and `_losses_of` are defined.
    _ranks: ClassVar[bool] = False

    def _ranked(self, X: Any, k: int) -> Ranked:
        """The labellings of least loss of every row, k or more if there are, of the labels that vary."""
        raise NotImplementedError

    def _losses_of(self, X: Any, signs: Floats) -> Floats:
        """The losses (n) of labellings (n, V) as signs, as `_ranked` has them."""
        raise NotImplementedError

    def _checked(self, X: Any) -> Any:
        """X as the fitted model expects it; refuses other columns than training had."""
        check_is_fitted(self)
        return check_rows(self, X, reset=False)

    def _with_labels(self, X: Any, y: Any) -> tuple[Any, Floats, Floats]:
        """Rows, signs (n, V) of their labels that vary, and 2 (n) for each label that differs from its constant."""
        X, signs = self._checked(X), self._coding.encode(y, self.label_names_)
        if len(signs) != X.shape[0]:
            raise PotentiaError(f"X has {X.shape[0]} rows but y {len(signs)}.")
        if not signs.all():
            raise PotentiaError("y has missing labels; here it must be complete.")
        constant = self._coding.signs
        surprises = np.sum((constant != 0) & (signs != constant), axis=1)
        return X, np.ascontiguousarray(signs[:, self._coding.varying]), 2.0 * surprises

    def _if_any_varies(self, function: Callable[[Any], np.ndarray], X: Any) -> np.ndarray:
        """function(X) (n, V), which is not called where all labels are constant."""
        X = self._checked(X)
        return function(X) if self._coding.varying.any() else np.empty((X.shape[0], 0))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_class = False
        tags.classifier_tags.multi_label = True
        tags.target_tags.multi_output = True
        return tags

    # -- files -------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file of JSON and arrays, without code."""
        write_file(path, saved_name(type(self)), *self.state())

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The fitted model as JSON and arrays."""
        check_is_fitted(self)
        name, coding = type(self).__name__, self._coding
        options = (
            self.get_params(deep=False) | ({"constraints": self._constraints} if self._constraints else {})
        ).items()
        values = {
            "params": {option: encode(_by_name(value), f"{option} of {name}") for option, value in options},
            "label_names": self.label_names_,
            "flat": coding.flat,
            "feature_names": getattr(self, "feature_names_in_", np.empty(0)).tolist(),
            "n_features": self.n_features_in_,
            "signs": coding.signs,
            **{f"classes/{k}": _storable(values) for k, values in enumerate(coding.classes)},
            **({} if self._held_out is None else {f"held_out/{k}": v for k, v in self._held_out._asdict().items()}),
            **self._state(),
        }
        arrays = {key: value for key, value in values.items() if isinstance(value, np.ndarray)}
        return {key: value for key, value in values.items() if key not in arrays}, arrays

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """A model written by `save`; predictions are identical."""
        with reading(path):
            return cls.from_state(*read_file(path, saved_name(cls)))

    @classmethod
    def from_state(cls, content: dict[str, Any], arrays: dict[str, Any]) -> Self:
        """The model that `state` described."""
        classes = [arrays[f"classes/{k}"] for k in range(sum(name.startswith("classes/") for name in arrays))]
        saved = check(cls.saved, {**content, **arrays, "classes": classes}, cls.__name__)
        model: Self = build(cls, {name: decode(value) for name, value in saved["params"].items()})
        model._check_options()
        model._set_labels(Coding(saved["classes"], saved["signs"], saved["flat"]), saved["label_names"])
        model.n_features_in_ = saved["n_features"]
        if saved["feature_names"]:
            model.feature_names_in_ = np.array(saved["feature_names"], dtype=object)
        if saved["held_out/labels"] is not None:
            model._held_out = HeldOut(saved["held_out/labels"], saved["held_out/whole"])
        model._restore(saved, arrays)
        return model

    def _state(self) -> dict[str, Any]:
        """JSON values and arrays of what `_fit` has learned."""
        return {}

    def _restore(self, saved: dict[str, Any], arrays: dict[str, Any]) -> None:
        """Take what `_state` gave from the values that the schema knows, or from all arrays."""


def _by_name(value: Any) -> Any:
    """An option with other libraries' estimators replaced by their names."""
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

"""The usual multi-label methods, to compare with: chains, label powersets, tuned thresholds, structural SVMs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import ClassifierChain as SklearnChain

from potentia.base.saving import SavedFunction, find_class, saved_name
from potentia.base.schema import TEXT, Array, Kind, Rule, Schema, Section, Size
from potentia.base.types import (
    Bools,
    Floats,
    Ints,
    PotentiaError,
    check_choice,
    check_count,
    check_number,
    check_positive,
    check_type,
    prefixed,
    shown,
    whole_numbers,
)
from potentia.features.example import Example
from potentia.graph.structure import Graph
from potentia.graph.union import Union
from potentia.inference.base import Inference
from potentia.learn.max_margin import MaxMargin
from potentia.metrics import MEASURES
from potentia.models.crf import CRF
from potentia.models.multilabel.base import FitTask, MultiLabelClassifier
from potentia.models.multilabel.constraints import Constraints
from potentia.models.multilabel.independent import IndependentClassifiers
from potentia.models.multilabel.inputs import as_labels, check_seed
from potentia.models.multilabel.machine import rows_by_label
from potentia.models.multilabel.network import check_order, splits
from potentia.potentials.linear import Linear


class _Unweighted(MultiLabelClassifier):
    """A classifier without weights of rows, and perhaps without missing labels."""

    _takes_missing: ClassVar[bool] = True

    def fit(self, X: Any, y: Any) -> Self:  # type: ignore[override]
        """Learn from rows X (n, d) and their labels y (n, K) or (n,)."""
        if not self._takes_missing and y is not None and as_labels(y)[1].any():
            raise PotentiaError(f"{type(self).__name__} takes no missing labels: Input y contains NaN, None or -1.")
        return super().fit(X, y)


@dataclass(eq=False, repr=False)
class ClassifierChain(_Unweighted):
    """scikit-learn's classifier chain: every label's classifier sees the labels decided before it.

    Args:
        estimator: a classifier with `decision_function`; logistic regression if None.
        order: None (the labels' own), "random", or the numbers of the labels that vary, in order.
        random_state: seed of a random order.
    """

    _takes_missing = False
    estimator: Any = None
    _: KW_ONLY
    order: Any = None
    random_state: Any = 0

    saved: ClassVar[Schema] = {
        **MultiLabelClassifier.saved,
        "coef": Array("f8", ("V", "w"), optional=True),
        "intercept": Array("f8", ("V",), optional=True),
        "places": Array("i8", ("V",), low=0, below="V", optional=True),
        "w": Size(lambda saved: saved["n_features"] + saved["V"] - 1 if saved["V"] else 0),
        "chain": Rule(
            lambda saved: (
                not saved["V"]
                or (
                    saved["coef"] is not None
                    and saved["intercept"] is not None
                    and saved["coef"].shape[1] == saved["w"]
                    and np.array_equal(np.sort(saved["places"]), np.arange(saved["V"]))
                )
            ),
            "is inconsistent",
        ),
    }

    def _check_options(self) -> None:
        check_classifier(self.estimator)
        check_seed(self.random_state)
        if isinstance(self.order, str):
            check_choice("order", self.order, ("random",), "the labels' numbers or None")
        elif self.order is not None:
            whole_numbers(self.order, "order")

    def _fit(self, task: FitTask) -> None:
        order = self.order
        if order is not None and not isinstance(order, str):
            order = check_order(order, task.signs.shape[1])
        self.chain_ = self._chain(self.estimator, order).fit(task.X, (task.signs > 0).astype(np.int64))

    def _chain(self, estimator: Any, order: Any) -> SklearnChain:
        return SklearnChain(_or_logistic(estimator), order=order, random_state=self.random_state)

    def _state(self) -> dict[str, Any]:
        if not self._coding.varying.any():
            return {}
        links = self.chain_.estimators_
        _require_linear(self, links[-1])
        coef = np.zeros((len(links), links[-1].coef_.shape[1]))
        for row, link in zip(coef, links, strict=True):
            row[: link.coef_.shape[1]] = link.coef_[0]
        intercept = np.concatenate([link.intercept_ for link in links])
        return {"coef": coef, "intercept": intercept, "places": np.asarray(self.chain_.order_, dtype=np.int64)}

    def _restore(self, saved: dict[str, Any], arrays: dict[str, Any]) -> None:
        if not saved["V"]:
            return
        d, V = saved["n_features"], saved["V"]
        # fitting on anything sets the bookkeeping; the weights are then put back
        self.chain_ = self._chain(None, saved["places"]).fit(np.zeros((2, d)), np.repeat([[0], [1]], V, axis=1))
        for k, link in enumerate(self.chain_.estimators_):
            link.coef_, link.intercept_ = saved["coef"][k : k + 1, : d + k], saved["intercept"][k : k + 1]

    def _decide(self, X: Any) -> Floats:
        return self.chain_.decision_function(X)


@dataclass(eq=False, repr=False)
class LabelPowerset(_Unweighted):
    """One classifier of whole labellings: every labelling seen in training is a class; no other is ever predicted.

    A label's score is the best score of a labelling that has it minus the best of one without it.

    Args:
        estimator: a classifier with `decision_function`, one column per class; logistic regression if None.
    """

    _takes_missing = False
    estimator: Any = None

    saved: ClassVar[Schema] = {
        **MultiLabelClassifier.saved,
        "labellings": Array("f8", ("C", "V"), low=-1, optional=True),
        "coef": Array("f8", ("R", "d"), optional=True),
        "intercept": Array("f8", ("R",), optional=True),
        "scores": Rule(
            lambda saved: (
                not saved["V"]
                or (
                    saved["labellings"] is not None
                    and bool(np.all(np.abs(saved["labellings"]) == 1))
                    and all(0 < n < len(saved["labellings"]) for n in np.sum(saved["labellings"] > 0, axis=0))
                    and saved["coef"] is not None
                    and saved["intercept"] is not None
                    and len(saved["coef"]) == (1 if len(saved["labellings"]) == 2 else len(saved["labellings"]))
                )
            ),
            "are inconsistent",
        ),
    }

    def _check_options(self) -> None:
        check_classifier(self.estimator)

    def _state(self) -> dict[str, Any]:
        if not self._coding.varying.any():
            return {}
        fitted = self.estimator_
        _require_linear(self, fitted)
        return {"labellings": self.labellings_, "coef": fitted.coef_, "intercept": fitted.intercept_}

    def _restore(self, saved: dict[str, Any], arrays: dict[str, Any]) -> None:
        if not saved["V"]:
            return
        self.labellings_ = saved["labellings"]
        n = len(self.labellings_)
        # fitting on anything sets the bookkeeping; the weights are then put back
        self.estimator_ = _or_logistic(None).fit(np.zeros((n, saved["n_features"])), np.arange(n))
        self.estimator_.coef_, self.estimator_.intercept_ = saved["coef"], saved["intercept"]

    def _fit(self, task: FitTask) -> None:
        self.labellings_, number = np.unique(task.signs, axis=0, return_inverse=True)
        self.estimator_ = _or_logistic(self.estimator).fit(task.X, number.ravel())

    def _decide(self, X: Any) -> Floats:
        scores = self.estimator_.decision_function(X)
        if scores.ndim == 1:
            scores = np.column_stack([-scores, scores]) / 2.0
        present = self.labellings_ > 0
        gaps = np.empty((len(scores), present.shape[1]))
        for k in range(present.shape[1]):
            gaps[:, k] = scores[:, present[:, k]].max(axis=1) - scores[:, ~present[:, k]].max(axis=1)
        return gaps

    def _predict_signs(self, X: Any) -> np.ndarray:
        return self.labellings_[self.estimator_.predict(X)]


def check_classifier(estimator: object) -> None:
    """None, or an object with the methods of a scikit-learn classifier that has scores."""
    methods = ("fit", "predict", "decision_function", "get_params")
    if isinstance(estimator, SavedFunction):
        return  # of a loaded model, which can predict but not be fitted again
    if estimator is not None and not all(callable(getattr(estimator, name, None)) for name in methods):
        raise PotentiaError(f"estimator must be a classifier with decision_function or None, not {shown(estimator)}.")


def _require_linear(model: Any, fitted: Any) -> None:
    """Refuse to save a classifier that is more than weights."""
    if not hasattr(fitted, "coef_"):
        own, name = type(model).__name__, type(fitted).__name__
        raise PotentiaError(f"estimator of {own} of type {name} cannot be saved: linear classifiers can.")


def _or_logistic(estimator: Any) -> Any:
    if isinstance(estimator, SavedFunction):
        estimator()  # refuses, because a file has only the name
    return LogisticRegression(max_iter=1000) if estimator is None else clone(estimator)


Measure = Literal["exact_match", "hamming_loss", "f_micro", "f_macro", "f_samples"]

_SWEEPS = 20


@dataclass(eq=False, repr=False)
class ThresholdClassifier(_Unweighted):
    """Another classifier's scores with a threshold per label in place of zero [Fan and Lin 2007].

    Thresholds are tuned on scores of held-out rows: one label after another takes the threshold that is best for the
    measure given the others' (of equally good ones the closest to zero), until nothing improves. Around `LMSBN`
    the scores are what a label's other value would cost the best labelling, so that thresholds of zero are its own
    predictions.

    Args:
        estimator: a classifier with `decision_function` (n, K); independent linear ones if None.
        measure: "f_macro", "f_micro", "f_samples", "exact_match" or "hamming_loss".
        cv: number of folds.
        constraints: as in `LMSBN`; tuning does not know them.
        random_state: seed of the folds.

    After `fit`: `estimator_`, `thresholds_` of the labels that vary, `held_out_` (the measure before and after tuning).
    """

    estimator: Any = None
    _: KW_ONLY
    measure: Measure = "f_macro"
    cv: int = 5
    constraints: Constraints = None
    random_state: int = 0

    saved: ClassVar[Schema] = {
        **MultiLabelClassifier.saved,
        "inner": Section({"class": TEXT, "content": Kind((dict,))}, optional=True),
        "thresholds": Array("f8", ("V",), optional=True),
        "held_out": Array("f8", (2,), optional=True),
        "parts": Rule(
            lambda saved: all(
                (saved[name] is None) == (not saved["V"]) for name in ("inner", "thresholds", "held_out")
            ),
            "are missing",
        ),
    }

    def _check_options(self) -> None:
        """Refuse bad options."""
        check_choice("measure", self.measure, MEASURES)
        check_count("cv", self.cv, 2)
        check_count("random_state", self.random_state)
        check_classifier(self.estimator)

    def _state(self) -> dict[str, Any]:
        """The inner classifier's own state, and the thresholds."""
        if not self._coding.varying.any():
            return {}
        if not isinstance(self.estimator_, MultiLabelClassifier):
            raise PotentiaError(f"a {type(self.estimator_).__name__} inside a ThresholdClassifier cannot be saved.")
        content, arrays = self.estimator_.state()
        return {
            "inner": {"class": saved_name(type(self.estimator_)), "content": content},
            "thresholds": self.thresholds_,
            "held_out": np.array(self.held_out_),
            **{f"inner/{name}": array for name, array in arrays.items()},
        }

    def _restore(self, saved: dict[str, Any], arrays: dict[str, Any]) -> None:
        """Take the inner classifier and the thresholds of a file."""
        if saved["V"]:
            inner = find_class(saved["inner"]["class"], MultiLabelClassifier)
            self.estimator_ = inner.from_state(saved["inner"]["content"], prefixed(arrays, "inner/"))
            self.thresholds_, self.held_out_ = saved["thresholds"], tuple(saved["held_out"].tolist())

    def _fit(self, task: FitTask) -> None:
        """Tune thresholds on held-out scores, then fit the classifier on all rows."""
        X, signs = task.X, task.signs
        estimator = IndependentClassifiers() if self.estimator is None else self.estimator
        scores, labels = np.empty(signs.shape), signs.astype(np.int64)
        if not task.known.all():
            labels = np.where(task.known, np.maximum(signs, 0.0), np.nan)
        for train, test in splits(len(signs), self.cv, self.random_state):
            part = clone(estimator).fit(X[train], labels[train])
            scores[test] = part.decision_function(X[test]).reshape(len(test), -1)
        self.thresholds_ = tune(scores, signs > 0, self.measure, task.known)
        # a missing label counts as predicted correctly
        given = [scores > t for t in (0.0, self.thresholds_)]
        self.held_out_ = tuple(MEASURES[self.measure](np.where(task.known, signs > 0, p), p) for p in given)
        self.estimator_ = clone(estimator).fit(X, labels)

    def _decide(self, X: Any) -> Floats:
        """The classifier's scores less the thresholds."""
        return self.estimator_.decision_function(X).reshape(X.shape[0], -1) - self.thresholds_


def tune(scores: Floats, truth: Bools, measure: str, known: Bools | None = None) -> Floats:
    """Thresholds (K) that a measure cannot improve upon by changing one; from zeros, in rounds over the labels.

    known (n, K): labels that are not missing; others count as predicted correctly.
    """
    thresholds = np.zeros(scores.shape[1])
    for _ in range(_SWEEPS):
        before = thresholds.copy()
        for k in range(len(thresholds)):
            predicted = scores > thresholds
            order = np.argsort(-scores[:, k], kind="stable")
            right = truth if known is None else np.where(known, truth, predicted)
            if known is not None:
                order = order[known[order, k]]
            values = _values(predicted, right, k, order, measure)
            thresholds[k] = _best(scores[order, k], values, thresholds[k])
        if np.array_equal(before, thresholds):
            break
    return thresholds


def _values(predicted: Bools, truth: Bools, k: int, order: np.ndarray, measure: str) -> Floats:
    """The measure with label k predicted in the first m rows of `order`, m = 0..n, up to what does not depend on m."""
    right = np.concatenate([[0], np.cumsum(truth[order, k])])
    count = np.arange(len(order) + 1)
    if measure in ("f_macro", "f_micro"):
        both, total = 0, 0
        if measure == "f_micro":
            others = np.arange(truth.shape[1]) != k
            both = int(np.sum(predicted[:, others] & truth[:, others]))
            total = int(predicted[:, others].sum() + truth[:, others].sum())
        return 2.0 * (right + both) / np.maximum(truth[order, k].sum() + count + total, 1)
    with_it, without = predicted.copy(), predicted.copy()
    with_it[:, k], without[:, k] = True, False
    gain = _row_values(with_it, truth, measure) - _row_values(without, truth, measure)
    return np.concatenate([[0.0], np.cumsum(gain[order])])


def _row_values(predicted: Bools, truth: Bools, measure: str) -> Floats:
    """Each row's part (n) in a measure that is a mean over rows."""
    if measure == "exact_match":
        return np.all(predicted == truth, axis=1).astype(float)
    if measure == "hamming_loss":
        return -np.sum(predicted != truth, axis=1).astype(float)
    total = predicted.sum(axis=1) + truth.sum(axis=1)
    return np.where(total == 0, 1.0, 2.0 * np.sum(predicted & truth, axis=1) / np.maximum(total, 1))


def _best(ordered: Floats, values: Floats, current: float) -> float:
    """The best threshold between two distinct scores (descending) or beyond the last; `current` where it ties."""
    cuts = np.concatenate([[ordered[0] + 1.0], (ordered[:-1] + ordered[1:]) / 2.0, [ordered[-1] - 1.0]])
    allowed = np.concatenate([[True], ordered[:-1] > ordered[1:], [True]])
    here = values[np.sum(ordered > current)]
    best = values[allowed].max()
    if here >= best - 1e-12:
        return current
    good = np.flatnonzero(allowed & (values >= best - 1e-12))
    return float(cuts[good[np.argmin(np.abs(cuts[good]))]])


Solver = Literal["frank_wolfe", "one_slack"]
#: Regions inferred together in predictions.
_CHUNK = 50_000


@dataclass(eq=False, repr=False)
class _SSVM(_Unweighted):
    r"""A CRF with one binary variable per label, trained by `MaxMargin` on the Hamming loss.

    The score of a labelling is :math:`F(y) = \sum_i w_i(y_i) \cdot [x, 1] + \sum_{ij} v_{ij}(y_i, y_j)`: every label
    has its own weights and every pair its own table, all regularised equally. Fitting minimises
    :math:`\frac{\alpha}{2} (|w|^2 + |v|^2)` plus the mean structured hinge loss of the n rows.

    Args:
        alpha: regularisation, above 0; a cost C of the summed loss is :math:`\alpha = 1 / (C n)`.
        solver: "frank_wolfe" or "one_slack"; see `MaxMargin`.
        inference: what finds best labellings; None for `Exact()`, which suits chains of any length and otherwise up to
            about 20 labels; use `LinearProgram()` beyond that.
        tol: stop when the duality gap is at most this share of the objective.
        passes: maximum number of passes over the rows; a warning says so if the gap is then still larger.
        random_state: seed of the order of rows.

    After `fit`: `crf_`, the trained model, with `crf_.history_` (objective, dual and gap of every pass).
    """

    _takes_missing = False
    alpha: float = 5e-3
    solver: Solver = "frank_wolfe"
    inference: Inference | None = None
    tol: float = 1e-3
    passes: int = 200
    random_state: Any = 0

    saved: ClassVar[Schema] = {**MultiLabelClassifier.saved, "crf": Kind((dict,), optional=True)}

    def _check_options(self) -> None:
        check_positive("alpha", self.alpha)
        check_choice("solver", self.solver, get_args(Solver))
        check_type("inference", self.inference, Inference, optional=True)
        check_number("tol", self.tol)
        check_count("passes", self.passes, 1)
        check_seed(self.random_state)

    def _state(self) -> dict[str, Any]:
        if not self._coding.varying.any():
            return {}
        content, arrays = self.crf_.state()
        return {"crf": content, **{f"crf/{name}": array for name, array in arrays.items()}}

    def _restore(self, saved: dict[str, Any], arrays: dict[str, Any]) -> None:
        if saved["V"]:
            self.crf_ = CRF.from_state(saved["crf"], prefixed(arrays, "crf/"))

    @staticmethod
    @abstractmethod
    def _graph(n_labels: int) -> Graph:
        """Which pairs of labels have a table."""

    def _fit(self, task: FitTask) -> None:
        learner = MaxMargin(
            ridge=self.alpha,
            iterations=self.passes,
            tol=self.tol,
            solver=self.solver,
            inference=self.inference,
            seed=task.seed,
        )
        X, signs = task.X, task.signs
        graph = self._graph(signs.shape[1])
        kinds = [kind for kind, scope in graph.scopes.items() if len(scope)]
        potentials = {kind: Linear(ridge=0.0, intercept=False) for kind in kinds}
        labels = (signs > 0).astype(np.int64)
        examples = [Example(graph, _features(graph, X[[r]]), labels[r]) for r in range(len(signs))]
        self.crf_ = CRF(potentials, learner, decode="map").fit(examples)

    def _decide(self, X: Any) -> Floats:
        """What each label's positive value adds to the score, the other labels as predicted."""
        return np.concatenate([gains for _, gains in self._chunks(X)])

    def _predict_signs(self, X: Any) -> np.ndarray:
        return np.concatenate([2 * labels - 1 for labels, _ in self._chunks(X)])

    def _chunks(self, X: Any) -> Iterator[tuple[Ints, Floats]]:
        """Labels and gains (m, K) of m rows at a time, inferred as one graph."""
        graph = self._graph(int(self._coding.varying.sum()))
        step = max(1, _CHUNK // sum(len(scope) for scope in graph.scopes.values()))
        for start in range(0, X.shape[0], step):
            rows = X[start : start + step]
            example = Example(Union([graph] * rows.shape[0]).graph, _features(graph, rows))
            result = self.crf_.infer(example)
            labels = result.argmax().reshape(rows.shape[0], -1)
            yield labels, _gains(graph, self.crf_.theta(example), labels)


class ChainSSVM(_SSVM):
    __doc__ = (
        "Structural SVM with a table between each label and the next, in the order of columns (Viterbi).\n\n    "
        + (_SSVM.__doc__ or "")
    )

    @staticmethod
    def _graph(n_labels: int) -> Graph:
        return Graph.chain(n_labels, n_states=2)


class CompleteSSVM(_SSVM):
    __doc__ = "Structural SVM with a table for every pair of labels.\n\n    " + (_SSVM.__doc__ or "")

    @staticmethod
    def _graph(n_labels: int) -> Graph:
        return Graph.complete(n_labels, n_states=2)


def _features(graph: Graph, X: Any) -> dict[str, Any]:
    """[x, 1] in the columns of each label, and a one in the column of each pair, for the rows of X in turn."""
    n, n_pairs, nodes = X.shape[0], len(graph.scopes["edge"]), rows_by_label(X, graph.n_variables)
    if not n_pairs:
        return {"node": nodes}
    pairs = (np.ones(n * n_pairs), np.tile(np.arange(n_pairs), n), np.arange(n * n_pairs + 1))
    return {"node": nodes, "edge": sparse.csr_array(pairs, shape=(n * n_pairs, n_pairs))}


def _gains(graph: Graph, theta: dict[str, Floats], labels: Ints) -> Floats:
    """F(y with y_i = 1) - F(y with y_i = 0) for every label i of every row, (n, K)."""
    n, K = labels.shape
    gains = (theta["node"][:, 1] - theta["node"][:, 0]).reshape(n, K)
    if "edge" in theta:
        tables, (i, j) = theta["edge"].reshape(n, -1, 2, 2), graph.scopes["edge"].T
        row, pair = np.arange(n)[:, None], np.arange(len(i))
        other = labels[:, j]
        np.add.at(gains, (row, i), tables[row, pair, 1, other] - tables[row, pair, 0, other])
        other = labels[:, i]
        np.add.at(gains, (row, j), tables[row, pair, other, 1] - tables[row, pair, other, 0])
    return gains

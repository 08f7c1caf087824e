"""Classifiers that decide each label by itself: `IndependentClassifiers`, and `ThresholdClassifier` of any scores."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from sklearn.base import clone

from ...base.saving import find_class, saved_name
from ...base.schema import TEXT, Array, Kind, Rule, Schema, Section
from ...base.types import Bools, Floats, PotentiaError, check_choice, check_count, prefixed
from ...metrics import MEASURES
from .base import FitTask, MultiLabelClassifier
from .constraints import Constraints
from .hinge import Gamma, HingeSolver, Kernel, kernel_width
from .inputs import ClassWeight, check_class_weight, check_classifier, check_margin_options
from .network import APART, learn_networks, splits


@dataclass(eq=False, repr=False)
class IndependentClassifiers(MultiLabelClassifier):
    r"""One support vector machine per label, independent of the others.

    Args: as in `LMSBN`, without choices by cross-validation; alpha is common to all labels,
    :math:`C = 1 / (\alpha n)`.

    After `fit`: `intercept_` (K), and `coef_` (K, d), or with a kernel `dual_coef_` (K, n).
    """

    alpha: float = 1e-3
    kernel: Kernel = None
    _: KW_ONLY
    gamma: Gamma = "scale"
    degree: int = 3
    coef0: float = 1.0
    class_weight: ClassWeight = None
    constraints: Constraints = None
    tol: float = 1e-4
    passes: int = 1000
    random_state: Any = 0

    saved: ClassVar[Schema] = {
        **MultiLabelClassifier.saved,
        "coef": Array("f8", ("V", "m"), optional=True),
        "bias": Array("f8", ("V",), optional=True),
        "weights": Rule(
            lambda saved: (saved["coef"] is None) == (saved["bias"] is None) == (not saved["V"]), "are missing"
        ),
    }

    fit = MultiLabelClassifier.fit_weighted

    def _check_options(self) -> None:
        """Refuse bad options."""
        check_margin_options(self)
        check_class_weight(self.class_weight)

    def _fit(self, task: FitTask) -> None:
        """One support vector machine per label: a network in which labels do not see each other."""
        X, signs, weight, seed, solved = task
        width = 1.0 if self.kernel is None else kernel_width(X, self.gamma)
        if self.kernel is not None:
            self._X, self.gamma_ = X, width
        solver = HingeSolver(float(self.alpha), float(self.tol), int(self.passes), seed)
        features, order = self._label_rows(X, weight, width), np.arange(signs.shape[1])
        (network,) = learn_networks(features, signs, [solver], order, APART, solved)
        self._set_weights(network.coef, network.bias)

    def _fit_nothing(self) -> None:
        """No weights."""
        self._set_weights(np.zeros((0, self.n_features_in_)), np.zeros(0))

    def _decide(self, X: Any) -> Floats:
        """Scores (n, V): products with the weights, and intercepts."""
        coef, bias = self._weights()
        return np.asarray(self._matrix(X) @ coef.T) + bias

    def labelling_loss(self, X: Any, y: Any) -> Floats:
        """The hinge sum (n) of each row's labelling; a label constant in training adds 2 where y differs from it."""
        X, signs, surprises = self._with_labels(X, y)
        hinges: Floats = np.maximum(0.0, 1.0 - signs * self._decide(X))
        return hinges.sum(axis=1) + surprises

    def _weights(self) -> tuple[Floats, Floats]:
        """Weights and constants of the labels that vary."""
        varying = self._coding.varying
        weights = self.coef_ if self.kernel is None else self.dual_coef_
        return weights[varying], self.intercept_[varying]

    def _state(self) -> dict[str, Any]:
        """Weights and intercepts of the labels that vary."""
        coef, bias = self._weights()
        return {"coef": coef, "bias": bias} if len(bias) else {}

    def _restore(self, saved: dict[str, Any], arrays: dict[str, Any]) -> None:
        """Take the weights of a file."""
        if saved["coef"] is None:
            self._fit_nothing()
        else:
            self._set_weights(saved["coef"], saved["bias"])


Measure = Literal["exact_match", "hamming_loss", "f_micro", "f_macro", "f_samples"]

_SWEEPS = 20


@dataclass(eq=False, repr=False)
class ThresholdClassifier(MultiLabelClassifier):
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

"""The usual multi-label methods, in the same style: independent classifiers, chains, label powersets."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import ClassifierChain as SklearnChain

from .._types import Floats
from .base import MultiLabelClassifier
from .features import Kernel
from .margin import MarginClassifier
from .network import independent


class IndependentClassifiers(MarginClassifier):
    """One support vector machine per label, none of which knows the others.

    Args: as of `LMSBN`; alpha is common to all labels, C = 1 / (alpha n).

    After `fit`: `intercept_` (K), and `coef_` (K, d), or with a kernel `dual_coef_` (K, n); over the labels that vary.
    """

    def __init__(
        self,
        alpha: float = 1e-3,
        kernel: Kernel = None,
        *,
        gamma: float | str = "scale",
        degree: int = 3,
        coef0: float = 1.0,
        tol: float = 1e-4,
        passes: int = 1000,
        random_state: Any = 0,
    ) -> None:
        self.alpha = alpha
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.tol = tol
        self.passes = passes
        self.random_state = random_state

    def _fit(self, X: Any, signs: Floats) -> None:
        self._publish(*independent(self._features(X), signs, self._solver(X, signs)))

    def _publish(self, own: Floats, bias: Floats) -> None:
        self._own, self.intercept_ = own, bias
        if self.kernel is None:
            self.coef_ = own
        else:
            self.dual_coef_ = own

    def _decide(self, X: Any) -> Floats:
        return np.asarray(self._matrix(X) @ self._own.T) + self.intercept_

    def _arrays(self) -> dict[str, Any]:
        own = {"own": self._own, "bias": self.intercept_} if hasattr(self, "_own") else {}
        return super()._arrays() | own

    def _restore(self, content: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        super()._restore(content, arrays)
        if "own" in arrays:
            self._publish(arrays["own"], arrays["bias"])


class ClassifierChain(MultiLabelClassifier):
    """scikit-learn's classifier chain: every label's classifier sees the labels decided before it.

    Args:
        estimator: a classifier with `decision_function`; logistic regression if None.
        order: None (the labels' own), "random", or the numbers of the labels that vary, in order.
        random_state: seed of a random order.
    """

    def __init__(self, estimator: Any = None, *, order: Any = None, random_state: Any = 0) -> None:
        self.estimator = estimator
        self.order = order
        self.random_state = random_state

    def _fit(self, X: Any, signs: Floats) -> None:
        chain = SklearnChain(_or_logistic(self.estimator), order=self.order, random_state=self.random_state)
        self.chain_ = chain.fit(X, (signs > 0).astype(np.int64))

    def _decide(self, X: Any) -> Floats:
        return self.chain_.decision_function(X)


class LabelPowerset(MultiLabelClassifier):
    """One classifier of whole labellings: every labelling seen in training is a class; no other is ever predicted.

    A label's score is the best score of a labelling that has it minus the best of one that has not.

    Args:
        estimator: a classifier with `decision_function`, one column per class; logistic regression if None.
    """

    def __init__(self, estimator: Any = None) -> None:
        self.estimator = estimator

    def _fit(self, X: Any, signs: Floats) -> None:
        self.labellings_, number = np.unique(signs, axis=0, return_inverse=True)
        self.estimator_ = _or_logistic(self.estimator).fit(X, number.ravel())

    def _decide(self, X: Any) -> Floats:
        scores = self.estimator_.decision_function(X)
        if scores.ndim == 1:
            scores = np.column_stack([-scores, scores]) / 2.0
        present = self.labellings_ > 0
        found = np.empty((len(scores), present.shape[1]))
        for k in range(present.shape[1]):
            found[:, k] = scores[:, present[:, k]].max(axis=1) - scores[:, ~present[:, k]].max(axis=1)
        return found

    def _predict_signs(self, X: Any) -> np.ndarray:
        return self.labellings_[self.estimator_.predict(X)]


def _or_logistic(estimator: Any) -> Any:
    return LogisticRegression(max_iter=1000) if estimator is None else clone(estimator)

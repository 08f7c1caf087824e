"""The usual multi-label methods, in the same style: independent classifiers, chains, label powersets."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import ClassifierChain as SklearnChain

from .._options import check_choice
from .._registry import SavedFunction
from .._schema import Array, Rule, Schema, Size
from .._types import Floats, PotentiaError, whole_numbers
from .base import MultiLabelClassifier, check_classifier, check_seed
from .features import Gamma, Kernel
from .margin import MarginClassifier
from .network import learn_apart
from .resumable import WeightedClassifier
from .structure import given_order
from .weights import ClassWeight


@dataclass(eq=False, repr=False)
class IndependentClassifiers(WeightedClassifier, MarginClassifier):
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
    tol: float = 1e-4
    passes: int = 1000
    random_state: Any = 0

    saved: ClassVar[Schema] = {
        **MarginClassifier.saved,
        "own": Array("f8", ("V", "m"), optional=True),
        "bias": Array("f8", ("V",), optional=True),
        "weights": Rule(
            lambda found: (found["own"] is None) == (found["bias"] is None) == (not found["V"]), "are missing"
        ),
    }

    def _fit(self, X: Any, signs: Floats, weight: Floats) -> None:
        width = self._width(X)
        self._keep(X, width)
        solver = self._solver(X, signs, weight)
        (network,) = learn_apart(self._features(X, weight, width), signs, [solver])
        self._publish(network.own, network.bias)

    def _fit_nothing(self) -> None:
        self._publish(np.zeros((0, self.n_features_in_)), np.zeros(0))

    def _decide(self, X: Any) -> Floats:
        own, bias = self._weights()
        return np.asarray(self._matrix(X) @ own.T) + bias

    def _losses(self, X: Any, signs: Floats) -> Floats:
        hinges: Floats = np.maximum(0.0, 1.0 - signs * self._decide(X))
        return hinges.sum(axis=1)

    def _weights(self) -> tuple[Floats, Floats]:
        """Weights and constants of the labels that vary."""
        varying = self._coding.varying
        weights = self.coef_ if self.kernel is None else self.dual_coef_
        return weights[varying], self.intercept_[varying]

    def _state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        content, arrays = super()._state()
        own, bias = self._weights()
        return content, arrays | ({"own": own, "bias": bias} if len(bias) else {})

    def _restore(self, found: dict[str, Any], arrays: dict[str, Any]) -> None:
        super()._restore(found, arrays)
        if found["own"] is not None:
            self._publish(found["own"], found["bias"])
        else:
            self._fit_nothing()


@dataclass(eq=False, repr=False)
class ClassifierChain(MultiLabelClassifier):
    """scikit-learn's classifier chain: every label's classifier sees the labels decided before it.

    Args:
        estimator: a classifier with `decision_function`; logistic regression if None.
        order: None (the labels' own), "random", or the numbers of the labels that vary, in order.
        random_state: seed of a random order.
    """

    estimator: Any = None
    _: KW_ONLY
    order: Any = None
    random_state: Any = 0

    saved: ClassVar[Schema] = {
        **MultiLabelClassifier.saved,
        "coef": Array("f8", ("V", "w"), optional=True),
        "intercept": Array("f8", ("V",), optional=True),
        "places": Array("i8", ("V",), low=0, below="V", optional=True),
        "w": Size(lambda found: found["n_features"] + found["V"] - 1 if found["V"] else 0),
        "chain": Rule(
            lambda found: (
                not found["V"]
                or (
                    found["coef"] is not None
                    and found["intercept"] is not None
                    and found["coef"].shape[1] == found["w"]
                    and np.array_equal(np.sort(found["places"]), np.arange(found["V"]))
                )
            ),
            "is inconsistent",
        ),
    }

    def _check_options(self) -> None:
        check_classifier(self.estimator)
        check_seed("random_state", self.random_state)
        if isinstance(self.order, str):
            check_choice("order", self.order, ("random",), "the labels' numbers or None")
        elif self.order is not None:
            whole_numbers(self.order, "order")

    def _fit(self, X: Any, signs: Floats, weight: Floats) -> None:
        order = self.order
        if order is not None and not isinstance(order, str):
            order = given_order(order, signs.shape[1], None)
        self.chain_ = self._chain(self.estimator, order).fit(X, (signs > 0).astype(np.int64))

    def _chain(self, estimator: Any, order: Any) -> SklearnChain:
        return SklearnChain(_or_logistic(estimator), order=order, random_state=self.random_state)

    def _state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        if not self._coding.varying.any():
            return {}, {}
        links = self.chain_.estimators_
        _require_linear(self, links[-1])
        coef = np.zeros((len(links), links[-1].coef_.shape[1]))
        for row, link in zip(coef, links, strict=True):
            row[: link.coef_.shape[1]] = link.coef_[0]
        intercept = np.concatenate([link.intercept_ for link in links])
        return {}, {
            "coef": coef,
            "intercept": intercept,
            "places": np.asarray(self.chain_.order_, dtype=np.int64),
        }

    def _restore(self, found: dict[str, Any], arrays: dict[str, Any]) -> None:
        if not found["V"]:
            return
        d, V = found["n_features"], found["V"]
        # fitting on anything sets the bookkeeping; the weights are then put back
        self.chain_ = self._chain(None, found["places"]).fit(
            np.zeros((2, d)), np.repeat([[0], [1]], V, axis=1)
        )
        for k, link in enumerate(self.chain_.estimators_):
            link.coef_, link.intercept_ = found["coef"][k : k + 1, : d + k], found["intercept"][k : k + 1]

    def _decide(self, X: Any) -> Floats:
        return self.chain_.decision_function(X)


@dataclass(eq=False, repr=False)
class LabelPowerset(MultiLabelClassifier):
    """One classifier of whole labellings: every labelling seen in training is a class; no other is ever predicted.

    A label's score is the best score of a labelling that has it minus the best of one without it.

    Args:
        estimator: a classifier with `decision_function`, one column per class; logistic regression if None.
    """

    estimator: Any = None

    saved: ClassVar[Schema] = {
        **MultiLabelClassifier.saved,
        "labellings": Array("f8", ("C", "V"), low=-1, optional=True),
        "coef": Array("f8", ("R", "d"), optional=True),
        "intercept": Array("f8", ("R",), optional=True),
        "scores": Rule(
            lambda found: (
                not found["V"]
                or (
                    found["labellings"] is not None
                    and bool(np.all(np.abs(found["labellings"]) == 1))
                    and all(0 < n < len(found["labellings"]) for n in np.sum(found["labellings"] > 0, axis=0))
                    and found["coef"] is not None
                    and found["intercept"] is not None
                    and len(found["coef"])
                    == (1 if len(found["labellings"]) == 2 else len(found["labellings"]))
                )
            ),
            "are inconsistent",
        ),
    }

    def _check_options(self) -> None:
        check_classifier(self.estimator)

    def _state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        if not self._coding.varying.any():
            return {}, {}
        fitted = self.estimator_
        _require_linear(self, fitted)
        return {}, {"labellings": self.labellings_, "coef": fitted.coef_, "intercept": fitted.intercept_}

    def _restore(self, found: dict[str, Any], arrays: dict[str, Any]) -> None:
        if not found["V"]:
            return
        self.labellings_ = found["labellings"]
        n = len(self.labellings_)
        # fitting on anything sets the bookkeeping; the weights are then put back
        self.estimator_ = _or_logistic(None).fit(np.zeros((n, found["n_features"])), np.arange(n))
        self.estimator_.coef_, self.estimator_.intercept_ = found["coef"], found["intercept"]

    def _fit(self, X: Any, signs: Floats, weight: Floats) -> None:
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


def _require_linear(model: Any, fitted: Any) -> None:
    """Refuse to save a classifier that is more than weights."""
    if not hasattr(fitted, "coef_"):
        own, name = type(model).__name__, type(fitted).__name__
        raise PotentiaError(f"estimator of {own} of type {name} cannot be saved: linear classifiers can.")


def _or_logistic(estimator: Any) -> Any:
    if isinstance(estimator, SavedFunction):
        estimator()  # refuses, because a file has only the name
    return LogisticRegression(max_iter=1000) if estimator is None else clone(estimator)

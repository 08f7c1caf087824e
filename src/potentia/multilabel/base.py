"""What all multi-label estimators share: checking input, and coding labels as signs and back."""

from __future__ import annotations

import logging
import re
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from .._options import check_count
from .._registry import SavedFunction
from .._types import Floats, PotentiaError, shown
from .coding import as_labels, label_names, learn_coding
from .far_features import warn_of_far_features
from .remote_rows import RemoteRows
from .saving import SavedClassifier
from .weights import label_weights, row_weights

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

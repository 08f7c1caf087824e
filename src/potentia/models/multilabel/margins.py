"""`MarginClassifier`: what classifiers have in common whose scores are linear in features or in kernel values."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from ...base.schema import Array, Number, Rule, Schema, Size
from ...base.types import Floats, check_choice, check_count, check_number, check_positive
from .base import MultiLabelClassifier
from .constraints import Constraints
from .hinge import KERNELS, Gamma, LabelRows, kernel_matrix
from .inputs import ClassWeight, check_class_weight, check_seed

#: The arrays of a sparse matrix.
_CSR = ("data", "indices", "indptr")


def _n_rows(saved: dict[str, Any]) -> int:
    """Training rows that a file holds; -1 where it has none."""
    X, indptr = saved["rows/X"], saved["rows/indptr"]
    return len(X) if X is not None else -1 if indptr is None else len(indptr) - 1


def _by_kernel(saved: dict[str, Any]) -> bool:
    """Whether a saved model's scores are products with kernel values of training rows."""
    return saved["params"].get("kernel") is not None and bool(saved["V"])


@dataclass(eq=False, repr=False)
class MarginClassifier(MultiLabelClassifier):
    """A classifier of labels with the options `alpha` and `kernel`, and those of hinge losses and of kernels.

    After `fit`: `intercept_` (K), and `coef_` (K, d), or with a kernel `dual_coef_` (K, n) and `gamma_`.
    """

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
        "gamma": Number(optional=True),
        "rows/X": Array("f8", ("n", "d"), optional=True),
        "rows/data": Array("f8", ("nnz",), optional=True),
        "rows/indices": Array("i4 i8", ("nnz",), low=0, below="d", optional=True),
        "rows/indptr": Array("i4 i8", ("n+1",), ends="nnz", optional=True),
        "n": Size(_n_rows),
        "rows": Rule(lambda saved: len({saved[f"rows/{part}"] is None for part in _CSR}) == 1, "are incomplete"),
        "kernel": Rule(lambda saved: not _by_kernel(saved) or saved["gamma"] is not None, "has no gamma"),
        "m": Size(lambda saved: saved["n"] if _by_kernel(saved) else saved["n_features"]),
        "coef": Array("f8", ("V", "m")),
        "bias": Array("f8", ("V",)),
    }

    #: Options that may be "cv".
    _chosen: ClassVar[Sequence[str]] = ()

    def _check_options(self) -> None:
        """Refuse bad options before any work."""
        if not (isinstance(self.alpha, str) and self.alpha == "cv" and "alpha" in self._chosen):
            check_positive("alpha", self.alpha)
        check_positive("tol", self.tol)
        check_count("passes", self.passes, 1)
        if self.kernel is not None and not callable(self.kernel):
            check_choice("kernel", self.kernel, KERNELS, "a function or None")
        if isinstance(self.gamma, str):
            rules = ("scale", "median", "cv") if "gamma" in self._chosen else ("scale", "median")
            check_choice("gamma", self.gamma, rules, "a number")
        else:
            check_positive("gamma", self.gamma)
        check_number("degree", self.degree)
        check_number("coef0", self.coef0, -sys.float_info.max)
        check_seed(self.random_state)
        check_class_weight(self.class_weight)

    def _fit_nothing(self) -> None:
        self._set_weights(np.zeros((0, self.n_features_in_)), np.zeros(0))

    def labelling_loss(self, X: Any, y: Any) -> Floats:
        """The hinge sum (n) of each row's labelling; a label constant in training adds 2 where y differs from it."""
        X, signs, surprises = self._with_labels(X, y)
        return self._hinge_sums(X, signs) + surprises

    @abstractmethod
    def _hinge_sums(self, X: Any, signs: Floats) -> Floats:
        """The hinge sums (n) of labellings (n, V)."""

    def _label_rows(self, X: Any, weight: Floats, gamma: float) -> LabelRows:
        """Training rows as the labels' problems see them."""
        return LabelRows(X, None if self.kernel is None else self._gram(X, X, gamma), weight)

    def _gram(self, A: Any, B: Any, gamma: float) -> Floats:
        """Kernel values of all pairs of rows of A and B."""
        return kernel_matrix(A, B, self.kernel, gamma=gamma, degree=self.degree, coef0=self.coef0)

    def _matrix(self, X: Any) -> Any:
        """Matrix whose product with the weights is the scores: the rows, or their kernel with the training rows."""
        if self.kernel is None or not self._coding.varying.any():
            return X
        return self._gram(X, self._X, self.gamma_)

    def _set_weights(self, coef: Floats, bias: Floats) -> None:
        """`intercept_` and `coef_`, or `dual_coef_`, over all labels, from those of the labels that vary.

        A constant label has its sign as intercept and nothing else.
        """
        varying = self._coding.varying
        weights, self.intercept_ = np.zeros((self.n_labels_, coef.shape[1])), self._coding.signs.copy()
        weights[varying], self.intercept_[varying] = coef, bias
        setattr(self, "coef_" if self.kernel is None else "dual_coef_", weights)

    def _weights(self) -> tuple[Floats, Floats]:
        """Weights and constants of the labels that vary."""
        varying = self._coding.varying
        return (self.coef_ if self.kernel is None else self.dual_coef_)[varying], self.intercept_[varying]

    def _state(self) -> dict[str, Any]:
        """Weights, and with a kernel its width and the training rows."""
        X, (coef, bias) = self._X, self._weights()
        rows = {part: getattr(X, part) for part in _CSR} if sparse.issparse(X) else {"X": X}
        return {
            "gamma": getattr(self, "gamma_", None),
            "coef": coef,
            "bias": bias,
            **{f"rows/{part}": array for part, array in rows.items() if X is not None},
        }

    def _restore(self, saved: dict[str, Any], arrays: dict[str, Any]) -> None:
        """Take the weights of a file."""
        if saved["gamma"] is not None:
            self.gamma_ = saved["gamma"]
        if saved["rows/X"] is not None:
            self._X = saved["rows/X"]
        elif saved["rows/data"] is not None:
            shape = (saved["n"], saved["n_features"])
            self._X = sparse.csr_array(tuple(saved[f"rows/{part}"] for part in _CSR), shape=shape)
        self._set_weights(saved["coef"], saved["bias"])

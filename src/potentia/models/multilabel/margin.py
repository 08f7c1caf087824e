"""What hinge-loss estimators share: their options, kernels, and files."""

from __future__ import annotations

import sys
from abc import abstractmethod
from typing import Any, ClassVar, Literal

import numpy as np
from scipy import sparse

from ...base.options import check_choice, check_count, check_number, check_positive
from ...base.schema import Array, Number, Rule, Schema, Size
from ...base.types import Floats, PotentiaError
from .base import ResumableClassifier, check_seed
from .features import (
    KERNELS,
    Gamma,
    GramFeatures,
    HingeSolver,
    Kernel,
    LabelRows,
    RowFeatures,
    kernel_matrix,
    median_width,
    scale_width,
)

#: `budget=None`: as many states as a 64-bit count holds.
UNLIMITED = 2**62


def _n_rows(found: dict[str, Any]) -> int:
    """Training rows that a file holds; -1 where it has none."""
    X, indptr = found["rows/X"], found["rows/indptr"]
    return len(X) if X is not None else -1 if indptr is None else len(indptr) - 1


def _by_kernel(found: dict[str, Any]) -> bool:
    """Whether a saved model's scores are products with kernel values of training rows."""
    return found["params"].get("kernel") is not None and bool(found["V"])


def lone_score(difference: Floats) -> Floats:
    """The score g at which a lone label's losses differ by this: [1 + g]_+ - [1 - g]_+ solved for g."""
    size = np.abs(difference)
    return np.where(size <= 2.0, difference / 2.0, np.sign(difference) * (size - 1.0))


class MarginClassifier(ResumableClassifier):
    """Base of estimators whose labels' scores are linear in features, or in a kernel with the training rows."""

    saved: ClassVar[Schema] = {
        **ResumableClassifier.saved,
        "gamma": Number(optional=True),
        "rows/X": Array("f8", ("n", "d"), optional=True),
        "rows/data": Array("f8", ("nnz",), optional=True),
        "rows/indices": Array("i4 i8", ("nnz",), low=0, below="d", optional=True),
        "rows/indptr": Array("i4 i8", ("n+1",), ends="nnz", optional=True),
        "n": Size(_n_rows),
        "rows": Rule(
            lambda found: (
                (found["rows/data"] is None)
                == (found["rows/indices"] is None)
                == (found["rows/indptr"] is None)
            ),
            "are incomplete",
        ),
        "kernel": Rule(lambda found: not _by_kernel(found) or found["gamma"] is not None, "has no gamma"),
        "m": Size(lambda found: found["n"] if _by_kernel(found) else found["n_features"]),
    }

    #: Whether alpha and gamma may be "cv".
    _chooses: ClassVar[bool] = False

    alpha: float | Literal["cv"]
    kernel: Kernel
    gamma: Gamma
    degree: int
    coef0: float
    tol: float
    passes: int
    gamma_: float
    intercept_: Floats
    coef_: Floats
    dual_coef_: Floats
    _X: Any = None

    def _check_options(self) -> None:
        if not self._chooses or not isinstance(self.alpha, str) or self.alpha != "cv":
            check_positive("alpha", self.alpha)
        check_positive("tol", self.tol)
        check_count("passes", self.passes, 1)
        if self.kernel is not None and not callable(self.kernel):
            check_choice("kernel", self.kernel, KERNELS, "a function or None")
        if isinstance(self.gamma, str):
            check_choice("gamma", self.gamma, self._gammas, "a number")
        else:
            check_positive("gamma", self.gamma)
        check_number("degree", self.degree)
        check_number("coef0", self.coef0, -sys.float_info.max)
        check_seed("random_state", self.random_state)

    @property
    def _gammas(self) -> tuple[str, ...]:
        return ("scale", "median", "cv") if self._chooses else ("scale", "median")

    def _solver(self, X: Any, signs: Floats, weight: Floats) -> HingeSolver:
        """The solver of a fit to X and signs, which takes up the fit's checkpoint if it has one."""
        seed = self._seed(X, signs, weight)
        alpha = 1.0 if self.alpha == "cv" else float(self.alpha)
        return HingeSolver(alpha, float(self.tol), int(self.passes), seed, self._solved)

    def _features(self, X: Any, weight: Floats, gamma: float) -> LabelRows:
        """Training rows as the solver's features, with weights of their labels."""
        made = RowFeatures(X) if self.kernel is None else GramFeatures(self._kernel(X, X, gamma))
        made.weight = weight
        return made

    def _keep(self, X: Any, gamma: float) -> None:
        """Keep what prediction with a kernel needs."""
        if self.kernel is not None:
            self._X, self.gamma_ = X, gamma

    def _width(self, X: Any) -> float:
        """The kernel's width as a number; for "cv" that of the median rule."""
        if not isinstance(self.gamma, str):
            return float(self.gamma)
        if self.kernel is None or self.gamma == "scale":
            return scale_width(X)
        return median_width(X, 0)

    def _matrix(self, X: Any) -> Any:
        """What a product with weights turns into scores: the rows, or their kernel with the training rows."""
        if self.kernel is None or not self._coding.varying.any():
            return X
        return self._kernel(X, self._X, self.gamma_)

    def _kernel(self, A: Any, B: Any, gamma: float) -> Floats:
        options = {"gamma": gamma, "degree": self.degree, "coef0": self.coef0}
        return kernel_matrix(A, B, self.kernel, options)

    def _publish(self, own: Floats, bias: Floats) -> None:
        """`intercept_` and `coef_`, or `dual_coef_`, over all labels, from those of the labels that vary.

        A constant label has its sign as intercept and nothing else.
        """
        varying = self._coding.varying
        weights, self.intercept_ = np.zeros((self.n_labels_, own.shape[1])), self._coding.signs.copy()
        weights[varying], self.intercept_[varying] = own, bias
        setattr(self, "coef_" if self.kernel is None else "dual_coef_", weights)

    def labelling_loss(self, X: Any, y: Any) -> Floats:
        """The hinge sum (n) of each row's labelling; a label constant in training adds 2 where y differs from it."""
        X, signs = self._with_labels(X, y)
        constant = self._coding.signs
        surprises = np.sum((constant != 0) & (signs != constant), axis=1)
        varying = np.ascontiguousarray(signs[:, self._coding.varying])
        return self._losses(X, varying) + 2.0 * surprises

    def _with_labels(self, X: Any, y: Any) -> tuple[Any, Floats]:
        """Rows, and their labels as signs."""
        X, signs = self._checked(X), self._signs(y)
        if len(signs) != X.shape[0]:
            raise PotentiaError(f"X has {X.shape[0]} rows but y {len(signs)}.")
        return X, signs

    @abstractmethod
    def _losses(self, X: Any, signs: Floats) -> Floats:
        """Hinge sums (n) of the labels that vary."""

    # -- files ---------------------------------------------------------------------------------------------

    def _state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        X, rows = self._X, {}
        if X is not None:
            parts = (
                {"data": X.data, "indices": X.indices, "indptr": X.indptr} if sparse.issparse(X) else {"X": X}
            )
            rows = {f"rows/{name}": value for name, value in parts.items()}
        return {"gamma": getattr(self, "gamma_", None)}, rows

    def _restore(self, found: dict[str, Any], arrays: dict[str, Any]) -> None:
        if found["gamma"] is not None:
            self.gamma_ = found["gamma"]
        if found["rows/X"] is not None:
            self._X = found["rows/X"]
        elif found["rows/data"] is not None:
            parts = tuple(found[f"rows/{name}"] for name in ("data", "indices", "indptr"))
            self._X = sparse.csr_array(parts, shape=(found["n"], found["n_features"]))

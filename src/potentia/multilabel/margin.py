"""What hinge-loss estimators share: their options, kernels, and files."""

from __future__ import annotations

import os
import sys
from typing import Any, ClassVar, Self

from scipy import sparse
from sklearn.utils import check_random_state

from .._digest import digest_of, stable_repr
from .._options import check_choice, check_count, check_number, check_positive
from .._progress import Bar
from .._schema import Array, Number, Rule, Schema, Size
from .._types import Floats
from ..io.checkpoint import Checkpoint
from .base import MultiLabelClassifier, check_seed
from .features import (
    KERNELS,
    Features,
    Gamma,
    GramFeatures,
    HingeSolver,
    Kernel,
    RowFeatures,
    kernel_matrix,
    kernel_width,
)
from .fit_progress import FitProgress

#: `budget=None`: as many states as a 64-bit count holds.
UNLIMITED = 2**62


def _n_rows(found: dict[str, Any]) -> int:
    """Training rows that a file holds; -1 where it has none."""
    X, indptr = found["rows/X"], found["rows/indptr"]
    return len(X) if X is not None else -1 if indptr is None else len(indptr) - 1


def _by_kernel(found: dict[str, Any]) -> bool:
    """Whether a saved model's scores are products with kernel values of training rows."""
    return found["params"].get("kernel") is not None and bool(found["V"])


class MarginClassifier(MultiLabelClassifier):
    """Base of estimators whose labels' scores are linear in features, or in a kernel with the training rows."""

    saved: ClassVar[Schema] = {
        **MultiLabelClassifier.saved,
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

    alpha: float
    kernel: Kernel
    gamma: Gamma
    degree: int
    coef0: float
    tol: float
    passes: int
    random_state: Any
    gamma_: float
    _X: Any = None
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
            checkpoint: a file that keeps what is found every few seconds and at Ctrl-C; if it exists, the fit goes on
                from there. One of other data or options, an integer `random_state` among them, is refused.
        """
        with Bar(progress) as bar:
            self._solved = solved = FitProgress(bar, checkpoint)
            try:
                return super().fit(X, y)
            except KeyboardInterrupt:
                solved.write()
                raise
            finally:
                del self._solved

    def _check_options(self) -> None:
        check_positive("alpha", self.alpha)
        check_positive("tol", self.tol)
        check_count("passes", self.passes, 1)
        if self.kernel is not None and not callable(self.kernel):
            check_choice("kernel", self.kernel, KERNELS, "a function or None")
        if self.gamma != "scale":
            check_positive("gamma", self.gamma)
        check_number("degree", self.degree)
        check_number("coef0", self.coef0, -sys.float_info.max)
        check_seed("random_state", self.random_state)

    def _solver(self, X: Any, signs: Floats) -> HingeSolver:
        """The solver of a fit to X and signs, which takes up the fit's checkpoint if it has one."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        if self._solved is not None:
            self._solved.open(lambda: self._mark(X, signs, seed))
        return HingeSolver(float(self.alpha), float(self.tol), int(self.passes), seed, self._solved)

    def _mark(self, X: Any, signs: Floats, seed: int) -> str:
        """What a checkpoint of this fit is known by."""
        options = {k: v for k, v in self.get_params(deep=False).items() if k != "random_state"}
        rows = (X.data, X.indices, X.indptr) if sparse.issparse(X) else (X,)
        return digest_of([stable_repr((type(self).__name__, options, seed)), *rows, signs])

    def _features(self, X: Any) -> Features:
        """Training rows as the solver's features; with a kernel they are kept for prediction."""
        self._X = None if self.kernel is None else X
        if self.kernel is None:
            return RowFeatures(X)
        self.gamma_ = kernel_width(self.gamma, X)
        return GramFeatures(self._kernel(X))

    def _matrix(self, X: Any) -> Any:
        """What a product with weights turns into scores: the rows, or their kernel with the training rows."""
        return X if self.kernel is None or not self._coding.varying.any() else self._kernel(X)

    def _kernel(self, X: Any) -> Floats:
        options = {"gamma": self.gamma_, "degree": self.degree, "coef0": self.coef0}
        return kernel_matrix(X, self._X, self.kernel, options)

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

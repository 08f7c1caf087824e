"""What hinge-loss estimators share: their options, kernels, and files."""

from __future__ import annotations

import os
from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.utils import check_random_state

from .._digest import digest_of, stable_repr
from .._progress import Bar
from .._types import Floats, PotentiaError
from ..io.checkpoint import Checkpoint
from ..io.files import read_file, reading, write_file
from .base import MultiLabelClassifier
from .coding import Coding
from .features import Features, GramFeatures, HingeSolver, Kernel, RowFeatures, kernel_matrix, kernel_width
from .fit_progress import FitProgress

#: `budget=None`: as many states as a 64-bit count holds.
UNLIMITED = 2**62


class MarginClassifier(MultiLabelClassifier):
    """Base of estimators whose labels' scores are linear in features, or in a kernel with the training rows."""

    alpha: float
    kernel: Kernel
    gamma: float | str
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

    def _solver(self, X: Any, signs: Floats) -> HingeSolver:
        """Checked options of the solver of a fit to X and signs, which takes up the fit's checkpoint if it has one."""
        for name in ("alpha", "tol", "passes"):
            value = getattr(self, name)
            if isinstance(value, str | bool) or value is None or not 0 < value < np.inf:
                raise PotentiaError(f"{name} must be a number above zero, not {value!r}")
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
        return X if self.kernel is None else self._kernel(X)

    def _kernel(self, X: Any) -> Floats:
        options = {"gamma": self.gamma_, "degree": self.degree, "coef0": self.coef0}
        return kernel_matrix(X, self._X, self.kernel, options)

    # -- files ---------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one file of JSON and arrays; a kernel that is a function cannot be saved."""
        write_file(path, type(self).__name__, *self.state())

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The fitted model as JSON and arrays."""
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self)
        if callable(self.kernel):
            raise PotentiaError("a model whose kernel is a function cannot be saved; name the kernel instead")
        content = {
            "params": self.get_params(deep=False),
            "label_names": self.label_names_,
            "flat": self._coding.flat,
            "feature_names": getattr(self, "feature_names_in_", np.empty(0)).tolist(),
            "n_features": self.n_features_in_,
            "gamma": getattr(self, "gamma_", None),
        }
        return content, self._arrays()

    def _arrays(self) -> dict[str, Any]:
        arrays = {f"classes/{k}": _storable(values) for k, values in enumerate(self._coding.classes)}
        arrays["signs"] = self._coding.signs
        X = self._X
        if X is not None:
            parts = (
                {"data": X.data, "indices": X.indices, "indptr": X.indptr} if sparse.issparse(X) else {"X": X}
            )
            arrays |= {f"rows/{name}": value for name, value in parts.items()}
        return arrays

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """A model written by `save`."""
        with reading(path):
            return cls.from_state(*read_file(path, cls.__name__))

    @classmethod
    def from_state(cls, content: dict[str, Any], arrays: dict[str, Any]) -> Self:
        """The model that `state` described."""
        model = cls(**content["params"])
        names = content["label_names"]
        classes = [arrays[f"classes/{k}"] for k in range(len(names))]
        model._coding = Coding(classes, arrays["signs"], content["flat"])
        model.label_names_, model.n_labels_ = names, len(names)
        model.classes_ = model._coding.public
        model.n_features_in_ = content["n_features"]
        if content["feature_names"]:
            model.feature_names_in_ = np.array(content["feature_names"], dtype=object)
        if content["gamma"] is not None:
            model.gamma_ = content["gamma"]
        model._restore(content, arrays)
        return model

    def _restore(self, content: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Take from a file's arrays what `_arrays` put there."""
        if "rows/X" in arrays:
            self._X = arrays["rows/X"]
        elif "rows/data" in arrays:
            parts = tuple(arrays[f"rows/{name}"] for name in ("data", "indices", "indptr"))
            self._X = sparse.csr_array(parts, shape=(len(parts[2]) - 1, content["n_features"]))


def _storable(values: np.ndarray) -> np.ndarray:
    """Labels' values as an array that needs no pickle: objects must be text."""
    if values.dtype.kind != "O":
        return values
    if not all(isinstance(v, str) for v in values):
        raise PotentiaError("labels whose values are objects other than text cannot be saved")
    return values.astype(str)

"""Rows of features: on a cluster read by its workers, and compared by kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Protocol, TypeVar, get_args

import numpy as np
from scipy import sparse

from ...base.types import Floats, Ints, PotentiaError
from ...learn.backends.connection import map_anywhere

T = TypeVar("T")


class RowSource(Protocol):
    """Where rows come from; equal keys are equal rows."""

    @property
    def key(self) -> str: ...

    def rows(self) -> Floats: ...


#: The matrix read last by this process: labels are learned one after another from the same one.
_read_last: dict[str, Floats] = {}


class RemoteRows:
    """Rows (n, d) of a source, or some of them, which whoever computes with them reads; products are computed there.

    Attributes:
        shape: (n, d).
        chosen: numbers of the source's rows; None for all.
    """

    def __init__(self, source: RowSource, shape: tuple[int, int], chosen: Ints | None = None) -> None:
        self.source, self.shape, self.chosen = source, shape, chosen

    def __getitem__(self, numbers: Ints) -> RemoteRows:
        chosen = numbers if self.chosen is None else self.chosen[numbers]
        return RemoteRows(self.source, (len(chosen), self.shape[1]), chosen)

    def __matmul__(self, weights: Any) -> Floats:
        return self.ask(partial(_product, weights))

    def ask(self, function: Callable[[Floats], T]) -> T:
        """function(rows), computed by a worker."""
        result: T = map_anywhere(partial(_apply, function), [self])[0]
        return result

    def read(self) -> Floats:
        """The rows, in this process, which keeps the matrix that it read last."""
        if self.source.key not in _read_last:
            _read_last.clear()
            _read_last[self.source.key] = self.source.rows()
        matrix = _read_last[self.source.key]
        return matrix if self.chosen is None else matrix[self.chosen]


def forget_rows() -> None:
    """Let go of the matrix that this process keeps."""
    _read_last.clear()


def _apply(function: Callable[[Floats], T], rows: RemoteRows) -> T:
    return function(rows.read())


def _product(weights: Any, rows: Floats) -> Floats:
    product: Floats = rows @ weights
    return product


def rows_by_label(X: Any, n_labels: int) -> Any:
    """[x_l, 1] in the columns of label i, for l = 0, 1, ... and all K labels i of each: CSR (n K, K (d + 1))."""
    n, d = X.shape[0], X.shape[1] + 1
    repeated = np.repeat(np.arange(n), n_labels)
    rows = sparse.hstack([sparse.csr_array(X), np.ones((n, 1))], format="csr")[repeated]
    shift = np.repeat(np.tile(np.arange(n_labels) * d, n), np.diff(rows.indptr))
    parts = (rows.data, rows.indices + shift, rows.indptr)
    return sparse.csr_array(parts, shape=(n * n_labels, n_labels * d))


# -- kernels ---------------------------------------------------------------------------------------------------

KernelName = Literal[
    "additive_chi2", "chi2", "cosine", "laplacian", "linear", "poly", "polynomial", "rbf", "sigmoid"
]
KERNELS = get_args(KernelName)
#: A kernel by scikit-learn's name, or a function of two matrices of rows.
Kernel = KernelName | Callable[..., Any] | None
#: A kernel's width: a number or a rule.
Gamma = float | Literal["scale", "median", "cv"]
#: Rows whose distances the median rule looks at.
_SAMPLE = 500


def kernel_matrix(A: Any, B: Any, kernel: Kernel, **options: Any) -> Floats:
    """k(a, b) for all rows of A and B: a kernel of scikit-learn's by name with its options, or a user's function."""
    from sklearn.metrics.pairwise import pairwise_kernels

    if callable(kernel):
        values = kernel(A, B)
        gram = np.asarray(values.toarray() if sparse.issparse(values) else values, dtype=float)
    else:
        try:
            gram = pairwise_kernels(A, B, metric=kernel, filter_params=True, **options)
        except ValueError as error:
            raise PotentiaError(f"kernel {kernel!r}: {str(error).removesuffix('.')}.") from None
    if gram.shape != (A.shape[0], B.shape[0]) or not np.all(np.isfinite(gram)):
        raise PotentiaError(
            f"kernel must give finite numbers of shape {(A.shape[0], B.shape[0])}, not {gram.shape}."
        )
    return np.ascontiguousarray(gram)


def kernel_width(X: Any, gamma: Gamma) -> float:
    """The kernel's width as a number; for "cv" that of the median rule."""
    if not isinstance(gamma, str):
        return float(gamma)
    return scale_width(X) if gamma == "scale" else median_width(X, 0)


def scale_width(X: Any) -> float:
    """1 / (features x variance of X), as scikit-learn's SVC has it; 1 where X does not vary."""
    variance = X.multiply(X).mean() - X.mean() ** 2 if sparse.issparse(X) else X.var()
    return float(1.0 / (X.shape[1] * variance)) if variance > 0 else 1.0


def median_width(X: Any, seed: int) -> float:
    """1 / median squared distance between some rows; 1 where rows do not differ."""
    rows = np.random.default_rng(seed).permutation(X.shape[0])[:_SAMPLE]
    sample = X[rows].toarray() if sparse.issparse(X) else X[rows]
    squares = np.einsum("ij,ij->i", sample, sample)
    distances = squares[:, None] + squares - 2.0 * sample @ sample.T
    middle = float(np.median(distances[np.triu_indices(len(rows), 1)])) if len(rows) > 1 else 0.0
    return 1.0 / middle if middle > 0 else 1.0

"""`RemoteRows`: a matrix of features that the workers of a cluster read for themselves, and this process never has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar, get_args

import numpy as np
from scipy import sparse

from ...base.types import ConvergenceWarning, Floats, Ints, PotentiaError, warn_caller
from ...features.offsets import CONSTANT_SHARE, FAR, Moments, attribute_moments
from ...kernels.coordinate import Exceptions, FeatureRows, Weights, descend
from ...learn.backends.connection import map_anywhere
from .interior import by_matrix, by_rows, solve_dual

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
        found: T = map_anywhere(partial(_apply, function), [self])[0]
        return found

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
    found: Floats = rows @ weights
    return found


if TYPE_CHECKING:
    from .base import FitProgress

#: Where coordinate descent stalls, a linear system of up to this many unknowns is solved instead.
LARGEST_SYSTEM = 1000

#: Rows whose distances the median rule looks at.
_SAMPLE = 500

KernelName = Literal[
    "additive_chi2", "chi2", "cosine", "laplacian", "linear", "poly", "polynomial", "rbf", "sigmoid"
]
KERNELS = get_args(KernelName)
#: A kernel by scikit-learn's name, or a function of two matrices of rows.
Kernel = KernelName | Callable[..., Any] | None
#: A kernel's width: a number or a rule.
Gamma = float | Literal["scale", "median", "cv"]


class Solution(NamedTuple):
    """One label's weights: `own` of the features (or of the training rows, with a kernel), bias, columns of signs."""

    own: Floats
    bias: float
    signs: Floats
    converged: bool


@dataclass(frozen=True)
class HingeSolver:
    """How problems are solved: 1/2 |w|^2 + 1 / (alpha n) sum of hinge losses, the constant's weight included in w.

    Stops when projected gradients of the dual differ by at most `tol`, or gives up after `passes` passes over the rows.
    `solved` knows what an interrupted fit had found already.
    """

    alpha: float
    tol: float
    passes: int
    seed: int
    solved: FitProgress | None = None

    def cost(self, n_rows: int) -> float:
        """The weight of a row's loss."""
        return 1.0 / (self.alpha * n_rows)

    def visits(self, n_rows: int) -> int:
        """Visits of rows at most: settled rows are not visited, and few rows, being cheap, count as a thousand."""
        return self.passes * max(n_rows, 1000)


class SignColumns:
    """Columns of signs (n, m) times `scale` beside the features, kept as exceptions from each column's usual sign."""

    def __init__(self, signs: Floats, scale: float = 1.0) -> None:
        self.signs, self.scale = signs, scale
        self.usual = np.where(signs.sum(axis=0) >= 0, 1.0, -1.0)
        listed = sparse.csr_array(signs != self.usual)
        listed.sort_indices()
        self.exceptions = Exceptions(
            listed.indices.astype(np.uint32), listed.indptr.astype(np.int64), float(scale)
        )

    def squares(self, p: int) -> float:
        """What the constant and the first p columns add to a row's squared length."""
        return 1.0 + p * self.scale**2


class LabelRows(ABC):
    """Training rows as the problems see them; never copied per label.

    _rows: what the kernel reads. _squares (n): squared lengths. weight (n, K): of the rows' losses by label, None for
    all 1. width: how many features there are, a kernel's being as many as rows.
    """

    n_rows: int
    weight: Floats | None = None
    _rows: FeatureRows
    _squares: Floats
    width: int

    def path(
        self,
        solvers: Sequence[HingeSolver],
        columns: SignColumns,
        p: int,
        y: Floats,
        label: int | None = None,
    ) -> list[Solution]:
        """The problem of signs y (n) with the first p of the columns of signs beside the rows' own features.

        Solved by each solver in turn, starting from the solution before with its dual scaled to the new cost. label:
        whose weights the rows have.
        """
        weight = np.ones(self.n_rows) if self.weight is None or label is None else self.weight[:, label]
        w, dual, before = self._zeros(p), np.zeros(self.n_rows), 0.0
        found = []
        for solver in solvers:
            cost = solver.cost(self.n_rows)
            if before:
                for part in (dual, *w):
                    part *= cost / before
            before = cost
            found.append(self._solve(solver, columns, p, y, cost * weight, dual, w))
        return found

    def _solve(
        self,
        solver: HingeSolver,
        columns: SignColumns,
        p: int,
        y: Floats,
        costs: Floats,
        dual: Floats,
        w: Weights,
    ) -> Solution:
        """The solution from a start, `dual` and the weights `w` that belong to it, which are changed."""
        n = self.n_rows
        limits = (costs, solver.tol, solver.visits(n), solver.seed)
        norms = self._squares + columns.squares(p)
        spread = descend(self._rows, columns.exceptions, y, norms, *limits, dual, w)
        if spread > solver.tol and min(n, self.width + 1 + p) <= LARGEST_SYSTEM:
            exact = self._interior(columns, p, y, costs)
            if exact is not None:
                return exact
        bias, scale = float(w.bias[0]), columns.scale
        signs = scale * columns.usual[:p] * (w.signs + scale * bias)
        return Solution(self._own(w, dual * y), bias, signs, spread <= solver.tol)

    @property
    def mean_square(self) -> float:
        """The mean squared length of the rows."""
        return float(np.mean(self._squares))

    @abstractmethod
    def _zeros(self, p: int) -> Weights:
        """Weights to start from, p of signs."""

    @abstractmethod
    def _own(self, w: Weights, signed_dual: Floats) -> Floats:
        """A solution's `own` weights."""

    @abstractmethod
    def _interior(self, columns: SignColumns, p: int, y: Floats, costs: Floats) -> Solution | None:
        """The same problem by Newton steps; None if they break down."""

    @abstractmethod
    def _split(self, train: Ints, test: Ints) -> tuple[LabelRows, Any]:
        """`split` without weights."""

    def split(self, train: Ints, test: Ints) -> tuple[LabelRows, Any]:
        """Some rows as features, and the matrix whose product with a solution's `own` scores other rows."""
        part, matrix = self._split(train, test)
        part.weight = None if self.weight is None else self.weight[train]
        return part, matrix


class RowFeatures(LabelRows):
    """Features themselves: X (n, d), dense or CSR, or rows that are read where a problem is solved."""

    def __init__(self, X: Any) -> None:
        self._given = X
        self.n_rows, self.width = X.shape

    @cached_property
    def _matrix(self) -> Any:
        return self._given.read() if isinstance(self._given, RemoteRows) else self._given

    @cached_property
    def _rows(self) -> FeatureRows:  # type: ignore[override]
        return feature_rows(self._matrix)

    @cached_property
    def _squares(self) -> Floats:  # type: ignore[override]
        return squared_lengths(self._matrix)

    @property
    def mean_square(self) -> float:
        """The mean squared length of the rows."""
        given = self._given
        return given.ask(_mean_square) if isinstance(given, RemoteRows) else super().mean_square

    def _zeros(self, p: int) -> Weights:
        d1 = self._rows.dense.shape[1]
        return Weights(
            np.zeros(1), np.zeros(d1), np.zeros(self.width - d1), np.zeros(p), np.zeros(self.n_rows)
        )

    def _own(self, w: Weights, signed_dual: Floats) -> Floats:
        return (w.sparse if sparse.issparse(self._matrix) else w.dense).copy()

    def _interior(self, columns: SignColumns, p: int, y: Floats, costs: Floats) -> Solution | None:
        parts = [np.ones((self.n_rows, 1)), columns.scale * columns.signs[:, :p], self._matrix]
        if sparse.issparse(self._matrix):
            Z = sparse.diags_array(y) @ sparse.hstack([sparse.csr_array(v) for v in parts], format="csr")
        else:
            Z = y[:, None] * np.hstack(parts)
        if self.n_rows < Z.shape[1]:
            Q = Z @ Z.T
            system = by_matrix(Q.toarray() if sparse.issparse(Q) else Q)
        else:
            system = by_rows(Z)
        dual = solve_dual(*system, self.n_rows, costs)
        if dual is None:
            return None
        w = Z.T @ dual
        return Solution(w[1 + p :], float(w[0]), columns.scale * w[1 : 1 + p], True)

    def _split(self, train: Ints, test: Ints) -> tuple[LabelRows, Any]:
        return RowFeatures(self._given[train]), self._given[test]


class GramFeatures(LabelRows):
    """A kernel matrix (n, n) of the training rows."""

    def __init__(self, gram: Floats) -> None:
        self.n_rows = self.width = len(gram)
        self._rows = feature_rows(None, gram)
        self._squares = np.diagonal(gram)

    def _zeros(self, p: int) -> Weights:
        return Weights(np.zeros(1), np.empty(0), np.empty(0), np.zeros(p), np.zeros(self.n_rows))

    def _own(self, w: Weights, signed_dual: Floats) -> Floats:
        return signed_dual

    def _interior(self, columns: SignColumns, p: int, y: Floats, costs: Floats) -> Solution | None:
        signs, square = columns.signs[:, :p], columns.scale**2
        Q = np.outer(y, y) * (self._rows.gram + 1.0 + square * (signs @ signs.T))
        dual = solve_dual(*by_matrix(Q), self.n_rows, costs)
        if dual is None:
            return None
        return Solution(dual * y, float(dual @ y), square * (signs.T @ (dual * y)), True)

    def _split(self, train: Ints, test: Ints) -> tuple[LabelRows, Any]:
        gram = self._rows.gram
        return GramFeatures(np.ascontiguousarray(gram[np.ix_(train, train)])), gram[np.ix_(test, train)]


def squared_lengths(X: Any) -> Floats:
    """The squared lengths (n) of rows."""
    if sparse.issparse(X):
        return np.asarray(X.multiply(X).sum(axis=1)).ravel()
    return np.asarray(np.einsum("ij,ij->i", X, X))


def _mean_square(X: Any) -> float:
    return float(np.mean(squared_lengths(X)))


def feature_rows(X: Any, gram: Floats | None = None) -> FeatureRows:
    """Rows, dense or CSR, or their kernel matrix, as the kernels take them, without a copy."""
    n = X.shape[0] if gram is None else len(gram)
    nothing = np.empty((n, 0))
    no_entries = np.empty(0), np.empty(0, dtype=np.uint32), np.zeros(n + 1, dtype=np.int32)
    if gram is not None:
        return FeatureRows(nothing, gram, *no_entries)
    if not sparse.issparse(X):
        return FeatureRows(X, nothing, *no_entries)
    # unsigned indices spare kernels a test for wrap-around; 32 bits where they come as such
    unsigned = np.uint32 if X.indices.dtype.itemsize == 4 else np.uint64
    return FeatureRows(nothing, nothing, X.data, X.indices.view(unsigned), X.indptr)


def rows_by_label(X: Any, n_labels: int) -> Any:
    """[x_l, 1] in the columns of label i, for l = 0, 1, ... and all K labels i of each: CSR (n K, K (d + 1))."""
    n, d = X.shape[0], X.shape[1] + 1
    repeated = np.repeat(np.arange(n), n_labels)
    rows = sparse.hstack([sparse.csr_array(X), np.ones((n, 1))], format="csr")[repeated]
    shift = np.repeat(np.tile(np.arange(n_labels) * d, n), np.diff(rows.indptr))
    parts = (rows.data, rows.indices + shift, rows.indptr)
    return sparse.csr_array(parts, shape=(n * n_labels, n_labels * d))


def kernel_matrix(A: Any, B: Any, kernel: Kernel, options: dict[str, Any]) -> Floats:
    """k(a, b) for all rows of A and B: a kernel of scikit-learn's by name with its options, or a user's function."""
    from sklearn.metrics.pairwise import pairwise_kernels

    if callable(kernel):
        found = kernel(A, B)
        gram = np.asarray(found.toarray() if sparse.issparse(found) else found, dtype=float)
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


def scale_width(X: Any) -> float:
    """1 / (features x variance of X), as scikit-learn's SVC has it; 1 where X does not vary."""
    if isinstance(X, RemoteRows):
        return X.ask(scale_width)
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


def warn_unless_converged(solutions: Sequence[Solution], solver: HingeSolver) -> None:
    """One warning for all labels whose problem met the limit on passes."""
    open_ones = sum(not s.converged for s in solutions)
    if open_ones:
        warn_caller(
            f"{open_ones} of {len(solutions)} labels did not reach tol = {solver.tol:g} in {solver.passes} passes; "
            "raise passes or alpha, or scale the features.",
            ConvergenceWarning,
        )


#: Standard deviations that a feature's mean may be away from zero if another feature can take the place of the
#: constant.
_HOPELESS = 1e3
#: Numbers that are looked at together.
_BLOCK = 1 << 20


def warn_of_far_features(X: Any) -> None:
    """Warn of a feature whose mean exceeds its spread by far: linear functions have a penalised constant, too."""
    found = X.ask(far_feature) if isinstance(X, RemoteRows) else far_feature(X)
    if found is not None:
        warn_caller(
            f"feature {found} of X has a mean more than {FAR:g} times its standard deviation, so that a linear "
            "function hardly sees it vary: standardise the features.",
            UserWarning,
        )


def far_feature(X: Any) -> int | None:
    """The first feature whose mean exceeds its spread by far, of dense or CSR rows, which are read in blocks."""
    n, d = X.shape
    if sparse.issparse(X):
        # a feature of which more entries are zero varies by more
        stored = np.bincount(X.indices, minlength=d)
        if not (stored >= n * (1 - 1 / (1 + FAR**2))).any():
            return None
        size = max(1, n * max(_BLOCK, d) // max(X.nnz, 1))
    else:
        size = max(1, _BLOCK // max(d, 1))
    moments = Moments.none(d)
    for first in range(0, n, size):
        block = X[first : first + size]
        for part in _sparse_moments(block) if sparse.issparse(X) else [_dense_moments(block)]:
            moments.add(part, slice(None))
    with np.errstate(over="ignore", invalid="ignore"):
        mean, spread = np.abs(moments.mean), np.sqrt(moments.deviation / max(n, 1))
        off = mean > FAR * spread
        # what a weight of 1 adds to the score as a constant: that of the intercept, or another feature's mean
        constants = np.concatenate([[1.0], np.where(off, mean, 0.0)])
        top = int(constants.argmax())
        best = np.full(d, constants[top])
        if top > 0:
            best[top - 1] = np.delete(constants, top).max()
        far = off & ((mean > FAR * spread * best) | (mean > _HOPELESS * spread))
        far &= spread > CONSTANT_SHARE * mean
    return int(far.argmax()) if far.any() else None


def _dense_moments(rows: Any) -> Moments:
    with np.errstate(over="ignore", invalid="ignore"):
        mean = rows.mean(axis=0)
        return Moments(np.full(len(mean), float(len(rows))), mean, ((rows - mean) ** 2).sum(axis=0))


def _sparse_moments(rows: Any) -> list[Moments]:
    """Moments of the entries that are stored, and of those that are not."""
    rows.sum_duplicates()
    n, d = rows.shape
    stored = attribute_moments(rows.indices, rows.data, np.ones(rows.nnz), d)
    return [stored, Moments(n - stored.weight, np.zeros(d), np.zeros(d))]

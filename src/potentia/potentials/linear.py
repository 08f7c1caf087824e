"""Linear functions of features, or of an expansion of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from ..base.schema import FLAG, Array, Either, Field, Rule, Schema, Size
from ..base.types import Floats, Ints, PotentiaError, check_number
from ..kernels.linear_losses import linear_loss_rows
from .base import Differentiable
from .problem import Batch, Problem, check_features
from .saving import is_transformer

#: Up to this many features the coordinates are decorrelated, beyond only rescaled.
_MAX_WHITENED = 512
#: At most this many rows, evenly spaced, are shown to a transformer.
_MAX_TRANSFORMED = 1_000_000
#: A feature is shifted to mean zero if its variance is below this share of its mean square.
_FAR_SHARE = 1e-4
#: A shifted feature whose standard deviation is below this share of its mean is constant but for rounding.
_CONSTANT_SHARE = 1e-13


#: x'x (of many features its diagonal), the sum of x, and how many rows store each feature.
Moments = tuple[Floats, Floats, Ints]


@dataclass(eq=False, repr=False)
class Linear(Differentiable):
    r"""A linear function :math:`f(x) = x W + b` of the features [ILR-chapter Eq. 1.21].

    The penalty :math:`\frac{1}{2} \text{ridge} |W|^2` is added to the summed loss; b is not penalised, and left out
    with `intercept=False`. `ridge` is the
    inverse of scikit-learn's C. x may be sparse (CSR). `transformer` is a scikit-learn
    transformer (PolynomialFeatures, SplineTransformer, ...), of which a copy is fitted to the rows of the
    first fit. L-BFGS stops when no component of the mean gradient exceeds tol, in coordinates in which the
    features are uncorrelated and of equal size, or after max_iter steps (20 when it continues an earlier
    fit). `parameters` are these coordinates; W and b are `coef_` (d,
    K) and `intercept_` (K,).

    Example:
        >>> import potentia as pt
        >>> train = pt.datasets.denoising(2, (8, 8), seed=0)
        >>> crf = pt.CRF({"node": pt.Linear(ridge=0.1), "edge": pt.Linear()}).fit(train)
        >>> crf.potentials_["node"].coef_.shape, crf.potentials_["edge"].coef_.shape
        ((2, 2), (2, 4))
    """

    unit: ClassVar[Literal["row", "sparse row", "example"]] = "sparse row"
    threaded: ClassVar[bool] = True
    convex: ClassVar[bool] = True
    saved: ClassVar[Schema] = {
        **Differentiable.saved,
        "intercept": FLAG,
        "transformer_": Field(nullable=True),
        "basis_": Either(Array("f8", ("D", "r"), order="K"), Array("f8", ("D",))),
        "r": Size(lambda values: values["basis_"].shape[-1]),
        "coordinates_": Array("f8", ("r", "K"), order="K"),
        "table_": Array("f8", ("D", "K"), order="K"),
        "offset_": Array("f8", ("D",), nullable=True),
        "width": Rule(lambda values: _n_columns(values) == len(values["table_"]), "differs from that of table_"),
    }

    ridge: float = 1e-3
    max_iter: int = 200
    tol: float = 1e-6
    intercept: bool = True
    transformer: Any = None

    @property
    def coef_(self) -> Floats:
        """W (d, K), d counted after expansion."""
        return self.table_[:-1] if self.intercept else self.table_

    @property
    def intercept_(self) -> Floats:
        """b (K,), zeros without intercept."""
        return self.table_[-1] if self.intercept else np.zeros(self.n_outputs_)

    def _begin(self, problem: Problem) -> None:
        """Zero weights in a basis in which the rows' features are decorrelated."""
        check_number("ridge", self.ridge)
        self.transformer_: Any = None
        if self.transformer is not None:
            from sklearn.base import clone

            step = -(-problem.n_rows // _MAX_TRANSFORMED)
            self.transformer_ = clone(self.transformer).fit(problem.draw(slice(None, None, max(step, 1))).x)
        #: What the coordinates subtract from x, with a zero for the intercept; None if nothing.
        self.offset_: Floats | None = None
        moments = _finite(problem.sum(self._moments))
        if self.intercept and moments is not None:
            moments = self._shift(moments, problem)
        self.basis_ = _basis(moments, problem.n_features, problem.n_rows, self.ridge, self.intercept)
        self.coordinates_ = np.zeros((self.basis_.shape[-1], problem.n_outputs))
        self.table_: Floats = np.zeros((len(self.basis_), problem.n_outputs))

    def _shift(self, moments: Moments, problem: Problem) -> Moments:
        """Moments about an offset if features are far from zero: those about zero lose what such features vary by."""
        offset = _far_means(moments, problem.n_rows)
        if not offset.any():
            return moments
        self.offset_ = np.append(offset, 0.0)
        product, total, stored = problem.sum(self._moments)
        squares = product if product.ndim == 1 else product.diagonal()
        spread = squares - total**2 / problem.n_rows
        constant = (offset != 0) & (spread <= problem.n_rows * np.square(_CONSTANT_SHARE * offset))
        if not offset[~constant].any():
            self.offset_ = None
            return moments
        # only rounding is left of constants: without curvature, also of the penalty, the basis leaves them out
        total[constant] = 0.0
        if product.ndim == 2:
            product[constant] = product[:, constant] = 0.0
            product[constant, constant] = -4.0 * self.ridge
        else:
            product[constant] = -4.0 * self.ridge
        return product, total, stored

    def _moments(self, batch: Batch) -> Moments:
        """Moments of x less the offset."""
        x = self._expand(batch.x)
        sparse = hasattr(x, "tocsr")
        if sparse and not x.has_canonical_format:
            x = x.copy()
            x.sum_duplicates()
        stored = np.bincount(x.indices, minlength=x.shape[1]) if sparse else np.full(x.shape[1], len(x))
        if self.offset_ is not None:
            x = _shifted(x, self.offset_[:-1])
        total = np.array(x.sum(0), dtype=np.float64).ravel()
        with np.errstate(over="ignore", invalid="ignore"):
            if x.shape[1] > _MAX_WHITENED:
                squares = np.asarray(x.multiply(x).sum(0)).ravel() if sparse else np.einsum("ij,ij->j", x, x)
                return squares, total, stored
            product = x.T @ x
        return product.toarray() if sparse else product, total, stored

    def _expand(self, x: Any) -> Any:
        """The transformer's features of rows, or the rows themselves."""
        if self.transformer_ is None:
            return x
        try:
            return check_features(self.transformer_.transform(x), unit="sparse row")
        except ValueError as error:
            raise PotentiaError(
                f"the transformer refuses these rows: {' '.join(str(error).split()).removesuffix('.')}."
            ) from None

    def _improve(self, problem: Problem) -> tuple[float, float]:
        """L-BFGS over the coordinates of the weights."""
        return self.minimise(problem, self.max_iter, self.tol)

    def loss_and_gradient(self, problem: Problem) -> tuple[float, Floats]:
        """The summed loss, without penalty, and its gradient with respect to `parameters`."""
        loss, d_table = problem.sum(self._slope, width=self.table_.shape[0] + 3 * self.n_outputs_)
        return float(loss), self._pull_back(d_table)

    def _slope(self, batch: Batch) -> tuple[float, Floats]:
        """Loss of some rows, and its gradient with respect to W and b."""
        x = self._expand(batch.x)
        d_table = np.zeros_like(self.table_)
        if not hasattr(x, "tocsr"):
            return float(linear_loss_rows(x, self.table_, *batch.targets, d_table)), d_table
        scores = x @ self.coef_ + self.intercept_
        loss, slope = batch.loss_and_slope(scores)
        d_table[: x.shape[1]] = x.T @ slope
        if self.intercept:
            d_table[-1] = slope.sum(0)
        return loss, d_table

    def _scores(self, x: Any) -> Floats:
        """x W + b."""
        return self._expand(x) @ self.coef_ + self.intercept_

    @property
    def parameters(self) -> Floats:
        """The coordinates of W and b, as one vector."""
        return self.coordinates_.ravel().copy()

    @parameters.setter
    def parameters(self, vector: Floats) -> None:
        """W in the coordinates of the basis, flat."""
        self.coordinates_ = self._checked(vector).reshape(self.coordinates_.shape).copy()
        diagonal = self.basis_.ndim == 1
        self.table_ = (self.basis_[:, None] * self.coordinates_) if diagonal else self.basis_ @ self.coordinates_
        if self.offset_ is not None:
            self.table_[-1] -= self.offset_ @ self.table_

    def design(self, x: Any) -> Any:
        """[x, 1] (N, D) after expansion, dense or CSR; x alone without intercept."""
        features = self._expand(check_features(x, unit="sparse row"))
        if not self.intercept:
            return features
        ones = np.ones((x.shape[0], 1))
        if hasattr(features, "tocsr"):
            from scipy import sparse

            return sparse.hstack([features, ones], format="csr")
        return np.hstack([features, ones])

    def own_ridge(self, n_columns: int) -> Floats:
        """The ridge on each row of W above b, (D,); b is free."""
        ridge = np.full(n_columns, float(self.ridge))
        if self.intercept:
            ridge[-1] = 0.0
        return ridge

    def set_table(self, table: Floats) -> None:
        """Take W above b (D, K) as they are; `parameters` become the coordinates that come closest to them."""
        self.table_ = np.array(table, dtype=np.float64)
        shifted = self.table_.copy()
        if self.offset_ is not None:
            shifted[-1] += self.offset_ @ self.table_
        if self.basis_.ndim == 1:
            self.coordinates_ = shifted / self.basis_[:, None]
        else:
            self.coordinates_ = np.asarray(np.linalg.lstsq(self.basis_, shifted, rcond=None)[0], float)

    def _pull_back(self, d_table: Floats) -> Floats:
        """The gradient with respect to the coordinates from the one with respect to W and b."""
        if self.offset_ is not None:
            d_table = d_table - np.outer(self.offset_, d_table[-1])
        return (self.basis_[:, None] * d_table if self.basis_.ndim == 1 else self.basis_.T @ d_table).ravel()

    def penalty_and_gradient(self, ridge: float | None = None) -> tuple[float, Floats]:
        r""":math:`\frac{1}{2} \text{ridge} |W|^2` and its gradient with respect to the coordinates."""
        d_table = (self.ridge if ridge is None else ridge) * self.table_
        if self.intercept:
            d_table[-1] = 0.0
        return 0.5 * float((d_table * self.table_).sum()), self._pull_back(d_table)

    def _vjp(self, x: Any, d_scores: Floats) -> Floats:
        """The gradient by coordinates: that by W and b, pulled back through the basis."""
        return self._pull_back(self._d_table(x, d_scores))

    def _d_table(self, x: Any, d_scores: Floats) -> Floats:
        """The gradient with respect to W and b."""
        expanded = self._expand(x)
        d_table = np.empty_like(self.table_)
        d_table[: expanded.shape[1]] = expanded.T @ d_scores
        if self.intercept:
            d_table[-1] = np.ones(len(d_scores)) @ d_scores  # far faster than summing narrow rows
        return d_table


def _n_columns(values: dict[str, Any]) -> int:
    """Rows of W above b that the features of a saved potential need."""
    n, transformer = values["n_features_"], values["transformer_"]
    if transformer is not None and not is_transformer(transformer):
        return -1
    if transformer is not None and n <= len(values["table_"]):  # expansions have no fewer columns
        n = transformer.transform(np.zeros((1, n))).shape[1]
    return int(n + values["intercept"])


def _finite(moments: Moments | None) -> Moments | None:
    """The moments, refused where squares overflow."""
    if moments is not None:
        product, total, _ = moments
        bad = ~np.isfinite(product if product.ndim == 1 else product.diagonal()) | ~np.isfinite(total)
        if bad.any():
            raise PotentiaError(f"feature {bad.argmax()} of x holds values whose squares overflow: scale the features.")
    return moments


def _far_means(moments: Moments, n_rows: int) -> Floats:
    """Means (d,) of the features that are far from zero compared with their spread; zeros for others.

    A sparse feature is shifted only if every row stores it, so that no zero has to be stored.
    """
    product, total, stored = moments
    squares, mean = product if product.ndim == 1 else product.diagonal(), total / n_rows
    far = (stored == n_rows) & (squares - mean * total < _FAR_SHARE * squares)
    return np.where(far, mean, 0.0)


def _shifted(x: Any, offset: Floats) -> Any:
    """x less the offset, which is zero for features that some row does not store."""
    if not hasattr(x, "tocsr"):
        return x - offset
    x = x.copy()
    x.data -= offset[x.indices]
    return x


def _basis(moments: Moments | None, n_features: int, n_rows: int, ridge: float, intercept: bool) -> Floats:
    """B with (W; b) = B @ coordinates, such that B' H B is near the identity for a typical Hessian H.

    H = x'x / 4 + ridge. B is a matrix (D, r) that leaves out directions x never takes, or for very many
    features a diagonal (D,); D counts the intercept. In raw units L-BFGS would crawl; this costs one pass.
    """
    if moments is None:
        return np.ones(n_features + int(intercept))
    product, total, _ = moments
    d = len(total)
    size = d + int(intercept)
    penalty = np.append(np.full(d, ridge), np.zeros(size - d)) / n_rows
    if product.ndim == 1:
        curvature = np.append(product, np.full(size - d, n_rows)) / (4 * n_rows) + penalty
        return 1 / np.sqrt(np.where(curvature > 0, curvature, 1.0))
    hessian = np.zeros((size, size))
    hessian[:d, :d] = product
    if intercept:
        hessian[-1, :d] = hessian[:d, -1] = total
        hessian[-1, -1] = n_rows
    hessian = hessian / (4 * n_rows) + np.diag(penalty)
    scale = np.sqrt(np.diag(hessian))
    scale[scale == 0] = 1.0
    values, vectors = np.linalg.eigh(hessian / np.outer(scale, scale))
    # the signs of eigenvectors are the solver's choice: ours must not depend on the machine or the precision of x
    vectors = vectors * np.where(np.arange(1, size + 1) @ vectors < 0, -1.0, 1.0)
    taken = values > 1e-12 * values.max(initial=1e-300)
    return vectors[:, taken] / np.sqrt(values[taken]) / scale[:, None]

"""`DenseGaussian`: a pair term for every two variables, as a value of theta, or learned with its widths in a CRF."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ..base.schema import Array, Schema
from ..base.types import Floats, Ints, PotentiaError, check_number
from ..graph.tables import DenseTerm
from .base import Differentiable
from .problem import Problem

#: Limits of the logarithms of factors, and of features over the widths.
_FAR, _LARGEST = 20.0, 1e6


class DenseGaussian(DenseTerm, Differentiable):
    r"""A pair term for every two variables, for `pt.MeanField` [Kraehenbuehl and Koltun 2011].

    The score of labels a, b of variables i and j is :math:`-\text{weight} \, k(i, j) \, \text{compatibility}[a, b]`
    with :math:`k(i, j) = \exp(-|f_i - f_j|^2 / 2)`, divided by :math:`\sqrt{D_i D_j}` with `normalisation`. Its name,
    in theta or among the potentials of a CRF, must not be one of the graph's kinds.

    With features and a weight it is a value of theta. Without them it is a potential: `pt.CRF({"node": pt.Linear(),
    "dense": pt.DenseGaussian()})` learns the weight and the widths, factors of the features' own, from examples with
    `features={"node": ..., "dense": f}`, f (n_variables, d). It is trained by `pt.MarginalRisk` through mean field.

    Args:
        features: (n_variables, d), divided by the kernel's standard deviations; see `pt.features.bilateral`.
        weight: a number.
        compatibility: (L, L), the cost of two labels, symmetric; None is Potts, [a != b].
        normalisation: "symmetric", as in densecrf: :math:`D_i = \sum_j \exp(-|f_i - f_j|^2 / 2)` over all variables j,
            i included; or None.
        exact: True sums over all pairs, in time :math:`O(n^2)`; False filters by a permutohedral lattice, in linear
            time; None does so for more than 2048 variables. Gradients by the widths are then approximate, too.
        ridge: of the potential: half of it times the squared weight and the squared logarithms of the widths.

    After a fit: `weight_`, and `widths_` (d,), the standard deviations of the features as they were given.

    Example:
        >>> import potentia as pt
        >>> import numpy as np
        >>> image = np.zeros((6, 8, 3), dtype=np.uint8)
        >>> image[:, 4:] = 200
        >>> graph = pt.Graph([2] * 48, {"node": np.arange(48)[:, None]})
        >>> pairs = pt.DenseGaussian(pt.features.bilateral(image, sd_position=3, sd_colour=13), weight=5)
        >>> node = np.zeros((48, 2))
        >>> node[[0, 47]] = [[3, 0], [0, 3]]
        >>> pt.MeanField(iterations=10).infer(graph, {"node": node, "pairs": pairs}).mpm().reshape(6, 8)[2].tolist()
        [0, 0, 0, 0, 1, 1, 1, 1]
    """

    by_weight: ClassVar[bool] = True
    flat: ClassVar[str] = "vector_"
    saved: ClassVar[Schema] = {**Differentiable.saved, "vector_": Array("f8", ("d+1",))}

    def __init__(
        self,
        features: Any = None,
        weight: float | None = None,
        compatibility: Any = None,
        normalisation: str | None = "symmetric",
        exact: bool | None = None,
        *,
        ridge: float = 1e-3,
    ) -> None:
        self.features, self.weight, self.ridge = features, weight, ridge
        self.compatibility, self.normalisation, self.exact = compatibility, normalisation, exact
        if features is not None and weight is not None:
            super().__init__(features, weight, compatibility, normalisation, exact)
        elif features is not None or weight is not None:
            raise PotentiaError("DenseGaussian takes features and a weight, or as a potential neither of them.")

    def __repr__(self) -> str:
        return DenseTerm.__repr__(self) if self.weight is not None else Differentiable.__repr__(self)

    @property
    def weight_(self) -> float:
        """The weight."""
        return float(self.vector_[-1])

    @property
    def widths_(self) -> Floats:
        """Standard deviations of the kernel, (d,)."""
        return np.exp(-self.vector_[:-1])

    def check_shape(self, kind: str, shape: tuple[int, ...]) -> None:
        """Refuse a value of theta, and options that do not make one."""
        if self.weight is not None:
            raise PotentiaError(f"the potential of {kind!r} learns its weight: write pt.DenseGaussian().")
        term = DenseTerm(np.zeros((1, 1)), 0.0, self.compatibility, self.normalisation, self.exact)
        if term.compatibility is not None and len(term.compatibility) != shape[0]:
            raise PotentiaError(
                f"the compatibility of {kind!r} is for {len(term.compatibility)} labels, not {shape[0]}."
            )

    def _begin(self, problem: Problem) -> None:
        """No weight, and the widths of the features."""
        check_number("ridge", self.ridge)
        if problem.n_features == 0:
            raise PotentiaError("a DenseGaussian needs features of all variables, which the examples do not have.")
        #: Logarithms of the factors of all features, and the weight.
        self.vector_ = np.zeros(problem.n_features + 1)

    def _fit(self, problem: Problem) -> float | None:
        """Refuse a fit to rows, which are not independent of each other."""
        raise PotentiaError("a DenseGaussian is learned by pt.MarginalRisk through pt.MeanField only.")

    def _scores(self, x: Any) -> Floats:
        """No scores of variables by themselves, (n, K)."""
        return np.zeros((len(x), self.n_outputs_))

    def theta_values(self, x: Any) -> Floats:
        """Features over the widths, and the weight in a further column, (n, d + 1)."""
        # a line search may go too far
        scaled = np.clip(x[:] * np.exp(np.clip(self.vector_[:-1], -_FAR, _FAR)), -_LARGEST, _LARGEST)
        return np.column_stack([scaled, np.full(len(scaled), self.vector_[-1])])

    def as_theta(self, values: Floats, shape: tuple[int, ...], shared: bool, blocks: Ints | None = None) -> DenseTerm:
        """The term of variables with these features, without pairs between blocks of them."""
        term = DenseTerm(values[:, :-1], values[0, -1], self.compatibility, self.normalisation, self.exact)
        term.blocks, term.learned = blocks, True
        return term

    def theta_vjp(self, x: Any, d_values: Floats) -> Floats:
        """The gradient with respect to `parameters` from that with respect to `theta_values`."""
        d_scaled = (d_values * self.theta_values(x)).sum(axis=0)
        return np.append(d_scaled[:-1], d_values[:, -1].sum())

    def penalty_and_gradient(self, ridge: float | None = None) -> tuple[float, Floats]:
        """Half the ridge times the squares of the weight and of the logarithms of the widths, and its gradient."""
        ridge = self.ridge if ridge is None else ridge
        return 0.5 * ridge * float(self.vector_ @ self.vector_), ridge * self.vector_

    def _vjp(self, x: Any, d_scores: Floats) -> Floats:
        """Nothing: scores of variables by themselves do not depend on the parameters."""
        return np.zeros(self.n_parameters)

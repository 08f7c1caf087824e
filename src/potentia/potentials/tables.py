"""One table of scores for all rows."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ..base.options import check_number
from ..base.schema import Array, Rule, Schema
from ..base.types import Floats, PotentiaError
from ..kernels.logistic import linear_loss_rows
from .base import Potential
from .mlp import Differentiable
from .problem import Batch, Problem


class Constant(Differentiable):
    r"""A table :math:`f(x) = v` that does not depend on x [ILR-chapter sec. 1.9.2].

    The penalty is :math:`\frac{1}{2} \text{ridge} |v|^2`. `parameters` is v, also in `table_` (K,).
    """

    threaded: ClassVar[bool] = True
    shared: ClassVar[bool] = True
    convex: ClassVar[bool] = True
    saved: ClassVar[Schema] = {**Differentiable.saved, "table_": Array("f8", ("K",))}

    table_: Floats

    def __init__(self, ridge: float = 0.0, max_iter: int = 200, tol: float = 1e-8):
        self.ridge = ridge
        self.max_iter = max_iter
        self.tol = tol

    def _begin(self, problem: Problem) -> None:
        check_number("ridge", self.ridge)
        self.table_ = np.zeros(problem.n_outputs)

    def _improve(self, problem: Problem) -> tuple[float, float]:
        return self.minimise(problem, self.max_iter, self.tol)

    def _slope(self, batch: Batch) -> tuple[float, Floats]:
        d_table = np.zeros((1, self.n_outputs_))
        nothing = np.zeros((batch.n_rows, 0))
        return float(linear_loss_rows(nothing, self.table_[None], *batch.targets, d_table)), d_table[0]

    def _loss_of(self, batch: Batch) -> float:
        return self._slope(batch)[0]

    def _scores(self, x: Any) -> Floats:
        return np.tile(self.table_, (x.shape[0], 1))

    def design(self, x: Any) -> Floats:
        """One column of ones, (N, 1)."""
        return np.ones((x.shape[0], 1))

    def own_ridge(self, n_columns: int) -> Floats:
        """The ridge on v, (1,)."""
        return np.full(n_columns, float(self.ridge))

    def set_table(self, table: Floats) -> None:
        """Take v as a row, (1, K)."""
        self.parameters = table[0]

    @property
    def parameters(self) -> Floats:
        """The table v (K,)."""
        return self.table_.copy()

    @parameters.setter
    def parameters(self, vector: Floats) -> None:
        self.table_ = self._checked(vector).copy()

    def penalty_and_gradient(self, ridge: float | None = None) -> tuple[float, Floats]:
        r""":math:`\frac{1}{2} \text{ridge} |v|^2` and its gradient."""
        ridge = self.ridge if ridge is None else ridge
        return 0.5 * ridge * float(self.table_ @ self.table_), ridge * self.table_

    def _vjp(self, x: Any, d_scores: Floats) -> Floats:
        return d_scores.sum(0)


class Zero(Potential):
    """f(x) = 0 [ILR-chapter sec. 1.9.1]: nothing to learn."""

    threaded: ClassVar[bool] = True
    shared: ClassVar[bool] = True

    def _begin(self, problem: Problem) -> None:
        pass

    def _fit(self, problem: Problem) -> None:
        pass

    def _scores(self, x: Any) -> Floats:
        return np.zeros((x.shape[0], self.n_outputs_))

    def design(self, x: Any) -> Floats:
        """No columns, (N, 0)."""
        return np.zeros((x.shape[0], 0))

    def own_ridge(self, n_columns: int) -> Floats:
        """Nothing, (0,)."""
        return np.zeros(n_columns)

    def set_table(self, table: Floats) -> None:
        """There is nothing to set."""


class Temperature(Differentiable):
    r"""Features that are scores already, times one weight: :math:`f(x) = w x`, with one feature per state.

    For log-probabilities or logits of another model as features of variables. `Linear` would learn a matrix of weights
    and an intercept for every state, which a few labelled images cannot determine. w, an inverse temperature, is
    `parameters`, also in `weight_` (1,), and is not penalised.
    """

    threaded: ClassVar[bool] = True
    convex: ClassVar[bool] = True
    saved: ClassVar[Schema] = {
        **Differentiable.saved,
        "weight_": Array("f8", (1,)),
        "columns": Rule(
            lambda values: values["n_features_"] == values["n_outputs_"], "must be one feature per state"
        ),
    }

    weight_: Floats

    def __init__(self, max_iter: int = 200, tol: float = 1e-6):
        self.max_iter = max_iter
        self.tol = tol

    def _begin(self, problem: Problem) -> None:
        if problem.n_features != problem.n_outputs:
            raise PotentiaError(
                f"Temperature needs one feature per state: {problem.n_outputs} columns, not {problem.n_features}."
            )
        self.weight_ = np.zeros(1)

    def _improve(self, problem: Problem) -> tuple[float, float]:
        return self.minimise(problem, self.max_iter, self.tol)

    def _scores(self, x: Any) -> Floats:
        return np.multiply(x, self.weight_, dtype=np.float64)

    @property
    def parameters(self) -> Floats:
        """The weight w (1,)."""
        return self.weight_.copy()

    @parameters.setter
    def parameters(self, vector: Floats) -> None:
        self.weight_ = self._checked(vector).copy()

    def penalty_and_gradient(self, ridge: float | None = None) -> tuple[float, Floats]:
        """Nothing."""
        return 0.0, np.zeros(1)

    def _vjp(self, x: Any, d_scores: Floats) -> Floats:
        return np.array([np.einsum("ij,ij->", x, d_scores)])

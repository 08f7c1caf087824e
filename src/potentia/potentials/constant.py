"""One table of scores for all rows."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from potentia._options import check_number
from potentia._schema import Array, Schema
from potentia._types import Floats
from potentia.potentials.differentiable import Differentiable
from potentia.potentials.lbfgs import linear_loss, minimise
from potentia.potentials.problem import Problem


class Constant(Differentiable):
    """f(x) = v whatever x [ILR-chapter sec. 1.9.2]; penalty = ridge / 2 * |v|^2.

    `parameters` is v, also in `table_` (K,).
    """

    threaded: ClassVar[bool] = True
    convex: ClassVar[bool] = True
    saved: ClassVar[Schema] = {**Differentiable.saved, "table_": Array("f8", ("K",))}

    table_: Floats

    def __init__(self, ridge: float = 0.0, max_iter: int = 200, tol: float = 1e-8):
        self.ridge = ridge
        self.max_iter = max_iter
        self.tol = tol

    def _start(self, x: Any, n_outputs: int) -> None:
        check_number("ridge", self.ridge)
        self.table_ = np.zeros(n_outputs)

    def _fit(self, problem: Problem) -> float:
        return minimise(
            self, lambda: self.loss_and_gradient(problem), problem.total_weight, self.max_iter, self.tol
        )

    def loss_and_gradient(self, problem: Problem) -> tuple[float, Floats]:
        """The summed loss, without penalty, and its gradient with respect to `parameters`."""
        nothing = np.zeros((problem.n_rows, 0))
        value, gradient = linear_loss(problem, nothing, self.table_[None], True)
        return value, gradient[0]

    def _scores(self, x: Any) -> Floats:
        return np.broadcast_to(self.table_, (x.shape[0], self.n_outputs_))

    @property
    def parameters(self) -> Floats:
        """The table v (K,)."""
        return self.table_.copy()

    @parameters.setter
    def parameters(self, vector: Floats) -> None:
        self.table_ = self._checked(vector).copy()

    def penalty_and_gradient(self) -> tuple[float, Floats]:
        """ridge / 2 * |v|^2 and ridge * v."""
        return 0.5 * self.ridge * float(self.table_ @ self.table_), self.ridge * self.table_

    def _vjp(self, x: Any, d_scores: Floats) -> Floats:
        return d_scores.sum(0)

"""Scores of another model, times one weight."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from potentia._schema import Array, Rule, Schema
from potentia._types import Floats, PotentiaError
from potentia.potentials.differentiable import Differentiable
from potentia.potentials.problem import Problem


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
            lambda found: found["n_features_"] == found["n_outputs_"], "must be one feature per state"
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

"""Potentials with a flat vector of parameters."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np

from potentia._optimise import LBFGS
from potentia._options import check_count, check_number
from potentia._types import Floats, PotentiaError
from potentia.kernels.logistic import loss_rows
from potentia.potentials.base import Potential
from potentia.potentials.chunks import sum_chunks
from potentia.potentials.inputs import example_ptr
from potentia.potentials.problem import Batch, Problem, is_sparse
from potentia.potentials.validation import check_features

#: Steps of a fit that continues an earlier one: learners that alternate come back after the biases have moved.
MORE_STEPS = 20


class Differentiable(Potential):
    """A potential with parameters, for learners that follow gradients through all kinds at once.

    Use: `start`, then set `parameters`, read `scores`, and pull d loss / d scores back with `vjp`.
    """

    differentiable: ClassVar[bool] = True

    @property
    @abstractmethod
    def parameters(self) -> Floats:
        """All parameters as one vector (a copy)."""

    @parameters.setter
    @abstractmethod
    def parameters(self, vector: Floats) -> None: ...

    @abstractmethod
    def penalty_and_gradient(self, ridge: float | None = None) -> tuple[float, Floats]:
        """The penalty and its gradient with respect to `parameters`; `ridge` takes the place of the own one."""

    @abstractmethod
    def _vjp(self, x: Any, d_scores: Floats) -> Floats: ...

    @property
    def n_parameters(self) -> int:
        """Length of `parameters`."""
        return int(self.parameters.size)

    def step_size(self, rate: float) -> float:
        """Size of a stochastic learner's steps in these parameters; `rate` is the learner's."""
        return rate

    def penalty(self) -> float:
        """What the fit adds to the summed loss."""
        return self.penalty_and_gradient()[0]

    def vjp(self, x: Any, d_scores: Floats, *, trusted: bool = False) -> Floats:
        """sum_n J_n' d_scores_n, the gradient with respect to `parameters`; x (N, d), d_scores (N, K).

        `trusted`: x is a matrix, dense or CSR, known to be finite, and is not looked at again.
        """
        self._check_fitted()
        n_rows = len(d_scores)
        features = x if trusted else check_features(x, self.accepts_sparse, n_rows, self.unit)
        self._check_sizes(features.shape[1], d_scores.shape[1])
        if features.shape[0] != n_rows:
            raise PotentiaError(f"x has {features.shape[0]} rows but d_scores has {n_rows}.")

        if is_sparse(features):  # in pieces, sparse rows would each make a dense gradient
            return self._vjp(features[:], d_scores)

        def of(rows: slice) -> Floats:
            return self._vjp(features[rows], d_scores[rows])

        found = sum_chunks(of, n_rows, self._width(), self.threaded, ptr=example_ptr(features))
        return np.zeros(self.n_parameters) if found is None else np.asarray(found, dtype=np.float64)

    def theta_vjp(self, x: Any, d_values: Floats) -> Floats:
        """The gradient with respect to `parameters` from that with respect to `theta_values`."""
        return self.vjp(x, d_values, trusted=True)

    def loss_and_gradient(self, problem: Problem) -> tuple[float, Floats]:
        """The summed loss, without penalty, and its gradient with respect to `parameters`."""
        loss, slope = problem.sum(self._slope, width=self._width(), threaded=self.threaded)
        return float(loss), slope

    def minimise(self, problem: Problem, max_iter: int, tol: float) -> tuple[float, float]:
        """L-BFGS until no component of the mean gradient exceeds tol; the penalised loss before and after.

        A first fit takes at most `max_iter` steps, a further one MORE_STEPS.
        """
        check_count("max_iter", max_iter)
        check_number("tol", tol)

        def objective(vector: Floats) -> tuple[float, Floats]:
            self.parameters = vector
            value, gradient = self.loss_and_gradient(problem)
            penalty, d_penalty = self.penalty_and_gradient()
            return (value + penalty) / scale, (gradient + d_penalty) / scale

        scale = problem.total_weight
        search = LBFGS(objective, self.parameters)
        search.begin()
        before = latest = search.value
        for _ in range(max_iter if self.n_fits_ == 0 else min(max_iter, MORE_STEPS)):
            if np.abs(search.gradient).max(initial=0.0) <= tol or not search.step():
                break
            if latest - search.value <= 1e-15 * max(abs(latest), 1.0):
                break
            latest = search.value
        self.parameters = search.point
        return before * scale, search.value * scale

    def _slope(self, batch: Batch) -> tuple[float, Floats]:
        """Loss and gradient of some rows."""
        scores = np.ascontiguousarray(self._scores(batch.x), dtype=np.float64)
        residual = np.empty_like(scores)
        loss = loss_rows(scores, *batch.targets, residual)
        return float(loss), self._vjp(batch.x, residual)

    def _checked(self, vector: Floats) -> Floats:
        values = np.asarray(vector, dtype=np.float64)
        if values.shape != (self.n_parameters,):
            raise PotentiaError(f"parameters must have shape ({self.n_parameters},), got {values.shape}.")
        return values

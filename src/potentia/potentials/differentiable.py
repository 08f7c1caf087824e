"""Potentials with a flat vector of parameters."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np

from potentia._types import Floats, PotentiaError
from potentia.kernels.logistic import loss_rows
from potentia.potentials.base import Potential
from potentia.potentials.chunks import map_chunks
from potentia.potentials.problem import Batch, Problem, check_features


class Differentiable(Potential):
    """A potential with parameters, for learners that follow gradients through all kinds at once.

    Use: `start`, then set `parameters`, read `scores`, and pull d loss / d scores back with `vjp`.
    """

    #: The loss is convex in the parameters.
    convex: ClassVar[bool] = False

    @property
    @abstractmethod
    def parameters(self) -> Floats:
        """All parameters as one vector (a copy)."""

    @parameters.setter
    @abstractmethod
    def parameters(self, vector: Floats) -> None: ...

    @abstractmethod
    def penalty_and_gradient(self) -> tuple[float, Floats]:
        """The penalty and its gradient with respect to `parameters`."""

    @abstractmethod
    def _vjp(self, x: Any, d_scores: Floats) -> Floats: ...

    @property
    def n_parameters(self) -> int:
        """Length of `parameters`."""
        return int(self.parameters.size)

    def penalty(self) -> float:
        """What the fit adds to the summed loss."""
        return self.penalty_and_gradient()[0]

    def vjp(self, x: Any, d_scores: Floats, *, trusted: bool = False) -> Floats:
        """sum_n J_n' d_scores_n, the gradient with respect to `parameters`; x (N, d), d_scores (N, K).

        `trusted`: x is a matrix, dense or CSR, known to be finite, and is not looked at again.
        """
        self._check_fitted()
        n_rows = len(d_scores)
        features = x if trusted else check_features(x, self.accepts_sparse, n_rows)
        self._check_sizes(features.shape[1], d_scores.shape[1])
        if features.shape[0] != n_rows:
            raise PotentiaError(f"x has {features.shape[0]} rows but d_scores has {n_rows}.")

        if hasattr(features, "tocsr"):  # in pieces, sparse rows would each make a dense gradient
            return self._vjp(features, d_scores)

        def of(rows: slice) -> Floats:
            return self._vjp(features[rows], d_scores[rows])

        total = np.zeros(self.n_parameters)
        for piece in map_chunks(of, n_rows, self._width(), self.threaded):
            total += piece
        return total

    def loss_and_gradient(self, problem: Problem) -> tuple[float, Floats]:
        """The summed loss, without penalty, and its gradient with respect to `parameters`."""
        pieces = map_chunks(
            lambda rows: self._slope(problem.take(rows)), problem.n_rows, self._width(), self.threaded
        )
        return float(sum(loss for loss, _ in pieces)), np.sum([slope for _, slope in pieces], axis=0)

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


def is_convex(potential: Potential) -> bool:
    """Whether the loss is convex in parameters that a gradient method could move."""
    return isinstance(potential, Differentiable) and potential.convex

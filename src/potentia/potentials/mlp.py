"""A network with one hidden layer."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from potentia._types import Floats, PotentiaError
from potentia.kernels.logistic import loss_rows
from potentia.potentials.base import Differentiable
from potentia.potentials.problem import Batch, Problem


class MLP(Differentiable):
    """f(x) = W tanh(V x) by stochastic gradients with momentum [ILR-chapter sec. 1.9.5].
    """

    threaded: ClassVar[bool] = False
    weights_are_copies: ClassVar[bool] = False

    mean_: Floats
    scale_: Floats
    inner_: Floats
    outer_: Floats
    step_: Floats

    def __init__(
        self,
        hidden: int = 100,
        learning_rate: float = 0.25,
        momentum: float = 0.9,
        batch: int = 100,
        epochs: int = 5,
        ridge: float = 0.0,
        standardise: bool = True,
        seed: int = 0,
    ):
        self.hidden = hidden
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.batch = batch
        self.epochs = epochs
        self.ridge = ridge
        self.standardise = standardise
        self.seed = seed

    def _start(self, x: Any, n_outputs: int) -> None:
        d = x.shape[1]
        self.mean_, self.scale_ = np.zeros(d), np.ones(d)
        if self.standardise and len(x):
            self.mean_, spread = x.mean(0), x.std(0)
            self.scale_ = np.where(spread > 1e-12 * np.abs(self.mean_), spread, 1.0)
        rng = np.random.default_rng(self.seed)
        self.inner_ = rng.normal(size=(d + 1, self.hidden)) / np.sqrt(d + 1)
        self.outer_ = np.zeros((self.hidden + 1, n_outputs))
        self.step_ = np.zeros(self.inner_.size + self.outer_.size)

    def _hidden(self, x: Any) -> tuple[Floats, Floats]:
        inputs = np.ones((len(x), x.shape[1] + 1))
        inputs[:, :-1] = (x - self.mean_) / self.scale_
        hidden = np.ones((len(x), self.hidden + 1))
        np.tanh(inputs @ self.inner_, out=hidden[:, :-1])
        return inputs, hidden

    def _scores(self, x: Any) -> Floats:
        return self._hidden(x)[1] @ self.outer_

    def _back(self, inputs: Floats, hidden: Floats, d_scores: Floats) -> Floats:
        inner = hidden[:, :-1]
        d_hidden = d_scores @ self.outer_[:-1].T
        d_hidden *= 1.0 - inner * inner
        return np.concatenate([(inputs.T @ d_hidden).ravel(), (hidden.T @ d_scores).ravel()])

    def _vjp(self, x: Any, d_scores: Floats) -> Floats:
        return self._back(*self._hidden(x), d_scores)

    def _fit(self, problem: Problem) -> float:
        rng = np.random.default_rng([self.seed, self.n_fits_])
        total = problem.total_weight
        best, kept = np.inf, (self.parameters, self.step_)
        step = self.step_.copy()
        for _ in range(self.epochs):
            order = rng.permutation(problem.n_rows)
            for start in range(0, problem.n_rows, self.batch):
                batch = problem.take(order[start : start + self.batch])
                inputs, hidden = self._hidden(batch.x)
                scores = hidden @ self.outer_
                residual = np.empty_like(scores)
                loss_rows(scores, *batch.targets, residual)
                g = self._back(inputs, hidden, residual)
                g *= problem.n_rows/ total / len(batch.x)
                if self.ridge: g += self.penalty_and_gradient()[1] / total
                step *= self.momentum
                step += (1 - self.momentum) * g
                self.parameters = self.parameters - self.learning_rate * step
            v = self._objective(problem)
            if v < best:
                best, kept = v, (self.parameters, step.copy())
        self.parameters, self.step_ = kept
        return best

    @property
    def parameters(self) -> Floats:
        return np.concatenate([self.inner_.ravel(), self.outer_.ravel()])

    @parameters.setter
    def parameters(self, vector: Floats) -> None:
        s = self.inner_.size
        self.inner_ = vector[:s].reshape(self.inner_.shape)
        self.outer_ = vector[s:].reshape(self.outer_.shape)

    def penalty_and_gradient(self) -> tuple[float, Floats]:
        v = self.parameters
        return 0.5 * self.ridge * float(v @ v), self.ridge * v

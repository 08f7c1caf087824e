"""`MLP`: a network with one hidden layer as a potential."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..base.schema import Array, Count, Schema, Size
from ..base.types import Floats, PotentiaError, check_count, check_number
from .base import Differentiable
from .problem import Batch, Problem

#: Batches whose rows are gathered together.
_DRAWN = 256


@dataclass(eq=False, repr=False)
class MLP(Differentiable):
    r"""A network :math:`f(x) = W \tanh(V x)`, fitted by stochastic gradients with momentum [ILR-chapter sec. 1.9.5].

    The direction of a step is `momentum` times the last one plus `1 - momentum` times the mean gradient of `batch`
    rows; its length is scaled by `learning_rate`. A fit makes `epochs` passes over the rows, or over `sample` of them,
    drawn for each fit, if there are more. It starts from the fitted network and keeps the network with the lowest
    loss of all rows at the end of a pass. The chapter has batches of 100 (ILR-nips: 1000) and a rate of 0.25 for single
    variables, which are the defaults; its rate for pairs is 0.05, so pass `learning_rate=0.05` there. V and W also see
    a constant input, and features are standardised on the rows of the first fit (`standardise`). The penalty is
    :math:`\frac{1}{2} \text{ridge} (|V|^2 + |W|^2)` without the constants' weights. `parameters` is V (d + 1, hidden),
    then W (hidden + 1, K), flat, the constants' rows last; W starts at zero. `seed` determines where V starts and which
    rows are drawn.

    Example:
        >>> import potentia as pt
        >>> crf = pt.CRF({"node": pt.MLP(hidden=8, epochs=2), "edge": pt.Linear()})
        >>> crf.fit(pt.datasets.denoising(2, (8, 8), seed=0)).predict(pt.datasets.denoising(1, (8, 8), seed=1))[0].shape
        (64,)
    """

    threaded: ClassVar[bool] = True
    flat: ClassVar[str] = "weights_"
    saved: ClassVar[Schema] = {
        **Differentiable.saved,
        "hidden": Count(least=1),
        "mean_": Array("f8", ("d",)),
        "scale_": Array("f8", ("d",)),
        "n_weights": Size(
            lambda values: (
                (values["n_features_"] + 1) * values["hidden"] + (values["hidden"] + 1) * values["n_outputs_"]
            )
        ),
        "weights_": Array("f8", ("n_weights",)),
    }

    hidden: int = 100
    learning_rate: float = 0.25
    momentum: float = 0.9
    batch: int = 100
    epochs: int = 5
    ridge: float = 0.0
    standardise: bool = True
    seed: int = 0
    sample: int = 1_000_000

    def _begin(self, problem: Problem) -> None:
        """Random inner weights, zero outer ones, and the features' means and spreads."""
        check_count("hidden", self.hidden, 1)
        check_count("seed", self.seed)
        d = problem.n_features
        self.mean_, self.scale_ = np.zeros(d), np.ones(d)
        if self.standardise and problem.n_rows:
            self.mean_ = problem.sum(_total) / problem.n_rows
            spread = np.sqrt(problem.sum(_squares, self.mean_) / problem.n_rows)
            # the spread of a constant is rounding dust: dividing by it would blow up other rows
            self.scale_ = np.where(spread > 1e-12 * np.abs(self.mean_), spread, 1.0)
        rng = np.random.default_rng(self.seed)
        inner = rng.normal(size=(d + 1) * self.hidden) / np.sqrt(d + 1)
        self.weights_ = np.append(inner, np.zeros((self.hidden + 1) * problem.n_outputs))

    def check_options(self) -> None:
        """Refuse another number of hidden units than the fitted network has."""
        size = (self.n_features_ + 1) * self.hidden + (self.hidden + 1) * self.n_outputs_
        if len(self.weights_) != size:
            raise PotentiaError(f"This MLP was fitted with another number of hidden units than {self.hidden}.")

    def _layers(self, vector: Floats) -> tuple[Floats, Floats]:
        """V (d + 1, hidden) and W (hidden + 1, K) as views of a flat vector."""
        size = (len(self.mean_) + 1) * self.hidden
        return vector[:size].reshape(-1, self.hidden), vector[size:].reshape(self.hidden + 1, -1)

    def _forward(self, x: Any) -> tuple[Floats, Floats, Floats]:
        """Inputs (n, d + 1) and hidden values (n, hidden + 1), each with a constant 1, and scores (n, K)."""
        inner, outer = self._layers(self.weights_)
        inputs = np.ones((len(x), len(inner)))
        np.divide(x - self.mean_, self.scale_, out=inputs[:, :-1])
        hidden = np.ones((len(x), len(outer)))
        np.tanh(inputs @ inner, out=hidden[:, :-1])
        return inputs, hidden, hidden @ outer

    def _backward(self, inputs: Floats, hidden: Floats, d_scores: Floats) -> Floats:
        """The gradient by all weights, flat, from that by the scores; arguments are those `_forward` returned."""
        _, outer = self._layers(self.weights_)
        d_hidden = d_scores @ outer[:-1].T
        d_hidden *= 1.0 - np.square(hidden[:, :-1])
        gradient = np.empty_like(self.weights_)
        d_inner, d_outer = self._layers(gradient)
        np.matmul(inputs.T, d_hidden, out=d_inner)
        np.matmul(hidden.T, d_scores, out=d_outer)
        return gradient

    def _slope(self, batch: Batch) -> tuple[float, Floats]:
        """Loss and gradient of some rows."""
        inputs, hidden, scores = self._forward(batch.x)
        loss, slope = batch.loss_and_slope(scores)
        return loss, self._backward(inputs, hidden, slope)

    def _fit(self, problem: Problem) -> float:
        """Passes of stochastic gradient descent; keeps the network of the lowest loss of all rows."""
        for name, least in (("batch", 1), ("epochs", 1), ("seed", 0), ("sample", 1)):
            check_count(name, getattr(self, name), least)
        for name in ("learning_rate", "ridge"):
            check_number(name, getattr(self, name))
        check_number("momentum", self.momentum, 0.0, 0.999999)
        self.check_options()
        rng = np.random.default_rng([self.seed, self.n_fits_])
        best, weights = np.inf, self.weights_
        self.weights_ = self.weights_.copy()
        drawn = self._sampled(problem, rng)
        for _ in range(self.epochs):
            self._pass(drawn, rng.permutation(drawn.n_rows), problem)
            reached = self._objective(problem)
            if reached < best:
                best, weights = reached, self.weights_.copy()
        self.weights_ = weights
        return best

    def _sampled(self, problem: Problem, rng: np.random.Generator) -> Problem:
        """The rows to pass over: all, or as many as `sample`; gathered once unless all are in this process."""
        if problem.n_rows > self.sample:
            chosen = np.sort(rng.choice(problem.n_rows, self.sample, replace=False))
            return Problem.of(problem.draw(chosen).table(), problem.n_outputs)
        if problem.local:
            return problem
        return Problem.of(problem.draw(slice(None)).table(), problem.n_outputs)

    def _pass(self, drawn: Problem, order: Any, problem: Problem) -> None:
        """One pass over rows drawn in this order, changing the weights in place; momentum starts at rest."""
        step = np.zeros_like(self.weights_)
        per_row = problem.n_rows / problem.total_weight
        for batch in drawn.batches(order, self.batch, _DRAWN):
            _, gradient = self._slope(batch)
            gradient *= per_row / batch.n_rows
            if self.ridge:
                gradient += self.penalty_and_gradient()[1] / problem.total_weight
            step *= self.momentum
            step += (1 - self.momentum) * gradient
            self.weights_ -= self.learning_rate * step

    def _scores(self, x: Any) -> Floats:
        """W tanh(V x)."""
        return self._forward(x)[2]

    def _vjp(self, x: Any, d_scores: Floats) -> Floats:
        """The gradient by all weights, from that by the scores."""
        inputs, hidden, _ = self._forward(x)
        return self._backward(inputs, hidden, d_scores)

    def _width(self) -> int:
        """Numbers a row needs, hidden values included."""
        return super()._width() + 3 * self.hidden

    def penalty_and_gradient(self, ridge: float | None = None) -> tuple[float, Floats]:
        r""":math:`\frac{1}{2} \text{ridge} (|V|^2 + |W|^2)` and its gradient, without the constants' rows."""
        gradient = (self.ridge if ridge is None else ridge) * self.weights_
        for layer in self._layers(gradient):
            layer[-1] = 0.0
        return 0.5 * float(gradient @ self.weights_), gradient


def _total(batch: Batch) -> Floats:
    """The sum of some rows' features."""
    return np.asarray(batch.x.sum(0), dtype=np.float64)


def _squares(batch: Batch, mean: Floats) -> Floats:
    """The sum of squared deviations of some rows' features from their means."""
    return np.asarray(np.square(batch.x - mean).sum(0), dtype=np.float64)

"""Minimise a convex potential's penalised loss over its parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from potentia._types import Floats
from potentia.kernels.logistic import linear_loss_rows, loss_rows
from potentia.potentials.chunks import map_chunks
from potentia.potentials.differentiable import Differentiable
from potentia.potentials.problem import Batch, Problem

ValueAndGradient = tuple[float, Floats]

#: Steps of a fit that continues an earlier one: learners that alternate come back after the biases have moved.
MORE_STEPS = 20


def linear_loss(problem: Problem, x: Any, coef: Floats, intercept: bool) -> ValueAndGradient:
    """Summed loss of x @ coef and its gradient; with `intercept` the last row of coef (d + 1, K) is added."""

    def of(rows: slice) -> ValueAndGradient:
        batch = problem.take(rows)
        piece = x[rows]
        gradient = np.zeros_like(coef)
        if hasattr(piece, "tocsr"):
            return _sparse_loss(batch, piece, coef, intercept, gradient)
        return linear_loss_rows(piece, coef, *batch.targets, gradient), gradient

    parts = map_chunks(of, problem.n_rows, coef.shape[0] + 3 * coef.shape[1])
    return float(sum(value for value, _ in parts)), np.sum([gradient for _, gradient in parts], axis=0)


def _sparse_loss(batch: Batch, x: Any, coef: Floats, intercept: bool, gradient: Floats) -> ValueAndGradient:
    d = x.shape[1]
    scores = x @ coef[:d] + (coef[d] if intercept else 0.0)
    residual = np.empty_like(scores)
    value = loss_rows(scores, *batch.targets, residual)
    gradient[:d] = x.T @ residual
    if intercept:
        gradient[d] = residual.sum(0)
    return float(value), gradient


def minimise(
    potential: Differentiable,
    loss: Callable[[], ValueAndGradient],
    scale: float,
    max_iter: int,
    tol: float,
) -> float:
    """L-BFGS over potential.parameters until no mean gradient exceeds tol; returns the objective reached.

    A first fit takes at most `max_iter` steps, a further one MORE_STEPS. `loss` gives the summed loss and its
    gradient at the current parameters; both are divided by `scale`, the total weight.
    """
    from scipy.optimize import minimize

    def value_and_gradient(vector: Floats) -> ValueAndGradient:
        potential.parameters = vector
        value, gradient = loss()
        penalty, d_penalty = potential.penalty_and_gradient()
        return (value + penalty) / scale, (gradient + d_penalty) / scale

    steps = max_iter if potential.n_fits_ == 0 else min(max_iter, MORE_STEPS)
    options = {"maxiter": steps, "maxfun": 2 * steps + 20, "gtol": tol, "ftol": 1e-15, "maxcor": 20}
    found = minimize(value_and_gradient, potential.parameters, jac=True, method="L-BFGS-B", options=options)
    potential.parameters = found.x
    return float(found.fun) * scale

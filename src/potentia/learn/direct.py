"""The joint objective minimised directly: L-BFGS over all parameters, messages kept warm between evaluations.

By the envelope theorem the gradient of A(lam, theta) with respect to a table at fixed messages is its softmax, so
d objective / d f = epsilon w (softmax(f + bias) - [y]).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .._types import Floats
from ..potentials.differentiable import Differentiable
from .joint import Joint


class _StopError(Exception):
    """Raised inside the optimiser to end it."""


def minimise_directly(joint: Joint, iterations: int, tol: float, record: Callable[[], bool]) -> None:
    """L-BFGS until the objective's relative fall is below `tol` or `iterations` are done; `record` after each."""
    from scipy.optimize import minimize

    moving = [kind for kind in joint.kinds if isinstance(joint.potentials[kind], Differentiable)]
    functions: list[Differentiable] = [joint.potentials[k] for k in moving]  # type: ignore[misc]
    if not functions:  # nothing to move: the objective is what it is
        joint.pass_messages(joint.sweeps)
        record()
        return
    cuts = np.cumsum([f.n_parameters for f in functions])[:-1]

    def evaluate(vector: Floats) -> tuple[float, Floats]:
        for function, part in zip(functions, np.split(vector, cuts), strict=True):
            function.parameters = part
        joint.pass_messages(joint.sweeps)
        value, slopes = 0.0, []
        for kind in joint.kinds:
            epsilon = joint.epsilons[kind]
            loss, d_scores = joint.gradient(kind)
            joint.losses[kind] = loss
            value += epsilon * loss
            if kind in moving:
                function = functions[moving.index(kind)]
                penalty, d_penalty = function.penalty_and_gradient()
                value += epsilon * penalty
                slopes.append(epsilon * (function.vjp(joint.features(kind), d_scores) + d_penalty))
        return value, np.concatenate(slopes)

    def after(vector: Floats) -> None:
        for function, part in zip(functions, np.split(vector, cuts), strict=True):
            function.parameters = part
        if record():
            raise _StopError

    start = np.concatenate([f.parameters for f in functions])
    try:
        found = minimize(
            evaluate, start, jac=True, method="L-BFGS-B", callback=after,
            options={"maxiter": iterations, "ftol": tol, "gtol": 0.0, "maxcor": 20},
        )  # fmt: skip
    except _StopError:
        return
    for function, part in zip(functions, np.split(found.x, cuts), strict=True):
        function.parameters = part

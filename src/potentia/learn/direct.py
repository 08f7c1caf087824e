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


#: Steps over which the objective's fall is judged: a single step of L-BFGS may be short without being the last.
_WINDOW = 10


def minimise_directly(joint: Joint, iterations: int, tol: float, record: Callable[[], bool]) -> bool:
    """L-BFGS until the objective falls by less than `tol` of itself in ten steps, or `iterations` are done.

    `record` is called after each step and may stop it. Returns whether the objective has settled.
    """
    from scipy.optimize import minimize

    moving = [kind for kind in joint.kinds if isinstance(joint.potentials[kind], Differentiable)]
    functions: list[Differentiable] = [joint.potentials[k] for k in moving]  # type: ignore[misc]
    if not functions:  # nothing to move: the objective is what it is
        joint.pass_messages(joint.sweeps)
        record()
        return True
    cuts = np.cumsum([f.n_parameters for f in functions])[:-1]
    latest, values = [np.inf], list[float]()

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
        latest[0] = value
        return value, np.concatenate(slopes)

    def settled() -> bool:
        if tol == 0 or len(values) <= _WINDOW:
            return False
        return values[-1 - _WINDOW] - values[-1] <= tol * abs(values[-1 - _WINDOW])

    def after(vector: Floats) -> None:
        values.append(latest[0])
        for function, part in zip(functions, np.split(vector, cuts), strict=True):
            function.parameters = part
        if record() or settled():
            raise _StopError

    point = np.concatenate([f.parameters for f in functions])
    try:
        while len(values) < iterations:
            before = len(values)
            options = {"maxiter": iterations - before, "ftol": 1e-12, "gtol": 0.0, "maxcor": 20}
            found = minimize(evaluate, point, jac=True, method="L-BFGS-B", callback=after, options=options)
            point = found.x
            # messages move between evaluations, so a line search may fail: begin anew while that helps
            if found.success or len(values) == before:
                break
    except _StopError:
        return settled()
    evaluate(point)
    return settled() or len(values) < iterations

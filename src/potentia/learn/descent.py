"""L-BFGS over the parameters of several potentials at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .._types import Floats, PotentiaError
from ..potentials.differentiable import Differentiable


class _StopError(Exception):
    """Raised inside the optimiser to end it."""


class _DivergedError(Exception):
    """Raised inside the optimiser where parameters run away."""


class _BrokenError(Exception):
    """Raised inside the optimiser where the objective is no number, which a line search would take for a fall."""


#: Parameters beyond this are on their way to infinity: the objective has no minimum.
_FAR = 1e50


#: Steps over which the objective's fall is judged: a single step of L-BFGS may be short without being the last.
_WINDOW = 10


def descend(
    functions: Sequence[Differentiable],
    objective: Callable[[], tuple[float, list[Floats]]],
    iterations: int,
    tol: float,
    record: Callable[[], bool],
) -> bool | None:
    """Minimise until the objective falls by less than `tol` of itself in ten steps, or `iterations` are done.

    `objective` returns its value and gradients at the functions' current parameters. `record` is called after each
    step, at the parameters it reached, and may stop it. Where a line search fails or meets an objective that is no
    finite number, L-BFGS begins anew while that helps. Returns whether the objective has settled; None where parameters
    run away, as they do when it has no minimum: then those of the last step are kept.
    """
    from scipy.optimize import minimize

    cuts = np.cumsum([f.n_parameters for f in functions])[:-1]
    latest, values = [np.inf], list[float]()
    point = np.concatenate([f.parameters for f in functions])
    reached = [point]

    def move(vector: Floats) -> None:
        for function, part in zip(functions, np.split(vector, cuts), strict=True):
            function.parameters = part

    def evaluate(vector: Floats) -> tuple[float, Floats]:
        if not np.abs(vector).max(initial=0.0) <= _FAR:
            move(reached[0])
            raise _DivergedError
        move(vector)
        value, slopes = objective()
        slope = np.concatenate(slopes)
        if not (np.isfinite(value) and np.isfinite(slope).all()):
            move(reached[0])
            raise _BrokenError
        latest[0] = value
        return value, slope

    def settled() -> bool:
        if tol == 0 or len(values) <= _WINDOW:
            return False
        return values[-1 - _WINDOW] - values[-1] <= tol * abs(values[-1 - _WINDOW])

    def after(vector: Floats) -> None:
        values.append(latest[0])
        reached[0] = vector.copy()
        move(vector)
        if record() or settled():
            raise _StopError

    # pairs of steps and gradients kept: with millions of parameters they are what the time and memory go to
    memory = 20 if point.size < 500_000 else 6
    broken = False
    try:
        while len(values) < iterations:
            before = len(values)
            options = {
                "maxiter": iterations - before,
                "maxfun": 2**31 - 1,
                "ftol": 1e-12,
                "gtol": 0.0,
                "maxcor": memory,
            }
            try:
                found = minimize(
                    evaluate, point, jac=True, method="L-BFGS-B", callback=after, options=options
                )
            except _BrokenError:
                point, done, broken = reached[0], False, True
            else:
                point, done, broken = found.x, found.success, False
            if done or len(values) == before:
                break
    except _StopError:
        return settled()
    except _DivergedError:
        return None
    if broken:
        if np.isinf(latest[0]):
            raise PotentiaError("the objective is no finite number where the fit begins")
        return False
    evaluate(point)
    return settled() or len(values) < iterations

"""L-BFGS over the parameters of several potentials at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np

from .._types import ConvergenceWarning, Floats, PotentiaError
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
    past: Sequence[float] = (),
) -> bool | None:
    """Minimise until the objective falls by less than `tol` of itself in ten steps, or `iterations` are done.

    `objective` returns its value and gradients at the functions' current parameters. `record` is called after each
    step, at the parameters it reached, and may stop it. Where a line search fails or meets an objective that is no
    finite number, L-BFGS begins anew while that helps. Returns whether the objective has settled; None where parameters
    run away, as they do when it has no minimum: then those of the last step are kept. `past`: the objective after the
    steps of a fit that is taken up, which count among the iterations.
    """
    descent = _Descent(functions, objective, tol, record, past)
    steps, broken = len(past), False
    if descent.settled():
        return True
    try:
        while steps < iterations:
            success, broken = descent.minimise(iterations - steps)
            if success or len(descent.values) == steps:
                break
            steps = len(descent.values)
    except _StopError:
        return descent.settled()
    except _DivergedError:
        return None
    if broken:
        if not descent.begun:
            raise PotentiaError("the objective is no finite number where the fit begins")
        return False
    descent.evaluate(descent.point)
    return descent.settled() or len(descent.values) < iterations


def warn_unsettled(settled: bool | None, tol: float, iterations: int) -> None:
    """Warn of a fit that `descend` did not call settled; with `tol` 0 only where parameters ran away."""
    if settled is None:
        message = (
            f"the parameters ran away after {iterations} iterations: this loss seems to have no minimum here"
        )
    elif tol > 0 and not settled:
        message = f"the objective still fell by more than {tol:g} of itself after {iterations} iterations"
    else:
        return
    warnings.warn(message, ConvergenceWarning, stacklevel=4)


class _Descent:
    """Where a descent is: the parameters that the last step reached, and the objective after every step."""

    def __init__(
        self,
        functions: Sequence[Differentiable],
        objective: Callable[[], tuple[float, list[Floats]]],
        tol: float,
        record: Callable[[], bool],
        past: Sequence[float],
    ) -> None:
        self.functions, self.objective, self.tol, self.record = functions, objective, tol, record
        self.point: Floats = np.concatenate([f.parameters for f in functions])
        self.values = list(past)
        self.latest = np.inf

    @property
    def begun(self) -> bool:
        """Whether the objective was a number anywhere."""
        return bool(np.isfinite(self.latest))

    def minimise(self, steps: int) -> tuple[bool, bool]:
        """L-BFGS from where we are; whether it ended at a minimum, and whether the objective was no number."""
        from scipy.optimize import minimize

        # pairs of steps and gradients kept: with millions of parameters they are what the time and memory go to
        memory = 20 if self.point.size < 500_000 else 6
        options = {"maxiter": steps, "maxfun": 2**31 - 1, "ftol": 1e-12, "gtol": 0.0, "maxcor": memory}
        try:
            found = minimize(
                self.evaluate, self.point, jac=True, method="L-BFGS-B", callback=self._after, options=options
            )
        except _BrokenError:
            return False, True
        self.point = found.x
        return bool(found.success), False

    def evaluate(self, vector: Floats) -> tuple[float, Floats]:
        """The objective and its gradient; where there is none the functions go back to the last step."""
        if not np.abs(vector).max(initial=0.0) <= _FAR:
            self._move(self.point)
            raise _DivergedError
        self._move(vector)
        value, slopes = self.objective()
        slope = np.concatenate(slopes)
        if not (np.isfinite(value) and np.isfinite(slope).all()):
            self._move(self.point)
            raise _BrokenError
        self.latest = value
        return value, slope

    def settled(self) -> bool:
        """Whether the last steps hardly lowered the objective."""
        if self.tol == 0 or len(self.values) <= _WINDOW:
            return False
        before, now = self.values[-1 - _WINDOW], self.values[-1]
        return before - now <= self.tol * abs(before)

    def _move(self, vector: Floats) -> None:
        cuts = np.cumsum([f.n_parameters for f in self.functions])[:-1]
        for function, part in zip(self.functions, np.split(vector, cuts), strict=True):
            function.parameters = part

    def _after(self, vector: Floats) -> None:
        self.values.append(self.latest)
        self.point = vector.copy()
        self._move(vector)
        if self.record() or self.settled():
            raise _StopError

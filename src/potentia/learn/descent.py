"""L-BFGS over the parameters of several potentials at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from .._optimise import LBFGS
from .._types import Floats
from ..potentials.differentiable import Differentiable
from .learner import stuck

#: Parameters beyond this are on their way to infinity: the objective has no minimum.
_DIVERGED = 1e50
#: Vectors of at least this many parameters remember fewer steps: those are what the memory goes to.
_MANY_PARAMETERS = 500_000


class Descent:
    """Minimises an objective of several potentials, one step at a time.

    objective: its value and gradients, one per potential, at their current parameters. After `step` returned True the
    potentials have the parameters of the new point, where the objective was evaluated last.

    Attributes:
        value: the objective after the last step.
        diverged: parameters ran away, as they do where the objective has no minimum.
    """

    def __init__(
        self, functions: Sequence[Differentiable], objective: Callable[[], tuple[float, list[Floats]]]
    ) -> None:
        self.functions, self.objective = functions, objective
        point = join_parameters(functions)
        self.search = LBFGS(self._evaluate, point, 20 if point.size < _MANY_PARAMETERS else 6)
        self.diverged = False

    @property
    def value(self) -> float:
        """The objective after the last step."""
        return self.search.value

    def begin(self) -> None:
        """Evaluate the objective where the descent begins."""
        self.search.begin()

    def failure(self, steps: int, tol: float) -> str | None:
        """What to warn of after a step that gained nothing; None if the objective is at its minimum up to `tol`."""
        if self.diverged:
            return (
                f"The parameters ran away after {steps} iterations: this loss seems to have no minimum here."
            )
        return stuck(self.search, tol)

    def step(self) -> bool:
        """One step of L-BFGS; False where nothing is gained, with the potentials back at the last point."""
        before = self.search.point
        gained = self.search.step() and not self.diverged
        if not gained:
            self.search.point = before
            set_parameters(self.functions, before)
        return gained

    def _evaluate(self, vector: Floats) -> tuple[float, Floats]:
        if not np.abs(vector).max(initial=0.0) <= _DIVERGED:
            self.diverged = True
            return np.inf, np.zeros_like(vector)
        set_parameters(self.functions, vector)
        value, slopes = self.objective()
        return value, np.concatenate(slopes)

    def state(self) -> dict[str, Floats]:
        """Everything a resumed descent needs."""
        return self.search.state()

    def restore(self, arrays: Mapping[str, Floats]) -> None:
        """Take back what `state` gave."""
        self.search.restore(arrays)


def join_parameters(functions: Sequence[Differentiable]) -> Floats:
    """All parameters as one vector."""
    return np.concatenate([np.zeros(0), *(f.parameters for f in functions)])


def set_parameters(functions: Sequence[Differentiable], vector: Floats) -> None:
    """Give every function its share of a vector of all parameters."""
    cuts = np.cumsum([f.n_parameters for f in functions])[:-1]
    for function, own in zip(functions, np.split(vector, cuts), strict=True):
        function.parameters = own

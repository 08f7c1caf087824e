"""L-BFGS over the parameters of several potentials at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np

from ..base.optimise import Search, begin, lbfgs
from ..base.types import Floats
from ..potentials.mlp import Differentiable
from .base import stuck
from .joint import Joint

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
        self.search, self.memory = Search(point), 20 if point.size < _MANY_PARAMETERS else 6
        self.diverged = False

    @property
    def value(self) -> float:
        """The objective after the last step."""
        return self.search.value

    def begin(self) -> None:
        """Evaluate the objective where the descent begins."""
        self.search = begin(self.search, self._evaluate)

    def failure(self, steps: int, tol: float) -> str | None:
        """What to warn of after a step that gained nothing; None if the objective is at its minimum up to `tol`."""
        if self.diverged:
            return (
                f"The parameters ran away after {steps} iterations: this loss seems to have no minimum here."
            )
        return stuck(self.search, tol)

    def step(self) -> bool:
        """One step of L-BFGS; False where nothing is gained, with the potentials back at the last point."""
        before = self.search
        self.search = lbfgs(before, self._evaluate, self.memory)
        gained = not (self.search.stopped or self.diverged)
        if not gained:
            self.search = self.search._replace(point=before.point)
            set_parameters(self.functions, before.point)
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
        return self.search.arrays()

    def restore(self, arrays: Mapping[str, Floats]) -> None:
        """Take back what `state` gave."""
        self.search = Search.of(Search.check(arrays, self.search.point.size))


def join_parameters(functions: Sequence[Differentiable]) -> Floats:
    """All parameters as one vector."""
    return np.concatenate([np.zeros(0), *(f.parameters for f in functions)])


def set_parameters(functions: Sequence[Differentiable], vector: Floats) -> None:
    """Give every function its share of a vector of all parameters."""
    cuts = np.cumsum([f.n_parameters for f in functions])[:-1]
    for function, own in zip(functions, np.split(vector, cuts), strict=True):
        function.parameters = own


class Direct:
    """L-BFGS over the parameters of some kinds, the functions of the others fixed.

    `passing`, iterations and tolerance, is how messages are passed before each evaluation.

    Attributes:
        moving: the potentials that have parameters to move.
    """

    def __init__(self, joint: Joint, kinds: Sequence[str], passing: tuple[int, float]) -> None:
        self.joint, self.passing = joint, passing
        potentials = joint.potentials
        self.moving = {k: cast(Differentiable, potentials[k]) for k in kinds if potentials[k].differentiable}
        self.descent = Descent(list(self.moving.values()), self._objective)
        self._losses = dict(joint.losses)
        joint.parts.each("keep_messages", changes=True)

    @property
    def value(self) -> float:
        """The objective after the last step."""
        return self.descent.value

    def step(self) -> bool:
        """One step; False where nothing is gained."""
        gained = self.descent.step()
        if gained:
            self.joint.parts.each("keep_messages", changes=True)
            self._losses = dict(self.joint.losses)
        else:
            self._go_back()
        return gained

    def _go_back(self) -> None:
        """The functions have the parameters of the last step: so shall the messages and scores."""
        self._undo()
        self.joint.moved(*self.moving)
        self.joint.losses = dict(self._losses)

    def _undo(self) -> None:
        """Take the messages of the last step; `moved` for all that moves must follow."""
        self.joint.parts.each("go_back", changes=True, since="keep_messages")

    def _objective(self) -> tuple[float, list[Floats]]:
        joint = self.joint
        # always from the messages of the last step: a line search that went too far must find its way back
        self._undo()
        joint.moved(*self.moving)
        joint.pass_messages(*self.passing, measure=[kind for kind in joint.kinds if kind not in self.moving])
        value, slopes = 0.0, {}
        for kind in joint.kinds:
            epsilon = joint.epsilons[kind]
            if kind in self.moving:
                loss, slope = self.moving[kind].loss_and_gradient(joint.problem(kind))
                penalty, d_penalty = self.moving[kind].penalty_and_gradient()
                slopes[kind] = epsilon * (slope + d_penalty)
            else:
                loss, penalty = joint.loss(kind), joint.potentials[kind].penalty()
            joint.losses[kind] = loss
            value += epsilon * (loss + penalty)
        return value, [slopes[kind] for kind in self.moving]

    def close(self) -> None:
        """Let go of the messages kept for line searches."""
        self.joint.parts.each("forget_messages", changes=True)

    def state(self) -> dict[str, Floats]:
        """The optimiser's state, for a checkpoint."""
        return self.descent.state() if self.moving else {}

    def restore(self, arrays: Mapping[str, Floats]) -> None:
        """Take back what `state` gave, at messages that have been restored."""
        if self.moving:
            self.descent.restore(arrays)
        self.joint.parts.each("keep_messages", changes=True)

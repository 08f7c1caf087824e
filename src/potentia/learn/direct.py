"""The joint objective minimised directly: L-BFGS over all parameters, messages kept warm between evaluations.

By the envelope theorem the gradient of A(lam, theta) with respect to a table at fixed messages is its softmax, so
d objective / d f = epsilon w (softmax(f + bias) - [y]).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from .._types import Floats
from ..potentials.differentiable import Differentiable
from .descent import Descent
from .joint import Joint


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

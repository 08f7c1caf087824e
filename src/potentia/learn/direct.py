"""The joint objective minimised directly: L-BFGS over all parameters, messages kept warm between evaluations.

By the envelope theorem the gradient of A(lam, theta) with respect to a table at fixed messages is its softmax, so
d objective / d f = epsilon w (softmax(f + bias) - [y]).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .._types import Floats
from ..potentials.differentiable import Differentiable
from .descent import descend
from .joint import Joint


def minimise_directly(
    joint: Joint,
    kinds: Sequence[str],
    passing: tuple[int, float],
    iterations: int,
    tol: float,
    record: Callable[[float], bool],
    past: Sequence[float] = (),
) -> bool | None:
    """L-BFGS over the parameters of some kinds, the others' functions fixed.

    `passing`, iterations and tolerance, is how messages are passed before each evaluation. Ends when the objective
    falls by less than `tol` of itself in ten steps, or `iterations` are done. `record` is called with the objective
    after each step and may stop it. `past` and what is returned are those of `descend`.
    """
    moving = {k: p for k in kinds if isinstance(p := joint.potentials[k], Differentiable)}
    if not moving:  # nothing to move: the objective is what it is
        joint.pass_messages(*passing)
        if not past:
            record(joint.objective())
        return True
    latest = [0.0]
    joint.free.keep()

    def objective() -> tuple[float, list[Floats]]:
        for kind in moving:
            joint.functions.moved(kind)
        # always from the messages of the last step: a line search that went too far must find its way back
        joint.free.go_back()
        joint.pass_messages(*passing, measure=[kind for kind in joint.kinds if kind not in moving])
        value, slopes = 0.0, []
        for kind in joint.kinds:
            epsilon = joint.epsilons[kind]
            if kind in moving:
                loss, slope = moving[kind].loss_and_gradient(joint.problem(kind))
                penalty, d_penalty = moving[kind].penalty_and_gradient()
                slopes.append(epsilon * (slope + d_penalty))
            else:
                loss, penalty = joint.loss(kind), joint.potentials[kind].penalty()
            joint.losses[kind] = loss
            value += epsilon * (loss + penalty)
        latest[0] = value
        return value, slopes

    def after_step() -> bool:
        # a step ends where the objective was evaluated last
        joint.free.keep()
        return record(latest[0])

    settled = descend(list(moving.values()), objective, iterations, tol, after_step, past)
    joint.free.forget()
    for kind in moving:
        joint.functions.moved(kind)
    return settled

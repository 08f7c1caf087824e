"""What every gradient through inference shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from ..base.saving import Registered
from ..base.types import Floats, Ints, PotentiaError
from ..graph.cotangents import MarginalCotangent, Tables
from ..graph.scores import Scores
from ..inference.base import Inference, Result

#: Cotangents of a result's marginals to cotangents of its scores; to be called once.
Pull = Callable[[MarginalCotangent], Tables]

#: Tolerances below this may not be met at a fixed point, because of rounding; the residual is then compared with the
#: default tolerance.
_STRICT, _DEFAULT = 1e-10, 1e-6


class GradientError(PotentiaError):
    """A gradient that is not finite at these scores; a line search takes it for a step that went too far."""


class Gradient(Registered, ABC):
    """A way through inference: the result, and what pulls cotangents of its marginals back to scores.

    A custom gradient is a dataclass of its options that implements `solve`.
    """

    #: Inference may start from an earlier result, because the gradient is that of a fixed point.
    at_fixed_point: ClassVar[bool] = True

    @abstractmethod
    def solve(
        self, inference: Inference, scores: Scores, start: Result | None = None, cliques: bool = True
    ) -> tuple[Result, Pull]:
        """Inference, and the function that pulls cotangents of its marginals back; that is called once.

        Without `cliques` the result may lack marginals of cliques and its value (nan), for losses of variables alone.
        """

    def doubt(self, inference: Inference, result: Result) -> str | None:
        """Why the gradient at a result is inaccurate, in one sentence; None if nothing is known against it.

        What only the function of `solve` can know, it leaves in `result.memo["doubt"]`.
        """
        if self.at_fixed_point and _moving(inference, result):
            return (
                "Inference did not converge, which this gradient requires: raise the `iterations` of inference, or use "
                "gradient='truncated'."
            )
        doubt: str | None = result.memo.get("doubt")
        return doubt


def _moving(inference: Inference, result: Result) -> bool:
    """Whether marginals still change by more than the tolerance, if there is one, or the default one."""
    strict = getattr(inference, "tol", 0.0) < _STRICT
    return result.residual > _DEFAULT if strict else not result.converged


class Reverse(ABC):
    """Cotangents beside an engine: of its messages (or marginals), which iterations change, and of its scores."""

    @property
    @abstractmethod
    def pending(self) -> Floats:
        """Cotangents of what iterations change, still to be pulled back."""

    @abstractmethod
    def read(self, cotangent: MarginalCotangent) -> None:
        """Pull cotangents of the marginals of the read-out back to messages and scores."""

    @abstractmethod
    def undo(self, rounds: list[list[Ints]], slot: int, many: int = 1) -> None:
        """Undo `many` iterations of these rounds of units, of which the first is in this slot of the tape."""

    def flush(self, used: int) -> None:
        """Called before the first `used` slots of the tape are filled again."""
        return

    def pull_start(self) -> None:
        """Pull the cotangents of first messages that are functions of the scores back to the scores."""
        return

    @abstractmethod
    def tables(self) -> Tables:
        """d_theta; the cotangents are spent."""

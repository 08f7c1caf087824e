"""What every gradient through inference shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from .._registry import Registered
from ..graph.scores import Scores
from ..inference.base import Inference, Result
from ..losses.base import Pull


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

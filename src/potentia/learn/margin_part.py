"""`MarginPart`: what cutting planes of the structural SVM ask of some examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._types import Floats
from ..inference.base import Inference
from ..kernels.frank_wolfe import assemble
from ..potentials.base import Potential
from .margin_oracle import make_oracle
from .margin_problem import Block, MarginProblem, make_delta
from .margin_solvers import answers
from .part import Part


@dataclass(frozen=True)
class MarginSettings:
    """What every part needs to know: begun potentials, Delta, the ridge, the number of all examples, the method."""

    potentials: Mapping[str, Potential]
    delta: Any
    ridge: float
    n_examples: int
    method: Inference


class MarginPart(Part):
    """A part with its flat arrays and its oracle."""

    def begin(self, settings: MarginSettings) -> None:
        """Make the flat arrays."""
        self.settings = settings
        delta = make_delta(self, settings.delta)
        self.problem = MarginProblem(settings.potentials, self, delta, settings.ridge, settings.n_examples)
        self.oracle = make_oracle(self.problem, settings.method, None)

    def layout(self) -> tuple[Floats, dict[str, Block]]:
        """eta of all parameters, and where each kind's parameters are; the same for all parts."""
        nowhere = np.zeros(0, np.int64)
        return self.problem.eta, {k: b._replace(at=nowhere) for k, b in self.problem.blocks.items()}

    def sizes(self) -> tuple[float, float]:
        """Number of scores, and the summed Delta of the examples' own labels."""
        return float(len(self.problem.design.truth)), float(self.problem.true_loss.sum())

    def plane(self, w: Floats) -> tuple[Floats, float, float]:
        """The slope that the examples' answers at w make, their summed loss and their summed Delta."""
        s, delta, losses = answers(self.problem, self.oracle, w)
        slope = np.empty_like(w)
        assemble(self.problem.design, s, slope)
        return slope, float(losses.sum()), float(delta.sum())

    def suspend(self) -> tuple[dict[str, Any], dict[str, Floats]]:
        """The settings: all else follows from them."""
        small, arrays = super().suspend()
        return small | ({"settings": self.settings} if hasattr(self, "settings") else {}), arrays

    def resume(self, small: Mapping[str, Any], arrays: Mapping[str, Floats]) -> None:
        """Take back what `suspend` gave."""
        super().resume(small, arrays)
        if "settings" in small:
            self.begin(small["settings"])

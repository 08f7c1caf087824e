"""The risk of what inference predicts, part by part, as a function of the potentials' parameters [MBL-tpami]."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from .._memory import borrow_zeros
from .._threads import map_items, thread_count
from .._types import Floats
from ..adjoint.gradient import Gradient, Memory, evaluate, gradient_of
from ..data.example import Example
from ..graph.scores import Scores
from ..inference.base import Inference
from ..losses.base import Loss
from ..losses.names import loss_of
from ..potentials.base import Potential
from ..potentials.differentiable import Differentiable
from .dataset import Dataset
from .part import Part, whole_kinds

if TYPE_CHECKING:
    from .risk import MarginalRisk


@dataclass(frozen=True)
class RiskSettings:
    """What every part needs to know to evaluate the loss of its examples."""

    loss: Loss
    inference: Inference
    clamped: Inference | None
    gradient: Gradient
    threads: int


class RiskPart(Part):
    """A part that evaluates the loss of its examples and its gradient."""

    def begin(self, settings: RiskSettings) -> None:
        """Nothing is remembered of earlier inference."""
        self.settings = settings
        self.inference, self.clamped = settings.inference, settings.clamped
        if len(self.shards) > 1:
            # shards are what threads share out: work inside one takes one
            self.inference = self.inference.on_one_thread()
            self.clamped = None if self.clamped is None else self.clamped.on_one_thread()
        # what is run to convergence may start where it ended for the parameters before
        converging = self.inference.iterative and getattr(self.inference, "tol", 0.0) > 0
        warm = converging and settings.gradient.at_fixed_point
        self.memories = [Memory() if warm else None for _ in self.shards]

    def evaluate(self, potentials: Mapping[str, Potential]) -> tuple[float, dict[str, Floats]]:
        """The summed loss, and its gradient for each kind that has parameters."""
        scores = {kind: self._scores(kind, potentials[kind]) for kind in self.shapes}
        d_scores = {kind: borrow_zeros(table.shape) for kind, table in scores.items()}
        numbers = range(len(self.shards))
        shared: dict[str, Floats] = {}
        value = 0.0
        for loss, d_shared in map_items(
            lambda number: self._of_shard(number, scores, d_scores), numbers, self.settings.threads
        ):
            value += loss
            for kind, slope in d_shared.items():
                shared[kind] = shared[kind] + slope if kind in shared else slope
        slopes = {}
        for kind in self.shapes:
            potential = potentials[kind]
            if isinstance(potential, Differentiable):
                one = kind in shared
                x = np.zeros((1, self.matrix(kind).shape[1])) if one else self.matrix(kind)
                slopes[kind] = potential.vjp(x, shared[kind] if one else d_scores[kind], trusted=True)
        return value, slopes

    def _scores(self, kind: str, potential: Potential) -> Floats:
        """f of all rows, or of one where all are equal."""
        return self.function(kind, slice(None), potential)

    def _of_shard(
        self, number: int, scores: Mapping[str, Floats], d_scores: Mapping[str, Floats]
    ) -> tuple[float, dict[str, Floats]]:
        """The loss of a shard and the gradient of tables that all rows share; fills its rows of d_scores."""
        shard = self.shards[number]
        theta, settings = {}, self.settings
        for kind, scope in shard.graph.scopes.items():
            if len(scope):
                one, shape = len(scores[kind]) < self.n_rows(kind), self.shapes[kind]
                table = scores[kind] if one else scores[kind][shard.rows[kind]]
                theta[kind] = table.reshape(shape) if one else table.reshape(len(table), *shape)
        value, d_theta = evaluate(
            settings.loss, self.inference, settings.gradient, Scores(shard.graph, theta), shard.labels,
            shard.weights, self.clamped, self.memories[number],
        )  # fmt: skip
        d_shared = {}
        for kind in theta:
            if len(scores[kind]) < self.n_rows(kind):
                d_shared[kind] = d_theta[kind].reshape(1, -1)
            else:
                part = d_scores[kind][shard.rows[kind]]
                part[...] = d_theta[kind].reshape(part.shape)
        return value, d_shared

    def state(self) -> dict[str, Floats]:
        """Where inference starts next, for a checkpoint."""
        return {
            f"{number}/{name}": array
            for number, memory in enumerate(self.memories)
            if memory is not None
            for name, array in memory.state().items()
        }

    def restore(self, arrays: Mapping[str, Floats]) -> None:
        """Take back what `state` gave."""
        for number, memory in enumerate(self.memories):
            if memory is not None:
                head = f"{number}/"
                memory.restore({k.removeprefix(head): v for k, v in arrays.items() if k.startswith(head)})


class Risk:
    """The objective on some examples: call it for its value and gradients at the potentials' current parameters.

    `total` is the weight of the labelled variables. A kind that the examples lack has its penalty only.
    """

    def __init__(
        self, potentials: Mapping[str, Potential], examples: Sequence[Example], options: MarginalRisk
    ) -> None:
        self.potentials, self.ridge = potentials, options.ridge
        self.data = Dataset.of(examples, list(potentials), RiskPart, whole=whole_kinds(potentials))
        settings = RiskSettings(
            loss_of(options.loss), options.predictor([]), options.clamped, gradient_of(options.gradient),
            thread_count(options.threads),
        )  # fmt: skip
        self.data.parts.each("begin", settings, changes=True)
        self.total = float(self.data.parts.total("labelled_weight"))

    @property
    def functions(self) -> list[Differentiable]:
        """The potentials that have parameters."""
        return [cast(Differentiable, p) for p in self.potentials.values() if p.differentiable]

    @property
    def _summed_ridge(self) -> float | None:
        return None if self.ridge is None else self.ridge * self.total

    def begin(self) -> list[str]:
        """Make zero functions of potentials that were never fitted; their kinds."""
        fresh = [kind for kind, p in self.potentials.items() if not p.is_fitted]
        for kind in fresh:
            own = self._penalised(self.potentials[kind])
            self._adopt(kind, own.begin(self.data.problem(kind)))
        return fresh

    def fit_independently(self, kinds: Sequence[str]) -> None:
        """Plain logistic regressions of the kinds of single variables."""
        for kind in kinds:
            if len(self.data.shapes[kind]) == 1 and self.potentials[kind].differentiable:
                problem = self.data.problem(kind, labelled=True)
                if problem.n_rows:
                    self._adopt(kind, self._penalised(self.potentials[kind]).fit_problem(problem))

    def _penalised(self, potential: Potential) -> Potential:
        """A copy with the learner's ridge in place of its own."""
        own = copy.copy(potential)
        if self._summed_ridge is not None and "ridge" in own.get_params(deep=False):
            own.set_params(ridge=self._summed_ridge)
        return own

    def _adopt(self, kind: str, fitted: Potential) -> None:
        self.potentials[kind].__dict__.update(fitted._fitted())

    def __call__(self) -> tuple[float, list[Floats]]:
        """Risk per variable plus penalties, and its gradient for each of `functions`."""
        for kind in self.data.shapes:
            self.potentials[kind].ready(self.data.n_rows(kind))
        value, slopes = self.data.parts.total("evaluate", self.potentials, changes=True)
        found = []
        for kind, potential in self.potentials.items():
            if isinstance(potential, Differentiable):
                penalty, slope = potential.penalty_and_gradient(self._summed_ridge)
                value += penalty
                found.append((slope + slopes[kind] if kind in slopes else slope) / self.total)
        return value / self.total, found

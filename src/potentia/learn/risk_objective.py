"""The risk of what inference predicts, part by part, as a function of the potentials' parameters [MBL-tpami]."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from ..base.memory import borrow_zeros
from ..base.schema import prefixed
from ..base.threads import map_items, thread_count
from ..base.types import Floats
from ..gradients.base import GradientError
from ..gradients.entry import Gradient, evaluate, gradient_of
from ..gradients.loss import Loss, check_starts
from ..gradients.losses import loss_of
from ..graph.scores import Scores
from ..inference.base import Inference
from ..potentials.base import Potential
from ..potentials.mlp import Differentiable
from ..potentials.problem import RowKey, Rows
from .data import Dataset
from .examples import observed
from .part import Part

if TYPE_CHECKING:
    from .risk import MarginalRisk


@dataclass(frozen=True)
class RiskSettings:
    """What every part needs to know to evaluate the loss of its examples."""

    loss: Loss
    inference: Inference
    clamped: Inference | None
    gradient: Gradient
    threads: int | None

    @property
    def warm(self) -> bool:
        """Whether inference, run to convergence, may start where it ended for the parameters before."""
        converging = self.inference.iterative and getattr(self.inference, "tol", 0.0) > 0
        return converging and self.gradient.at_fixed_point


#: The summed loss, its gradient for each kind that has parameters, and doubts as in `Risk`.
PartRisk = tuple[float, dict[str, Floats], dict[str, int]]


class _Evaluator:
    """The loss of a part's examples and its gradient, with what inference remembers between evaluations."""

    def __init__(self, part: Part, settings: RiskSettings) -> None:
        self.part, self.settings = part, settings
        self.inference, self.clamped = settings.inference, settings.clamped
        if len(part.shards) > 1:
            # shards are what threads share out: work inside one takes one
            self.inference = self.inference.on_one_thread()
            self.clamped = None if self.clamped is None else self.clamped.on_one_thread()
        #: Of every shard, where its inference starts next; None if every evaluation starts cold.
        self.starts: list[dict[str, Floats] | None] = [{} if settings.warm else None for _ in part.shards]

    def evaluate(self, potentials: Mapping[str, Potential]) -> PartRisk:
        """The summed loss and its gradient; an infinite loss has none."""
        part = self.part
        scores = {kind: part.numbers(kind, slice(None), potentials[kind]) for kind in part.shapes}
        d_scores = {kind: borrow_zeros(table.shape) for kind, table in scores.items()}
        numbers = range(len(part.shards))
        shared: dict[str, Floats] = {}
        value, doubts = 0.0, Counter[str]()
        for loss, d_shared, doubt in map_items(
            lambda number: self._of_shard(number, potentials, scores, d_scores),
            numbers,
            thread_count(self.settings.threads),
        ):
            value += loss
            doubts.update([] if doubt is None else [doubt])
            for kind, slope in d_shared.items():
                shared[kind] = shared[kind] + slope if kind in shared else slope
        slopes = {}
        for kind in part.shapes if np.isfinite(value) else ():
            potential = potentials[kind]
            if isinstance(potential, Differentiable):
                one = kind in shared
                x = np.zeros((1, part.matrix(kind).shape[1])) if one else part.matrix(kind)
                d_own = shared[kind] if one else d_scores[kind]
                slopes[kind] = potential.theta_vjp(x, d_own)
        return value, slopes, dict(doubts)

    def _of_shard(
        self,
        number: int,
        potentials: Mapping[str, Potential],
        scores: Mapping[str, Floats],
        d_scores: Mapping[str, Floats],
    ) -> tuple[float, dict[str, Floats], str | None]:
        """The loss of a shard, the gradient of tables that all rows share and a doubt; fills its rows of d_scores."""
        part, settings = self.part, self.settings
        shard = part.shards[number]
        theta = {}
        for kind, scope in shard.graph.scopes.items():
            if len(scope):
                one = len(scores[kind]) < part.n_rows(kind)
                table = scores[kind] if one else scores[kind][shard.rows[kind]]
                theta[kind] = part.theta_of(kind, potentials[kind], table, one)
        try:
            value, d_theta, doubt, self.starts[number] = evaluate(
                settings.loss, self.inference, settings.gradient, Scores(shard.graph, theta), shard.labels,
                shard.weights, self.clamped, self.starts[number],
            )  # fmt: skip
        except GradientError as error:
            return np.inf, {}, str(error)
        d_shared = {}
        for kind in theta:
            if len(scores[kind]) < part.n_rows(kind):
                d_shared[kind] = d_theta[kind].reshape(1, -1)
            else:
                own = d_scores[kind][shard.rows[kind]]
                own[...] = d_theta[kind].reshape(own.shape)
        return value, d_shared, doubt

    def state(self) -> dict[str, Floats]:
        """Where inference starts next."""
        return {
            f"{number}/{name}": array
            for number, starts in enumerate(self.starts)
            for name, array in (starts or {}).items()
        }

    def restore(self, arrays: Mapping[str, Floats]) -> None:
        """Take back what `state` gave."""
        if self.settings.warm:
            self.starts = [
                check_starts(shard.graph, prefixed(arrays, f"{number}/"))
                for number, shard in enumerate(self.part.shards)
            ]


class Stage(NamedTuple):
    """Which examples of a part take part: the first `limit`; `first` is the number of the part's first example.

    Batch b of `n_batches` has every example whose number leaves b when divided by n_batches.
    """

    first: int
    limit: int
    n_batches: int = 1

    def of_batch(self, batch: int) -> list[int]:
        """The part's examples of a batch."""
        return [i for i in range(self.limit) if (self.first + i) % self.n_batches == batch]


class RiskPart(Part):
    """A part that evaluates the loss of some of its examples and its gradient."""

    def firsts(self) -> tuple[dict[str, int], int | None]:
        """The first example that has a kind, of every kind, and the first with a labelled variable."""
        kinds: dict[str, int] = {}
        for number, example in enumerate(self.examples):
            for kind, scope in example.graph.scopes.items():
                if len(scope):
                    kinds.setdefault(kind, number)
        return kinds, next((i for i, e in enumerate(self.examples) if observed(e).any()), None)

    def begin(self, stage: Stage, settings: RiskSettings) -> None:
        """Nothing is remembered of earlier inference."""
        self.stage, self.settings = stage, settings
        self.chosen = self._select(range(stage.limit))
        self.batches = [self.chosen]
        if stage.n_batches > 1:
            self.batches = [self._select(stage.of_batch(b)) for b in range(stage.n_batches)]

    def _select(self, numbers: Sequence[int]) -> _Evaluator:
        """An evaluator of some of the examples."""
        if len(numbers) == len(self.examples):
            return _Evaluator(self, self.settings)
        chosen = Part([self.examples[i] for i in numbers], self.kinds, whole=self.whole)
        if self.is_weighted() and not chosen.is_weighted():
            chosen.fill_weights()
        return _Evaluator(chosen, self.settings)

    def rows(self, key: RowKey) -> Rows:
        """The rows of the examples that take part."""
        part = self.chosen.part
        return super().rows(key) if part is self else part.rows(key)

    def weight_of(self, batch: int) -> float:
        """Total weight of the labelled variables of a batch."""
        return self.batches[batch].part.labelled_weight()

    def evaluate(self, potentials: Mapping[str, Potential], batch: int) -> PartRisk:
        """The summed loss of a batch and its gradient."""
        return self.batches[batch].evaluate(potentials)

    def state(self) -> dict[str, Floats]:
        """Where inference starts next, for a checkpoint."""
        return {
            f"{batch}/{name}": array
            for batch, own in enumerate(self.batches)
            for name, array in own.state().items()
        }

    def restore(self, arrays: Mapping[str, Floats]) -> None:
        """Take back what `state` gave."""
        for batch, own in enumerate(self.batches):
            own.restore(prefixed(arrays, f"{batch}/"))

    def suspend(self) -> tuple[dict[str, Any], dict[str, Floats]]:
        """Which examples take part, and where inference starts next."""
        small, arrays = super().suspend()
        if hasattr(self, "settings"):
            return small | {"begun": (self.stage, self.settings)}, arrays | self.state()
        return small, arrays

    def resume(self, small: Mapping[str, Any], arrays: Mapping[str, Floats]) -> None:
        """Take back what `suspend` gave."""
        super().resume(small, arrays)
        if "begun" in small:
            self.begin(*small["begun"])
            self.restore(arrays)


class Risk:
    """The objective on the first examples: call it for its value and gradients at the potentials' current parameters.

    `doubts` are sentences on what makes the last ones inaccurate, with the number of graphs of which they are true.
    `total` is the weight of the labelled variables, `totals` that of each batch. A kind that the examples lack has its
    penalty only.
    """

    def __init__(
        self,
        potentials: Mapping[str, Potential],
        data: Dataset,
        options: MarginalRisk,
        number: int,
        n_batches: int = 1,
    ) -> None:
        self.potentials, self.ridge, self.data = potentials, options.ridge, data
        for kind, shape in data.shapes.items():
            potentials[kind].check_shape(kind, shape)
        self.settings = RiskSettings(
            loss_of(options.loss), options.predictor([]), options.clamped, gradient_of(options.gradient),
            options.threads,
        )  # fmt: skip
        starts = [0, *itertools.accumulate(data.n_given)]
        stages = [
            Stage(first, min(max(number - first, 0), size), n_batches)
            for first, size in zip(starts, data.n_given, strict=False)
        ]
        data.parts.each("begin", self.settings, own=stages, changes=True)
        self.totals = [float(data.parts.total("weight_of", batch)) for batch in range(n_batches)]
        self.total = float(sum(self.totals))
        self.doubts: dict[str, int] = {}

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
        """A copy that uses the learner's ridge."""
        own = copy.copy(potential)
        if self._summed_ridge is not None and "ridge" in own.get_params(deep=False):
            own.set_params(ridge=self._summed_ridge)
        return own

    def _adopt(self, kind: str, fitted: Potential) -> None:
        self.potentials[kind].__dict__.update(fitted._fitted())

    def __call__(self, batch: int = 0) -> tuple[float, list[Floats]]:
        """Risk per variable of a batch plus penalties, and its gradient for each of `functions`."""
        total = self.totals[batch]
        for kind in self.data.shapes:
            self.potentials[kind].ready(self.data.n_rows(kind))
        found_in = self.data.parts.total("evaluate", self.potentials, batch, changes=self.settings.warm)
        value, slopes, self.doubts = found_in
        found = []
        for kind, potential in self.potentials.items():
            if isinstance(potential, Differentiable):
                ridge = None if self.ridge is None else self.ridge * total
                penalty, slope = potential.penalty_and_gradient(ridge)
                value += penalty
                found.append((slope + slopes[kind] if kind in slopes else slope) / total)
        return value / total, found

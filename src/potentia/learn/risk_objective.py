"""The risk of what inference predicts, part by part, as a function of the potentials' parameters [MBL-tpami]."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..base.backend import tree_total
from ..base.memory import borrow_zeros
from ..base.schema import prefixed
from ..base.threads import map_items, thread_count
from ..base.types import Floats
from ..gradients.base import Gradient, GradientError, Loss, Methods, check_starts
from ..gradients.entry import gradient_of
from ..gradients.losses import loss_of
from ..graph.scores import Scores
from ..inference.base import Inference
from ..potentials.base import Potential
from ..potentials.mlp import Differentiable
from ..potentials.problem import Rows
from .data import Dataset
from .examples import observed
from .part import Part

if TYPE_CHECKING:
    from .risk import MarginalRisk

PartState = Mapping[str, Any]


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

    def on_one_thread(self) -> RiskSettings:
        """The same with inference on one thread, where threads share out the shards."""
        clamped = None if self.clamped is None else self.clamped.on_one_thread()
        return replace(self, inference=self.inference.on_one_thread(), clamped=clamped)


#: The summed loss, its gradient for each kind that has parameters, and how many graphs each doubt is true of.
PartRisk = tuple[float, dict[str, Floats], dict[str, int]]


class Stage(NamedTuple):
    """Which examples of a part take part: the first `limit`; `first` is the number of the part's first example.

    Batch b of `n_batches` has every example whose number leaves b when divided by n_batches.
    """

    first: int
    limit: int
    n_batches: int = 1

    def chosen(self, batch: int | None) -> list[int]:
        """The part's examples of a batch, or of all batches."""
        own = range(self.limit)
        return [i for i in own if batch is None or (self.first + i) % self.n_batches == batch]


# -- functions of a part and its state -------------------------------------------------------------------------
# A state has the settings, the stage, and per batch and shard what inference starts from next, where it does.


def first_examples(part: Part, state: PartState) -> tuple[PartState, tuple[dict[str, int], int | None]]:
    """The first example that has a kind, of every kind, and the first with a labelled variable."""
    kinds: dict[str, int] = {}
    for number, example in enumerate(part.examples):
        for kind, scope in example.graph.scopes.items():
            if len(scope):
                kinds.setdefault(kind, number)
    return state, (kinds, next((i for i, e in enumerate(part.examples) if observed(e).any()), None))


def open_stage(
    part: Part, state: PartState, stage: Stage, settings: RiskSettings
) -> tuple[PartState, Floats]:
    """Nothing is remembered of earlier inference; the weight of the labelled variables of each batch."""
    new = {"settings": settings, "stage": stage}
    weights = [_chosen(part, new, batch).labelled_weight() for batch in range(stage.n_batches)]
    return new, np.array(weights)


def _chosen(part: Part, state: PartState, batch: int | None) -> Part:
    """The examples of a batch, or of all batches, as a part."""
    stage: Stage = state["stage"]
    numbers = stage.chosen(batch)
    if len(numbers) == len(part.examples):
        return part
    batches = part.cached("batches", dict[tuple[Stage, int | None], Part])
    if any(key[0] != stage for key in batches):
        batches.clear()
    if (stage, batch) not in batches:
        batches[stage, batch] = Part([part.examples[i] for i in numbers], part.kinds, whole=part.whole)
    return batches[stage, batch]


def chosen_rows(part: Part, state: PartState, kind: str, labelled: bool = False) -> Rows:
    """The rows of a kind of the examples that take part, or those of them whose variables all have labels."""
    table = _chosen(part, state, None).rows(kind)
    if not labelled or np.all(table.labels >= 0):
        return table
    return table.take(np.flatnonzero(table.labels >= 0)).table()


def evaluate_batch(
    part: Part, state: PartState, potentials: Mapping[str, Potential], batch: int
) -> tuple[PartState, PartRisk]:
    """The summed loss of a batch and its gradient; an infinite loss has none."""
    settings: RiskSettings = state["settings"]
    chosen = _chosen(part, state, batch)
    starts: list[dict[str, Floats] | None] = [
        prefixed(state, f"{batch}/{number}/") if settings.warm else None
        for number in range(len(chosen.shards))
    ]
    risk = _evaluate(chosen, settings, potentials, starts)
    if not settings.warm:
        return state, risk
    named = {
        f"{batch}/{number}/{name}": array
        for number, arrays in enumerate(starts)
        for name, array in (arrays or {}).items()
    }
    others = {name: value for name, value in state.items() if not name.startswith(f"{batch}/")}
    return {**others, **named}, risk


def _evaluate(
    part: Part,
    settings: RiskSettings,
    potentials: Mapping[str, Potential],
    starts: list[dict[str, Floats] | None],
) -> PartRisk:
    """The summed loss of a part's examples and its gradient; `starts` of the shards become their next ones."""
    scores = {kind: part.numbers(kind, slice(None), potentials[kind], {}) for kind in part.shapes}
    d_scores = {kind: borrow_zeros(table.shape) for kind, table in scores.items()}
    if len(part.shards) > 1:
        settings = settings.on_one_thread()
    shared: dict[str, Floats] = {}
    value, doubts = 0.0, Counter[str]()

    def of(number: int) -> tuple[float, dict[str, Floats], str | None]:
        return _of_shard(part, number, settings, potentials, scores, d_scores, starts)

    for loss, d_shared, doubt in map_items(of, range(len(part.shards)), thread_count(settings.threads)):
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
            slopes[kind] = potential.theta_vjp(x, shared[kind] if one else d_scores[kind])
    return value, slopes, dict(doubts)


def _of_shard(
    part: Part,
    number: int,
    settings: RiskSettings,
    potentials: Mapping[str, Potential],
    scores: Mapping[str, Floats],
    d_scores: Mapping[str, Floats],
    starts: list[dict[str, Floats] | None],
) -> tuple[float, dict[str, Floats], str | None]:
    """The loss of a shard, the gradient of tables that all rows share and a doubt; fills its rows of d_scores."""
    shard = part.shards[number]
    theta = {}
    for kind, scope in shard.graph.scopes.items():
        if len(scope):
            one = len(scores[kind]) < part.n_rows(kind)
            table = scores[kind] if one else scores[kind][shard.rows[kind]]
            theta[kind] = potentials[kind].as_theta(table, part.shapes[kind], one)
    methods = Methods(settings.inference, settings.gradient, settings.clamped, starts[number])
    try:
        value, d_theta = settings.loss.evaluate(
            Scores(shard.graph, theta), shard.labels, shard.weights, methods
        )
    except GradientError as error:
        return np.inf, {}, str(error)
    starts[number] = methods.next_starts()
    d_shared = {}
    for kind in theta:
        if len(scores[kind]) < part.n_rows(kind):
            d_shared[kind] = d_theta[kind].reshape(1, -1)
        else:
            own = d_scores[kind][shard.rows[kind]]
            own[...] = d_theta[kind].reshape(own.shape)
    return value, d_shared, methods.doubt()


def saved_starts(part: Part, state: PartState) -> tuple[PartState, dict[str, Floats]]:
    """Where inference starts next, for a checkpoint."""
    return state, {name: array for name, array in state.items() if name not in ("settings", "stage")}


def restored_starts(part: Part, state: PartState, saved: Mapping[str, Any]) -> tuple[PartState, None]:
    """The state with what `saved_starts` gave."""
    stage: Stage = state["stage"]
    starts: dict[str, Any] = {}
    for batch in range(stage.n_batches):
        for number, shard in enumerate(_chosen(part, state, batch).shards):
            head = f"{batch}/{number}/"
            checked = check_starts(shard.graph, prefixed(saved, head))
            starts |= {f"{head}{name}": array for name, array in checked.items()}
    return {**starts, "settings": state["settings"], "stage": stage}, None


# -- the objective ---------------------------------------------------------------------------------------------


class Risk(NamedTuple):
    """The risk per labelled variable of the first examples, plus penalties.

    Attributes:
        ridge: relative to the risk per variable; None for the ridge of the potentials.
        totals: weight of the labelled variables of each batch.
    """

    data: Dataset
    ridge: float | None
    totals: Floats

    def begin(
        self, states: Any, potentials: Mapping[str, Potential], independent: bool
    ) -> dict[str, Potential]:
        """Zero functions of potentials that were never fitted, or plain logistic regressions of single variables."""
        found = dict(potentials)
        for kind, potential in potentials.items():
            if potential.is_fitted:
                continue
            problem = self.data.selection(kind, partial(chosen_rows, kind=kind), states)
            own = self._penalised(potential).begin(problem)
            if independent and len(self.data.shapes[kind]) == 1 and potential.differentiable:
                rows_of = partial(chosen_rows, kind=kind, labelled=True)
                labelled = self.data.selection(kind, rows_of, states)
                if labelled.n_rows:
                    own.fit_problem(labelled)
            found[kind] = copy.copy(potential)
            found[kind].__dict__.update(own._fitted())
        return found

    def _penalised(self, potential: Potential) -> Potential:
        """A copy that uses the learner's ridge."""
        own = copy.copy(potential)
        if self.ridge is not None and "ridge" in own.get_params(deep=False):
            own.set_params(ridge=self.ridge * float(sum(self.totals.tolist())))
        return own

    def __call__(
        self, states: Any, potentials: Mapping[str, Potential], batch: int = 0
    ) -> tuple[float, Floats, Any, dict[str, int]]:
        """The risk of a batch, its gradient for all parameters, new states, and doubts.

        Doubts are sentences on what makes value or gradient inaccurate, with the number of graphs of which they are
        true. A kind that the examples lack has its penalty only.
        """
        total = float(self.totals[batch])
        for kind in self.data.shapes:
            potentials[kind].ready(self.data.n_rows(kind))
        states, found = self.data.parts.total(evaluate_batch, states, potentials, batch)
        value, slopes, doubts = found
        gradients = [np.zeros(0)]
        for kind, potential in potentials.items():
            if isinstance(potential, Differentiable):
                ridge = None if self.ridge is None else self.ridge * total
                penalty, slope = potential.penalty_and_gradient(ridge)
                value += penalty
                gradients.append((slope + slopes[kind] if kind in slopes else slope) / total)
        return value / total, np.concatenate(gradients), states, doubts


def open_risk(data: Dataset, options: MarginalRisk, number: int, n_batches: int = 1) -> tuple[Risk, Any]:
    """The risk of the first `number` examples, and states of the parts that remember nothing."""
    settings = RiskSettings(
        loss_of(options.loss), options.predictor([]), options.clamped, gradient_of(options.gradient),
        options.threads,
    )  # fmt: skip
    starts = [0, *itertools.accumulate(data.n_given)]
    stages = [
        Stage(first, min(max(number - first, 0), size), n_batches)
        for first, size in zip(starts, data.n_given, strict=False)
    ]
    states, totals = data.parts.map(open_stage, None, settings, own=stages)
    return Risk(data, options.ridge, tree_total(lambda part: totals[part], 0, len(totals))), states

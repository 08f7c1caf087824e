"""The risk of what inference predicts, part by part, as a function of the potentials' parameters [MBL-tpami]."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.backend import tree_total
from ..base.resources import borrow_zeros, iterate_items, thread_count
from ..base.types import Floats, by_name, prefixed
from ..gradients.base import Gradient, GradientError, Loss, Methods, check_starts
from ..gradients.entry import GRADIENTS
from ..gradients.losses import loss_of
from ..graph.scores import Scores
from ..inference.base import Inference
from ..potentials.base import Differentiable, Potential
from ..potentials.problem import Rows
from .base import movable, set_parameters
from .data import Dataset
from .part import Part, are_own, observed

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
        """These settings with inference on one thread, where threads share out the shards."""
        clamped = None if self.clamped is None else self.clamped.on_one_thread()
        return replace(self, inference=self.inference.on_one_thread(), clamped=clamped)


#: The summed loss, its gradient for each kind that has parameters, and how many graphs each doubt is true of.
PartRisk = tuple[float, dict[str, Floats], dict[str, int]]


#: The examples of a part that take part, by batch: batch b of n has every example whose number leaves b modulo n.
Stage = tuple[range, ...]


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


def open_stage(part: Part, state: PartState, stage: Stage, settings: RiskSettings) -> tuple[PartState, Floats]:
    """A state without starts of inference, and the weight of the labelled variables of each batch."""
    new, totals = {"settings": settings, "stage": stage}, np.zeros(len(stage))
    for batch in range(len(stage)):
        for shard in _chosen(part, new, batch).shards:
            seen = shard.labels >= 0
            totals[batch] += float(seen.sum() if shard.weights is None else shard.weights[seen].sum())
    return new, totals


def _chosen(part: Part, state: PartState, batch: int | None) -> Part:
    """The examples of a batch, or of all batches, as a part."""
    stage: Stage = state["stage"]
    numbers = range(sum(map(len, stage))) if batch is None else stage[batch]
    if len(numbers) == len(part.examples):
        return part
    batches = part.cached("batches", dict[tuple[Stage, int | None], Part])
    if any(key[0] != stage for key in batches):
        batches.clear()
    if (stage, batch) not in batches:
        examples, names = [part.examples[i] for i in numbers], [part.names[i] for i in numbers]
        kinds, dense = part.kinds, part.dense
        batches[stage, batch] = Part(examples, kinds, names, part.whole, structures=part.structures, dense=dense)
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
    part = _chosen(part, state, batch)
    scores = {
        kind: part.function(kind, slice(None), p, by_weight=p.by_weight)
        for kind, p in potentials.items()
        if kind in part.shapes
    }
    d_scores = {kind: borrow_zeros(table.shape) for kind, table in scores.items()}
    threads, trusted = thread_count(settings.threads), are_own(potentials)
    if len(part.shards) > 1:
        settings = settings.on_one_thread()

    def of(number: int) -> tuple[float, dict[str, Floats], str | None, dict[str, Floats] | None]:
        """The loss of a shard, the gradient of tables that all its rows share, a doubt and the next start."""
        shard, theta = part.shards[number], {}
        for kind, rows in shard.rows.items():
            if rows.stop > rows.start:
                table = scores[kind] if len(scores[kind]) < part.n_rows(kind) else scores[kind][rows]
                theta[kind] = part.theta(kind, shard, potentials[kind], table)
        start = prefixed(state, f"{batch}/{number}/") if settings.warm else None
        methods = Methods(settings.inference, settings.gradient, settings.clamped, start)
        try:
            made = Scores(shard.graph, theta, dense=settings.inference.dense_pairs, trusted=trusted)
            value, d_theta = settings.loss.evaluate(made, shard.labels, shard.weights, methods)
        except GradientError as error:
            return np.inf, {}, str(error), start
        d_shared = {}
        for kind in theta:
            if len(scores[kind]) < part.n_rows(kind):
                d_shared[kind] = d_theta[kind].reshape(1, -1)
            else:
                d_rows = d_scores[kind][shard.rows[kind]]
                d_rows[...] = d_theta[kind].reshape(d_rows.shape)
        return value, d_shared, methods.doubt(), methods.next_starts()

    shared: dict[str, Floats] = {}
    value, doubts, new = 0.0, Counter[str](), dict(state)
    if settings.warm:
        new = {name: array for name, array in state.items() if not name.startswith(f"{batch}/")}
    for number, (loss, d_shared, doubt, start) in enumerate(iterate_items(of, range(len(part.shards)), threads)):
        value += loss
        doubts.update([] if doubt is None else [doubt])
        for kind, slope in d_shared.items():
            shared[kind] = shared[kind] + slope if kind in shared else slope
        new |= {f"{batch}/{number}/{name}": array for name, array in (start or {}).items()}
    slopes = {}
    for kind in part.shapes if np.isfinite(value) else ():
        potential, x, slope = potentials[kind], part.features[kind], d_scores[kind]
        if kind in shared:
            x, slope = np.zeros((1, x.shape[1])), shared[kind]
        if isinstance(potential, Differentiable):
            slopes[kind] = potential.theta_vjp(x, slope)
    return new if settings.warm else state, (value, slopes, dict(doubts))


def saved_starts(part: Part, state: PartState) -> tuple[PartState, dict[str, Floats]]:
    """Where inference starts next, for a checkpoint."""
    return state, {name: array for name, array in state.items() if name not in ("settings", "stage")}


def restored_starts(part: Part, state: PartState, saved: Mapping[str, Any]) -> tuple[PartState, None]:
    """The state with what `saved_starts` gave."""
    stage: Stage = state["stage"]
    starts: dict[str, Any] = {}
    for batch in range(len(stage)):
        for number, shard in enumerate(_chosen(part, state, batch).shards):
            head = f"{batch}/{number}/"
            checked = check_starts(shard.graph, prefixed(saved, head))
            starts |= {f"{head}{name}": array for name, array in checked.items()}
    return {**starts, "settings": state["settings"], "stage": stage}, None


# -- the objective ---------------------------------------------------------------------------------------------


class Risk:
    """The risk per labelled variable of the first examples, plus penalties, as a function of all parameters.

    Args:
        ridge: relative to the risk per variable; None for the ridge of the potentials.
        totals: weight of the labelled variables of each batch.

    Attributes:
        potentials: copies whose parameters are those of the last call; `moving` are those that have some.
        parts: states of the parts after the last call, whichever point that was for: inference starts there.
        doubts: sentences on what makes value or gradient of the last call inaccurate, and of how many graphs each is
            true.
    """

    def __init__(
        self, data: Dataset, ridge: float | None, totals: Floats, potentials: Mapping[str, Potential], parts: Any
    ) -> None:
        self.data, self.ridge, self.totals, self.parts = data, ridge, totals, parts
        self.moving = movable(potentials, potentials)
        self.potentials = {**potentials, **self.moving}
        self.doubts: dict[str, int] = {}

    def __call__(self, vector: Floats, batch: int = 0) -> tuple[float, Floats, dict[str, int]]:
        """The risk of a batch at a vector of all parameters, its gradient, and doubts.

        A kind that the examples lack has its penalty only.
        """
        set_parameters(self.moving, vector)
        total = float(self.totals[batch])
        ridge = None if self.ridge is None else self.ridge * total
        self.parts, sums = self.data.parts.total(evaluate_batch, self.parts, self.potentials, batch)
        value, slopes, self.doubts = sums
        gradients = [np.zeros(0)]
        for kind, potential in self.moving.items():
            penalty, slope = potential.penalty_and_gradient(ridge)
            value += penalty
            gradients.append((slope + slopes[kind] if kind in slopes else slope) / total)
        return value / total, np.concatenate(gradients), self.doubts


def begin_potentials(
    data: Dataset, ridge: float | None, states: Any, potentials: Mapping[str, Potential], independent: bool
) -> dict[str, Potential]:
    """Zero functions of potentials that were never fitted, or plain logistic regressions of single variables.

    ridge: of the summed loss; None for that of the potentials.
    """
    begun = dict(potentials)
    for kind, potential in potentials.items():
        if potential.is_fitted:
            continue
        template = copy.copy(potential)
        if ridge is not None and "ridge" in template.get_params(deep=False):
            template.set_params(ridge=ridge)
        template.begin(data.selection(kind, partial(chosen_rows, kind=kind), states))
        if independent and len(data.shapes[kind]) == 1 and potential.differentiable and not potential.by_weight:
            labelled = data.selection(kind, partial(chosen_rows, kind=kind, labelled=True), states)
            if labelled.n_rows:
                template.fit_problem(labelled)
        begun[kind] = copy.copy(potential)
        begun[kind].__dict__.update(template._fitted())
    return begun


def open_parts(data: Dataset, options: MarginalRisk, number: int, n_batches: int = 1) -> tuple[Floats, Any]:
    """Weights of the labelled variables of each batch of the first `number` examples, and states of the parts."""
    settings = RiskSettings(
        loss_of(options.loss),
        options.predictor([]),
        options.clamped,
        by_name("gradient", options.gradient, GRADIENTS, Gradient),
        options.threads,
    )
    starts = [0, *itertools.accumulate(data.n_given)]
    stages = [
        tuple(range((b - first) % n_batches, min(max(number - first, 0), size), n_batches) for b in range(n_batches))
        for first, size in zip(starts, data.n_given, strict=False)
    ]
    states, totals = data.parts.map(open_stage, None, settings, own=stages)
    return tree_total(totals), states

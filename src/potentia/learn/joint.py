"""The joint objective of iterated logistic regression over functions and messages, and its partial steps."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ..base.schema import Array, check_state, like, prefixed
from ..base.threads import map_items, thread_count
from ..base.types import Floats
from ..kernels.linear_losses import loss_rows
from ..potentials.base import Potential
from ..potentials.inputs import example_ptr
from ..potentials.problem import NO_LABELS, NO_ROWS, Problem, Rows, map_chunks
from ..potentials.tables import Zero
from .data import Dataset
from .examples import Shard
from .messages import Messages, check_messages, start_messages
from .part import Part

#: A kind's scores are kept between calls up to this many numbers in all, and computed shard by shard beyond.
MAX_KEPT_SCORES = 1 << 25

PartState = Mapping[str, Any]


@dataclass(frozen=True)
class JointSettings:
    """What every part needs to know.

    Attributes:
        epsilons: of each kind.
        delta: "hamming", None, or a function of an example.
        schedule: of message passing.
        states: largest number of states in the data set.
        sweeps: iterations of message passing given the labels, if hidden labels have soft targets; else 0.
        kept: the kinds whose scores are kept.
        threads: that shards are shared out over.
    """

    epsilons: Mapping[str, float]
    delta: Any
    schedule: str
    states: int
    sweeps: int
    kept: frozenset[str]
    threads: int | None


# -- functions of a part and its state -------------------------------------------------------------------------
# A state has the settings, messages and biases under "free/", those given the labels under "clamped/", soft targets,
# and of some kinds the scores, with what `update_scores` needs to know of the function that they are those of.


def begin_part(part: Part, state: PartState, settings: JointSettings) -> tuple[PartState, None]:
    """Zero messages."""
    found: dict[str, Any] = {"settings": settings}
    found |= _named("free/", start_messages(part, settings))
    if settings.sweeps:
        found |= _named("clamped/", start_messages(part, settings, observed=True))
    return found, None


def score_part(part: Part, state: PartState, potentials: Mapping[str, Potential]) -> tuple[PartState, None]:
    """Keep the scores of functions that have moved."""
    return {**state, **_scores(part, state, potentials)}, None


def _scores(part: Part, state: PartState, potentials: Mapping[str, Potential]) -> dict[str, Any]:
    """Scores of all rows of the kinds that are kept."""
    found: dict[str, Any] = {}
    for kind, potential in potentials.items():
        if kind in part.shapes:
            potential.ready(part.n_rows(kind))
            if kind in state["settings"].kept and not (
                part.is_shared(kind, potential) or potential.by_weight
            ):
                found[f"scores/{kind}"] = _scores_of(part, kind, potential, state)
                found[f"mark/{kind}"] = potential.scores_mark()
    return found


def _scores_of(part: Part, kind: str, potential: Potential, state: PartState) -> Floats:
    """f of all rows of a kind, (N, K), from what was kept if the function only adds to that."""
    x, mark, shape = part.matrix(kind), state.get(f"mark/{kind}"), (part.n_rows(kind), part.n_outputs(kind))
    table = np.empty(shape) if mark is None else state[f"scores/{kind}"].copy()

    def refresh(rows: slice) -> None:
        if mark is None:
            table[rows] = potential._scores(x[rows])
        else:
            potential.update_scores(x[rows], table[rows], mark)

    map_chunks(refresh, len(table), potential._width(), potential.threaded, example_ptr(x))
    return table


def pass_messages(
    part: Part,
    state: PartState,
    potentials: Mapping[str, Potential],
    iterations: int,
    tol: float,
    measure: Sequence[str],
) -> tuple[PartState, dict[str, float]]:
    """Lower A over the messages and refresh soft targets; the losses of the kinds to measure, at the new messages.

    potentials: of the kinds whose scores are not in the state, or are those of other functions.
    """
    settings: JointSettings = state["settings"]
    scored = {**state, **_scores(part, state, potentials)}
    messages = Messages(part, settings, _copied(state, "free/"))

    def of(number: int) -> dict[str, float]:
        shard = part.shards[number]
        f, theta = _functions(part, shard, potentials, scored, messages.delta)
        messages.run(number, theta, iterations, tol)
        return {
            kind: _loss(part, shard, kind, f[kind], potentials, messages) for kind in measure if kind in f
        }

    losses = dict.fromkeys((kind for kind in measure if kind in part.shapes), 0.0)
    for own in map_items(of, range(len(part.shards)), thread_count(settings.threads)):
        for kind, loss in own.items():
            losses[kind] += loss
    new = {**state, **_named("free/", messages.arrays)}
    return {**new, **_clamped(part, scored, potentials)} if settings.sweeps else new, losses


def clamp_part(part: Part, state: PartState, potentials: Mapping[str, Potential]) -> tuple[PartState, None]:
    """The first soft targets."""
    return {**state, **_clamped(part, state, potentials)}, None


def _clamped(part: Part, state: PartState, potentials: Mapping[str, Potential]) -> dict[str, Any]:
    """Targets of all regions: marginals given the labels (the E step)."""
    settings: JointSettings = state["settings"]
    messages = Messages(part, settings, _copied(state, "clamped/"), observed=True)
    soft = {kind: np.empty((part.n_rows(kind), part.n_outputs(kind))) for kind in part.shapes}

    def of(number: int) -> float:
        shard = part.shards[number]
        theta = _functions(part, shard, potentials, state, {})[1]
        engine = messages.run(number, theta, settings.sweeps, 0.0)
        read = engine.read()
        for kind, scope in shard.graph.scopes.items():
            if len(scope):
                table = np.asarray(read.marginals[kind]).reshape(len(scope), -1)
                soft[kind][shard.rows[kind]] = table / table.sum(axis=1, keepdims=True)
        return read.value

    value = sum(map_items(of, range(len(part.shards)), thread_count(settings.threads)))
    found = _named("clamped/", messages.arrays) | _named("soft/", soft)
    return {**found, "clamped_value": np.array([value], dtype=float)}


def free_value(part: Part, state: PartState, potentials: Mapping[str, Potential]) -> tuple[PartState, float]:
    """A(theta) - A(theta | labels) at the current messages."""
    settings: JointSettings = state["settings"]
    messages = Messages(part, settings, prefixed(state, "free/"))

    def of(number: int) -> float:
        shard = part.shards[number]
        theta = _functions(part, shard, potentials, state, messages.delta)[1]
        return float(messages.run(number, theta, 0, 0.0).read().value)

    free = sum(map_items(of, range(len(part.shards)), thread_count(settings.threads)))
    return state, free - float(state["clamped_value"][0])


def biased_rows(part: Part, state: PartState, kind: str) -> Rows:
    """All rows of a kind with the biases that the messages make, and kept scores."""
    table = part.rows(kind)
    if kind not in part.shapes:
        return table
    bias = Messages(part, state["settings"], prefixed(state, "free/")).bias(kind)
    table = replace(table, bias=bias, scores=state.get(f"scores/{kind}"))
    soft = state.get(f"soft/{kind}")
    return table if soft is None else replace(table, labels=NO_LABELS, soft=soft)


def saved_part(part: Part, state: PartState) -> tuple[PartState, dict[str, Floats]]:
    """What a checkpoint keeps: the messages, and soft targets, which would differ in their last bits otherwise."""
    names = "free/", "clamped/", "soft/", "clamped_value"
    return state, {name: array for name, array in state.items() if name.startswith(names)}


def restored_part(part: Part, state: PartState, saved: Mapping[str, Any]) -> tuple[PartState, None]:
    """The state with what `saved_part` gave."""
    found = _named("free/", check_messages(part, prefixed(state, "free/"), prefixed(saved, "free/")))
    if state["settings"].sweeps:
        clamped = check_messages(part, prefixed(state, "clamped/"), prefixed(saved, "clamped/"))
        targets = {name: array for name, array in state.items() if name.startswith("soft/")}
        value = {"clamped_value": Array("f8", (1,))}
        found |= _named("clamped/", clamped) | check_state({**like(targets, low=0.0), **value}, saved)
    return {**state, **found}, None


def _named(head: str, arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{head}{name}": array for name, array in arrays.items()}


def _copied(state: PartState, head: str) -> dict[str, Floats]:
    """Copies of some arrays of a state, to be written to; messages of larger regions are replaced, not written to."""
    arrays = prefixed(state, head)
    return {name: array if name.startswith("flat") else array.copy() for name, array in arrays.items()}


def _functions(
    part: Part,
    shard: Shard,
    potentials: Mapping[str, Potential],
    state: PartState,
    deltas: Mapping[str, Any],
) -> tuple[dict[str, Floats], dict[str, Any]]:
    """f of a shard's regions, or their weights, per kind, of one where all are equal; and w (epsilon f + Delta)."""
    settings: JointSettings = state["settings"]
    f: dict[str, Floats] = {}
    theta: dict[str, Any] = {}
    for kind, scope in shard.graph.scopes.items():
        if not len(scope):
            continue
        rows, weights, delta = shard.rows[kind], part.weights[kind], deltas.get(kind)
        potential, by_weight = potentials.get(kind), _is_by_weight(kind, potentials, deltas)
        read = part.numbers if by_weight else part.function
        f[kind] = read(kind, rows, potential, state)  # type: ignore[arg-type]
        table = settings.epsilons[kind] * f[kind]
        if delta is not None:
            table = table + delta[rows]
        if weights is not None:
            table = table * weights[rows, None]
        shape = part.shapes[kind]
        shared = len(f[kind]) < rows.stop - rows.start and delta is None and weights is None
        if by_weight:
            theta[kind] = potentials[kind].as_theta(table, shape, shared)
        else:
            theta[kind] = table.reshape(shape if shared else (len(table), *shape))
    return f, theta


def _is_by_weight(kind: str, potentials: Mapping[str, Potential], deltas: Mapping[str, Any]) -> bool:
    """Whether theta of a kind is a weight per pair times one table, which is not written out."""
    return kind in potentials and potentials[kind].by_weight and deltas.get(kind) is None


def _loss(
    part: Part, shard: Shard, kind: str, f: Floats, potentials: Mapping[str, Potential], messages: Messages
) -> float:
    """The biased logistic loss of a shard's regions of a kind."""
    batch = replace(part.rows(kind), bias=messages.bias(kind)).take(shard.rows[kind])
    if _is_by_weight(kind, potentials, messages.delta):
        f = part.function(kind, shard.rows[kind], potentials[kind], {})
    table = np.ascontiguousarray(np.broadcast_to(f, (batch.n_rows, f.shape[1])))
    return float(loss_rows(table, *batch.targets, NO_ROWS))


# -- the objective ---------------------------------------------------------------------------------------------


class Joint:
    """sum_k -F(y^k) + A(lam^k, theta^k) + penalties, as a function of potentials and the parts' states.

    Attributes:
        kinds: the order of updates: smaller regions first.
        named: the kinds of the model's potentials.
        zeros: functions of kinds that the model has no potential for.
    """

    def __init__(self, data: Dataset, epsilons: Mapping[str, float], learner: Any) -> None:
        self.data, self.parts = data, data.parts
        bare = sorted(set(data.shapes) - set(epsilons))
        self.epsilons = {**epsilons, **dict.fromkeys(bare, max(epsilons.values()))}
        self.kinds = sorted(self.epsilons, key=lambda kind: len(data.shapes[kind]))
        self.named = [kind for kind in self.kinds if kind in epsilons]
        self.zeros = {kind: Zero().begin(data.problem(kind)) for kind in bare}
        self.soft = learner.hidden == "soft"
        kept = {k for k in self.kinds if data.n_rows(k) * data.n_outputs(k) <= MAX_KEPT_SCORES}
        self.settings = JointSettings(
            self.epsilons, learner.delta, learner.schedule, data.n_states, 2 * learner.sweeps * self.soft,
            frozenset(kept), learner.threads,
        )  # fmt: skip

    def begin(self, potentials: Mapping[str, Potential], scored: Iterable[str]) -> Any:
        """States with zero messages, and with scores of some kinds."""
        states = self.parts.map(begin_part, None, self.settings)[0]
        states = self.moved(states, potentials, scored)
        if not self.soft:
            return states
        return self.parts.map(clamp_part, states, self._unscored(potentials, scored))[0]

    def moved(self, states: Any, potentials: Mapping[str, Potential], kinds: Iterable[str]) -> Any:
        """States with the scores of functions that have changed, of those that are kept."""
        scored = {kind: potentials[kind] for kind in kinds if self._is_kept(kind, potentials[kind])}
        return self.parts.map(score_part, states, scored)[0] if scored else states

    def _is_kept(self, kind: str, potential: Potential) -> bool:
        shared = potential.shared or self.data.facts[kind][0].n_features is None
        return kind in self.settings.kept and not (shared or potential.by_weight)

    def _unscored(self, potentials: Mapping[str, Potential], scored: Iterable[str]) -> dict[str, Potential]:
        """The functions of kinds whose scores the states have not."""
        return {
            kind: potential
            for kind, potential in {**potentials, **self.zeros}.items()
            if kind not in scored or not self._is_kept(kind, potential)
        }

    def fit(self, states: Any, potential: Potential, kind: str) -> tuple[Potential, float]:
        """One logistic regression, biased by the current messages; the function and its loss."""
        fitted = copy.deepcopy(potential).fit_problem(self.problem(states, kind))
        return fitted, fitted.objective_ - fitted.penalty()

    def pass_messages(
        self,
        states: Any,
        potentials: Mapping[str, Potential],
        scored: Iterable[str],
        passing: tuple[int, float],
        measure: Sequence[str] = (),
    ) -> tuple[Any, dict[str, float]]:
        """Lower A over the messages at the current functions; the new states, and losses of the kinds to measure.

        scored: the kinds whose scores the states have, where they are kept. passing: iterations, and a tolerance: a
        shard whose marginals moved by less in an iteration is left. Losses are found while scores are in memory.
        """
        measured = () if self.soft else tuple(measure)
        unscored = self._unscored(potentials, scored)
        states, losses = self.parts.total(pass_messages, states, unscored, *passing, measured)
        return states, losses or {}

    def objective(
        self, states: Any, potentials: Mapping[str, Potential], losses: Mapping[str, float]
    ) -> float:
        """The joint objective at the current functions and messages: sum over kinds of epsilon (loss + penalty).

        With soft targets: A(theta) - A(theta | labels) + penalties, both at the current messages.
        losses: those that have been measured.
        """
        functions = {**potentials, **self.zeros}
        penalties = sum(self.epsilons[k] * functions[k].penalty() for k in self.kinds)
        if self.soft:
            unscored = self._unscored(potentials, self.kinds)
            return float(self.parts.total(free_value, states, unscored)[1] + penalties)
        found = {k: losses[k] if k in losses else self.loss(states, functions[k], k) for k in self.kinds}
        return float(sum(self.epsilons[kind] * found[kind] for kind in self.kinds) + penalties)

    def loss(self, states: Any, potential: Potential, kind: str) -> float:
        """The biased logistic loss of a kind at the current messages."""
        problem = self.problem(states, kind)
        width, threaded = potential._width(), potential.threaded
        return float(problem.sum(potential._kept_loss, width=width, threaded=threaded))

    def problem(self, states: Any, kind: str) -> Problem:
        """The rows of a kind with the biases of the current messages."""
        return self.data.problem(kind, partial(biased_rows, kind=kind), states)

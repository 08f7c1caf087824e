"""The joint objective of iterated logistic regression over functions and messages, and its partial steps.

Messages make biases for logistic regressions,

    bias_alpha = Delta_alpha / epsilon_alpha + (sum_children lam - sum_parents lam) / c_alpha

with c_alpha = epsilon_alpha times the region's weight [ILR-chapter Eq. 1.20].
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ..base.resources import iterate_items, thread_count
from ..base.schema import Array, check_state, like
from ..base.types import Floats, PotentiaError
from ..graph.scores import Scores
from ..inference.engine import Engine, Entropy, drive
from ..inference.messages import make_engine
from ..inference.pair_engine import PairEngine, suits_pairs
from ..inference.region_engine import RegionEngine
from ..kernels.linear_losses import loss_rows
from ..kernels.pairs import pair_bias, take_messages
from ..kernels.regions import message_terms
from ..potentials.base import Potential
from ..potentials.inputs import example_ptr, map_chunks
from ..potentials.problem import NO_LABELS, NO_ROWS, OnDemand, Problem, Rows
from ..potentials.tables import Zero
from .data import Dataset
from .part import Part, Shard, are_own, delta_tables

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
        trusted: scores need not be checked.
    """

    epsilons: Mapping[str, float]
    delta: Any
    schedule: str
    states: int
    sweeps: int
    kept: frozenset[str]
    threads: int | None
    trusted: bool


# -- messages --------------------------------------------------------------------------------------------------


class Messages:
    """Messages of every shard of a part, and the biases they make, among the arrays of the part's state.

    Pairs keep their messages in score units, (N, 2, states); other kinds the bias itself, (N, K). With clamped labels
    there are messages only: nobody asks for the biases, which are not defined at states that labels forbid.

    Args:
        part: the rows and shards.
        state: of the part; arrays that `run` writes to are copied first, to `arrays`.
        head: "free/", or "clamped/" for labelled variables clamped (the second inference of training with hidden
            variables): what the names of the arrays begin with.
    """

    def __init__(self, part: Part, state: PartState, head: str = "free/", copied: bool = False) -> None:
        self.part, self.head, self.settings = part, head, state["settings"]
        self.arrays = {name: array for name, array in state.items() if name.startswith(head)}
        if copied:
            # messages of larger regions are replaced, not written to
            self.arrays |= {n: a.copy() for n, a in self.arrays.items() if not n.startswith(f"{head}flat")}
        self.delta = _delta(part, self.settings) if head == "free/" else {}

    def run(self, number: int, theta: Mapping[str, Any], iterations: int, tol: float) -> Engine:
        """Message passing on a shard; its engine, whose messages are stored.

        Without iterations nothing is stored: an engine may hold messages in a form that changes their last bits.
        """
        shard = self.part.shards[number]
        labels = shard.labels if self.head == "clamped/" else None
        scores = Scores(shard.graph, theta, labels, trusted=self.settings.trusted)
        # messages of all shards have one layout, which is that of regions where one shard has larger ones
        regions = not _is_pairwise(self.part)
        engine = make_engine(scores, self._entropy(number), self.settings.schedule, regions=regions)
        if isinstance(engine, PairEngine):
            engine.set_messages(self._shard_messages(shard))
        elif (flat := self.arrays.get(f"{self.head}flat{number}")) is not None:
            if flat.shape != engine.regions.lam.shape:
                raise PotentiaError("the checkpoint belongs to other examples: its messages do not fit them.")
            engine.set_messages(flat)
        if iterations:
            drive(engine, iterations, tol)
            if isinstance(engine, PairEngine):
                self._store_pairs(shard, engine)
            else:
                self._store_regions(number, engine)
        return engine

    def _entropy(self, number: int) -> Entropy:
        """Counting numbers of a shard; shards of one graph without weights share them."""
        shard, epsilons = self.part.shards[number], self.settings.epsilons

        def make() -> Entropy:
            """epsilon times the region's weight as counting number of every region."""
            regions = shard.graph.regions
            counting = np.full(len(regions.size), max(epsilons.values()))
            for place, (kind, scope) in enumerate(shard.graph.scopes.items()):
                if len(scope):
                    rows = slice(regions.kind_ptr[place], regions.kind_ptr[place + 1])
                    counting[rows] = epsilons[kind]
                    weights = self.part.weights[kind]
                    if weights is not None:
                        counting[rows] *= weights[shard.rows[kind]]
            return Entropy(counting, "containment", "max_score", "upper", always=True)

        return self.part.cached(("entropy", -1 - number if self.part.weighted else id(shard.graph)), make)

    def _shard_messages(self, shard: Shard) -> Floats:
        """Stored messages of a shard's pairs, kind after kind, (m, 2, states)."""
        states = int(shard.graph.n_states.max())
        kinds = [kind for kind, scope in shard.graph.scopes.items() if len(scope) and scope.shape[1] == 2]
        parts = [self.arrays[f"{self.head}lam_{kind}"][shard.rows[kind], :, :states] for kind in kinds]
        return np.concatenate([np.zeros((0, 2, states)), *parts])

    def _store_regions(self, number: int, engine: Engine) -> None:
        """Store a shard's messages, and the biases that they make of all kinds."""
        assert isinstance(engine, RegionEngine)
        self.arrays[f"{self.head}flat{number}"] = engine.regions.lam.copy()
        if self.head == "clamped/":
            return
        shard = self.part.shards[number]
        ptr = shard.graph.regions.kind_ptr
        for place, (kind, scope) in enumerate(shard.graph.scopes.items()):
            if len(scope):
                out = np.empty(len(scope) * self.part.n_outputs[kind])
                message_terms(engine.regions, ptr[place], ptr[place + 1], out)
                self._set_bias(kind, shard.rows[kind], out.reshape(len(scope), -1))

    def _store_pairs(self, shard: Shard, engine: PairEngine) -> None:
        """Store a shard's messages of pairs, and the biases that they make of single variables."""
        lam = engine.messages()
        # a dead state's message only matters to a region that is dead there too
        lam[np.isneginf(lam)] = 0.0
        first = 0
        terms = np.empty((shard.graph.n_variables, lam.shape[2]))
        take_messages(shard.graph.pairs, lam, terms)
        for kind, scope in shard.graph.scopes.items():
            if len(scope) == 0:
                continue
            if scope.shape[1] == 2:
                stored = self.arrays[f"{self.head}lam_{kind}"]
                stored[shard.rows[kind], :, : lam.shape[2]] = lam[first : first + len(scope)]
                first += len(scope)
            elif self.head == "free/":
                self._set_bias(kind, shard.rows[kind], terms[scope[:, 0], : self.part.n_outputs[kind]])

    def _set_bias(self, kind: str, rows: slice, terms: Floats) -> None:
        """bias = terms / c + Delta / epsilon."""
        scale, bias, delta = self._scale(kind), self.arrays[f"free/bias_{kind}"], self.delta[kind]
        bias[rows] = terms * (scale[rows, None] if isinstance(scale, np.ndarray) else scale)
        if delta is not None:
            bias[rows] += delta[rows] / self.settings.epsilons[kind]

    def _scale(self, kind: str) -> float | Floats:
        """1 / c of a kind's regions."""
        epsilon, weights = self.settings.epsilons[kind], self.part.weights[kind]
        return 1.0 / epsilon if weights is None else 1.0 / (epsilon * weights)

    def bias(self, kind: str) -> Any:
        """Biases of all regions of a kind, (N, K): an array, or made on demand from the messages of pairs."""
        if f"free/bias_{kind}" in self.arrays:
            return self.arrays[f"free/bias_{kind}"]
        lam, epsilon = self.arrays[f"free/lam_{kind}"], self.settings.epsilons[kind]
        n_outputs, scale, delta = self.part.n_outputs[kind], self._scale(kind), self.delta[kind]

        def make(rows: Any) -> Floats:
            """Biases of some pairs from their two messages."""
            table = np.empty((len(lam[rows]), n_outputs))
            scales = scale[rows] if isinstance(scale, np.ndarray) else np.full(len(table), scale)
            pair_bias(lam[rows], scales, *self.part.shapes[kind], table)
            return table if delta is None else table + delta[rows] / epsilon

        return OnDemand((len(lam), n_outputs), make)


def _delta(part: Part, settings: JointSettings) -> dict[str, Any]:
    """Tables of Delta by kind, made once per part."""
    return part.cached("delta", lambda: delta_tables(part, settings.delta))


def _is_pairwise(part: Part) -> bool:
    """Whether all shards of a part have regions of one and two variables only."""
    return part.cached("pairwise", lambda: all(suits_pairs(shard.graph) for shard in part.shards))


# -- functions of a part and its state -------------------------------------------------------------------------
# A state has the settings, messages and biases under "free/", those given the labels under "clamped/", soft targets,
# and of some kinds the scores, with what `update_scores` needs to know of the function that they are those of.


def begin_part(part: Part, state: PartState, settings: JointSettings) -> tuple[PartState, None]:
    """Zero messages of all shards, and the biases of Delta alone."""
    delta, new = _delta(part, settings), dict[str, Any](settings=settings)
    for kind, shape in part.shapes.items():
        if _is_pairwise(part) and len(shape) == 2:
            for head in ("free/", "clamped/") if settings.sweeps else ("free/",):
                new[f"{head}lam_{kind}"] = np.zeros((part.n_rows(kind), 2, settings.states))
        else:
            bias = new[f"free/bias_{kind}"] = np.zeros((part.n_rows(kind), part.n_outputs[kind]))
            if delta[kind] is not None:
                bias += delta[kind][:] / settings.epsilons[kind]
    return new, None


def score_part(part: Part, state: PartState, potentials: Mapping[str, Potential]) -> tuple[PartState, None]:
    """Keep the scores of functions that have moved."""
    return {**state, **_scores(part, state, potentials)}, None


def _scores(part: Part, state: PartState, potentials: Mapping[str, Potential]) -> dict[str, Any]:
    """Scores of all rows of the kinds that are kept."""
    scores: dict[str, Any] = {}
    for kind, potential in potentials.items():
        if kind in part.shapes:
            potential.ready(part.n_rows(kind))
            if kind in state["settings"].kept and not (part.is_shared(kind, potential) or potential.by_weight):
                scores[f"scores/{kind}"] = _scores_of(part, kind, potential, state)
                scores[f"mark/{kind}"] = potential.scores_mark()
    return scores


def _scores_of(part: Part, kind: str, potential: Potential, state: PartState) -> Floats:
    """f of all rows of a kind, (N, K), from what was kept if the function only adds to that."""
    x, mark, shape = part.features[kind], state.get(f"mark/{kind}"), (part.n_rows(kind), part.n_outputs[kind])
    table = np.empty(shape) if mark is None else state[f"scores/{kind}"].copy()

    def refresh(rows: slice) -> None:
        """Compute or update the scores of some rows in place."""
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
    messages = Messages(part, state, copied=True)

    def of(number: int) -> dict[str, float]:
        """Message passing on a shard, and its losses of the kinds to measure."""
        shard = part.shards[number]
        f, theta = _functions(part, shard, potentials, scored, messages.delta)
        messages.run(number, theta, iterations, tol)
        return {kind: _loss(part, shard, kind, f[kind], potentials, messages) for kind in measure if kind in f}

    losses = dict.fromkeys((kind for kind in measure if kind in part.shapes), 0.0)
    for of_shard in iterate_items(of, range(len(part.shards)), thread_count(settings.threads)):
        for kind, loss in of_shard.items():
            losses[kind] += loss
    new = {**state, **messages.arrays}
    return {**new, **_clamped(part, scored, potentials)} if settings.sweeps else new, losses


def clamp_part(part: Part, state: PartState, potentials: Mapping[str, Potential]) -> tuple[PartState, None]:
    """The first soft targets."""
    return {**state, **_clamped(part, state, potentials)}, None


def _clamped(part: Part, state: PartState, potentials: Mapping[str, Potential]) -> dict[str, Any]:
    """Targets of all regions: marginals given the labels (the E step)."""
    settings: JointSettings = state["settings"]
    messages = Messages(part, state, "clamped/", copied=True)
    soft = {f"soft/{kind}": np.empty((part.n_rows(kind), part.n_outputs[kind])) for kind in part.shapes}

    def of(number: int) -> float:
        """Message passing given a shard's labels: stores its marginals as targets, returns its value."""
        shard = part.shards[number]
        theta = _functions(part, shard, potentials, state, {})[1]
        read = messages.run(number, theta, settings.sweeps, 0.0).read()
        for kind, scope in shard.graph.scopes.items():
            if len(scope):
                table = np.asarray(read.marginals[kind]).reshape(len(scope), -1)
                soft[f"soft/{kind}"][shard.rows[kind]] = table / table.sum(axis=1, keepdims=True)
        return read.value

    value = sum(iterate_items(of, range(len(part.shards)), thread_count(settings.threads)))
    return {**messages.arrays, **soft, "clamped_value": np.array([value], dtype=float)}


def free_value(part: Part, state: PartState, potentials: Mapping[str, Potential]) -> tuple[PartState, float]:
    """A(theta) - A(theta | labels) at the current messages."""
    messages = Messages(part, state)

    def of(number: int) -> float:
        """A(theta) of a shard at the current messages."""
        theta = _functions(part, part.shards[number], potentials, state, messages.delta)[1]
        return float(messages.run(number, theta, 0, 0.0).read().value)

    free = sum(iterate_items(of, range(len(part.shards)), thread_count(state["settings"].threads)))
    return state, free - float(state["clamped_value"][0])


def biased_rows(part: Part, state: PartState, kind: str) -> Rows:
    """All rows of a kind with the biases that the messages make, and kept scores."""
    table = part.rows(kind)
    if kind not in part.shapes:
        return table
    table = replace(table, bias=Messages(part, state).bias(kind), scores=state.get(f"scores/{kind}"))
    soft = state.get(f"soft/{kind}")
    return table if soft is None else replace(table, labels=NO_LABELS, soft=soft)


def saved_part(part: Part, state: PartState) -> tuple[PartState, dict[str, Floats]]:
    """What a checkpoint keeps: the messages, and soft targets, which would differ in their last bits otherwise."""
    names = "free/", "clamped/", "soft/", "clamped_value"
    return state, {name: array for name, array in state.items() if name.startswith(names)}


def restored_part(part: Part, state: PartState, saved: Mapping[str, Any]) -> tuple[PartState, None]:
    """The state with what `saved_part` gave."""
    # messages of states that labels forbid are -inf
    flat = Array("f8", ("*",), below=np.inf, finite=False, optional=True)
    schema: dict[str, Any] = {}
    for name, array in saved_part(part, state)[1].items():
        schema |= like({name: array}, low=0.0 if name.startswith("soft/") else None)
    for head in ("free/", "clamped/"):
        schema |= {f"{head}flat{number}": flat for number in range(len(part.shards))}
    arrays = check_state(schema, saved)
    return {**state, **{name: array for name, array in arrays.items() if array is not None}}, None


def _functions(
    part: Part, shard: Shard, potentials: Mapping[str, Potential], state: PartState, deltas: Mapping[str, Any]
) -> tuple[dict[str, Floats], dict[str, Any]]:
    """f and theta = w (epsilon f + Delta) of a shard by kind: a row per region, or one row where all are equal.

    Where theta is a weight times one table, f holds the weights.
    """
    f: dict[str, Floats] = {}
    theta: dict[str, Any] = {}
    for kind, scope in shard.graph.scopes.items():
        if not len(scope):
            continue
        rows, shape, weights, delta = (shard.rows[kind], part.shapes[kind], part.weights[kind], deltas.get(kind))
        by_weight = _is_by_weight(kind, potentials, deltas)
        f[kind] = part.function(kind, rows, potentials.get(kind), state, by_weight)
        table = state["settings"].epsilons[kind] * f[kind]
        if delta is not None:
            table = table + delta[rows]
        if weights is not None:
            table = table * weights[rows, None]
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
        f = part.function(kind, shard.rows[kind], potentials[kind])
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

    def __init__(self, data: Dataset, potentials: Mapping[str, Potential], learner: Any) -> None:
        self.data, self.parts = data, data.parts
        epsilons: dict[str, float] = learner.epsilons(list(potentials))
        bare = sorted(set(data.shapes) - set(epsilons))
        self.epsilons = {**epsilons, **dict.fromkeys(bare, max(epsilons.values()))}
        self.kinds = sorted(self.epsilons, key=lambda kind: len(data.shapes[kind]))
        self.named = [kind for kind in self.kinds if kind in epsilons]
        self.zeros = {kind: Zero().begin(data.problem(kind)) for kind in bare}
        self.soft = learner.hidden == "soft"
        kept = frozenset(k for k in self.kinds if data.n_rows[k] * data.n_outputs[k] <= MAX_KEPT_SCORES)
        self.settings = JointSettings(
            self.epsilons, learner.delta, learner.schedule, data.n_states, 2 * learner.sweeps * self.soft,
            kept, learner.threads, are_own(potentials),
        )  # fmt: skip

    def begin(self, potentials: Mapping[str, Potential], scored: Iterable[str]) -> Any:
        """States with zero messages, and with scores of some kinds."""
        states = self.parts.map(begin_part, None, self.settings)[0]
        states = self.moved(states, potentials, scored)
        if not self.soft:
            return states
        return self.parts.map(clamp_part, states, self.unscored(potentials, scored))[0]

    def moved(self, states: Any, potentials: Mapping[str, Potential], kinds: Iterable[str]) -> Any:
        """States with the scores of functions that have changed, of those that are kept."""
        scored = {kind: potentials[kind] for kind in kinds if self._is_kept(kind, potentials[kind])}
        return self.parts.map(score_part, states, scored)[0] if scored else states

    def _is_kept(self, kind: str, potential: Potential) -> bool:
        """Whether the states of parts hold the scores of this kind."""
        shared = potential.shared or kind in self.data.featureless
        return kind in self.settings.kept and not (shared or potential.by_weight)

    def unscored(self, potentials: Mapping[str, Potential], scored: Iterable[str]) -> dict[str, Potential]:
        """The functions of kinds whose scores the states have not: all but the scored ones that are kept."""
        return {
            kind: potential
            for kind, potential in {**potentials, **self.zeros}.items()
            if kind not in scored or not self._is_kept(kind, potential)
        }

    def fit(self, states: Any, potential: Potential, kind: str) -> tuple[Potential, float]:
        """One logistic regression, biased by the current messages; the function and its loss."""
        fitted = copy.deepcopy(potential).fit_problem(self.problem(states, kind))
        return fitted, fitted.objective_ - fitted.penalty()

    def objective(self, states: Any, potentials: Mapping[str, Potential], losses: Mapping[str, float]) -> float:
        """The joint objective at the current functions and messages: sum over kinds of epsilon (loss + penalty).

        With soft targets: A(theta) - A(theta | labels) + penalties, both at the current messages.
        losses: those that have been measured.
        """
        functions = {**potentials, **self.zeros}
        penalties = sum(self.epsilons[k] * functions[k].penalty() for k in self.kinds)
        if self.soft:
            unscored = self.unscored(potentials, self.kinds)
            return float(self.parts.total(free_value, states, unscored)[1] + penalties)
        measured = {k: losses[k] if k in losses else self.loss(states, functions[k], k) for k in self.kinds}
        return float(sum(self.epsilons[kind] * measured[kind] for kind in self.kinds) + penalties)

    def loss(self, states: Any, potential: Potential, kind: str) -> float:
        """The biased logistic loss of a kind at the current messages."""
        problem = self.problem(states, kind)
        width, threaded = potential._width(), potential.threaded
        return float(problem.sum(potential._kept_loss, width=width, threaded=threaded))

    def problem(self, states: Any, kind: str) -> Problem:
        """The rows of a kind with the biases of the current messages."""
        return self.data.problem(kind, partial(biased_rows, kind=kind), states)

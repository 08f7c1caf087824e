"""The joint objective of iterated logistic regression over functions and messages, and its partial steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..base.schema import Array, check_state, like, prefixed
from ..base.threads import map_items, thread_count
from ..base.types import Floats
from ..kernels.logistic import loss_rows
from ..potentials.base import Potential
from ..potentials.inputs import example_ptr
from ..potentials.problem import NO_LABELS, NO_ROWS, Problem, RowKey, Rows, map_chunks
from .data import Dataset
from .examples import Shard
from .loop import delta_tables
from .messages import Messages
from .part import Part

#: A kind's scores are kept between calls up to this many numbers in all, and computed shard by shard beyond.
MAX_KEPT_SCORES = 1 << 25


@dataclass(frozen=True)
class JointSettings:
    """What every part needs to know: epsilon per kind, Delta, order of updates, and the data set's state count."""

    epsilons: Mapping[str, float]
    delta: Any
    schedule: str
    states: int
    soft: bool
    kept: frozenset[str]
    threads: int | None


class JointPart(Part):
    """A part with the messages of its shards, its own copy of the functions, and their scores where those are kept."""

    def begin(self, settings: JointSettings) -> None:
        """Zero messages."""
        self.settings = settings
        self.potentials: dict[str, Potential] = {}
        self.scores: dict[str, Floats] = {}
        self.marks: dict[str, Any] = {}
        self.soft: dict[str, Floats] = {}
        self.clamped_value = 0.0
        epsilons, schedule, states = settings.epsilons, settings.schedule, settings.states
        self.delta = delta_tables(self, settings.delta)
        self.free = Messages(self, epsilons, self.delta, schedule, states)
        self.clamped = (
            Messages(self, epsilons, {}, schedule, states, observed=True) if settings.soft else None
        )

    def rows(self, key: RowKey) -> Rows:
        """All rows of a kind with the biases that the messages make."""
        table = super().rows(key)
        if not isinstance(key, str) or key not in self.shapes:
            return table
        table = replace(table, bias=self.free.bias(key), scores=self.scores.get(key))
        return replace(table, labels=NO_LABELS, soft=self.soft[key]) if self.soft else table

    def update(self, potentials: Mapping[str, Potential]) -> None:
        """Take functions that have moved; scores that are kept are brought up to date."""
        for kind, potential in potentials.items():
            self.potentials[kind] = potential
            if kind not in self.shapes:
                continue
            potential.ready(self.n_rows(kind))
            if kind in self.settings.kept and not (self.is_shared(kind, potential) or self._by_weight(kind)):
                self._score(kind, potential)

    def _score(self, kind: str, potential: Potential) -> None:
        x, mark = self.matrix(kind), self.marks.get(kind)
        if mark is None:
            self.scores[kind] = np.empty((self.n_rows(kind), self.n_outputs(kind)))
        table = self.scores[kind]

        def refresh(rows: slice) -> None:
            if mark is None:
                table[rows] = potential._scores(x[rows])
            else:
                potential.update_scores(x[rows], table[rows], mark[0])

        map_chunks(refresh, len(table), potential._width(), potential.threaded, example_ptr(x))
        self.marks[kind] = (potential.scores_mark(),)

    def function(self, kind: str, rows: slice, potential: Potential) -> Floats:
        """f of some rows, (n, K), or of one where all are equal; kept scores where there are some."""
        kept = self.scores.get(kind) if potential is self.potentials.get(kind) else None
        return super().function(kind, rows, potential) if kept is None else kept[rows]

    def pass_messages(self, iterations: int, tol: float, measure: Sequence[str]) -> dict[str, float]:
        """Lower A over the messages; the losses of the kinds to measure, at the new messages."""

        def of(number: int) -> dict[str, float]:
            shard = self.shards[number]
            f = self._functions(shard)
            self.free.run(number, self._theta(shard, f, True), iterations, tol)
            return {kind: self._loss(kind, shard, f[kind]) for kind in measure if kind in f}

        losses = dict.fromkeys((kind for kind in measure if kind in self.shapes), 0.0)
        for own in map_items(of, range(len(self.shards)), thread_count(self.settings.threads)):
            for kind, loss in own.items():
                losses[kind] += loss
        return losses

    def _by_weight(self, kind: str) -> bool:
        """Whether theta of a kind is a weight per pair times one table, which is not written out."""
        return self.potentials[kind].by_weight and self.delta.get(kind) is None

    def _loss(self, kind: str, shard: Shard, f: Floats) -> float:
        batch = self.rows(kind).take(shard.rows[kind])
        if self._by_weight(kind):
            f = self.function(kind, shard.rows[kind], self.potentials[kind])
        table = np.ascontiguousarray(np.broadcast_to(f, (batch.n_rows, f.shape[1])))
        return float(loss_rows(table, *batch.targets, NO_ROWS))

    def _functions(self, shard: Shard) -> dict[str, Floats]:
        """f of a shard's rows, or their weights, per kind; of one row where all are equal."""
        return {
            kind: (self.numbers if self._by_weight(kind) else self.function)(
                kind, shard.rows[kind], self.potentials[kind]
            )
            for kind, scope in shard.graph.scopes.items()
            if len(scope)
        }

    def _theta(self, shard: Shard, f: Mapping[str, Floats], with_delta: bool) -> dict[str, Any]:
        """w (epsilon f + Delta) of a shard; one table, or weight, where all regions share it."""
        found = {}
        for kind, scores in f.items():
            rows, weights = shard.rows[kind], self.weights[kind]
            delta = self.delta.get(kind) if with_delta else None
            table = self.settings.epsilons[kind] * scores
            shared = len(scores) < rows.stop - rows.start
            if delta is not None:
                table = table + delta[rows]
            if weights is not None:
                table = table * weights[rows, None]
            still = shared and delta is None and weights is None
            shape = self.shapes[kind]
            if self._by_weight(kind):
                found[kind] = self.potentials[kind].as_theta(table, shape, still)
            else:
                found[kind] = table.reshape(shape if still else (len(table), *shape))
        return found

    def clamp(self, iterations: int) -> None:
        """Targets of all regions: marginals given the labels (the E step)."""
        clamped = self.clamped
        assert clamped is not None

        def of(number: int) -> float:
            shard = self.shards[number]
            engine = clamped.run(number, self._theta(shard, self._functions(shard), False), iterations, 0.0)
            read = engine.read()
            for kind, scope in shard.graph.scopes.items():
                if len(scope):
                    table = np.asarray(read.marginals[kind]).reshape(len(scope), -1)
                    self.soft[kind][shard.rows[kind]] = table / table.sum(axis=1, keepdims=True)
            return read.value

        for kind in self.shapes:
            self.soft.setdefault(kind, np.empty((self.n_rows(kind), self.n_outputs(kind))))
        self.clamped_value = sum(map_items(of, range(len(self.shards)), thread_count(self.settings.threads)))

    def value(self) -> float:
        """A(theta) - A(theta | labels) at the current messages."""

        def of(number: int) -> float:
            shard = self.shards[number]
            theta = self._theta(shard, self._functions(shard), True)
            return float(self.free.run(number, theta, 0, 0.0).read().value)

        free = sum(map_items(of, range(len(self.shards)), thread_count(self.settings.threads)))
        return free - self.clamped_value

    def keep_messages(self) -> None:
        """Remember the messages, for `go_back`."""
        self.free.keep()

    def go_back(self) -> None:
        """Take the messages that were kept last."""
        self.free.go_back()

    def forget_messages(self) -> None:
        """Let go of the messages that were kept."""
        self.free.forget()

    def suspend(self) -> tuple[dict[str, Any], dict[str, Floats]]:
        """Settings and functions; messages, soft targets and kept scores."""
        small, arrays = super().suspend()
        if hasattr(self, "settings"):
            names = "settings", "potentials", "marks", "clamped_value"
            small |= {name: getattr(self, name) for name in names}
            arrays |= {f"scores/{kind}": table for kind, table in self.scores.items()}
            arrays |= {f"soft/{kind}": table for kind, table in self.soft.items()}
            arrays |= {f"free/{name}": table for name, table in self.free.everything().items()}
            if self.clamped is not None:
                arrays |= {f"clamped/{name}": table for name, table in self.clamped.everything().items()}
        return small, arrays

    def resume(self, small: Mapping[str, Any], arrays: Mapping[str, Floats]) -> None:
        """Take back what `suspend` gave."""
        super().resume(small, arrays)
        if "settings" not in small:
            return
        self.begin(small["settings"])
        for name in ("potentials", "marks", "clamped_value"):
            setattr(self, name, small[name])
        self.scores, self.soft = prefixed(arrays, "scores/"), prefixed(arrays, "soft/")
        self.free.take_everything(prefixed(arrays, "free/"))
        if self.clamped is not None:
            self.clamped.take_everything(prefixed(arrays, "clamped/"))

    def state(self) -> dict[str, Floats]:
        """The messages, for a checkpoint."""
        arrays = {f"free/{k}": v for k, v in self.free.state().items()}
        if self.clamped is not None:
            arrays |= {f"clamped/{k}": v for k, v in self.clamped.state().items()}
            # targets computed from restored messages would differ in their last bits
            arrays |= {f"soft/{kind}": table for kind, table in self.soft.items()}
            arrays["value"] = np.array([self.clamped_value])
        return arrays

    def restore(self, arrays: Mapping[str, Floats]) -> None:
        """Take back what `state` gave."""
        for name, messages in (("free", self.free), ("clamped", self.clamped)):
            if messages is not None:
                messages.restore(prefixed(arrays, f"{name}/"))
        if self.clamped is not None:
            targets = {f"soft/{kind}": table for kind, table in self.soft.items()}
            found = check_state({**like(targets, low=0.0), "value": Array("f8", (1,))}, arrays)
            self.soft = {kind: found[f"soft/{kind}"] for kind in self.soft}
            self.clamped_value = float(found["value"][0])


class Joint:
    """sum_k -F(y^k) + A(lam^k, theta^k) + penalties, lowered by fitting a kind or by passing messages.

    Attributes:
        losses: the biased logistic loss of each kind when it was last fitted or measured.
        kinds: the order of updates: smaller regions first.
    """

    def __init__(
        self,
        potentials: Mapping[str, Potential],
        data: Dataset,
        delta: Any,
        scales: dict[str, float],
        options: Any,
    ) -> None:
        self.potentials, self.data, self.epsilons = dict(potentials), data, scales
        self.parts = data.parts
        for kind, potential in potentials.items():
            potential.check_shape(kind, data.shapes[kind])
        self.kinds = sorted(potentials, key=lambda kind: len(data.shapes[kind]))
        self.soft = options.hidden == "soft"
        self.losses: dict[str, float] = {}
        self._measured: dict[str, float] = {}
        self.sweeps = 2 * options.sweeps
        kept = {k for k in self.kinds if data.n_rows(k) * data.n_outputs(k) <= MAX_KEPT_SCORES}
        states = max(self.parts.each("max_states"))
        settings = JointSettings(
            scales, delta, options.schedule, states, self.soft, frozenset(kept), options.threads
        )
        self.parts.each("begin", settings, changes=True)
        for kind, potential in self.potentials.items():
            if not potential.is_fitted:
                potential.begin(self.problem(kind))
        self.moved(*self.kinds)
        if self.soft:
            self._clamp(self.sweeps)

    def moved(self, *kinds: str) -> None:
        """Tell the parts of functions that have changed."""
        self.parts.each("update", {kind: self.potentials[kind] for kind in kinds}, changes=True)
        self._measured.clear()

    def fit(self, kind: str) -> None:
        """One logistic regression, biased by the current messages."""
        potential = self.potentials[kind]
        potential.fit_problem(self.problem(kind))
        self.moved(kind)
        self.losses[kind] = potential.objective_ - potential.penalty()

    def pass_messages(self, iterations: int, tol: float = 0.0, measure: Sequence[str] = ()) -> None:
        """Lower A over the messages at the current functions; refresh soft targets.

        A shard whose marginals moved by less than `tol` in an iteration is left. `measure`: kinds whose loss will be
        asked for, which is found while their scores are in memory.
        """
        measured = () if self.soft else tuple(measure)
        self._measured = self.parts.total("pass_messages", iterations, tol, measured, changes=True)
        if self.soft:
            self._clamp(self.sweeps)

    def _clamp(self, iterations: int) -> None:
        self.parts.each("clamp", iterations, changes=True)

    def objective(self) -> float:
        """The joint objective at the current functions and messages: sum over kinds of epsilon (loss + penalty).

        With soft targets: A(theta) - A(theta | labels) + penalties, both at the current messages.
        """
        penalties = sum(self.epsilons[k] * self.potentials[k].penalty() for k in self.kinds)
        if self.soft:
            return float(self.parts.total("value") + penalties)
        return float(sum(self.epsilons[kind] * self.loss(kind) for kind in self.kinds) + penalties)

    def loss(self, kind: str) -> float:
        """The biased logistic loss of a kind at the current messages."""
        if kind not in self._measured:
            potential = self.potentials[kind]
            self._measured[kind] = float(
                self.problem(kind).sum(
                    potential._kept_loss, width=potential._width(), threaded=potential.threaded
                )
            )
        return self._measured[kind]

    def problem(self, kind: str) -> Problem:
        """The rows of a kind with the biases of the current messages."""
        facts = self.data.facts[kind]
        held = [own.get(kind) for own in self.data.by_part]
        sizes = [0 if own is None else own.n_rows for own in held]
        weight = sum(own.weight for own in facts)
        return Problem(self.parts, kind, sizes, self.data.n_features(kind), self.data.n_outputs(kind), weight)

    def restore(self, states: Sequence[Mapping[str, Floats]]) -> None:
        """Take up the parts' messages of a checkpoint."""
        self.data.restore_parts(states)
        self.moved(*self.kinds)

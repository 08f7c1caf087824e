"""The joint objective of iterated logistic regression over functions and messages, and its partial steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._threads import thread_count
from .._types import Floats
from ..kernels.logistic import loss_rows
from ..potentials.base import Potential
from ..potentials.chunks import map_chunks
from ..potentials.problem import NO_ROWS, NO_WEIGHT, Problem
from .delta import hamming, own_delta
from .functions import Functions
from .messages import Messages
from .resume import take_up
from .training_set import Shard, TrainingSet


class Joint:
    """sum_k -F(y^k) + A(lam^k, theta^k) + penalties, lowered by fitting a kind or by passing messages.

    Attributes:
        losses: the biased logistic loss of each kind when it was last fitted.
        kinds: the order of updates: smaller regions first.
    """

    def __init__(
        self,
        potentials: Mapping[str, Potential],
        data: TrainingSet,
        delta: Any,
        scales: dict[str, float],
        options: Any,
    ) -> None:
        self.potentials, self.data, self.epsilons = dict(potentials), data, scales
        self.kinds = sorted(potentials, key=lambda kind: len(data.shapes[kind]))
        self.soft = options.hidden == "soft"
        self.losses: dict[str, float] = {}
        self._measured: dict[str, float] = {}
        self.functions = Functions(self.potentials, data)
        tables = hamming(data) if delta == "hamming" else own_delta(data, delta)
        threads = thread_count(options.threads)
        self.free = Messages(data, scales, tables, options.schedule, threads)
        self.targets: dict[str, Any] = dict(data.targets)
        self.clamped: Messages | None = None
        if self.soft:
            self.clamped = Messages(data, scales, {}, options.schedule, threads, observed=True)
        for kind, potential in self.potentials.items():
            if not potential.is_fitted:
                potential.start(data.matrix(kind), data.n_outputs(kind))
        self.sweeps = 2 * options.sweeps
        if self.soft:
            self._clamp(self.sweeps)

    def theta(self, number: int, shard: Shard) -> dict[str, Floats]:
        """w (epsilon f + Delta) of a shard."""
        return self._scores(shard, with_delta=True)

    def _plain_theta(self, number: int, shard: Shard) -> dict[str, Floats]:
        return self._scores(shard, with_delta=False)

    def _scores(self, shard: Shard, with_delta: bool) -> dict[str, Floats]:
        found = {}
        for kind in shard.graph.kinds:
            rows = shard.rows[kind]
            if rows.stop == rows.start:
                continue
            delta, weights = self.free.delta.get(kind), self.data.weights[kind]
            if delta is None and weights is None and self.functions.is_shared(kind):
                table = self.epsilons[kind] * self.functions.scores(kind, slice(rows.start, rows.start + 1))
                found[kind] = table.reshape(self.data.shapes[kind])
                continue
            table = self.epsilons[kind] * self.functions.scores(kind, rows)
            if with_delta and delta is not None:
                table += delta[rows]
            if weights is not None:
                table *= weights[rows, None]
            found[kind] = table.reshape(len(table), *self.data.shapes[kind])
        return found

    def fit(self, kind: str) -> None:
        """One logistic regression, biased by the current messages."""
        potential = self.potentials[kind]
        potential.fit(
            self.data.matrix(kind), self.targets[kind], self.free.bias(kind), self.data.weights[kind],
            n_outputs=self.data.n_outputs(kind), scores=self.functions.kept(kind),
        )  # fmt: skip
        self.losses[kind] = potential.objective_ - potential.penalty()
        self._measured.clear()

    def pass_messages(self, iterations: int, tol: float = 0.0, measure: Sequence[str] = ()) -> None:
        """Lower A over the messages at the current functions; refresh soft targets.

        A shard whose marginals moved by less than `tol` in an iteration is left. `measure`: kinds whose loss will be
        asked for; where scores are not kept it is found here, while they are at hand.
        """
        self.functions.prepare()
        losses = _Losses(self, () if self.soft else measure)
        self.free.run(self.theta, iterations, tol, after=losses.add)
        self._measured = losses.sums()
        if self.soft:
            self._clamp(self.sweeps)

    def _clamp(self, iterations: int) -> None:
        """Targets of regions with hidden variables: marginals given the labels (the E step)."""
        assert self.clamped is not None
        reads = self.clamped.run(self._plain_theta, iterations, read=True)
        for kind in self.kinds:
            parts = [
                np.asarray(read.marginals[kind]).reshape(-1, self.data.n_outputs(kind))
                for read, shard in zip(reads, self.data.shards, strict=True)
                if read is not None and kind in shard.graph.scopes and len(shard.graph.scopes[kind])
            ]
            table = np.concatenate(parts)
            self.targets[kind] = table / table.sum(axis=1, keepdims=True)
        self._clamped_value = sum(read.value for read in reads if read is not None)

    def objective(self) -> float:
        """The joint objective at the current functions and messages: sum over kinds of epsilon (loss + penalty).

        With soft targets: A(theta) - A(theta | labels) + penalties, both at the current messages.
        """
        penalties = sum(self.epsilons[k] * self.potentials[k].penalty() for k in self.kinds)
        if self.soft:
            reads = self.free.run(self.theta, 0, read=True)
            return float(sum(r.value for r in reads if r is not None) - self._clamped_value + penalties)
        return float(sum(self.epsilons[kind] * self.loss(kind) for kind in self.kinds) + penalties)

    def loss(self, kind: str) -> float:
        """The biased logistic loss of a kind at the current messages."""
        if kind in self._measured:
            return self._measured[kind]
        problem = self.problem(kind)
        self.functions.prepare()

        def of(rows: slice) -> float:
            return float(loss_rows(self.functions.scores(kind, rows), *problem.take(rows).targets, NO_ROWS))

        return float(sum(map_chunks(of, problem.n_rows, 4 * problem.n_outputs)))

    def problem(self, kind: str) -> Problem:
        """The rows of a kind as they were checked when the examples were gathered."""
        weights = self.data.weights[kind]
        weights = NO_WEIGHT if weights is None else weights
        shape = self.data.n_outputs(kind)
        return Problem(
            self.data.matrix(kind), shape, self.targets[kind], NO_ROWS, self.free.bias(kind), weights
        )

    def state(self, history: list[dict[str, Any]]) -> dict[str, Any]:
        """Everything a resumed fit needs."""
        arrays = {f"free/{k}": v for k, v in self.free.state().items()}
        if self.clamped is not None:
            arrays |= {f"clamped/{k}": v for k, v in self.clamped.state().items()}
        return {
            "history": history,
            "potentials": {k: p.state() for k, p in self.potentials.items()},
            "arrays": arrays,
        }

    def resume(self, checkpoint: Any) -> list[dict[str, Any]]:
        """Take up a checkpoint's state; the history so far."""
        saved = None if checkpoint is None else checkpoint.load()
        if saved is None:
            return []
        history = take_up(self.potentials, saved)
        for name, messages in (("free", self.free), ("clamped", self.clamped)):
            if messages is not None:
                own = {k.partition("/")[2]: v for k, v in saved["arrays"].items() if k.startswith(f"{name}/")}
                messages.restore(own)
        if self.soft:
            self._clamp(0)
        return history


class _Losses:
    """Losses of kinds whose scores are not kept, found shard by shard while the shard's scores are at hand."""

    def __init__(self, joint: Joint, kinds: Sequence[str]) -> None:
        self.joint = joint
        wanted = [k for k in kinds if joint.free.on_demand(k) and not joint.functions.is_kept(k)]
        self.problems = {kind: joint.problem(kind) for kind in wanted}
        self.parts = {kind: np.zeros(len(joint.data.shards)) for kind in wanted}

    def add(self, number: int, shard: Shard, theta: Mapping[str, Floats]) -> None:
        """Add a shard whose messages are in place; theta = w (epsilon f + Delta)."""
        for kind, problem in self.problems.items():
            if kind in theta:
                rows, weights = shard.rows[kind], self.joint.data.weights[kind]
                table = np.broadcast_to(
                    theta[kind].reshape(-1, problem.n_outputs), (rows.stop - rows.start, problem.n_outputs)
                )
                table = table if weights is None else table / weights[rows, None]
                delta = self.joint.free.delta.get(kind)
                scores = (table if delta is None else table - delta[rows]) / self.joint.epsilons[kind]
                self.parts[kind][number] = loss_rows(scores, *problem.take(rows).targets, NO_ROWS)

    def sums(self) -> dict[str, float]:
        """The loss of each kind, added up in the order of shards whatever the threads."""
        return {kind: float(values.sum()) for kind, values in self.parts.items()}

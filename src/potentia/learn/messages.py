"""The messages of a training set, shard by shard, and the biases they make for logistic regressions.

    bias_alpha = Delta_alpha / epsilon_alpha + (sum_children lam - sum_parents lam) / c_alpha

with c_alpha = epsilon_alpha times the region's weight [ILR-chapter Eq. 1.20].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .._threads import map_items
from .._types import Floats, PotentiaError
from ..graph.flat import flat_regions
from ..graph.schedule import pairs_of
from ..graph.scores import Scores
from ..inference.engine import Engine, Readout, drive, layout_order
from ..inference.entropy import Entropy
from ..inference.pair_engine import PairEngine, suits_pairs
from ..inference.region_engine import RegionEngine
from ..kernels.pairs import pair_bias, take_messages
from ..kernels.regions import message_terms
from .training_set import Shard, TrainingSet

#: What makes a shard's scores, and what to do with its engine and read-out.
MakeTheta = Callable[[int, Shard], Mapping[str, Floats]]


class PairBias:
    """Biases of pairs made on demand from their two messages: (N, K) is too large to hold."""

    def __init__(self, lam: Floats, shape: tuple[int, ...], scale: Floats, extra: Floats | None) -> None:
        self._lam, self._states, self._scale, self._extra = lam, shape, scale, extra
        self.shape = (len(lam), shape[0] * shape[1])

    def __getitem__(self, rows: Any) -> Floats:
        lam = self._lam[rows]
        table = np.empty((len(lam), self.shape[1]))
        pair_bias(lam, self._scale[rows], *self._states, table)
        return table if self._extra is None else table + self._extra[rows]


class Messages:
    """Messages of every shard, warm from call to call.

    Args:
        data: the training set.
        epsilons: epsilon of each kind.
        delta: per kind Delta_alpha(y), (N, K), or None where it is zero.
        schedule: of message passing.
        observed: clamp labelled variables (the second inference of training with hidden variables).
    """

    _kept_lam: dict[str, Floats]
    _kept_terms: dict[str, Floats]
    _kept_flat: list[Floats | None]

    def __init__(
        self,
        data: TrainingSet,
        epsilons: Mapping[str, float],
        delta: Mapping[str, Floats | None],
        schedule: str,
        threads: int,
        observed: bool = False,
    ) -> None:
        self.data, self.epsilons, self.delta, self.observed = data, dict(epsilons), dict(delta), observed
        self.schedule, self.threads = schedule, threads
        self.entropies = [self._entropy(shard) for shard in data.shards]
        self._pairwise = all(suits_pairs(shard.graph) for shard in data.shards)
        states = max(int(shard.graph.n_states.max()) for shard in data.shards)
        self._lam: dict[str, Floats] = {}
        self._flat: list[Floats | None] = [None] * len(data.shards)
        self._terms: dict[str, Floats] = {}
        self.forget()
        for kind, shape in data.shapes.items():
            if self._pairwise and len(shape) == 2:
                self._lam[kind] = np.zeros((data.n_rows(kind), 2, states))
            else:
                self._terms[kind] = np.zeros((data.n_rows(kind), data.n_outputs(kind)))

    def _entropy(self, shard: Shard) -> Entropy:
        regions = flat_regions(shard.graph)
        counting = np.full(len(regions.size), max(self.epsilons.values()))
        for number, (kind, scope) in enumerate(shard.graph.scopes.items()):
            if len(scope) == 0:
                continue
            first, last = regions.kind_ptr[number], regions.kind_ptr[number + 1]
            counting[first:last] = self.epsilons[kind]
            weights = self.data.weights[kind]
            if weights is not None:
                counting[first:last] *= weights[shard.rows[kind]]
        return Entropy(counting, "containment", "max_score", "upper", always=True)

    def run(
        self,
        theta: MakeTheta,
        iterations: int,
        tol: float = 0.0,
        read: bool = False,
        after: Callable[[int, Shard, Mapping[str, Floats]], None] = lambda number, shard, theta: None,
    ) -> list[Readout | None]:
        """Message passing on every shard, in parallel; the shards' read-outs where asked for.

        `after` is called once a shard's messages are in place, with its number and the scores it had.
        """

        def one(number: int) -> Readout | None:
            shard = self.data.shards[number]
            scores = theta(number, shard)
            engine = self._engine(number, shard, scores)
            drive(engine, self.schedule, iterations, tol, 0)
            self._store(number, shard, engine)
            after(number, shard, scores)
            return engine.read() if read else None

        return map_items(one, range(len(self.data.shards)), self.threads)

    def _engine(self, number: int, shard: Shard, theta: Mapping[str, Floats]) -> Engine:
        labels = shard.labels if self.observed else None
        kind = PairEngine if self._pairwise else RegionEngine
        scores = Scores(shard.graph, theta, labels)
        engine = kind(scores, self.entropies[number], layout_order(self.schedule), 0.0, threads=1)
        if isinstance(engine, PairEngine):
            engine.set_messages(self._shard_messages(shard))
        elif (flat := self._flat[number]) is not None:
            engine.set_messages(flat)
        return engine

    def _shard_messages(self, shard: Shard) -> Floats:
        states = int(shard.graph.n_states.max())
        kinds = [kind for kind, scope in shard.graph.scopes.items() if len(scope) and scope.shape[1] == 2]
        parts = [self._lam[kind][shard.rows[kind], :, :states] for kind in kinds]
        return np.concatenate([np.zeros((0, 2, states)), *parts])

    def _store(self, number: int, shard: Shard, engine: Engine) -> None:
        if isinstance(engine, PairEngine):
            self._store_pairs(shard, engine)
            return
        assert isinstance(engine, RegionEngine)
        self._flat[number] = engine.regions.lam.copy()
        ptr = flat_regions(shard.graph).kind_ptr
        for k, (kind, scope) in enumerate(shard.graph.scopes.items()):
            if len(scope) == 0:
                continue
            rows = self._terms[kind][shard.rows[kind]]
            out = np.empty(rows.size)
            message_terms(engine.regions, ptr[k], ptr[k + 1], out)
            rows[:] = out.reshape(rows.shape)

    def _store_pairs(self, shard: Shard, engine: PairEngine) -> None:
        lam = engine.messages()
        # a dead state's message only matters to a region that is dead there too
        lam[np.isneginf(lam)] = 0.0
        first = 0
        terms = np.empty((shard.graph.n_variables, lam.shape[2]))
        take_messages(pairs_of(shard.graph), lam, terms)
        for kind, scope in shard.graph.scopes.items():
            if len(scope) == 0:
                continue
            if scope.shape[1] == 2:
                self._lam[kind][shard.rows[kind], :, : lam.shape[2]] = lam[first : first + len(scope)]
                first += len(scope)
            else:
                self._terms[kind][shard.rows[kind]] = terms[scope[:, 0], : self.data.n_outputs(kind)]

    def on_demand(self, kind: str) -> bool:
        """Whether biases of this kind are made row by row from messages that are written in place."""
        return kind in self._lam

    def bias(self, kind: str) -> Any:
        """Biases of all regions of a kind, (N, K): an array, or something that makes rows on demand."""
        n = self.data.n_rows(kind)
        weights = self.data.weights[kind]
        scale = (
            np.full(n, 1.0 / self.epsilons[kind])
            if weights is None
            else 1.0 / (self.epsilons[kind] * weights)
        )
        delta = self.delta.get(kind)
        extra = None if delta is None else delta / self.epsilons[kind]
        if kind in self._lam:
            return PairBias(self._lam[kind], self.data.shapes[kind], scale, extra)
        table = self._terms[kind] * scale[:, None]
        return table if extra is None else table + extra

    def keep(self) -> None:
        """Remember the messages as they are, for `go_back`."""
        for own, kept in ((self._lam, self._kept_lam), (self._terms, self._kept_terms)):
            for kind, values in own.items():
                np.copyto(kept.setdefault(kind, np.empty_like(values)), values)
        self._kept_flat = list(self._flat)  # these are replaced, never written to

    def go_back(self) -> None:
        """Take the messages that were kept last."""
        for own, kept in ((self._lam, self._kept_lam), (self._terms, self._kept_terms)):
            for kind, values in own.items():
                np.copyto(values, kept[kind])
        self._flat = list(self._kept_flat)

    def forget(self) -> None:
        """Let go of the messages that were kept."""
        self._kept_lam, self._kept_terms, self._kept_flat = {}, {}, []

    def state(self) -> dict[str, Floats]:
        """All messages as named arrays, for a checkpoint."""
        flat = {f"flat{i}": lam for i, lam in enumerate(self._flat) if lam is not None}
        return {
            **{f"lam_{k}": v for k, v in self._lam.items()},
            **{f"terms_{k}": v for k, v in self._terms.items()},
            **flat,
        }

    def restore(self, arrays: Mapping[str, Floats]) -> None:
        """Take back what `state` gave."""
        for name, own in self.state().items():
            if name not in arrays or arrays[name].shape != own.shape:
                raise PotentiaError("the checkpoint belongs to other examples: its messages do not fit them")
            own[:] = arrays[name]
        for i in range(len(self._flat)):
            if f"flat{i}" in arrays:
                self._flat[i] = arrays[f"flat{i}"].copy()

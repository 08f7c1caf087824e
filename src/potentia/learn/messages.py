"""The messages of a part, shard by shard, and the biases they make for logistic regressions.

    bias_alpha = Delta_alpha / epsilon_alpha + (sum_children lam - sum_parents lam) / c_alpha

with c_alpha = epsilon_alpha times the region's weight [ILR-chapter Eq. 1.20].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..base.schema import Array, check_state, like, prefixed
from ..base.types import Floats, PotentiaError
from ..graph.scores import Scores
from ..inference.engine import Engine, drive
from ..inference.entropy import Entropy
from ..inference.messages import make_engine
from ..inference.pair_engine import PairEngine, suits_pairs
from ..inference.region_engine import RegionEngine
from ..kernels.pairs import pair_bias, take_messages
from ..kernels.regions import message_terms
from .examples import Shard
from .part import Part

_OTHER = "the checkpoint belongs to other examples: its messages do not fit them."


class PairBias:
    """Biases of pairs made on demand from their two messages: (N, K) is too large to hold."""

    def __init__(
        self, lam: Floats, shape: tuple[int, ...], scale: float | Floats, extra: Any, epsilon: float
    ) -> None:
        self._lam, self._states, self._scale = lam, shape, scale
        self._extra, self._epsilon = extra, epsilon
        self.shape = (len(lam), shape[0] * shape[1])

    def __getitem__(self, rows: Any) -> Floats:
        lam = self._lam[rows]
        table = np.empty((len(lam), self.shape[1]))
        scale = self._scale[rows] if isinstance(self._scale, np.ndarray) else np.full(len(lam), self._scale)
        pair_bias(lam, scale, *self._states, table)
        return table if self._extra is None else table + self._extra[rows] / self._epsilon


class Messages:
    """Messages of every shard of a part, warm from call to call, and the biases they make.

    Pairs keep their messages in score units, (N, 2, states); other kinds the bias itself, (N, K). With clamped labels
    there are messages only: nobody asks for the biases, which are not defined at states that labels forbid.

    Args:
        part: the rows and shards.
        epsilons: epsilon of each kind.
        delta: per kind Delta_alpha(y), (N, K) or something that makes rows on demand, or None if it is zero.
        schedule: of message passing.
        states: largest number of states in the data set.
        observed: clamp labelled variables (the second inference of training with hidden variables).
    """

    def __init__(
        self,
        part: Part,
        epsilons: Mapping[str, float],
        delta: Mapping[str, Any],
        schedule: str,
        states: int,
        observed: bool = False,
    ) -> None:
        self.part, self.epsilons, self.delta, self.observed = part, dict(epsilons), dict(delta), observed
        self.schedule = schedule
        self._entropies: dict[int, Entropy] = {}
        self._pairwise = schedule != "residual" and all(suits_pairs(shard.graph) for shard in part.shards)
        #: Messages and biases of all kinds, and what `keep` remembers of them, under the names of a checkpoint.
        self._arrays: dict[str, Floats] = {}
        self._kept: dict[str, Floats] = {}
        self._flat: list[Floats | None] = [None] * len(part.shards)
        self._kept_flat: list[Floats | None] = []
        for kind, shape in part.shapes.items():
            if self._pairwise and len(shape) == 2:
                self._arrays[f"lam_{kind}"] = np.zeros((part.n_rows(kind), 2, states))
            elif not observed:
                self._arrays[f"bias_{kind}"] = np.zeros((part.n_rows(kind), part.n_outputs(kind)))
                self._add_delta(kind, slice(None))

    def _entropy(self, number: int) -> Entropy:
        """Counting numbers of a shard; shards of one graph without weights share them."""
        shard, weighted = self.part.shards[number], self.part.is_weighted()
        key = -1 - number if weighted else id(shard.graph)
        if key not in self._entropies:
            regions = shard.graph.regions
            counting = np.full(len(regions.size), max(self.epsilons.values()))
            for place, (kind, scope) in enumerate(shard.graph.scopes.items()):
                if len(scope):
                    own = slice(regions.kind_ptr[place], regions.kind_ptr[place + 1])
                    counting[own] = self.epsilons[kind]
                    weights = self.part.weights[kind]
                    if weights is not None:
                        counting[own] *= weights[shard.rows[kind]]
            self._entropies[key] = Entropy(counting, "containment", "max_score", "upper", always=True)
        return self._entropies[key]

    def run(self, number: int, theta: Mapping[str, Any], iterations: int, tol: float) -> Engine:
        """Message passing on a shard; its engine, whose messages are stored.

        Without iterations nothing is stored: an engine may hold messages in a form that changes their last bits.
        """
        engine = self._engine(number, theta)
        if iterations:
            drive(engine, iterations, tol)
            self._store(number, engine)
        return engine

    def _engine(self, number: int, theta: Mapping[str, Any]) -> Engine:
        shard = self.part.shards[number]
        labels = shard.labels if self.observed else None
        scores, entropy = Scores(shard.graph, theta, labels), self._entropy(number)
        # messages of all shards have one layout, which is that of regions where one shard has larger ones
        engine = make_engine(scores, entropy, self.schedule, regions=not self._pairwise)
        if isinstance(engine, PairEngine):
            engine.set_messages(self._shard_messages(shard))
        elif (flat := self._flat[number]) is not None:
            if flat.shape != engine.regions.lam.shape:
                raise PotentiaError(_OTHER)
            engine.set_messages(flat)
        return engine

    def _shard_messages(self, shard: Shard) -> Floats:
        states = int(shard.graph.n_states.max())
        kinds = [kind for kind, scope in shard.graph.scopes.items() if len(scope) and scope.shape[1] == 2]
        parts = [self._arrays[f"lam_{kind}"][shard.rows[kind], :, :states] for kind in kinds]
        return np.concatenate([np.zeros((0, 2, states)), *parts])

    def _store(self, number: int, engine: Engine) -> None:
        shard = self.part.shards[number]
        if isinstance(engine, PairEngine):
            self._store_pairs(shard, engine)
            return
        assert isinstance(engine, RegionEngine)
        self._flat[number] = engine.regions.lam.copy()
        if self.observed:
            return
        ptr = shard.graph.regions.kind_ptr
        for place, (kind, scope) in enumerate(shard.graph.scopes.items()):
            if len(scope):
                out = np.empty(len(scope) * self.part.n_outputs(kind))
                message_terms(engine.regions, ptr[place], ptr[place + 1], out)
                self._set_bias(kind, shard.rows[kind], out.reshape(len(scope), -1))

    def _store_pairs(self, shard: Shard, engine: PairEngine) -> None:
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
                own = self._arrays[f"lam_{kind}"]
                own[shard.rows[kind], :, : lam.shape[2]] = lam[first : first + len(scope)]
                first += len(scope)
            elif not self.observed:
                self._set_bias(kind, shard.rows[kind], terms[scope[:, 0], : self.part.n_outputs(kind)])

    def _set_bias(self, kind: str, rows: slice, terms: Floats) -> None:
        """bias = terms / c + Delta / epsilon."""
        scale, bias = self._scale(kind), self._arrays[f"bias_{kind}"]
        bias[rows] = terms * (scale[rows, None] if isinstance(scale, np.ndarray) else scale)
        self._add_delta(kind, rows)

    def _add_delta(self, kind: str, rows: slice) -> None:
        delta = self.delta.get(kind)
        if delta is not None:
            self._arrays[f"bias_{kind}"][rows] += delta[rows] / self.epsilons[kind]

    def _scale(self, kind: str) -> float | Floats:
        """1 / c of a kind's regions."""
        weights = self.part.weights[kind]
        return 1.0 / self.epsilons[kind] if weights is None else 1.0 / (self.epsilons[kind] * weights)

    def bias(self, kind: str) -> Any:
        """Biases of all regions of a kind, (N, K): an array, or something that makes rows on demand."""
        if f"bias_{kind}" in self._arrays:
            return self._arrays[f"bias_{kind}"]
        return PairBias(
            self._arrays[f"lam_{kind}"],
            self.part.shapes[kind],
            self._scale(kind),
            self.delta.get(kind),
            self.epsilons[kind],
        )

    def keep(self) -> None:
        """Remember the messages as they are, for `go_back`."""
        for name, values in self._arrays.items():
            np.copyto(self._kept.setdefault(name, np.empty_like(values)), values)
        self._kept_flat = list(self._flat)  # these are replaced, never written to

    def go_back(self) -> None:
        """Take the messages that were kept last."""
        for name, values in self._arrays.items():
            np.copyto(values, self._kept[name])
        self._flat = list(self._kept_flat)

    def forget(self) -> None:
        """Let go of the messages that were kept."""
        self._kept, self._kept_flat = {}, []

    def state(self) -> dict[str, Floats]:
        """All messages as named arrays, for a checkpoint."""
        return self._arrays | _numbered(self._flat)

    def everything(self) -> dict[str, Floats]:
        """All messages and those kept for `go_back`, as named arrays."""
        kept = self._kept | _numbered(self._kept_flat)
        return self.state() | {f"kept_{name}": array for name, array in kept.items()}

    def take_everything(self, arrays: Mapping[str, Floats]) -> None:
        """Take over what `everything` gave."""
        kept, n = prefixed(arrays, "kept_"), range(len(self._flat))
        self._kept = {name: kept[name] for name in self._arrays if name in kept}
        self._kept_flat = [kept.get(f"flat{i}") for i in n]
        self._arrays = {name: arrays[name] for name in self._arrays}
        self._flat = [arrays.get(f"flat{i}") for i in n]

    def restore(self, arrays: Mapping[str, Floats]) -> None:
        """Take back what `state` gave."""
        # messages of states that labels forbid are -inf
        flat = Array("f8", ("*",), below=np.inf, finite=False, optional=True)
        numbers = [f"flat{i}" for i in range(len(self._flat))]
        found = check_state({**like(self._arrays), **dict.fromkeys(numbers, flat)}, arrays)
        self._flat = [found.pop(name) for name in numbers]
        self._arrays = found


def _numbered(flat: Sequence[Floats | None]) -> dict[str, Floats]:
    """The messages of shards of larger regions, those that there are, by the shards' numbers."""
    return {f"flat{i}": lam for i, lam in enumerate(flat) if lam is not None}

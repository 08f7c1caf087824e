"""The messages of a part, shard by shard, and the biases they make for logistic regressions.

    bias_alpha = Delta_alpha / epsilon_alpha + (sum_children lam - sum_parents lam) / c_alpha

with c_alpha = epsilon_alpha times the region's weight [ILR-chapter Eq. 1.20].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.schema import Array, check_state, like
from ..base.types import Floats, PotentiaError
from ..graph.scores import Scores
from ..inference.engine import Engine, Entropy, drive
from ..inference.messages import make_engine
from ..inference.pair_engine import PairEngine, suits_pairs
from ..inference.region_engine import RegionEngine
from ..kernels.pairs import pair_bias, take_messages
from ..kernels.regions import message_terms
from .examples import Shard, delta_tables
from .part import Part

if TYPE_CHECKING:
    from .joint import JointSettings

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
    """Messages of every shard of a part, which `run` replaces in `arrays`, and the biases they make.

    Pairs keep their messages in score units, (N, 2, states); other kinds the bias itself, (N, K). With clamped labels
    there are messages only: nobody asks for the biases, which are not defined at states that labels forbid.

    Args:
        part: the rows and shards.
        settings: epsilons, Delta and schedule.
        arrays: messages and biases under the names of a checkpoint; those that `run` writes to are the caller's own.
        observed: clamp labelled variables (the second inference of training with hidden variables).
    """

    def __init__(
        self,
        part: Part,
        settings: JointSettings,
        arrays: dict[str, Floats],
        observed: bool = False,
    ) -> None:
        self.part, self.arrays, self.observed = part, arrays, observed
        self.epsilons, self.schedule = settings.epsilons, settings.schedule
        self.delta: Mapping[str, Any] = {}
        if not observed:
            self.delta = part.cached("delta", lambda: delta_tables(part, settings.delta))
        self._pairwise = _is_pairwise(part)

    def _entropy(self, number: int) -> Entropy:
        """Counting numbers of a shard; shards of one graph without weights share them."""
        shard, weighted = self.part.shards[number], self.part.is_weighted()

        def make() -> Entropy:
            regions = shard.graph.regions
            counting = np.full(len(regions.size), max(self.epsilons.values()))
            for place, (kind, scope) in enumerate(shard.graph.scopes.items()):
                if len(scope):
                    own = slice(regions.kind_ptr[place], regions.kind_ptr[place + 1])
                    counting[own] = self.epsilons[kind]
                    weights = self.part.weights[kind]
                    if weights is not None:
                        counting[own] *= weights[shard.rows[kind]]
            return Entropy(counting, "containment", "max_score", "upper", always=True)

        return self.part.cached(("entropy", -1 - number if weighted else id(shard.graph)), make)

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
        elif (flat := self.arrays.get(f"flat{number}")) is not None:
            if flat.shape != engine.regions.lam.shape:
                raise PotentiaError(_OTHER)
            engine.set_messages(flat)
        return engine

    def _shard_messages(self, shard: Shard) -> Floats:
        states = int(shard.graph.n_states.max())
        kinds = [kind for kind, scope in shard.graph.scopes.items() if len(scope) and scope.shape[1] == 2]
        parts = [self.arrays[f"lam_{kind}"][shard.rows[kind], :, :states] for kind in kinds]
        return np.concatenate([np.zeros((0, 2, states)), *parts])

    def _store(self, number: int, engine: Engine) -> None:
        shard = self.part.shards[number]
        if isinstance(engine, PairEngine):
            self._store_pairs(shard, engine)
            return
        assert isinstance(engine, RegionEngine)
        self.arrays[f"flat{number}"] = engine.regions.lam.copy()
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
                own = self.arrays[f"lam_{kind}"]
                own[shard.rows[kind], :, : lam.shape[2]] = lam[first : first + len(scope)]
                first += len(scope)
            elif not self.observed:
                self._set_bias(kind, shard.rows[kind], terms[scope[:, 0], : self.part.n_outputs(kind)])

    def _set_bias(self, kind: str, rows: slice, terms: Floats) -> None:
        """bias = terms / c + Delta / epsilon."""
        scale, bias = self._scale(kind), self.arrays[f"bias_{kind}"]
        bias[rows] = terms * (scale[rows, None] if isinstance(scale, np.ndarray) else scale)
        self._add_delta(kind, rows)

    def _add_delta(self, kind: str, rows: slice) -> None:
        delta = self.delta.get(kind)
        if delta is not None:
            self.arrays[f"bias_{kind}"][rows] += delta[rows] / self.epsilons[kind]

    def _scale(self, kind: str) -> float | Floats:
        """1 / c of a kind's regions."""
        weights = self.part.weights[kind]
        return 1.0 / self.epsilons[kind] if weights is None else 1.0 / (self.epsilons[kind] * weights)

    def bias(self, kind: str) -> Any:
        """Biases of all regions of a kind, (N, K): an array, or something that makes rows on demand."""
        if f"bias_{kind}" in self.arrays:
            return self.arrays[f"bias_{kind}"]
        return PairBias(
            self.arrays[f"lam_{kind}"],
            self.part.shapes[kind],
            self._scale(kind),
            self.delta.get(kind),
            self.epsilons[kind],
        )


def start_messages(part: Part, settings: JointSettings, observed: bool = False) -> dict[str, Floats]:
    """Zero messages of all shards, and the biases of Delta alone."""
    delta = {} if observed else part.cached("delta", lambda: delta_tables(part, settings.delta))
    arrays = {}
    for kind, shape in part.shapes.items():
        if _is_pairwise(part) and len(shape) == 2:
            arrays[f"lam_{kind}"] = np.zeros((part.n_rows(kind), 2, settings.states))
        elif not observed:
            bias = arrays[f"bias_{kind}"] = np.zeros((part.n_rows(kind), part.n_outputs(kind)))
            if delta.get(kind) is not None:
                bias += delta[kind][:] / settings.epsilons[kind]
    return arrays


def check_messages(part: Part, messages: Mapping[str, Floats], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Messages that a checkpoint holds, in the place of these, which fit the part."""
    # messages of states that labels forbid are -inf
    flat = Array("f8", ("*",), below=np.inf, finite=False, optional=True)
    numbers = [f"flat{number}" for number in range(len(part.shards))]
    held = {name: array for name, array in messages.items() if name not in numbers}
    found = check_state({**like(held), **dict.fromkeys(numbers, flat)}, saved)
    return {name: array for name, array in found.items() if array is not None}


def _is_pairwise(part: Part) -> bool:
    return part.cached("pairwise", lambda: all(suits_pairs(shard.graph) for shard in part.shards))

"""The reverse of `PairEngine`."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np

from .._memory import borrow, borrow_zeros
from .._threads import map_ranges
from .._types import Floats, Ints, PotentiaError
from ..graph.cotangents import (
    MarginalCotangent,
    Tables,
    add_singles,
    clique_kinds,
    flat_marginals,
)
from ..inference.base import Result
from ..inference.pair_engine import PairEngine
from ..kernels import binary_reverse as two
from ..kernels import star_reverse as kernels
from ..kernels import star_tables
from ..kernels.pairs import to_lanes
from ..kernels.simd import CHUNK
from ..kernels.star import PRODUCT

_NOTHING = np.zeros((0, 0, 0))


#: Bytes of factors kept before they are summed into tables.
_FACTOR_BYTES = 2**28


class PairReverse:
    """Cotangents beside a `PairEngine` whose messages are those of its last read-out."""

    def __init__(self, engine: PairEngine, result: Result) -> None:
        if engine.entropy.maximum:
            raise PotentiaError("the maximum (epsilon = 0) has no useful gradient: use a positive epsilon")
        self.engine, self.result = engine, result
        self.pair_tables = borrow_zeros((len(engine.pair_scores.values),))
        binary = engine.layout.n_states == 2
        self.parts: Binary | General = Binary(engine) if binary else General(engine, result.iterations)

    def read(self, cotangent: MarginalCotangent) -> None:
        """Cotangents of the marginals, pulled back to messages and scores."""
        engine = self.engine
        if cotangent.cliques:
            self._read_cliques(cotangent)
        if cotangent.singles is not None:
            d_belief = borrow_zeros(engine.blocks.belief.shape)
            to_lanes(engine.layout.variable, cotangent.singles, d_belief)
            self.parts.read(d_belief, self.pair_tables)

    def _read_cliques(self, cotangent: MarginalCotangent) -> None:
        kinds = clique_kinds(self.result.scores)
        mu = {kind: flat_marginals(self.result.marginals[kind]) for kind in kinds}
        d_mu = [cotangent.cliques.get(kind, np.zeros(mu[kind].size)) for kind in kinds]
        self.parts.read_pairs(np.concatenate(list(mu.values())), np.concatenate(d_mu), self.pair_tables)

    def undo(self, groups: Sequence[tuple[Ints, int]], old: Floats | None) -> None:
        """Undo an iteration made of these groups of units; `old`: the messages before it (None: they stay)."""
        before = _NOTHING if old is None else old
        self.parts.begin(self.pair_tables)
        for units, threads in reversed(groups):
            map_ranges(lambda a, b, u=units: self.parts.undo(u[a:b], before), 0, len(units), threads)  # type: ignore[misc]

    @property
    def pending(self) -> Floats:
        """Cotangents of the messages, still to be pulled back."""
        lam: Floats = self.parts.cotangents.lam
        return lam

    def tables(self) -> Tables:
        """d_theta; the cotangents are spent."""
        engine, scores = self.engine, self.engine.scores
        self.parts.finish(self.pair_tables)
        tables: Tables = {}
        first = 0
        for kind, scope in scores.graph.scopes.items():
            size = len(scores.kind(kind)[0])
            pairs = scope.shape[1] == 2
            tables[kind] = self.pair_tables[first : first + size] if pairs else np.zeros(size)
            first += size if pairs else 0
        lanes = self.parts.nodes().reshape(-1, engine.layout.n_states)
        add_singles(scores, lanes[engine.layout.variable_position], tables)
        return tables


class Binary:
    """Cotangents of two states: one number per message."""

    def __init__(self, engine: PairEngine) -> None:
        self.engine = engine
        rows, _, width = engine.blocks.lam.shape
        self.cotangents = two.BinaryCotangents(
            lam=borrow_zeros((rows, 1, width)),
            node=borrow_zeros((len(engine.blocks.node), width)),
            table=borrow_zeros((0 if engine.shared else rows - 1, 3, width)),
        )
        self.shared = np.zeros((2, 3))
        self._lock = Lock()

    def begin(self, out: Floats) -> None:
        """Called before an iteration is undone."""

    def read(self, d_belief: Floats, out: Floats) -> None:
        """From cotangents of variables' marginals."""
        units = np.arange(len(d_belief))
        self.shared += two.reverse_read(self.engine.blocks, self.cotangents, units, d_belief)

    def read_pairs(self, mu: Floats, d_mu: Floats, out: Floats) -> None:
        """From cotangents of pairs' marginals."""
        two.reverse_pairs(*_pairs_of(self.engine, mu, d_mu), self.cotangents.lam, out)

    def undo(self, units: Ints, before: Floats) -> None:
        """Undo updates of independent (or one thread's) blocks."""
        engine = self.engine
        part = two.reverse(engine.blocks, self.cotangents, units, engine.damping, before)
        with self._lock:
            self.shared += part

    def finish(self, out: Floats) -> None:
        """Add what was kept to d_theta of the pairs."""
        engine = self.engine
        if engine.shared:
            sides = [two.shared_table(sums).reshape(2, 2) / engine.count[0] for sums in self.shared]
            out += (sides[0] + sides[1].T).ravel()
        else:
            two.add_tables(engine.layout, engine.pair_scores, self.cotangents.table, out)

    def nodes(self) -> Floats:
        """d_theta of single variables, (blocks, lanes, states)."""
        up = self.cotangents.node
        return np.stack([-up, up], axis=-1)


class General:
    """Cotangents of any number of states."""

    def __init__(self, engine: PairEngine, iterations: int) -> None:
        self.engine = engine
        blocks = engine.blocks
        _, states, width = blocks.lam.shape
        factored = not engine.shared and width % CHUNK == 0
        in_tables = not engine.shared and not (factored and np.all(blocks.mode == PRODUCT))
        slots = max(_FACTOR_BYTES // (2 * blocks.lam.nbytes), 1)
        self.slots = min(slots, iterations + 1) if factored else 0
        self.cotangents = kernels.PairCotangents(
            lam=borrow_zeros(blocks.lam.shape),
            node=borrow_zeros(blocks.node.shape),
            table=borrow_zeros((blocks.table.size if in_tables else 0,)),
            ratios=borrow((self.slots * blocks.lam.size,)),
            inputs=borrow((self.slots * blocks.lam.size,)),
            slots=self.slots,
        )
        held = np.zeros(len(blocks.node))
        # rows of messages to the blocks they belong to
        owner = np.repeat(np.arange(len(held)), np.diff(blocks.slot_ptr))
        np.add.at(held, owner, (blocks.count[: len(owner)] * blocks.inverse[owner]).max(axis=1))
        self.centre = bool(held.max(initial=0.0) > 2.0 + 1e-9)
        self.used = 0
        self.shared = np.zeros(2 * states * states)
        self._lock = Lock()

    def begin(self, out: Floats) -> None:
        """A free place for factors."""
        if self.used == self.slots:
            self._flush(out)
        self.used += 1

    def read(self, d_belief: Floats, out: Floats) -> None:
        """From cotangents of variables' marginals."""
        self.begin(out)
        units = np.arange(len(d_belief))
        self.shared += kernels.reverse_read(
            self.engine.blocks, self.cotangents, self.used - 1, units, d_belief
        )

    def read_pairs(self, mu: Floats, d_mu: Floats, out: Floats) -> None:
        """From cotangents of pairs' marginals."""
        star_tables.reverse_pairs(*_pairs_of(self.engine, mu, d_mu), self.cotangents.lam, out)

    def undo(self, units: Ints, before: Floats) -> None:
        """Undo updates of independent (or one thread's) blocks."""
        engine = self.engine
        part = kernels.reverse(
            engine.blocks, self.cotangents, self.used - 1, units, engine.damping, self.centre, before
        )
        with self._lock:
            self.shared += part

    def _flush(self, out: Floats) -> None:
        engine = self.engine
        if self.used and self.slots:
            star_tables.flush(
                engine.layout, engine.pair_scores, engine.blocks, self.cotangents, self.used, out
            )
        self.used = 0

    def finish(self, out: Floats) -> None:
        """Add what was kept to d_theta of the pairs."""
        engine, states = self.engine, self.engine.layout.n_states
        self._flush(out)
        if engine.shared:
            psi = engine.blocks.table if engine.blocks.mode[0] == PRODUCT else np.ones_like(self.shared)
            both = (psi * self.shared).reshape(2, states, states) / engine.count[0]
            out += (both[0] + both[1].T).ravel()
        elif self.cotangents.table.size:
            star_tables.add_tables(
                engine.layout, engine.pair_scores, engine.blocks, self.cotangents.table, out
            )

    def nodes(self) -> Floats:
        """d_theta of single variables, (blocks, lanes, states)."""
        node: Floats = self.cotangents.node
        return node.transpose(0, 2, 1)


def _pairs_of(engine: PairEngine, mu: Floats, d_mu: Floats) -> tuple[Any, ...]:
    """What the kernels for pairs' marginals take first."""
    size = engine.pair_scores.shapes.prod(axis=1)
    return engine.pair_scores, engine.layout.pair_position, mu, d_mu, np.cumsum(size) - size

"""The reverse of `PairEngine`."""

from __future__ import annotations

from collections.abc import Sequence

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
from ..kernels import star_reverse as kernels
from ..kernels.simd import CHUNK

_NOTHING = np.zeros((0, 0, 0))


#: Bytes of factors kept before they are summed into tables.
_FACTOR_BYTES = 2**27


class PairReverse:
    """Cotangents beside a `PairEngine` whose messages are those of its last read-out."""

    def __init__(self, engine: PairEngine, result: Result) -> None:
        if engine.entropy.maximum:
            raise PotentiaError("the maximum (epsilon = 0) has no useful gradient: use a positive epsilon")
        blocks = engine.blocks
        self.engine, self.result = engine, result
        _, states, width = blocks.lam.shape
        factored = not engine.shared and states > 2 and width % CHUNK == 0
        in_tables = not engine.shared and not (factored and np.all(blocks.mode == kernels.PRODUCT))
        slots = max(_FACTOR_BYTES // (2 * blocks.lam.nbytes), 1)
        slots = min(slots, result.iterations + 1) if factored else 0
        self.cotangents = kernels.PairCotangents(
            lam=borrow_zeros(blocks.lam.shape),
            node=borrow_zeros(blocks.node.shape),
            table=borrow_zeros((blocks.table.size if in_tables else 0,)),
            ratios=borrow((slots * blocks.lam.size,)),
            inputs=borrow((slots * blocks.lam.size,)),
            slots=slots,
        )
        self.used, self.slots = 0, slots
        self.shared = np.zeros(2 * states * states)
        self.pair_tables = borrow_zeros((len(engine.pair_scores.values),))

    def read(self, cotangent: MarginalCotangent) -> None:
        """Cotangents of the marginals, pulled back to messages and scores."""
        engine = self.engine
        if cotangent.cliques:
            self._read_cliques(cotangent)
        if cotangent.singles is not None:
            d_belief = np.zeros_like(engine.blocks.belief)
            used = engine.layout.variable >= 0
            d_belief.transpose(0, 2, 1)[used] = cotangent.singles[engine.layout.variable[used]]
            self.shared += kernels.reverse_read(
                engine.blocks, self.cotangents, self._slot(), np.arange(len(d_belief)), d_belief
            )

    def _read_cliques(self, cotangent: MarginalCotangent) -> None:
        engine = self.engine
        kinds = clique_kinds(self.result.scores)
        mu = {kind: flat_marginals(self.result.marginals[kind]) for kind in kinds}
        d_mu = [cotangent.cliques.get(kind, np.zeros(mu[kind].size)) for kind in kinds]
        size = engine.pair_scores.shapes.prod(axis=1)
        kernels.reverse_pairs(
            engine.pair_scores, engine.layout.pair_position, np.concatenate(list(mu.values())),
            np.concatenate(d_mu), np.cumsum(size) - size, self.cotangents.lam, self.pair_tables,
        )  # fmt: skip

    def undo(self, groups: Sequence[tuple[Ints, int]], old: Floats | None) -> None:
        """Undo an iteration made of these groups of units; `old`: the messages before it (None: they stay)."""
        engine, before, slot = self.engine, _NOTHING if old is None else old, self._slot()
        for units, threads in reversed(groups):
            parts = map_ranges(
                lambda a, b, units=units: kernels.reverse(  # type: ignore[misc]
                    engine.blocks, self.cotangents, slot, units[a:b], engine.damping, before
                ),
                0,
                len(units),
                threads,
            )
            for part in parts:
                self.shared += part

    def _slot(self) -> int:
        """A free place for factors."""
        if self.used == self.slots:
            self._flush()
        self.used += 1
        return self.used - 1

    def _flush(self) -> None:
        engine = self.engine
        if self.used and self.slots:
            kernels.flush(
                engine.layout, engine.pair_scores, engine.blocks, self.cotangents, self.used, self.pair_tables
            )
        self.used = 0

    def remaining(self) -> float:
        """Largest cotangent of a message."""
        return float(np.abs(self.cotangents.lam).max(initial=0.0))

    def tables(self) -> Tables:
        """d_theta; the cotangents are spent."""
        engine, scores = self.engine, self.engine.scores
        self._flush()
        if engine.shared:
            self.pair_tables += self._shared_table()
        elif self.cotangents.table.size:
            kernels.add_tables(
                engine.layout, engine.pair_scores, engine.blocks, self.cotangents.table, self.pair_tables
            )
        tables: Tables = {}
        first = 0
        for kind, scope in scores.graph.scopes.items():
            size = len(scores.kind(kind)[0])
            pairs = scope.shape[1] == 2
            tables[kind] = self.pair_tables[first : first + size] if pairs else np.zeros(size)
            first += size if pairs else 0
        lanes = self.cotangents.node.transpose(0, 2, 1).reshape(-1, engine.layout.n_states)
        add_singles(scores, lanes[engine.layout.variable_position], tables)
        return tables

    def _shared_table(self) -> Floats:
        engine, states = self.engine, self.engine.layout.n_states
        psi = engine.blocks.table if engine.blocks.mode[0] == kernels.PRODUCT else np.ones_like(self.shared)
        both = (psi * self.shared).reshape(2, states, states) / engine.count[0]
        return (both[0] + both[1].T).ravel()

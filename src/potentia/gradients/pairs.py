"""The reverse of `PairEngine` and `WeightEngine`."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from ..base.memory import borrow, borrow_zeros
from ..base.threads import PIECES, piece_of
from ..base.types import Floats, Ints, PotentiaError
from ..graph.cotangents import (
    MarginalCotangent,
    Tables,
    add_singles,
    clique_kinds,
    flat_marginals,
    split_pairs,
    zero_tables,
)
from ..inference.base import Result
from ..inference.engine import run_lists
from ..inference.pair_engine import PairEngine
from ..inference.weight_engine import WeightEngine
from ..kernels import binary as two
from ..kernels import star_reverse
from ..kernels.machine.simd import CHUNK
from ..kernels.machine.team import Team
from ..kernels.pairs import to_lanes
from ..kernels.star_blocks import PRODUCT, MessageRecord, add_slopes
from .base import Reverse


class PairReverse(Reverse):
    """Cotangents beside a `PairEngine` that left its updates on a tape, those of the read-out in slot 0.

    cotangents: of messages, single scores and tables in the layout of the blocks. pair_tables: d_theta of the pairs.
    fixed: all reversed updates read slot 0 instead of one slot each.
    """

    cotangents: Any
    pair_tables: Floats

    def __init__(self, engine: PairEngine, result: Result, slots: MessageRecord, fixed: bool) -> None:
        if engine.entropy.maximum:
            raise PotentiaError("the maximum (epsilon = 0) has no useful gradient: use a positive epsilon.")
        self.engine, self.result, self.slots, self.fixed = engine, result, slots, fixed
        self._begin()

    @abstractmethod
    def _begin(self) -> None:
        """Zero `cotangents` and `pair_tables`."""

    @property
    def pending(self) -> Floats:
        """Cotangents of the messages, still to be pulled back."""
        lam: Floats = self.cotangents.lam
        return lam

    def read(self, cotangent: MarginalCotangent) -> None:
        """Cotangents of the marginals, pulled back to messages and scores."""
        engine = self.engine
        if cotangent.cliques:
            kinds = clique_kinds(self.result.scores)
            mu = {kind: flat_marginals(self.result.marginals[kind]) for kind in kinds}
            d_mu = [cotangent.cliques.get(kind, np.zeros(mu[kind].size)) for kind in kinds]
            size = engine.pair_places.shapes.prod(axis=1)
            self._read_pairs(np.concatenate(list(mu.values())), np.concatenate(d_mu), np.cumsum(size) - size)
        if cotangent.singles is not None:
            d_belief = borrow_zeros(engine.blocks.belief.shape)
            to_lanes(engine.layout.variable, cotangent.singles, d_belief)
            engine.over_groups(lambda a, b: self._read_variables(np.arange(a, b), d_belief))

    @abstractmethod
    def _read_pairs(self, mu: Floats, d_mu: Floats, start: Ints) -> None:
        """From cotangents of pairs' marginals; that of pair e from start[e] on."""

    @abstractmethod
    def _read_variables(self, units: Ints, d_belief: Floats) -> None:
        """From cotangents of variables' marginals, (blocks, states, lanes)."""

    def undo(self, rounds: list[list[Ints]], slot: int, many: int = 1) -> None:
        """Undo `many` iterations of these rounds of units, of which the first is in a slot of the tape."""
        record = self.slots._replace(slot=slot)
        for lists in reversed(rounds):
            run_lists(lists, lambda units, team: self._undo(units, record, many, team))

    @abstractmethod
    def _undo(self, units: Ints, record: MessageRecord, many: int, team: Team) -> None:
        """Undo updates of independent (or one thread's) blocks."""

    def pull_start(self) -> None:
        """Pull what is left, the cotangents of uniform first messages, back to the scores they came from."""
        blocks, lam, node = self.engine.blocks, self.pending, self.cotangents.node
        # of a block without pairs, reduceat would take the row of the next one
        paired = np.flatnonzero(np.diff(blocks.slot_ptr))
        if len(paired):
            sums = (
                np.add.reduceat(lam[: blocks.slot_ptr[-1]], blocks.slot_ptr[paired], axis=0)
                * blocks.inverse[paired, None, :]
            )
            node[paired] += sums.reshape(-1, *node.shape[1:])

    def tables(self) -> Tables:
        """d_theta; the cotangents are spent."""
        self._finish()
        tables = self._by_kind()
        add_singles(self.engine.scores, self.engine.by_variable(self._nodes()), tables)
        return tables

    @abstractmethod
    def _finish(self) -> None:
        """Add what was kept to d_theta of the pairs."""

    def _by_kind(self) -> Tables:
        return split_pairs(self.engine.scores, self.pair_tables)

    def _nodes(self) -> Floats:
        """d_theta of single variables, (blocks, states, lanes)."""
        node: Floats = self.cotangents.node
        return node


class BinaryReverse(PairReverse):
    """Cotangents of two states: one number per message."""

    def _begin(self) -> None:
        engine = self.engine
        rows, _, width = engine.blocks.lam.shape
        self.pair_tables = borrow_zeros((len(engine.pair_scores.values),))
        self.cotangents = two.BinaryCotangents(
            lam=borrow_zeros((rows, 1, width)),
            node=borrow_zeros((len(engine.blocks.node), width)),
            table=borrow_zeros((0 if engine.shared else rows - 1, 3, width)),
            shared=np.zeros((PIECES, 2, 3)),
            piece=_pieces(engine),
        )

    def _read_pairs(self, mu: Floats, d_mu: Floats, start: Ints) -> None:
        places, position = self.engine.pair_places, self.engine.layout.pair_position
        two.reverse_pairs(places, position, mu, d_mu, start, self.cotangents.lam, self.pair_tables)

    def _read_variables(self, units: Ints, d_belief: Floats) -> None:
        two.reverse_read(self.engine.blocks, self.cotangents, self.slots._replace(slot=0), units, d_belief)

    def _undo(self, units: Ints, record: MessageRecord, many: int, team: Team) -> None:
        engine = self.engine
        two.reverse(engine.blocks, self.cotangents, record, units, many, engine.damping, team)

    def _finish(self) -> None:
        engine = self.engine
        if engine.shared:
            sides = [
                two.shared_table(sums).reshape(2, 2) / engine.count[0]
                for sums in self.cotangents.shared.sum(axis=0)
            ]
            self.pair_tables += (sides[0] + sides[1].T).ravel()
        else:
            two.add_tables(engine.layout, engine.pair_places, self.cotangents.table, self.pair_tables)

    def _nodes(self) -> Floats:
        up = self.cotangents.node
        return np.stack([-up, up], axis=1)


class TableReverse(PairReverse):
    """Cotangents of any number of states."""

    def _begin(self) -> None:
        engine, blocks = self.engine, self.engine.blocks
        rows, states, width = blocks.lam.shape
        written = not engine.shared and not engine.profile.fields
        self.factored = written and width % CHUNK == 0
        in_tables = written and not (self.factored and np.all(blocks.mode == PRODUCT))
        self.pair_tables = borrow_zeros((self._n_cotangents(),))
        self.cotangents = star_reverse.PairCotangents(
            lam=borrow_zeros(blocks.lam.shape),
            node=borrow_zeros(blocks.node.shape),
            table=borrow_zeros((blocks.table.size if in_tables else 0,)),
            ratios=(borrow_zeros if self.fixed else borrow)(
                (self.slots.inputs.size if self.factored else 0,)
            ),
            shared=borrow_zeros((PIECES if engine.shared else 1, 2 * states * states)),
            piece=_pieces(engine),
            slope=np.zeros((rows if engine.profile.fields else 0, width)),
        )
        #: First slot that holds factors: that of the read-out does once it has been undone.
        self.first = 0 if self.fixed else 1
        self.centre = _grows(engine)

    def _n_cotangents(self) -> int:
        return len(self.engine.pair_scores.values)

    def _read_pairs(self, mu: Floats, d_mu: Floats, start: Ints) -> None:
        places, position = self.engine.pair_places, self.engine.layout.pair_position
        star_reverse.reverse_pairs(places, position, mu, d_mu, start, self.cotangents.lam, self.pair_tables)

    def _read_variables(self, units: Ints, d_belief: Floats) -> None:
        self.first = 0
        record = self.slots._replace(slot=0)
        star_reverse.reverse_read(self.engine.blocks, self.cotangents, record, self.fixed, units, d_belief)

    def _undo(self, units: Ints, record: MessageRecord, many: int, team: Team) -> None:
        star_reverse.reverse(
            self.engine.blocks, self.cotangents, record, self.fixed, units, many, self.engine.damping, self.centre,
            team,
        )  # fmt: skip

    def flush(self, used: int) -> None:
        """Add the factors in the first `used` slots to d_theta of the pairs."""
        engine, out = self.engine, self.pair_tables
        if self.factored and self.first < used:
            scores, ratios, begin = engine.pair_places, self.cotangents.ratios, self.first

            def flush(a: int, b: int) -> None:
                star_reverse.flush(
                    a, b, engine.layout, scores, engine.blocks, ratios, self.slots.inputs, begin, used, out
                )

            if len(out) == int(scores.shapes.prod(axis=1).sum()):
                engine.over_groups(flush)
            else:  # pairs of several blocks add to a table that they share
                flush(0, len(engine.blocks.mode))
        self.first = 1

    def _finish(self) -> None:
        engine, states = self.engine, self.engine.layout.n_states
        # the remaining slot: that of a fixed point, or of the read-out if there was no iteration
        self.flush(1)
        if engine.shared:
            sums = self.cotangents.shared.sum(axis=0)
            psi = engine.blocks.table if engine.blocks.mode[0] == PRODUCT else np.ones_like(sums)
            both = (psi * sums).reshape(2, states, states) / engine.count[0]
            self.pair_tables += (both[0] + both[1].T).ravel()
        elif self.cotangents.table.size:
            star_reverse.add_tables(
                engine.layout, engine.pair_places, engine.blocks, self.cotangents.table, self.pair_tables
            )


class WeightReverse(TableReverse):
    """Cotangents where tables are weights times a cost; `pair_tables` holds those of weights, one per pair."""

    engine: WeightEngine

    def _n_cotangents(self) -> int:
        return len(self.engine.pairs)

    def _read_pairs(self, mu: Floats, d_mu: Floats, start: Ints) -> None:
        tables, position = np.zeros_like(mu), self.engine.layout.pair_position
        places = self.engine.pair_places._replace(offset=start)
        star_reverse.reverse_pairs(places, position, mu, d_mu, start, self.cotangents.lam, tables)
        first = entry = 0
        for kind, weighted in self.engine.scores.weighted.items():
            n, size = len(self.engine.graph.scopes[kind]), weighted.unit.size
            part = tables[entry : entry + n * size].reshape(n, size)
            self.pair_tables[first : first + n] += part @ weighted.unit.ravel()
            first, entry = first + n, entry + n * size

    def _finish(self) -> None:
        engine = self.engine
        add_slopes(engine.layout.pair, engine.count, self.cotangents.slope, self.pair_tables)

    def _by_kind(self) -> Tables:
        scores, first = self.engine.scores, 0
        tables = zero_tables(scores)
        for kind, weighted in scores.weighted.items():
            last = first + len(scores.graph.scopes[kind])
            tables[kind] = weighted.sum(self.pair_tables[first:last])
            first = last
        return tables


def _pieces(engine: PairEngine) -> Ints:
    """Where each block adds to the cotangent of a shared table; groups are undone one after another."""
    sizes = np.diff(engine.group_ptr).tolist() if engine.shared else []
    return np.array([piece for n in sizes for piece in piece_of(n)] or [0] * len(engine.blocks.mode))


def _grows(engine: PairEngine) -> bool:
    """Whether rounding of cotangents' sums grows from update to update: c_e of some variable sum to more than 2 C."""
    blocks = engine.blocks
    counts = np.zeros(len(blocks.node))
    # rows of messages to the blocks they belong to
    owner = np.repeat(np.arange(len(counts)), np.diff(blocks.slot_ptr))
    np.add.at(counts, owner, (blocks.count[: len(owner)] * blocks.inverse[owner]).max(axis=1))
    return bool(counts.max(initial=0.0) > 2.0 + 1e-9)

"""The reverse of `PairEngine`."""

from __future__ import annotations

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
from ..kernels import parametric_reverse as by_weight
from ..kernels import star_reverse
from ..kernels import star_reverse as kernels
from ..kernels.machine.simd import CHUNK
from ..kernels.machine.team import Team
from ..kernels.pairs import to_lanes
from ..kernels.star_blocks import PRODUCT, MessageRecord


class PairReverse:
    """Cotangents beside a `PairEngine` that left its updates on a tape, those of the read-out in slot 0.

    fixed: all reversed updates read slot 0 instead of one slot each.
    """

    def __init__(self, engine: PairEngine, result: Result, tape: MessageRecord, fixed: bool) -> None:
        if engine.entropy.maximum:
            raise PotentiaError("the maximum (epsilon = 0) has no useful gradient: use a positive epsilon.")
        self.engine, self.result = engine, result
        self.pair_tables, self.parts = self._begin(engine, tape, fixed)

    def _begin(self, engine: PairEngine, tape: MessageRecord, fixed: bool) -> tuple[Floats, PairParts]:
        """Cotangents of pairs' tables, and of what blocks hold."""
        tables = borrow_zeros((len(engine.pair_scores.values),))
        return tables, Binary(engine, tape) if engine.layout.n_states == 2 else General(engine, tape, fixed)

    def read(self, cotangent: MarginalCotangent) -> None:
        """Cotangents of the marginals, pulled back to messages and scores."""
        engine = self.engine
        if cotangent.cliques:
            self._read_cliques(cotangent)
        if cotangent.singles is not None:
            d_belief = borrow_zeros(engine.blocks.belief.shape)
            to_lanes(engine.layout.variable, cotangent.singles, d_belief)
            self.parts.read(d_belief)

    def _read_cliques(self, cotangent: MarginalCotangent) -> None:
        kinds = clique_kinds(self.result.scores)
        mu = {kind: flat_marginals(self.result.marginals[kind]) for kind in kinds}
        d_mu = [cotangent.cliques.get(kind, np.zeros(mu[kind].size)) for kind in kinds]
        self.parts.read_pairs(np.concatenate(list(mu.values())), np.concatenate(d_mu), self.pair_tables)

    def undo(self, rounds: list[list[Ints]], slot: int, many: int = 1) -> None:
        """Undo `many` iterations of these rounds of units, of which the first is in a slot of the tape."""
        for lists in reversed(rounds):
            run_lists(lists, lambda units, team: self.parts.undo(units, slot, many, team))

    def flush(self, used: int) -> None:
        """Called before the first `used` slots of the tape are filled again."""
        self.parts.flush(used, self.pair_tables)

    @property
    def pending(self) -> Floats:
        """Cotangents of the messages, still to be pulled back."""
        lam: Floats = self.parts.cotangents.lam
        return lam

    def pull_start(self) -> None:
        """Pull what is left, the cotangents of uniform first messages, back to the scores they came from."""
        blocks, lam, node = self.engine.blocks, self.pending, self.parts.cotangents.node
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
        self.parts.finish(self.pair_tables)
        tables = self._by_kind()
        add_singles(self.engine.scores, self.engine.by_variable(self.parts.nodes()), tables)
        return tables

    def _by_kind(self) -> Tables:
        return split_pairs(self.engine.scores, self.pair_tables)


class WeightReverse(PairReverse):
    """The same beside a `WeightEngine`; `pair_tables` holds cotangents of weights, one per pair."""

    engine: WeightEngine

    def _begin(self, engine: PairEngine, tape: MessageRecord, fixed: bool) -> tuple[Floats, PairParts]:
        assert isinstance(engine, WeightEngine)
        return np.zeros(len(engine.pairs)), ByWeight(engine, tape)

    def _by_kind(self) -> Tables:
        scores, first = self.engine.scores, 0
        tables = zero_tables(scores)
        for kind, own in scores.weighted.items():
            last = first + len(scores.graph.scopes[kind])
            tables[kind] = own.sum(self.pair_tables[first:last])
            first = last
        return tables


class Binary:
    """Cotangents of two states: one number per message."""

    def __init__(self, engine: PairEngine, tape: MessageRecord) -> None:
        self.engine, self.tape = engine, tape
        rows, _, width = engine.blocks.lam.shape
        self.cotangents = two.BinaryCotangents(
            lam=borrow_zeros((rows, 1, width)),
            node=borrow_zeros((len(engine.blocks.node), width)),
            table=borrow_zeros((0 if engine.shared else rows - 1, 3, width)),
            shared=np.zeros((PIECES, 2, 3)),
            piece=_pieces(engine),
        )

    def read(self, d_belief: Floats) -> None:
        """From cotangents of variables' marginals."""
        blocks, slot = self.engine.blocks, self.tape._replace(slot=0)
        self.engine.over_groups(
            lambda a, b: two.reverse_read(blocks, self.cotangents, slot, np.arange(a, b), d_belief)
        )

    def read_pairs(self, mu: Floats, d_mu: Floats, out: Floats) -> None:
        """From cotangents of pairs' marginals."""
        two.reverse_pairs(*_pairs_of(self.engine, mu, d_mu), self.cotangents.lam, out)

    def undo(self, units: Ints, slot: int, many: int, team: Team) -> None:
        """Undo updates of independent (or one thread's) blocks."""
        engine = self.engine
        record = self.tape._replace(slot=slot)
        two.reverse(engine.blocks, self.cotangents, record, units, many, engine.damping, team)

    def flush(self, used: int, out: Floats) -> None:
        """Nothing is left on the tape."""

    def finish(self, out: Floats) -> None:
        """Add what was kept to d_theta of the pairs."""
        engine = self.engine
        if engine.shared:
            sides = [
                two.shared_table(sums).reshape(2, 2) / engine.count[0]
                for sums in self.cotangents.shared.sum(axis=0)
            ]
            out += (sides[0] + sides[1].T).ravel()
        else:
            two.add_tables(engine.layout, engine.pair_places, self.cotangents.table, out)

    def nodes(self) -> Floats:
        """d_theta of single variables, (blocks, states, lanes)."""
        up = self.cotangents.node
        return np.stack([-up, up], axis=1)


class General:
    """Cotangents of any number of states."""

    def __init__(self, engine: PairEngine, tape: MessageRecord, fixed: bool) -> None:
        self.engine, self.tape, self.fixed = engine, tape, fixed
        blocks = engine.blocks
        _, states, width = blocks.lam.shape
        self.factored = not engine.shared and width % CHUNK == 0
        in_tables = not engine.shared and not (self.factored and np.all(blocks.mode == PRODUCT))
        self.cotangents = kernels.PairCotangents(
            lam=borrow_zeros(blocks.lam.shape),
            node=borrow_zeros(blocks.node.shape),
            table=borrow_zeros((blocks.table.size if in_tables else 0,)),
            ratios=(borrow_zeros if fixed else borrow)((tape.inputs.size if self.factored else 0,)),
            shared=borrow_zeros((PIECES if engine.shared else 1, 2 * states * states)),
            piece=_pieces(engine),
        )
        #: First slot that holds factors: that of the read-out does once it has been undone.
        self.first = 0 if fixed else 1
        self.centre = _grows(engine)

    def read(self, d_belief: Floats) -> None:
        """From cotangents of variables' marginals."""
        self.first = 0
        blocks, slot = self.engine.blocks, self.tape._replace(slot=0)
        self.engine.over_groups(
            lambda a, b: kernels.reverse_read(
                blocks, self.cotangents, slot, self.fixed, np.arange(a, b), d_belief
            )
        )

    def read_pairs(self, mu: Floats, d_mu: Floats, out: Floats) -> None:
        """From cotangents of pairs' marginals."""
        star_reverse.reverse_pairs(*_pairs_of(self.engine, mu, d_mu), self.cotangents.lam, out)

    def undo(self, units: Ints, slot: int, many: int, team: Team) -> None:
        """Undo updates of independent (or one thread's) blocks."""
        kernels.reverse(
            self.engine.blocks, self.cotangents, self.tape._replace(slot=slot), self.fixed, units,
            many, self.engine.damping, self.centre, team,
        )  # fmt: skip

    def flush(self, used: int, out: Floats) -> None:
        """Add the factors in the first `used` slots to d_theta of the pairs."""
        engine = self.engine
        if self.factored and self.first < used:
            scores, ratios, begin = engine.pair_places, self.cotangents.ratios, self.first

            def flush(a: int, b: int) -> None:
                star_reverse.flush(
                    a, b, engine.layout, scores, engine.blocks, ratios, self.tape.inputs, begin, used, out
                )

            if len(out) == int(scores.shapes.prod(axis=1).sum()):
                engine.over_groups(flush)
            else:  # pairs of several blocks add to a table that they share
                flush(0, len(engine.blocks.mode))
        self.first = 1

    def finish(self, out: Floats) -> None:
        """Add what was kept to d_theta of the pairs."""
        engine, states = self.engine, self.engine.layout.n_states
        # the remaining slot: that of a fixed point, or of the read-out if there was no iteration
        self.flush(1, out)
        if engine.shared:
            sums = self.cotangents.shared.sum(axis=0)
            psi = engine.blocks.table if engine.blocks.mode[0] == PRODUCT else np.ones_like(sums)
            both = (psi * sums).reshape(2, states, states) / engine.count[0]
            out += (both[0] + both[1].T).ravel()
        elif self.cotangents.table.size:
            star_reverse.add_tables(
                engine.layout, engine.pair_places, engine.blocks, self.cotangents.table, out
            )

    def nodes(self) -> Floats:
        """d_theta of single variables, (blocks, states, lanes)."""
        node: Floats = self.cotangents.node
        return node


class ByWeight:
    """Cotangents where tables are weights times a cost."""

    def __init__(self, engine: WeightEngine, tape: MessageRecord) -> None:
        self.engine, self.tape, self.centre = engine, tape, _grows(engine)
        blocks = engine.blocks
        rows, _, width = blocks.lam.shape
        self.cotangents = by_weight.WeightCotangents(
            lam=borrow_zeros(blocks.lam.shape),
            node=borrow_zeros(blocks.node.shape),
            slope=borrow_zeros((rows, width)),
        )

    def read(self, d_belief: Floats) -> None:
        """From cotangents of variables' marginals."""
        engine, slot = self.engine, self.tape._replace(slot=0)
        engine.over_groups(
            lambda a, b: by_weight.reverse_read(
                engine.profile, engine.blocks, self.cotangents, slot, np.arange(a, b), d_belief
            )
        )

    def read_pairs(self, mu: Floats, d_mu: Floats, out: Floats) -> None:
        """From cotangents of pairs' marginals."""
        tables = np.zeros_like(mu)
        scores, position, _, _, start = _pairs_of(self.engine, mu, d_mu)
        own = scores._replace(offset=start)
        star_reverse.reverse_pairs(own, position, mu, d_mu, start, self.cotangents.lam, tables)
        first = entry = 0
        for kind, weighted in self.engine.scores.weighted.items():
            n, size = len(self.engine.graph.scopes[kind]), weighted.unit.size
            part = tables[entry : entry + n * size].reshape(n, size)
            out[first : first + n] += part @ weighted.unit.ravel()
            first, entry = first + n, entry + n * size

    def undo(self, units: Ints, slot: int, many: int, team: Team) -> None:
        """Undo updates of independent (or one thread's) blocks."""
        engine = self.engine
        by_weight.reverse(
            engine.profile, engine.blocks, self.cotangents, self.tape._replace(slot=slot), units,
            many, engine.damping, self.centre, team,
        )  # fmt: skip

    def flush(self, used: int, out: Floats) -> None:
        """Nothing is left on the tape."""

    def finish(self, out: Floats) -> None:
        """Add what was kept to d_theta of the pairs."""
        engine = self.engine
        by_weight.add_slopes(engine.layout.pair, engine.count, self.cotangents.slope, out)

    def nodes(self) -> Floats:
        """d_theta of single variables, (blocks, states, lanes)."""
        node: Floats = self.cotangents.node
        return node


#: Cotangents of what the blocks of an engine hold.
PairParts = Binary | General | ByWeight


def _pieces(engine: PairEngine) -> Ints:
    """Where each block adds to the cotangent of a shared table; groups are undone one after another."""
    sizes = np.diff(engine.group_ptr).tolist() if engine.shared else []
    return np.array([piece for n in sizes for piece in piece_of(n)] or [0] * len(engine.blocks.mode))


def _grows(engine: PairEngine) -> bool:
    """Whether rounding of cotangents' sums grows from update to update: c_e of some variable sum to more than 2 C."""
    blocks = engine.blocks
    held = np.zeros(len(blocks.node))
    # rows of messages to the blocks they belong to
    owner = np.repeat(np.arange(len(held)), np.diff(blocks.slot_ptr))
    np.add.at(held, owner, (blocks.count[: len(owner)] * blocks.inverse[owner]).max(axis=1))
    return bool(held.max(initial=0.0) > 2.0 + 1e-9)


def _pairs_of(engine: PairEngine, mu: Floats, d_mu: Floats) -> tuple[Any, ...]:
    """What the kernels for pairs' marginals take first."""
    size = engine.pair_places.shapes.prod(axis=1)
    return engine.pair_places, engine.layout.pair_position, mu, d_mu, np.cumsum(size) - size

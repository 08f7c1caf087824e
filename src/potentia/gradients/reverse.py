"""The reverse of every engine: cotangents of marginals, pulled back through read-out and iterations to scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from ..base.resources import PIECES, borrow, borrow_zeros, piece_of
from ..base.types import Floats, Ints, PotentiaError
from ..graph.cotangents import (
    MarginalCotangent,
    Tables,
    add_singles,
    add_weights,
    flat_cotangent,
    flat_marginals,
    split_flat,
    split_pairs,
    zero_tables,
)
from ..inference.base import Result
from ..inference.engine import Engine, run_lists
from ..inference.factor_trees import factor_cotangents
from ..inference.mean_field import MeanFieldEngine, softmax
from ..inference.pair_engine import PairEngine
from ..inference.region_engine import RegionEngine
from ..kernels import binary, mean_field, star_reverse
from ..kernels import regions as region_kernels
from ..kernels.machine.simd import CHUNK
from ..kernels.machine.team import Team
from ..kernels.pairs import to_lanes
from ..kernels.star_blocks import PRODUCT, MessageRecord, add_slopes


class Reverse(ABC):
    """Cotangents beside an engine: of its messages (or marginals), which iterations change, and of its scores."""

    @property
    @abstractmethod
    def pending(self) -> Floats:
        """Cotangents of what iterations change, still to be pulled back."""

    @abstractmethod
    def read(self, cotangent: MarginalCotangent) -> None:
        """Pull cotangents of the marginals of the read-out back to messages and scores."""

    @abstractmethod
    def undo(self, rounds: list[list[Ints]], slot: int, many: int = 1) -> None:
        """Undo `many` iterations of these rounds of units, of which the first is in this slot of the tape."""

    def flush(self, used: int) -> None:
        """Called before the first `used` slots of the tape are filled again."""
        return

    @abstractmethod
    def pull_start(self) -> None:
        """Pull the cotangents of first messages that are functions of the scores back to the scores."""

    @abstractmethod
    def tables(self) -> Tables:
        """d_theta; the cotangents are spent."""


def make_reverse(engine: Engine, result: Result, slots: Any, fixed: bool) -> Reverse:
    """The reverse of an engine whose read-out and iterations left these slots of a tape.

    fixed: all reversed iterations read slot 0, that of a fixed point, instead of one slot each.
    """
    if isinstance(engine, PairEngine):
        return (BinaryReverse if engine.layout.n_states == 2 else PairReverse)(engine, result, slots, fixed)
    if isinstance(engine, RegionEngine):
        return RegionReverse(engine, slots)
    assert isinstance(engine, MeanFieldEngine)
    return MeanFieldReverse(engine, slots)


def refuse_maximum(maximum: bool) -> None:
    """Refuse max-product, whose marginals are piecewise constant."""
    if maximum:
        raise PotentiaError("the maximum (epsilon = 0) has no useful gradient: use a positive epsilon.")


class PairReverse(Reverse):
    """Cotangents beside a `PairEngine` that left its updates on a tape, those of the read-out in slot 0.

    cotangents: of messages, single scores and tables in the layout of the blocks. d_pairs: d_theta of the pairs, as
    `pair_tables` lays them out, or of their weights where the engine has weights. fixed: all reversed updates read
    slot 0 instead of one slot each.
    """

    cotangents: Any
    d_pairs: Floats

    def __init__(self, engine: PairEngine, result: Result, slots: MessageRecord, fixed: bool) -> None:
        refuse_maximum(engine.entropy.maximum)
        self.engine, self.result, self.slots, self.fixed = engine, result, slots, fixed
        #: First slot that holds factors: that of the read-out does once it has been undone.
        self.first = 0 if fixed else 1
        self._begin()

    def _begin(self) -> None:
        """Zero `cotangents` and `d_pairs`."""
        engine, blocks = self.engine, self.engine.blocks
        rows, states, width = blocks.lam.shape
        written = not engine.shared and not engine.profile.fields
        self.factored = written and width % CHUNK == 0
        in_tables = written and not (self.factored and np.all(blocks.mode == PRODUCT))
        by_weight = bool(engine.profile.fields)
        self.d_pairs = borrow_zeros((len(engine.pairs if by_weight else engine.pair_scores.values),))
        self.cotangents = star_reverse.PairCotangents(
            lam=borrow_zeros(blocks.lam.shape),
            node=borrow_zeros(blocks.node.shape),
            table=borrow_zeros((blocks.table.size if in_tables else 0,)),
            ratios=(borrow_zeros if self.fixed else borrow)((self.slots.inputs.size if self.factored else 0,)),
            shared=borrow_zeros((PIECES if engine.shared else 1, 2 * states * states)),
            piece=_pieces(engine),
            slope=np.zeros((rows if by_weight else 0, width)),
        )
        self.centre = _grows(engine)

    @property
    def pending(self) -> Floats:
        """Cotangents of the messages, still to be pulled back."""
        lam: Floats = self.cotangents.lam
        return lam

    def read(self, cotangent: MarginalCotangent) -> None:
        """Pull cotangents of the marginals back to messages and scores."""
        engine = self.engine
        if cotangent.cliques:
            kinds = engine.scores.graph.clique_kinds
            mu = {kind: flat_marginals(self.result.marginals[kind]) for kind in kinds}
            d_mu = [cotangent.cliques.get(kind, np.zeros(mu[kind].size)) for kind in kinds]
            size = engine.pair_places.shapes.prod(axis=1)
            self._read_pairs(np.concatenate(list(mu.values())), np.concatenate(d_mu), np.cumsum(size) - size)
        if cotangent.singles is not None:
            d_belief = borrow_zeros(engine.blocks.belief.shape)
            to_lanes(engine.layout.variable, cotangent.singles, d_belief)
            engine.over_groups(lambda a, b: self._read_variables(np.arange(a, b), d_belief))

    def _read_pairs(self, mu: Floats, d_mu: Floats, start: Ints) -> None:
        """From cotangents of pairs' marginals; that of pair e from start[e] on."""
        engine, lam = self.engine, self.cotangents.lam
        places, position = engine.pair_places, engine.layout.pair_position
        if not engine.profile.fields:
            star_reverse.reverse_pairs(places, position, mu, d_mu, start, lam, self.d_pairs)
            return
        tables = np.zeros_like(mu)
        star_reverse.reverse_pairs(places._replace(offset=start), position, mu, d_mu, start, lam, tables)
        first = entry = 0
        for kind, weighted in engine.scores.weighted.items():
            n, size = len(engine.graph.scopes[kind]), weighted.unit.size
            part = tables[entry : entry + n * size].reshape(n, size)
            self.d_pairs[first : first + n] += part @ weighted.unit.ravel()
            first, entry = first + n, entry + n * size

    def _read_variables(self, units: Ints, d_belief: Floats) -> None:
        """From cotangents of variables' marginals, (blocks, states, lanes)."""
        self.first = 0
        record = self.slots._replace(slot=0)
        star_reverse.reverse_read(self.engine.blocks, self.cotangents, record, self.fixed, units, d_belief)

    def undo(self, rounds: list[list[Ints]], slot: int, many: int = 1) -> None:
        """Undo `many` iterations of these rounds of units, of which the first is in a slot of the tape."""
        record = self.slots._replace(slot=slot)
        for lists in reversed(rounds):
            run_lists(lists, lambda units, team: self._undo(units, record, many, team))

    def _undo(self, units: Ints, record: MessageRecord, many: int, team: Team) -> None:
        """Undo updates of independent (or one thread's) blocks."""
        star_reverse.reverse(
            self.engine.blocks, self.cotangents, record, self.fixed, units, many, self.engine.damping, self.centre,
            team,
        )  # fmt: skip

    def flush(self, used: int) -> None:
        """Add the factors in the first `used` slots to d_theta of the pairs."""
        engine, out = self.engine, self.d_pairs
        if self.factored and self.first < used:
            scores, ratios, begin = engine.pair_places, self.cotangents.ratios, self.first

            def flush(a: int, b: int) -> None:
                """Add cotangents of the messages of blocks a .. b - 1 to those of the scores."""
                star_reverse.flush(
                    a, b, engine.layout, scores, engine.blocks, ratios, self.slots.inputs, begin, used, out
                )

            if len(out) == int(scores.shapes.prod(axis=1).sum()):
                engine.over_groups(flush)
            else:  # pairs of several blocks add to a table that they share
                flush(0, len(engine.blocks.mode))
        self.first = 1

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
        engine = self.engine
        d_node = self._finish()
        if engine.profile.fields:
            tables = zero_tables(engine.scores)
            add_weights(engine.scores, self.d_pairs, tables)
        else:
            tables = split_pairs(engine.scores, self.d_pairs)
        add_singles(engine.scores, engine.by_variable(d_node), tables)
        return tables

    def _finish(self) -> Floats:
        """Add what was kept to d_theta of the pairs; d_theta of single variables, (blocks, states, lanes)."""
        engine, states = self.engine, self.engine.layout.n_states
        # the remaining slot: that of a fixed point, or of the read-out if there was no iteration
        self.flush(1)
        if engine.profile.fields:
            add_slopes(engine.layout.pair, engine.count, self.cotangents.slope, self.d_pairs)
        elif engine.shared:
            sums = self.cotangents.shared.sum(axis=0)
            psi = engine.blocks.table if engine.blocks.mode[0] == PRODUCT else np.ones_like(sums)
            both = (psi * sums).reshape(2, states, states) / engine.count[0]
            self.d_pairs += (both[0] + both[1].T).ravel()
        elif self.cotangents.table.size:
            star_reverse.add_tables(
                engine.layout, engine.pair_places, engine.blocks, self.cotangents.table, self.d_pairs
            )
        node: Floats = self.cotangents.node
        return node


class BinaryReverse(PairReverse):
    """Cotangents of two states: one number per message."""

    def _begin(self) -> None:
        """Zero cotangents in the layout of the blocks."""
        engine = self.engine
        rows, _, width = engine.blocks.lam.shape
        self.factored = False
        self.d_pairs = borrow_zeros((len(engine.pair_scores.values),))
        self.cotangents = binary.BinaryCotangents(
            lam=borrow_zeros((rows, 1, width)),
            node=borrow_zeros((len(engine.blocks.node), width)),
            table=borrow_zeros((0 if engine.shared else rows - 1, 3, width)),
            shared=np.zeros((PIECES, 2, 3)),
            piece=_pieces(engine),
        )

    def _read_variables(self, units: Ints, d_belief: Floats) -> None:
        """Pull cotangents of the variables' beliefs back to messages and scores."""
        binary.reverse_read(self.engine.blocks, self.cotangents, self.slots._replace(slot=0), units, d_belief)

    def _undo(self, units: Ints, record: MessageRecord, many: int, team: Team) -> None:
        """Pull cotangents back through `many` iterations over these units, the last one first."""
        engine = self.engine
        binary.reverse(engine.blocks, self.cotangents, record, units, many, engine.damping, team)

    def _finish(self) -> Floats:
        """Cotangents of the variables' scores, (n, 2); those of tables are added to `d_pairs`."""
        engine, up = self.engine, self.cotangents.node
        if engine.shared:
            total, low, high = self.cotangents.shared.sum(axis=0).T  # see `binary._spread`
            sides = np.stack([low - total, -low, total - high, high], axis=1).reshape(2, 2, 2) / engine.count[0]
            self.d_pairs += (sides[0] + sides[1].T).ravel()
        else:
            binary.add_tables(engine.layout, engine.pair_places, self.cotangents.table, self.d_pairs)
        return np.stack([-up, up], axis=1)


def _pieces(engine: PairEngine) -> Ints:
    """The piece of the cotangent of a shared table that each block adds to; groups are undone one after another."""
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


def _in_order(rounds: list[list[Ints]]) -> Ints:
    """The units of rounds without barriers, one after another."""
    return np.concatenate([units for lists in rounds for units in lists])


class RegionReverse(Reverse):
    """Cotangents beside a `RegionEngine` whose messages are those of its last read-out."""

    def __init__(self, engine: RegionEngine, slots: Floats) -> None:
        refuse_maximum(engine.regions.maximum)
        self.engine, self.slots = engine, slots
        self.d_theta, self.d_lam = np.zeros_like(engine.regions.theta), np.zeros_like(engine.regions.lam)
        self.back = factor_cotangents(engine.regions.trees)

    def read(self, cotangent: MarginalCotangent) -> None:
        """Pull cotangents of the marginals back to messages and scores."""
        g = self.engine.regions
        d_belief = flat_cotangent(self.engine.scores, cotangent, g.belief_at, g.belief.size)
        region_kernels.reverse_read(g, self.d_theta, self.d_lam, d_belief, self.back)

    def undo(self, rounds: list[list[Ints]], slot: int, many: int = 1) -> None:
        """Undo an iteration of these rounds of units; parents' tables are shared between them: one thread."""
        engine, before = self.engine, self.slots[slot]
        order = _in_order(rounds)
        engine.arrange(order)
        region_kernels.reverse_regions(
            engine.regions, self.d_theta, self.d_lam, engine.units[order], engine.damping, before, self.back
        )

    @property
    def pending(self) -> Floats:
        """Cotangents of the messages, still to be pulled back."""
        return self.d_lam

    def pull_start(self) -> None:
        """Pull what is left, the cotangents of uniform first messages, back to the scores they came from."""
        engine = self.engine
        np.add.at(self.d_theta, engine.own_positions(), engine.start_weights() * self.d_lam)

    def tables(self) -> Tables:
        """d_theta gathered so far."""
        return split_flat(self.engine.scores, self.d_theta, self.engine.regions.at)


class MeanFieldReverse(Reverse):
    """Cotangents beside a `MeanFieldEngine`; those of a Gaussian term are with respect to its weight."""

    def __init__(self, engine: MeanFieldEngine, slots: Floats) -> None:
        self.engine, self.slots = engine, slots
        self.d_theta, self.d_q = np.zeros_like(engine.theta), np.zeros_like(engine.q)
        self.d_spread, self.d_weight = np.zeros_like(engine.links.spread), np.zeros(len(engine.links.weight))
        self.back = factor_cotangents(engine.model.trees)
        dense = engine.scores.dense
        self.d_terms = {name: np.zeros(1) for name in dense}
        self.d_features = {name: np.zeros_like(term.features) for name, term in dense.items() if term.learned}

    def read(self, cotangent: MarginalCotangent) -> None:
        """Pull cotangents of product marginals back to the variables' own."""
        scores = self.engine.scores
        regions, taken = scores.regions, scores.regions.order == 1
        for kind in cotangent.cliques:
            taken[scores.graph.region_slices[kind]] = True
        size = np.where(taken, regions.size, 0)
        start = np.cumsum(size) - size
        flat = flat_cotangent(scores, cotangent, start, int(size.sum()))
        mean_field.reverse_products(regions, self.engine.q, taken, flat, start, self.d_q, self.engine.model, self.back)

    def undo(self, rounds: list[list[Ints]], slot: int, many: int = 1) -> None:
        """Undo an iteration of these rounds of units, then the fields of Gaussian terms that it began with."""
        engine, before, d_theta = self.engine, self.slots[slot], self.d_theta
        if engine.scores.dense:
            gathered = d_theta[engine.singles_at]
            d_theta[engine.singles_at] = 0.0
        order = _in_order(rounds)
        engine.arrange(order)
        mean_field.reverse_variables(
            engine.model, engine.variables[order], engine.q, self.d_q, d_theta, self.d_spread, self.d_weight, before,
            self.back,
        )  # fmt: skip
        if engine.scores.dense:
            d_field = d_theta[engine.singles_at]
            d_theta[engine.singles_at] += gathered
            for name, term in engine.scores.dense.items():
                self.d_terms[name] += (d_field * term.field(term.multiply(before))).sum()
                d_mixed = term.weight * term.field(d_field)
                self.d_q += term.multiply(d_mixed, transposed=True)
                if term.learned:
                    self.d_features[name] += term.pull(before, d_mixed)

    @property
    def pending(self) -> Floats:
        """Cotangents of the marginals, still to be pulled back."""
        return self.d_q

    def pull_start(self) -> None:
        """Pull what is left, the cotangents of the first distribution, back to the scores it is the softmax of."""
        q = softmax(self.engine.base)
        mean = (q * self.d_q).sum(axis=1, keepdims=True)
        self.d_theta[self.engine.singles_at] += q * (self.d_q - mean)

    def tables(self) -> Tables:
        """d_theta gathered so far."""
        scores = self.engine.scores
        tables = split_flat(scores, self.d_theta, self.engine.at, leave=scores.weighted)
        add_weights(scores, self.d_weight, tables)
        for name, d_weight in self.d_terms.items():
            tables[name] = d_weight
            if name in self.d_features:
                d_rows = np.pad(self.d_features[name], ((0, 0), (0, 1)))
                d_rows[0, -1] = d_weight[0]
                tables[name] = d_rows.ravel()
        return tables

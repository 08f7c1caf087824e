"""The reverse of `RegionEngine` and of `MeanFieldEngine`, on flat scores."""

from __future__ import annotations

import numpy as np

from ..base.types import Floats, Ints, PotentiaError
from ..graph.cotangents import MarginalCotangent, Tables, flat_cotangent, split_flat
from ..inference.mean_field import DenseMeanFieldEngine, MeanFieldEngine, softmax
from ..inference.region_engine import RegionEngine
from ..kernels import mean_field
from ..kernels import regions as regions_reverse
from .base import Reverse


def _in_order(rounds: list[list[Ints]]) -> Ints:
    """The units of rounds without barriers, one after another."""
    return np.concatenate([units for lists in rounds for units in lists])


class RegionReverse(Reverse):
    """Cotangents beside a `RegionEngine` whose messages are those of its last read-out."""

    def __init__(self, engine: RegionEngine, slots: Floats) -> None:
        if engine.regions.maximum:
            raise PotentiaError("the maximum (epsilon = 0) has no useful gradient: use a positive epsilon.")
        self.engine, self.slots = engine, slots
        self.d_theta, self.d_lam = np.zeros_like(engine.regions.theta), np.zeros_like(engine.regions.lam)

    def read(self, cotangent: MarginalCotangent) -> None:
        """Cotangents of the marginals, pulled back to messages and scores."""
        g = self.engine.regions
        d_belief = flat_cotangent(self.engine.scores, cotangent, g.belief_at, g.belief.size)
        regions_reverse.reverse_read(g, self.d_theta, self.d_lam, d_belief)

    def undo(self, rounds: list[list[Ints]], slot: int, many: int = 1) -> None:
        """Undo an iteration of these rounds of units; parents' tables are shared between them: one thread."""
        engine, before = self.engine, self.slots[slot]
        units = engine.order.units[_in_order(rounds)]
        regions_reverse.reverse_regions(
            engine.regions, self.d_theta, self.d_lam, units, engine.damping, before
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
    """Cotangents beside a `MeanFieldEngine`."""

    def __init__(self, engine: MeanFieldEngine, slots: Floats) -> None:
        self.engine, self.slots = engine, slots
        self.d_theta, self.d_q = np.zeros_like(engine.theta), np.zeros_like(engine.q)
        self.d_spread, self.d_weight = np.zeros_like(engine.links.spread), np.zeros(len(engine.links.weight))

    def read(self, cotangent: MarginalCotangent) -> None:
        """Cotangents of product marginals, pulled back to the variables' own."""
        scores = self.engine.scores
        regions, ptr = scores.regions, scores.regions.kind_ptr
        taken = regions.order == 1
        for number, kind in enumerate(scores.graph.kinds):
            taken[ptr[number] : ptr[number + 1]] |= kind in cotangent.cliques
        size = np.where(taken, regions.size, 0)
        start = np.cumsum(size) - size
        flat = flat_cotangent(scores, cotangent, start, int(size.sum()))
        mean_field.reverse_products(regions, self.engine.q, taken, flat, start, self.d_q)

    def undo(self, rounds: list[list[Ints]], slot: int, many: int = 1) -> None:
        """Undo an iteration of these rounds of units."""
        engine, before = self.engine, self.slots[slot]
        variables = engine.variables[_in_order(rounds)]
        mean_field.reverse_variables(
            engine.model, variables, engine.q, self.d_q, self.d_theta, self.d_spread, self.d_weight, before
        )

    @property
    def pending(self) -> Floats:
        """Cotangents of the marginals, still to be pulled back."""
        return self.d_q

    def tables(self) -> Tables:
        """d_theta gathered so far."""
        scores, first = self.engine.scores, 0
        tables = split_flat(scores, self.d_theta, self.engine.at, leave=scores.weighted)
        for kind, weighted in scores.weighted.items():
            last = first + len(scores.graph.scopes[kind])
            tables[kind] += weighted.sum(self.d_weight[first:last])
            first = last
        return tables


class DenseMeanFieldReverse(MeanFieldReverse):
    """Cotangents beside a `DenseMeanFieldEngine`; those of a Gaussian term are with respect to its weight."""

    engine: DenseMeanFieldEngine

    def __init__(self, engine: DenseMeanFieldEngine, slots: Floats) -> None:
        super().__init__(engine, slots)
        self.d_terms = {name: np.zeros(1) for name in engine.scores.dense}

    def undo(self, rounds: list[list[Ints]], slot: int, many: int = 1) -> None:
        """Undo an iteration of these rounds of units, then the fields that it began with."""
        engine, before = self.engine, self.slots[slot]
        gathered = self.d_theta[engine.singles_at]
        self.d_theta[engine.singles_at] = 0.0
        super().undo(rounds, slot)
        d_field = self.d_theta[engine.singles_at]
        self.d_theta[engine.singles_at] += gathered
        for name, term in engine.scores.dense.items():
            self.d_terms[name] += (d_field * term.field(term.kernel.multiply(before))).sum()
            self.d_q += term.weight * term.kernel.multiply(term.field(d_field), transposed=True)

    def pull_start(self) -> None:
        """Pull what is left, the cotangents of the first distribution, back to the scores it is the softmax of."""
        if not self.engine.soft_start:
            return
        q = softmax(self.engine.base)
        mean = (q * self.d_q).sum(axis=1, keepdims=True)
        self.d_theta[self.engine.singles_at] += q * (self.d_q - mean)

    def tables(self) -> Tables:
        """d_theta gathered so far."""
        return {**super().tables(), **self.d_terms}

"""The reverse of `RegionEngine` and of `MeanFieldEngine`, on flat scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._types import Floats, Ints, PotentiaError
from ..graph.cotangents import MarginalCotangent, Tables, flat_cotangent, split_flat
from ..inference.base import Result
from ..inference.mean_field import MeanFieldEngine
from ..inference.region_engine import RegionEngine
from ..kernels import mean_field_reverse, regions_reverse


class RegionReverse:
    """Cotangents beside a `RegionEngine` whose messages are those of its last read-out."""

    def __init__(self, engine: RegionEngine, result: Result, tape: Floats, fixed: bool) -> None:
        if engine.regions.maximum:
            raise PotentiaError("the maximum (epsilon = 0) has no useful gradient: use a positive epsilon")
        self.engine, self.tape = engine, tape
        self.d_theta, self.d_lam = np.zeros_like(engine.regions.theta), np.zeros_like(engine.regions.lam)

    def read(self, cotangent: MarginalCotangent) -> None:
        """Cotangents of the marginals, pulled back to messages and scores."""
        g = self.engine.regions
        d_belief = flat_cotangent(self.engine.scores, cotangent, g.belief_at, g.belief.size)
        regions_reverse.reverse_read(g, self.d_theta, self.d_lam, d_belief)

    def undo(self, groups: Sequence[tuple[Ints, int]], slot: int) -> None:
        """Undo an iteration made of these groups of units; parents' tables are shared between them: one thread."""
        engine, before = self.engine, self.tape[slot]
        units = engine.order.units[np.concatenate([units for units, _ in groups])]
        regions_reverse.reverse_regions(
            engine.regions, self.d_theta, self.d_lam, units, engine.damping, before
        )

    @property
    def pending(self) -> Floats:
        """Cotangents of the messages, still to be pulled back."""
        return self.d_lam

    def flush(self, used: int) -> None:
        """Nothing is left on the tape."""

    def pull_start(self) -> None:
        """Pull what is left, the cotangents of uniform first messages, back to the scores they came from."""
        engine = self.engine
        np.add.at(self.d_theta, engine.own_positions(), engine.start_weights() * self.d_lam)

    def tables(self) -> Tables:
        """d_theta gathered so far."""
        return split_flat(self.engine.scores, self.d_theta, self.engine.regions.at)


class MeanFieldReverse:
    """Cotangents beside a `MeanFieldEngine`."""

    def __init__(self, engine: MeanFieldEngine, result: Result, tape: Floats, fixed: bool) -> None:
        self.engine, self.tape = engine, tape
        self.d_theta, self.d_q = np.zeros_like(engine.theta), np.zeros_like(engine.q)

    def read(self, cotangent: MarginalCotangent) -> None:
        """Cotangents of product marginals, pulled back to the variables' own."""
        regions = self.engine.scores.regions
        start = np.cumsum(regions.size) - regions.size
        flat = flat_cotangent(self.engine.scores, cotangent, start, int(regions.size.sum()))
        mean_field_reverse.reverse_products(regions, self.engine.q, flat, start, self.d_q)

    def undo(self, groups: Sequence[tuple[Ints, int]], slot: int) -> None:
        """Undo an iteration made of these groups of variables."""
        engine, before = self.engine, self.tape[slot]
        variables = engine.variables[np.concatenate([units for units, _ in groups])]
        mean_field_reverse.reverse_variables(
            engine.scores.regions,
            engine.stars,
            engine.theta,
            engine.at,
            engine.pair_at,
            variables,
            engine.q,
            self.d_q,
            self.d_theta,
            before,
        )

    @property
    def pending(self) -> Floats:
        """Cotangents of the marginals, still to be pulled back."""
        return self.d_q

    def flush(self, used: int) -> None:
        """Nothing is left on the tape."""

    def tables(self) -> Tables:
        """d_theta gathered so far."""
        return split_flat(self.engine.scores, self.d_theta, self.engine.at)

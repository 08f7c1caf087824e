"""Elimination within limits: stopped by a clock, and conditioned on a few variables so that it fits in memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np

from ..base.types import Bools, Floats, Ints
from ..kernels.elimination import send_up
from ..kernels.traversal import order_cliques
from .clock import Clock
from .elimination import EliminationPlan
from .order_search import Interactions, Order, first_order, search_orders, trials, without

#: Joint states of the cutset at most.
_MAX_STATES = 4096
#: Orders tried after each variable that joins the cutset.
_TRIALS = 24


class Cutset(NamedTuple):
    """Variables to condition on, and an elimination order of the others."""

    variables: Ints
    order: Ints

    def states(self, allowed: Bools) -> Iterator[tuple[int, ...]]:
        """All joint allowed states."""
        return product(*(np.flatnonzero(allowed[v]).tolist() for v in self.variables))


def clamped(allowed: Bools, variables: Ints, states: tuple[int, ...]) -> Bools:
    """The allowed states with some variables in one state each."""
    narrow = allowed.copy()
    narrow[variables] = False
    narrow[variables, states] = True
    return narrow


def choose_cutset(joined: Interactions, order: Order, entries: float, work: float, seed: int) -> Cutset | None:
    """Variables in the largest cliques, one after another, until messages have at most `entries`.

    None if all joint states together take more than `work` table entries.
    """
    chosen: list[int] = []
    free, states = joined, 1
    while order.total / 2 > entries:
        best = _heaviest(free, order)
        states *= int(free.card[best])
        chosen.append(int(free.free[best]))
        if states > _MAX_STATES:
            return None
        free = without(free, np.arange(len(free.free)) == best)
        order = search_orders(free, first_order(free), trials(_TRIALS), seed)
        if states * order.total > work:
            return None
    return Cutset(np.array(chosen, dtype=np.int64), free.free[order.order])


def _heaviest(joined: Interactions, order: Order) -> int:
    """The variable whose cliques have most table entries."""
    clique_ptr, clique = order_cliques(joined.ptr, joined.neighbour, order.order, order.members)
    card = joined.card[order.order].astype(np.float64)
    size = np.multiply.reduceat(card[clique], clique_ptr[:-1])
    mass = np.bincount(clique, np.repeat(size, np.diff(clique_ptr)), len(card))
    return int(order.order[np.argmax(mass * (1.0 - 1.0 / card))])


def send_up_timed(
    made: EliminationPlan, values: Floats, where: Ints, clock: Clock
) -> tuple[Floats, Floats, float] | None:
    """The store of tables and messages, the peaks, and the seconds it took; None if it would take too long."""
    program, n = made.program, len(made.order)
    store, peaks, ones = np.empty(program.offset[-1]), np.zeros(n), np.ones(n)
    store[: len(made.entry)] = values[made.entries(where)]
    sizes = np.diff(program.offset[-n - 1 :]) * program.card
    ends = np.cumsum(sizes)
    begun, first = clock.now, 0
    while first < n:
        last = max(first + 1, int(np.searchsorted(ends, (ends[first - 1] if first else 0) + 2**25)))
        if not send_up(program, store, ones, peaks, first, last):
            peaks[-1] = -np.inf
            return store, peaks, clock.now - begun
        first = last
        spent, done = clock.now - begun, ends[first - 1] / ends[-1]
        if done < 1.0 and (clock.left <= 0 or (done > 0.05 and spent * (1.0 - done) / done > 0.95 * clock.left)):
            return None
    return store, peaks, clock.now - begun

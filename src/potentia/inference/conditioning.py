"""Conditioning: a few variables whose joint states are enumerated, so that elimination of the others fits in memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np

from ..base.types import Bools, Ints
from ..kernels.ordering import order_cliques
from .elimination import Order
from .order_search import Interactions, first_order, search_orders, without

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


def choose_cutset(
    joined: Interactions, order: Order, entries: float, work: float, seed: int
) -> Cutset | None:
    """Variables in the largest cliques, one after another, until messages have at most so many entries.

    None where all joint states together take more than `work` table entries.
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
        trials = iter(range(_TRIALS))
        order = search_orders(
            free, first_order(free), lambda _, left=trials: next(left, None) is not None, seed
        )  # type: ignore[misc]
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

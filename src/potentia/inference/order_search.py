"""Elimination orders by randomised greedy search, for as long as that pays."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..base.types import Bools, InfeasibleError, Ints
from ..graph.layout import walk
from ..graph.scores import Scores
from ..kernels.rounding import prune_states
from ..kernels.traversal import greedy_order
from .elimination import Order, adjacency, follow_order

#: Spread of the random factors of edge costs, one after another.
_SPREADS = (0.0, 0.2, 0.2, 0.6)
#: Variables above which the first order is by table size, which is found faster than by fill.
_MANY = 20_000
#: Table entries at which a greedy order is given up: from there on the rest is nearly complete, and slow to order.
_HOPELESS = 2.0**80


class Interactions(NamedTuple):
    """Which undecided variables share a table: CSR neighbours, and the states left to each.

    Attributes:
        free: the variables, (n,). card: their states left. ptr, neighbour: CSR over positions in `free`.
    """

    free: Ints
    card: Ints
    ptr: Ints
    neighbour: Ints


def allowed_states(scores: Scores) -> Bools:
    """States that propagation of the hard constraints leaves, (n_variables, max states); refuses if there are none."""
    allowed = scores.singles > -np.inf
    prune_states(scores.regions, *scores.flat(), allowed)
    empty = np.flatnonzero(~allowed.any(axis=1))
    if len(empty):
        raise InfeasibleError(f"every labelling is forbidden: -inf scores rule out all states of variable {empty[0]}.")
    return allowed


def interactions(scores: Scores, allowed: Bools) -> Interactions:
    """The graph of the variables with more than one state."""
    regions, count = scores.regions, allowed.sum(axis=1)
    free = np.flatnonzero(count > 1)
    loose = count[regions.scope] > 1
    region = np.repeat(np.arange(len(regions.size)), regions.order)
    length = np.bincount(region[loose], minlength=len(regions.size))
    scope_ptr = np.concatenate([[0], np.cumsum(length)])
    ptr, neighbour = adjacency(len(free), scope_ptr, np.searchsorted(free, regions.scope[loose]))
    return Interactions(free, count[free], ptr, neighbour)


def without(joined: Interactions, gone: Bools) -> Interactions:
    """The graph less some vertices, (n,)."""
    n, left = len(joined.free), ~gone
    number = np.cumsum(left) - 1
    row = np.repeat(np.arange(n), np.diff(joined.ptr))
    inside = left[row] & left[joined.neighbour]
    count = np.bincount(number[row[inside]], minlength=int(left.sum()))
    ptr = np.concatenate([[0], np.cumsum(count)])
    return Interactions(joined.free[left], joined.card[left], ptr, number[joined.neighbour[inside]])


def first_order(joined: Interactions) -> Order:
    """The better of a greedy order (min-fill, weighted by states) and a breadth-first one.

    Complete on any graph: where tables get beyond all hope, the other variables follow breadth first, and the cost is
    infinite.
    """
    states = joined.card.astype(np.float64)
    greedy = _greedy(joined, states, np.zeros(0), len(states) <= _MANY, _HOPELESS)
    walked = walk(joined.ptr, joined.neighbour)[0]
    if len(greedy.order) < len(states):
        rest = np.setdiff1d(walked, greedy.order, assume_unique=True)
        order = np.concatenate([greedy.order, walked[np.isin(walked, rest)]])
        return Order(order, np.inf, np.inf, greedy.members, greedy.width)
    # given up where one of its tables is larger than all of the greedy order's: wide orders take long
    broad = follow_order(joined.card, joined.ptr, joined.neighbour, walked, greedy.total)
    return broad if len(broad.order) == len(states) and broad.total < greedy.total else greedy


def search_orders(joined: Interactions, best: Order, going: Callable[[Order], bool], seed: int) -> Order:
    """The order of fewest table entries among greedy ones with random edge costs, while `going(best)`.

    An added edge costs the product of weights of its ends: 1, the states, or their logarithm, times a random factor.
    """
    rng = np.random.default_rng(seed)
    states = joined.card.astype(np.float64)
    weights = (states, np.log2(states + 1e-9), np.ones(len(states)))
    trial = 0
    while going(best):
        spread = _SPREADS[trial // len(weights) % len(_SPREADS)]
        weight = weights[trial % len(weights)] * np.exp(spread * rng.standard_normal(len(states)))
        order = _greedy(joined, weight, rng.random(len(states)), cutoff=min(best.total, _HOPELESS))
        if len(order.order) == len(states) and order.total < best.total:
            best = order
        trial += 1
    return best


def trials(count: int) -> Callable[[Order], bool]:
    """A condition for `search_orders` that ends it after `count` orders."""
    left = iter(range(count))
    return lambda _: next(left, None) is not None


def _greedy(
    joined: Interactions, weight: np.ndarray, noise: np.ndarray, by_fill: bool = True, cutoff: float = np.inf
) -> Order:
    """An elimination order that takes the cheapest variable each time, by fill-in or by the weight of its table."""
    states = joined.card.astype(np.float64)
    order, largest, total, members, widest = greedy_order(
        joined.ptr, joined.neighbour, states, weight, noise, by_fill, cutoff
    )
    return Order(order, largest, total, int(members), int(widest) - 1)

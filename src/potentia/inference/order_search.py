"""Elimination orders: which undecided variables share a table, and greedy and randomised searches for good orders."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..base.types import Bools, Floats, InfeasibleError, Ints, WidthError
from ..graph.layout import walk
from ..graph.regions import Regions, distinct
from ..graph.scores import Scores
from ..kernels.rounding import prune_states
from ..kernels.traversal import greedy_order

#: Tables beyond this size are hopeless: the search stops there and the width is only bounded from below.
_CUTOFF = 2.0**62
#: Below this size another order would save less time than finding it takes.
_SMALL = 2.0**16
_RANDOM_TRIES = 24
#: Variables above which `quick_order` asks a cheaper order first.
_LARGE = 1000
#: Messages together may hold this many times what the largest table may.
_MESSAGES = 16
#: Spread of the random factors of edge costs, one after another.
_SPREADS = (0.0, 0.2, 0.2, 0.6)
#: Variables above which the first order is by table size, which is found faster than by fill.
_MANY = 20_000
#: Table entries at which a greedy order is given up: from there on the rest is nearly complete, and slow to order.
_HOPELESS = 2.0**80
_NO_NOISE = np.zeros(0)


class Order(NamedTuple):
    """An elimination order and what it costs.

    Attributes:
        order: variables, first eliminated first; shorter than the graph if the search met its cutoff.
        largest: entries of the largest table. total: entries of all tables.
        members: sum of the clique sizes. width: induced width, variables of the largest clique less one.
    """

    order: Ints
    largest: float
    total: float
    members: int
    width: int


class Interactions(NamedTuple):
    """Which undecided variables share a table: CSR neighbours, and the states left to each.

    Attributes:
        free: the variables, (n,). card: their states left. ptr, neighbour: CSR over positions in `free`.
    """

    free: Ints
    card: Ints
    ptr: Ints
    neighbour: Ints


class CutRegions(NamedTuple):
    """Regions of which only allowed states are left.

    Attributes:
        card: states left to each variable. kept: all states of each, those left first.
        entry: index in each region's table of the entry where variables with one state left are in it, others in 0.
        region, scope, stride: of every axis with several states left, region after region.
    """

    card: Ints
    kept: Ints
    entry: Ints
    region: Ints
    scope: Ints
    stride: Ints

    @property
    def order(self) -> Ints:
        """Axes left to each region."""
        return np.bincount(self.region, minlength=len(self.entry))

    def interactions(self) -> Interactions:
        """The graph of the variables with more than one state."""
        free = np.flatnonzero(self.card > 1)
        scope_ptr = np.concatenate([[0], np.cumsum(self.order)])
        return Interactions(free, self.card[free], *adjacency(len(free), scope_ptr, np.searchsorted(free, self.scope)))


def cut_states(regions: Regions, allowed: Bools) -> CutRegions:
    """The regions with these states only, (n_variables, max states), at least one per variable."""
    count, kept = allowed.sum(axis=1), np.argsort(~allowed, axis=1, kind="stable")
    loose, region = count[regions.scope] > 1, np.repeat(np.arange(len(regions.size)), regions.order)
    entry = np.zeros(len(regions.size), dtype=np.int64)
    np.add.at(entry, region[~loose], (regions.stride * kept[regions.scope, 0])[~loose])
    return CutRegions(count, kept, entry, region[loose], regions.scope[loose], regions.stride[loose])


def allowed_states(scores: Scores) -> Bools:
    """States that propagation of the hard constraints leaves, (n_variables, max states); refuses if there are none."""
    allowed = scores.singles > -np.inf
    prune_states(scores.regions, *scores.flat(), allowed)
    empty = np.flatnonzero(~allowed.any(axis=1))
    if len(empty):
        raise InfeasibleError(f"every labelling is forbidden: -inf scores rule out all states of variable {empty[0]}.")
    return allowed


def interactions(scores: Scores, allowed: Bools) -> Interactions:
    """The graph of the variables with more than one allowed state."""
    return cut_states(scores.regions, allowed).interactions()


def adjacency(n: int, scope_ptr: Ints, scope: Ints) -> tuple[Ints, Ints]:
    """Who shares a scope with whom: CSR neighbours (both ways, sorted, no loops) of variables 0..n-1."""
    length = np.diff(scope_ptr)
    keys = [np.zeros(0, dtype=np.int64)]
    for size in np.unique(length[length > 1]):
        rows = scope[scope_ptr[:-1][length == size][:, None] + np.arange(size)]
        a, b = np.nonzero(~np.eye(size, dtype=bool))
        keys.append((rows[:, a] * n + rows[:, b]).ravel())
    key = distinct(np.concatenate(keys))
    return np.searchsorted(key, np.arange(n + 1) * n), key % n


def without(joined: Interactions, gone: Bools) -> Interactions:
    """The graph less some vertices, (n,)."""
    n, left = len(joined.free), ~gone
    number = np.cumsum(left) - 1
    row = np.repeat(np.arange(n), np.diff(joined.ptr))
    inside = left[row] & left[joined.neighbour]
    count = np.bincount(number[row[inside]], minlength=int(left.sum()))
    ptr = np.concatenate([[0], np.cumsum(count)])
    return Interactions(joined.free[left], joined.card[left], ptr, number[joined.neighbour[inside]])


# -- orders within limits -------------------------------------------------------------------------------------------


def find_order(joined: Interactions) -> Order:
    """The first order, or where its tables are large the best of some random ones."""
    best = first_order(joined)
    return search_orders(joined, best, trials(_RANDOM_TRIES), 0) if _SMALL < best.largest <= _CUTOFF else best


def quick_order(joined: Interactions, cutoff: float) -> Order:
    """The min-fill order, given up at the first table beyond `cutoff`."""
    ones = np.ones(len(joined.card))
    if len(ones) > _LARGE:
        # fill is expensive on large graphs, and most of those are wide by any order
        small = _greedy(joined, ones, by_fill=False, cutoff=cutoff)
        if small.largest > cutoff:
            return small
    return _greedy(joined, ones, cutoff=cutoff)


def follow_order(joined: Interactions, order: Ints, cutoff: float = np.inf) -> Order:
    """What a given order of all positions costs."""
    position = np.empty(len(joined.card))
    position[order] = np.arange(len(position))
    # without fill costs the position alone decides
    return _greedy(joined, np.zeros(len(position)), position, cutoff=cutoff)


def refuse_wide(order: Order, max_table: int) -> None:
    """Raise `WidthError` where the largest table, or what all messages together hold, is beyond the limit."""
    if order.largest > max_table:
        beyond = order.largest > _CUTOFF
        entries = "more than 2^62" if beyond else str(int(order.largest))
        raise WidthError(
            f"exact inference needs a table of {entries} entries (induced width {'at least ' * beyond}"
            f"{order.width}), more than max_table = {max_table}."
        )
    # half of all table entries bounds the messages, which are kept until the end: 8 GB at the default limit
    messages = int(order.total / 2)
    if messages > _MESSAGES * max_table:
        raise WidthError(
            f"exact inference (induced width {order.width}) needs {messages} message entries in all, "
            f"more than {_MESSAGES} * max_table = {_MESSAGES * max_table}."
        )


# -- orders of few table entries ------------------------------------------------------------------------------------


def first_order(joined: Interactions) -> Order:
    """A greedy order (min-fill, weighted by states); where its tables are large, a breadth-first one if that is better.

    The latter follows the long side of a strip. Complete on any graph: where tables get beyond all hope, the other
    variables follow breadth first, and the cost is infinite.
    """
    states = joined.card.astype(np.float64)
    greedy = _greedy(joined, states, by_fill=len(states) <= _MANY, cutoff=_HOPELESS)
    if greedy.largest <= _SMALL:
        return greedy
    walked = walk(joined.ptr, joined.neighbour)[0]
    if len(greedy.order) < len(states):
        rest = np.setdiff1d(walked, greedy.order, assume_unique=True)
        order = np.concatenate([greedy.order, walked[np.isin(walked, rest)]])
        return Order(order, np.inf, np.inf, greedy.members, greedy.width)
    # given up where one of its tables is larger than all of the greedy order's: wide orders take long
    broad = follow_order(joined, walked, greedy.total)
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
    joined: Interactions, weight: Floats, noise: Floats = _NO_NOISE, by_fill: bool = True, cutoff: float = _CUTOFF
) -> Order:
    """An elimination order that takes the cheapest variable each time, by fill-in or by the weight of its table."""
    states = joined.card.astype(np.float64)
    order, largest, total, members, widest = greedy_order(
        joined.ptr, joined.neighbour, states, weight, noise, by_fill, cutoff
    )
    return Order(order, largest, total, int(members), int(widest) - 1)

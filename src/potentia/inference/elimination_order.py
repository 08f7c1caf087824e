"""In which order to sum variables out: several greedy heuristics, the best of them kept."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .._types import Floats, Ints, WidthError
from ..graph.schedule import walk
from ..kernels.ordering import greedy_order, order_cliques

# Tables beyond this size are hopeless: the search stops there and the width is only bounded from below.
_CUTOFF = 2.0**62

# Below this size another order would save less time than finding it takes.
_SMALL = 2.0**16

_RANDOM_TRIES = 24

# Variables above which `quick_order` asks a cheaper order first.
_LARGE = 1000

# Messages together may hold this many times what the largest table may.
_MESSAGES = 16


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


def adjacency(n: int, scope_ptr: Ints, scope: Ints) -> tuple[Ints, Ints]:
    """Who shares a scope with whom: CSR neighbours (both ways, sorted, no loops) of variables 0..n-1."""
    length = np.diff(scope_ptr)
    keys = [np.zeros(0, dtype=np.int64)]
    for size in np.unique(length[length > 1]):
        rows = scope[scope_ptr[:-1][length == size][:, None] + np.arange(size)]
        a, b = np.nonzero(~np.eye(size, dtype=bool))
        keys.append((rows[:, a] * n + rows[:, b]).ravel())
    # np.unique hashes, which is slower than sorting by far where there are millions
    key = np.sort(np.concatenate(keys))
    key = key[np.diff(key, prepend=-1) != 0]
    return np.searchsorted(key, np.arange(n + 1) * n), key % n


def find_order(card: Ints, ptr: Ints, neighbour: Ints) -> Order:
    """The best order found: smallest largest table, then smallest total.

    Min-fill, and weighted min-fill where an added edge costs the product of its state counts, ties broken by
    table size; where tables stay large also a breadth-first order, which follows the long side of a strip, min-size,
    and both fills with seeded random tie-breaks.

    Args:
        card: states of each variable, (n,). ptr, neighbour: CSR adjacency.
    """
    states = card.astype(np.float64)
    none, ones = np.zeros(0), np.ones(len(card))
    best = _greedy(ptr, neighbour, states, ones, none, True)
    if best.largest > _SMALL:
        best = min(best, _breadth_first(ptr, neighbour, states), key=_cost)
    if best.largest > _CUTOFF:
        return best
    if np.any(card != card[:1]):
        best = min(best, _greedy(ptr, neighbour, states, states, none, True), key=_cost)
    if best.largest > _SMALL:
        best = min(best, _greedy(ptr, neighbour, states, ones, none, False), key=_cost)
        rng = np.random.default_rng(0)
        for trial in range(_RANDOM_TRIES):
            weight = states if trial % 2 else ones
            best = min(best, _greedy(ptr, neighbour, states, weight, rng.random(len(card)), True), key=_cost)
    return best


def quick_order(card: Ints, ptr: Ints, neighbour: Ints, cutoff: float) -> Order:
    """The min-fill order, given up at the first table beyond `cutoff`; arguments as in `find_order`."""
    states, ones, none = card.astype(np.float64), np.ones(len(card)), np.zeros(0)
    if len(card) > _LARGE:
        # fill is expensive on large graphs, and most of those are wide by any order
        small = _greedy(ptr, neighbour, states, ones, none, False, cutoff)
        if small.largest > cutoff:
            return small
    return _greedy(ptr, neighbour, states, ones, none, True, cutoff)


def _greedy(
    ptr: Ints,
    neighbour: Ints,
    states: Floats,
    weight: Floats,
    noise: Floats,
    by_fill: bool,
    cutoff: float = _CUTOFF,
) -> Order:
    order, largest, total, members, widest = greedy_order(
        ptr, neighbour, states, weight, noise, by_fill, cutoff
    )
    return Order(order, largest, total, int(members), int(widest) - 1)


def _breadth_first(ptr: Ints, neighbour: Ints, states: Floats) -> Order:
    """The order of a breadth-first walk: without fill costs the position alone decides."""
    position = np.empty(len(states))
    position[walk(ptr, neighbour)[0]] = np.arange(len(states))
    return _greedy(ptr, neighbour, states, np.zeros(len(states)), position, True)


def _cost(found: Order) -> tuple[float, float]:
    return found.largest, found.total


def refuse_wide(found: Order, max_table: int) -> None:
    """Raise `WidthError` where the largest table, or what all messages together hold, is beyond the limit."""
    if found.largest > max_table:
        beyond = found.largest > _CUTOFF
        entries = "more than 2^62" if beyond else str(int(found.largest))
        raise WidthError(
            f"exact inference needs a table of {entries} entries (induced width {'at least ' * beyond}"
            f"{found.width}), more than max_table = {max_table}."
        )
    # half of all table entries bounds the messages, which are kept until the end: 8 GB at the default limit
    messages = int(found.total / 2)
    if messages > _MESSAGES * max_table:
        raise WidthError(
            f"exact inference (induced width {found.width}) needs {messages} message entries in all, "
            f"more than {_MESSAGES} * max_table = {_MESSAGES * max_table}."
        )


def cliques(found: Order, ptr: Ints, neighbour: Ints) -> tuple[Ints, Ints]:
    """CSR of the clique of each variable when it is eliminated, everything named by position in the order."""
    clique_ptr, clique = order_cliques(ptr, neighbour, found.order, found.members)
    return clique_ptr, clique

"""In which order to sum variables out: several greedy heuristics, the best of them kept."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .._types import Floats, Ints, WidthError
from ..kernels.ordering import greedy_order, order_cliques

# Tables beyond this size are hopeless: the search stops there and the width is only bounded from below.
_CUTOFF = 2.0**62

# Below this size another order would save less time than finding it takes.
_SMALL = 2.0**16

_RANDOM_TRIES = 24


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
    """Who shares a scope with whom: CSR neighbours (both directions, sorted, no loops) of variables 0..n-1."""
    length = np.diff(scope_ptr)
    keys = [np.zeros(0, dtype=np.int64)]
    for size in np.unique(length[length > 1]):
        rows = scope[scope_ptr[:-1][length == size][:, None] + np.arange(size)]
        a, b = np.nonzero(~np.eye(size, dtype=bool))
        keys.append(np.unique(rows[:, a] * n + rows[:, b]))
    key = np.unique(np.concatenate(keys))
    return np.searchsorted(key, np.arange(n + 1) * n), key % n


def find_order(card: Ints, ptr: Ints, neighbour: Ints) -> Order:
    """The best order found: smallest largest table, then smallest total.

    Min-fill and weighted min-fill (an added edge costs the product of its state counts), ties broken by table size;
    min-size; and where tables stay large, both fill rules again with seeded random tie-breaks.

    Args:
        card: states of each variable, (n,). ptr, neighbour: CSR adjacency.
    """
    states = card.astype(np.float64)
    none, ones = np.zeros(0), np.ones(len(card))
    best = min((_greedy(ptr, neighbour, states, w, none, True) for w in (ones, states)), key=_cost)
    if best.largest > _SMALL:
        best = min(best, _greedy(ptr, neighbour, states, ones, none, False), key=_cost)
        rng = np.random.default_rng(0)
        for trial in range(_RANDOM_TRIES if best.largest <= _CUTOFF else 0):
            weight = states if trial % 2 else ones
            best = min(best, _greedy(ptr, neighbour, states, weight, rng.random(len(card)), True), key=_cost)
    return best


def _greedy(
    ptr: Ints, neighbour: Ints, states: Floats, weight: Floats, noise: Floats, by_fill: bool
) -> Order:
    order, largest, total, members, widest = greedy_order(
        ptr, neighbour, states, weight, noise, by_fill, _CUTOFF
    )
    return Order(order, largest, total, int(members), int(widest) - 1)


def _cost(found: Order) -> tuple[float, float]:
    return found.largest, found.total


def refuse_wide(found: Order, max_table: int) -> None:
    """Raise `WidthError` where the largest table, or what all messages together hold, is beyond the limit."""
    if found.largest > max_table:
        least = "at least " if found.largest > _CUTOFF else ""
        entries = f"{found.largest:.3g}" if found.largest > 2**40 else f"{int(found.largest)}"
        raise WidthError(
            f"exact inference needs a table of {least}{entries} entries (induced width {least}{found.width}), "
            f"more than max_table = {max_table}"
        )
    # half of all table entries bounds the messages, which are all kept: 8 GB at the default limit
    if found.total / 2 > 16 * max_table:
        raise WidthError(
            f"exact inference (induced width {found.width}) needs {int(found.total / 2)} message entries in all, "
            f"more than 16 * max_table = {16 * max_table}"
        )


def cliques(found: Order, ptr: Ints, neighbour: Ints) -> tuple[Ints, Ints]:
    """CSR of the clique of each variable when it is eliminated, everything named by position in the order."""
    clique_ptr, clique = order_cliques(ptr, neighbour, found.order, found.members)
    return clique_ptr, clique

"""Elimination (junction tree): exact sums, maxima and samples on graphs of small width, and good orders for it."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import numpy as np

from ..base.types import Bools, Floats, InfeasibleError, Ints, WidthError
from ..graph.layout import walk
from ..graph.regions import Regions
from ..graph.scores import Scores
from ..graph.structure import Graph, per_graph
from ..kernels.elimination import send_down, send_labels, send_up
from ..kernels.rounding import kept_entries, prune_states
from ..kernels.traversal import greedy_order, order_cliques
from .base import Result

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
    ptr: Ints, neighbour: Ints, states: Floats, weight: Floats, noise: Floats, by_fill: bool, cutoff: float = _CUTOFF
) -> Order:
    """An elimination order that takes the cheapest variable each time, by fill-in or by the weight of its table."""
    order, largest, total, members, widest = greedy_order(ptr, neighbour, states, weight, noise, by_fill, cutoff)
    return Order(order, largest, total, int(members), int(widest) - 1)


def _breadth_first(ptr: Ints, neighbour: Ints, states: Floats) -> Order:
    """The order of a breadth-first walk."""
    return follow_order(states, ptr, neighbour, walk(ptr, neighbour)[0], _CUTOFF)


def follow_order(card: Ints | Floats, ptr: Ints, neighbour: Ints, order: Ints, cutoff: float = np.inf) -> Order:
    """What a given order of all variables 0..n-1 costs; arguments as in `find_order`."""
    position = np.empty(len(card))
    position[order] = np.arange(len(card))
    # without fill costs the position alone decides
    return _greedy(ptr, neighbour, card.astype(np.float64), np.zeros(len(card)), position, True, cutoff)


def _cost(order: Order) -> tuple[float, float]:
    """The cost by which orders are compared: the largest table, then the sum of all."""
    return order.largest, order.total


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


#: Entries of the largest table allowed by default (half a gigabyte).
MAX_TABLE = 2**26

# Plans remembered per graph; different evidence means a different plan.
_REMEMBERED = 4


class Program(NamedTuple):
    """Flat arrays that the kernels run; see `potentia.kernels.elimination`."""

    card: Ints
    clique_ptr: Ints
    clique: Ints
    source_ptr: Ints
    source: Ints
    offset: Ints
    scope_ptr: Ints
    scope: Ints


class EliminationPlan(NamedTuple):
    """An elimination order and the program of its tables, for one graph and set of hard constraints.

    Attributes:
        order: variables with more than one kept state, first eliminated first.
        kept: states of each variable that are not forbidden come first; (n_variables, max states).
        cost: of the order: `largest` and `total` table entries, induced `width`.
        program: what the kernels run.
        region: the region behind each factor of the program.
        entry: for every entry of the factors, one after another, its index in the region's full table.
        fixed_region, fixed_entry: regions whose variables all have one state, and the entry they are at.
    """

    order: Ints
    kept: Ints
    cost: Order
    program: Program
    region: Ints
    entry: Ints
    fixed_region: Ints
    fixed_entry: Ints

    def entries(self, start: Ints) -> Ints:
        """Index of every factor entry in a flat array where region r's table begins at start[r]."""
        size = np.diff(self.program.offset[: len(self.region) + 1])
        return self.entry + np.repeat(start[self.region], size)


def plan(scores: Scores, max_table: int = MAX_TABLE) -> EliminationPlan:
    """The plan for these scores, remembered on the graph; `WidthError` where a table exceeds `max_table`.

    States that hard constraints rule out (a clamped variable's other states, and what follows from the -inf
    entries of larger tables) are cut out of every table first: evidence makes graphs narrower.
    """
    allowed = scores.singles > -np.inf
    prune_states(scores.regions, *scores.flat(), allowed)
    empty = np.flatnonzero(~allowed.any(axis=1))
    if len(empty):
        raise InfeasibleError(f"every labelling is forbidden: -inf scores rule out all states of variable {empty[0]}.")
    known = _known_plans(scores.graph)
    key = np.packbits(allowed).tobytes()
    made = known.get(key)
    if made is None:
        made = make_plan(scores.regions, allowed, max_table)
        while len(known) >= _REMEMBERED:
            known.pop(next(iter(known)), None)
        known[key] = made
    refuse_wide(made.cost, max_table)
    return made


@per_graph
def _known_plans(graph: Graph) -> dict[bytes, EliminationPlan]:
    """Latest plans by the states that are allowed."""
    return {}


def make_plan(
    regions: Regions, allowed: Bools, max_table: int, quick: bool = False, order: Ints | None = None
) -> EliminationPlan:
    """The plan for regions with these states allowed, (n_variables, max states), at least one per variable.

    With `quick` the first order serves, and one beyond `max_table` is given up at once. order: of the variables with
    several states, instead of one that is searched for.
    """
    n_kept = allowed.sum(axis=1)
    kept = np.argsort(~allowed, axis=1, kind="stable")
    free = np.flatnonzero(n_kept > 1)
    loose = n_kept[regions.scope] > 1
    region_of = np.repeat(np.arange(len(regions.size)), regions.order)
    n_loose = np.bincount(region_of[loose], minlength=len(regions.size))
    # where a region's table is entered: at the one state of every variable that has only one
    entry = np.zeros(len(regions.size), dtype=np.int64)
    np.add.at(entry, region_of[~loose], (regions.stride * kept[regions.scope, 0])[~loose])

    scope_ptr = np.concatenate([[0], np.cumsum(n_loose)])
    ptr, neighbour = adjacency(len(free), scope_ptr, np.searchsorted(free, regions.scope[loose]))
    card = n_kept[free]
    if order is not None:
        cost = follow_order(card, ptr, neighbour, np.searchsorted(free, order))
    else:
        cost = quick_order(card, ptr, neighbour, max_table) if quick else find_order(card, ptr, neighbour)
        refuse_wide(cost, max_table)
    order = free[cost.order]
    position = np.full(len(n_kept), -1)
    position[order] = np.arange(len(order))
    axes = region_of[loose], position[regions.scope[loose]], regions.stride[loose]
    region, factor_ptr, scope, stride = _factors(*axes)
    clique_ptr, clique = order_cliques(ptr, neighbour, cost.order, cost.members)
    program = _program(n_kept[order], clique_ptr, clique, factor_ptr, scope)
    entries = kept_entries(program, len(region), stride, entry[region], kept[order])
    fixed = np.flatnonzero(n_loose == 0)
    return EliminationPlan(order, kept, cost, program, region, entries, fixed, entry[fixed])


def _factors(region: Ints, position: Ints, stride: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Regions as factors sorted by bucket, each with its axes in elimination order.

    Args: for each (region, free variable) the region, the variable's position and its stride in the table.
    Returns the region of each factor, and a CSR (ptr, positions, strides) of the factors' axes.
    """
    bucket = np.full(int(region.max(initial=-1)) + 1, len(region))
    np.minimum.at(bucket, region, position)
    by = np.lexsort((position, region, bucket[region]))
    sorted_region = region[by]
    first = np.flatnonzero(np.diff(sorted_region, prepend=-1))
    return sorted_region[first], np.append(first, len(by)), position[by], stride[by]


def _program(card: Ints, clique_ptr: Ints, clique: Ints, factor_ptr: Ints, factor_scope: Ints) -> Program:
    """Number factors, then messages, as tables of one store, and list what each bucket adds up."""
    n, n_factors = len(card), len(factor_ptr) - 1
    length = np.diff(clique_ptr)
    eliminated = np.zeros(len(clique), dtype=bool)
    eliminated[clique_ptr[:-1]] = True
    scope_ptr = np.concatenate([factor_ptr, factor_ptr[-1] + np.cumsum(length - 1)])
    inner = np.flatnonzero(length > 1)
    bucket = np.concatenate([factor_scope[factor_ptr[:-1]], clique[clique_ptr[inner] + 1]])
    source = np.concatenate([np.arange(n_factors), n_factors + inner])
    by = np.argsort(bucket, kind="stable")
    source_ptr = np.concatenate([[0], np.cumsum(np.bincount(bucket, minlength=n))])
    size = np.concatenate([_products(card[factor_scope], factor_ptr), _products(card[clique], clique_ptr) // card])
    offset = np.concatenate([[0], np.cumsum(size)])
    scope = np.concatenate([factor_scope, clique[~eliminated]])
    parts = (card, clique_ptr, clique, source_ptr, source[by], offset, scope_ptr, scope)
    return Program(*(np.ascontiguousarray(part, dtype=np.int64) for part in parts))


def _products(values: Ints, ptr: Ints) -> Ints:
    """The product of each (non-empty) row of a CSR."""
    return np.multiply.reduceat(values, ptr[:-1]) if len(ptr) > 1 else np.zeros(0, dtype=np.int64)


def log_partition(scores: Scores, max_table: int = MAX_TABLE) -> float:
    """log Z = log sum_y exp F(y); time is linear in all tables' entries, memory in the messages'."""
    return _upward(scores, max_table, maximise=False)[3]


def best_labelling(scores: Scores, max_table: int = MAX_TABLE) -> Ints:
    """argmax_y F(y), (n_variables,): the upward pass with max, then states back from the last variable."""
    made, store, _, _ = _upward(scores, max_table, maximise=True)
    return _labels(made, store, np.zeros((1, 0)))[0]


def best_states(made: EliminationPlan, values: Floats, where: Ints) -> Ints:
    """The best labels of a plan's variables, of tables in one flat array that begin at `where`."""
    store, _ = _filled(made, values, where, maximise=True)
    return _labels(made, store, np.zeros((1, 0)))[0]


def sample(scores: Scores, n: int, rng: np.random.Generator, max_table: int = MAX_TABLE) -> Ints:
    """n independent samples of p(y) = exp F(y) / Z, (n, n_variables): one upward pass, then n times back."""
    made, store, _, _ = _upward(scores, max_table, maximise=False)
    return _labels(made, store, rng.random((n, len(made.order))))


def marginals(scores: Scores, max_table: int = MAX_TABLE) -> tuple[float, Floats, Ints]:
    """log Z and the exact marginal of every region.

    Returns log Z, all marginals in one flat array (each region its own C-ordered table, numbered as in
    `Regions`), and the start of each region's table, (n_regions + 1,). About three times `log_partition`.
    """
    made, store, peaks, value = _upward(scores, max_table, maximise=False)
    scratch = np.empty(2 * int(made.cost.largest))
    if len(made.order):
        send_down(made.program, store, peaks, scratch)
    start = np.concatenate([[0], np.cumsum(scores.regions.size)]).astype(np.int64)
    flat = np.zeros(start[-1])
    flat[made.entries(start[:-1])] = store[: len(made.entry)]
    flat[start[made.fixed_region] + made.fixed_entry] = 1.0
    return value, flat, start


def eliminate(scores: Scores, max_table: int = MAX_TABLE) -> Result:
    """Exact log Z and marginals as a `Result`; the best labelling is computed on first access.

    Raises `WidthError` before allocating where a table would have more than `max_table` entries.
    """
    value, flat, _ = marginals(scores, max_table)
    return Result.of_regions(
        scores, flat, value=value, bound="exact", target="log_partition", iterations=0, residual=0.0, converged=True,
        best=partial(_best_of, max_table=max_table),
    )  # fmt: skip


def _best_of(result: Result, max_table: int) -> Ints:
    """The best labelling, by elimination with tables up to this size."""
    return best_labelling(result.scores, max_table)


def _upward(scores: Scores, max_table: int, maximise: bool) -> tuple[EliminationPlan, Floats, Floats, float]:
    """The upward pass: the plan, its store of tables and messages, the peaks, and the value (log Z or best score)."""
    made = plan(scores, max_table)
    values, where = scores.flat()
    store, peaks = _filled(made, values, where, maximise)
    constants = values[where[made.fixed_region] + made.fixed_entry]
    if np.any(peaks == -np.inf):
        raise InfeasibleError("every labelling is forbidden: the -inf scores contradict each other.")
    return made, store, peaks, math.fsum(peaks) + math.fsum(constants)


def _filled(made: EliminationPlan, values: Floats, where: Ints, maximise: bool) -> tuple[Floats, Floats]:
    """The store of a plan's tables and messages after the upward pass, and the peaks."""
    store, peaks = np.empty(made.program.offset[-1]), np.zeros(len(made.order))
    store[: len(made.entry)] = values[made.entries(where)]
    if len(made.order):
        send_up(made.program, store, maximise, peaks)
    return store, peaks


def _labels(made: EliminationPlan, store: Floats, uniforms: Floats) -> Ints:
    """Labels of all variables from the last eliminated to the first, best or drawn, (n, n_variables)."""
    positions = np.zeros((len(uniforms), len(made.order)), dtype=np.int64)
    if len(made.order):
        send_labels(made.program, store, uniforms, positions)
    labels = np.tile(made.kept[:, 0], (len(uniforms), 1))
    labels[:, made.order] = made.kept[made.order, positions]
    return labels

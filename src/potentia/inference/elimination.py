"""Elimination (junction tree): exact sums, maxima and samples on graphs of small width."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import numpy as np

from ..base.types import Bools, Floats, InfeasibleError, Ints
from ..graph.regions import Narrow, Regions
from ..graph.scores import Scores
from ..graph.structure import Graph, per_graph
from ..kernels.elimination import send_down, send_labels, send_up
from ..kernels.rounding import kept_entries
from ..kernels.traversal import order_cliques
from . import order_search as orders
from .base import Result

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
    cost: orders.Order
    program: Program
    region: Ints
    entry: Ints
    fixed_region: Ints
    fixed_entry: Ints

    def entries(self, start: Ints) -> Ints:
        """Index of every factor entry in a flat array where region r's table begins at start[r]."""
        size = np.diff(self.program.offset[: len(self.region) + 1])
        return self.entry + np.repeat(start[self.region], size)

    def constant(self, values: Floats, where: Ints) -> float:
        """The score of the regions whose variables all have one state, of tables that begin at `where`."""
        return math.fsum(values[where[self.fixed_region] + self.fixed_entry])


def plan(scores: Scores, max_table: int = MAX_TABLE) -> EliminationPlan:
    """The plan for these scores, remembered on the graph; `WidthError` where a table exceeds `max_table`.

    States that hard constraints rule out (a clamped variable's other states, and what follows from the -inf
    entries of larger tables) are cut out of every table first: evidence makes graphs narrower.
    """
    allowed = orders.allowed_states(scores)
    known = _known_plans(scores.graph)
    key = np.packbits(allowed).tobytes()
    made = known.get(key)
    if made is None:
        made = make_plan(scores.regions, allowed, max_table)
        while len(known) >= _REMEMBERED:
            known.pop(next(iter(known)), None)
        known[key] = made
    orders.refuse_wide(made.cost, max_table)
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
    cut = orders.cut_states(regions, allowed)
    joined = cut.interactions()
    if order is not None:
        cost = orders.follow_order(joined, np.searchsorted(joined.free, order))
    else:
        cost = orders.quick_order(joined, max_table) if quick else orders.find_order(joined)
        orders.refuse_wide(cost, max_table)
    order = joined.free[cost.order]
    region, factors, entries = cut_factors(cut, order)
    program = _program(factors, *order_cliques(joined.ptr, joined.neighbour, cost.order, cost.members))
    fixed = np.flatnonzero(cut.order == 0)
    return EliminationPlan(order, cut.kept, cost, program, region, entries, fixed, cut.entry[fixed])


def cut_factors(cut: orders.CutRegions, order: Ints) -> tuple[Ints, Program, Ints]:
    """The regions with several states left as factors over positions in `order`, sorted by their first.

    Returns the region of each factor, the factors, and the index of each of their entries in its region's full table.
    """
    position = np.full(len(cut.card), -1)
    position[order] = np.arange(len(order))
    at = position[cut.scope]
    bucket = np.full(len(cut.entry), len(order))
    np.minimum.at(bucket, cut.region, at)
    by = np.lexsort((at, cut.region, bucket[cut.region]))
    sorted_region = cut.region[by]
    first = np.flatnonzero(np.diff(sorted_region, prepend=-1))
    region = sorted_region[first]
    factors = factor_tables(cut.card[order], np.append(first, len(by)), at[by])
    start, kept = cut.entry[region], cut.kept[order]
    return region, factors, kept_entries(factors, len(region), cut.stride[by], start, kept)


def factor_tables(card: Ints, scope_ptr: Ints, scope: Ints | Narrow) -> Program:
    """A program of factors alone, C-ordered and one after another."""
    none = np.zeros(1, dtype=np.int64)
    offset = np.concatenate([[0], np.cumsum(products(card[scope], scope_ptr))])
    return flat_program(card, none, none, none, none, offset, scope_ptr, scope)


def _program(factors: Program, clique_ptr: Ints, clique: Ints) -> Program:
    """Number factors, then messages, as tables of one store, and list what each bucket adds up."""
    card, factor_ptr, factor_scope = factors.card, factors.scope_ptr, factors.scope
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
    size = np.concatenate([np.diff(factors.offset), products(card[clique], clique_ptr) // card])
    offset = np.concatenate([[0], np.cumsum(size)])
    scope = np.concatenate([factor_scope, clique[~eliminated]])
    return flat_program(card, clique_ptr, clique, source_ptr, source[by], offset, scope_ptr, scope)


def flat_program(*parts: Ints | Narrow) -> Program:
    """The arrays of a program as the kernels take them."""
    return Program(*(np.ascontiguousarray(part, dtype=np.int64) for part in parts))


def products(values: Ints, ptr: Ints) -> Ints:
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
    store, _ = send_all_up(made, values, where, maximise=True)
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
    return value, *send_all_down(scores, made, store, peaks)


def send_all_up(made: EliminationPlan, values: Floats, where: Ints, maximise: bool) -> tuple[Floats, Floats]:
    """The store of a plan after the upward pass, and the peaks (-inf: everything is forbidden)."""
    n = len(made.order)
    store, peaks = np.empty(made.program.offset[-1]), np.zeros(n)
    store[: len(made.entry)] = values[made.entries(where)]
    send_up(made.program, store, np.full(n, 0.0 if maximise else 1.0), peaks, 0, n)
    return store, peaks


def send_all_down(scores: Scores, made: EliminationPlan, store: Floats, peaks: Floats) -> tuple[Floats, Ints]:
    """Marginals of all regions, flat, and where each begins; the store of the upward pass is overwritten."""
    if len(made.order):
        send_down(made.program, store, peaks, np.empty(2 * int(made.cost.largest)))
    start = np.concatenate([[0], np.cumsum(scores.regions.size)]).astype(np.int64)
    flat = np.zeros(start[-1])
    flat[made.entries(start[:-1])] = store[: len(made.entry)]
    flat[start[made.fixed_region] + made.fixed_entry] = 1.0
    return flat, start


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
    store, peaks = send_all_up(made, values, where, maximise)
    if np.any(peaks == -np.inf):
        raise InfeasibleError("every labelling is forbidden: the -inf scores contradict each other.")
    return made, store, peaks, math.fsum(peaks) + made.constant(values, where)


def _labels(made: EliminationPlan, store: Floats, uniforms: Floats) -> Ints:
    """Labels of all variables from the last eliminated to the first, best or drawn, (n, n_variables)."""
    positions = np.zeros((len(uniforms), len(made.order)), dtype=np.int64)
    if len(made.order):
        send_labels(made.program, store, uniforms, positions)
    labels = np.tile(made.kept[:, 0], (len(uniforms), 1))
    labels[:, made.order] = made.kept[made.order, positions]
    return labels

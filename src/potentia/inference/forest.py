"""Forests: log Z and its gradient, which exact likelihood needs, and the best labelling, in two passes each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..base.resources import borrow, borrow_zeros
from ..base.types import Floats, Ints
from ..graph.cotangents import Tables, add_singles, split_pairs
from ..graph.scores import Scores, pair_tables
from ..graph.structure import Graph, per_graph
from ..kernels import forest as kernels

#: Largest log-range of a variable's sums that cannot underflow.
_SAFE_RANGE = 600.0


class _Plan(NamedTuple):
    """The forest's order, the pair between each variable and its parent, and room for a table of each."""

    order: Ints
    parent: Ints
    pair: Ints
    side: Ints
    psi_at: Ints
    size: int


@per_graph
def parent_pairs(graph: Graph) -> _Plan:
    """Roots-first order, parents, and the pair between each variable and its parent with the variable's end of it."""
    order, parent = graph.tree_order
    pairs = graph.pairs
    pair, side = np.full(graph.n_variables, -1), np.zeros(graph.n_variables, dtype=np.int64)
    for end in (0, 1):
        child = pairs[:, end]
        below = parent[child] == pairs[:, 1 - end]
        pair[child[below]] = np.flatnonzero(below)
        side[child[below]] = end
    size = np.where(parent >= 0, graph.n_states * graph.n_states[parent], 0)
    return _Plan(order, parent, pair, side, np.cumsum(size) - size, int(size.sum()))


def log_partition(scores: Scores) -> tuple[float, Tables] | None:
    """log Z and its gradient by scores (marginals, summed where tables are shared); None beyond the safe range."""
    forest = _load(scores)
    factors = _room_for_factors(scores.graph, forest)
    if kernels.largest_range(forest, factors, scores.singles) > _SAFE_RANGE:
        return None
    kernels.fill_psi(forest, factors)
    up, message = borrow(scores.singles.shape), borrow(scores.singles.shape)
    mu, d_psi = borrow_zeros(scores.singles.shape), borrow_zeros(factors.psi.shape)
    value = kernels.upward(forest, factors, scores.singles, up, message)
    kernels.downward(forest, factors, up, message, mu, d_psi)
    d_values = np.zeros(len(forest.values))
    kernels.add_tables(forest, factors, d_psi, d_values)
    tables = split_pairs(scores, d_values)
    add_singles(scores, mu, tables)
    return float(value), tables


def best_labels(scores: Scores) -> Ints:
    """The best labelling of a forest, (n_variables,); linear in its size."""
    labels = np.empty(scores.graph.n_variables, dtype=np.int64)
    message = np.empty(scores.singles.shape[1])
    kernels.best_labels(_load(scores), scores.singles.copy(), message, labels)
    return labels


def k_best(scores: Scores, k: int) -> tuple[Ints, Floats]:
    """The k best labellings of a forest, (m, n_variables), and scores, best first; m < k if no more are allowed."""
    labels, best = np.zeros((k, scores.graph.n_variables), dtype=np.int64), np.empty(k)
    kernels.k_best(_load(scores), scores.singles, labels, best)
    n_allowed = int((best > -np.inf).sum())
    return labels[:n_allowed], best[:n_allowed]


def _load(scores: Scores) -> kernels.Forest:
    """The forest and its scores as kernels take them."""
    plan, (values, offset) = parent_pairs(scores.graph), pair_tables(scores)
    of_child = offset[plan.pair] if len(offset) else plan.pair
    return kernels.Forest(plan.order, plan.parent, plan.side, scores.graph.n_states, values, of_child)


def _room_for_factors(graph: Graph, forest: kernels.Forest) -> kernels.PairFactors:
    """Room for a table of each pair, or for one table and its transpose if all pairs share their scores."""
    plan, top = parent_pairs(graph), np.zeros(graph.n_variables)
    child_offsets = forest.offset[plan.parent >= 0]
    if len(child_offsets) > 1 and np.all(child_offsets == child_offsets[0]):
        size = len(forest.values)
        return kernels.PairFactors(borrow((2 * size,)), plan.side * size, top)
    return kernels.PairFactors(borrow((plan.size,)), plan.psi_at, top)

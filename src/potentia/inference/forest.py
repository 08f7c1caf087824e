"""Forests: log Z and its gradient, which exact likelihood needs, and the best labelling, in two passes each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..base.memory import borrow, borrow_zeros
from ..base.types import Floats, Ints
from ..graph.cotangents import Tables, add_singles, split_pairs
from ..graph.layout import pairs_of, tree_order
from ..graph.scores import Scores, pair_tables
from ..graph.structure import Graph
from ..kernels import forest as descent
from ..kernels import forest as kernels
from ..kernels import forest as ranking

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


def parent_pairs(graph: Graph) -> _Plan:
    """Roots-first order, parents, and the pair between each variable and its parent with the variable's end of it."""

    def build() -> _Plan:
        order, parent = tree_order(graph)
        pairs = pairs_of(graph)
        pair, side = np.full(graph.n_variables, -1), np.zeros(graph.n_variables, dtype=np.int64)
        for end in (0, 1):
            child = pairs[:, end]
            below = parent[child] == pairs[:, 1 - end]
            pair[child[below]] = np.flatnonzero(below)
            side[child[below]] = end
        size = np.where(parent >= 0, graph.n_states * graph.n_states[parent], 0)
        return _Plan(order, parent, pair, side, np.cumsum(size) - size, int(size.sum()))

    return graph.cached("parent_pairs", build)


def log_partition(scores: Scores) -> tuple[float, Tables] | None:
    """log Z and its gradient by scores (marginals, summed where tables are shared); None beyond the safe range."""
    forest = _load(scores)
    if kernels.largest_range(forest, scores.singles) > _SAFE_RANGE:
        return None
    kernels.fill_psi(forest)
    up, message = borrow(scores.singles.shape), borrow(scores.singles.shape)
    mu, d_psi = borrow_zeros(scores.singles.shape), borrow_zeros(forest.psi.shape)
    value = kernels.upward(forest, scores.singles, up, message)
    kernels.downward(forest, up, message, mu, d_psi)
    d_values = np.zeros(len(forest.values))
    kernels.add_tables(forest, d_psi, d_values)
    tables = split_pairs(scores, d_values)
    add_singles(scores, mu, tables)
    return float(value), tables


def best_labels(scores: Scores) -> Ints:
    """The best labelling of a forest, (n_variables,); linear in its size."""
    plan, (values, offset) = parent_pairs(scores.graph), pair_tables(scores)
    own = offset[plan.pair] if len(offset) else plan.pair
    labels = np.empty(scores.graph.n_variables, dtype=np.int64)
    descent.best_labels(
        plan.order, plan.parent, plan.side, scores.graph.n_states, values, own, scores.singles.copy(), labels
    )
    return labels


def k_best(scores: Scores, k: int) -> tuple[Ints, Floats]:
    """The k best labellings of a forest, (m, n_variables), and scores, best first; m < k if no more are allowed."""
    plan, (values, offset) = parent_pairs(scores.graph), pair_tables(scores)
    own = offset[plan.pair] if len(offset) else plan.pair
    labels, best = np.zeros((k, scores.graph.n_variables), dtype=np.int64), np.empty(k)
    ranking.k_best(
        plan.order, plan.parent, plan.side, scores.graph.n_states, values, own, scores.singles, labels, best
    )
    found = int((best > -np.inf).sum())
    return labels[:found], best[:found]


def _load(scores: Scores) -> kernels.Forest:
    graph, plan = scores.graph, parent_pairs(scores.graph)
    values, offset = pair_tables(scores)
    shared = len(offset) > 1 and bool(np.all(offset == offset[0]))
    own = offset[plan.pair] if len(offset) else plan.pair
    if shared:
        size = len(values)
        psi, psi_at = borrow((2 * size,)), plan.side * size
    else:
        psi, psi_at = borrow((plan.size,)), plan.psi_at
    return kernels.Forest(
        plan.order,
        plan.parent,
        plan.side,
        graph.n_states,
        values,
        own,
        psi,
        psi_at,
        np.zeros(graph.n_variables),
    )

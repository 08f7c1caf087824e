"""Pairs given by weights as mean field reads them."""

from __future__ import annotations

import numpy as np

from .._types import Floats, Ints
from ..graph.schedule import adjacency
from ..graph.scores import Scores
from ..graph.structure import Graph
from ..graph.weighted import Weighted
from ..kernels.weighted_links import DENSE, LINEAR, WINDOW, Links


def weighted_links(scores: Scores) -> Links:
    """The pairs of all weighted kinds, kind after kind, around their variables."""
    graph, weighted = scores.graph, scores.weighted
    shape = (0, graph.n_variables, int(graph.n_states.max()))
    ptr, other, pair, kind_of, side = _around(graph, list(weighted))
    tables = _Tables()
    # the table that multiplies the other end's distribution, seen from the first end and from the second
    numbers = np.array([tables.of(own) for own in weighted.values()], dtype=np.int64).reshape(-1, 2)
    number = numbers[kind_of, side]
    readers = np.unique(np.stack([other, number], axis=1), axis=0).reshape(-1, 2)
    user_ptr = np.concatenate([[0], np.cumsum(np.bincount(readers[:, 0], minlength=graph.n_variables))])
    weights = [own.of_pairs(len(graph.scopes[kind])) for kind, own in weighted.items()]
    return Links(
        ptr, other, pair, number, np.concatenate([np.zeros(0), *weights]), *tables.arrays(),
        user_ptr.astype(np.int64), readers[:, 1].copy(), np.zeros((len(tables.form), *shape[1:])),
    )  # fmt: skip


def _around(graph: Graph, kinds: list[str]) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """CSR over variables of the pairs of some kinds: other ends, pairs' numbers, kinds' numbers and own sides."""

    def build() -> tuple[Ints, Ints, Ints, Ints, Ints]:
        scopes = [graph.scopes[kind] for kind in kinds]
        pairs = np.concatenate([np.zeros((0, 2), dtype=np.int64), *scopes])
        kind_of = np.repeat(np.arange(len(kinds)), [len(scope) for scope in scopes]).astype(np.int64)
        ptr, other = adjacency(graph.n_variables, pairs)
        order = np.argsort(pairs.T.ravel(), kind="stable")
        pair, side = order % max(len(pairs), 1), order // max(len(pairs), 1)
        return ptr, other, pair, kind_of[pair], side

    return graph.cached(("weighted_links", *kinds), build)


class _Tables:
    """The distinct tables of weighted kinds, as arrays of `Links`."""

    def __init__(self) -> None:
        self.form: list[int] = []
        self.reach: list[int] = []
        self.cap: list[float] = []
        self.cost: list[Floats] = []
        self.table: list[Floats] = []

    def of(self, own: Weighted) -> tuple[int, int]:
        """Numbers of a kind's table seen from its first end and from its second."""
        if own.cost is None:
            sides = [own.unit] if np.array_equal(own.unit, own.unit.T) else [own.unit, own.unit.T]
            numbers = [self._add(DENSE, 0, 0.0, np.zeros(1), table) for table in sides]
            return numbers[0], numbers[-1]
        cost = own.cost.of(len(own.unit))
        cap = float(cost[-1])
        reach = int((cost < cap).sum()) - 1
        linear = own.cost.power == 1 and reach > 2
        number = self._add(LINEAR if linear else WINDOW, reach, cap, cost[: reach + 1], own.unit)
        return number, number

    def _add(self, form: int, reach: int, cap: float, cost: Floats, table: Floats) -> int:
        self.form.append(form)
        self.reach.append(reach)
        self.cap.append(cap)
        self.cost.append(cost)
        self.table.append(table)
        return len(self.form) - 1

    def arrays(self) -> tuple[Ints, Ints, Ints, Floats, Floats, Floats]:
        """form, states, reach, cap, cost and table of `Links`."""
        states = np.array([len(table) for table in self.table], dtype=np.int64)
        widest = max((len(cost) for cost in self.cost), default=1)
        most = int(states.max(initial=1))
        cost, table = np.zeros((len(states), widest)), np.zeros((len(states), most, most))
        for k, own in enumerate(self.cost):
            cost[k, : len(own)] = own
            table[k, : states[k], : states[k]] = self.table[k]
        form, reach = np.array(self.form, dtype=np.int64), np.array(self.reach, dtype=np.int64)
        return form, states, reach, np.array(self.cap, dtype=np.float64), cost, table

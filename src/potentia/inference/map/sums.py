"""Summing variables out of score tables beforehand, where what remains are small tables."""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush

import numpy as np

from ...base.types import Bools, Floats, Ints
from ...graph.scores import Scores

ScoreTables = dict[int, tuple[tuple[int, ...], Floats]]


def tables_of(scores: Scores, allowed: Bools) -> ScoreTables:
    """Every region's table over its variables with several allowed states, by number; scopes ascend."""
    regions, several = scores.regions, allowed.sum(axis=1) > 1
    tables: ScoreTables = {}
    for r in range(len(regions.size)):
        scope = regions.scope[regions.scope_ptr[r] : regions.scope_ptr[r + 1]]
        table = scores.table(r)[np.ix_(*(np.flatnonzero(allowed[v][: scores.graph.n_states[v]]) for v in scope))]
        axes = [a for a in np.argsort(scope) if several[scope[a]]]
        table = np.transpose(table, [*axes, *(a for a in range(len(scope)) if not several[scope[a]])])
        tables[r] = tuple(int(scope[a]) for a in axes), table.reshape(table.shape[: len(axes)])
    return tables


def sum_out(tables: ScoreTables, variables: Ints, allowed: Bools, largest: int) -> bool:
    """Sum variables out of the tables in place, those of smallest tables first; False once one is above `largest`."""
    card = allowed.sum(axis=1)
    member: dict[int, set[int]] = {int(v): set() for v in np.flatnonzero(card > 1)}
    for t, (scope, _) in tables.items():
        for v in scope:
            member[v].add(t)
    left, fresh = {int(v) for v in variables}, max(tables) + 1

    def union(v: int) -> set[int]:
        """The variables of all tables that hold v, and v."""
        return {u for t in member[v] for u in tables[t][0]} | {v}

    size = {v: math.prod(int(card[u]) for u in union(v)) for v in left}
    waiting = [(entries, v) for v, entries in size.items()]
    heapify(waiting)
    while left:
        entries, v = heappop(waiting)
        if v not in left or entries != size[v]:
            continue
        if entries > largest:
            return False
        scope = tuple(sorted(union(v)))
        total = np.zeros([card[u] for u in scope])
        for t in member[v]:
            inner, table = tables.pop(t)
            total += table.reshape([card[u] if u in inner else 1 for u in scope])
            for u in inner:
                if u != v:
                    member[u].discard(t)
        rest = tuple(u for u in scope if u != v)
        tables[fresh] = rest, np.logaddexp.reduce(total, axis=scope.index(v))
        left.discard(v)
        for u in rest:
            member[u].add(fresh)
        for u in left.intersection(rest):
            size[u] = math.prod(int(card[w]) for w in union(u))
            heappush(waiting, (size[u], u))
        fresh += 1
    return True

"""Cotangents: derivatives of a loss in the layout of marginals (d_mu) and of scores (d_theta)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..base.types import Floats, Ints
from ..kernels.tables import take_singles
from .regions import runs
from .scores import Scores, outcome_cotangents
from .structured import StructuredValue
from .tables import DenseTerm, WeightedTable

#: d_theta per kind, flat and aligned with `Scores.kind`: regions that share a table share its entries. Of kinds given
#: by weights it is the derivative with respect to these.
Tables = dict[str, Floats]


class MarginalCotangent(NamedTuple):
    """d_mu: of all variables' marginals, (n, states), and of kinds of larger regions, flat with own table per region.

    Kinds that a loss does not look at are left out; singles may be None.
    """

    singles: Floats | None
    cliques: Mapping[str, Floats]


def zero_tables(scores: Scores) -> Tables:
    """d_theta of zeros."""
    return {kind: np.zeros(scores.n_entries(kind)) for kind in scores.graph.kinds}


def add_singles(scores: Scores, d_singles: Floats, tables: Tables) -> None:
    """Add cotangents of all variables' scores, (n, states), to the kinds of single variables."""
    graph = scores.graph
    for kind, scope in graph.scopes.items():
        if scope.shape[1] == 1 and len(scope):
            take_singles(d_singles, scores.kind(kind, widen=False)[1], scope.reshape(-1), graph.n_states, tables[kind])


def add_cliques(scores: Scores, kind: str, d_flat: Floats, tables: Tables) -> None:
    """Add cotangents of a kind's own tables, region after region, where regions may share a table or have weights."""
    if kind in scores.weighted:
        tables[kind] += scores.weighted[kind].pull(d_flat)
        return
    values, offset = scores.kind(kind, widen=False)
    if len(values) == len(d_flat):
        tables[kind] += d_flat
        return
    size = scores.graph.table_sizes(kind)
    if np.all(offset == 0) and np.all(size == size[0]):
        tables[kind] += d_flat.reshape(len(size), -1).sum(axis=0)
        return
    np.add.at(tables[kind], runs(offset, size), d_flat)


def own_tables(scores: Scores, kind: str) -> Floats:
    """A kind's scores flat with an own table per region, shared ones written out."""
    values, offset = scores.kind(kind)
    size = scores.graph.table_sizes(kind)
    if len(values) == int(size.sum()):
        return values
    out: Floats = values[runs(offset, size)]
    return out


def flat_marginals(marginals: Floats | list[Floats]) -> Floats:
    """Marginals of one kind as users see them, flat."""
    if isinstance(marginals, list):
        return np.concatenate([np.zeros(0), *(m.ravel() for m in marginals)])
    return marginals.ravel()


def user_tables(scores: Scores, tables: Tables, theta: Mapping[str, Any]) -> dict[str, Floats | list[Floats]]:
    """d_theta in the shapes in which theta was given; kinds given as None are left out."""
    shaped: dict[str, Floats | list[Floats]] = {}
    for kind, value in theta.items():
        if value is None:
            continue
        if isinstance(value, StructuredValue):
            if kind in scores.structured:
                scope, states = scores.graph.scopes[kind], scores.graph.most_states(kind)
                d_value = value.pull(outcome_cotangents(scores, kind, tables[kind]), scope.shape[1], states)
                if d_value is not None:
                    shaped[kind] = d_value
            continue
        if isinstance(value, DenseTerm | WeightedTable):
            value = value.weight
        elif scores.graph.shared_shape(kind) is None and len(scores.graph.scopes[kind]):
            shaped[kind] = scores.graph.shape_tables(kind, tables[kind])
            continue
        shape = np.shape(value)
        # a kind without regions has no entries, whatever was given for it
        shaped[kind] = tables[kind].reshape(shape) if len(tables[kind]) else np.zeros(shape)
    return shaped


def flat_cotangent(scores: Scores, cotangent: MarginalCotangent, start: Ints, size: int) -> Floats:
    """d_mu over all regions in the `Regions` numbering; region r at start[r]."""
    flat, graph = np.zeros(size), scores.graph
    for kind, d_mu in cotangent.cliques.items():
        if len(d_mu):
            first = start[graph.region_slices[kind].start]
            flat[first : first + len(d_mu)] = d_mu
    if cotangent.singles is not None:
        inside = np.arange(cotangent.singles.shape[1]) < graph.n_states[:, None]
        where = start[scores.regions.single][:, None] + np.arange(cotangent.singles.shape[1])
        flat[where[inside]] += cotangent.singles[inside]
    return flat


def split_flat(scores: Scores, d_theta: Floats, at: Ints, leave: Collection[str] = ()) -> Tables:
    """d_theta per kind from the layout of `Scores.flat`; zero of kinds to `leave` out of it."""
    tables, first = zero_tables(scores), 0
    for kind, scope in scores.graph.scopes.items():
        if kind in leave:
            continue
        if scope.shape[1] != 1:
            size = len(scores.kind(kind, widen=False)[0])
            part = d_theta[first : first + size]
            tables[kind] += scores.weighted[kind].pull(part) if kind in scores.weighted else part
            first += size
        elif len(scope):
            _, offset = scores.kind(kind, widen=False)
            n = scores.graph.n_states[scope[:, 0]]
            source = runs(at[scores.graph.region_slices[kind]], n)
            np.add.at(tables[kind], runs(offset, n), d_theta[source])
    return tables


def split_pairs(scores: Scores, d_pairs: Floats) -> Tables:
    """d_theta per kind from tables of all pairs, kind after kind as `Scores.kind` has them; zero of other kinds."""
    tables, first = zero_tables(scores), 0
    for kind, scope in scores.graph.scopes.items():
        if scope.shape[1] == 2:
            size = len(scores.kind(kind, widen=False)[0])
            part = d_pairs[first : first + size]
            tables[kind] = scores.weighted[kind].pull(part) if kind in scores.weighted else part
            first += size
    return tables


def add_weights(scores: Scores, d_weights: Floats, tables: Tables) -> None:
    """Add cotangents of the weights of all pairs of weighted kinds, kind after kind, (pairs,), to d_theta."""
    first = 0
    for kind, weighted in scores.weighted.items():
        last = first + len(scores.graph.scopes[kind])
        tables[kind] += weighted.sum(d_weights[first:last])
        first = last


def own_split(scores: Scores, d_theta: Floats, start: Ints) -> Tables:
    """d_theta per kind from own tables of all regions; region r of the `Regions` numbering at start[r]."""
    tables = zero_tables(scores)
    for kind in scores.graph.kinds:
        rows = scores.graph.region_slices[kind]
        add_cliques(scores, kind, d_theta[start[rows.start] : start[rows.stop]], tables)
    return tables

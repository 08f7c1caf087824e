"""Structured factors of every rule, and the same as tables of all configurations."""

from __future__ import annotations

import copy

import numpy as np

import potentia as pt

_RNG = np.random.default_rng(5)

#: Factors by name; those of `BINARY` take two states.
FACTORS = {
    "at most one": pt.factors.AtMostOne(),
    "soft at most one": pt.factors.AtMostOne(weight=1.3),
    "exactly one": pt.factors.ExactlyOne(on=0),
    "or": pt.factors.Or(weight=[1.0, 2.0]),
    "and": pt.factors.And(weight=2.0),
    "implies": pt.factors.Implies(),
    "odd": pt.factors.Parity(odd=True),
    "same": pt.factors.PnPotts(weight=2.0),
    "different": pt.factors.AllDifferent(weight=1.5),
    "counts": pt.factors.Cardinality(_RNG.normal(size=7)),
    "counts of each": pt.factors.Cardinality(_RNG.normal(size=(2, 4))),
    "at most two": pt.factors.Cardinality([0, 0, 0.3, -np.inf]),
    "some counts": pt.factors.Cardinality([0, -np.inf, 0.3, -np.inf, 1, 2]),
}
BINARY = {"and", "implies"}


def problem(n_states=2, n=6, order=4, edges=True, seed=0):
    """A loopy graph with two overlapping groups, and scores of its variables and pairs."""
    rng = np.random.default_rng(seed)
    groups = np.array([rng.permutation(n)[:order] for _ in range(2)])
    pairs = [[i, (i + 1) % n] for i in range(n)] if edges else np.zeros((0, 2), dtype=int)
    graph = pt.Graph([n_states] * n, {"node": np.arange(n)[:, None], "edge": pairs, "group": groups})
    edge = 0.5 * rng.normal(size=(len(pairs), n_states, n_states)) if edges else None
    return graph, {"node": rng.normal(size=(n, n_states)), "edge": edge}


def outcomes(value, graph, kind="group"):
    """The outcome of every configuration of a region of a kind."""
    shape = tuple(graph.n_states[graph.scopes[kind][0]])
    return value.structure(len(shape)).configurations(shape, graph.most_states(kind))


def tables(value, graph, kind="group"):
    """A value of a kind written out as tables of all configurations."""
    scope = graph.scopes[kind]
    scores = value.table(scope.shape[1], graph.most_states(kind))
    return np.broadcast_to(scores, (len(scope), scores.shape[-1]))[:, outcomes(value, graph, kind)]


def by_outcome(value, graph, marginals, kind="group"):
    """Marginals of tables summed over the configurations of each outcome."""
    flat = marginals.reshape(len(marginals), -1)
    index = outcomes(value, graph, kind).ravel()
    summed = np.zeros((len(flat), value.table(len(graph.scopes[kind][0]), graph.most_states(kind)).shape[-1]))
    np.add.at(summed, (slice(None), index), flat)
    return summed


def with_parameter(value, parameter):
    """The value with another weight or other scores."""
    other = copy.copy(value)
    setattr(other, "counts" if isinstance(value, pt.factors.Cardinality) else "weight", parameter)
    return other

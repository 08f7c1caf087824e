"""TRW as an average over forests: a bound on log Z that holds at any messages, and the weights that make it tightest.

With forests T of weight p_T that cover every clique, rho_e = sum of p_T over the forests that hold e, and any messages,
    log Z <= sum_T p_T log Z_T,   theta_T = sum_{e in T} b_e / rho_e + sum_i (b_i + (1 - d_i(T) - c_i) h_i),
because the theta_T average to theta [MBL-tpami sec. 3.3]: b are the scores with messages moved between them,
d_i(T) counts the cliques of T at variable i, c_i = 1 - sum of rho_e at i, and h_i = log mu_i is arbitrary. At a fixed
point every Z_T is a product of constants, and the bound is TRW's own value.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..base.types import Bools, Floats, Ints
from ..graph.cotangents import flat_marginals, own_tables
from ..graph.forests import Forests, heaviest_forest
from ..graph.scores import Scores, refuse_structures
from ..graph.structure import Graph
from .base import Result
from .engine import star_entropy
from .exact import Exact

#: Conditional-gradient steps at most, the longest and the shortest of them, and the relative fall that ends them.
_STEPS, _LONGEST, _SHORTEST, _FALL = 60, 0.5, 1e-3, 1e-4
#: Weights below this end the search: what could still be gained is lost in rounding.
_RAREST = 1e-9
#: Tolerance of the messages while weights are optimised.
_ROUGH = 1e-3
#: Probabilities below this count as this: any finite function will do, and the logarithm of zero is none.
_FLOOR = 1e-12


def forest_bound(result: Result, forests: Forests | None = None) -> float:
    """An upper bound on log Z from the messages of a result; the forests behind TRW's default weights if None."""
    scores = result.scores
    graph = scores.graph
    refuse_structures(graph, "the bound by forests")
    forests = graph.spanning_forests if forests is None else forests
    shares, members = graph.split_cliques(forests.shares), graph.split_cliques(forests.members)
    singles = scores.singles.copy()
    tables, degree = {}, np.zeros((len(forests.weights), graph.n_variables))
    for kind, share in shares.items():
        lam, dead = _messages(result, kind)
        tables[kind] = _moved_tables(scores, kind, lam) / np.repeat(share, graph.table_sizes(kind))
        for k, variables in enumerate(graph.scopes[kind].T):
            np.subtract.at(singles, variables, np.where(dead[:, k], np.inf, lam[:, k]))
            for t, inside in enumerate(members[kind]):
                degree[t] += np.bincount(variables[inside], minlength=graph.n_variables)
    h, mean_degree = np.log(np.maximum(result.variable_marginals, _FLOOR)), forests.weights @ degree
    total = 0.0
    for weight, inside, d in zip(forests.weights, forests.members, degree, strict=True):
        alone = singles + (mean_degree - d)[:, None] * h
        total += weight * _log_partition(scores, alone, tables, graph.split_cliques(inside))
    return float(total)


def optimise_rho(method: Any, scores: Scores, start: Result | None) -> Result:
    """The result of `method`, a TRW, with the weights that minimise its value, by conditional gradient over forests.

    The value is convex in rho with derivative -I_e, the information of a clique, so each step goes towards the forest
    of the most information. Messages are only iterated to the method's own tolerance once the weights are found.
    """
    graph, rough = scores.graph, copy(method)
    refuse_structures(graph, "optimise_rho")
    rough.tol = max(method.tol, _ROUGH)

    def run(method: Any, forests: Forests, start: Result | None) -> Result:
        """Message passing with the weights of these forests."""
        result: Result = method.solve(method.engine(scores, start, star_entropy(graph, forests.shares, valid=True)))
        return result

    forests = graph.spanning_forests
    result = run(rough, forests, start)
    iterations, step = result.iterations, _LONGEST
    for _ in range(_STEPS):
        information = clique_information(result)
        towards = heaviest_forest(graph, information)
        gain = information @ (towards - forests.shares)
        # a clique that no forest wants halves its share step by step, which message passing divides by
        rare = forests.shares.min(initial=1.0) < _RAREST
        if rare or gain <= _FALL * (1.0 + abs(result.value)):
            break
        while step > _SHORTEST:
            mixed = forests.mixed(towards, step)
            trial = run(rough, mixed, result)
            iterations += trial.iterations
            if trial.value < result.value:
                break
            step /= 2.0
        else:
            break
        forests, result, step = mixed, trial, min(2.0 * step, _LONGEST)
    result = run(method, forests, result)
    upper = partial(forest_bound, forests=forests)
    return replace(result, iterations=iterations + result.iterations, upper_of=upper)


def clique_information(result: Result) -> Floats:
    """I_e = sum of the entropies of its variables minus its own, of every clique."""
    graph = result.graph
    log_single = np.log(np.maximum(result.variable_marginals, _FLOOR))
    information = [np.zeros(0)]
    for kind in result.scores.graph.clique_kinds:
        mu = flat_marginals(result.marginals[kind])
        ratio = np.log(np.maximum(mu, _FLOOR))
        owner = _owners(graph, kind)
        for k, states in enumerate(_states(graph, kind)):
            ratio -= log_single[graph.scopes[kind][owner, k], states]
        information.append(np.maximum(np.bincount(owner, mu * ratio, minlength=len(graph.scopes[kind])), 0.0))
    return np.concatenate(information)


def _log_partition(scores: Scores, alone: Floats, tables: dict[str, Floats], members: dict[str, Bools]) -> float:
    """log Z of the variables' own scores and the cliques of one forest."""
    graph = scores.graph
    # the first kind is that of all variables, whatever the names of the others
    names = {kind: f"clique {kind}" for kind, inside in members.items() if inside.any()}
    scopes = {name: graph.scopes[kind][members[kind]] for kind, name in names.items()}
    forest = Graph(graph.n_states, {"variable": np.arange(graph.n_variables)[:, None], **scopes})
    inside = np.arange(alone.shape[1]) < graph.n_states[:, None]
    theta = {"variable": forest.shape_tables("variable", alone[inside])}
    for kind, name in names.items():
        theta[name] = forest.shape_tables(name, tables[kind][members[kind][_owners(graph, kind)]])
    return Exact().infer(forest, theta).value


def _moved_tables(scores: Scores, kind: str, lam: Floats) -> Floats:
    """theta_e plus the messages of its variables, flat, with an own table per clique."""
    tables, owner = own_tables(scores, kind).copy(), _owners(scores.graph, kind)
    for k, states in enumerate(_states(scores.graph, kind)):
        tables += lam[owner, k, states]
    return tables


def _messages(result: Result, kind: str) -> tuple[Floats, Bools]:
    """lam of a kind's cliques, (m, variables of a clique, states), zero where messages forbid a state; and where."""
    graph = result.graph
    kinds = result.scores.graph.clique_kinds
    if np.ndim(result.messages) == 3:  # both ends of all pairs, kind after kind
        first = sum(len(graph.scopes[k]) for k in kinds[: kinds.index(kind)])
        lam = result.messages[first : first + len(graph.scopes[kind])]
    else:
        lam = _from_links(graph, kind, result.messages)
    dead = np.isneginf(lam)
    return np.where(dead, 0.0, lam), dead


def _from_links(graph: Graph, kind: str, messages: Floats) -> Floats:
    """Messages of a kind's cliques out of those of all links, (m, variables of a clique, states)."""
    regions, links = graph.regions, graph.links("star")
    size = regions.size[links.child]
    start, n = np.cumsum(size) - size, len(regions.size)
    rows = graph.region_slices[kind]
    region = np.arange(rows.start, rows.stop)
    wanted = region[:, None] * n + regions.single[graph.scopes[kind]]
    at = start[np.searchsorted(links.parent * n + links.child, wanted)]
    states = np.arange(int(graph.n_states.max()))
    inside = states < graph.n_states[graph.scopes[kind]][:, :, None]
    return np.where(inside, messages[np.where(inside, at[:, :, None] + states, 0)], 0.0)


def _owners(graph: Graph, kind: str) -> Ints:
    """The clique of every entry of a kind's tables laid end to end."""
    return np.repeat(np.arange(len(graph.scopes[kind])), graph.table_sizes(kind))


def _states(graph: Graph, kind: str) -> list[Ints]:
    """The state of each variable of a clique, for every entry of a kind's tables laid end to end."""
    shapes, sizes, owner = graph.table_shapes(kind), graph.table_sizes(kind), _owners(graph, kind)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    states = []
    for k in range(shapes.shape[1]):
        stride = shapes[:, k + 1 :].prod(axis=1)
        states.append((within // stride[owner]) % shapes[owner, k])
    return states

"""Clique weights rho for tree-reweighted entropies: averages of acyclic sets of cliques.

rho is valid (the TRW value is then an upper bound on log Z) when it is dominated by a convex combination of
incidence vectors of forests, where a set of cliques is a forest if its factor graph has no loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..base.types import Bools, Floats, Ints
from ..kernels.traversal import grow_even_forest, grow_forest
from .regions import Narrow, runs

if TYPE_CHECKING:
    from .structure import Graph

#: Forests averaged at least: more even weights make a tighter bound. On large graphs, where each takes a second, no
#: more than use every clique, or than walk over this many cliques.
_FORESTS, _FOREST_WORK = 16, 5_000_000
#: Runs of cliques that a forest takes in random order: single cliques on small graphs.
_RUNS = 50_000
#: Forests tried when certifying given weights.
_CERTIFICATE = 64


def default_weights(graph: Graph) -> Floats:
    """A valid rho for every clique, positive everywhere, 1 throughout on a forest.

    On grids it is 1 / (number of directions), the average of the forests of one direction each: 0.5 with four
    neighbours, as in [MBL-tpami]. Elsewhere spanning forests are grown one after another from the least used
    cliques, and rho is the share of forests that use a clique.
    """
    if graph.made_of:
        parts = [part.split_cliques(part.forest_weights) for part in graph.made_of]
        return np.concatenate([np.zeros(0), *(w[kind] for kind in graph.kinds for w in parts if kind in w)])
    if graph.n_forests:
        return np.full(len(graph.cliques), 1.0 / graph.n_forests)
    for rounds, used in enumerate(_even_forests(graph), 1):
        weights = used / rounds
    return weights


def has_no_loop(graph: Graph) -> bool:
    """Whether the factor graph of all cliques has no loop."""
    cliques = graph.cliques
    if graph.made_of:
        return all(part.is_acyclic for part in graph.made_of)
    if (graph.regions.order[cliques] - 1).sum() >= graph.n_variables:  # a forest joins fewer
        return False
    order, used = np.arange(len(cliques)), np.zeros(len(cliques))
    return bool(grow_forest(*_scopes(graph), order, _single_trees(graph), used) == len(cliques))


def _even_forests(graph: Graph) -> Iterator[Ints]:
    """How often each clique has been used, after every forest grown from those used least."""
    n_cliques = len(graph.cliques)
    used = np.zeros(n_cliques, dtype=np.int64)
    scopes, length = _scopes(graph), 1 + n_cliques // _RUNS
    rng = np.random.default_rng(0)
    rounds, grown = 0, -1
    enough = min(_FORESTS, _FOREST_WORK // max(n_cliques, 1))
    while grown < n_cliques and (rounds < max(enough, 1) or used.min(initial=1) == 0):
        runs = rng.permutation(-(-n_cliques // length))
        grown = grow_even_forest(*scopes, runs, length, rounds, _single_trees(graph), used)
        rounds += 1
        yield used


class Forests(NamedTuple):
    """Acyclic sets of cliques that together hold every clique: members (K, cliques) and weights (K,) of sum 1."""

    members: Bools
    weights: Floats

    @property
    def shares(self) -> Floats:
        """rho: the weight of the forests that hold each clique."""
        return self.weights @ self.members

    def mixed(self, forest: Bools, weight: float) -> Forests:
        """These forests and one more of this weight; the others' weights shrink so that all sum to 1."""
        return Forests(np.concatenate([self.members, forest[None]]), np.append((1.0 - weight) * self.weights, weight))


def average_forests(graph: Graph) -> Forests:
    """The forests whose average `Graph.forest_weights` is; of a union of graphs others, of its cliques as a whole."""
    directions = _directions(graph)
    if directions is not None:
        members = directions == np.unique(directions)[:, None]
    else:
        before, rows = np.zeros(len(graph.cliques), dtype=np.int64), []
        for used in _even_forests(graph):
            rows.append(used > before)
            before = used.copy()
        members = np.array(rows)
    return Forests(members, np.full(len(members), 1.0 / len(members)))


def _directions(graph: Graph) -> Ints | None:
    """The direction of every edge of a grid, whose edges of one direction are forests; None of other graphs."""
    if not graph.n_forests:
        return None
    scope = _scopes(graph)[1].reshape(-1, 2)
    step: Ints = (scope[:, 1] - scope[:, 0]).astype(np.int64)
    # on narrow grids steps of different directions can be equal
    return step if len(np.unique(step)) == graph.n_forests else None


def heaviest_forest(graph: Graph, weights: Floats) -> Bools:
    """The cliques of a forest of the largest weight (of pairs: a maximum spanning forest), as a mask."""
    used = np.zeros(len(weights))
    grow_forest(*_scopes(graph), np.argsort(-weights, kind="stable"), _single_trees(graph), used)
    return used > 0


def certified(graph: Graph, rho: Floats) -> bool:
    """Whether rho is provably valid: below the default weights, or below an average of forests grown to fit it.

    True is a proof; False only says that none was found.
    """
    if np.all(rho <= graph.forest_weights + 1e-12):
        return True
    used, scopes = np.zeros(len(rho)), _scopes(graph)
    for rounds in range(1, _CERTIFICATE + 1):
        order = np.argsort(used - rounds * rho, kind="stable")
        grow_forest(*scopes, order, _single_trees(graph), used)
        if np.all(rho <= used / rounds + 1e-12):
            return True
    return False


def _single_trees(graph: Graph) -> Narrow:
    """A forest of single variables: the root of each is itself."""
    return np.arange(graph.n_variables, dtype=np.int32)


def _scopes(graph: Graph) -> tuple[Ints, Narrow]:
    """CSR of the variables of all cliques."""
    regions, cliques = graph.regions, graph.cliques
    sizes = regions.order[cliques]
    scope_ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return scope_ptr, regions.scope[runs(regions.scope_ptr[cliques], sizes)]

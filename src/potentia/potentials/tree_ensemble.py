"""Many trees as flat arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from potentia._types import Floats, Ints
from potentia.kernels.decision_trees import MAX_BINS, add_trees
from potentia.potentials.binning import Codes
from potentia.potentials.chunks import map_chunks


@dataclass
class TreeEnsemble:
    """Trees one after another: packed nodes (m,), leaf vectors (m, K), first nodes (T + 1,), depths (T,)."""

    nodes: Ints
    values: Floats
    node_ptr: Ints
    depths: Ints

    @classmethod
    def empty(cls, n_outputs: int) -> TreeEnsemble:
        """No trees: the zero function."""
        none = np.zeros(0, np.int64)
        return cls(none, np.zeros((0, n_outputs)), np.zeros(1, np.int64), none)

    def copy(self) -> TreeEnsemble:
        """The same trees in new arrays."""
        return TreeEnsemble(self.nodes.copy(), self.values.copy(), self.node_ptr.copy(), self.depths.copy())

    def is_sound(self, n_features: int) -> bool:
        """Whether every walk down these trees stays inside them, as kernels take for granted."""
        sizes = np.diff(self.node_ptr)
        if (sizes < 1).any():
            return False
        left, feature, cut = self.nodes >> 24, self.nodes >> 8 & 0xFFFF, self.nodes & 0xFF
        last = left + (cut < MAX_BINS - 1)  # no code exceeds the last, so its node has no right
        inside = (left >= 0) & (last < np.repeat(sizes, sizes)) & (feature < n_features)
        return bool(inside.all() and (self.depths >= 0).all() and (self.depths <= sizes).all())

    def scores(self, codes: Codes, first: int = 0) -> Floats:
        """Scores (n, K) by the trees from number `first` on."""
        scores = np.zeros((len(codes), self.values.shape[1]))
        self.add_to(scores, codes, first)
        return scores

    def add_to(self, scores: Floats, codes: Codes, first: int = 0) -> None:
        """scores (n, K) += the trees from number `first` on."""
        arrays = self.nodes, self.values, self.node_ptr[first:], self.depths[first:]

        def add(rows: slice) -> None:
            add_trees(codes[rows], *arrays, scores[rows])

        map_chunks(add, len(scores), codes.shape[1] + 4 * scores.shape[1])


class GrowingEnsemble:
    """A forest with room for more trees, so that adding one copies nothing."""

    def __init__(self, forest: TreeEnsemble, n_trees: int, max_nodes: int):
        self.n_trees = len(forest.depths)
        size = len(forest.nodes) + n_trees * max_nodes
        self._room = TreeEnsemble(
            np.empty(size, np.int64),
            np.empty((size, forest.values.shape[1])),
            np.zeros(self.n_trees + n_trees + 1, np.int64),
            np.zeros(self.n_trees + n_trees, np.int64),
        )
        for name, array in vars(forest).items():
            getattr(self._room, name)[: len(array)] = array

    def append(self, nodes: Ints, values: Floats, depth: int) -> None:
        """Add one tree."""
        room, t = self._room, self.n_trees
        start = room.node_ptr[t]
        stop = room.node_ptr[t + 1] = start + len(nodes)
        room.nodes[start:stop], room.values[start:stop], room.depths[t] = nodes, values, depth
        self.n_trees += 1

    def forest(self) -> TreeEnsemble:
        """The trees so far, as views."""
        room, t = self._room, self.n_trees
        stop = room.node_ptr[t]
        return TreeEnsemble(room.nodes[:stop], room.values[:stop], room.node_ptr[: t + 1], room.depths[:t])

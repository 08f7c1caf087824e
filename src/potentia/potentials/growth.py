"""Growing one tree [ILR-chapter sec. 1.9.4, step 2]."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from potentia._types import Floats, Ints
from potentia.kernels.decision_trees import MAX_BINS, PAD, measure, measure_rest, pack, partition
from potentia.potentials.binning import Codes
from potentia.potentials.chunks import map_parts

#: A node of at least this many codes is worth the hand-over to other threads.
_MANY = 1 << 20


@dataclass(frozen=True)
class Tree:
    """Packed nodes (2 leaves - 1,), rows grouped by leaf (n,), per leaf its node, start and stop (leaves, 3)."""

    nodes: Ints
    order: Ints
    spans: Ints
    depth: int


@dataclass
class _Leaf:
    """A leaf of the growing tree: its rows order[start:stop], its sums' slot in the pool, and its best split."""

    node: int
    start: int
    stop: int
    level: int
    slot: int
    gain: float = 0.0
    feature: int = 0
    cut: int = 0


class Growth:
    """Grows trees for K outputs on binned features, always splitting the leaf that gains most.

    A leaf keeps its sums of statistics per bin in a slot of the pool while it may still be split, so n_slots
    must exceed the number of such leaves. Threads share the features of large nodes; the result does not
    depend on them.
    """

    def __init__(self, n_bins: Ints, n_outputs: int, max_leaves: int, n_slots: int):
        self.n_outputs = n_outputs
        self.max_leaves = max_leaves
        self._bin_ptr = np.append(0, np.cumsum(n_bins))
        self.width = -(-n_outputs // PAD) * PAD
        self._pool = np.empty((n_slots, int(self._bin_ptr[-1]), self.width))
        self._gains = np.zeros(len(n_bins))
        self._cuts = np.zeros(len(n_bins), np.int64)

    def tree(self, codes: Codes, statistics: Floats, limits: Floats) -> Tree:
        """A tree on the rows codes (n, d) with `fill_statistics` (n, width) and limits as in `best_cut`."""
        self._codes, self._statistics, self._limits = codes, statistics, limits
        self._order, self._spare = np.arange(len(codes)), np.empty(len(codes), np.int64)
        self._nodes = [pack(0, 0, MAX_BINS - 1)]
        self._free = list(range(1, len(self._pool)))
        leaves = [_Leaf(0, 0, len(codes), 0, 0)]
        self._measure(leaves[0])
        while len(leaves) < self.max_leaves:
            leaf = max(leaves, key=attrgetter("gain"))
            if leaf.gain <= 0.0:
                break
            leaves.append(self._split(leaf))
        spans = np.array([(leaf.node, leaf.start, leaf.stop) for leaf in leaves])
        return Tree(np.array(self._nodes), self._order, spans, max(leaf.level for leaf in leaves))

    def _split(self, leaf: _Leaf) -> _Leaf:
        """Make the leaf its left child and return the right one, both measured."""
        rows = self._order[leaf.start : leaf.stop]
        middle = leaf.start + partition(self._codes, leaf.feature, leaf.cut, rows, self._spare)
        child = len(self._nodes)
        self._nodes[leaf.node] = pack(child, leaf.feature, leaf.cut)
        self._nodes += [pack(child, 0, MAX_BINS - 1), pack(child + 1, 0, MAX_BINS - 1)]
        right = _Leaf(child + 1, middle, leaf.stop, leaf.level + 1, self._free.pop())
        leaf.node, leaf.stop, leaf.level = child, middle, leaf.level + 1
        # the child with fewer rows is counted, the other one is what remains of the parent
        small, large = right, leaf
        if middle - leaf.start < right.stop - middle:
            small, large = leaf, right
            leaf.slot, right.slot = right.slot, leaf.slot
        self._measure(small)
        self._measure(large, small)
        self._free += [child.slot for child in (small, large) if child.gain <= 0.0]
        return right

    def _measure(self, leaf: _Leaf, counted: _Leaf | None = None) -> None:
        """Fill the leaf's sums, from its rows or from its parent's less its counted sibling's; find its best split."""
        sums, found = self._pool[leaf.slot], (self._limits, self._pool[leaf.slot], self._gains, self._cuts)

        def count(first: int, last: int) -> None:
            rows = self._order[leaf.start : leaf.stop]
            where = self.n_outputs, self._bin_ptr, first, last
            measure(self._codes, self._statistics, *where, rows, *found)

        def subtract(first: int, last: int) -> None:
            assert counted is not None
            measure_rest(self._pool[counted.slot], self.n_outputs, self._bin_ptr, first, last, *found)

        work = count if counted is None else subtract
        size = (leaf.stop - leaf.start) * len(self._gains) if counted is None else sums.size
        map_parts(work, len(self._gains)) if size >= _MANY else work(0, len(self._gains))
        # the same rows split off by two features gain the same up to rounding: the first one wins
        best = self._gains.max()
        leaf.feature = int(np.argmax(self._gains >= best - self._limits[2]))
        leaf.gain, leaf.cut = float(self._gains[leaf.feature]), int(self._cuts[leaf.feature])

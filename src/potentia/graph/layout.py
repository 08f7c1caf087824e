"""Orders of update and the memory layout that kernels want, computed once per graph and kept on it."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.resources import check_memory
from ..base.types import Ints, PotentiaError
from ..kernels.machine.simd import CHUNK
from ..kernels.star_blocks import ALONE, RECEIVES, SENDS
from ..kernels.traversal import breadth_first, greedy_colours, sequential_levels

if TYPE_CHECKING:
    from .structure import Graph

#: Lane counts a layout may use, a compromise between padding and the cost of short loops. The kernels count on 1 or
#: multiples of `CHUNK`, and on powers of two.
_LANES = (1, 8, 16, 32, 64, 128)
#: Table entries of a row at most: tables are read faster in long runs, but with many states narrow rows keep what a
#: message needs close together.
_ROW_ENTRIES = 2**15
#: What starting one more row of a block costs, in lanes of work, times the number of states; measured.
_ROW_COST = 28
#: What sorting variables by their numbers of pairs must save, as a share of the work.
_SORTING = 0.03
#: Bytes that an end of a pair takes while a layout is made; measured.
_END_BYTES = 135


class PairLayout(NamedTuple):
    """Variables in blocks of lanes, their pairs in slots (sliced ELL); see `kernels.star`.

    variable (B, W): variable of each lane, -1 in padding. slot_ptr (B + 1): rows of each block. pair, side (R, W):
    which pair a slot is and which end the lane's variable is; -1 in an empty slot. opposite (R, W): flat position
    of state 0 of the message at the pair's other end; empty slots point to a spare row of zeros at the end.
    pair_position (m, 2): row * W + lane of each end of each pair. variable_position (n): block * W + lane.
    group_ptr: blocks of one group (a colour or a level) are independent of each other.
    """

    n_states: int
    variable: Ints
    slot_ptr: Ints
    pair: Ints
    side: NDArray[np.int8]
    opposite: NDArray[np.uint32]
    pair_position: Ints
    variable_position: Ints
    group_ptr: Ints


def adjacency(n: int, pairs: Ints) -> tuple[Ints, Ints]:
    """CSR of neighbours: variable i touches adjacent[ptr[i] : ptr[i + 1]]."""
    ends = np.concatenate([pairs[:, 0], pairs[:, 1]])
    others = np.concatenate([pairs[:, 1], pairs[:, 0]])
    order = np.argsort(ends, kind="stable")
    ptr = np.concatenate([[0], np.cumsum(np.bincount(ends, minlength=n))]).astype(np.int64)
    return ptr, others[order]


def find_neighbours(graph: Graph) -> tuple[Ints, Ints]:
    """CSR of the variables that share a region with each variable (repeated where they share several).

    Regions of kinds in `structures`, which may be large, are paths of their variables here.
    """
    ends = [
        scope[:, [p, q]]
        for kind, scope in graph.scopes.items()
        for p, q in (
            pairwise(range(scope.shape[1])) if kind in graph.structures else combinations(range(scope.shape[1]), 2)
        )
    ]
    return adjacency(graph.n_variables, np.concatenate([np.zeros((0, 2), dtype=np.int64), *ends]))


def group_variables(graph: Graph, order: str) -> tuple[Ints, Ints]:
    """Variables sorted into groups that share no region, and the groups' bounds; "colours" or "sequence".

    Variables of graphs with structured regions, which may be large, each form a separate group.
    """
    group = np.arange(graph.n_variables) if graph.structures else _groups(graph, order)
    bounds = np.concatenate([[0], np.cumsum(np.bincount(group))]).astype(np.int64)
    return np.argsort(group, kind="stable"), bounds


def _groups(graph: Graph, order: str) -> Ints:
    """Group of each variable for "colours", "sequence" (0, 1, 2, ...) or "tree" (leaves to roots)."""
    ptr, adjacent = graph.neighbours
    if order == "colours":
        return colours(ptr, adjacent)
    steps = np.arange(graph.n_variables) if order == "sequence" else graph.tree_order[0][::-1].copy()
    return levels(ptr, adjacent, steps)


def colours(ptr: Ints, adjacent: Ints) -> Ints:
    """A colour of each vertex that no neighbour has; two colours on any N-d axis grid."""
    n = len(ptr) - 1
    colour = np.full(n, -1, dtype=np.int64)
    greedy_colours(ptr, adjacent, colour, np.full(n + 1, -1, dtype=np.int64))
    return colour


def levels(ptr: Ints, adjacent: Ints, order: Ints) -> Ints:
    """Levels of vertices whose visit one after another is the same as in `order`, vertex by vertex."""
    level = np.full(len(ptr) - 1, -1, dtype=np.int64)
    sequential_levels(ptr, adjacent, order, level)
    return level


def walk(ptr: Ints, adjacent: Ints) -> tuple[Ints, Ints]:
    """Breadth-first order from one root per component and every vertex' parent, -1 at roots."""
    n = len(ptr) - 1
    order, parent = np.empty(n, dtype=np.int64), np.full(n, -2, dtype=np.int64)
    breadth_first(ptr, adjacent, order, parent)
    return order, parent


def components(order: Ints, parent: Ints) -> Ints:
    """Number of the connected component of each vertex, from what `walk` gives."""
    label = np.empty(len(order), dtype=np.int64)
    label[order] = np.cumsum(parent[order] < 0) - 1
    return label


def lay_out_pairs(graph: Graph, order: str, oriented: bool = False) -> PairLayout:
    """Blocks for an order of update: "colours", "sequence" (0, 1, 2, ...) or "tree" (leaves to roots).

    With `oriented`, every row holds pairs seen from the same end, which one shared table needs; without it rows do so
    where that costs little.
    """
    pairs, n, states = graph.pairs, graph.n_variables, int(graph.n_states.max())
    group = _groups(graph, order)
    m = len(pairs)
    check_memory(_END_BYTES * 2 * m, f"the layout of {n} variables and {m} pairs", "build several smaller graphs")
    ends = pairs.T.ravel()  # directed ends: first all side 0, then all side 1
    side = np.repeat(np.array([0, 1], dtype=np.int8), m)
    degree = np.bincount(ends, minlength=n)
    forward = np.bincount(ends[:m], minlength=n)
    cuts = [_cut_blocks(group, forward, degree, states)]
    if not oriented:
        cuts.append(_cut_blocks(group, degree, degree, states))
        oriented = cuts[0][0] <= (1.0 + _SORTING) * cuts[1][0]
        forward = forward if oriented else degree
    _, variable, block, lane, group_ptr = cuts[0 if oriented else 1]
    width = variable.shape[1]
    first_slots, slots = _slots_per_block(len(variable), block, forward, degree - forward)
    slot_ptr = np.concatenate([[0], np.cumsum(slots)]).astype(np.int64)
    row = slot_ptr[block[ends]] + _rank(ends, side if oriented else None)
    if oriented:
        row[m:] += first_slots[block[ends[m:]]] - forward[ends[m:]]
    x = lane[ends]
    rows = int(slot_ptr[-1]) + 1
    pair = np.full((rows, width), -1, dtype=np.int64)
    pair[row, x] = np.tile(np.arange(m), 2)
    sides = np.zeros((rows, width), dtype=np.int8)
    sides[row, x] = side
    if oriented:
        sides[:] = _row_sides(slot_ptr, first_slots)[:, None]
    if rows * states * width > np.iinfo(np.uint32).max:
        raise PotentiaError(
            f"messages of {m} pairs of {states} states are too many for one graph ({rows * states * width} numbers, at "
            f"most {np.iinfo(np.uint32).max}); build several smaller graphs."
        )
    opposite = np.full((rows, width), (rows - 1) * states * width, dtype=np.uint32)
    other = np.roll(np.arange(2 * m), m)
    opposite[row, x] = row[other] * states * width + x[other]
    position = (row * width + x).reshape(2, m).T.copy()
    return PairLayout(states, variable, slot_ptr, pair, sides, opposite, position, block * width + lane, group_ptr)


def _cut_blocks(group: Ints, forward: Ints, degree: Ints, states: int) -> tuple[float, Ints, Ints, Ints, Ints]:
    """Cut each group's variables into blocks of one width, each with rows for forward and for other ends of pairs.

    The work of an update, variables in blocks, (B, W), the block and the lane of each, and the blocks of each group.
    Variables of a block should have the same number of pairs, but if it costs little they stay in their order, in
    which neighbours are near each other.
    """
    sizes = np.bincount(group)
    start = np.concatenate([[0], np.cumsum(sizes)])
    orders = [np.argsort(group, kind="stable"), np.lexsort((forward - degree, -forward, group))]

    def cost(width: int, order: Ints) -> float:
        """Lanes of work: a block has as many rows as its variables need at most."""
        n_blocks = -(-sizes // width)
        within = np.arange(int(n_blocks.sum())) - np.repeat(np.cumsum(n_blocks) - n_blocks, n_blocks)
        first = np.repeat(start[:-1], n_blocks) + width * within
        if not len(order):
            return 0.0
        ahead, behind = (np.maximum.reduceat(k[order], first) for k in (forward, degree - forward))
        return float((1 + ahead + behind).sum() * (width + _ROW_COST / states))

    widths = [w for w in _LANES if w <= max(2 * CHUNK, _ROW_ENTRIES // states**2)]
    choices = [(cost(w, order) * (1.0 + _SORTING * k), k, w) for k, order in enumerate(orders) for w in widths]
    least, chosen, width = min(choices)
    order = orders[chosen]
    blocks_in = -(-sizes // width)
    group_ptr = np.concatenate([[0], np.cumsum(blocks_in)]).astype(np.int64)
    within = np.arange(len(order)) - start[group[order]]
    block = np.empty(len(order), dtype=np.int64)
    lane = np.empty(len(order), dtype=np.int64)
    block[order] = group_ptr[group[order]] + within // width
    lane[order] = within % width
    variable = np.full((int(group_ptr[-1]), width), -1, dtype=np.int64)
    variable[block, lane] = np.arange(len(order))
    return least, variable, block, lane, group_ptr


def _slots_per_block(n_blocks: int, block: Ints, forward: Ints, backward: Ints) -> tuple[Ints, Ints]:
    """Rows each block needs for its forward ends, and for all its ends."""
    first = np.zeros(n_blocks, dtype=np.int64)
    second = np.zeros(n_blocks, dtype=np.int64)
    np.maximum.at(first, block, forward)
    np.maximum.at(second, block, backward)
    return first, first + second


def _rank(ends: Ints, side: NDArray[np.int8] | None) -> Ints:
    """Rank of each directed end among the ends at its variable (side 0 before side 1 where `side` is given)."""
    order = np.argsort(ends, kind="stable") if side is None else np.lexsort((side, ends))
    sorted_ends = ends[order]
    fresh = np.concatenate([[True], sorted_ends[1:] != sorted_ends[:-1]]) if len(ends) else np.zeros(0, bool)
    start = np.maximum.accumulate(np.where(fresh, np.arange(len(ends)), 0))
    rank = np.empty(len(ends), dtype=np.int64)
    rank[order] = np.arange(len(ends)) - start
    return rank


def _row_sides(slot_ptr: Ints, first_slots: Ints) -> NDArray[np.int8]:
    """Side that every row of an oriented layout is seen from."""
    rows = int(slot_ptr[-1])
    block = np.repeat(np.arange(len(first_slots)), np.diff(slot_ptr))
    late = np.arange(rows) - slot_ptr[block] >= first_slots[block]
    return np.concatenate([late, [False]]).astype(np.int8)


def row_roles(layout: PairLayout) -> NDArray[np.int8]:
    """SENDS of rows whose pairs all lead to later groups, RECEIVES where all come from rows that send, else ALONE."""
    n, width = layout.pair.shape
    row = layout.pair_position.T.ravel() // width  # of the directed ends: first all side 0, then all side 1
    block = np.searchsorted(layout.slot_ptr, row, "right") - 1
    group = np.searchsorted(layout.group_ptr, block, "right") - 1
    m = len(layout.pair_position)
    earlier, other = group < np.roll(group, m), np.roll(row, m)
    ends, early = np.bincount(row, minlength=n), np.bincount(row[earlier], minlength=n)
    sends = (ends > 0) & (early == ends)
    receives = (ends > 0) & (np.bincount(row[~earlier & sends[other]], minlength=n) == ends)
    heard = np.zeros(n, dtype=bool)
    heard[row[receives[other]]] = True
    role = np.full(n, ALONE, dtype=np.int8)
    role[sends & heard] = SENDS
    role[receives] = RECEIVES
    return role

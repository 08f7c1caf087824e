"""Message passing on graphs of variables and pairs: tables, messages and beliefs in blocks, and their cost model."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from threading import Lock
from typing import Any, TypeVar

import numpy as np

from ..base.resources import borrow, borrow_like, borrow_zeros, map_ranges
from ..base.types import Bools, Floats, InfeasibleError, Ints
from ..graph.layout import row_roles
from ..graph.scores import Scores, pair_tables
from ..graph.structure import Graph, per_graph
from ..kernels import binary, star, star_product
from ..kernels import pairs as pair_kernels
from ..kernels.machine.simd import CHUNK
from ..kernels.machine.team import SOLO, Team
from ..kernels.star_blocks import (
    ALONE,
    LOG,
    MAXIMUM,
    NO_RECORD,
    PRODUCT,
    RECEIVES,
    SAFE_RANGE,
    SAFE_RANGE_SINGLE,
    WRITTEN,
    MessageRecord,
    PairBlocks,
    Profile,
)
from .base import TablesByKind, single_tables
from .engine import Engine, Readout, check_counting, layout_order

T = TypeVar("T")

#: Multiply-adds of a thread that pay for handing them over, and for waiting at a barrier.
_HAND_OVER, _WAIT = 500_000, 100_000
#: What gathering a team costs, whose threads wait for each other, in hand-overs.
_GATHER = 2
#: Entries of all tables from which on products are shared: 16 MiB, about what caches hold.
_SHARED_FROM = 2**21
#: Multiply-adds of one call: less than a tenth of a second.
_CALL_WORK = 400_000_000
#: What an update takes without exponentials of messages, in updates with them.
_LOGARITHMS = 5
#: Counting numbers of pairs that are quick powers, where C is 1.
_POWERS = (1.0, 0.5)
_NOTHING = np.empty((0, 0, 0))

#: Held while products are computed that no sweep has sent.
_sending = Lock()


@per_graph
def suits_pairs(graph: Graph) -> bool:
    """Whether blocks of equal state counts fit: no larger regions, and padding at most quadruples the tables."""
    if graph.max_order > 2:
        return False
    sizes = graph.n_states[graph.pairs].prod(axis=1)
    return len(sizes) * int(graph.n_states.max()) ** 2 <= 4 * int(sizes.sum()) or len(sizes) == 0


@per_graph
def _first_ends(graph: Graph, order: str, oriented: bool) -> Bools:
    """Slots of a layout that are the first ends of their pairs, (rows, lanes)."""
    layout = graph.pair_layout(order, oriented)
    return (layout.pair >= 0) & (layout.side == 0)


class PairEngine(Engine):
    """Tables, messages and beliefs in blocks of variables; see `kernels.star`."""

    #: The cost by which pairs' tables are given as weights; see `WeightEngine`.
    profile: Profile = WRITTEN

    def __post_init__(self) -> None:
        """Tables in blocks and the kernel for them, with messages at zero."""
        scores, entropy, order = self.scores, self.entropy, layout_order(self.schedule)
        self.pairs = self.graph.pairs
        self._pair_kinds = [k for k, s in self.graph.scopes.items() if s.shape[1] == 2]
        self.count, self.counting, self.total = entropy.cached("pairs", self._weights)
        self.shared = self._one_table()
        #: The largest range of a pair's scores over its counting number; infinite where some are -inf.
        self._steepest = self._steepness()
        # a tree is read twice only, and its results are called exact
        single = scores.single and not self.shared and order != "tree"
        self.single = single and len(self.pairs) > 0 and self._steepest <= SAFE_RANGE_SINGLE
        # tables given by weights are not written out
        tables = (np.empty(0), np.empty(0, np.int64)) if self.profile.fields else pair_tables(scores, self.single)
        #: Tables of all pairs as kernels read them.
        self.pair_scores = pair_kernels.PairScores(*tables, self.graph.n_states[self.pairs], self.count)
        self.layout = self.graph.pair_layout(order, self.shared)
        self.group_ptr = self.layout.group_ptr
        self.blocks = self._allocate(*entropy.cached((order, self.shared), self._in_lanes))
        self._record = NO_RECORD
        #: Whether rows send products to others, and have still to do so, as messages did not change by sweeps.
        self._sends = self._unsent = False
        #: Whether tables of rows that receive their products are needed, too.
        self._reversible = False
        #: Whether blocks hold exponentials of messages.
        self.exponentials = False
        self._has_messages = False
        #: Multiply-adds of an iteration, and groups that it updates one after another.
        self.work, self.n_groups = self.count_work(), max(len(self.group_ptr) - 1, 1)
        self.group_threads = self._worth(self.work // (self.n_groups * _HAND_OVER))
        #: Threads worth using for a pass over all blocks.
        self.pass_threads = self._worth(self.work // _HAND_OVER)
        pair_kernels.to_lanes(self.layout.variable, scores.singles, self.blocks.node)
        #: What tables are lowered by, of all pairs.
        self.shift = self._choose_modes()
        self._choose_kernel()
        self._fill()
        self.reset()

    def count_work(self) -> int:
        """Multiply-adds of an iteration."""
        rows, states, width = self.blocks.lam.shape
        return rows * width * states * states + (rows + len(self.blocks.node)) * width * 8 * states

    def _worth(self, threads: int) -> int:
        """At most this many of the engine's threads, at least one."""
        return max(1, min(self.threads, threads))

    def team(self, many: int) -> int:
        """Number of threads worth using for `many` iterations in one call, inside which they wait for each other."""
        most = many * self.work // (_GATHER * _HAND_OVER)
        return self._worth(min(most, self.work // (self.n_groups * _WAIT)))

    def over_groups(self, function: Callable[[int, int], T]) -> list[T]:
        """function(a, b) over ranges of blocks: one group after another if threads share them, else all in one call."""
        threads = self._worth(self.work // (self.n_groups * _WAIT))
        if threads == 1:
            return [function(0, int(self.group_ptr[-1]))]
        ranges = pairwise(self.group_ptr.tolist())
        return [result for a, b in ranges for result in map_ranges(function, a, b, threads)]

    def _weights(self) -> tuple[Floats, Floats, Floats]:
        """c of pairs and of variables, and C of variables."""
        regions, counting = self.graph.regions, self.entropy.counting
        pair_region = np.flatnonzero(regions.order == 2)
        parent, child = np.repeat(pair_region, 2), regions.single[self.pairs].ravel()
        total = check_counting(self.graph, counting, parent, child)
        return counting[pair_region], counting[regions.single], total[regions.single]

    def _in_lanes(self) -> tuple[Floats, Floats, Floats]:
        """Counting numbers by block: of slots, of rows whose slots all have one (else 0), and 1 / C of variables."""
        layout = self.layout
        count = np.where(layout.pair >= 0, self.count[layout.pair] if len(self.count) else 0.0, 0.0)
        even = np.where(count.min(axis=1) == count.max(axis=1), count[:, 0], 0.0)
        return count, even, np.where(layout.variable >= 0, 1.0 / self.total[layout.variable], 1.0)

    def _one_table(self) -> bool:
        """Whether all pairs share one table and counting number, so that it need not be copied per pair."""
        if len(self.pairs) < 2 or len(self._pair_kinds) != 1 or np.any(self.count != self.count[0]):
            return False
        offset, states = self.scores.kind(self._pair_kinds[0], widen=False)[1], self.graph.n_states
        return bool(np.all(offset == offset[0]) and states.min() == states.max())

    def _allocate(self, count: Floats, even: Floats, inverse: Floats) -> PairBlocks:
        """Blocks of zero messages, with room for tables or for the weights that stand for them."""
        layout = self.layout
        rows, width = layout.pair.shape
        n_blocks, states = len(layout.variable), layout.n_states
        size = states * states
        entries = 2 * size if self.shared else (rows - 1) * (self.profile.fields or size) * width
        return PairBlocks(
            slot_ptr=layout.slot_ptr, opposite=layout.opposite, count=count, even=even, inverse=inverse,
            node=borrow_zeros((n_blocks, states, width)), own=_NOTHING,
            table=borrow_like((entries,), np.float32 if self.single else np.float64),
            base=layout.side[:, 0].astype(np.int64) * size if self.shared else np.arange(rows) * size * width,
            shared=self.shared, profile=self.profile,
            mode=np.full(n_blocks, MAXIMUM if self.entropy.maximum else PRODUCT, dtype=np.int64),
            lam=borrow((rows, states, width)), belief=borrow_zeros((n_blocks, states, width)),
            first=_first_ends(self.graph, layout_order(self.schedule), self.shared), value=np.zeros(n_blocks),
            role=np.full(rows, ALONE, dtype=np.int8), sent=_NOTHING,
        )  # fmt: skip

    def _steepness(self) -> float:
        """The range of pair scores over the smallest counting number; exponentials are safe while it is small."""
        bounds: list[Any] = [self.scores.bounds(kind) for kind in self._pair_kinds if len(self.graph.scopes[kind])]
        if None in bounds or not bounds:
            return math.inf if bounds else 0.0
        self._top = float(np.max(bounds))
        return (self._top - float(np.min(bounds))) / float(self.count.min())

    def _fill(self, receiving: bool = False) -> None:
        """Write the tables of rows that compute their own products, or of those that receive them."""
        if self.shared or self.profile.fields:
            return
        n, rest = (len(self.layout.variable), (self.layout, self.pair_scores, self._high, receiving, self.blocks))
        map_ranges(lambda a, b: pair_kernels.fill_tables(a, b, *rest), 0, n, self.pass_threads)
        if self._reversible and not receiving:
            self._fill(receiving=True)

    def _choose_modes(self) -> float:
        """Set the modes of blocks and what to lower each pair's table by; the sum of that over pairs."""
        blocks, n = self.blocks, len(self.pairs)
        if self.shared:
            return self._fill_shared()
        if n and self._steepest <= SAFE_RANGE:  # the modes of blocks are those of `_allocate`
            self._high = np.full(n, self._top)
            return float(self._high.sum())
        self._high, low_of, scores = np.empty(n), np.empty(n), self.pair_scores
        map_ranges(lambda a, b: pair_kernels.table_ranges(a, b, scores, self._high, low_of), 0, n, self.pass_threads)
        if not self.entropy.maximum:
            pair_kernels.choose_modes(self.layout, scores, self._high, low_of, blocks.mode)
        return float(self._high.sum())

    def _choose_kernel(self) -> None:
        """Take the fastest kernel that can update all blocks; each is compiled at its first use only."""
        states, width = self.blocks.lam.shape[1:]
        exponentials = not self.damping and not width % CHUNK and bool(np.all(self.blocks.mode == PRODUCT))
        if exponentials:  # none of a message may underflow
            singles, steepest = self.scores.singles, self._steepest
            reach = pair_kernels.largest_reach(singles, self.counting, self.total, steepest)
            exponentials = bool(reach + steepest <= SAFE_RANGE)
        self._keep_exponentials(exponentials)
        # tables that have to be read from memory in every iteration; others stay in the cache
        far = not (self.shared or self.profile.fields) and self.blocks.table.size >= _SHARED_FROM
        if self._sends or (exponentials and far and states > 2):
            self._share_products(exponentials)
        power = self._power()
        products = partial(binary.sweep if states == 2 else star_product.sweep, power)
        self._sweep = products if exponentials else star.sweep
        many = _CALL_WORK // (self.work if exponentials else _LOGARITHMS * self.work)
        self.bulk = max(1, many) if self.schedule == "coloured" else 1

    def _share_products(self, wanted: bool) -> None:
        """Let rows compute the products of other ends, too, or none; see `star_product`."""
        self.blocks.role[:] = row_roles(self.layout) if wanted else ALONE
        self._sends = self._unsent = bool(np.any(self.blocks.role == RECEIVES))
        if self._sends and not len(self.blocks.sent):
            self.blocks = self.blocks._replace(sent=borrow(self.blocks.lam.shape))
            self.blocks.sent.fill(1.0)  # an empty slot is never sent anything

    def _send(self, units: Ints, write: bool) -> None:
        """Compute pending products that `units` will read."""
        with _sending:
            n = len(self.blocks.mode)
            # senders come before receivers in a sweep over all blocks in order
            in_order = write and len(units) == n and np.array_equal(units, np.arange(n))
            if self._unsent and not in_order:
                star_product.send(0, n, self.blocks)
            self._unsent = False

    def _power(self) -> float:
        """The counting number of all pairs if a variable's M can be multiplied; 0 if not.

        Blocks then hold variables' own factors where powers are quick; see `kernels.star_product`.
        """
        blocks, common = self.blocks, 0.0
        if self.exponentials and len(self.count) and np.all(self.count == self.count[0]):
            degree = int(np.diff(self.layout.slot_ptr).max(initial=0))
            reach = self._steepest + math.log(self.layout.n_states)
            common = float(self.count[0]) if degree * reach <= SAFE_RANGE else 0.0
        if common in _POWERS and np.all(self.total == 1.0):
            factors = blocks.own if blocks.own.size else borrow(blocks.node.shape)
            self.blocks = blocks._replace(own=self._own_parts(factors))
        else:
            self.blocks = blocks._replace(own=_NOTHING)
        return common

    def _own_parts(self, out: Floats) -> Floats:
        """theta / C of every variable, shifted to maximum 0, or its exponential."""
        np.multiply(self.blocks.node, self.blocks.inverse[:, None, :], out=out)
        top = out.max(axis=1, keepdims=True)
        out -= np.where(np.isneginf(top), 0.0, top)
        return np.exp(out, out=out) if self.exponentials else out

    def _keep_exponentials(self, wanted: bool) -> None:
        """Messages as their exponentials from now on, or as they are; the last row is what empty slots read."""
        lam = self.blocks.lam
        if self._has_messages and wanted and not self.exponentials:
            np.exp(lam, out=lam)
        elif self._has_messages and self.exponentials and not wanted:
            with np.errstate(divide="ignore"):
                np.log(lam, out=lam)
        self.exponentials = wanted

    @property
    def pair_places(self) -> pair_kernels.PairScores:
        """`pair_scores` without values, for kernels that only write to arrays of this layout."""
        return self.pair_scores._replace(values=np.empty(0))

    def _fill_shared(self) -> float:
        """Write the one table, seen from both sides; what it is lowered by, over all pairs."""
        states = self.layout.n_states
        table = self.pair_scores.values.reshape(states, states) / (1.0 if self.entropy.maximum else self.count[0])
        top = table.max()
        table = table - top
        if not self.entropy.maximum:
            self.blocks.mode[:] = PRODUCT if table.min() >= -SAFE_RANGE else LOG
            if self.blocks.mode[0] == PRODUCT:
                table = np.exp(table)
        self.blocks.table[:] = np.concatenate([table.ravel(), table.T.ravel()])
        return float(top * self.count.sum() if not self.entropy.maximum else top * len(self.count))

    def reset(self) -> None:
        """Zero messages, -inf at states that the variable's own score forbids."""
        self._has_messages = True
        lam, dead = self.blocks.lam, np.isneginf(self.blocks.node)
        lam.fill(1.0 if self.exponentials else 0.0)
        if dead.any():
            forbidden = 0.0 if self.exponentials else -np.inf
            lam[:-1][np.repeat(dead, np.diff(self.blocks.slot_ptr), axis=0)] = forbidden
        self._unsent = self._sends

    def damp(self, damping: float) -> None:
        """Give old messages this weight from now on."""
        self.damping = damping
        before = self.blocks.role.copy()
        self._choose_kernel()
        if not np.array_equal(before, self.blocks.role):
            self._fill()

    def start_uniform(self) -> None:
        """lam = (c / C) theta; in units of c, messages of a variable to all its pairs are equal."""
        blocks = self.blocks
        first = blocks.own if blocks.own.size else self._own_parts(borrow(blocks.node.shape))
        owner = np.repeat(np.arange(len(first)), np.diff(blocks.slot_ptr))
        np.take(first, owner, axis=0, out=blocks.lam[: len(owner)], mode="clip")
        self.from_scores = True
        self._unsent = self._sends

    def set_messages(self, messages: Floats) -> None:
        """Start from messages of `messages()`, in score units."""
        exponentials = self.exponentials
        self._keep_exponentials(False)
        pair_kernels.messages_in(self.layout.pair_position, self.count, messages, self.blocks.lam)
        self._keep_exponentials(exponentials)
        self._unsent = self._sends

    @property
    def state(self) -> Floats:
        """Messages in blocks, (rows, states, lanes)."""
        lam: Floats = self.blocks.lam
        return lam

    @property
    def slot_bytes(self) -> int:
        """Memory of a slot of a tape, with the factors that the reverse puts beside it."""
        return 8 * math.prod(self.saved_shape) * (1 if self.layout.n_states == 2 else 2)

    def new_slots(self, slots: int) -> MessageRecord:
        """Room for the messages that this many iterations read."""
        if not self._reversible:
            self._reversible = True
            if np.any(self.blocks.role == RECEIVES):
                self._fill(receiving=True)
        return MessageRecord(borrow((slots * math.prod(self.saved_shape),)), 0)

    def record(self, slots: MessageRecord, slot: int) -> None:
        """Leave what the reverse of the next iterations (or read-out) needs in the slots from this one on."""
        self._record = slots._replace(slot=slot)

    @property
    def saved_shape(self) -> tuple[int, ...]:
        """Shape of a saved state; of two states one number is enough, since the larger message is 0."""
        rows, states, width = self.blocks.lam.shape
        return rows, 1 if states == 2 else states, width

    def save(self, out: Floats) -> None:
        """Keep the messages in `out`."""
        lam = self.blocks.lam
        if out.shape == lam.shape:
            out[...] = lam
        elif self.exponentials:
            out[:, 0] = np.where(lam[:, 1] < 1.0, lam[:, 1], -lam[:, 0])
        else:
            np.subtract(lam[:, 1], lam[:, 0], out=out[:, 0])

    def restore(self, saved: Floats) -> None:
        """Take up saved messages."""
        lam = self.blocks.lam
        if saved.shape == lam.shape:
            lam[...] = saved
        elif self.exponentials:
            up = saved[:, 0] >= 0.0
            lam[:, 1], lam[:, 0] = np.where(up, saved[:, 0], 1.0), np.where(up, 1.0, -saved[:, 0])
        else:
            np.minimum(saved[:, 0], 0.0, out=lam[:, 1])
            np.minimum(-saved[:, 0], 0.0, out=lam[:, 0])
        self._unsent = self._sends

    def messages(self) -> Floats:
        """lam of both ends of every pair in score units, (m, 2, states)."""
        out = borrow((len(self.pairs), 2, self.layout.n_states))
        layout, lam = self.layout, self.blocks.lam
        pair_kernels.messages_out(layout.pair, layout.side, self.count, lam, self.exponentials, out)
        return out

    def sweep(
        self, units: Ints, iterations: int = 1, write: bool = True, watch: bool = True, team: Team = SOLO
    ) -> Floats:
        """Update blocks in this order (or only refresh beliefs); the largest change of a belief, by iteration."""
        if self._unsent:
            if team is SOLO:  # a team updates all blocks in order
                self._send(units, write)
            self._unsent = False
        changes = np.zeros(iterations)
        empty = self._sweep(self.blocks, units, changes, self.damping, write, watch, self._record, team)
        if empty >= 0:
            raise InfeasibleError("no labelling has a finite score: some variable is left without a state.")
        return changes

    def by_variable(self, lanes: Floats) -> Floats:
        """Tables of blocks, (blocks, states, lanes), in the order of variables, (n, states)."""
        out = np.empty((self.graph.n_variables, self.layout.n_states))
        pair_kernels.from_lanes(self.layout.variable_position, lanes, out)
        return out

    def read(self, cliques: bool = True) -> Readout:
        """Marginals and value from the current messages; marginals of pairs are made when they are asked for."""
        n, threads = len(self.layout.variable), self.pass_threads
        map_ranges(lambda a, b: self.sweep(np.arange(a, b), write=False), 0, n, threads)
        singles = self.by_variable(self.blocks.belief)
        if self.entropy.maximum:
            singles = (np.arange(singles.shape[1]) == singles.argmax(axis=1)[:, None]).astype(float)
        lam = self.messages()
        pairs = self._pair_values(lam) if self.single else self.shift
        map_ranges(
            lambda a, b: pair_kernels.add_variable_values(
                a, b, self.blocks, self.exponentials, self.layout.variable, self.counting, self.entropy.maximum
            ), 0, n, threads,
        )  # fmt: skip
        value = float(self.blocks.value.sum()) + pairs
        # pairs' marginals are made on demand, by a function that does not keep the engine alive
        make = partial(
            _pair_marginals, self.scores, self.count, self.single, self.entropy.maximum, self.pass_threads, singles, lam
        )  # fmt: skip
        return Readout(TablesByKind(self.graph, make), singles, value, lam)

    def _pair_values(self, lam: Floats) -> float:
        """The sum over pairs from their scores, instead of from blocks, whose tables of single precision round it."""
        self.blocks.value[:] = 0.0
        values, scores, maximum = np.empty(len(self.pairs)), self.pair_scores, self.entropy.maximum
        rest = scores, maximum, lam, values
        map_ranges(lambda a, b: pair_kernels.pair_values(a, b, *rest), 0, len(values), self.pass_threads)
        return float(values.sum())


def _pair_marginals(
    scores: Scores, count: Floats, single: bool, maximum: bool, threads: int, singles: Floats, lam: Floats, kind: str
) -> Floats | list[Floats]:
    """Marginals of a kind, softmax((theta_e + lam_e,i + lam_e,j) / c_e), or the indicator of the largest.

    They take L^2 exponentials per pair and as much memory as tables of all pairs.
    """
    graph = scores.graph
    if graph.scopes[kind].shape[1] != 2:
        return single_tables(graph, kind, singles)
    pairs = [k for k, s in graph.scopes.items() if s.shape[1] == 2]
    first = sum(len(graph.scopes[k]) for k in pairs[: pairs.index(kind)])
    last = first + len(graph.scopes[kind])
    tables = pair_kernels.PairScores(*pair_tables(scores, single), graph.n_states[graph.pairs], count)
    size = tables.shapes[first:last].prod(axis=1)
    start = np.concatenate([[0], np.cumsum(size)]).astype(np.int64)
    flat = borrow((int(start[-1]),))
    map_ranges(
        lambda a, b: pair_kernels.read_pairs(a, b, tables, maximum, lam, start[a - first : b - first], flat),
        first, last, threads,
    )  # fmt: skip
    return graph.shape_tables(kind, flat)

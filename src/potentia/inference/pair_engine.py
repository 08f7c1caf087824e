"""How much there is to do for a graph of pairs, how many threads pay for it, and what stays in the cache."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from threading import Lock
from typing import TypeVar

import numpy as np

from ..base.memory import borrow, borrow_like, borrow_zeros
from ..base.threads import map_ranges
from ..base.types import Floats, InfeasibleError, Ints
from ..graph.layout import PairLayout
from ..graph.scores import Scores
from ..graph.structure import Graph
from ..kernels import binary, star, star_product
from ..kernels import pairs as pair_kernels
from ..kernels.machine.simd import CHUNK
from ..kernels.machine.team import BARRIER, SOLO, Team
from ..kernels.star_blocks import (
    ALONE,
    LOG,
    MAXIMUM,
    NO_RECORD,
    PRODUCT,
    RECEIVES,
    SAFE_RANGE,
    SAFE_RANGE_SINGLE,
    SENDS,
    MessageRecord,
    PairBlocks,
)
from .base import PairMarginals
from .engine import Readout
from .entropy import Entropy, check_counting
from .forest import pair_tables

T = TypeVar("T")

#: Multiply-adds of a thread that pay for handing them over, and for waiting at a barrier.
_HAND_OVER, _WAIT = 500_000, 100_000
#: What gathering a team costs, whose threads wait for each other, in hand-overs.
_GATHER = 2
#: Entries of all tables from which on products are shared: 16 MiB, about what caches hold.
_SHARED_FROM = 2**21
#: Bytes that iterations under way at once may keep in the cache.
_CACHE = 2**23
#: Multiply-adds of one call, where iterations are done together: less than a tenth of a second.
_CALL_WORK = 400_000_000
#: What an update takes without exponentials of messages, in updates with them.
_LOGARITHMS = 5


class PairWork:
    """What engines of pairs tell those who drive them."""

    threads: int
    layout: PairLayout
    blocks: PairBlocks
    #: Whether all pairs have one table.
    shared: bool
    #: Whether blocks hold exponentials of messages.
    exponentials: bool
    #: Multiply-adds of an iteration, and groups that it updates one after another.
    work: int
    n_groups: int

    @property
    def group_ptr(self) -> Ints:
        """Ranges of blocks that are independent of each other."""
        return self.layout.group_ptr

    @property
    def group_threads(self) -> int:
        """Threads that pay for a group of average size."""
        return self._pay(self.work // (self.n_groups * _HAND_OVER))

    def team(self, many: int) -> int:
        """Threads that pay for this many iterations together."""
        most = int(many) * self.work // (_GATHER * _HAND_OVER)
        return 1 if most < 2 else self._pay(min(most, self.work // (self.n_groups * _WAIT)))

    @property
    def reach(self) -> int:
        """How far apart the blocks at the ends of a pair are, each counted in its group."""
        return self.layout.reach

    @property
    def depth(self) -> int:
        """Iterations that may be under way at once, each `reach` blocks behind the one before, in every group."""
        if not self.far:
            return 1
        held = (self.blocks.table.nbytes + 2 * self.blocks.lam.nbytes) * self.n_groups / len(self.blocks.mode)
        return max(1, int(_CACHE / (held * max(self.reach, 1))))

    @property
    def far(self) -> bool:
        """Whether tables have to be read from memory in every iteration."""
        return not self.shared and self.blocks.table.size >= _SHARED_FROM

    @property
    def pass_threads(self) -> int:
        """Threads that pay for a pass over all blocks."""
        return self._pay(self.work // _HAND_OVER)

    def _pay(self, threads: int) -> int:
        return min(self.threads, threads) if threads > 1 else 1

    @property
    def bulk(self) -> int:
        """Iterations that one call of `sweep` may be given, so few that it soon comes back."""
        return max(1, _CALL_WORK // (self.work if self.exponentials else _LOGARITHMS * self.work))

    def count_work(self) -> int:
        """Multiply-adds of an iteration."""
        rows, states, width = self.blocks.lam.shape
        return rows * width * states * states + (rows + len(self.blocks.node)) * width * 8 * states

    def over_groups(self, function: Callable[[int, int], T]) -> list[T]:
        """function(a, b) over ranges of blocks: one group after another if threads share them, else all in one call."""
        threads = self._pay(self.work // (self.n_groups * _WAIT))
        if threads == 1:
            return [function(0, int(self.group_ptr[-1]))]
        ranges = pairwise(self.group_ptr.tolist())
        return [found for a, b in ranges for found in map_ranges(function, a, b, threads)]

    def over(self, n: int, function: Callable[[int, int], T]) -> list[T]:
        """function(a, b) over ranges that make up 0..n, in as many threads as pay for a pass over all blocks."""
        return map_ranges(function, 0, n, self.pass_threads)


#: Held while messages are sent that were not when they changed.
_sending = Lock()

#: Counting numbers of pairs that are quick powers, where C is 1.
_POWERS = (1.0, 0.5)
_NOTHING = np.empty((0, 0, 0))


def suits_pairs(graph: Graph) -> bool:
    """Whether blocks of equal state counts fit: no larger regions, and padding at most quadruples the tables."""

    def check() -> bool:
        if graph.max_order > 2:
            return False
        sizes = graph.n_states[graph.pairs].prod(axis=1)
        return len(sizes) * int(graph.n_states.max()) ** 2 <= 4 * int(sizes.sum()) or len(sizes) == 0

    return graph.cached("suits_pairs", check)


class PairEngine(PairWork):
    """Tables, messages and beliefs in blocks, for one graph, entropy and order of update."""

    def __init__(self, scores: Scores, entropy: Entropy, order: str, damping: float, threads: int) -> None:
        self.graph, self.entropy, self.damping, self.threads = scores.graph, entropy, damping, threads
        self.pairs = self.graph.pairs
        self._pair_kinds = [k for k, s in self.graph.scopes.items() if s.shape[1] == 2]
        self.count, self.counting, self.total = entropy.cached("pairs", self._weights)
        self.shared = self._one_table(scores)
        # a tree is read twice only, and its results are called exact
        single = scores.single and not self.shared and order != "tree"
        self.single = single and self._spans(scores, SAFE_RANGE_SINGLE)
        self.layout = self.graph.pair_layout(order, oriented=self.shared)
        self.blocks = self._allocate(*entropy.cached((order, self.shared), self._in_lanes))
        self._record = NO_RECORD
        #: Whether tables of rows that receive their products are needed, too.
        self._reversible = False
        self.exponentials = False
        self._has_messages = False
        self.work, self.n_groups = self.count_work(), max(len(self.group_ptr) - 1, 1)
        self.load(scores)
        self.reset()

    def _weights(self) -> tuple[Floats, Floats, Floats]:
        """c of pairs and of variables, and C of variables."""
        regions, counting = self.graph.regions, self.entropy.counting
        numbers = [
            np.arange(regions.kind_ptr[i], regions.kind_ptr[i + 1])
            for i, kind in enumerate(self.graph.kinds)
            if kind in self._pair_kinds
        ]
        pair_region = np.concatenate(numbers) if numbers else np.zeros(0, dtype=np.int64)
        parent, child = np.repeat(pair_region, 2), regions.single[self.pairs].ravel()
        total = check_counting(self.graph, counting, parent, child)
        return counting[pair_region], counting[regions.single], total[regions.single]

    def _in_lanes(self) -> tuple[Floats, Floats, Floats]:
        """`count`, `even` and `inverse` of the blocks."""
        layout = self.layout
        count = np.where(layout.pair >= 0, self.count[layout.pair] if len(self.count) else 0.0, 0.0)
        even = np.where(count.min(axis=1) == count.max(axis=1), count[:, 0], 0.0)
        return count, even, np.where(layout.variable >= 0, 1.0 / self.total[layout.variable], 1.0)

    def _one_table(self, scores: Scores) -> bool:
        """Whether all pairs share one table and counting number, so that it need not be copied per pair."""
        if len(self.pairs) < 2 or len(self._pair_kinds) != 1 or np.any(self.count != self.count[0]):
            return False
        offset, states = scores.as_given(self._pair_kinds[0])[1], self.graph.n_states
        return bool(np.all(offset == offset[0]) and states.min() == states.max())

    def _allocate(self, count: Floats, even: Floats, inverse: Floats) -> PairBlocks:
        layout = self.layout
        rows, width = layout.pair.shape
        n_blocks, states = len(layout.variable), layout.n_states
        size = states * states
        return PairBlocks(
            slot_ptr=layout.slot_ptr,
            opposite=layout.opposite,
            count=count,
            even=even,
            inverse=inverse,
            node=borrow_zeros((n_blocks, states, width)),
            own=_NOTHING,
            table=borrow((2 * size,))
            if self.shared
            else self._tables((rows - 1) * self._slot_entries * width),
            base=layout.side[:, 0].astype(np.int64) * size if self.shared else np.arange(rows) * size * width,
            shared=self.shared,
            mode=np.full(n_blocks, MAXIMUM if self.entropy.maximum else PRODUCT, dtype=np.int64),
            lam=borrow((rows, states, width)),
            belief=borrow_zeros((n_blocks, states, width)),
            first=self.graph.cached(("first", id(layout)), lambda: (layout.pair >= 0) & (layout.side == 0)),
            value=np.zeros(n_blocks),
            role=np.full(rows, ALONE, dtype=np.int8),
            sent=_NOTHING,
        )

    @property
    def _slot_entries(self) -> int:
        """Numbers by which blocks hold the table of a slot."""
        return self.layout.n_states**2

    def _tables(self, size: int) -> Floats:
        """Memory for tables, in single precision where scores are."""
        return borrow_like((size,), np.float32 if self.single else np.float64)

    def _spans(self, scores: Scores, widest: float) -> bool:
        """Whether all pairs' scores are finite and differ by at most `widest` times the smallest counting number."""
        kinds = [kind for kind in self._pair_kinds if len(self.graph.scopes[kind])]
        bounds = [b for kind in kinds if (b := scores.bounds(kind)) is not None]
        if len(bounds) < len(kinds) or not kinds:
            return False
        span = max(high for _, high in bounds) - min(low for low, _ in bounds)
        return span <= widest * float(self.count.min())

    def load(self, scores: Scores) -> None:
        """Take new scores; messages stay."""
        self.scores = scores
        self._written: pair_kernels.PairScores | None = None
        blocks, layout = self.blocks, self.layout
        pair_kernels.to_lanes(layout.variable, scores.singles, blocks.node)
        if self.shared:
            self._fill_shared()
        else:
            self._high = self._choose_modes()
            #: What tables were lowered by, of all pairs.
            self.shift = float(self._high.sum())
        self._sweep = self._kernel()
        if not self.shared:
            self._fill()

    def _fill(self, rest: bool = False) -> None:
        """Write the tables; with `rest` those of rows that receive their products, else those of all others."""
        layout, scores, high, blocks = self.layout, self.pair_scores, self._high, self.blocks
        self.over(
            len(layout.variable),
            lambda a, b: pair_kernels.fill_tables(a, b, layout, scores, high, rest, blocks),
        )
        if self._reversible and not rest:
            self._fill(rest=True)

    def _choose_modes(self) -> Floats:
        """Set the modes of blocks; what to lower each pair's table by."""
        blocks, n = self.blocks, len(self.pairs)
        if self._spans(self.scores, SAFE_RANGE):
            blocks.mode[:] = MAXIMUM if self.entropy.maximum else PRODUCT
            return np.full(n, max(bounds[1] for k in self._pair_kinds if (bounds := self.scores.bounds(k))))
        high, low_of, scores = np.empty(n), np.empty(n), self.pair_scores
        self.over(n, lambda a, b: pair_kernels.table_ranges(a, b, scores, high, low_of))
        if not self.entropy.maximum:
            pair_kernels.choose_modes(self.layout, scores, high, low_of, blocks.mode)
        return high

    def _kernel(self) -> Callable[..., int]:
        """The quickest kernel that can update all blocks; each is compiled at its first use only."""
        _, states, width = self.blocks.lam.shape
        kept = not self.damping and not width % CHUNK and bool(np.all(self.blocks.mode == PRODUCT))
        self._keep_exponentials(kept and self._bounded())
        self._share_products(self.exponentials and states > 2 and self.far)
        power = self._power()
        if not self.exponentials:
            return star.sweep
        return partial(binary.sweep if states == 2 else star_product.sweep, power)

    def _share_products(self, wanted: bool) -> None:
        """Give rows the roles of the layout, or none; see `star_product`."""
        blocks, role = self.blocks, self.layout.role
        blocks.role[:] = role if wanted else ALONE
        if wanted and not len(blocks.sent) and np.any(role == RECEIVES):
            # an empty slot is never sent anything
            self.blocks = blocks._replace(sent=borrow(blocks.lam.shape))
            self.blocks.sent.fill(1.0)
        #: Whether each block has messages that it still has to send.
        self._behind = np.zeros(len(blocks.mode), dtype=bool)
        self._messages_changed()

    def _messages_changed(self) -> None:
        """Called where messages changed otherwise than by a sweep."""
        sending = np.flatnonzero(self.blocks.role == SENDS)
        self._behind[np.searchsorted(self.blocks.slot_ptr, sending, "right") - 1] = True

    def _catch_up(self, units: Ints, write: bool) -> None:
        """See to it that what the updates of `units` are to receive has been sent."""
        n = len(self._behind)
        if write and len(units) >= n and np.array_equal(units[:n], np.arange(n)):
            return  # all are updated, senders before receivers
        # receivers are in later groups than their senders; those of a group may be at work in several threads
        group = np.searchsorted(self.group_ptr, (units % n).max(initial=0), "right") - 1
        with _sending:
            for u in np.flatnonzero(self._behind[: self.group_ptr[group]]):
                star_product.send(u, u + 1, self.blocks)
                self._behind[u] = False

    def _power(self) -> float:
        """`_common`; blocks hold variables' own factors where powers are quick; see `kernels.exponentials`."""
        common, blocks = self._common() if self.exponentials else 0.0, self.blocks
        if common in _POWERS and np.all(self.total == 1.0):
            own = blocks.own if blocks.own.size else borrow(blocks.node.shape)
            self.blocks = blocks._replace(own=self._own_parts(own))
        else:
            self.blocks = blocks._replace(own=_NOTHING)
        return common

    def _own_parts(self, out: Floats) -> Floats:
        """theta / C of every variable, shifted to maximum 0, or its exponential."""
        np.multiply(self.blocks.node, self.blocks.inverse[:, None, :], out=out)
        top = out.max(axis=1, keepdims=True)
        out -= np.where(np.isneginf(top), 0.0, top)
        return np.exp(out, out=out) if self.exponentials else out

    def _common(self) -> float:
        """The counting number of all pairs if a variable's M can be multiplied; 0 if not."""
        degree = int(np.diff(self.layout.slot_ptr).max(initial=0))
        same = len(self.count) > 0 and np.all(self.count == self.count[0])
        reach = self._steepest() + math.log(self.layout.n_states)
        return float(self.count[0]) if same and degree * reach <= SAFE_RANGE else 0.0

    def _steepest(self) -> float:
        """The largest range of a pair's scores over its counting number; infinite where it is not known."""
        bounds = [self.scores.bounds(k) for k in self._pair_kinds if len(self.graph.scopes[k])]
        finite = [b for b in bounds if b is not None]
        if len(finite) < len(bounds):
            return math.inf
        span = max((high for _, high in finite), default=0.0) - min((low for low, _ in finite), default=0.0)
        return span / float(self.count.min(initial=math.inf))

    def _bounded(self) -> bool:
        """Whether no exponential of a message can underflow, so that exponentials may be kept instead."""
        steepest = self._steepest()
        reach = pair_kernels.largest_reach(self.scores.singles, self.counting, self.total, steepest)
        return bool(reach + steepest <= SAFE_RANGE)

    def _keep_exponentials(self, kept: bool) -> None:
        """Messages as their exponentials from now on, or as they are; the last row is what empty slots read."""
        lam = self.blocks.lam
        if self._has_messages and kept and not self.exponentials:
            np.exp(lam, out=lam)
        elif self._has_messages and self.exponentials and not kept:
            with np.errstate(divide="ignore"):
                np.log(lam, out=lam)
        self.exponentials = kept

    @property
    def pair_scores(self) -> pair_kernels.PairScores:
        """Tables of all pairs as kernels read them."""
        if self._written is None:
            self._written = _pair_scores(self.scores, self.pairs, self.count, self.single)
        return self._written

    @property
    def pair_places(self) -> pair_kernels.PairScores:
        """The same for kernels that only write to arrays of this layout."""
        return self.pair_scores._replace(values=np.empty(0))

    def _fill_shared(self) -> None:
        states = self.layout.n_states
        table = self.pair_scores.values.reshape(states, states) / (
            1.0 if self.entropy.maximum else self.count[0]
        )
        top = table.max()
        self.shift = float(top * self.count.sum() if not self.entropy.maximum else top * len(self.count))
        table = table - top
        if not self.entropy.maximum:
            self.blocks.mode[:] = PRODUCT if table.min() >= -SAFE_RANGE else LOG
            if self.blocks.mode[0] == PRODUCT:
                table = np.exp(table)
        self.blocks.table[:] = np.concatenate([table.ravel(), table.T.ravel()])

    def reset(self) -> None:
        """Zero messages, -inf at states that the variable's own score forbids."""
        self._has_messages = True
        lam, dead = self.blocks.lam, np.isneginf(self.blocks.node)
        lam.fill(1.0 if self.exponentials else 0.0)
        if dead.any():
            forbidden = 0.0 if self.exponentials else -np.inf
            lam[:-1][np.repeat(dead, np.diff(self.blocks.slot_ptr), axis=0)] = forbidden
        self._messages_changed()

    def damp(self, damping: float) -> None:
        """Give old messages this weight from now on."""
        self.damping = damping
        before = self.blocks.role.copy()
        self._sweep = self._kernel()
        if not np.array_equal(before, self.blocks.role):
            self._fill()

    def start_uniform(self) -> None:
        """Messages before any pair has been heard, lam = (c / C) theta [MBL-tpami Algorithm 3, uniform messages].

        In units of c they are equal for all pairs of a variable.
        """
        blocks = self.blocks
        own = blocks.own if blocks.own.size else self._own_parts(borrow(blocks.node.shape))
        owner = np.repeat(np.arange(len(own)), np.diff(blocks.slot_ptr))
        np.take(own, owner, axis=0, out=blocks.lam[: len(owner)], mode="clip")
        self._messages_changed()

    def set_messages(self, messages: Floats) -> None:
        """Start from messages of `messages()`, in score units."""
        kept = self.exponentials
        self._keep_exponentials(False)
        pair_kernels.messages_in(self.layout.pair_position, self.count, messages, self.blocks.lam)
        self._keep_exponentials(kept)
        self._messages_changed()

    @property
    def state(self) -> Floats:
        """Messages in blocks, (rows, states, lanes)."""
        lam: Floats = self.blocks.lam
        return lam

    @property
    def slot_bytes(self) -> int:
        """Memory of a slot of a tape, with the factors that the reverse puts beside it."""
        return 8 * math.prod(self.saved_shape) * (1 if self.layout.n_states == 2 else 2)

    def tape(self, slots: int) -> MessageRecord:
        """Room for what this many iterations leave for their reverse."""
        if not self._reversible:
            self._reversible = True
            if np.any(self.blocks.role == RECEIVES):
                self._fill(rest=True)
        return MessageRecord(borrow((slots * math.prod(self.saved_shape),)), 0)

    def record(self, tape: MessageRecord, slot: int) -> None:
        """Leave what the reverse of the next iteration (or read-out) needs in a slot of the tape."""
        self._record = tape._replace(slot=slot)

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
        self._messages_changed()

    def messages(self) -> Floats:
        """lam of both ends of every pair in score units, (m, 2, states)."""
        out = borrow((len(self.pairs), 2, self.layout.n_states))
        layout, lam = self.layout, self.blocks.lam
        pair_kernels.messages_out(layout.pair, layout.side, self.count, lam, self.exponentials, out)
        return out

    def sweep(self, units: Ints, write: bool = True, watch: bool = True) -> float:
        """Update blocks in this order (or only refresh beliefs); the largest change of a belief."""
        if self._behind.any():
            self._catch_up(units, write)
        return float(self._update(units, write, watch, SOLO).max())

    def update(self, updates: Ints, watch: bool, team: Team) -> Floats:
        """A thread's share of the updates of whole iterations; the largest changes of a belief, by iteration."""
        return self._update(updates, True, watch, team)

    def _update(self, updates: Ints, write: bool, watch: bool, team: Team) -> Floats:
        changes = np.zeros(updates.max(initial=0) // len(self._behind) + 1)
        empty = self._sweep(self.blocks, updates, self.damping, write, watch, changes, self._record, team)
        if write:
            self._behind[updates[updates != BARRIER] % len(self._behind)] = False
        if empty >= 0:
            raise InfeasibleError("no labelling has a finite score: some variable is left without a state.")
        return changes

    def beliefs(self) -> Floats:
        """What is in `blocks.belief`, of all variables in their order, (n, states)."""
        return self.by_variable(self.blocks.belief)

    def by_variable(self, lanes: Floats) -> Floats:
        """Tables of blocks, (blocks, states, lanes), in the order of variables, (n, states)."""
        out = np.empty((self.graph.n_variables, self.layout.n_states))
        pair_kernels.from_lanes(self.layout.variable_position, lanes, out)
        return out

    def read(self, cliques: bool = True) -> Readout:
        """Marginals and value from the current messages; marginals of pairs are made when they are asked for."""
        self.over(len(self.layout.variable), lambda a, b: self.sweep(np.arange(a, b), write=False))
        singles = self.beliefs()
        if self.entropy.maximum:
            singles = (np.arange(singles.shape[1]) == singles.argmax(axis=1)[:, None]).astype(float)
        lam = self.messages()
        pairs = self._pair_values(lam) if self.single else self.shift
        self.over(len(self.layout.variable), self._add_variable_values)
        value = float(self.blocks.value.sum()) + pairs
        # the result must not keep the engine alive
        tables = partial(_pair_scores, self.scores, self.pairs, self.count, self.single)
        marginals = PairMarginals(self.graph, singles, tables, lam, self.entropy.maximum, self.pass_threads)
        return Readout(marginals, singles, value, lam)

    def _pair_values(self, lam: Floats) -> float:
        """The sum over pairs from their scores, instead of from blocks, whose tables of single precision round it."""
        self.blocks.value[:] = 0.0
        found, scores, maximum = np.empty(len(self.pairs)), self.pair_scores, self.entropy.maximum
        self.over(len(found), lambda a, b: pair_kernels.pair_values(a, b, scores, maximum, lam, found))
        return float(found.sum())

    def _add_variable_values(self, first: int, last: int) -> None:
        pair_kernels.add_variable_values(
            first,
            last,
            self.blocks,
            self.exponentials,
            self.layout.variable,
            self.counting,
            self.entropy.maximum,
        )


def _pair_scores(scores: Scores, pairs: Ints, count: Floats, single: bool) -> pair_kernels.PairScores:
    return pair_kernels.PairScores(*pair_tables(scores, single), scores.graph.n_states[pairs], count)

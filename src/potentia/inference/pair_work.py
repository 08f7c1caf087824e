"""How much there is to do for a graph of pairs, how many threads pay for it, and what stays in the cache."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TypeVar

from .._threads import map_ranges
from .._types import Ints
from ..graph.schedule import PairLayout
from ..kernels.star_blocks import PairBlocks

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

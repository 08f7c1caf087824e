"""What iterations update, in which order, and which thread does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar, cast

import numpy as np

from .._threads import PIECES, cut_ranges, map_items, pooled, run_team, teams_pay
from .._types import Ints
from ..kernels.machine.team import BARRIER, SOLO, TEAMS, Team, gather, release
from .engine import Engine, TeamEngine

T = TypeVar("T")


class Step(NamedTuple):
    """Updates in order, in one list or in one for each of several threads; each is unit + n_units * iteration.

    whole: lists make up whole iterations, with barriers where threads must wait for each other; else several lists are
    of one group.
    """

    lists: list[Ints]
    whole: bool = False

    def run(self, function: Callable[[Ints, Team], T]) -> list[T]:
        """function(updates, team) of every list."""
        if not self.whole:
            return map_items(lambda updates: function(updates, SOLO), self.lists, len(self.lists))
        team = gather(len(self.lists))
        return run_team(lambda updates: function(updates, team), self.lists, lambda: release(team))


def steps(engine: Engine, schedule: str, seed: int, done: int, many: int = 1) -> list[Step]:
    """What iterations from number `done` on update, one step after another."""
    ptr = engine.group_ptr
    n = int(ptr[-1])
    team = engine.team(many) if schedule == "coloured" and TEAMS and teams_pay() else 1
    if schedule == "coloured" and (team > 1 or many > 1):
        return [Step(_together(cast(TeamEngine, engine), many, team), whole=True)]
    numbers = range(many)
    if schedule == "random":
        rounds = [np.random.default_rng([seed, done + k]).permutation(n) + n * k for k in numbers]
        return [Step([np.concatenate(rounds)])]
    back = [schedule == "sequential" and (done + k) % 2 == 1 for k in numbers]
    threads = engine.group_threads
    if threads == 1 or many > 1 or pooled():
        return [Step([np.concatenate([_ahead_or_back(n, b) + n * k for k, b in enumerate(back)])])]
    groups = [
        Step([np.arange(*own) for own in cut_ranges(a, b, threads) if own[0] < own[1]])
        for a, b in pairwise(ptr.tolist())
        if a < b
    ]
    return groups[::-1] if back[0] else groups


def _ahead_or_back(n: int, back: bool) -> Ints:
    return np.arange(n)[::-1] if back else np.arange(n)


def all_units(steps: Sequence[Step]) -> Ints:
    """The units of steps of one iteration without barriers, in order."""
    return np.concatenate([units for step in steps for units in step.lists])


def _together(engine: TeamEngine, many: int, threads: int) -> list[Ints]:
    """Updates of this many iterations, by thread.

    An update must wait for the latest one of every unit that it is linked to, and for no other. Where links do not
    reach far, an iteration need not wait for the end of the one before it: several pass over the units at a distance
    from each other, and what the first brings into the cache serves all. The results are the same. Threads would have
    to wait for each other too often for that.
    """
    ptr = engine.group_ptr
    sizes, groups = np.diff(ptr), len(ptr) - 1
    # the number of each update's group among all groups of all iterations
    turn = (np.repeat(np.arange(groups), sizes) + groups * np.arange(many)[:, None]).ravel()
    depth = min(engine.depth, many) if threads == 1 else 1
    if depth == 1:
        return _in_order(turn, threads)
    place = np.tile(np.arange(int(ptr[-1])) - np.repeat(ptr[:-1], sizes), many)
    # `depth` iterations are under way at any time: the next begins when the first of them ends
    passes, within = np.divmod(turn, groups * depth)
    time = place + engine.reach * within + passes * max(int(sizes.max()), engine.reach * groups * depth)
    return _in_order(time * (groups * many) + turn, threads)  # at the same time, earlier turns first


def _in_order(time: Ints, threads: int) -> list[Ints]:
    """Updates ordered by their times, by thread; those of the same time are shared out and followed by a barrier."""
    order = np.argsort(time, kind="stable")
    if threads == 1:
        return [order]
    ordered = time[order]
    times, first, size = np.unique(ordered, return_index=True, return_counts=True)
    rank = np.arange(len(order)) - np.repeat(first, size)
    thread = ((rank * PIECES // np.repeat(size, size) + 1) * threads - 1) // PIECES
    lists = [order[thread == k] for k in range(threads)]
    ends = [np.searchsorted(ordered[thread == k], times, "right") for k in range(threads)]
    return [np.insert(own, end, BARRIER) for own, end in zip(lists, ends, strict=True)]

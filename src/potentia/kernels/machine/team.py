"""Threads that run a kernel together and wait for each other inside it.

Handing work to a thread and waiting for its end takes as long as updating some thousand messages, so a team is called
once for many groups of updates: each thread has a list of them, with `BARRIER` where it must wait until all the others
have come as far.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from .jit import PLAIN, njit

#: Whether threads can wait for each other.
TEAMS = not PLAIN
#: Stands in a list of updates for a wait.
BARRIER = -1
#: Looks at the others before a thread sleeps, about half a millisecond: a core that it waits for may be its own.
_LOOKS = 1_000_000
#: Added to the arrivals of a team that is to wait no longer.
_RELEASED = 2**60


class Team(namedtuple("Team", "arrivals size")):
    """arrivals (1): how often threads have come to a barrier. size: threads."""


#: A single thread, which never waits.
SOLO = Team(np.zeros(1, dtype=np.int64), 1)


def gather(size: int) -> Team:
    """A team of this many threads."""
    return Team(np.zeros(1, dtype=np.int64), size)


def release(team: Team) -> None:
    """Let all threads of a team pass all barriers, since one of them will never come."""
    team.arrivals[0] += _RELEASED


if PLAIN:

    @njit(inner=True, nogil=True)
    def wait(team):
        """Return at once: without `TEAMS` every thread is alone."""

else:
    from .simd_llvm import arrive, arrived, sleep

    @njit(inner=True, nogil=True, error_model="numpy")
    def wait(team):
        """Return once all threads of the team have called this as often."""
        if team.size > 1:
            before = arrive(team.arrivals)
            goal = (before // team.size + 1) * team.size
            looks = 0
            while before < _RELEASED and arrived(team.arrivals) < goal:
                looks += 1
                if looks > _LOOKS:
                    sleep()

"""Threads that run a kernel together and wait for each other inside it.

Handing work to a thread and waiting for its end takes as long as updating some thousand messages, so a team is called
once for many groups of updates: each thread has a list of units, with `BARRIER` where it must wait until all the others
have come as far.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .jit import njit
from .vecmath import KERNEL

#: Stands in a list of units for a wait.
BARRIER = -1
#: Looks at the others before a thread sleeps, about half a millisecond: a core that it waits for may be its own.
_LOOKS = 1_000_000
#: Added to the arrivals of a team that is to wait no longer.
_RELEASED = 2**60
#: Arrivals of a single thread, which never waits.
_NOBODY = np.zeros(1, dtype=np.int64)


class Team(NamedTuple):
    """arrivals (1): how often threads have come to a barrier. size: threads. period: entries of a list of units for
    each iteration, by which the record goes from slot to slot.
    """

    arrivals: Any
    size: Any
    period: Any


def alone(period: int) -> Team:
    """A single thread."""
    return Team(_NOBODY, 1, period)


def gather(periods: Sequence[int]) -> list[Team]:
    """A team as each of its threads sees it, whose lists have these entries for each iteration."""
    arrivals = np.zeros(1, dtype=np.int64)
    return [Team(arrivals, len(periods), period) for period in periods]


def release(arrivals: Any) -> None:
    """Let all threads of a team pass all barriers, since one of them will never come."""
    arrivals[0] += _RELEASED


@njit(inner=True, **KERNEL)
def wait(team):
    """Return once all threads of the team have called this as often."""
    if team.size > 1:
        before = _arrive(team.arrivals)
        goal = (before // team.size + 1) * team.size
        looks = 0
        while before < _RELEASED and _arrived(team.arrivals) < goal:
            looks += 1
            if looks > _LOOKS:
                _sleep()


@intrinsic
def _arrive(typingctx, arrivals):
    """Add one to arrivals[0], as one step for all threads; what it was."""

    def codegen(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.atomic_rmw("add", data, ir.IntType(64)(1), "seq_cst")

    return types.int64(arrivals), codegen


@intrinsic
def _arrived(typingctx, arrivals):
    """arrivals[0] as other threads left it, and with it all that they wrote before."""

    def codegen(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.load_atomic(data, "seq_cst", 8)

    return types.int64(arrivals), codegen


@intrinsic
def _sleep(typingctx):
    """Leave the core to other threads for a moment."""

    def codegen(context, builder, signature, args):
        name, moment = ("Sleep", 1) if sys.platform == "win32" else ("usleep", 50)
        kind = ir.FunctionType(ir.IntType(32), [ir.IntType(32)])
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        builder.call(function, [ir.IntType(32)(moment)])
        return context.get_dummy_value()

    return types.void(), codegen

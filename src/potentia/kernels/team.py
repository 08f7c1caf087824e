"""Threads that run a kernel together and wait for each other inside it.

Handing work to a thread and waiting for its end takes as long as updating some thousand messages, so a team is called
once for many groups of updates: each thread has a list of them, with `BARRIER` where it must wait until all the others
have come as far.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .jit import njit
from .vecmath import KERNEL

#: Stands in a list of updates for a wait.
BARRIER = -1
#: Looks at the others before a thread sleeps, about half a millisecond: a core that it waits for may be its own.
_LOOKS = 1_000_000
#: Added to the arrivals of a team that is to wait no longer.
_RELEASED = 2**60


class Team(NamedTuple):
    """arrivals (1): how often threads have come to a barrier. size: threads."""

    arrivals: Any
    size: Any


#: A single thread, which never waits.
SOLO = Team(np.zeros(1, dtype=np.int64), 1)


def gather(size: int) -> Team:
    """A team of this many threads."""
    return Team(np.zeros(1, dtype=np.int64), size)


def release(team: Team) -> None:
    """Let all threads of a team pass all barriers, since one of them will never come."""
    team.arrivals[0] += _RELEASED


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

"""What a message-passing engine offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import numpy as np

from ..base.memory import borrow
from ..base.threads import cut_ranges, map_items, pooled, run_team, teams_pay
from ..base.types import Floats, Ints, PotentiaError, shown
from ..kernels.machine.team import BARRIER, SOLO, TEAMS, Team, gather, release
from .base import Result


class Readout(NamedTuple):
    """Marginals per kind, of every variable, the value, and the messages in users' order."""

    marginals: Mapping[str, Floats | list[Floats]]
    singles: Floats
    value: float
    messages: Any


class Engine(Protocol):
    """Units (blocks of variables, or regions) in groups; the units of one group are independent of each other."""

    threads: int

    @property
    def group_ptr(self) -> Ints: ...

    @property
    def group_threads(self) -> int: ...

    @property
    def bulk(self) -> int:
        """Most iterations that one call of `sweep` should make."""
        ...

    def team(self, many: int) -> int:
        """Number of threads worth using for `many` iterations in one call, which wait for each other inside it."""
        ...

    def sweep(
        self, units: Ints, iterations: int = 1, write: bool = True, watch: bool = True, team: Team = SOLO
    ) -> Floats:
        """Update units in this order, `iterations` times over; the largest change of a marginal in each, if watched."""
        ...

    def read(self, cliques: bool = True) -> Readout:
        """Marginals and value; without `cliques` those of larger regions and the value may be left out (nan)."""
        ...

    def messages(self) -> Any: ...

    def set_messages(self, messages: Any) -> None: ...

    @property
    def state(self) -> Floats:
        """What iterations change: messages, or marginals of mean field."""
        ...

    @property
    def saved_shape(self) -> tuple[int, ...]: ...

    def save(self, out: Floats) -> None: ...

    def restore(self, saved: Floats) -> None: ...

    @property
    def slot_bytes(self) -> int:
        """Memory of a slot of a tape."""
        ...

    def tape(self, slots: int) -> Any:
        """Room for what this many iterations leave for their reverse."""
        ...

    def record(self, tape: Any, slot: int) -> None:
        """Leave what the reverse of the next iteration (or read-out) needs in a slot of the tape."""
        ...


class ResidualEngine(Engine, Protocol):
    """An engine that can update its units one at a time, the largest pending change first."""

    def residual_sweep(self, priority: Floats) -> float:
        """As many updates as there are units; the largest change that is pending then."""
        ...


class DampedEngine(Engine, Protocol):
    """An engine whose messages can be damped."""

    damping: float

    def damp(self, damping: float) -> None:
        """Give old messages this weight from now on."""
        ...


class WholeStates(ABC):
    """An engine whose states are saved as they are, and whose reverse needs the state before an iteration."""

    bulk = 1

    def team(self, many: int) -> int:
        """Threads do not wait for each other inside an iteration."""
        return 1

    @property
    @abstractmethod
    def state(self) -> Floats:
        """What iterations change."""

    @property
    def saved_shape(self) -> tuple[int, ...]:
        """Shape of a saved state."""
        return self.state.shape

    def save(self, out: Floats) -> None:
        """Keep the state in `out`."""
        out[...] = self.state

    def restore(self, saved: Floats) -> None:
        """Take up a saved state."""
        self.state[...] = saved

    @property
    def slot_bytes(self) -> int:
        """Memory of a slot of a tape."""
        return self.state.nbytes

    def tape(self, slots: int) -> Floats:
        """Room for the states before this many iterations."""
        return borrow((slots, *self.state.shape))

    def record(self, tape: Floats, slot: int) -> None:
        """Keep the state before an iteration."""
        tape[slot] = self.state


class Recorder(Protocol):
    """Announce the iterations to come, so that the engine records what the reverse pass needs."""

    #: Whether only where the iterations end counts, so that messages that oscillate may be damped.
    end_only: bool

    def before(self, done: int) -> int:
        """Another iteration, after `done` of them; how many may follow before this is called again."""
        ...

    def reading(self) -> None:
        """The read-out."""
        ...


T = TypeVar("T")


def unit_lists(engine: Engine, schedule: str, seed: int, done: int, many: int = 1) -> list[list[Ints]]:
    """Units in the order in which each of `many` iterations from number `done` on updates them.

    Rounds that follow each other; the lists of a round are for one thread each, at the same time. Where they end with
    `BARRIER`, threads wait for each other at their barriers. Only the schedule "coloured" repeats an order.
    """
    ptr = engine.group_ptr
    n = int(ptr[-1])
    if schedule == "random":
        return [[np.random.default_rng([seed, done]).permutation(n)]]
    if schedule == "coloured" and (team := engine.team(many) if TEAMS and teams_pay() else 1) > 1:
        shares = zip(*(cut_ranges(a, b, team) for a, b in pairwise(ptr.tolist())), strict=True)
        return [[np.concatenate([np.append(np.arange(*own), BARRIER) for own in share]) for share in shares]]
    back = schedule == "sequential" and done % 2 == 1
    threads = engine.group_threads
    if threads == 1 or many > 1 or pooled():
        return [[np.arange(n)[::-1] if back else np.arange(n)]]
    rounds = [
        [np.arange(*own) for own in cut_ranges(a, b, threads) if own[0] < own[1]]
        for a, b in pairwise(ptr.tolist())
        if a < b
    ]
    return rounds[::-1] if back else rounds


def run_lists(lists: list[Ints], function: Callable[[Ints, Team], T]) -> list[T]:
    """function(units, team) of every list of a round, one thread each."""
    if len(lists) == 1:
        return [function(lists[0], SOLO)]
    if lists[0][-1] != BARRIER:
        return map_items(lambda units: function(units, SOLO), lists, len(lists))
    team = gather(len(lists))
    return run_team(lambda units: function(units, team), lists, lambda: release(team))


SCHEDULES = ("coloured", "sequential", "random", "residual")

#: Damping of messages that oscillate: weights of old messages, one after another, each with the number of iterations
#: over which the largest change must fall before it; by how much, and what is too small to matter.
_DAMPING = ((0.5, 10), (0.75, 50), (0.9, 100))
_FALL, _SMALL = 0.9, 1e-3
#: Changes that fall at least so fast from one iteration to the next tell how many more will be needed. This share of
#: them is done without looking, but at most one for every three iterations so far, or since damping was raised.
_STEADY, _CAUTION, _LOOKED = 0.97, 0.7, 3
#: Changes of a marginal that rounding makes at a fixed point.
_ROUNDING = 2.0**-50


class Outcome(NamedTuple):
    """How a run ended."""

    iterations: int
    residual: float
    converged: bool
    oscillating: bool = False


def layout_order(schedule: str) -> str:
    """Which order of `pair_layout` a schedule needs."""
    if not isinstance(schedule, str) or schedule not in SCHEDULES:
        raise PotentiaError(f"schedule must be one of {', '.join(SCHEDULES)}, not {shown(schedule)}.")
    return "sequence" if schedule == "sequential" else "colours"


def drive(
    engine: Engine,
    schedule: str,
    iterations: int,
    tol: float,
    seed: int,
    recorder: Recorder | None = None,
    adapt: bool = False,
) -> Outcome:
    """Iterate (every message once per iteration) until the largest change of a marginal is below `tol`.

    Sequential and random schedules count the last two iterations: what is updated last in one may be updated first in
    the next, where it finds nothing new.

    adapt: damp messages from the iteration on at which they turn out to oscillate.
    """
    changes: list[float] = []
    stages = list(_DAMPING if adapt else ())
    n_units = int(engine.group_ptr[-1])
    priority = np.full(n_units, np.inf)
    residual = before = np.inf if n_units else 0.0
    lag = 2 if schedule in ("sequential", "random") else 1
    done = 0
    while done < iterations and n_units and not residual < tol:
        room = iterations if recorder is None else recorder.before(done)
        if schedule == "residual":
            many = 1
            residual = cast(ResidualEngine, engine).residual_sweep(priority)
            changes.append(residual)
        else:
            # a change is between two iterations; without tolerance only the last ones count
            unwatched = 0 if tol > 0 else iterations - 1 - lag - done
            watch = unwatched <= 0
            likely = _likely_left(changes, tol) if watch and schedule == "coloured" else 1
            bulk = engine.bulk if schedule == "coloured" else 1
            many = min(room, bulk, min(likely, iterations - done) if watch else unwatched)
            found = iterate(engine, schedule, seed, done, many, watch).tolist()
            if done == 0:
                found[0] = np.inf  # the first iteration compares with nothing
            residual, before = max(found[-1], before) if lag == 2 else found[-1], found[-1]
            changes.extend([*found[:-1], residual])
        done += many
        if stages and _oscillate(changes, stages[0][1]):
            cast(DampedEngine, engine).damp(stages.pop(0)[0])
            changes.clear()
    damped = adapt and len(stages) < len(_DAMPING)
    return Outcome(done, float(residual), bool(residual <= max(tol, _ROUNDING)), damped)


def _likely_left(changes: list[float], tol: float) -> int:
    """Iterations that will hardly be enough for changes to fall below `tol`, to judge by the latest; 1 at least."""
    latest = changes[-4:]
    if len(latest) < 4 or tol <= 0.0 or min(latest) <= 0.0 or not latest[-1] < latest[0] < np.inf:
        return 1
    rates = [b / a for a, b in pairwise(latest)]
    # where changes do not fall steadily, messages may oscillate
    if max(rates) > _STEADY:
        return 1
    likely = int(_CAUTION * np.log(tol / latest[-1]) / np.log(min(rates)))
    return max(1, min(likely, len(changes) // _LOOKED))


def _oscillate(changes: list[float], window: int) -> bool:
    """Whether the largest change per iteration no longer falls over the given number of iterations."""
    recent, before = changes[-window:], changes[-2 * window : -window]
    return len(before) == window and min(recent) > max(_SMALL, _FALL * min(before))


@dataclass(frozen=True)
class Session:
    """A loaded engine, how to drive it, and how to make a result of where it ends."""

    engine: Engine
    schedule: str
    iterations: int
    tol: float
    seed: int
    finish: Callable[[Outcome, Readout], Result]
    #: Whether marginals may hide what messages do, so that the value decides on convergence, too.
    sharp: bool = False
    #: Whether the messages began as functions of the scores, which a gradient through all iterations must follow.
    uniform: bool = False
    #: Whether to damp messages that oscillate.
    adapt: bool = False

    def run(self, recorder: Recorder | None = None, cliques: bool = True) -> Result:
        """Iterate and read out; `cliques` as in `Engine.read`."""
        # a gradient through iterations follows them as they are asked for
        free = recorder is None or recorder.end_only
        adapt = self.adapt and free and self.tol > 0  # without tolerance nothing is watched
        outcome = drive(self.engine, self.schedule, self.iterations, self.tol, self.seed, recorder, adapt)
        if free and (self.sharp or outcome.oscillating):
            outcome, read = self._settle(outcome, self.engine.read())
            if recorder is None:
                return self.finish(outcome, read)
        if recorder is not None:
            recorder.reading()
        return self.finish(outcome, self.engine.read(cliques))

    def _settle(self, outcome: Outcome, read: Readout) -> tuple[Outcome, Readout]:
        """Continue until value and messages no longer change either; not converged if the iterations run out first.

        Large scores make marginals near 0 and 1, which no longer change while messages still move, and damping makes
        messages move slowly.
        """
        # the residual schedule goes by pending changes, which seem to be none
        schedule = "coloured" if self.schedule == "residual" else self.schedule
        damping = cast(DampedEngine, self.engine).damping
        calm = 0
        while outcome.converged and outcome.iterations < self.iterations:
            residual = float(iterate(self.engine, schedule, self.seed, outcome.iterations)[-1])
            after = self.engine.read()
            moved = max(abs(after.value - read.value), _largest_change(read.messages, after.messages))
            moved /= 1.0 - damping  # what is damped moves by this share of the way that is left
            still = moved <= self.tol * (1.0 + abs(read.value)) and residual <= self.tol
            # a value that changes direction may not change for one iteration
            calm = calm + 1 if still else 0
            outcome, read = outcome._replace(iterations=outcome.iterations + 1, residual=residual), after
            if calm == 2:
                return outcome, read
        return outcome._replace(converged=False), read


def _largest_change(before: Floats, after: Floats) -> float:
    """Of a message that is finite both times."""
    finite = np.isfinite(before) & np.isfinite(after)
    return float(np.abs(after[finite] - before[finite]).max(initial=0.0))


def iterate(engine: Engine, schedule: str, seed: int, done: int, many: int = 1, watch: bool = True) -> Floats:
    """Iterations from number `done` on of any schedule but the residual one.

    The largest change of a marginal in each, if watched; `many` at most what `Engine.bulk` allows, and 1 if watched
    under another schedule than "coloured".
    """
    changes = np.zeros(many)
    for lists in unit_lists(engine, schedule, seed, done, many):
        for found in run_lists(lists, lambda units, team: engine.sweep(units, many, watch=watch, team=team)):
            np.maximum(changes, found, out=changes)
    return changes

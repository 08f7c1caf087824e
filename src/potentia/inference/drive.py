"""The one loop that drives any message-passing engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, cast

import numpy as np

from .._types import Floats, PotentiaError, shown
from .base import Result
from .engine import DampedEngine, Engine, Readout, Recorder, ResidualEngine, TeamEngine
from .steps import Step, steps

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
            many = min(room, engine.bulk, min(likely, iterations - done) if watch else unwatched)
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
    for step in steps(engine, schedule, seed, done, many):
        for found in _make_step(engine, step, watch):
            np.maximum(changes, found, out=changes)
    return changes


def _make_step(engine: Engine, step: Step, watch: bool) -> Sequence[float | Floats]:
    if not step.whole:
        return step.run(lambda units, _: engine.sweep(units, watch=watch))
    together = cast(TeamEngine, engine)
    return step.run(lambda updates, team: together.update(updates, watch, team))

"""What a message-passing engine offers, and the one loop that drives any of them."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from .._threads import map_ranges
from .._types import Floats, Ints, PotentiaError

SCHEDULES = ("coloured", "sequential", "random", "greedy")


class Readout(NamedTuple):
    """Marginals per kind, of every variable, the value, and the messages in users' order."""

    marginals: dict[str, Floats | list[Floats]]
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

    def sweep(self, units: Ints, write: bool = True) -> float: ...

    def greedy(self, priority: Floats) -> float: ...

    def read(self) -> Readout: ...

    def messages(self) -> Any: ...

    def set_messages(self, messages: Any) -> None: ...


class Outcome(NamedTuple):
    """How a run ended."""

    iterations: int
    residual: float
    converged: bool


def layout_order(schedule: str) -> str:
    """Which order of `pair_layout` a schedule needs."""
    if schedule not in SCHEDULES:
        raise PotentiaError(f"schedule must be one of {', '.join(SCHEDULES)}, not {schedule!r}")
    return "sequence" if schedule == "sequential" else "colours"


def drive(engine: Engine, schedule: str, iterations: int, tol: float, seed: int) -> Outcome:
    """Iterate (every message once per iteration) until the largest change of a marginal is below `tol`."""
    n_units = int(engine.group_ptr[-1])
    rng = np.random.default_rng(seed)
    priority = np.full(n_units, np.inf)
    residual = np.inf if n_units else 0.0
    done = 0
    while done < iterations and n_units and not residual < tol:
        if schedule == "greedy":
            residual = engine.greedy(priority)
        elif schedule == "random":
            residual = engine.sweep(rng.permutation(n_units))
        else:
            backwards = schedule == "sequential" and done % 2 == 1
            residual = sweep_groups(engine, backwards)
        # the first iteration compares with nothing
        residual = np.inf if done == 0 and schedule != "greedy" else residual
        done += 1
    return Outcome(done, float(residual), bool(residual <= tol))


def sweep_groups(engine: Engine, backwards: bool) -> float:
    """All units, group after group; in parallel inside a group where that pays."""
    ptr = engine.group_ptr
    if engine.group_threads == 1:
        units = np.arange(ptr[-1])
        return engine.sweep(units[::-1].copy() if backwards else units)
    change = 0.0
    groups = range(len(ptr) - 1)
    for g in reversed(groups) if backwards else groups:
        parts = map_ranges(
            lambda a, b: engine.sweep(np.arange(a, b)), int(ptr[g]), int(ptr[g + 1]), engine.group_threads
        )
        change = max([change, *parts])
    return change

"""`Clock`: the limits of wall time and CPU time of an inference."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from ..kernels.machine.jit import compilation_seconds


class Clock:
    """Seconds left of a wall-time and a CPU-time limit (None: none), without those in which kernels are compiled.

    Attributes:
        workers: functions that give the CPU seconds of processes that work for this one, which count, too.
    """

    def __init__(
        self, time_limit: float | None, cpu_limit: float | None, workers: list[Callable[[], float]] | None = None
    ) -> None:
        self.workers = [] if workers is None else workers
        self._time_limit = math.inf if time_limit is None else time_limit
        self._cpu_limit = math.inf if cpu_limit is None else cpu_limit
        self._begun = time.monotonic() - compilation_seconds(), self._cpu_now()

    def _cpu_now(self) -> float:
        """CPU time of this process and its workers since they began."""
        return time.process_time() - compilation_seconds() + sum(seconds() for seconds in self.workers)

    def part(self, seconds: float) -> Clock:
        """A clock with this many of the seconds left, in the time that is limited; its workers count here, too."""
        limit = None if seconds == math.inf else max(seconds, 0.01)
        by_cpu = self._time_limit == math.inf > self._cpu_limit
        return Clock(None if by_cpu else limit, limit if by_cpu else None, self.workers)

    @property
    def seconds(self) -> float:
        """Wall time so far."""
        return time.monotonic() - compilation_seconds() - self._begun[0]

    @property
    def cpu_seconds(self) -> float:
        """CPU time of this process and its workers so far."""
        return self._cpu_now() - self._begun[1]

    @property
    def now(self) -> float:
        """Seconds so far in the time that is limited: CPU time if that alone is, wall time otherwise."""
        return self.cpu_seconds if self._time_limit == math.inf > self._cpu_limit else self.seconds

    @property
    def left(self) -> float:
        """What is left of the tighter limit."""
        return min(self._time_limit - self.seconds, self._cpu_limit - self.cpu_seconds)

    def going(self, reserve: float = 0.0) -> Callable[[], bool]:
        """Whether more than `reserve` seconds are left, as a function."""
        return lambda: self.left > reserve

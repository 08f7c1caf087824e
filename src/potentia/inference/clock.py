"""`Clock`: the limits of wall time and CPU time of an inference."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from ..kernels.machine.jit import compilation_seconds


class Clock:
    """Seconds left of a wall-time and a CPU-time limit (None: none), without those in which kernels are compiled."""

    def __init__(self, time_limit: float | None, cpu_limit: float | None) -> None:
        self._time_limit = math.inf if time_limit is None else time_limit
        self._cpu_limit = math.inf if cpu_limit is None else cpu_limit
        self._begun = time.monotonic() - compilation_seconds(), time.process_time() - compilation_seconds()

    @property
    def seconds(self) -> float:
        """Wall time so far."""
        return time.monotonic() - compilation_seconds() - self._begun[0]

    @property
    def cpu_seconds(self) -> float:
        """CPU time of this process so far."""
        return time.process_time() - compilation_seconds() - self._begun[1]

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

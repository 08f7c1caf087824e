"""Measuring: the least time of a call, and the peak memory of a fresh process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def best_time(work: Callable[[], object], budget: float) -> float:
    """Least seconds of a call, tried again and again for about `budget` seconds."""
    return best_times([work], budget)[0]


def best_times(works: Sequence[Callable[[], object]], budget: float) -> list[float]:
    """Least seconds of each of several calls, tried in turn, so that a slow spell of the machine meets all of them."""
    for work in works:  # compiles what is not compiled yet
        work()
    best, begun = [np.inf] * len(works), time.perf_counter()
    while time.perf_counter() - begun < budget * len(works) or not np.isfinite(best[-1]):
        for k, work in enumerate(works):
            t = time.perf_counter()
            work()
            best[k] = min(best[k], time.perf_counter() - t)
    return best


def in_fresh_process(module: str, *arguments: str) -> dict[str, Any]:
    """What `python -m module arguments` prints as JSON, with its peak memory in MiB added.

    The process before any work counts too: an interpreter with NumPy and Numba takes about 150 MiB.
    """
    found: dict[str, Any] = json.loads(subprocess.check_output([sys.executable, "-m", module, *arguments]))
    return found


def peak_memory() -> float:
    """Peak resident memory of this process so far, in MiB."""
    status = Path("/proc/self/status")
    if status.exists():  # `getrusage` would count what the parent had when it started this process
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return float(line.split()[1]) / 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 * 1024)

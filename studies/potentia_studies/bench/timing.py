"""Measuring: the least time of a call, the peak memory of a fresh process, and parts that share a table."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import potentia as pt
from potentia.app.report.rows import Column, Table
from potentia.base.types import Floats

Rows = list[dict[str, Any]]


class Suite(NamedTuple):
    """A group of measurements: their name, the title and columns of their table, and measure(quick), their rows."""

    name: str
    title: str
    columns: list[Column]
    measure: Callable[[bool], Rows]

    def rows(self, quick: bool) -> Rows:
        """The measurements, marked as the part's."""
        return [{"part": self.name, **row} for row in self.measure(quick)]

    def table(self, rows: Rows) -> Table:
        """The table of those rows that are the part's."""
        return Table(self.title, self.columns, [row for row in rows if row["part"] == self.name])


def random_theta(graph: pt.Graph, rng: np.random.Generator) -> dict[str, Floats]:
    """Normal scores of variables and pairs, all with the same number of states."""
    states = int(graph.n_states[0])
    shapes = {"node": (graph.n_variables, states), "edge": (len(graph.scopes["edge"]), states, states)}
    return {kind: rng.normal(size=shape) for kind, shape in shapes.items()}


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


def median_time(work: Callable[[], object], repeats: int = 5) -> float:
    """Median seconds of a call that does something new every time."""
    work()
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return float(np.median(times))


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

"""Exact search by toulbar2 (`pip install potentia[map]`) alongside other methods, in a separate process."""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from .._types import Ints
from ..graph.flat import Regions
from ..graph.scores import Scores
from .map_reduce import table_entries
from .map_task import Task

#: Problems with more table entries or regions than this take longer to transfer than the time left to search.
_MAX_ENTRIES, _MAX_REGIONS = 5_000_000, 100_000
#: Integer costs of all tables together; toulbar2 holds up to 5e17.
_TOTAL_COST = 1e15
#: Backtracks without a time limit.
_BACKTRACKS = 5_000
#: Seconds between looks at a running search.
_PAUSE = 0.02
_PART = "toulbar2"


def suits(scores: Scores) -> bool:
    """Whether pytoulbar2 is installed and the problem small enough to be transferred."""
    small = len(scores.regions.size) <= _MAX_REGIONS and float(scores.regions.size.sum()) <= _MAX_ENTRIES
    return small and find_spec("pytoulbar2") is not None


class ExactSearch:
    """A search for labellings better than the best so far; `collect` takes what is found, `stop` ends it."""

    def __init__(self, task: Task) -> None:
        assert task.problem.scores is not None
        self._task, self._problem = task, task.problem
        self._costs = _integer_costs(task.problem.scores, task.current)
        self._folder = TemporaryDirectory(prefix="potentia-map-", ignore_cleanup_errors=True)
        model, output = (Path(self._folder.name) / name for name in ("model.npz", "output.txt"))
        backtracks = np.array(0 if task.timed else _BACKTRACKS)
        np.savez(model, allow_pickle=False, backtracks=backtracks, **self._costs.arrays)
        worker = Path(__file__).with_name("map_toulbar2_worker.py")
        with output.open("wb") as sink:
            # a separate session, so that Ctrl-C reaches this process only, which then ends the search
            self._process = subprocess.Popen(
                [sys.executable, str(worker), str(model)],
                stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        self._lines, self._rest, self._least = output.open("r"), "", int(self._costs.arrays["upper"])

    def wait(self) -> None:
        """Collect until the search or the time is over."""
        while not self._task.over and self.collect():
            time.sleep(_PAUSE)

    def collect(self) -> bool:
        """Offer what was found since the last call; return whether the search is still running."""
        running = self._process.poll() is None
        *lines, self._rest = (self._rest + self._lines.read()).split("\n")
        for line in lines:
            words = line.split()
            if words[:2] == ["New", "solution:"]:
                self._least = min(self._least, int(words[2]))
            elif words == ["finished"] and self._task.labels is None:
                self._task.exhaust(_PART)
            elif words == ["finished"]:
                score = self._costs.upper_score(self._least) + self._problem.constant
                self._task.tighten(score - self._task.problem.constant, _PART)
            elif len(words) == len(self._problem.variables) and all(map(str.isdecimal, words)):
                self._offer(np.array(words, dtype=np.int64))
        return running

    def _offer(self, found: Ints) -> None:
        labels = self._costs.states[np.arange(len(found)), found]
        self._task.offer(self._problem.expand(labels)[self._task.problem.variables], _PART)

    def stop(self) -> None:
        """End the search and remove its files."""
        self._process.kill()
        self._process.wait()
        self._lines.close()
        self._folder.cleanup()


class _Costs(NamedTuple):
    """Scores as whole costs: score = -(cost / scale + base), up to `error`.

    Attributes:
        arrays: what the worker reads.
        states: the states that stand behind the worker's, (n_variables, max states).
    """

    arrays: dict[str, Ints]
    states: Ints
    scale: float
    base: float
    error: float

    def upper_score(self, cost: int) -> float:
        """The most that a labelling of at least this cost scores."""
        return -(cost / self.scale + self.base) + self.error


def _integer_costs(scores: Scores, labels: Ints | None) -> _Costs:
    """Costs of all regions at allowed states; forbidden entries cost as much as the given labels, or as anything."""
    regions, (values, where) = scores.regions, scores.flat()
    allowed = scores.singles > -np.inf
    states, count = np.argsort(~allowed, axis=1, kind="stable"), allowed.sum(axis=1)
    index, ptr = table_entries(regions.scope_ptr, regions.scope, regions.stride, where, count, states)
    cost = -values[index]
    least = np.minimum.reduceat(cost, ptr[:-1])
    cost -= np.repeat(least, np.diff(ptr))
    forbidden = np.isinf(cost)
    total = float(np.maximum.reduceat(np.where(forbidden, 0.0, cost), ptr[:-1]).sum())
    scale = _TOTAL_COST / (total or 1.0)
    whole = np.rint(np.where(forbidden, 0.0, cost) * scale).astype(np.int64)
    upper = int(np.maximum.reduceat(whole, ptr[:-1]).sum()) + 1
    start = np.zeros(len(count), dtype=np.int64)
    if labels is not None:
        start = (states == labels[:, None]).argmax(axis=1)
        entries = _entries_at(regions, count, ptr, start)
        if not forbidden[entries].any():
            upper = int(whole[entries].sum())
    whole[forbidden] = upper
    arrays = {
        "n_states": count, "scope_ptr": regions.scope_ptr, "scope": regions.scope, "cost_ptr": ptr, "costs": whole,
        "labels": start, "upper": np.array(upper),
    }  # fmt: skip
    return _Costs(arrays, states, scale, float(least.sum()), 0.5 * len(where) / scale)


def _entries_at(regions: Regions, count: Ints, ptr: Ints, labels: Ints) -> Ints:
    """Where the costs of all regions at a labelling lie."""
    index = np.zeros(len(ptr) - 1, dtype=np.int64)
    for axis in range(int(regions.order.max())):
        rows = np.flatnonzero(regions.order > axis)
        variable = regions.scope[regions.scope_ptr[rows] + axis]
        index[rows] = index[rows] * count[variable] + labels[variable]
    return ptr[:-1] + index

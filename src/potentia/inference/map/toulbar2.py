"""Exact search by toulbar2 (`pip install potentia[map]`) alongside other methods, in a separate process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryFile
from threading import Thread
from typing import NamedTuple

import numpy as np

from ...base.types import Ints
from ...graph.regions import Regions
from ...graph.scores import Scores
from .task import SearchTask, table_entries

#: Problems with more table entries or regions than this take longer to transfer than the time left to search.
_MAX_ENTRIES, _MAX_REGIONS = 5_000_000, 100_000
#: Integer costs of all tables together; toulbar2 holds up to 5e17.
_TOTAL_COST = 1e15
#: Backtracks without a time limit.
_BACKTRACKS = 5_000
#: Seconds between looks at a running search.
_PAUSE = 0.02
#: How long it may run after the time limit, should nobody end it: seconds of compilation come on top of the limit.
_GRACE = 60.0
_PART = "toulbar2"
#: How it prints a lower bound on whole costs, and the least cost so far.
_BOUNDS = re.compile(r"(?:Initial lower and upper bounds|Optimality gap): \[(-?\d+), ")


def suits(scores: Scores) -> bool:
    """Whether pytoulbar2 is installed and the problem small enough to be transferred."""
    small = len(scores.regions.size) <= _MAX_REGIONS and float(scores.regions.size.sum()) <= _MAX_ENTRIES
    return small and find_spec("pytoulbar2") is not None


class ExactSearch:
    """A search for labellings better than the best so far; `collect` takes what is found, `stop` ends it."""

    def __init__(self, task: SearchTask) -> None:
        assert task.problem.scores is not None
        self._task, self._problem = task, task.problem
        self._costs = _integer_costs(task.problem.scores, task.current)
        self._least = int(self._costs.arrays["upper"])
        backtracks, seconds = (0, task.left + _GRACE) if task.timed else (_BACKTRACKS, 0.0)
        worker = Path(__file__).with_name("worker.py")
        with TemporaryFile(prefix="potentia-map-") as model:
            np.savez(
                model, allow_pickle=False, backtracks=np.array(backtracks), seconds=np.array(seconds),
                parent=np.array(os.getpid()), **self._costs.arrays,
            )  # fmt: skip
            model.seek(0)
            # a separate session, so that Ctrl-C reaches this process only, which then ends the search
            self._process = subprocess.Popen(
                [sys.executable, str(worker)],
                stdin=model, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
                text=True,
            )  # fmt: skip
        self._lines: SimpleQueue[str] = SimpleQueue()
        # a full pipe would hold up the search while nobody collects
        self._reader = Thread(target=self._read, name="potentia-map", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def wait(self) -> None:
        """Collect until the search or the time is over."""
        while not self._task.over and self.collect():
            time.sleep(_PAUSE)

    def collect(self) -> bool:
        """Take what was found since the last call; return whether the search is still running."""
        running = self._reader.is_alive()
        while not self._lines.empty():
            line = self._lines.get()
            words, bounds = line.split(), _BOUNDS.match(line)
            if words[:2] == ["New", "solution:"]:
                self._least = min(self._least, int(words[2]))
            elif words == ["finished"] and self._task.labels is None:
                self._task.exhaust(_PART)
            elif words == ["finished"]:
                self._tighten(self._least)
            elif bounds is not None:
                # of labellings that cost less than the best so far; no others cost less than that one
                self._tighten(min(int(bounds[1]), self._least))
            elif len(words) == len(self._problem.variables) and all(map(str.isdecimal, words)):
                self._offer(np.array(words, dtype=np.int64))
        return running

    def _tighten(self, cost: int) -> None:
        """Take note that no labelling costs less."""
        score = self._costs.upper_score(cost) + self._problem.constant
        self._task.tighten(score - self._task.problem.constant, _PART)

    def _offer(self, found: Ints) -> None:
        labels = self._costs.states[np.arange(len(found)), found]
        self._task.offer(self._problem.expand(labels)[self._task.problem.variables], _PART)

    def stop(self) -> None:
        """End the search."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


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

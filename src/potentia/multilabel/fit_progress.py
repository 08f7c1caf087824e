"""What a fit has found so far: counted by a progress bar, and kept in a file from which the fit resumes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from threading import Lock

import numpy as np

from .._options import check_type
from .._progress import Bar
from .._schema import Array, Schema, check
from .._types import Floats, PotentiaError
from ..io.checkpoint import Checkpoint
from .features import Solution

#: Seconds between writings of the file: it is written whole.
_EVERY = 5.0


#: A problem's solutions from its number, its columns of signs and its solver.
Take = Callable[[int, int, Callable[[], list[Solution]]], list[Solution]]


class FitProgress:
    """Arrays by name, such as the solution of a label's problem by the stage of the fit and its number there.

    A fit solves the same problems in the same stages each time, so that numbers are names enough. Without a
    checkpoint nothing is kept.
    """

    def __init__(self, bar: Bar, checkpoint: str | os.PathLike[str] | Checkpoint | None = None) -> None:
        check_type("checkpoint", checkpoint, str, os.PathLike, Checkpoint, optional=True)
        self._bar, self._given = bar, checkpoint
        self._checkpoint: Checkpoint | None = None
        self._in_use = ExitStack()
        self._found: dict[str, Floats] = {}
        self._stage, self._lock, self._written = 0, Lock(), time.monotonic()

    def open(self, mark: Callable[[], str]) -> None:
        """Take up what the file holds; a file given by its path must belong to the fit of that mark."""
        if self._given is not None:
            given = self._given
            self._checkpoint = given if isinstance(given, Checkpoint) else Checkpoint(given, mark())
            self._in_use.enter_context(self._checkpoint)
            saved = self._checkpoint.load()
            self._found = {} if saved is None else saved["arrays"]

    def close(self) -> None:
        """Let other fits use the file."""
        self._in_use.close()

    def stage(self, problems: int, width: int, path: int = 1) -> Take:
        """Begin a stage of `problems` problems with `width` features, each solved `path` times.

        What it returns takes a problem's number, its columns of signs and its solver, and gives its solutions.
        """
        stage, self._stage = self._stage, self._stage + 1
        self._bar.begin("labels", problems)

        def take(number: int, columns: int, solve: Callable[[], list[Solution]]) -> list[Solution]:
            name = f"{stage}/{number}"
            packed = self.get(name, (path * (3 + columns + width),))
            if packed is not None:
                solutions = [_unpacked(part, columns) for part in np.split(packed, path)]
            else:
                solutions = solve()
                self.put({name: np.concatenate([_packed(s) for s in solutions])})
            self._bar.advance()
            return solutions

        return take

    def get(self, name: str, shape: tuple[int, ...]) -> Floats | None:
        """The array that was put under a name, in this fit or in the one it resumes; it must have this shape."""
        schema: Schema = {name: Array("f8", shape, optional=True)}
        try:
            found: Floats | None = check(schema, self._found, "checkpoint")[name]
            return found
        except PotentiaError as error:
            path = "" if self._checkpoint is None else f"{self._checkpoint.path}: "
            raise PotentiaError(f"{path}{str(error).rstrip('.')}; delete it to start again.") from None

    def put(self, arrays: dict[str, Floats]) -> None:
        """Keep copies of some arrays."""
        if self._checkpoint is None:
            return
        with self._lock:
            self._found |= {name: array.copy() for name, array in arrays.items()}
        if time.monotonic() - self._written > _EVERY:
            self.write()

    def write(self) -> None:
        """Write the file now; other threads wait, as they might still find something."""
        with self._lock:
            if self._checkpoint is not None and self._found:
                self._checkpoint.save({"history": [], "potentials": {}, "arrays": self._found})
            self._written = time.monotonic()


def _packed(solution: Solution) -> Floats:
    head = [solution.bias, float(solution.converged), float(len(solution.signs))]
    return np.concatenate([head, solution.signs, solution.own])


def _unpacked(packed: Floats, columns: int) -> Solution:
    p = 3 + columns
    return Solution(packed[p:], float(packed[0]), packed[3:p], bool(packed[1]))

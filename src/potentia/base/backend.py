"""`Backend`: two verbs over the parts of a data set, whatever a part is and wherever it lives.

A part never changes. What a fit knows about it is a state: named arrays, and small values such as settings, which are
replaced and never edited. Sums run over a fixed binary tree of part numbers, so a total does not depend on who
computed which part.
"""

from __future__ import annotations

import itertools
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np

from .types import PotentiaError, enough_memory

#: The connection to the cluster that parts live on, if any.
CLUSTER: ContextVar[Any] = ContextVar("potentia_cluster", default=None)

#: function(part, state, *args) -> state and result; the state that it was given, if nothing changes.
PartFunction = Callable[..., tuple[Any, Any]]


class Backend(ABC):
    """Applies functions, importable or picklable ones, to every part and its state.

    States are those of all parts, as an earlier call returned them; None for parts of which nothing is known yet,
    whose state is empty. They stay valid for as long as anyone has them.
    """

    #: All parts are in this process.
    in_memory: bool = False

    @property
    @abstractmethod
    def n_parts(self) -> int:
        """Number of parts."""

    @abstractmethod
    def map(
        self, function: PartFunction, states: Any, *args: Any, own: Sequence[Any] | None = None
    ) -> tuple[Any, list[Any]]:
        """The new states, and the results in part order; `own` has a first argument for each part."""

    @abstractmethod
    def total(self, function: PartFunction, states: Any, *args: Any) -> tuple[Any, Any]:
        """The new states, and the sum of the results: numbers, arrays, tuples, dictionaries; None is nothing."""

    @abstractmethod
    def at(self, number: int, function: PartFunction, states: Any, *args: Any) -> Any:
        """The result for one part, whose state does not change."""

    @abstractmethod
    def keep(self, numbers: Sequence[int]) -> None:
        """Let go of all parts but these, before any has a state."""

    def close(self) -> None:
        """Let go of what the parts take."""
        return

    def statistics(self) -> dict[str, Any]:
        """What the rounds since the last call took, for a history; nothing where all is in this process."""
        return {}


class Local(Backend):
    """Parts in memory, one after another; a part's own work is shared out over threads. States are a tuple."""

    in_memory = True

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = list(parts)

    @property
    def n_parts(self) -> int:
        """Number of parts."""
        return len(self.parts)

    def keep(self, numbers: Sequence[int]) -> None:
        """Let go of all parts but these."""
        self.parts = [self.parts[number] for number in numbers]

    def _enter(self, number: int, states: Any) -> tuple[Any, Any]:
        """A part and its state."""
        return self.parts[number], {} if states is None else states[number]

    def _leave(self, number: int, states: Any, before: Any, state: Any) -> Any:
        """What stands for a part's new state among the states, after a visit that began with `before`."""
        return state

    def map(
        self, function: PartFunction, states: Any, *args: Any, own: Sequence[Any] | None = None
    ) -> tuple[Any, list[Any]]:
        """The new states, and the results in part order."""
        new, results = [], []
        for number in range(self.n_parts):
            part, before = self._enter(number, states)
            first = () if own is None else (own[number],)
            state, result = function(part, before, *first, *args)
            new.append(self._leave(number, states, before, state))
            results.append(result)
            del part, before, state  # they may leave memory now
        return tuple(new), results

    def total(self, function: PartFunction, states: Any, *args: Any) -> tuple[Any, Any]:
        """The new states, and the sum of the results; at most log2(parts) partial sums are held at once."""
        new, sums = [], list[tuple[int, Any]]()
        for number in range(self.n_parts):
            part, before = self._enter(number, states)
            state, result = function(part, before, *args)
            new.append(self._leave(number, states, before, state))
            push(sums, result)
            del part, before, state, result
        return tuple(new), joined(sums)

    def at(self, number: int, function: PartFunction, states: Any, *args: Any) -> Any:
        """The result for one part."""
        part, state = self._enter(number, states)
        return function(part, state, *args)[1]


class _Spilled:
    """A state of a part, in memory while the part is, and its arrays in a file, written once, while it is not."""

    def __init__(self, state: Any) -> None:
        self.state: Any = state
        self.small: dict[str, Any] = {}
        self.names: list[str] = []
        self.path: Path | None = None

    def leave(self, path: Path, name: str) -> None:
        """Write the arrays to the file, unless they were, and let go of them."""
        if self.path is None:
            self.path = path
            weakref.finalize(self, _delete, path)
            arrays = {key: value for key, value in self.state.items() if isinstance(value, np.ndarray)}
            self.small = {key: value for key, value in self.state.items() if key not in arrays}
            self.names = list(arrays)
            try:
                with path.open("wb") as file:
                    for value in arrays.values():
                        np.save(file, value, allow_pickle=False)
            except OSError as error:
                raise PotentiaError(
                    f"the state of {name} cannot be written to {path} ({error.strerror or error}); "
                    "free space there or set TMPDIR."
                ) from None
        self.state = None

    def come(self) -> Any:
        """The state, read again if it had left."""
        if self.state is None and self.path is not None:
            with self.path.open("rb") as file:
                arrays = {name: np.load(file, allow_pickle=False) for name in self.names}
            self.state = {**self.small, **arrays}
        return self.state


def _delete(path: Path) -> None:
    """Delete a file, if it is still there."""
    with suppress(OSError):  # the whole folder may be gone
        path.unlink()


class OutOfCore(Local):
    """Parts that are built when they are visited, at most `resident` of them at once, by `build` of their recipes.

    When a part makes room, the arrays of its states are written to files in a temporary folder. A part may name with
    `reusable` what the next ones should find in memory.
    """

    in_memory = False

    def __init__(self, recipes: Sequence[Any], resident: int = 1) -> None:
        self.recipes, self.resident = list(recipes), resident
        self._parts: dict[int, Any] = {}
        self._states: dict[int, weakref.WeakSet[_Spilled]] = {}
        self._reusable: Any = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._files = itertools.count()

    @property
    def n_parts(self) -> int:
        """Number of parts."""
        return len(self.recipes)

    def keep(self, numbers: Sequence[int]) -> None:
        """Let go of all parts but these."""
        self.recipes = [self.recipes[number] for number in numbers]
        self._parts = {k: self._parts[number] for k, number in enumerate(numbers) if number in self._parts}
        self._states = {k: weakref.WeakSet() for k in self._parts}

    def close(self) -> None:
        """Let go of the parts and delete the files."""
        for part in self._parts.values():
            vars(part).clear()
        self._parts, self._states, self._reusable = {}, {}, None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _enter(self, number: int, states: Any) -> tuple[Any, Any]:
        """The part, which is built unless it is in memory, and its state; the part visited last makes room.

        Parts are visited in turn, so the one visited last is the one that is needed again last.
        """
        if number not in self._parts:
            if len(self._parts) >= self.resident:
                self._suspend(next(reversed(self._parts)))
            self._parts[number] = self.recipes[number].build()
            self._states[number] = weakref.WeakSet()
        self._parts[number] = part = self._parts.pop(number)
        if states is None:
            return part, {}
        self._states[number].add(states[number])
        return part, states[number].come()

    def _leave(self, number: int, states: Any, before: Any, state: Any) -> _Spilled:
        """The state as something that can leave memory."""
        new = states[number] if states is not None and state is before else _Spilled(state)
        self._states[number].add(new)
        return new

    def _suspend(self, number: int) -> None:
        """Take a part out of memory: write its states to files and keep what the next parts may use again."""
        part = self._parts.pop(number)
        for state in self._states.pop(number):
            state.leave(self._path(), self.recipes[number].name)
        self._reusable = part.reusable()
        vars(part).clear()  # what it holds may refer to it, and the memory is needed now

    def _path(self) -> Path:
        """A new file in the temporary folder."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="potentia-")
        return Path(self._folder.name) / f"{next(self._files)}"


#: Backends made inside `releasing`.
_opened: ContextVar[list[Backend] | None] = ContextVar("potentia_backends", default=None)


@contextmanager
def releasing() -> Iterator[None]:
    """Close every backend that is made inside, at the end; one sentence if memory ends."""
    opened: list[Backend] = []
    token = _opened.set(opened)
    try:
        with enough_memory("this fit or prediction"):
            yield
    finally:
        _opened.reset(token)
        for backend in opened:
            backend.close()


def open_backend(recipes: Sequence[Any], in_memory: bool, resident: int = 1, here: bool = False) -> Backend:
    """Parts on the cluster if there is one, unless `here`; else in this process, `resident` of them at once.

    recipes: picklable, each with a `name` for messages, `build()` for the part and `n_bytes()` for the size of its
    data, None if it is not known. The `releasing` around the call will close the backend.
    """
    connection = None if here else CLUSTER.get()
    backend: Backend
    if connection is not None:
        backend = connection.backend(recipes)
    elif in_memory:
        backend = Local([recipe.build() for recipe in recipes])
    else:
        backend = OutOfCore(recipes, resident)
    backends = _opened.get()
    if backends is not None:
        backends.append(backend)
    return backend


def push(sums: list[tuple[int, Any]], value: Any) -> None:
    """Add the next value to sums over the tree that splits at multiples of powers of two, each with its size."""
    size = 1
    while sums and sums[-1][0] == size:
        value = add(sums.pop()[1], value)
        size *= 2
    sums.append((size, value))


def joined(sums: list[tuple[int, Any]]) -> Any:
    """The total of what was pushed; None if nothing was."""
    total = None
    for _, value in reversed(sums):
        total = add(value, total)
    return total


def tree_total(values: Iterable[Any]) -> Any:
    """The sum of values over the tree that splits at multiples of powers of two."""
    sums: list[tuple[int, Any]] = []
    for value in values:
        push(sums, value)
    return joined(sums)


def tree_cover(first: int, last: int, start: int, stop: int) -> list[tuple[int, int]]:
    """The fewest ranges that the tree over first .. last - 1 sums by themselves and that make up start .. stop - 1."""
    start, stop = max(first, start), min(last, stop)
    if start >= stop:
        return []
    if (start, stop) == (first, last):
        return [(first, last)]
    half = _middle(first, last)
    return tree_cover(first, half, start, stop) + tree_cover(half, last, start, stop)


def tree_join(sums: Mapping[tuple[int, int], Any], first: int, last: int) -> Any:
    """The tree's total from sums of ranges that it sums by themselves, which make up all of it."""
    if (first, last) in sums:
        return sums[first, last]
    half = _middle(first, last)
    return add(tree_join(sums, first, half), tree_join(sums, half, last))


def _middle(first: int, last: int) -> int:
    """Where the tree over first .. last - 1 splits."""
    return first + (1 << (last - first - 1).bit_length() - 1)


def add(a: Any, b: Any) -> Any:
    """a + b for numbers, arrays (`a` is overwritten), tuples and dictionaries of them; None counts as nothing."""
    if a is None or b is None:
        return b if a is None else a
    if isinstance(a, tuple):
        return tuple(add(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return {key: add(a.get(key), b.get(key)) for key in {**a, **b}}
    if isinstance(a, np.ndarray):
        a += b
        return a
    return a + b

"""`OutOfCore`: parts in this process, few of them in memory at once; their states wait in files."""

from __future__ import annotations

import itertools
import tempfile
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...base.backend import Local, Recipe
from ...base.types import PotentiaError


class _Place(NamedTuple):
    """Where an array lies in a file."""

    first: int
    dtype: Any
    shape: tuple[int, ...]


class _Spilled:
    """A state of a part, in memory while the part is, and in a file, written once, while it is not."""

    def __init__(self, state: Any) -> None:
        self.state: Any = state
        self.places: dict[str, _Place] = {}
        self.small: dict[str, Any] = {}
        self.path: Path | None = None

    def leave(self, path: Path, name: str) -> None:
        """Write the arrays to the file, unless they were, and let go of them."""
        if self.path is None:
            self.path = path
            weakref.finalize(self, _delete, path)
            try:
                with path.open("wb") as file:
                    for key, value in self.state.items():
                        if isinstance(value, np.ndarray):
                            self.places[key] = _Place(file.tell(), value.dtype, value.shape)
                            np.ascontiguousarray(value).tofile(file)
                        else:
                            self.small[key] = value
            except OSError as error:
                raise PotentiaError(
                    f"the state of {name} cannot be written to {path} ({error.strerror or error}); "
                    "free space there or set TMPDIR."
                ) from None
        self.state = None

    def come(self) -> Any:
        """The state, read again if it had left."""
        if self.state is None:
            arrays = {}
            for key, place in self.places.items():
                size = int(np.prod(place.shape, dtype=np.int64))
                flat = np.fromfile(self.path or "", place.dtype, size, offset=place.first)
                arrays[key] = flat.reshape(place.shape)
            self.state = {**self.small, **arrays}
        return self.state


def _delete(path: Path) -> None:
    with suppress(OSError):  # the whole folder may be gone
        path.unlink()


class OutOfCore(Local):
    """Parts that are built when they are visited, at most `resident` of them at once.

    When a part makes room, the arrays of its states are written to files in a temporary folder. A part may name with
    `reusable` what the next ones should find in memory.
    """

    in_memory = False

    def __init__(self, recipes: Sequence[Recipe], resident: int = 1) -> None:
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
        part = self._parts.pop(number)
        for state in self._states.pop(number):
            state.leave(self._path(), self.recipes[number].name)
        self._reusable = part.reusable()
        vars(part).clear()  # what it holds may refer to it, and the memory is needed now

    def _path(self) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="potentia-")
        return Path(self._folder.name) / f"{next(self._files)}"

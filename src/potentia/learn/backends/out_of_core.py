"""`OutOfCore`: parts in this process, few of them in memory at once; their state waits in files."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...base.backend import InProcess, Recipe
from ...base.types import PotentiaError


class _Place(NamedTuple):
    """Where an array lies in a file."""

    first: int
    dtype: Any
    shape: tuple[int, ...]


class _State(NamedTuple):
    """What a part has beyond what building it gives: small things, and where its arrays are."""

    small: Mapping[str, Any]
    places: Mapping[str, _Place]


class OutOfCore(InProcess):
    """Parts that are built when they are visited, at most `resident` of them at once.

    A part makes room by `suspend`, which gives its small state and its arrays; those are written to a file in a
    temporary folder and given back by `resume` after it was built again. A part may name with `reusable` what the next
    ones should find in memory.
    """

    def __init__(self, recipes: Sequence[Recipe], resident: int = 1) -> None:
        self.recipes, self.resident = list(recipes), resident
        self._parts: dict[int, Any] = {}
        self._states: dict[int, _State] = {}
        self._numbers = list(range(len(self.recipes)))
        self._reusable: Any = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def n_parts(self) -> int:
        """Number of parts."""
        return len(self._numbers)

    def keep(self, numbers: Sequence[int]) -> None:
        """Let go of all parts but these."""
        self._numbers = [self._numbers[number] for number in numbers]
        self._parts = {number: part for number, part in self._parts.items() if number in self._numbers}

    def close(self) -> None:
        """Let go of the parts and delete the files."""
        for part in self._parts.values():
            vars(part).clear()
        self._parts, self._states, self._reusable = {}, {}, None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def part(self, number: int) -> Any:
        """The part, which is built unless it is in memory; the one visited last makes room.

        Parts are visited in turn, so the one visited last is the one that is needed again last.
        """
        number = self._numbers[number]
        if number not in self._parts:
            if len(self._parts) >= self.resident:
                self._suspend(next(reversed(self._parts)))
            part = self.recipes[number].build()
            if number in self._states:
                state = self._states.pop(number)
                part.resume(state.small, self._read(number, state.places))
            self._parts[number] = part
        self._parts[number] = part = self._parts.pop(number)
        return part

    def _suspend(self, number: int) -> None:
        part = self._parts.pop(number)
        small, arrays = part.suspend()
        self._states[number] = _State(small, self._write(number, arrays))
        self._reusable = part.reusable()
        vars(part).clear()  # its attributes may refer back to it, and the memory is needed now

    def _path(self, number: int) -> Path:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="potentia-")
        return Path(self._folder.name) / f"{number}"

    def _write(self, number: int, arrays: Mapping[str, Any]) -> dict[str, _Place]:
        if not arrays:
            return {}
        places, path = {}, self._path(number)
        try:
            with path.open("wb") as file:
                for name, array in arrays.items():
                    places[name] = _Place(file.tell(), array.dtype, array.shape)
                    np.ascontiguousarray(array).tofile(file)
        except OSError as error:
            raise PotentiaError(
                f"the state of {self.recipes[number].name} cannot be written to {path} ({error.strerror or error}); "
                "free space there or set TMPDIR."
            ) from None
        return places

    def _read(self, number: int, places: Mapping[str, _Place]) -> dict[str, Any]:
        found = {}
        for name, place in places.items():
            size = int(np.prod(place.shape, dtype=np.int64))
            flat = np.fromfile(self._path(number), place.dtype, size, offset=place.first)
            found[name] = flat.reshape(place.shape)
        return found

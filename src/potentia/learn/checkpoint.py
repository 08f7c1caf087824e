"""`Checkpoint`: a fit's state in one file and one per part of its data, from which an interrupted fit resumes."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np

from ..base.files import only_user, remove_leftovers
from ..base.saving import read_content, read_file, reading, write_file
from ..base.schema import Count, Items, Kind, Number, Schema, Section, check
from ..base.types import PotentiaError, prefixed

#: What the file of a checkpoint holds beside arrays.
_SAVED: Schema = {
    "history": Items(Section({"iteration": Count(), "objective": Number(finite=False), "seconds": Number()})),
    "potentials": Kind((dict,)),
    "mark": Kind((str,), optional=True),
    "parts": Items(Kind((str, type(None))), optional=True),
}
#: What the file of a part is called inside.
_PART = "checkpoint part"
#: A state of up to this many bytes is held in memory between writes, so that an interruption loses nothing.
_HELD_BYTES = 1 << 26
#: Seconds between writes, at least, and as a multiple of what the last write took.
_INTERVAL, _SHARE = 2.0, 10.0


class Checkpoint:
    """The state of a fit after its last whole iteration.

    Writes are at most every two seconds, or ten times what a write takes, which is what a kill can lose; what ends a
    fit in any other way loses nothing of a state up to 64 MiB. The file names the parts' files, which are written
    before it: together they are replaced at once.

    `mark` says what the fit is about, such as a digest of data and options: a file with another mark is refused.

    A fit is inside the checkpoint's context (`with checkpoint:`, which may be nested) from its first look at the file
    until it has ended; a second one that names the same file is refused.
    """

    def __init__(self, path: str | os.PathLike[str], mark: str = "") -> None:
        self.path, self.mark = Path(path), mark
        self._pending: Mapping[str, Any] | None = None
        self._due = 0.0
        self._entered, self._lock = 0, ExitStack()

    def __enter__(self) -> Self:
        if not self._entered:
            self._lock.enter_context(only_user(self.path))
        self._entered += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._entered -= 1
        if not self._entered:
            self._lock.close()

    def keep(self, state: Mapping[str, Any], last: bool = False) -> None:
        """Take a fit's state: written if the last write is long enough ago, else held for `flush` if it is small.

        The last state of a fit is written. One whose parts' arrays are fetched one after another is not held.
        """
        here = isinstance(state.get("parts", ()), Sequence)
        if last or time.perf_counter() >= self._due:
            self.save(state)
        else:
            self._pending = state if here and _size(state) <= _HELD_BYTES else None

    def flush(self) -> None:
        """Write what is held."""
        if self._pending is not None:
            self.save(self._pending)

    def save(self, state: Mapping[str, Any]) -> None:
        """Write a fit's state: its history, arrays, parts' arrays, and each potential's own state."""
        begun = time.perf_counter()
        self._pending = None
        metas, arrays = {}, {f"arrays/{k}": v for k, v in state["arrays"].items()}
        for kind, (meta, of_kind) in state["potentials"].items():
            metas[kind] = meta
            arrays |= {f"potentials/{kind}/{name}": value for name, value in of_kind.items()}
        names = self._write_parts(state.get("parts", ()))
        content = {"history": state["history"], "potentials": metas, "mark": self.mark, "parts": names}
        write_file(self.path, "checkpoint", content, arrays)
        self._clear(set(filter(None, names)))
        now = time.perf_counter()
        self._due = now + max(_INTERVAL, _SHARE * (now - begun))

    def _write_parts(self, parts: Any) -> list[str | None]:
        """One file per part that has any state."""
        generation, names = secrets.token_hex(4), []
        for number, arrays in enumerate(parts):
            name = f"{self.path.name}.{generation}.{number:05d}" if arrays else None
            if name is not None:
                write_file(self.path.with_name(name), _PART, {"mark": self.mark}, arrays)
            names.append(name)
        return names

    def _clear(self, used: set[str]) -> None:
        """Delete part files that the checkpoint does not name."""
        head = f"{self.path.name}."
        paths = self.path.parent.glob("*.[0-9][0-9][0-9][0-9][0-9]") if self.path.parent.is_dir() else ()
        for path in paths:
            ours = path.name.startswith(head) and len(path.name) == len(head) + 14
            if ours and path.name not in used:
                path.unlink(missing_ok=True)

    def load(self) -> dict[str, Any] | None:
        """The state that `save` wrote; None if there is no file. Deletes what a killed run left half-written."""
        remove_leftovers(self.path)
        if not self.path.exists():
            return None
        with _or_start_again(self.path):
            return self._load()

    def _load(self) -> dict[str, Any]:
        """What the checkpoint and the heads of its parts' files hold, checked; parts' arrays are read later."""
        content, arrays = read_file(self.path, "checkpoint")
        if content.get("mark", "") != self.mark:
            raise PotentiaError(f"{self.path} belongs to a run with other options or data.")
        check(_SAVED, content, "checkpoint")
        potentials = {
            kind: (meta, prefixed(arrays, f"potentials/{kind}/")) for kind, meta in content["potentials"].items()
        }
        names = content.get("parts", ())
        for name in filter(None, names):
            path = _beside(self.path, str(name))
            if read_content(path, _PART).get("mark", "") != self.mark:
                raise PotentiaError(f"{path} belongs to a run with other options or data.")
        return {
            "history": content["history"],
            "potentials": potentials,
            "arrays": prefixed(arrays, "arrays/"),
            "parts": _PartArrays(self.path, names),
        }

    def remove(self) -> None:
        """Delete the files, if there are any."""
        self.path.unlink(missing_ok=True)
        self._clear(set())


class _PartArrays(Sequence[Mapping[str, Any]]):
    """The parts' arrays, each read on demand."""

    def __init__(self, path: Path, names: Sequence[str | None]) -> None:
        self._path, self._names = path, names

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, number: Any) -> Any:
        name = self._names[number]
        with _or_start_again(self._path):
            return {} if name is None else read_file(_beside(self._path, name), _PART)[1]


def _beside(path: Path, name: str) -> Path:
    """The file of a part, in the folder of the checkpoint whatever its name says."""
    return path.with_name(Path(name).name)


@contextmanager
def _or_start_again(path: Path) -> Iterator[None]:
    """Errors in reading a checkpoint say what to do."""
    try:
        with reading(path):
            yield
    except PotentiaError as error:
        raise PotentiaError(f"{str(error).removesuffix('.')}; delete it to start again.") from None


def _size(state: Mapping[str, Any]) -> int:
    """Bytes of all arrays of a state."""
    stores = [state["arrays"], *state.get("parts", ()), *(arrays for _, arrays in state["potentials"].values())]
    return sum(np.asarray(array).nbytes for store in stores for array in store.values())

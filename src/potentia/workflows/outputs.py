"""Files written whole or not at all."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from .._files import hidden_name, locked_folder, regular, remove_leftovers, replacing, unwritable
from .._types import PotentiaError
from ..parallel.connection import current


class Staging:
    """A folder's new files: written to a hidden folder beside it, and moved into it once all are there.

    An error, also a full disk, leaves the folder as it was. A killed process leaves its hidden folder, which the next
    one removes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> Self:
        if self.folder.exists() and not self.folder.is_dir():
            raise PotentiaError(f"{self.folder} is a file, not a folder.")
        try:
            remove_leftovers(self.folder)
            # absolute, since workers of a cluster may be in another folder
            self._hidden = hidden_name(self.folder.absolute())
            self._hidden.mkdir(mode=0o700)
            self._lock = ExitStack()
            self._lock.enter_context(locked_folder(self._hidden))
        except OSError as error:
            raise unwritable(self.folder, error) from None
        return self

    def __getstate__(self) -> dict[str, Path]:
        # a worker of a cluster writes files; the lock stays with the process that has it
        return {"folder": self.folder, "_hidden": self._hidden}

    def path(self, part: str, name: str) -> Path:
        """Where to write the file `name` of the subfolder `part`."""
        (self._hidden / part).mkdir(exist_ok=True)
        return self._hidden / part / name

    def file(self, name: str) -> Path:
        """Where to write the file `name` of the folder itself."""
        return self._hidden / name

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._move()
        except OSError as failure:
            raise unwritable(self.folder, failure) from None
        finally:
            self._lock.close()
            shutil.rmtree(self._hidden, ignore_errors=True)
        if isinstance(error, OSError):
            raise unwritable(self.folder, error) from None

    def _move(self) -> None:
        self.folder.mkdir(exist_ok=True)
        for part in sorted(self._hidden.iterdir()):
            if part.is_file():
                os.replace(part, self.folder / part.name)
                continue
            (self.folder / part.name).mkdir(exist_ok=True)
            for file in part.iterdir():
                os.replace(file, self.folder / part.name / file.name)


def write_text(path: Path, text: str) -> None:
    """A text file in UTF-8, whole or not at all, compressed where its name ends in .gz."""
    with write_stream(path) as raw:
        raw.write(text.encode())


@contextmanager
def write_stream(path: Path) -> Iterator[BinaryIO | gzip.GzipFile]:
    """A file to write bytes to, whole or not at all, compressed where its name ends in .gz."""
    with replacing(path) as raw:
        if path.suffix != ".gz":
            yield raw
            return
        with gzip.open(raw, "wb") as packed:
            yield packed


def check_target(path: Path, source: Path | None = None) -> None:
    """Refuse a file that could not be written in the end, or that is the data itself, before any work."""
    if source is not None and path.exists() and source.exists() and path.samefile(source):
        raise PotentiaError(f"{path} is the data itself; --out needs another name.")
    if path.is_dir():
        raise PotentiaError(f"{path} is a folder; --out needs the name of a file.")
    regular(path)
    if not path.absolute().parent.is_dir():
        raise PotentiaError(f"{path} cannot be written: there is no folder {path.absolute().parent}.")
    if not os.access(path.absolute().parent, os.W_OK):
        raise PotentiaError(f"{path} cannot be written: its folder is write-protected.")


def seen_by_workers(path: Path) -> Path:
    """The path; absolute on a cluster, whose workers may be in another folder."""
    return path if current() is None else path.absolute()

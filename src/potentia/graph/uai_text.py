"""The text under UAI files: numbers in, with errors that name the file and the place, and whole files out."""

from __future__ import annotations

import os
import string
from pathlib import Path
from typing import Any

import numpy as np

from .._files import replacing
from .._options import check_type
from .._text import check_pieces, read_text
from .._types import Floats, PotentiaError

#: A file's path, as text or as a path object.
FilePath = str | os.PathLike[str]


class Tokens:
    """The words of a file, read from first to last.

    Args:
        path: the file; a name that ends in `.xz` or `.gz` is unpacked.
        limit: bytes that it may have unpacked, see `read_text`.
    """

    def __init__(self, path: FilePath, limit: int | None = None) -> None:
        check_type("path", path, str, os.PathLike)
        self.name = os.fspath(path)
        text = read_text(path, "ascii", limit)
        check_pieces(path, text, string.whitespace)
        self._words = text.split()
        self._at = 0

    def __len__(self) -> int:
        """Number of words not read yet."""
        return len(self._words) - self._at

    def error(self, what: str) -> PotentiaError:
        """An error that names the file."""
        return PotentiaError(f"{self.name}: {what}.")

    def take(self, n: int, what: str) -> list[str]:
        """The next n words, which are `what`."""
        if len(self) < n:
            raise self.error(f"the file ends early: {what} needs {n} entries, {len(self)} are left")
        self._at += n
        return self._words[self._at - n : self._at]

    def integers(self, n: int, what: str) -> list[int]:
        """The next n words as whole numbers of at least zero."""
        words = self.take(n, what)
        for word in words:
            if not (word.isascii() and word.isdigit() and len(word) < 19):
                raise self.error(f"{what} should be a whole number, not {word[:40]!r}")
        return [int(word) for word in words]

    def integer(self, what: str) -> int:
        """The next word as a whole number of at least zero."""
        return self.integers(1, what)[0]

    def floats(self, n: int, what: str) -> Floats:
        """The next n words as numbers."""
        words = self.take(n, what)
        try:
            if "_" in "".join(words):  # Python reads 1_000 as a number; the format does not
                raise ValueError
            return np.array([float(word) for word in words])
        except ValueError:
            bad = next(word for word in words if not _is_number(word))
            raise self.error(f"{what} holds {bad[:40]!r}, which is not a number") from None

    def finish(self) -> None:
        """Refuse anything that is left."""
        if len(self):
            raise self.error(
                f"{len(self)} entries follow the end of the data, first {self._words[self._at][:40]!r}"
            )


def _is_number(word: str) -> bool:
    try:
        return "_" not in word and float(word) is not None
    except ValueError:
        return False


def write_whole(path: FilePath, text: str) -> None:
    """Write a file, whole or not at all; one whose name ends in `.xz` is compressed."""
    check_type("path", path, str, os.PathLike)
    target, data = Path(path), text.encode("ascii")
    if target.suffix == ".xz":
        import lzma

        data = lzma.compress(data)
    with replacing(target) as file:
        file.write(data)


def numbers(values: Any, digits: str = ".12g") -> str:
    """Values separated by blanks."""
    return " ".join(format(value, digits) for value in np.asarray(values).tolist())

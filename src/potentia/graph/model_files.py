"""What readers and writers of model files share: words of a file, factors within limits, tables of a graph."""

from __future__ import annotations

import math
import os
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..base.files import check_pieces, read_text, replacing
from ..base.resources import check_memory
from ..base.types import ArrayLike, Floats, Ints, PotentiaError, check_type, is_number
from .factors import join_factors
from .scores import Scores
from .structure import Graph

#: A file's path, as text or as a path object.
FilePath = str | os.PathLike[str]
#: Entries of all tables of a file together, written out.
_MAX_ENTRIES = 2**28


class FileWords:
    """The words of a file, read from first to last.

    Args:
        path: the file; a name that ends in `.xz` or `.gz` is unpacked.
        limit: bytes that it may have unpacked, see `read_text`.
        word: a pattern of words; empty for what blanks separate.
        comment: a pattern of what counts as a blank.
    """

    def __init__(
        self, path: FilePath, limit: int | None = None, encoding: str = "ascii", word: str = "", comment: str = ""
    ) -> None:
        check_type("path", path, str, os.PathLike)
        self.name = os.fspath(path)
        text = read_text(path, encoding, limit)
        if comment:
            text = re.sub(comment, " ", text, flags=re.DOTALL)
        check_pieces(path, text, string.whitespace)
        self._words: list[str] = re.findall(word, text) if word else text.split()
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

    def next(self, expected: str = "") -> str:
        """The next word, which must be `expected` if that is given."""
        word = self.take(1, repr(expected) if expected else "the model")[0]
        if expected and word != expected:
            raise self.error(f"{expected!r} is expected instead of {word[:40]!r}")
        return word

    def integers(self, n: int, what: str) -> list[int]:
        """The next n words as whole numbers of at least zero."""
        return self.whole(self.take(n, what), what)

    def whole(self, words: list[str], what: str) -> list[int]:
        """Words as whole numbers of at least zero."""
        for word in words:
            if not (word.isascii() and word.isdigit() and len(word) < 19):
                raise self.error(f"{what} should be a whole number, not {word[:40]!r}")
        return [int(word) for word in words]

    def signed(self, what: str) -> int:
        """The next word as a whole number of either sign."""
        word = self.take(1, what)[0]
        number = self.whole([word.removeprefix("-")], what)[0]
        return -number if word[0] == "-" else number

    def integer(self, what: str) -> int:
        """The next word as a whole number of at least zero."""
        return self.integers(1, what)[0]

    def numbers(self, words: list[str], what: str) -> Floats:
        """Words as numbers."""
        try:
            if "_" in "".join(words):  # Python reads 1_000 as a number; the format does not
                raise ValueError
            return np.array([float(word) for word in words])
        except ValueError:
            bad = next(word for word in words if not is_number(word))
            raise self.error(f"{what} holds {bad[:40]!r}, which is not a number") from None

    def masses(self, words: list[str], what: str) -> Floats:
        """Words as finite numbers of at least zero."""
        values = self.numbers(words, what)
        bad = values[~((values >= 0) & (values < np.inf))]
        if len(bad):
            raise self.error(f"{what} holds {bad[0]}; probabilities must be finite and not negative")
        return values

    def listed(self, count: str, what: str, width: int = 1) -> list[int]:
        """Whole numbers after their number (of groups of `width`)."""
        return self.integers(width * self.integer(count), what)

    def check_scope(self, scope: Sequence[int], n: int, what: str) -> None:
        """Refuse a scope that is none of a model of n variables."""
        if scope and max(scope) >= n:
            raise self.error(f"{what} names variable {max(scope)}; the model has 0..{n - 1}")
        if len(scope) > 64:
            raise self.error(f"{what} joins {len(scope)} variables; at most 64 are supported")
        if len(set(scope)) < len(scope):
            raise self.error(f"{what} names a variable twice in its scope {list(scope)}")

    def finish(self) -> None:
        """Refuse anything that is left."""
        if len(self):
            raise self.error(f"{len(self)} entries follow the end of the data, first {self._words[self._at][:40]!r}")


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


class Model(NamedTuple):
    """A graph, its scores, and the names of variables and states where the file has them (else empty)."""

    graph: Graph
    theta: dict[str, Floats | list[Floats]]
    variables: list[str]
    states: list[list[str]]


class Factors:
    """Factors of a file as they are read, within limits that hold before tables are made.

    Args:
        words: the file. n_states: states of every variable.
    """

    def __init__(self, words: FileWords, n_states: Sequence[int]) -> None:
        self.words, self.n_states = words, list(n_states)
        if 0 in self.n_states or not self.n_states:
            v = f"variable {self.n_states.index(0)} has 0 states" if self.n_states else "the model has no variables"
            raise words.error(v)
        self._factors: list[tuple[list[int], Floats]] = []
        self._entries = 0

    def new_table(self, scope: Sequence[int], value: float, what: str) -> Floats:
        """A table of the scope's states, filled with a value, after checks of scope and size."""
        self.words.check_scope(scope, len(self.n_states), what)
        shape = tuple(self.n_states[v] for v in scope)
        self._entries += math.prod(shape)
        if self._entries > _MAX_ENTRIES:
            raise self.words.error(f"with {what} the tables have more than 2^28 entries")
        check_memory(32.0 * self._entries, f"{self.words.name}: {what}", "use a smaller model")
        return np.full(shape, value)

    def add(self, scope: Sequence[int], table: Floats) -> None:
        """Take a table of scores."""
        self._factors.append((list(scope), table))

    def model(self, variables: Sequence[str] = (), states: Sequence[list[str]] = ()) -> Model:
        """The model of all tables."""
        return Model(*join_factors(self._factors, self.n_states), list(variables), list(states))


def log_of(table: Floats) -> Floats:
    """Natural logarithms, -inf of zero."""
    with np.errstate(divide="ignore"):
        return np.log(table)


def tables_of(graph: Graph, theta: Mapping[str, ArrayLike]) -> Iterator[tuple[Ints, Floats]]:
    """Scope and score table of every region."""
    scores = Scores(graph, theta)
    for r in range(int(scores.regions.kind_ptr[-1])):
        scope = scores.regions.scope[scores.regions.scope_ptr[r] : scores.regions.scope_ptr[r + 1]]
        yield scope.astype(np.int64), scores.table(r)

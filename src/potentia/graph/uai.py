"""Files of the UAI format: models and evidence as graphs and scores, and results of inference."""

from __future__ import annotations

import math
import os
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..base.files import check_pieces, read_text, replacing
from ..base.resources import check_memory
from ..base.types import ArrayLike, Floats, InfeasibleError, Ints, PotentiaError, check_choice, check_type, shown
from .factors import join_factors
from .regions import Narrow
from .scores import Scores
from .structure import Graph

#: A file's path, as text or as a path object.
FilePath = str | os.PathLike[str]


class FileWords:
    """The words of a file, read from first to last.

    Args:
        path: the file; a name that ends in `.xz` or `.gz` is unpacked.
        limit: bytes that it may have unpacked, see `read_text`.
        comment: what begins a comment, to the end of the line; empty for none.
    """

    def __init__(self, path: FilePath, limit: int | None = None, comment: str = "") -> None:
        check_type("path", path, str, os.PathLike)
        self.name = os.fspath(path)
        text = read_text(path, "ascii", limit)
        if comment and comment in text:
            text = "\n".join(line.partition(comment)[0] for line in text.splitlines())
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

    def floats(self, n: int, what: str) -> Floats:
        """The next n words as numbers."""
        return self.numbers(self.take(n, what), what)

    def numbers(self, words: list[str], what: str) -> Floats:
        """Words as numbers."""
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
            raise self.error(f"{len(self)} entries follow the end of the data, first {self._words[self._at][:40]!r}")


def _is_number(word: str) -> bool:
    """Whether a word is a number, without underscores."""
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


# exp of anything in between is a normal double
_LARGEST_SCORE = 700.0


def read(path: FilePath, limit: int | None = None) -> tuple[Graph, dict[str, Floats | list[Floats]]]:
    """The graph and scores (natural logarithms of the tables) of a MARKOV or BAYES file, `.xz` and `.gz` included.

    Kinds are "node", "edge", "clique3", "clique4", ... as they occur; variables of a scope ascend. Factors of
    the same variables in any order become one; factors without variables go into the first table, so that
    log Z is the file's. A kind's scores are one array (n_regions, *states), or a list where states differ. limit: bytes
    that a compressed file may have unpacked; None for POTENTIA_READ_LIMIT, or 256 MiB.
    """
    tokens = FileWords(path, limit)
    n_states, factors = _read_factors(tokens)
    return join_factors(factors, n_states)


def _read_factors(tokens: FileWords) -> tuple[list[int], list[tuple[list[int], Floats]]]:
    """State counts, and scopes with their log tables."""
    preamble = tokens.take(1, "the preamble")[0]
    if preamble.upper() not in ("MARKOV", "BAYES"):
        raise tokens.error(f"the preamble is {preamble[:40]!r}; only MARKOV and BAYES are known")
    n = tokens.integer("the number of variables")
    if n == 0:
        raise tokens.error("the model has no variables")
    n_states = tokens.integers(n, "the list of state counts")
    if min(n_states) == 0:
        raise tokens.error(f"variable {n_states.index(0)} has 0 states")
    n_factors = tokens.integer("the number of factors")
    scopes = [_read_scope(tokens, f, n) for f in range(n_factors)]
    factors = [(scope, _read_table(tokens, f, tuple(n_states[v] for v in scope))) for f, scope in enumerate(scopes)]
    tokens.finish()
    return n_states, factors


def _read_scope(tokens: FileWords, f: int, n: int) -> list[int]:
    """The variables of factor f, checked against the n variables of the model."""
    scope = tokens.integers(tokens.integer(f"the size of the scope of factor {f}"), f"the scope of factor {f}")
    if scope and max(scope) >= n:
        raise tokens.error(f"factor {f} names variable {max(scope)}; the model has 0..{n - 1}")
    if len(scope) > 64:
        raise tokens.error(f"factor {f} joins {len(scope)} variables; at most 64 are supported")
    if len(set(scope)) < len(scope):
        raise tokens.error(f"factor {f} names a variable twice in its scope {scope}")
    return scope


def _read_table(tokens: FileWords, f: int, shape: tuple[int, ...]) -> Floats:
    """log of the table of factor f; all of it must be finite and not negative."""
    what = f"the table of factor {f}"
    size = tokens.integer(f"the size of {what}")
    if size != math.prod(shape):
        raise tokens.error(f"{what} has {size} entries; its variables need {math.prod(shape)}")
    table = tokens.floats(size, what).reshape(shape)
    if not np.all((table >= 0) & (table < np.inf)):
        bad = table[~((table >= 0) & (table < np.inf))][0]
        raise tokens.error(f"{what} holds {bad}; probabilities must be finite and not negative")
    if not table.any():
        raise InfeasibleError(f"{tokens.name}: {what} is all zero, which forbids everything.")
    with np.errstate(divide="ignore"):
        return np.log(table)


def read_evidence(path: FilePath) -> dict[int, int]:
    """Observed states {variable: state} of an evidence file.

    Two layouts are in use: `count variable state ...`, and the older one with the number of evidence sets
    (which must be 1) before it. The number of entries is odd in one and even in the other: no file fits both.
    """
    tokens = FileWords(path)
    if len(tokens) % 2 == 0 and len(tokens):
        n_sets = tokens.integer("the number of evidence sets")
        if n_sets != 1:
            raise tokens.error(f"the file starts with {n_sets}, which fits neither layout of one set of evidence")
    count = tokens.integer("the number of observed variables")
    pairs = tokens.integers(2 * count, "the list of observed variables and states")
    tokens.finish()
    evidence: dict[int, int] = {}
    for variable, state in zip(pairs[::2], pairs[1::2], strict=True):
        if evidence.setdefault(variable, state) != state:
            raise tokens.error(f"variable {variable} is observed in two states, {evidence[variable]} and {state}")
    return evidence


def read_query(path: FilePath) -> Ints:
    """Variables of a marginal MAP query: their number, then themselves."""
    tokens = FileWords(path)
    query = tokens.integers(tokens.integer("the number of variables"), "the list of variables")
    tokens.finish()
    if len(set(query)) < len(query):
        raise tokens.error("a variable is named twice")
    return np.array(query, dtype=np.int64)


def write(path: FilePath, graph: Graph, theta: Mapping[str, ArrayLike]) -> None:
    """Write a graph and its scores as a MARKOV file (`.xz` compresses), all at once or not at all.

    Tables hold exp of the scores. A table with scores beyond +-700 is shifted to fit, and the shifts become
    factors without variables, so log Z is kept; a table whose finite scores span more than 1400 is refused.
    Kinds are not named in the file: reading gives "node", "edge", "clique3", ... with equal scopes merged.
    """
    scores = Scores(graph, theta)
    lines, tables = [], []
    shift = 0.0
    for i in range(int(scores.regions.kind_ptr[-1])):
        scope = scores.regions.scope[scores.regions.scope_ptr[i] : scores.regions.scope_ptr[i + 1]]
        table, moved = _fit(scores.table(i), scope)
        shift += moved
        lines.append(f"{len(scope)} {numbers(scope, 'd')}")
        tables.append(f"{table.size}\n{numbers(np.exp(table).ravel(), '')}")
    if abs(shift) > 1e6 * _LARGEST_SCORE:
        raise PotentiaError(f"scores theta sum to a constant of {shift:.3g}, which a UAI file cannot hold.")
    parts = math.ceil(abs(shift) / _LARGEST_SCORE)
    lines += ["0"] * parts
    tables += [f"1\n{math.exp(shift / parts)}" for _ in range(parts)]
    head = ["MARKOV", str(graph.n_variables), numbers(graph.n_states, "d"), str(len(lines))]
    write_whole(path, "\n".join([*head, *lines, "", *tables, ""]))


def _fit(table: Floats, scope: Narrow) -> tuple[Floats, float]:
    """A score table moved to where its exp is a normal double, and by how much it was lowered."""
    finite = table[table > -np.inf]
    low, high = float(finite.min()), float(finite.max())
    if low >= -_LARGEST_SCORE and high <= _LARGEST_SCORE:
        return table, 0.0
    if high - low > 2 * _LARGEST_SCORE:
        raise PotentiaError(
            f"the scores theta of variables {scope.tolist()} span {high - low:.6g}; a UAI file can hold a span of "
            f"{2 * _LARGEST_SCORE:g} within one table."
        )
    middle = (low + high) / 2
    return table - middle, middle


# -- results -------------------------------------------------------------------------------------------------


class UaiResult(NamedTuple):
    """The content of a result file; fields that its task does not write are None.

    Attributes:
        task: "PR", "MAR", "MAP" or "MMAP".
        log10_partition: log10 Z.
        marginals: marginal of every variable, (n_variables, max states), zero beyond its states.
        labels: the best labelling, (n_variables,); of MMAP, of the query.
        query: variables of the query of MMAP.
    """

    task: str
    log10_partition: float | None = None
    marginals: Floats | None = None
    labels: Ints | None = None
    query: Ints | None = None


def write_result(path: FilePath, result: Any, task: str) -> None:
    """Write a `Result`, all at once or not at all; the task is PR (log10 Z), MAR (marginals), MAP (labels) or MMAP.

    MMAP is the labels of the variables whose label in `argmax()` is not -1, each after its variable.
    """
    if not hasattr(result, "variable_marginals"):
        raise PotentiaError(f"result must be a Result of inference, not {shown(result)}.")
    check_choice("task", task, ("PR", "MAR", "MAP", "MMAP"))
    n_states = result.graph.n_states
    if task == "PR":
        body = repr(result.log_partition / math.log(10.0))
    elif task == "MAR":
        rows = zip(n_states, result.variable_marginals, strict=True)
        body = " ".join([str(len(n_states)), *(f"{n} {numbers(row[:n])}" for n, row in rows)])
    elif task == "MMAP":
        labels = result.argmax()
        query = np.flatnonzero(labels >= 0)
        body = f"{len(query)} {numbers(np.stack([query, labels[query]], axis=1).ravel(), 'd')}"
    else:
        body = f"{len(n_states)} {numbers(result.argmax(), 'd')}"
    write_whole(path, f"{task}\n{body}\n")


def read_result(path: FilePath) -> UaiResult:
    """Read a PR, MAR, MAP or MMAP file."""
    tokens = FileWords(path)
    task = tokens.take(1, "the task")[0]
    if task == "PR":
        result = UaiResult(task, log10_partition=float(tokens.floats(1, "log10 Z")[0]))
    elif task == "MAR":
        n = tokens.integer("the number of variables")
        rows = [tokens.floats(tokens.integer(f"the states of variable {v}"), f"marginal {v}") for v in range(n)]
        width = max((len(row) for row in rows), default=0)
        check_memory(
            8 * n * width,
            f"{tokens.name}: the table of {n} marginals of up to {width} states",
            "use a file whose variables have fewer states",
        )
        marginals = np.zeros((n, width))
        for v, row in enumerate(rows):
            marginals[v, : len(row)] = row
        result = UaiResult(task, marginals=marginals)
    elif task == "MAP":
        words = tokens.integers(tokens.integer("the number of variables"), "the labelling")
        result = UaiResult(task, labels=np.array(words, dtype=np.int64))
    elif task == "MMAP":
        pairs = np.array(
            tokens.integers(2 * tokens.integer("the number of variables"), "the labelling"), dtype=np.int64
        )
        result = UaiResult(task, labels=pairs[1::2], query=pairs[::2])
    else:
        raise tokens.error(f"the task is {task[:40]!r}; only PR, MAR, MAP and MMAP are known")
    tokens.finish()
    return result

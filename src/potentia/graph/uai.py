"""Files of the UAI format: models and evidence as graphs and scores, and results of inference."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..base.resources import check_memory
from ..base.types import ArrayLike, Floats, InfeasibleError, Ints, PotentiaError, check_choice, shown
from .factors import join_factors
from .model_files import FilePath, FileWords, log_of, numbers, tables_of, write_whole
from .structure import Graph

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
    scope = tokens.listed(f"the size of the scope of factor {f}", f"the scope of factor {f}")
    tokens.check_scope(scope, n, f"factor {f}")
    return scope


def _read_table(tokens: FileWords, f: int, shape: tuple[int, ...]) -> Floats:
    """log of the table of factor f; all of it must be finite and not negative."""
    what = f"the table of factor {f}"
    size = tokens.integer(f"the size of {what}")
    if size != math.prod(shape):
        raise tokens.error(f"{what} has {size} entries; its variables need {math.prod(shape)}")
    table = tokens.masses(tokens.take(size, what), what).reshape(shape)
    if not table.any():
        raise InfeasibleError(f"{tokens.name}: {what} is all zero, which forbids everything.")
    return log_of(table)


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
    pairs = tokens.listed("the number of observed variables", "the list of observed variables and states", 2)
    tokens.finish()
    evidence: dict[int, int] = {}
    for variable, state in zip(pairs[::2], pairs[1::2], strict=True):
        if evidence.setdefault(variable, state) != state:
            raise tokens.error(f"variable {variable} is observed in two states, {evidence[variable]} and {state}")
    return evidence


def read_query(path: FilePath) -> Ints:
    """Variables of a marginal MAP query: their number, then themselves."""
    tokens = FileWords(path)
    query = tokens.listed("the number of variables", "the list of variables")
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
    lines, tables = [], []
    shift = 0.0
    for scope, scored in tables_of(graph, theta):
        table, moved = _fit(scored, scope)
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


def _fit(table: Floats, scope: Ints) -> tuple[Floats, float]:
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
        result = UaiResult(task, log10_partition=float(tokens.numbers(tokens.take(1, "log10 Z"), "log10 Z")[0]))
    elif task == "MAR":
        n = tokens.integer("the number of variables")
        words = [tokens.take(tokens.integer(f"the states of variable {v}"), f"marginal {v}") for v in range(n)]
        rows = [tokens.numbers(row, f"marginal {v}") for v, row in enumerate(words)]
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
        labels = tokens.listed("the number of variables", "the labelling")
        result = UaiResult(task, labels=np.array(labels, dtype=np.int64))
    elif task == "MMAP":
        pairs = np.array(tokens.listed("the number of variables", "the labelling", 2), dtype=np.int64)
        result = UaiResult(task, labels=pairs[1::2], query=pairs[::2])
    else:
        raise tokens.error(f"the task is {task[:40]!r}; only PR, MAR, MAP and MMAP are known")
    tokens.finish()
    return result

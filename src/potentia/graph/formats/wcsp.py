"""Weighted constraint satisfaction problems (`.wcsp`): whole costs to be minimised; scores are minus the costs."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ...base.types import ArrayLike, Floats, PotentiaError, check_positive
from ..model_files import Factors, FilePath, FileWords, Model, tables_of, write_whole
from ..structure import Graph

#: The largest cost that the format's readers take.
_TOP = 2**62


def read(path: FilePath) -> Model:
    """The model of a problem of cost tables; costs of at least the file's upper bound are forbidden (-inf).

    Shared cost functions (a negative arity) are read; global ones (named by a word) are refused.
    """
    words = FileWords(path)
    words.take(1, "the name of the problem")
    n = words.integer("the number of variables")
    words.integer("the largest domain size")
    n_functions = words.integer("the number of cost functions")
    top = words.integer("the upper bound")
    factors = Factors(words, words.integers(n, "the domain sizes"))
    shared: list[Floats] = []
    for f in range(n_functions):
        what = f"cost function {f}"
        arity = words.signed(f"the arity of {what}")
        scope = words.integers(abs(arity), f"the scope of {what}")
        default = words.signed(f"the default cost of {what}")
        if default < 0:
            raise words.error(f"{what} is a global cost function, which cannot be read")
        count = words.signed(f"the number of tuples of {what}")
        table = factors.new_table(scope, float(default), what)
        if count < 0:
            if -count > len(shared) or shared[-count - 1].shape != table.shape:
                raise words.error(f"{what} refers to shared function {-count}, which does not exist or fit")
            table = shared[-count - 1]
        else:
            _fill(words, table, count, what)
        if arity < 0:
            shared.append(table)
        factors.add(scope, np.where(table >= top, -np.inf, -table))
    words.finish()
    return factors.model()


def _fill(words: FileWords, table: Floats, count: int, what: str) -> None:
    """Read tuples of values with a cost each."""
    width = table.ndim + 1
    rows = np.array(words.integers(count * width, f"the tuples of {what}"), dtype=np.int64).reshape(count, width)
    for axis, size in enumerate(table.shape):
        if count and rows[:, axis].max() >= size:
            raise words.error(f"{what} has a tuple with value {rows[:, axis].max()} of a variable of {size} values")
    if count:  # a function without variables has one tuple at most, which is a cost alone
        table[tuple(rows[:, :-1].T)] = rows[:, -1] if table.ndim else rows[-1, -1]


def write(path: FilePath, graph: Graph, theta: Mapping[str, ArrayLike], scale: float = 1000.0) -> None:
    """Write a graph and its scores as whole costs: round(scale * (largest score of the table - score)).

    -inf becomes the upper bound. Dropped constants make costs differ from minus the scores by a sum, and by rounding.
    """
    check_positive("scale", scale)
    tables = [(scope, np.rint(scale * (table.max() - table))) for scope, table in tables_of(graph, theta)]
    top = 1 + sum(float(costs[costs < math.inf].max(initial=0.0)) for _, costs in tables)
    if top >= _TOP:
        raise PotentiaError(f"scale = {scale:g} makes costs beyond 2^62; choose a smaller one.")
    lines = [f"potentia {graph.n_variables} {graph.n_states.max()} {len(tables)} {int(top)}"]
    lines.append(" ".join(map(str, graph.n_states)))
    for scope, costs in tables:
        whole = np.where(costs == math.inf, top, costs).astype(np.int64)
        rows = np.argwhere(whole)
        lines.append(f"{len(scope)} {' '.join(map(str, scope))} 0 {len(rows)}")
        lines += [f"{' '.join(map(str, row))} {whole[tuple(row)]}" for row in rows.tolist()]
    write_whole(path, "\n".join([*lines, ""]))

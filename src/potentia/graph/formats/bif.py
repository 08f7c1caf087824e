"""Bayesian networks in the interchange format (`.bif`): a conditional table per variable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...base.types import ArrayLike, Floats, PotentiaError
from ..model_files import Factors, FilePath, FileWords, Model, log_of, tables_of, write_whole
from ..structure import Graph

_WORD = r'"[^"]*"|[{}()\[\];,|=]|[^\s{}()\[\];,|="]+'
_COMMENT = r"//[^\n]*|/\*.*?\*/"


class _Words(FileWords):
    """The words of a file, from first to last; commas and bars count as blanks where lists are read."""

    def __init__(self, path: FilePath) -> None:
        super().__init__(path, encoding="utf-8", word=_WORD, comment=_COMMENT)
        self._words = [word.strip('"') if len(word) > 1 else word for word in self._words]

    def until(self, end: str) -> list[str]:
        """Tokens up to `end`, without commas and bars."""
        words = []
        while (token := self.next()) != end:
            if token not in (",", "|"):
                words.append(token)
        return words

    def skip(self) -> None:
        """The rest of a statement, up to a semicolon."""
        while self.next() != ";":
            pass


def read(path: FilePath) -> Model:
    """The model of a Bayesian network; scores are natural logarithms of its probabilities."""
    words = _Words(path)
    states: dict[str, list[str]] = {}
    tables: list[tuple[list[str], list[tuple[list[str], list[str]]]]] = []
    while len(words):
        keyword = words.next()
        if keyword == "network":
            while words.next() != "{":
                pass
            words.until("}")
        elif keyword == "variable":
            name = words.next()
            if states.setdefault(name, []):
                raise words.error(f"variable {name[:40]!r} is declared twice")
            states[name] = _variable(words, name)
        elif keyword == "probability":
            words.next("(")
            tables.append((words.until(")"), _entries(words)))
        else:
            raise words.error(f"{keyword[:40]!r} is not network, variable or probability")
    names = list(states)
    number = {name: v for v, name in enumerate(names)}
    factors = Factors(words, [len(states[name]) for name in names])
    for scope_names, entries in tables:
        missing = [name for name in scope_names if name not in number]
        if missing or not scope_names:
            raise words.error(f"a probability names {missing[0][:40] if missing else ''!r}, which is no variable")
        scope = [number[name] for name in scope_names]
        table = factors.new_table(scope, np.nan, f"the probability of {scope_names[0][:40]!r}")
        _fill(words, table, entries, scope_names[0], [states[name] for name in scope_names])
        factors.add(scope, log_of(table))
    return factors.model(names, [states[name] for name in names])


def _variable(words: _Words, name: str) -> list[str]:
    """The states of a variable's declaration."""
    words.next("{")
    values: list[str] = []
    while (token := words.next()) != "}":
        if token == "type":
            words.next("discrete")
            words.next("[")
            words.until("]")
            words.next("{")
            values = words.until("}")
            words.next(";")
        else:
            words.skip()
    if not values or len(set(values)) < len(values):
        raise words.error(f"variable {name[:40]!r} has no states, or one twice")
    return values


def _entries(words: _Words) -> list[tuple[list[str], list[str]]]:
    """Rows of a probability: the parents' states (["table"] for the whole table, ["default"]) and numbers."""
    words.next("{")
    entries: list[tuple[list[str], list[str]]] = []
    while (token := words.next()) != "}":
        if token == "(":
            entries.append((words.until(")"), words.until(";")))
        elif token in ("table", "default"):
            entries.append(([token], words.until(";")))
        else:
            words.skip()
    return entries


def _fill(
    words: _Words, table: Floats, entries: Sequence[tuple[list[str], list[str]]], name: str, states: list[list[str]]
) -> None:
    """Write rows into a table of (states of the variable, states of each parent)."""
    number = [{state: k for k, state in enumerate(values)} for values in states]
    for key, numbers in entries:
        values = words.masses(numbers, f"the probability of {name[:40]!r}")
        if key == ["table"]:
            if len(values) != table.size:
                raise words.error(f"the table of {name[:40]!r} has {len(values)} entries; it needs {table.size}")
            table[...] = values.reshape(table.shape)
            continue
        if len(values) != table.shape[0]:
            raise words.error(f"a row of {name[:40]!r} has {len(values)} entries; it needs {table.shape[0]}")
        if key == ["default"]:
            rows = np.isnan(table[0])
            table[:, rows] = values[:, None]
            continue
        if len(key) != table.ndim - 1 or any(k not in number[a + 1] for a, k in enumerate(key)):
            raise words.error(f"a row of {name[:40]!r} is for {key}, which are no states of its parents")
        index = tuple(number[a + 1][k] for a, k in enumerate(key))
        np.moveaxis(table, 0, -1)[index] = values
    if np.isnan(table).any():
        raise words.error(f"the probability of {name[:40]!r} is not given for every state of its parents")


def write(
    path: FilePath, graph: Graph, theta: Mapping[str, ArrayLike], variables: Sequence[str] = (),
    states: Sequence[Sequence[str]] = (),
) -> None:  # fmt: skip
    """Write a Bayesian network whose tables are conditional: each sums to one over one variable, another in each.

    Raises an error where the tables are not so, as after merging or for other graphical models; write those with
    `pt.uai.write`. variables, states: names; "x0", "x1", ... and "s0", "s1", ... without them.
    """
    names = list(variables) or [f"x{v}" for v in range(graph.n_variables)]
    values = [list(v) for v in states] or [[f"s{k}" for k in range(n)] for n in graph.n_states]
    lines = ["network unknown {", "}"]
    for v, name in enumerate(names):
        lines += [f"variable {name} {{", f"  type discrete [ {len(values[v])} ] {{ {', '.join(values[v])} }};", "}"]
    children = _children(graph, theta)
    for child, scope, table in children:
        parents = [v for v in scope if v != child]
        given = f" | {', '.join(names[v] for v in parents)}" if parents else ""
        lines.append(f"probability ( {names[child]}{given} ) {{")
        moved = np.moveaxis(table, list(scope).index(child), 0)
        for key in np.ndindex(*moved.shape[1:]):
            row = ", ".join(repr(float(p)) for p in moved[(slice(None), *key)])
            state = f"({', '.join(values[v][k] for v, k in zip(parents, key, strict=True))})" if parents else "table"
            lines.append(f"  {state} {row};")
        lines.append("}")
    write_whole(path, "\n".join([*lines, ""]))


def _children(graph: Graph, theta: Mapping[str, ArrayLike]) -> list[tuple[int, list[int], Floats]]:
    """Every table with the variable over which it sums to one, each variable once."""
    tables = [(scope.tolist(), np.exp(table)) for scope, table in tables_of(graph, theta)]
    options = [
        {v for axis, v in enumerate(scope) if np.allclose(table.sum(axis=axis), 1.0, atol=1e-6)}
        for scope, table in tables
    ]
    chosen: dict[int, int] = {}
    for number in sorted(range(len(tables)), key=lambda k: len(options[k])):
        free = options[number] - set(chosen)
        if not free:
            raise PotentiaError(
                f"the table of variables {tables[number][0]} is not conditional: it sums to one over none that is left."
            )
        chosen[min(free)] = number
    missing = sorted(set(range(graph.n_variables)) - set(chosen))
    if missing:
        raise PotentiaError(f"variable {missing[0]} has no conditional table; this is no Bayesian network.")
    return [(child, *tables[number]) for child, number in sorted(chosen.items())]

"""Cost function networks of toulbar2 (`.cfn`): JSON with decimal costs and names; scores are minus the costs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...base.files import read_text
from ...base.types import ArrayLike, Floats, PotentiaError
from ..structure import Graph
from ..uai import FilePath, write_whole
from .model import Factors, Model, tables_of

#: Quoted and bare words, and punctuation; commas are optional in the format, and comments begin with #.
_TOKEN = re.compile(r'\s*(?:#[^\n]*\s*)*("(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"#]+)')
#: Nesting of objects and lists at most.
_DEPTH = 16


class _Parser:
    """A parser of the format's relaxed JSON: words need no quotes, and commas may be missing."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.tokens = _TOKEN.findall(text)
        if len(_TOKEN.sub("", text).strip()) and not re.fullmatch(r"(?:\s*#[^\n]*)*\s*", _TOKEN.sub("", text)):
            raise self.error("the file is not in the CFN format")
        self.at = 0

    def error(self, what: str) -> PotentiaError:
        """An error that names the file."""
        return PotentiaError(f"{self.path}: {what}.")

    def next(self) -> str:
        """The next token that is not a comma."""
        while self.at < len(self.tokens) and self.tokens[self.at] == ",":
            self.at += 1
        if self.at >= len(self.tokens):
            raise self.error("the file ends early")
        self.at += 1
        token: str = self.tokens[self.at - 1]
        return token

    def value(self, depth: int = 0) -> Any:
        """An object (a list of pairs, as names may repeat), a list, or a word."""
        token = self.next()
        if depth > _DEPTH or token in "}]:":
            raise self.error(f"{token!r} is not expected there")
        if token == "[":
            items = []
            while self.peek() != "]":
                items.append(self.value(depth + 1))
            self.next()
            return items
        if token == "{":
            pairs: dict[str, Any] = {}
            while self.peek() != "}":
                name = _plain(self.next())
                if self.next() != ":":
                    raise self.error(f"a colon should follow {name[:40]!r}")
                pairs[name] = self.value(depth + 1)
            self.next()
            return pairs
        return _plain(token)

    def peek(self) -> str:
        """The next token, which is not consumed."""
        token = self.next()
        self.at -= 1
        return token


def _plain(token: str) -> str:
    """A token without its quotes."""
    return token[1:-1] if token[:1] == '"' else token


def read(path: FilePath) -> Model:
    """The model of a cost function network of cost tables; costs of at least the upper bound are forbidden (-inf).

    `mustbe` of the form ">x" means that costs are maximised. Global functions and interval variables are refused.
    """
    parser = _Parser(str(path), read_text(path, "utf-8"))
    content = parser.value()
    if not isinstance(content, dict) or not all(isinstance(content.get(k), dict) for k in ("variables", "functions")):
        raise parser.error("an object with problem, variables and functions is needed")
    problem = content.get("problem", {})
    must = problem.get("mustbe", "") if isinstance(problem, dict) else ""
    sign, top = (1.0 if must[:1] == ">" else -1.0), math.inf
    if isinstance(must, str) and must[:1] in ("<", ">") and len(must) > 1:
        top = _number(parser, must[1:], "mustbe")
    names, states = [], []
    for name, domain in content["variables"].items():
        names.append(name)
        states.append(_domain(parser, name, domain))
    if not names:
        raise parser.error("the problem has no variables")
    number = {name: v for v, name in enumerate(names)}
    factors = Factors(parser.path, [len(values) for values in states])
    tables: dict[str, Floats] = {}
    for name, function in content["functions"].items():
        if not isinstance(function, dict) or not isinstance(function.get("scope"), list) or "costs" not in function:
            raise parser.error(f"function {name[:40]!r} is not a table with a scope and costs")
        scope = [_index(parser, number, len(names), word, "variable") for word in function["scope"]]
        table = factors.new_table(scope, 0.0, f"function {name[:40]!r}")
        _fill(parser, table, function, name, [states[v] for v in scope], tables)
        tables[name] = table
        forbidden = table >= top if sign < 0 else table <= top
        factors.add(scope, np.where(forbidden, -np.inf, sign * table))
    return factors.model(names, states)


def _domain(parser: _Parser, name: str, domain: Any) -> list[str]:
    """Names of a variable's states, from a list or from their number."""
    if isinstance(domain, list) and domain and all(isinstance(value, str) for value in domain):
        return domain
    if isinstance(domain, str) and domain.isdigit() and 0 < len(domain) < 8 and int(domain):
        return [str(value) for value in range(int(domain))]
    raise parser.error(f"variable {name[:40]!r} has no list of values and no positive number of them")


def _index(parser: _Parser, number: Mapping[str, int], n: int, word: Any, what: str) -> int:
    """The number that a word names: by name, or as a number below n."""
    if isinstance(word, str) and word in number:
        return number[word]
    if isinstance(word, str) and word.isdigit() and len(word) < 10 and int(word) < n:
        return int(word)
    raise parser.error(f"{str(word)[:40]!r} is not a {what}")


def _number(parser: _Parser, word: Any, what: str) -> float:
    """A word as a number."""
    try:
        value = float(word) if isinstance(word, str) and "_" not in word else math.nan
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise parser.error(f"{what} holds {str(word)[:40]!r}, which is not a number")
    return value


def _fill(
    parser: _Parser, table: Floats, function: Mapping[str, Any], name: str, states: list[list[str]],
    tables: Mapping[str, Floats],
) -> None:  # fmt: skip
    """Costs: all of them, tuples of values with a cost each where a default cost is given, or another's by its name."""
    costs, what = function["costs"], f"function {name[:40]!r}"
    if isinstance(costs, str):
        if costs not in tables or tables[costs].shape != table.shape:
            raise parser.error(f"{what} refers to {costs[:40]!r}, which does not come before it or does not fit")
        table[...] = tables[costs]
    elif not isinstance(costs, list):
        raise parser.error(f"{what} has no list of costs")
    elif "defaultcost" not in function:
        if len(costs) != table.size:
            raise parser.error(f"{what} has {len(costs)} costs; its variables need {table.size}")
        table[...] = np.array([_number(parser, c, what) for c in costs]).reshape(table.shape)
    else:
        table[...] = _number(parser, function["defaultcost"], what)
        width = table.ndim + 1
        if len(costs) % width:
            raise parser.error(f"{what} has {len(costs)} entries, which are not tuples of {width}")
        number = [{value: k for k, value in enumerate(values)} for values in states]
        for row in range(0, len(costs), width):
            key = tuple(_index(parser, number[a], table.shape[a], costs[row + a], "value") for a in range(table.ndim))
            table[key] = _number(parser, costs[row + width - 1], what)
    if np.isnan(table).any():
        raise parser.error(f"{what} holds NaN")


def write(path: FilePath, graph: Graph, theta: Mapping[str, ArrayLike]) -> None:
    """Write a graph and minus its scores as costs; -inf becomes the upper bound."""
    tables = list(tables_of(graph, theta))
    top = 1.0
    for _, table in tables:
        finite = table[table > -np.inf]
        top += float(np.abs(finite).max(initial=0.0))
    content = {
        "problem": {"name": "potentia", "mustbe": f"<{top!r}"},
        "variables": {f"x{v}": int(k) for v, k in enumerate(graph.n_states)},
        "functions": {
            f"f{k}": {
                "scope": [f"x{v}" for v in scope],
                "costs": np.where(table == -np.inf, top, -table).ravel().tolist(),
            }
            for k, (scope, table) in enumerate(tables)
        },
    }
    write_whole(path, json.dumps(content) + "\n")

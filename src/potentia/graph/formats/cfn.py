"""Cost function networks of toulbar2 (`.cfn`): JSON with decimal costs and names; scores are minus the costs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...base.types import ArrayLike, Floats
from ..model_files import Factors, FilePath, FileWords, Model, tables_of, write_whole
from ..structure import Graph

#: Comments, quoted and bare words, and punctuation; anything else is not in the format.
_WORD = r'#[^\n]*|"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"#]+|\S'


class _Parser(FileWords):
    """A parser of the format's relaxed JSON: words need no quotes, and commas may be missing."""

    def __init__(self, path: FilePath) -> None:
        super().__init__(path, encoding="utf-8", word=_WORD)
        self._words = [word for word in self._words if word[0] not in "#,"]
        if '"' in self._words:
            raise self.error("the file is not in the CFN format: a quote is not closed")

    def content(self) -> Any:
        """Objects, lists and words: the file is JSON once words are quoted and commas stand between values."""
        pieces: list[str] = []
        for word in self._words:
            if pieces and pieces[-1] not in "[{:" and word not in "]}:":
                pieces.append(",")
            pieces.append(word if word in "{}[]:" else json.dumps(word[1:-1] if word[0] == '"' else word))
        try:
            return json.loads("".join(pieces))
        except (ValueError, RecursionError) as problem:
            raise self.error(f"the file is not in the CFN format: {str(problem).split(':')[0]}") from None


def read(path: FilePath) -> Model:
    """The model of a cost function network of cost tables; costs of at least the upper bound are forbidden (-inf).

    `mustbe` of the form ">x" means that costs are maximised. Global functions and interval variables are refused.
    """
    parser = _Parser(path)
    content = parser.content()
    if not isinstance(content, dict) or not all(isinstance(content.get(k), dict) for k in ("variables", "functions")):
        raise parser.error("an object with problem, variables and functions is needed")
    problem = content.get("problem", {})
    must = problem.get("mustbe", "") if isinstance(problem, dict) else ""
    sign, top = (1.0 if must[:1] == ">" else -1.0), math.inf
    if isinstance(must, str) and must[:1] in ("<", ">") and len(must) > 1:
        top = float(_costs(parser, [must[1:]], "mustbe")[0])
    names, states = [], []
    for name, domain in content["variables"].items():
        names.append(name)
        states.append(_domain(parser, name, domain))
    number = {name: v for v, name in enumerate(names)}
    factors = Factors(parser, [len(values) for values in states])
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


def _costs(parser: _Parser, words: list[Any], what: str) -> Floats:
    """Words as numbers."""
    values = parser.numbers([word if isinstance(word, str) else str(word)[:40] for word in words], what)
    if np.isnan(values).any():
        raise parser.error(f"{what} holds NaN")
    return values


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
        table[...] = _costs(parser, costs, what).reshape(table.shape)
    else:
        table[...] = _costs(parser, [function["defaultcost"]], what)[0]
        width = table.ndim + 1
        if len(costs) % width:
            raise parser.error(f"{what} has {len(costs)} entries, which are not tuples of {width}")
        number = [{value: k for k, value in enumerate(values)} for values in states]
        for row in range(0, len(costs), width):
            key = tuple(_index(parser, number[a], table.shape[a], costs[row + a], "value") for a in range(table.ndim))
            table[key] = _costs(parser, costs[row + width - 1 : row + width], what)[0]


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

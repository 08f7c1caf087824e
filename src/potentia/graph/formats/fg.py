"""Factor graphs of libDAI (`.fg`): tables of nonzero entries, the first variable's state changing fastest."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...base.types import ArrayLike
from ..model_files import Factors, FilePath, FileWords, Model, log_of, tables_of, write_whole
from ..structure import Graph


def read(path: FilePath) -> Model:
    """The model of a factor graph; scores are natural logarithms of its entries, variables those it numbers."""
    words = FileWords(path, comment=r"#[^\n]*")
    n_factors = words.integer("the number of factors")
    blocks = []
    for f in range(min(n_factors, len(words) + 1)):
        order = words.integer(f"the number of variables of factor {f}")
        scope = words.integers(order, f"the variables of factor {f}")
        card = words.integers(order, f"the states of factor {f}")
        count = words.integer(f"the number of entries of factor {f}")
        pairs = words.take(2 * count, f"the entries of factor {f}")
        blocks.append((scope, card, pairs))
    words.finish()
    if len(blocks) < n_factors:
        raise words.error(f"the file ends early: {n_factors} factors are announced")
    factors = Factors(words, _states(words, blocks))
    for f, (scope, _, pairs) in enumerate(blocks):
        table = factors.new_table(scope, 0.0, f"factor {f}")
        flat = table.T.reshape(-1).copy()
        index = words.whole(pairs[::2], f"an index of factor {f}")
        values = words.masses(pairs[1::2], f"factor {f}")
        if index and max(index) >= flat.size:
            raise words.error(f"factor {f} has an entry {max(index)}; its table has 0..{flat.size - 1}")
        flat[index] = values
        factors.add(scope, log_of(flat.reshape(table.T.shape).T))
    return factors.model()


def _states(words: FileWords, blocks: list[tuple[list[int], list[int], list[str]]]) -> list[int]:
    """States of the variables 0..n-1; those that no factor has get one state."""
    card: dict[int, int] = {}
    for f, (scope, states, _) in enumerate(blocks):
        for v, k in zip(scope, states, strict=True):
            if k < 1 or card.setdefault(v, k) != k:
                raise words.error(f"factor {f} gives variable {v} {k} states, which differs from another or is 0")
    n = max(card, default=-1) + 1
    if n > 16 * len(card) + 1024:
        raise words.error(f"variables are numbered up to {n - 1}, but only {len(card)} have factors")
    return [card.get(v, 1) for v in range(n)]


def write(path: FilePath, graph: Graph, theta: Mapping[str, ArrayLike]) -> None:
    """Write a graph and exp of its scores, all at once or not at all."""
    blocks = []
    for scope, table in tables_of(graph, theta):
        flat = np.exp(table).T.reshape(-1)
        rows = [f"{k} {float(flat[k])!r}" for k in np.flatnonzero(flat).tolist()]
        head = [str(len(scope)), " ".join(map(str, scope)), " ".join(map(str, table.shape)), str(len(rows))]
        blocks.append("\n".join([*head, *rows]))
    write_whole(path, "\n\n".join([str(len(blocks)), *blocks]) + "\n")

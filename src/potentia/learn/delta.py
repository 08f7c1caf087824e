"""What a wrong labelling costs in training: Delta(y) per region, which decomposes as scores do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .._types import Floats, Ints, PotentiaError
from ..data.example import Example
from .part import Part


class Hamming:
    """1 for every wrong state of a labelled variable, (N, K), made on demand."""

    def __init__(self, targets: Ints, n_states: int) -> None:
        self._targets, self.shape = targets, (len(targets), n_states)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Floats:
        targets = self._targets[rows]
        wrong = np.ones((len(targets), self.shape[1]))
        known = np.flatnonzero(targets >= 0)
        wrong[known, targets[known]] = 0.0
        wrong[targets < 0] = 0.0
        return wrong


def delta_tables(part: Part, delta: Any) -> dict[str, Any]:
    """Delta per kind (N, K), None if it is zero: Hamming on single-variable kinds, or a user's."""
    if delta != "hamming":
        return own_delta(part, delta)
    return {
        kind: Hamming(part.targets[kind], shape[0]) if len(shape) == 1 else None
        for kind, shape in part.shapes.items()
    }


def own_delta(data: Part, delta: Callable[[Example], Mapping[str, Any]] | None) -> dict[str, Floats | None]:
    """A user's Delta of all examples, per kind (N, K); None for a kind that it never names."""
    if delta is None:
        return dict.fromkeys(data.shapes)
    given = [_checked_delta(delta(example), example, data.shapes) for example in data.examples]
    found: dict[str, Floats | None] = {}
    for kind, shape in data.shapes.items():
        if not any(kind in own for own in given):
            found[kind] = None
            continue
        parts = [np.zeros((0, data.n_outputs(kind)))]
        for own, example, kept in zip(given, data.examples, data.kept, strict=True):
            table = own.get(kind, np.zeros((len(example.graph.scopes.get(kind, ())), *shape)))
            rows = slice(None) if kept is None else kept.get(kind, slice(None))
            parts.append(table[rows].reshape(-1, data.n_outputs(kind)))
        found[kind] = np.concatenate(parts)
    return found


def _checked_delta(tables: Any, example: Example, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Floats]:
    """What a user's Delta returned for an example, as finite tables of its regions."""
    if not isinstance(tables, Mapping):
        raise PotentiaError(f"delta must return {{kind: table}}, not a {type(tables).__name__}.")
    if example.labels is None or np.any(example.labels < 0):
        raise PotentiaError("a custom delta requires examples without hidden labels.")
    scopes, found = example.graph.scopes, {}
    for kind, given in tables.items():
        if kind not in scopes or kind not in shapes:
            raise PotentiaError(f"delta names kind {kind!r}, but the graph has {', '.join(scopes)}.")
        table, shape = np.asarray(given, dtype=float), (len(scopes[kind]), *shapes[kind])
        if table.shape != shape or not np.all(np.isfinite(table)):
            got = "one that is not finite" if table.shape == shape else str(table.shape)
            raise PotentiaError(f"delta must give a finite table of shape {shape} for {kind!r}, not {got}.")
        found[kind] = table
    return found

"""Facts about examples, and checks of them, before they are gathered into parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .._types import Bools, PotentiaError
from ..data.example import Example
from ..data.parts import Examples, Parts
from ..graph.induced import induced
from ..graph.structure import Graph
from ..potentials.base import Potential


def list_examples(examples: Any) -> Examples:
    """A list of at least one example, or parts as they are, or a sentence about what was given."""
    if isinstance(examples, Parts):
        return examples
    if not np.iterable(examples):
        raise PotentiaError(f"examples must be a list of Example, not one {type(examples).__name__}.")
    found = list(checked_examples(examples))
    if not found:
        raise PotentiaError("there are no examples.")
    return found


def checked_examples(examples: Iterable[Any]) -> Iterator[Example]:
    """The examples one by one; refuses anything else."""
    for number, example in enumerate(examples):
        if not isinstance(example, Example):
            raise PotentiaError(f"examples[{number}] is a {type(example).__name__}, not an Example.")
        yield example


def observed(example: Example) -> Bools:
    """Variables with a label and a positive weight."""
    labels = np.full(example.graph.n_variables, -1) if example.labels is None else example.labels
    return labels >= 0 if example.weights is None else (labels >= 0) & (example.weights > 0)


def table_entries(graph: Graph, example: Example) -> int:
    """Table entries of an example; a kind without features has one table, and only messages along its sides."""
    varied = {*example.features, *example.inputs}
    key = "table_entries", tuple(sorted(varied))

    def count() -> int:
        total = 0
        for kind, scope in graph.scopes.items():
            if len(scope):
                shapes = graph.table_shapes(kind)
                total += int((shapes.prod(axis=1) if kind in varied else shapes.sum(axis=1)).sum())
        return total

    return graph.cached(key, count)


def whole_kinds(potentials: Mapping[str, Potential]) -> frozenset[str]:
    """The kinds whose potentials read inputs of whole examples."""
    return frozenset(kind for kind, potential in potentials.items() if potential.unit == "example")


def one_shape(kind: str, graphs: Iterable[Graph]) -> tuple[int, ...]:
    """The table shape that all regions of a kind share: what a common function needs."""
    found = {graph.shared_shape(kind) for graph in graphs if len(graph.scopes.get(kind, ()))}
    if not found:
        raise PotentiaError(f"no example has a region of kind {kind!r} to train its potential on.")
    shape = found.pop()
    if found or shape is None:
        raise PotentiaError(
            f"regions of kind {kind!r} have tables of different shapes; use one kind per shape."
        )
    return shape


def check_kinds(name: str, example: Example, kinds: Sequence[str]) -> None:
    """Refuse an example with regions of a kind without potential."""
    missing = [k for k, s in example.graph.scopes.items() if len(s) and k not in kinds]
    if missing:
        raise PotentiaError(
            f"{name} has regions of kind {missing[0]!r}, but there is no potential for that kind."
        )


def restricted(example: Example) -> tuple[Graph, dict[str, Any] | None]:
    """The graph of the labelled variables, and the rows that are left of each kind; None if all are labelled."""
    keep = observed(example)
    if keep.all():
        return example.graph, None
    graph, rows = induced(example.graph, keep)
    return graph, {kind: np.flatnonzero(own) for kind, own in rows.items()}

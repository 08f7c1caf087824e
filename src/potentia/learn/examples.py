"""Facts about examples and checks of them, before they are gathered into parts; shards, and tables of Delta."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from ..base.types import Bools, Floats, Ints, PotentiaError, real_numbers
from ..features.example import Example
from ..features.parts import Examples, Parts
from ..gradients.entry import class_factors
from ..graph.structure import Graph, per_graph
from ..graph.union import Union, induced
from ..potentials.base import Potential

if TYPE_CHECKING:
    from .part import Part


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
    return _table_entries(graph, frozenset({*example.features, *example.inputs}))


@per_graph
def _table_entries(graph: Graph, varied: frozenset[str]) -> int:
    total = 0
    for kind, scope in graph.scopes.items():
        if len(scope):
            shapes = graph.table_shapes(kind)
            total += int((shapes.prod(axis=1) if kind in varied else shapes.sum(axis=1)).sum())
    return total


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


#: Table entries of a shard: training holds the tables of one shard per thread, and they should stay in the cache.
SHARD_ENTRIES = 200_000

#: Unions in use, so that equal graphs share one and its layout.
_unions: WeakValueDictionary[tuple[str, ...], Union] = WeakValueDictionary()
#: The latest ones, for the next fit or prediction, up to this many variables, whose layouts take about 50 MB.
_latest: list[Union] = []
_MAX_VARIABLES = 100_000


@dataclass(eq=False)
class Shard:
    """Some examples as one graph; its regions of a kind are rows `rows[kind]` of the part."""

    union: Union
    rows: dict[str, slice]
    labels: Ints
    weights: Floats | None

    @property
    def graph(self) -> Graph:
        """The disjoint union of the shard's examples; shards of equal graphs share it."""
        return self.union.graph


def cut_shards(examples: Sequence[Example], graphs: Sequence[Graph], drop_hidden: bool) -> list[Shard]:
    """Consecutive examples until a shard's tables would exceed SHARD_ENTRIES.

    graphs: the variables and regions of each example that take part; under `drop_hidden` those that are observed.
    """
    groups: list[list[int]] = []
    room = 0
    for i, graph in enumerate(graphs):
        size = table_entries(graph, examples[i])
        if not groups or size > room:
            groups.append([])
            room = SHARD_ENTRIES
        groups[-1].append(i)
        room -= size
    weighted = any(e.weights is not None for e in examples)
    shards, first = [], dict.fromkeys((kind for graph in graphs for kind in graph.scopes), 0)
    for group in groups:
        members, union = [examples[i] for i in group], shared_union([graphs[i] for i in group])
        rows = {}
        for kind, scope in union.graph.scopes.items():
            rows[kind] = slice(first[kind], first[kind] + len(scope))
            first[kind] += len(scope)
        labels = [np.full(e.graph.n_variables, -1) if e.labels is None else e.labels for e in members]
        weights = [np.ones(e.graph.n_variables) if e.weights is None else e.weights for e in members]
        own = _joined(members, weights, drop_hidden) if weighted else None
        shards.append(Shard(union, rows, _joined(members, labels, drop_hidden), own))
    return shards


def _joined(examples: Sequence[Example], values: Sequence[Any], drop_hidden: bool) -> Any:
    """Values of the examples' variables that take part."""
    pairs = zip(examples, values, strict=True)
    return np.concatenate([own[observed(e)] if drop_hidden else own for e, own in pairs])


def shared_union(graphs: Sequence[Graph]) -> Union:
    """The union of graphs; of equal lists of graphs there is one, with one layout, while any of them is in use."""
    key = tuple(graph.digest for graph in graphs)
    found = _unions.get(key)
    if found is None:
        found = _unions[key] = Union(graphs)
        ahead = [found, *_latest]
        sizes = np.cumsum([union.graph.n_variables for union in ahead])
        _latest[:] = ahead[: int(np.searchsorted(sizes, _MAX_VARIABLES, side="right"))]
    return found


def region_targets(kind: str, shards: Sequence[Shard]) -> Ints:
    """Index of the true configuration of every region of a kind, -1 where one of its variables is hidden."""
    parts = [np.zeros(0, dtype=np.int64)]
    for shard in shards:
        if len(shard.graph.scopes.get(kind, ())):
            index = shard.graph.table_index(kind, np.maximum(shard.labels, 0))
            hidden = (shard.labels[shard.graph.scopes[kind]] < 0).any(axis=1)
            parts.append(np.where(hidden, -1, index))
    return np.concatenate(parts)


def region_weights(kind: str, shards: Sequence[Shard]) -> Floats:
    """The weight of every region of a kind: the mean over its variables."""
    parts = [
        (np.ones(shard.graph.n_variables) if shard.weights is None else shard.weights)[
            shard.graph.scopes[kind]
        ].mean(axis=1)
        for shard in shards
        if len(shard.graph.scopes.get(kind, ()))
    ]
    return np.concatenate(parts)


def class_weighted(examples: Sequence[Example], class_weight: Sequence[float] | None) -> Sequence[Example]:
    """The examples with every variable's weight multiplied by that of its label.

    They may have fewer states than there are class weights, as part of a data set.
    """
    if class_weight is None:
        return examples
    states = max((int(e.graph.n_states.max()) for e in examples), default=1)
    table = class_factors(class_weight, max(states, real_numbers(class_weight, "class_weight").size))
    weighted = []
    for e in examples:
        own = np.ones(e.graph.n_variables) if e.weights is None else e.weights
        factor = 1.0 if e.labels is None else np.where(e.labels >= 0, table[np.maximum(e.labels, 0)], 1.0)
        weighted.append(Example(e.graph, e.features, e.labels, own * factor, e.name, e.inputs))
    return weighted


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

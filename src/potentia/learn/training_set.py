"""Examples as a learner wants them: features and targets of each kind in one piece, graphs in shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._types import Bools, Floats, Ints, PotentiaError
from ..data.example import Example
from ..graph.induced import induced
from ..graph.scores import table_index
from ..graph.structure import Graph
from ..graph.union import Union

#: Table entries of a shard: training holds the tables of one shard per thread, and they should stay in the cache.
SHARD_ENTRIES = 200_000


@dataclass(eq=False)
class Shard:
    """Some examples as one graph; its regions of a kind are rows `rows[kind]` of the whole set."""

    union: Union
    rows: dict[str, slice]
    labels: Ints

    @property
    def graph(self) -> Graph:
        """The disjoint union of the shard's examples."""
        return self.union.graph


@dataclass(eq=False)
class TrainingSet:
    """Rows of all examples per kind, and the shards they belong to.

    Attributes:
        examples: those that take part; under `drop_hidden` one without any label does not.
        kept: per example the numbers of its regions that take part, per kind, or None for all.
        shards: consecutive examples joined into unions of bounded size.
        features: per kind (N, d), dense or sparse, or None where the kind has none.
        shapes: per kind the table shape of its regions.
        targets: per kind the index of the true configuration, (N,); -1 where a variable of it is hidden.
        weights: per kind the weight of each region, the mean over its variables, or None where all are 1.
    """

    examples: list[Example]
    kept: list[dict[str, Any] | None]
    shards: list[Shard]
    features: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    targets: dict[str, Ints]
    weights: dict[str, Floats | None]

    @property
    def n_variables(self) -> int:
        """Number of variables of all shards."""
        return sum(shard.graph.n_variables for shard in self.shards)

    def n_rows(self, kind: str) -> int:
        """Number of regions of a kind."""
        return len(self.targets[kind])

    def matrix(self, kind: str) -> Any:
        """A kind's features, or (N, 0) where it has none."""
        x = self.features[kind]
        return np.zeros((self.n_rows(kind), 0)) if x is None else x

    def n_outputs(self, kind: str) -> int:
        """Number of configurations of a kind's regions."""
        return int(np.prod(self.shapes[kind]))


def gather(
    examples: Sequence[Example],
    kinds: Sequence[str],
    *,
    labelled: bool = True,
    every_kind: bool = True,
    drop_hidden: bool,
) -> TrainingSet:
    """Join examples.

    Args:
        kinds: those that examples may have.
        labelled: refuse examples without labels.
        every_kind: refuse kinds that no example has; otherwise they are left out.
        drop_hidden: keep only variables with a label and a positive weight, and the regions between them.
    """
    examples = list_examples(examples)
    for number, example in enumerate(examples):
        _check(number, example, kinds, labelled)
    if drop_hidden:
        examples = [example for example in examples if observed(example).any()]
        if not examples:
            raise PotentiaError("no variable of these examples has a label and a positive weight")
    graphs, rows = [], []
    for example in examples:
        graph, kept = _restricted(example) if drop_hidden else (example.graph, None)
        graphs.append(graph)
        rows.append(kept)
    if not every_kind:
        kinds = [k for k in kinds if any(k in g.scopes and len(g.scopes[k]) for g in graphs)]
    shards = _cut(examples, graphs)
    shapes = table_shapes(kinds, graphs)
    features = {kind: _features(kind, examples, graphs, rows) for kind in kinds}
    targets = {kind: _targets(kind, shards) for kind in kinds}
    weights = _weights(kinds, examples, graphs, drop_hidden)
    return TrainingSet(examples, rows, shards, features, shapes, targets, weights)


def list_examples(examples: Any) -> list[Example]:
    """A list of at least one example, or a sentence about what was given."""
    if not isinstance(examples, Iterable):
        raise PotentiaError(f"examples must be a list of Example, not one {type(examples).__name__}")
    found = list(examples)
    if not found:
        raise PotentiaError("there are no examples")
    for number, example in enumerate(found):
        if not isinstance(example, Example):
            raise PotentiaError(f"examples[{number}] is a {type(example).__name__}, not an Example")
    return found


def _check(number: int, example: Example, kinds: Sequence[str], labelled: bool) -> None:
    name = example.name or f"example {number}"
    missing = [k for k, s in example.graph.scopes.items() if len(s) and k not in kinds]
    if missing:
        raise PotentiaError(
            f"{name} has regions of kind {missing[0]!r}, but there is no potential for that kind"
        )
    if labelled and example.labels is None:
        raise PotentiaError(f"{name} has no labels")


def observed(example: Example) -> Bools:
    """Variables with a label and a positive weight."""
    labels = np.full(example.graph.n_variables, -1) if example.labels is None else example.labels
    return labels >= 0 if example.weights is None else (labels >= 0) & (example.weights > 0)


def _restricted(example: Example) -> tuple[Graph, dict[str, Any] | None]:
    keep = observed(example)
    if keep.all():
        return example.graph, None
    return induced(example.graph, keep)


def _kept(example: Example, graph: Graph) -> Any:
    return slice(None) if graph is example.graph else observed(example)


def _cut(examples: Sequence[Example], graphs: list[Graph]) -> list[Shard]:
    """Consecutive examples until a shard's tables would exceed SHARD_ENTRIES."""
    shards: list[Shard] = []
    group: list[int] = []
    first: dict[str, int] = {}
    entries = 0

    def close() -> None:
        nonlocal entries
        union = Union(graphs[i] for i in group)
        span = {}
        for kind, scope in union.graph.scopes.items():
            span[kind] = slice(first.get(kind, 0), first.get(kind, 0) + len(scope))
            first[kind] = span[kind].stop
        labels = [
            np.full(graphs[i].n_variables, -1)
            if (y := examples[i].labels) is None
            else y[_kept(examples[i], graphs[i])]
            for i in group
        ]
        shards.append(Shard(union, span, np.concatenate(labels)))
        group.clear()
        entries = 0

    for i, graph in enumerate(graphs):
        size = _entries(graph, examples[i])
        if group and entries + size > SHARD_ENTRIES:
            close()
        group.append(i)
        entries += size
    close()
    return shards


def _entries(graph: Graph, example: Example) -> int:
    """Table entries of an example; a kind without features has one table, and only messages along its sides."""
    total = 0
    for kind, scope in graph.scopes.items():
        if len(scope):
            shapes = graph.table_shapes(kind)
            total += int((shapes.prod(axis=1) if kind in example.features else shapes.sum(axis=1)).sum())
    return total


def table_shapes(kinds: Iterable[str], graphs: Sequence[Graph]) -> dict[str, tuple[int, ...]]:
    """The table shape of each kind; refuses a kind that no graph has."""
    return {kind: _one_shape(kind, graphs) for kind in kinds}


def _one_shape(kind: str, graphs: Sequence[Graph]) -> tuple[int, ...]:
    """The table shape that all regions of a kind share: what a common function needs."""
    found = {graph.shared_shape(kind) for graph in graphs if kind in graph.scopes and len(graph.scopes[kind])}
    if not found:
        raise PotentiaError(f"no example has a region of kind {kind!r} to train its potential on")
    shape = found.pop()
    if found or shape is None:
        raise PotentiaError(
            f"regions of kind {kind!r} have tables of different shapes; use one kind per shape"
        )
    return shape


def _features(kind: str, examples: Sequence[Example], graphs: list[Graph], rows: list[Any]) -> Any:
    """The kind's features of all examples below each other, or None where no example has any."""
    holders = [i for i, g in enumerate(graphs) if kind in g.scopes and len(g.scopes[kind])]
    given = [i for i in holders if kind in examples[i].features]
    if not given:
        return None
    if len(given) < len(holders):
        lacking = next(i for i in holders if i not in given)
        name = examples[lacking].name or f"example {lacking}"
        raise PotentiaError(f"{name} has no features for kind {kind!r}, but other examples have")
    parts = [
        examples[i].features[kind] if rows[i] is None else examples[i].features[kind][rows[i][kind]]
        for i in given
    ]
    widths = {part.shape[1] for part in parts}
    if len(widths) > 1:
        raise PotentiaError(f"features of kind {kind!r} have {sorted(widths)} columns in different examples")
    if any(not isinstance(part, np.ndarray) for part in parts):
        from scipy import sparse

        return sparse.vstack(parts, format="csr")
    # the potentials compute in float64: converted here, nobody has to copy all rows again
    return np.concatenate(parts, dtype=np.float64)


def _targets(kind: str, shards: list[Shard]) -> Ints:
    """Index of the true configuration of every region of a kind, -1 where one of its variables is hidden."""
    parts = [np.zeros(0, dtype=np.int64)]
    for shard in shards:
        if kind in shard.graph.scopes and len(shard.graph.scopes[kind]):
            index = table_index(shard.graph, kind, np.maximum(shard.labels, 0))
            hidden = (shard.labels[shard.graph.scopes[kind]] < 0).any(axis=1)
            parts.append(np.where(hidden, -1, index))
    return np.concatenate(parts)


def _weights(
    kinds: Sequence[str], examples: Sequence[Example], graphs: list[Graph], drop_hidden: bool
) -> dict[str, Floats | None]:
    if all(example.weights is None for example in examples):
        return dict.fromkeys(kinds)
    found: dict[str, Floats | None] = {}
    for kind in kinds:
        parts = [np.zeros(0)]
        for example, graph in zip(examples, graphs, strict=True):
            own = np.ones(example.graph.n_variables) if example.weights is None else example.weights
            own = own[_kept(example, graph)] if drop_hidden else own
            if kind in graph.scopes and len(graph.scopes[kind]):
                parts.append(own[graph.scopes[kind]].mean(axis=1))
        found[kind] = np.concatenate(parts)
    return found

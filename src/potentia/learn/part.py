"""`Part`: consecutive examples as rows of features and targets per kind, and as graphs in shards; tables of Delta."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from ..base.types import Bools, Floats, Ints, PotentiaError, real_numbers
from ..features.example import Example, Held
from ..features.parts import Source
from ..gradients.entry import class_factors
from ..graph.structure import Graph, per_graph
from ..graph.structured import StructuredValue
from ..graph.tables import DenseTerm
from ..graph.union import Union, induced
from ..potentials.base import Potential
from ..potentials.inputs import Inputs, Stack
from ..potentials.problem import NO_LABELS, NO_ROWS, NO_WEIGHT, OnDemand, Rows

#: Bytes that a variable takes in a layout, and a table entry in messages, biases and scores, on a binary grid.
LAYOUT_BYTES, ENTRY_BYTES = 500, 24
#: Table entries of a shard: training holds the tables of one shard per thread, and they should stay in the cache.
SHARD_ENTRIES = 200_000
#: What regions of a kind must share, which a common function needs.
ONE_SHAPE = "regions of kind {kind!r} have tables of different shapes; use one kind per shape."
#: As many unions of a part that left memory are kept for the next ones.
_FEW_UNIONS = 4
#: Regions of more variables have no tables.
_MOST_AXES = 20

#: Modules whose potentials have finite scores; fixed factors may forbid all configurations.
_OWN = {f"potentia.potentials.{name}" for name in ("boosting", "linear", "mlp", "tables")}
#: Unions in use, so that equal graphs share one and its layout.
_unions: WeakValueDictionary[tuple[str, ...], Union] = WeakValueDictionary()
#: The latest ones, for the next fit or prediction, up to this many variables, whose layouts take about 50 MB.
_latest: list[Union] = []
_MAX_VARIABLES = 100_000

T = TypeVar("T")


class Shard(NamedTuple):
    """Some examples as one graph, their disjoint union; its regions of a kind are rows `rows[kind]` of the part."""

    union: Union
    graph: Graph
    rows: dict[str, slice]
    labels: Ints
    weights: Floats | None


class KindFacts(NamedTuple):
    """What a part knows about a kind: its rows' shape, number, weight and features.

    n_features is None if the kind has no features; `without` names an example that has none, `some`: another has.
    """

    shape: tuple[int, ...]
    n_rows: int
    weight: float
    n_features: int | None
    some: bool
    without: str | None


class Overview(NamedTuple):
    """Facts about a part that its data set needs, per kind and per example.

    n_given and n_states count the examples that the part was built from and their states; n_examples those that take
    part. `untouched`: they are the very examples given, with all their variables.
    """

    facts: dict[str, KindFacts]
    n_examples: int
    n_given: int
    n_states: int
    untouched: bool


class Part:
    """Rows of some examples per kind, and the shards they belong to; it never changes.

    Args:
        examples: those of the part; under `drop_hidden` one without any label does not take part.
        kinds: those that may occur.
        names: what messages call the examples; None for their own names, or numbers.
        whole: the kinds whose potentials read inputs of whole examples, not features.
        drop_hidden: keep only variables with a label and a positive weight, and the regions between them.
        structures: factors whose kinds score by outcomes.
        dense: names of potentials of all pairs, which take part as a kind with a row for every variable.

    Attributes:
        examples, names: those that take part.
        kept: per example the numbers of its regions that take part, per kind, or None for all.
        shards: consecutive examples joined into unions of bounded size.
        features: per kind (N, d), of no columns if the kind is in `featureless`; `Inputs` for the kinds in `whole`.
        shapes, n_outputs: per kind the table shape of its regions, and the number of their configurations.
        targets: per kind the index of the true configuration, (N,); -1 where a variable of it is hidden.
        weights: per kind the weight of each region, the mean over its variables, or None if all are 1: not `weighted`.
        overview: what the data set needs, of a part that a `PartRecipe` built.
    """

    overview: Overview

    def __init__(
        self,
        examples: Sequence[Example],
        kinds: Sequence[str],
        names: Sequence[str] | None = None,
        whole: frozenset[str] = frozenset(),
        drop_hidden: bool = False,
        structures: Mapping[str, StructuredValue] | None = None,
        dense: frozenset[str] = frozenset(),
    ) -> None:
        self.kinds, self.whole, self.structures, self.dense = kinds, whole, structures or {}, dense
        names = names or [e.name or f"example {k}" for k, e in enumerate(examples)]
        for name, example in zip(names, examples, strict=True):
            for kind, scope in example.graph.scopes.items():
                if len(scope) and kind not in kinds:
                    raise PotentiaError(
                        f"{name} has regions of kind {kind!r}, but there is no potential for that kind."
                    )
            for kind in example.features.keys() - example.graph.scopes.keys() - dense:
                raise PotentiaError(f"{name} has features {kind!r}, which no region and no DenseGaussian has.")
        masks: list[Bools | None] = [None] * len(examples)
        if drop_hidden:
            seen = [observed(example) for example in examples]
            chosen = [k for k, mask in enumerate(seen) if mask.any()]
            examples, names = [examples[k] for k in chosen], [names[k] for k in chosen]
            masks = [None if seen[k].all() else seen[k] for k in chosen]
        self.examples, self.names = list(examples), list(names)
        graphs: list[Graph] = []
        self.kept: list[dict[str, Ints] | None] = []
        for example, mask in zip(examples, masks, strict=True):
            graph = structured(example.graph, self.structures)
            graph, rows = (graph, None) if mask is None else induced(graph, mask)
            graphs.append(graph)
            self.kept.append(None if rows is None else {k: np.flatnonzero(taken) for k, taken in rows.items()})
        self.weighted = any(example.weights is not None for example in examples)
        self.shards = self._cut(graphs, masks)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.features: dict[str, Any] = {}
        self.targets: dict[str, Ints] = {}
        self.weights: dict[str, Floats | None] = {}
        for kind in kinds:
            holders = [k for k, graph in enumerate(graphs) if len(self._scope(graph, kind))]
            if holders:
                shapes = {_dense_shape(graphs[k]) if kind in dense else graphs[k].shared_shape(kind) for k in holders}
                shape = shapes.pop()
                if shapes or shape is None:
                    raise PotentiaError(ONE_SHAPE.format(kind=kind))
                self.shapes[kind] = shape
                self.targets[kind], self.weights[kind] = self._targets(kind)
                self.features[kind] = self._stack(kind, holders)
        self.n_outputs = {kind: math.prod(shape) for kind, shape in self.shapes.items()}
        self.featureless = frozenset(kind for kind, x in self.features.items() if isinstance(x, np.ndarray))

    def cached(self, key: Any, make: Callable[[], T]) -> T:
        """What `make` gives, which follows from the part and the key, made once."""
        memo: dict[Any, Any] = self.__dict__.setdefault("_memo", {})
        if key not in memo:
            memo[key] = make()
        found: T = memo[key]
        return found

    def n_rows(self, kind: str) -> int:
        """Number of regions of a kind."""
        return len(self.targets.get(kind, ()))

    def rows(self, kind: str) -> Rows:
        """The rows of a kind without biases."""
        if kind not in self.shapes:
            return Rows(np.zeros((0, 0)), NO_LABELS, NO_ROWS, None, NO_WEIGHT)
        weights = self.weights[kind]
        weights = NO_WEIGHT if weights is None else weights
        return Rows(self.features[kind], self.targets[kind], NO_ROWS, None, weights)

    def function(
        self, kind: str, rows: slice, potential: Any, state: Mapping[str, Any] | None = None, by_weight: bool = False
    ) -> Floats:
        """f of some rows, (n, K), or of one where all are equal, to be read only; kept scores where there are some.

        by_weight: the weights, (n, 1), of a function that is a weight times one table.
        """
        table = None if state is None else state.get(f"scores/{kind}")
        if table is not None:
            return np.asarray(table[rows])
        x = self.features[kind]
        x = np.zeros((1, x.shape[1])) if self.is_shared(kind, potential) else x[rows]
        values: Floats = potential.theta_values(x) if by_weight else potential.scores(x, trusted=True)
        return values

    def is_shared(self, kind: str, potential: Potential) -> bool:
        """Whether all regions of a kind have one table, which need not be written out."""
        return potential.shared or kind in self.featureless

    def _scope(self, graph: Graph, kind: str) -> Any:
        """Variables of the regions of a kind, of a dense term of every variable."""
        return np.arange(graph.n_variables)[:, None] if kind in self.dense else graph.scopes.get(kind, ())

    def theta(self, kind: str, shard: Shard, potential: Any, values: Floats) -> Any:
        """theta of a shard's regions from `theta_values` of them, or of one where all are equal."""
        if kind in self.dense:
            return potential.as_theta(values, self.shapes[kind], False, shard.union.variable_ptr)
        rows = shard.rows[kind]
        return potential.as_theta(values, self.shapes[kind], len(values) < rows.stop - rows.start)

    def n_bytes(self) -> int:
        """About how much memory the part takes in a fit: features, layouts, messages and scores."""
        held = sum(
            x.data.nbytes + x.indices.nbytes + x.indptr.nbytes if hasattr(x, "tocsr") else x.nbytes
            for e in self.examples
            for x in (*e.features.values(), *e.inputs.values())
        )
        unions = {id(shard.union): shard.graph.n_variables for shard in self.shards}
        entries = sum(self.n_rows(kind) * size for kind, size in self.n_outputs.items())
        return held + LAYOUT_BYTES * sum(unions.values()) + ENTRY_BYTES * entries

    def reusable(self) -> Any:
        """Unions that other parts may share, if they are few: their layouts take long to make."""
        unions = {id(shard.union): shard.union for shard in self.shards}
        return list(unions.values()) if len(unions) <= _FEW_UNIONS else None

    # -- building --------------------------------------------------------------------------------------------

    def _cut(self, graphs: Sequence[Graph], masks: Sequence[Bools | None]) -> list[Shard]:
        """Consecutive examples until a shard's tables would exceed SHARD_ENTRIES.

        graphs, masks: the variables and regions of each example that take part; None for all its variables.
        """
        groups: list[list[int]] = []
        room = 0
        for i, graph in enumerate(graphs):
            size = table_entries(graph, self.examples[i])
            if not groups or size > room:
                groups.append([])
                room = SHARD_ENTRIES
            groups[-1].append(i)
            room -= size
        shards, first = [], dict[str, int]()
        for group in groups:
            union = _shared_union([graphs[i] for i in group])
            rows = {}
            for kind in (*union.graph.scopes, *sorted(self.dense)):
                scope = self._scope(union.graph, kind)
                start = first.get(kind, 0)
                first[kind] = start + len(scope)
                rows[kind] = slice(start, first[kind])
            labels, weights = [], []
            for i in group:
                example, chosen = self.examples[i], slice(None) if masks[i] is None else masks[i]
                labels.append(example.all_labels[chosen])
                weights.append(example.all_weights[chosen])
            joined = np.concatenate(weights) if self.weighted else None
            shards.append(Shard(union, union.graph, rows, np.concatenate(labels), joined))
        return shards

    def _targets(self, kind: str) -> tuple[Ints, Floats | None]:
        """Index of the true configuration of every region of a kind, -1 where one of its variables is hidden; weights.

        The weight of a region is the mean over its variables.
        """
        targets, weights = [], []
        for shard in self.shards:
            scope = self._scope(shard.graph, kind)
            if len(scope):
                labels = np.maximum(shard.labels, 0)
                index = labels if kind in self.dense else shard.graph.table_index(kind, labels)
                targets.append(np.where((shard.labels[scope] < 0).any(axis=1), -1, index))
                weights += [] if shard.weights is None else [shard.weights[scope].mean(axis=1)]
        return np.concatenate(targets), np.concatenate(weights) if weights else None

    def _stack(self, kind: str, holders: Sequence[int]) -> Any:
        """The kind's features of the examples that have it below each other, (N, 0) if not all have some."""
        blocks = [_given(self.examples[i], kind, self.whole) for i in holders]
        kept = [None if (taken := self.kept[i]) is None else taken[kind] for i in holders]
        lacking = next((i for i, block in zip(holders, blocks, strict=True) if block is None), None)
        if kind not in self.whole:
            if lacking is not None:
                return np.zeros((self.n_rows(kind), 0))
            check_widths(kind, {block.shape[1] for block in blocks})
            return Stack(blocks, kept)
        if lacking is not None:
            raise PotentiaError(
                f"{self.names[lacking]} has no inputs for kind {kind!r}, whose potential reads whole examples."
            )
        sizes = [len(self.examples[i].graph.scopes[kind]) for i in holders]
        inputs = Inputs(blocks, sizes)
        if all(taken is None for taken in kept):
            return inputs
        first = np.cumsum([0, *sizes])
        rows = [first[k] + (np.arange(sizes[k]) if taken is None else taken) for k, taken in enumerate(kept)]
        return inputs[np.concatenate(rows)]

    def kind_facts(self, kind: str) -> KindFacts:
        """Facts of a kind that this part has."""
        without, some = None, False
        for name, example in zip(self.names, self.examples, strict=True):
            if len(self._scope(example.graph, kind)):
                if _given(example, kind, self.whole) is not None:
                    some = True
                elif without is None:
                    without = name
        n, weights = self.n_rows(kind), self.weights[kind]
        weight = float(n) if weights is None else float(weights.sum())
        width = None if kind in self.featureless else int(self.features[kind].shape[1])
        return KindFacts(self.shapes[kind], n, weight, width, some, without)


def are_own(potentials: Mapping[str, Potential]) -> bool:
    """Whether the library's own functions make all scores, which are numbers then."""
    return {type(potential).__module__ for potential in potentials.values()} <= _OWN


def structured(graph: Graph, structures: Mapping[str, StructuredValue]) -> Graph:
    """A graph with the structures of these factors' kinds."""
    own = {kind: graph.scopes[kind].shape[1] for kind in structures if len(graph.scopes.get(kind, ()))}
    return graph.with_structures({kind: structures[kind].structure(order) for kind, order in own.items()})


def observed(example: Example) -> Bools:
    """Variables with a label and a positive weight."""
    return (example.all_labels >= 0) & (example.all_weights > 0)


def dense_kinds(potentials: Mapping[str, Any]) -> frozenset[str]:
    """The names of potentials of all pairs."""
    return frozenset(kind for kind, potential in potentials.items() if isinstance(potential, DenseTerm))


def _dense_shape(graph: Graph) -> tuple[int, ...] | None:
    """The number of states, if all variables have the same."""
    return (int(graph.n_states[0]),) if np.all(graph.n_states == graph.n_states[0]) else None


def table_entries(graph: Graph, example: Example) -> int:
    """Table entries of an example; a kind without features has one table, and only messages along its sides."""
    return _table_entries(graph, frozenset({*example.features, *example.inputs}))


@per_graph
def _table_entries(graph: Graph, varied: frozenset[str]) -> int:
    """Table entries of a graph where kinds in `varied` have a table per region."""
    total = 0
    for kind, scope in graph.scopes.items():
        if len(scope):
            shapes = graph.table_shapes(kind)
            large = shapes.shape[1] > _MOST_AXES  # such regions score by outcomes
            total += int((shapes.prod(axis=1) if kind in varied and not large else shapes.sum(axis=1)).sum())
    return total


def _given(example: Example, kind: str, whole: frozenset[str]) -> Any:
    """What an example gives the potential of a kind to read, or None."""
    return (example.inputs if kind in whole else example.features).get(kind)


def check_widths(kind: str, widths: set[Any]) -> None:
    """Refuse features of different numbers of columns."""
    if len(widths) > 1:
        raise PotentiaError(f"features of kind {kind!r} have {sorted(widths)} columns in different examples.")


def _shared_union(graphs: Sequence[Graph]) -> Union:
    """The union of graphs; of equal lists of graphs there is one, with one layout, while any of them is in use."""
    key = tuple(graph.digest for graph in graphs)
    union = _unions.get(key)
    if union is None:
        union = _unions[key] = Union(graphs)
        ahead = [union, *_latest]
        sizes = np.cumsum([recent.graph.n_variables for recent in ahead])
        _latest[:] = ahead[: int(np.searchsorted(sizes, _MAX_VARIABLES, side="right"))]
    return union


# -- how to build a part ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PartRecipe:
    """A part's source, and what a learner needs of its examples; `build` makes the part, the same each time.

    Attributes:
        kinds: those that may occur.
        whole: those of them whose potentials read inputs of whole examples.
        drop_hidden: keep only variables with a label and a positive weight.
        labels: every example has labels.
        positive: weights are above zero.
        class_weight: weight of each state, by which the variables' weights are multiplied.
        singles: give every variable a single-variable region.
        structures: factors whose kinds score by outcomes.
        dense: names of potentials of all pairs.
    """

    source: Source
    kinds: Sequence[str]
    whole: frozenset[str] = frozenset()
    drop_hidden: bool = False
    labels: bool = False
    positive: bool = False
    class_weight: Sequence[float] | None = None
    singles: bool = False
    structures: Mapping[str, StructuredValue] | None = None
    dense: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """What messages call the part."""
        return self.source.name

    def n_bytes(self) -> int | None:
        """Size of the examples, where it is known without reading them."""
        return self.source.n_bytes()

    def build(self) -> Part:
        """The part."""
        first, origin = (self.source.first, "") if isinstance(self.source, Held) else (0, f" of {self.name}")
        examples = prepared = self.source.load()
        names = [e.name or f"example {k}{origin}" for k, e in enumerate(examples, first)]
        kinds = list(self.kinds)
        for example, name in zip(examples, names, strict=True):
            if self.labels and example.labels is None:
                raise PotentiaError(f"{name} has no labels.")
        n_states = max((int(e.graph.n_states.max()) for e in examples), default=1)
        if self.class_weight is not None:
            # they may have fewer states than there are class weights, as part of a data set
            size = max(n_states, real_numbers(self.class_weight, "class_weight").size)
            prepared = _class_weighted(examples, class_factors(self.class_weight, size))
        if self.positive and any(e.weights is not None and not np.all(e.weights) for e in prepared):
            raise PotentiaError("hidden='soft' keeps every variable, so weights must be positive; one is 0.")
        if self.singles:
            before, prepared = prepared, [_with_singles(example) for example in prepared]
            pairs = zip(before, prepared, strict=True)
            kinds += sorted({kind for a, b in pairs for kind in b.graph.kinds[len(a.graph.kinds) :]})
        part = Part(prepared, kinds, names, self.whole, self.drop_hidden, self.structures, self.dense)
        same = len(part.examples) == len(examples) and all(map(operator.is_, part.examples, examples))
        part.overview = Overview(
            {kind: part.kind_facts(kind) for kind in part.shapes},
            len(part.examples),
            len(examples),
            n_states,
            same and all(taken is None for taken in part.kept),
        )
        return part


def _class_weighted(examples: Sequence[Example], factors: Floats) -> list[Example]:
    """The examples with every variable's weight multiplied by that of its label."""
    weighted = []
    for e in examples:
        factor = np.where(e.all_labels >= 0, factors[np.maximum(e.all_labels, 0)], 1.0)
        weighted.append(Example(e.graph, e.features, e.labels, e.all_weights * factor, e.name, e.inputs))
    return weighted


def _with_singles(example: Example) -> Example:
    """The example with a region for each of its bare variables, one kind per number of states."""
    if not _bare(example.graph).any():
        return example
    graph = _completed(example.graph)
    return Example(graph, example.features, example.labels, example.weights, example.name, example.inputs)


def _bare(graph: Graph) -> Bools:
    """Variables without a single-variable region."""
    bare = np.ones(graph.n_variables, dtype=bool)
    for scope in graph.scopes.values():
        if scope.shape[1] == 1:
            bare[scope[:, 0]] = False
    return bare


@per_graph
def _completed(graph: Graph) -> Graph:
    """The graph with single-variable regions for its bare variables, one kind per number of states."""
    regions, bare = dict(graph.scopes), _bare(graph)
    for states in np.unique(graph.n_states[bare]):
        rows = np.flatnonzero(bare & (graph.n_states == states))
        regions[f"single variables of {states} states"] = rows[:, None]
    return Graph(graph.n_states, regions)


# -- Delta -----------------------------------------------------------------------------------------------------


def hamming(targets: Ints, n_states: int) -> OnDemand:
    """1 for every wrong state of a labelled variable, (N, K)."""

    def make(rows: Any) -> Floats:
        """1 for every wrong state of some rows, 0 throughout where the label is hidden."""
        wrong = np.repeat(targets[rows, None] >= 0, n_states, axis=1).astype(np.float64)
        known = np.flatnonzero(targets[rows] >= 0)
        wrong[known, targets[rows][known]] = 0.0
        return wrong

    return OnDemand((len(targets), n_states), make)


def delta_tables(part: Part, delta: Any) -> dict[str, Any]:
    """Delta per kind (N, K), None if it is zero: Hamming on single-variable kinds, or a user's of all examples."""
    if delta == "hamming":
        return {
            kind: hamming(part.targets[kind], shape[0]) if len(shape) == 1 else None
            for kind, shape in part.shapes.items()
        }
    if delta is None:
        return dict.fromkeys(part.shapes)
    by_example = [_checked_delta(delta(example), example, part.shapes) for example in part.examples]
    joined: dict[str, Floats | None] = {}
    for kind, shape in part.shapes.items():
        if not any(kind in of_example for of_example in by_example):
            joined[kind] = None
            continue
        tables = [np.zeros((0, part.n_outputs[kind]))]
        for of_example, example, kept in zip(by_example, part.examples, part.kept, strict=True):
            table = of_example.get(kind, np.zeros((len(example.graph.scopes.get(kind, ())), *shape)))
            rows = slice(None) if kept is None else kept.get(kind, slice(None))
            tables.append(table[rows].reshape(-1, part.n_outputs[kind]))
        joined[kind] = np.concatenate(tables)
    return joined


def _checked_delta(tables: Any, example: Example, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Floats]:
    """What a user's Delta returned for an example, as finite tables of its regions."""
    if not isinstance(tables, Mapping):
        raise PotentiaError(f"delta must return {{kind: table}}, not a {type(tables).__name__}.")
    if example.labels is None or np.any(example.labels < 0):
        raise PotentiaError("a custom delta requires examples without hidden labels.")
    scopes, checked = example.graph.scopes, {}
    for kind, values in tables.items():
        if kind not in scopes or kind not in shapes:
            raise PotentiaError(f"delta names kind {kind!r}, but the graph has {', '.join(scopes)}.")
        table, shape = np.asarray(values, dtype=float), (len(scopes[kind]), *shapes[kind])
        if table.shape != shape or not np.all(np.isfinite(table)):
            got = "one that is not finite" if table.shape == shape else str(table.shape)
            raise PotentiaError(f"delta must give a finite table of shape {shape} for {kind!r}, not {got}.")
        checked[kind] = table
    return checked

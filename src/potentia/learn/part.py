"""`Part`: consecutive examples as rows of features and targets per kind, and as graphs in shards; predictions of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..base.threads import map_items, one_blas_thread, thread_count
from ..base.types import Bools, Floats, Ints, PotentiaError
from ..features.example import Example
from ..features.parts import Held, Source
from ..graph.scores import Scores
from ..graph.structure import Graph, per_graph
from ..inference.base import Inference
from ..potentials.base import Potential
from ..potentials.inputs import Inputs, Stack
from ..potentials.problem import NO_LABELS, NO_ROWS, NO_WEIGHT, Rows, RowsOf
from .examples import (
    Shard,
    check_kinds,
    class_weighted,
    cut_shards,
    observed,
    one_shape,
    region_targets,
    region_weights,
    restricted,
)

#: Bytes that a variable takes in a layout, and a table entry in messages, biases and scores, on a binary grid.
LAYOUT_BYTES, ENTRY_BYTES = 500, 24

T = TypeVar("T")

#: As many unions of a part that left memory are kept for the next ones.
_FEW_UNIONS = 4


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


class KindFacts(NamedTuple):
    """What a part knows about a kind: its rows' shape, number, weight and features.

    n_features is None if the kind has no features; `with_features` and `without` name an example each.
    """

    shape: tuple[int, ...]
    n_rows: int
    weight: float
    n_features: int | None
    with_features: str | None
    without: str | None


@dataclass(eq=False)
class Part:
    """Rows of some examples per kind, and the shards they belong to; it never changes.

    Attributes:
        examples: those that take part; under `drop_hidden` one without any label does not.
        kinds: those that may occur.
        drop_hidden: keep only variables with a label and a positive weight, and the regions between them.
        names: what messages call the examples given; None for their own names, or numbers.
        whole: the kinds whose potentials read inputs of whole examples, not features.
        kept: per example the numbers of its regions that take part, per kind, or None for all.
        shards: consecutive examples joined into unions of bounded size.
        features: per kind (N, d), or None if the kind has none; `Inputs` for the kinds in `whole`.
        shapes: per kind the table shape of its regions.
        targets: per kind the index of the true configuration, (N,); -1 where a variable of it is hidden.
        weights: per kind the weight of each region, the mean over its variables, or None if all are 1.
        n_given, n_states, untouched: as in `Overview`.
    """

    examples: list[Example]
    kinds: Sequence[str]
    drop_hidden: bool = False
    names: Sequence[str] | None = None
    whole: frozenset[str] = frozenset()
    kept: list[dict[str, Any] | None] = field(init=False)
    shards: list[Shard] = field(init=False)
    features: dict[str, Stack | Inputs | None] = field(init=False)
    shapes: dict[str, tuple[int, ...]] = field(init=False)
    targets: dict[str, Ints] = field(init=False)
    weights: dict[str, Floats | None] = field(init=False)
    n_given: int = field(init=False, default=0)
    n_states: int = field(init=False, default=1)
    untouched: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        names = self.names or [e.name or f"example {k}" for k, e in enumerate(self.examples)]
        for name, example in zip(names, self.examples, strict=True):
            check_kinds(name, example, self.kinds)
        self._names = {id(e): name for e, name in zip(self.examples, names, strict=True)}
        if self.drop_hidden:
            self.examples = [example for example in self.examples if observed(example).any()]
        found = [restricted(e) if self.drop_hidden else (e.graph, None) for e in self.examples]
        self.kept = [rows for _, rows in found]
        graphs = [graph for graph, _ in found]
        self.shards = cut_shards(self.examples, graphs, self.drop_hidden)
        present = [k for k in self.kinds if any(len(g.scopes.get(k, ())) for g in graphs)]
        self.shapes = {kind: one_shape(kind, graphs) for kind in present}
        self.features = {kind: self._stack(kind, graphs) for kind in present}
        self.targets = {kind: region_targets(kind, self.shards) for kind in present}
        weighted = any(example.weights is not None for example in self.examples)
        self.weights = {kind: region_weights(kind, self.shards) if weighted else None for kind in present}

    def cached(self, key: Any, make: Callable[[], T]) -> T:
        """What `make` gives, which follows from the part and the key, made once."""
        memo: dict[Any, Any] = self.__dict__.setdefault("_memo", {})
        if key not in memo:
            memo[key] = make()
        found: T = memo[key]
        return found

    def name_of(self, example: Example) -> str:
        """What messages call an example."""
        return self._names[id(example)]

    @property
    def n_variables(self) -> int:
        """Number of variables of all shards."""
        return sum(shard.graph.n_variables for shard in self.shards)

    def n_rows(self, kind: str) -> int:
        """Number of regions of a kind."""
        return len(self.targets.get(kind, ()))

    def n_outputs(self, kind: str) -> int:
        """Number of configurations of a kind's regions."""
        return int(np.prod(self.shapes[kind]))

    def matrix(self, kind: str) -> Any:
        """A kind's features, or (N, 0) where it has none."""
        x = self.features.get(kind)
        return np.zeros((self.n_rows(kind), 0)) if x is None else x

    def rows(self, kind: str) -> Rows:
        """The rows of a kind without biases."""
        targets, weights = self.targets.get(kind, NO_LABELS), self.weights.get(kind)
        return Rows(self.matrix(kind), targets, NO_ROWS, None, NO_WEIGHT if weights is None else weights)

    def kind_facts(self, kind: str) -> KindFacts:
        """Facts of a kind that this part has."""
        holders = [e for e in self.examples if len(e.graph.scopes.get(kind, ()))]
        having = [e for e in holders if self._given(e, kind) is not None]
        lacking = [e for e in holders if self._given(e, kind) is None]
        x, n, weights = self.features[kind], self.n_rows(kind), self.weights[kind]
        return KindFacts(
            self.shapes[kind],
            n,
            float(n) if weights is None else float(weights.sum()),
            None if x is None else x.shape[1],
            self.name_of(having[0]) if having else None,
            self.name_of(lacking[0]) if lacking else None,
        )

    def n_bytes(self) -> int:
        """About how much memory the part takes in a fit: features, layouts, messages and scores."""
        held = sum(
            x.data.nbytes + x.indices.nbytes + x.indptr.nbytes if hasattr(x, "tocsr") else x.nbytes
            for e in self.examples
            for x in (*e.features.values(), *e.inputs.values())
        )
        unions = {id(shard.union): shard.graph.n_variables for shard in self.shards}
        entries = sum(self.n_rows(kind) * self.n_outputs(kind) for kind in self.shapes)
        return held + LAYOUT_BYTES * sum(unions.values()) + ENTRY_BYTES * entries

    def reusable(self) -> Any:
        """Unions that other parts may share, if they are few: their layouts take long to make."""
        unions = {id(shard.union): shard.union for shard in self.shards}
        return list(unions.values()) if len(unions) <= _FEW_UNIONS else None

    def is_weighted(self) -> bool:
        """Whether rows have weights."""
        return any(weights is not None for weights in self.weights.values())

    def labelled_weight(self) -> float:
        """Total weight of the labelled variables."""
        total = 0.0
        for shard in self.shards:
            seen = shard.labels >= 0
            total += float(seen.sum() if shard.weights is None else shard.weights[seen].sum())
        return total

    # -- scores ----------------------------------------------------------------------------------------------

    def function(self, kind: str, rows: slice, potential: Potential, state: Mapping[str, Any]) -> Floats:
        """f of some rows, (n, K), or of one where all are equal, to be read only; kept scores where there are some."""
        table = state.get(f"scores/{kind}")
        if table is not None:
            return np.asarray(table[rows])
        return potential.scores(self._distinct(kind, rows, potential), trusted=True)

    def numbers(self, kind: str, rows: slice, potential: Potential, state: Mapping[str, Any]) -> Floats:
        """What gives theta of some rows, or of one where all are equal: weights (n, 1), or f."""
        if potential.by_weight:
            return potential.theta_values(self._distinct(kind, rows, potential))
        return self.function(kind, rows, potential, state)

    def _distinct(self, kind: str, rows: slice, potential: Potential) -> Any:
        """Features of some rows, or a row of zeros where all have the same function value."""
        matrix = self.matrix(kind)
        return np.zeros((1, matrix.shape[1])) if self.is_shared(kind, potential) else matrix[rows]

    def is_shared(self, kind: str, potential: Potential) -> bool:
        """Whether all regions of a kind have one table, which need not be written out."""
        return self.features[kind] is None or potential.shared

    # -- building --------------------------------------------------------------------------------------------

    def _given(self, example: Example, kind: str) -> Any:
        """What an example gives the potential of a kind to read, or None."""
        return (example.inputs if kind in self.whole else example.features).get(kind)

    def _stack(self, kind: str, graphs: list[Graph]) -> Stack | Inputs | None:
        """The kind's features of all examples below each other, or None if not all have some."""
        holders = [i for i, g in enumerate(graphs) if len(g.scopes.get(kind, ()))]
        if kind in self.whole:
            return self._inputs(kind, holders)
        if not all(kind in self.examples[i].features for i in holders):
            return None
        blocks = [self.examples[i].features[kind] for i in holders]
        widths = {block.shape[1] for block in blocks}
        if len(widths) > 1:
            raise PotentiaError(
                f"features of kind {kind!r} have {sorted(widths)} columns in different examples."
            )
        kept = [None if (own := self.kept[i]) is None else own[kind] for i in holders]
        return Stack(blocks, kept)

    def _inputs(self, kind: str, holders: list[int]) -> Inputs:
        """The kind's inputs of all examples, with the regions that take part as rows."""
        members = [self.examples[i] for i in holders]
        lacking = next((e for e in members if kind not in e.inputs), None)
        if lacking is not None:
            raise PotentiaError(
                f"{self.name_of(lacking)} has no inputs for kind {kind!r}, whose potential reads whole examples."
            )
        sizes = [len(e.graph.scopes[kind]) for e in members]
        found = Inputs([e.inputs[kind] for e in members], sizes)
        if all(self.kept[i] is None for i in holders):
            return found
        first = np.cumsum([0, *sizes])
        rows = [
            first[k] + (np.arange(sizes[k]) if (own := self.kept[i]) is None else own[kind])
            for k, i in enumerate(holders)
        ]
        return found[np.concatenate(rows)]


def with_singles(examples: Sequence[Example]) -> tuple[list[Example], list[str]]:
    """The examples with a single-variable region for every variable, and the kinds that were added."""
    graphs = [_completed(example.graph) for example in examples]
    kinds = {
        kind for e, graph in zip(examples, graphs, strict=True) for kind in graph.kinds[len(e.graph.kinds) :]
    }
    completed = [
        e if graph is e.graph else Example(graph, e.features, e.labels, e.weights, e.name, e.inputs)
        for e, graph in zip(examples, graphs, strict=True)
    ]
    return completed, sorted(kinds)


def _completed(graph: Graph) -> Graph:
    """The graph with regions for its bare variables, one kind per number of states."""
    return _with_singles(graph) if _bare(graph).any() else graph


def _bare(graph: Graph) -> Bools:
    """Variables without a single-variable region."""
    bare = np.ones(graph.n_variables, dtype=bool)
    for scope in graph.scopes.values():
        if scope.shape[1] == 1:
            bare[scope[:, 0]] = False
    return bare


@per_graph
def _with_singles(graph: Graph) -> Graph:
    regions, bare = dict(graph.scopes), _bare(graph)
    for states in np.unique(graph.n_states[bare]):
        rows = np.flatnonzero(bare & (graph.n_states == states))
        regions[f"single variables of {states} states"] = rows[:, None]
    return Graph(graph.n_states, regions)


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
    """

    source: Source
    kinds: Sequence[str]
    whole: frozenset[str] = frozenset()
    drop_hidden: bool = False
    labels: bool = False
    positive: bool = False
    class_weight: Sequence[float] | None = None
    singles: bool = False

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
        examples = self.source.load()
        names = [e.name or f"example {k}{origin}" for k, e in enumerate(examples, first)]
        for example, name in zip(examples, names, strict=True):
            if self.labels and example.labels is None:
                raise PotentiaError(f"{name} has no labels.")
        prepared, added = list(class_weighted(examples, self.class_weight)), list[str]()
        if self.positive and any(e.weights is not None and not np.all(e.weights) for e in prepared):
            raise PotentiaError("hidden='soft' keeps every variable, so weights must be positive; one is 0.")
        if self.singles:
            prepared, added = with_singles(prepared)
        part = Part(prepared, [*self.kinds, *added], self.drop_hidden, names, self.whole)
        same = len(part.examples) == len(examples) and all(
            a is b for a, b in zip(part.examples, examples, strict=True)
        )
        part.untouched = same and all(kept is None for kept in part.kept)
        part.n_given = len(examples)
        part.n_states = max((int(e.graph.n_states.max()) for e in examples), default=1)
        return part


# -- functions of a part and its state, for backends -----------------------------------------------------------


def overview(part: Part, state: Any) -> tuple[Any, Overview]:
    """Facts about a part that its data set needs."""
    facts = {kind: part.kind_facts(kind) for kind in part.shapes}
    return state, Overview(facts, len(part.examples), part.n_given, part.n_states, part.untouched)


def plain_rows(part: Part, state: Any, kind: str) -> Rows:
    """The rows of a kind without biases."""
    return part.rows(kind)


def count_rows(part: Part, state: Any, rows_of: RowsOf) -> tuple[Any, tuple[int, float]]:
    """Number and total weight of rows."""
    table = rows_of(part, state)
    return state, (len(table), table.total_weight)


@dataclass(frozen=True)
class Predictor:
    """What turns a part into predictions: fitted potentials, theta = scale * f, inference and decoding."""

    potentials: Mapping[str, Potential]
    scales: Mapping[str, float]
    inference: Inference
    decode: str = "mpm"

    def labels(self, inference: Inference, scores: Scores) -> Ints:
        """The predicted labels of a graph."""
        if self.decode == "map":
            return inference.maximise(scores)
        return inference.run(scores, None).mpm()

    def marginals(self, inference: Inference, scores: Scores) -> Floats:
        """The predicted marginals of a graph's variables."""
        return inference.run(scores, None).variable_marginals

    def scores_of(self, part: Part, shard: Shard, state: Mapping[str, Any]) -> Scores:
        """theta = scale * f of a shard; one table per kind where all regions share it."""
        theta = {}
        for kind, rows in shard.rows.items():
            if rows.stop > rows.start:
                potential = self.potentials[kind]
                table = self.scales[kind] * part.numbers(kind, rows, potential, state)
                shared = len(table) < rows.stop - rows.start
                theta[kind] = potential.as_theta(table, part.shapes[kind], shared)
        return Scores(shard.graph, theta)


def predict(
    part: Part, state: Mapping[str, Any], predictor: Predictor, what: str = "labels"
) -> tuple[Any, list[Any]]:
    """Labels, or marginals, of every example; shards are shared out over the threads that inference may use."""
    read = getattr(predictor, what)
    inference, threads = predictor.inference, 1
    if len(part.shards) > 1 and inference.threaded:
        threads = thread_count(inference.threads)
        inference = inference.on_one_thread()
    for kind in part.shapes:
        predictor.potentials[kind].ready(part.n_rows(kind))

    def of(shard: Shard) -> list[Any]:
        return shard.union.split_variables(read(inference, predictor.scores_of(part, shard, state)))

    with one_blas_thread():
        return state, [found for own in map_items(of, part.shards, threads) for found in own]


def predict_to(
    part: Part,
    state: Mapping[str, Any],
    path: str,
    predictor: Predictor,
    what: str,
    write: Callable[[str, list[Any]], None],
) -> tuple[Any, None]:
    """Write labels, or marginals, of every example to a file."""
    write(path, predict(part, state, predictor, what)[1])
    return state, None


def count_correct(
    part: Part, state: Mapping[str, Any], predictor: Predictor
) -> tuple[Any, tuple[float, float]]:
    """Weight of the labelled variables predicted right, and of all labelled variables."""
    right = total = 0.0
    for example, found in zip(part.examples, predict(part, state, predictor)[1], strict=True):
        if example.labels is None:
            raise PotentiaError(f"{part.name_of(example)} has no labels to score against.")
        weights = np.ones(len(found)) if example.weights is None else example.weights
        seen = example.labels >= 0
        right += float(weights[seen] @ (found[seen] == example.labels[seen]))
        total += float(weights[seen].sum())
    return state, (right, total)

"""`Dataset`: the parts of a data set behind a backend, and what they have in common; predictions of parts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..base.backend import Backend, PartFunction, open_backend
from ..base.resources import check_memory, iterate_items, one_blas_thread, thread_count
from ..base.saving import write_arrays
from ..base.types import Floats, PotentiaError
from ..features.example import Example, Held
from ..features.parts import Examples, Parts, Source
from ..gradients.entry import class_factors
from ..graph.scores import Scores
from ..graph.structured import StructuredValue
from ..inference.base import Inference
from ..potentials.base import Potential
from ..potentials.problem import Problem, Rows, RowsOf
from .part import (
    ENTRY_BYTES,
    LAYOUT_BYTES,
    ONE_SHAPE,
    SHARD_ENTRIES,
    KindFacts,
    Overview,
    Part,
    PartRecipe,
    Shard,
    check_widths,
    dense_kinds,
    structured,
    table_entries,
)

#: Table entries of a part: about twenty shards. Cuts never depend on the number of threads or workers.
PART_ENTRIES = 4_000_000
#: Vectors of all parameters that an optimiser holds: ten pairs of L-BFGS, gradients and candidates.
_VECTORS = 25


# -- examples --------------------------------------------------------------------------------------------------


def list_examples(examples: Any) -> Examples:
    """A list of at least one example, or parts as they are, or a sentence about what was given."""
    if isinstance(examples, Parts):
        return examples
    if not np.iterable(examples):
        raise PotentiaError(f"examples must be a list of Example, not one {type(examples).__name__}.")
    listed = list(checked_examples(examples))
    if not listed:
        raise PotentiaError("there are no examples.")
    return listed


def checked_examples(examples: Iterable[Any]) -> Iterator[Example]:
    """The examples one by one; refuses anything else."""
    for number, example in enumerate(examples):
        if not isinstance(example, Example):
            raise PotentiaError(f"examples[{number}] is a {type(example).__name__}, not an Example.")
        yield example


def hold_examples(examples: Sequence[Example], part_entries: int, first: int = 0) -> list[Source]:
    """Examples in memory, cut into parts; `first` is the number of the first of them."""
    sources: list[Source] = []
    for chosen in cut_examples(examples, part_entries):
        sources.append(Held(chosen, first))
        first += len(chosen)
    return sources


def cut_examples(examples: Iterable[Example], part_entries: int) -> Iterator[list[Example]]:
    """Consecutive examples until a part's tables would exceed the limit on entries."""
    group: list[Example] = []
    room = 0
    for example in examples:
        size = table_entries(example.graph, example)
        if group and size > room:
            yield group
            group = []
        if not group:
            room = part_entries
        group.append(example)
        room -= size
    if group:
        yield group


# -- the parts of a data set -----------------------------------------------------------------------------------


class Dataset:
    """Parts of consecutive examples, and facts that hold for all of them.

    Attributes:
        parts: the backend.
        examples: what the parts were built from, a list or `pt.parts`.
        untouched: the parts are these very examples, with all their variables.
        n_given, n_examples: per part how many examples it was built from, and how many of them take part.
        n_states: largest number of states of a variable of the examples.
        shapes: per kind the table shape of its regions, for the kinds that any part has.
        n_rows, n_outputs, n_features: per kind the number of its regions, of their configurations and their features.
        featureless: the kinds without features.
    """

    def __init__(self, parts: Backend, examples: Examples = ()) -> None:
        self.parts, self.examples = parts, examples
        overviews: list[Overview] = parts.map(overview, None)[1]
        self.n_states = max(one.n_states for one in overviews)
        self.untouched = all(one.untouched for one in overviews)
        taking_part = [number for number, one in enumerate(overviews) if one.n_examples]
        if not taking_part:
            some = any(one.n_given for one in overviews)
            reason = "no variable of these examples has a label and a positive weight."
            raise PotentiaError(reason if some else "there are no examples.")
        if len(taking_part) < len(overviews):
            parts.keep(taking_part)
            overviews = [overviews[number] for number in taking_part]
        self.n_given = [one.n_given for one in overviews]
        self.n_examples = [one.n_examples for one in overviews]
        self._by_part = [one.facts for one in overviews]
        facts = _by_kind(self._by_part)
        self.shapes = {kind: of_parts[0].shape for kind, of_parts in facts.items()}
        self.n_rows = {kind: sum(part.n_rows for part in of_parts) for kind, of_parts in facts.items()}
        self.n_outputs = {kind: math.prod(shape) for kind, shape in self.shapes.items()}
        self.n_features = {kind: of_parts[0].n_features or 0 for kind, of_parts in facts.items()}
        self.featureless = {kind for kind, of_parts in facts.items() if of_parts[0].n_features is None}
        self._weights = {kind: sum(part.weight for part in of_parts) for kind, of_parts in facts.items()}

    @classmethod
    def of(
        cls,
        examples: Examples,
        potentials: Mapping[str, Potential],
        part_entries: int | None = None,
        here: bool = False,
        **options: Any,
    ) -> Dataset:
        """The examples, a list cut into parts; on the cluster if there is one, unless `here`.

        options: what else a `PartRecipe` says.
        """
        if isinstance(examples, Parts):
            sources, resident = examples.sources, examples.resident
        else:
            sources, resident = hold_examples(examples, part_entries or PART_ENTRIES), 1
        whole = frozenset(kind for kind, potential in potentials.items() if potential.unit == "example")
        options |= {"structures": _factors(potentials), "dense": dense_kinds(potentials)}
        recipes = [PartRecipe(source, list(potentials), whole, **options) for source in sources]
        in_memory = here or all(source.in_memory for source in sources)
        data = cls(open_backend(recipes, in_memory, resident, here), examples)
        if options.get("class_weight") is not None:
            class_factors(options["class_weight"], data.n_states)
        return data

    def problem(self, kind: str, rows_of: RowsOf | None = None, states: Any = None) -> Problem:
        """All rows of a kind, without biases unless `rows_of` gives them."""
        sizes = [facts[kind].n_rows if kind in facts else 0 for facts in self._by_part]
        rows_of, features = rows_of or partial(plain_rows, kind=kind), self.n_features[kind]
        weight = self._weights[kind]
        return Problem(self.parts, states, rows_of, sizes, features, self.n_outputs[kind], weight)

    def selection(self, kind: str, rows_of: RowsOf, states: Any) -> Problem:
        """Those rows of a kind that `rows_of` gives, which are counted first."""
        sizes, weights = zip(*self.parts.map(count_rows, states, rows_of)[1], strict=True)
        features, weight = self.n_features[kind], float(sum(weights))
        return Problem(self.parts, states, rows_of, sizes, features, self.n_outputs[kind], weight)

    def begin(self, potentials: Mapping[str, Potential]) -> dict[str, Potential]:
        """The potentials, those that were never fitted as zero functions of this data."""
        for kind, potential in potentials.items():
            if not potential.is_fitted:
                potential.begin(self.problem(kind))
        return dict(potentials)

    def fetch(self, function: PartFunction, states: Any) -> Iterable[Any]:
        """A function's result of every part, fetched one after another where they are not all in memory."""
        if self.parts.in_memory:
            return self.parts.map(function, states)[1]
        return (self.parts.at(number, function, states) for number in range(self.parts.n_parts))

    def restore(self, function: PartFunction, states: Any, saved: Sequence[Mapping[str, Floats]]) -> Any:
        """The states that a function makes of these and what a checkpoint has of every part."""
        if len(saved) != self.parts.n_parts:
            raise PotentiaError("the checkpoint belongs to other examples: it has another number of parts.")
        return self.parts.map(function, states, own=saved)[0]

    def require(self, potentials: Mapping[str, Potential]) -> None:
        """Refuse potentials of kinds that no example has, or of tables that they cannot make."""
        for kind, potential in potentials.items():
            if kind not in self.shapes:
                raise PotentiaError(f"no example has a region of kind {kind!r} to train its potential on.")
            potential.check_shape(kind, self.shapes[kind])


def _by_kind(by_part: Sequence[dict[str, KindFacts]]) -> dict[str, list[KindFacts]]:
    """The parts' facts by kind; refuses kinds whose shapes or features differ."""
    facts: dict[str, list[KindFacts]] = {}
    for of_kinds in by_part:
        for kind, of_part in of_kinds.items():
            facts.setdefault(kind, []).append(of_part)
    for kind, of_parts in facts.items():
        if len({part_facts.shape for part_facts in of_parts}) > 1:
            raise PotentiaError(ONE_SHAPE.format(kind=kind))
        lacking = next((part_facts.without for part_facts in of_parts if part_facts.without is not None), None)
        if lacking is not None and any(part_facts.some for part_facts in of_parts):
            raise PotentiaError(f"{lacking} has no features for kind {kind!r}, but other examples have.")
        check_widths(kind, {part_facts.n_features for part_facts in of_parts})
    return facts


def _factors(potentials: Mapping[str, Any]) -> dict[str, StructuredValue]:
    """The potentials that are structured factors."""
    return {kind: potential for kind, potential in potentials.items() if isinstance(potential, StructuredValue)}


def fit_bytes(potentials: Mapping[str, Potential], examples: Sequence[Example]) -> float:
    """About how many bytes a fit takes: messages, biases and scores, layouts, parameters and their gradients."""
    entries, variables = 0, {}
    parameters: dict[str, int] = {}
    for example in examples:
        graph, n_entries = example.graph, table_entries(example.graph, example)
        entries += n_entries
        # equal graphs share layouts, shard by shard
        variables[graph.digest] = graph.n_variables * max(1, SHARD_ENTRIES // max(n_entries, 1))
        for kind, x in example.features.items():
            if kind in potentials and potentials[kind].differentiable and len(graph.scopes.get(kind, ())):
                size = x.shape[1] * int(np.prod(structured(graph, _factors(potentials)).table_shapes(kind)[0]))
                parameters[kind] = max(size, parameters.get(kind, 0))
    laid_out = min(sum(variables.values()), sum(example.graph.n_variables for example in examples))
    return float(ENTRY_BYTES * entries + LAYOUT_BYTES * laid_out + 8 * _VECTORS * sum(parameters.values()))


def check_fit(potentials: Mapping[str, Potential], examples: Sequence[Example]) -> None:
    """Refuse a fit for which there is not enough memory."""
    check_memory(
        fit_bytes(potentials, examples),
        f"this fit of {len(examples)} examples",
        "write them with pt.write_parts and fit pt.parts(folder)",
    )


# -- functions of a part and its state, for backends -----------------------------------------------------------


def overview(part: Part, state: Any) -> tuple[Any, Overview]:
    """Facts about a part that its data set needs."""
    return state, part.overview


def plain_rows(part: Part, state: Any, kind: str) -> Rows:
    """The rows of a kind without biases."""
    return part.rows(kind)


def count_rows(part: Part, state: Any, rows_of: RowsOf) -> tuple[Any, tuple[int, float]]:
    """Number and total weight of rows."""
    table = rows_of(part, state)
    return state, (len(table), table.total_weight)


class Predictor(NamedTuple):
    """What turns a part into predictions: fitted potentials, theta = scale * f, inference and decoding.

    decode: labels by "mpm" or "map", or "marginals". clamp: the examples' labels are observed.
    """

    potentials: Mapping[str, Potential]
    scales: Mapping[str, float]
    inference: Inference
    decode: str = "mpm"
    clamp: bool = False


def shard_scores(part: Part, shard: Shard, predictor: Predictor, state: Mapping[str, Any]) -> Scores:
    """theta = scale * f of a shard; one table per kind where all regions share it."""
    theta = {}
    for kind, rows in shard.rows.items():
        if rows.stop > rows.start:
            potential = predictor.potentials[kind]
            table = part.function(kind, rows, potential, state, potential.by_weight)
            theta[kind] = part.theta(kind, shard, potential, predictor.scales[kind] * table)
    labels, dense = shard.labels if predictor.clamp else None, predictor.inference.dense_pairs
    return Scores(shard.graph, theta, labels, dense=dense)


def predict(part: Part, state: Mapping[str, Any], predictor: Predictor) -> tuple[Any, list[Any]]:
    """Labels, or marginals, of every example; shards are shared out over the threads that inference may use."""
    inference, threads = predictor.inference, 1
    if len(part.shards) > 1 and inference.threaded:
        threads = thread_count(inference.threads)
        inference = inference.on_one_thread()
    for kind in part.shapes:
        predictor.potentials[kind].ready(part.n_rows(kind))

    def of(shard: Shard) -> list[Any]:
        """Labels or marginals of the examples of a shard."""
        scores = shard_scores(part, shard, predictor, state)
        if predictor.decode == "map":
            return shard.union.split_variables(inference.maximise(scores))
        result = inference.run(scores, None)
        marginals = predictor.decode == "marginals"
        return shard.union.split_variables(result.variable_marginals if marginals else result.mpm())

    predictions: list[Any] = []
    with one_blas_thread():
        for of_shard in iterate_items(of, part.shards, threads):
            predictions += of_shard
    return state, predictions


def predict_to(part: Part, state: Mapping[str, Any], path: str, predictor: Predictor) -> tuple[Any, None]:
    """Write labels, or marginals, of every example to a file."""
    write_arrays(path, predict(part, state, predictor)[1])
    return state, None


def count_correct(part: Part, state: Mapping[str, Any], predictor: Predictor) -> tuple[Any, tuple[float, float]]:
    """Weight of the labelled variables predicted right, and of all labelled variables."""
    right = total = 0.0
    labels = predict(part, state, predictor)[1]
    for name, example, predicted in zip(part.names, part.examples, labels, strict=True):
        if example.labels is None:
            raise PotentiaError(f"{name} has no labels to score against.")
        weights, seen = example.all_weights, example.labels >= 0
        right += float(weights[seen] @ (predicted[seen] == example.labels[seen]))
        total += float(weights[seen].sum())
    return state, (right, total)

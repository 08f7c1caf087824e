"""`Dataset`: the parts of a data set behind a backend, and what they have in common."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..base.backend import Backend, Local, PartFunction, Recipe, opened
from ..base.memory import check_memory
from ..base.types import Floats, PotentiaError
from ..features.example import Example
from ..features.parts import Examples, Held, Parts, Source
from ..gradients.entry import class_factors
from ..potentials.base import Potential
from ..potentials.problem import Problem, RowsOf
from .backends.connection import current
from .backends.distributed import Distributed
from .backends.out_of_core import OutOfCore
from .examples import SHARD_ENTRIES, table_entries, whole_kinds
from .part import (
    ENTRY_BYTES,
    LAYOUT_BYTES,
    KindFacts,
    Overview,
    PartRecipe,
    count_rows,
    overview,
    plain_rows,
)

#: Table entries of a part: about twenty shards. Cuts never depend on the number of threads or workers.
PART_ENTRIES = 4_000_000


class Dataset:
    """Parts of consecutive examples, and facts that hold for all of them.

    Attributes:
        parts: the backend.
        examples: what the parts were built from, a list or `pt.parts`.
        untouched: the parts are these very examples, with all their variables.
        by_part: per part the facts of the kinds that it has.
        n_given, n_examples: per part how many examples it was built from, and how many of them take part.
        n_states: largest number of states of a variable of the examples.
        facts: per kind those of the parts that have it.
        shapes: per kind the table shape of its regions, for the kinds that any part has.
    """

    def __init__(self, parts: Backend, examples: Examples = ()) -> None:
        self.parts, self.examples = parts, examples
        found: list[Overview] = parts.map(overview, None)[1]
        self.n_states = max(own.n_states for own in found)
        self.untouched = all(own.untouched for own in found)
        taking_part = [number for number, own in enumerate(found) if own.n_examples]
        if not taking_part:
            some = any(own.n_given for own in found)
            reason = "no variable of these examples has a label and a positive weight."
            raise PotentiaError(reason if some else "there are no examples.")
        if len(taking_part) < len(found):
            parts.keep(taking_part)
            found = [found[number] for number in taking_part]
        self.by_part = [own.facts for own in found]
        self.n_given = [own.n_given for own in found]
        self.n_examples = [own.n_examples for own in found]
        self.facts = _agree(self.by_part)
        self.shapes = {kind: facts[0].shape for kind, facts in self.facts.items()}

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
        sources, resident = _sources(examples, part_entries)
        kinds, whole = list(potentials), whole_kinds(potentials)
        recipes = [PartRecipe(source, kinds, whole, **options) for source in sources]
        in_memory = here or all(source.in_memory for source in sources)
        data = cls(open_backend(recipes, in_memory, resident, here), examples)
        if options.get("class_weight") is not None:
            class_factors(options["class_weight"], data.n_states)
        return data

    def n_rows(self, kind: str) -> int:
        """Number of regions of a kind."""
        return sum(own.n_rows for own in self.facts[kind])

    def n_outputs(self, kind: str) -> int:
        """Number of configurations of a kind's regions."""
        return math.prod(self.shapes[kind])

    def n_features(self, kind: str) -> int:
        """Number of features of a kind's regions."""
        return next((own.n_features for own in self.facts[kind] if own.n_features is not None), 0)

    def problem(self, kind: str, rows_of: RowsOf | None = None, states: Any = None) -> Problem:
        """All rows of a kind, without biases unless `rows_of` gives them."""
        sizes = [own[kind].n_rows if kind in own else 0 for own in self.by_part]
        weight = sum(own.weight for own in self.facts[kind])
        rows_of = rows_of or partial(plain_rows, kind=kind)
        return self._problem(kind, rows_of, states, sizes, weight)

    def selection(self, kind: str, rows_of: RowsOf, states: Any) -> Problem:
        """Those rows of a kind that `rows_of` gives, which are counted first."""
        sizes, weights = zip(*self.parts.map(count_rows, states, rows_of)[1], strict=True)
        return self._problem(kind, rows_of, states, sizes, float(sum(weights)))

    def _problem(
        self, kind: str, rows_of: RowsOf, states: Any, sizes: Sequence[int], weight: float
    ) -> Problem:
        n_features, n_outputs = self.n_features(kind), self.n_outputs(kind)
        return Problem(self.parts, states, rows_of, sizes, n_features, n_outputs, weight)

    def begin(self, potentials: Mapping[str, Potential]) -> dict[str, Potential]:
        """The potentials, those that were never fitted as zero functions of this data."""
        return {
            kind: potential if potential.is_fitted else potential.begin(self.problem(kind))
            for kind, potential in potentials.items()
        }

    def holds(self, examples: Examples) -> bool:
        """Whether the parts are these very examples, with all their variables."""
        return self.untouched and self.examples is examples

    def fetch(self, function: PartFunction, states: Any) -> Iterable[Any]:
        """A function's result of every part, fetched one after another where they are not all in memory."""
        if states is None:
            return []
        if self.parts.in_memory:
            return self.parts.map(function, states)[1]
        return (self.parts.at(number, function, states) for number in range(self.parts.n_parts))

    def restore(self, function: PartFunction, states: Any, saved: Sequence[Mapping[str, Floats]]) -> Any:
        """The states that a function makes of these and what a checkpoint has of every part."""
        if len(saved) != self.parts.n_parts:
            raise PotentiaError("the checkpoint belongs to other examples: it has another number of parts.")
        return self.parts.map(function, states, own=saved)[0]

    def require(self, kinds: Iterable[str]) -> None:
        """Refuse kinds that no example has."""
        for kind in kinds:
            if kind not in self.shapes:
                raise PotentiaError(f"no example has a region of kind {kind!r} to train its potential on.")


def open_backend(
    recipes: Sequence[Recipe], in_memory: bool, resident: int = 1, here: bool = False
) -> Backend:
    """Parts on the cluster if there is one, unless `here`; else in this process, `resident` of them at once."""
    connection = None if here else current()
    if connection is not None:
        return opened(Distributed(connection, recipes))
    if in_memory:
        return opened(Local([recipe.build() for recipe in recipes]))
    return opened(OutOfCore(recipes, resident))


def _sources(examples: Examples, part_entries: int | None) -> tuple[Sequence[Source], int]:
    """Where parts come from, and how many of them are in memory at once where they are not all."""
    if isinstance(examples, Parts):
        return examples.sources, examples.resident
    return hold_examples(examples, PART_ENTRIES if part_entries is None else part_entries), 1


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


def _agree(facts: Sequence[dict[str, KindFacts]]) -> dict[str, list[KindFacts]]:
    """The parts' facts by kind; refuses kinds whose shapes or features differ."""
    kinds = list(dict.fromkeys(kind for own in facts for kind in own))
    found = {kind: [own[kind] for own in facts if kind in own] for kind in kinds}
    for kind, of_parts in found.items():
        if len({own.shape for own in of_parts}) > 1:
            raise PotentiaError(
                f"regions of kind {kind!r} have tables of different shapes; use one kind per shape."
            )
        lacking = next((own.without for own in of_parts if own.without is not None), None)
        if lacking is not None and any(own.with_features is not None for own in of_parts):
            raise PotentiaError(f"{lacking} has no features for kind {kind!r}, but other examples have.")
        widths = {own.n_features for own in of_parts}
        if len(widths) > 1:
            raise PotentiaError(
                f"features of kind {kind!r} have {sorted(map(int, filter(None, widths)))} columns in different "
                "examples."
            )
    return found


#: Vectors of all parameters that an optimiser holds: ten pairs of L-BFGS, gradients and candidates.
_VECTORS = 25


def fit_bytes(potentials: Mapping[str, Potential], examples: Sequence[Example]) -> float:
    """About how many bytes a fit takes: messages, biases and scores, layouts, parameters and their gradients."""
    entries, variables = 0, {}
    parameters: dict[str, int] = {}
    for example in examples:
        graph, own = example.graph, table_entries(example.graph, example)
        entries += own
        # equal graphs share layouts, shard by shard
        variables[graph.digest] = graph.n_variables * max(1, SHARD_ENTRIES // max(own, 1))
        for kind, x in example.features.items():
            if kind in potentials and potentials[kind].differentiable and len(graph.scopes.get(kind, ())):
                size = x.shape[1] * int(np.prod(graph.table_shapes(kind)[0]))
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

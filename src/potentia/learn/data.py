"""`Dataset`: the parts of a data set behind a backend, and what they have in common."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..base.backend import Backend, Local, Recipe, opened
from ..base.types import Floats, PotentiaError
from ..features.example import Example
from ..features.parts import Examples, Held, Parts, Source
from ..gradients.entry import class_factors
from ..potentials.problem import Problem
from .backends.connection import current
from .backends.distributed import Distributed
from .backends.out_of_core import OutOfCore
from .examples import table_entries
from .part import KindFacts, Overview, Part, PartRecipe, Preparation

#: Table entries of a part: about twenty shards. Cuts never depend on the number of threads or workers.
PART_ENTRIES = 4_000_000


class Dataset:
    """Parts of consecutive examples, and facts that hold for all of them.

    Attributes:
        parts: the backend.
        given: the examples that the parts were built from.
        untouched: the parts are these very examples, with all their variables.
        by_part: per part the facts of the kinds that it has.
        n_given, n_examples: per part how many examples it was built from, and how many of them take part.
        n_states: largest number of states of a variable of the examples given.
        shapes: per kind the table shape of its regions, for the kinds that any part has.
    """

    def __init__(self, parts: Backend, given: Examples = ()) -> None:
        self.parts, self.given = parts, given
        found: list[Overview] = parts.each("overview")
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
        if any(own.weighted for own in found) and not all(own.weighted for own in found):
            parts.each("fill_weights", changes=True)

    @classmethod
    def of(
        cls,
        examples: Examples,
        kinds: Sequence[str],
        kind_of_part: type[Part] = Part,
        drop_hidden: bool = False,
        part_entries: int | None = None,
        whole: frozenset[str] = frozenset(),
        preparation: Preparation | None = None,
        here: bool = False,
    ) -> Dataset:
        """The examples, a list cut into parts; on the cluster if there is one, unless `here`."""
        sources, resident = _sources(examples, part_entries)
        options = kinds, drop_hidden, whole, preparation or Preparation()
        recipes = [PartRecipe(source, kind_of_part, *options) for source in sources]
        in_memory = here or all(source.in_memory for source in sources)
        data = cls(open_backend(recipes, in_memory, resident, here), examples)
        if preparation is not None and preparation.class_weight is not None:
            class_factors(preparation.class_weight, data.n_states)
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

    def problem(self, kind: str, labelled: bool = False) -> Problem:
        """The rows of a kind; with `labelled` those whose variables all have labels."""
        key = ("labelled", kind) if labelled else kind
        sizes, weights = zip(*self.parts.each("row_sizes", key), strict=True)
        return Problem(
            self.parts, key, sizes, self.n_features(kind), self.n_outputs(kind), float(sum(weights))
        )

    def holds(self, examples: Examples) -> bool:
        """Whether the parts are these very examples, with all their variables."""
        return self.untouched and self.given is examples

    def part_states(self) -> Iterable[dict[str, Floats]]:
        """The state of every part, fetched one after another where they are not all in memory."""
        if isinstance(self.parts, Local):
            return self.parts.each("state")
        return (self.parts.at(number, "state") for number in range(self.parts.n_parts))

    def restore_parts(self, states: Sequence[Mapping[str, Floats]]) -> None:
        """Give every part the state that a checkpoint has of it."""
        if len(states) != self.parts.n_parts:
            raise PotentiaError("the checkpoint belongs to other examples: it has another number of parts.")
        self.parts.each("restore", own=states, changes=True)

    def require(self, kinds: Sequence[str]) -> None:
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

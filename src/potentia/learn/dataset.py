"""`Dataset`: the parts of a data set behind a backend, and what they have in common."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from .._types import PotentiaError
from ..data.example import Example
from ..parallel.backend import Backend, Local
from ..potentials.problem import Problem
from .part import KindFacts, Part, table_entries

#: Table entries of a part: about twenty shards. Cuts never depend on the number of threads or workers.
PART_ENTRIES = 4_000_000


class Dataset:
    """Parts of consecutive examples, and facts that hold for all of them.

    Attributes:
        parts: the backend.
        by_part: per part the facts of the kinds that it has.
        shapes: per kind the table shape of its regions, for the kinds that any part has.
    """

    def __init__(self, parts: Backend) -> None:
        self.parts = parts
        self.by_part: list[dict[str, KindFacts]] = parts.each("facts")
        self.facts = _agree(self.by_part)
        self.shapes = {kind: facts[0].shape for kind, facts in self.facts.items()}
        weighted = parts.each("is_weighted")
        if any(weighted) and not all(weighted):
            parts.each("fill_weights", changes=True)

    @classmethod
    def of(
        cls,
        examples: Sequence[Example],
        kinds: Sequence[str],
        kind_of_part: type[Part] = Part,
        drop_hidden: bool = False,
        part_entries: int | None = None,
        whole: frozenset[str] = frozenset(),
    ) -> Dataset:
        """Examples in this process, cut into parts."""
        parts, first = [], 0
        for chosen in cut_examples(examples, PART_ENTRIES if part_entries is None else part_entries):
            parts.append(kind_of_part(chosen, kinds, drop_hidden, first, whole))
            first += len(chosen)
        taking_part = [part for part in parts if part.examples]
        if not taking_part:
            raise PotentiaError("no variable of these examples has a label and a positive weight.")
        return cls(Local(taking_part))

    def n_rows(self, kind: str) -> int:
        """Number of regions of a kind."""
        return sum(own.n_rows for own in self.facts[kind])

    def n_outputs(self, kind: str) -> int:
        """Number of configurations of a kind's regions."""
        size = 1
        for states in self.shapes[kind]:
            size *= states
        return size

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

    def holds(self, examples: Sequence[Example]) -> bool:
        """Whether the parts are these very examples, with all their variables."""
        if not isinstance(self.parts, Local):
            return False
        own = [example for part in self.parts.parts for example in part.examples]
        whole = all(kept is None for part in self.parts.parts for kept in part.kept)
        return whole and len(own) == len(examples) and all(map(operator.is_, own, examples))

    def require(self, kinds: Sequence[str]) -> None:
        """Refuse kinds that no example has."""
        for kind in kinds:
            if kind not in self.shapes:
                raise PotentiaError(f"no example has a region of kind {kind!r} to train its potential on.")


def cut_examples(examples: Sequence[Example], part_entries: int) -> list[list[Example]]:
    """Consecutive examples until a part's tables would exceed so many entries."""
    groups: list[list[Example]] = []
    room = 0
    for example in examples:
        size = table_entries(example.graph, example)
        if not groups or size > room:
            groups.append([])
            room = part_entries
        groups[-1].append(example)
        room -= size
    return groups


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


def require_labels(examples: Sequence[Example]) -> None:
    """Refuse examples without labels."""
    for number, example in enumerate(examples):
        if example.labels is None:
            raise PotentiaError(f"{example.name or f'example {number}'} has no labels.")

"""`PartRecipe`: how to build a part from its source, and what is done to its examples before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .._types import PotentiaError
from ..data.example import Example
from ..data.parts import Held, Source
from .part import Part
from .singles import with_singles
from .weighting import class_weighted


@dataclass(frozen=True)
class Preparation:
    """What a learner needs of its examples.

    Attributes:
        labels: every example has labels.
        positive: weights are above zero.
        class_weight: weight of each state, by which the variables' weights are multiplied.
        singles: give every variable a single-variable region.
    """

    labels: bool = False
    positive: bool = False
    class_weight: Sequence[float] | None = None
    singles: bool = False

    def apply(self, examples: Sequence[Example], names: Sequence[str]) -> tuple[list[Example], list[str]]:
        """The examples as the learner takes them, and the kinds that were added to them."""
        if self.labels:
            require_labels(examples, names)
        weighted = class_weighted(examples, self.class_weight)
        if self.positive and any(e.weights is not None and not np.all(e.weights) for e in weighted):
            raise PotentiaError("hidden='soft' keeps every variable, so weights must be positive; one is 0.")
        return with_singles(weighted) if self.singles else (list(weighted), [])


@dataclass(frozen=True)
class PartRecipe:
    """A part's source and options; `build` makes the part, the same each time."""

    source: Source
    kind_of_part: type[Part]
    kinds: Sequence[str]
    drop_hidden: bool = False
    whole: frozenset[str] = frozenset()
    preparation: Preparation = field(default_factory=Preparation)

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
        prepared, added = self.preparation.apply(examples, names)
        part = self.kind_of_part(prepared, [*self.kinds, *added], self.drop_hidden, names, self.whole)
        same = len(part.examples) == len(examples) and all(
            a is b for a, b in zip(part.examples, examples, strict=True)
        )
        part.untouched = same and all(kept is None for kept in part.kept)
        part.n_given = len(examples)
        part.n_states = max((int(e.graph.n_states.max()) for e in examples), default=1)
        return part


def require_labels(examples: Sequence[Example], names: Sequence[str]) -> None:
    """Refuse examples without labels."""
    for example, name in zip(examples, names, strict=True):
        if example.labels is None:
            raise PotentiaError(f"{name} has no labels.")

"""`Parts`: a data set in pieces, which are read when they are visited, and where these come from."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from ..base.saving import digest_of
from ..base.types import Floats, PotentiaError

if TYPE_CHECKING:
    from .example import Example


class Sequences(NamedTuple):
    """Consecutive sequences of a data set.

    Attributes:
        X: feature dictionaries (or names) of the tokens of each sequence.
        y: labels of each sequence's tokens; None if not known, for predictions.
        weight: of each sequence; None for ones.
        first: number of the first sequence in the data set, for messages.
        total: number of sequences of the data set where it is known.
    """

    X: Iterable[Any]
    y: Any = None
    weight: Floats | None = None
    first: int = 0
    total: int | None = None


class Source(ABC):
    """Where the examples of a part come from."""

    #: The examples are in this process anyway.
    in_memory: ClassVar[bool] = False

    @property
    @abstractmethod
    def name(self) -> str:
        """What messages call it."""

    @abstractmethod
    def load(self) -> list[Example]:
        """The examples."""

    def sequences(self) -> Sequences:
        """Sequences of tokens with labels, for models that learn from such."""
        raise PotentiaError(
            f"{self.name} holds examples; a part of sequences is a function that returns a pair (X, y)."
        )

    def digest(self) -> str:
        """Equal for equal examples, and only for those."""
        return digest_examples(self.load())

    def n_bytes(self) -> int | None:
        """Size of the examples, where it is known without reading them."""
        return None


class Loaded(Source):
    """What a function of no arguments returns: examples, or a pair (X, y) of sequences.

    path: the file of examples that it reads, if it is one. size: about the bytes that it returns.
    """

    def __init__(
        self, function: Callable[[], Any], name: str | None = None, path: str | None = None, size: int | None = None
    ) -> None:
        self.function, self.path, self.size = function, path, size
        self._name = name or getattr(function, "__qualname__", None) or type(function).__name__

    @property
    def name(self) -> str:
        """The function's name."""
        return self._name

    def load(self) -> list[Example]:
        """The examples, checked to be such."""
        found = self._call()
        if not isinstance(found, Iterable):
            raise PotentiaError(
                f"the loader {self.name} must return a list of Example, not one {type(found).__name__}."
            )
        from .example import Example  # sequences do without graphs

        examples = list(found)
        for number, example in enumerate(examples):
            if not isinstance(example, Example):
                raise PotentiaError(
                    f"the loader {self.name} returned a {type(example).__name__} as item {number}, not an Example."
                )
        return examples

    def n_bytes(self) -> int | None:
        """The size, or the file's if it is seen from here."""
        return os.path.getsize(self.path) if self.path is not None and os.path.exists(self.path) else self.size

    def sequences(self) -> Sequences:
        """The sequences, checked to be a pair."""
        if self.path is not None:
            return super().sequences()
        found = self._call()
        if not isinstance(found, tuple) or len(found) != 2:
            raise PotentiaError(
                f"the loader {self.name} must return a pair (X, y) of sequences and their labels, not one "
                f"{type(found).__name__}."
            )
        return Sequences(*found)

    def _call(self) -> Any:
        """What the function returns; its errors name it."""
        try:
            return self.function()
        except PotentiaError:
            raise
        except Exception as error:
            raise PotentiaError(
                f"the loader {self.name} raised {type(error).__name__}: {error}; correct it or leave this part out."
            ) from error


class Parts:
    """Pieces of a data set, in order, each read when it is visited; made by `pt.parts`.

    `fit`, `predict`, `predict_marginals` and `score` of a `CRF` take it in place of a list of examples. Iterating over
    it reads one part after another and gives their lists of examples.

    Attributes:
        sources: where the examples of each part come from.
        resident: how many parts are in memory at once where they are not all.

    Example:
        >>> import potentia as pt
        >>> data = pt.parts([lambda n=n: pt.datasets.denoising(n, (8, 8), seed=0) for n in (2, 1)])
        >>> [len(part) for part in data]
        [2, 1]
    """

    def __init__(self, sources: Sequence[Source], resident: int = 1) -> None:
        if not sources:
            raise PotentiaError("there are no parts.")
        self.sources, self.resident = list(sources), resident

    def __len__(self) -> int:
        return len(self.sources)

    def __iter__(self) -> Iterator[list[Example]]:
        return (source.load() for source in self.sources)

    def __repr__(self) -> str:
        names = [source.name for source in self.sources]
        shown = names if len(names) <= 4 else [*names[:2], "...", names[-1]]
        return f"Parts({len(names)}: {', '.join(os.path.basename(name) for name in shown)})"


#: What estimators take: examples in a list, or in parts.
Examples = Sequence["Example"] | Parts


def digest_examples(examples: Sequence[Example]) -> str:
    """A digest of examples by which they are known again."""
    return digest_of(_arrays(examples))


def _arrays(examples: Sequence[Example]) -> Iterator[Any]:
    """Everything that tells examples apart, as texts and arrays."""
    for example in examples:
        yield repr((example.graph.digest, list(example.features)))
        for features in example.features.values():
            sparse = not isinstance(features, np.ndarray)
            yield from (features.data, features.indices, features.indptr) if sparse else (features,)
        if example.inputs:
            yield repr(list(example.inputs))
            yield from example.inputs.values()
        yield from (values for values in (example.labels, example.weights) if values is not None)

"""`Backend`: two verbs over the parts of a data set, whatever a part is and wherever it lives.

Sums run over a fixed binary tree of part numbers, so a total does not depend on who computed which part.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import numpy as np

from .memory import enough_memory


class Recipe(Protocol):
    """How to build a part wherever it is needed."""

    @property
    def name(self) -> str: ...

    def build(self) -> Any: ...

    def n_bytes(self) -> int | None: ...


class Backend(ABC):
    """Calls a method, by name, of every part.

    `own`: one more argument for each part, passed first. `changes`: the call changes the parts' state. `since`: the
    call undoes every change after the last call of that name.
    """

    @property
    @abstractmethod
    def n_parts(self) -> int:
        """Number of parts."""

    @abstractmethod
    def each(
        self,
        method: str,
        *args: Any,
        own: Sequence[Any] | None = None,
        changes: bool = False,
        since: str | None = None,
    ) -> list[Any]:
        """The method's result for every part, in part order."""

    @abstractmethod
    def at(self, number: int, method: str, *args: Any) -> Any:
        """The method's result for one part; the call changes nothing."""

    @abstractmethod
    def keep(self, numbers: Sequence[int]) -> None:
        """Let go of all parts but these."""

    def close(self) -> None:
        """Let go of what the parts take."""
        return

    def statistics(self) -> dict[str, Any]:
        """What the rounds since the last call took, for a history; nothing where all is in this process."""
        return {}

    @abstractmethod
    def total(self, method: str, *args: Any, changes: bool = False) -> Any:
        """The sum of the method's results (numbers, arrays, tuples, dictionaries; None counts as nothing)."""


class InProcess(Backend):
    """Parts in this process, one after another; a part's own work is shared out over threads."""

    @abstractmethod
    def part(self, number: int) -> Any:
        """The part itself."""

    def at(self, number: int, method: str, *args: Any) -> Any:
        """The method's result for one part."""
        return getattr(self.part(number), method)(*args)

    def each(
        self,
        method: str,
        *args: Any,
        own: Sequence[Any] | None = None,
        changes: bool = False,
        since: str | None = None,
    ) -> list[Any]:
        """The method's result for every part, in part order."""
        firsts: list[tuple[Any, ...]] = [()] * self.n_parts if own is None else [(item,) for item in own]
        calls = zip(range(self.n_parts), firsts, strict=True)
        return [self.at(number, method, *first, *args) for number, first in calls]

    def total(self, method: str, *args: Any, changes: bool = False) -> Any:
        """The sum of the method's results; at most log2(parts) partial sums are held at once."""
        return tree_total(lambda number: self.at(number, method, *args), 0, self.n_parts)


class Local(InProcess):
    """Parts that are all in memory."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = list(parts)

    @property
    def n_parts(self) -> int:
        """Number of parts."""
        return len(self.parts)

    def keep(self, numbers: Sequence[int]) -> None:
        """Let go of all parts but these."""
        self.parts = [self.parts[number] for number in numbers]

    def part(self, number: int) -> Any:
        """The part itself."""
        return self.parts[number]


#: Backends made inside `releasing`.
_opened: ContextVar[list[Backend] | None] = ContextVar("potentia_backends", default=None)


@contextmanager
def releasing() -> Iterator[None]:
    """Close every backend that is made inside, at the end; one sentence if memory ends."""
    opened: list[Backend] = []
    token = _opened.set(opened)
    try:
        with enough_memory("this fit or prediction"):
            yield
    finally:
        _opened.reset(token)
        for backend in opened:
            backend.close()


def opened(backend: Backend) -> Backend:
    """The backend, which the `releasing` around it will close."""
    backends = _opened.get()
    if backends is not None:
        backends.append(backend)
    return backend


def tree_total(value: Callable[[int], Any], first: int, last: int) -> Any:
    """The sum of value(first) .. value(last - 1) over the tree that splits at multiples of powers of two."""
    if last - first <= 1:
        return value(first) if last > first else None
    half = _middle(first, last)
    return add(tree_total(value, first, half), tree_total(value, half, last))


def tree_cover(first: int, last: int, start: int, stop: int) -> list[tuple[int, int]]:
    """The fewest ranges that the tree over first .. last - 1 sums by themselves and that make up start .. stop - 1."""
    start, stop = max(first, start), min(last, stop)
    if start >= stop:
        return []
    if (start, stop) == (first, last):
        return [(first, last)]
    half = _middle(first, last)
    return tree_cover(first, half, start, stop) + tree_cover(half, last, start, stop)


def tree_join(sums: Mapping[tuple[int, int], Any], first: int, last: int) -> Any:
    """The tree's total from sums of ranges that it sums by themselves, which make up all of it."""
    if (first, last) in sums:
        return sums[first, last]
    half = _middle(first, last)
    return add(tree_join(sums, first, half), tree_join(sums, half, last))


def _middle(first: int, last: int) -> int:
    """Where the tree over first .. last - 1 splits."""
    return first + (1 << (last - first - 1).bit_length() - 1)


def add(a: Any, b: Any) -> Any:
    """a + b for numbers, arrays (`a` is overwritten), tuples and dictionaries of them; None counts as nothing."""
    if a is None or b is None:
        return b if a is None else a
    if isinstance(a, tuple):
        return tuple(add(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return {key: add(a.get(key), b.get(key)) for key in {**a, **b}}
    if isinstance(a, np.ndarray):
        a += b
        return a
    return a + b

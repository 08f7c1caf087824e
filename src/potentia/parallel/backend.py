"""`Backend`: two verbs over the parts of a data set, whatever a part is and wherever it lives.

Sums run over a fixed binary tree of part numbers, so a total does not depend on who computed which part.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


class Backend(ABC):
    """Calls a method, by name, of every part.

    `own`: one more argument for each part, passed first. `changes`: the call changes the parts' state.
    """

    @property
    @abstractmethod
    def n_parts(self) -> int:
        """Number of parts."""

    @abstractmethod
    def each(
        self, method: str, *args: Any, own: Sequence[Any] | None = None, changes: bool = False
    ) -> list[Any]:
        """The method's result for every part, in part order."""

    @abstractmethod
    def total(self, method: str, *args: Any, changes: bool = False) -> Any:
        """The sum of the method's results (numbers, arrays, tuples, dictionaries; None counts as nothing)."""


class Local(Backend):
    """Parts in this process, one after another; a part's own work is shared out over threads."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = list(parts)

    @property
    def n_parts(self) -> int:
        """Number of parts."""
        return len(self.parts)

    def each(
        self, method: str, *args: Any, own: Sequence[Any] | None = None, changes: bool = False
    ) -> list[Any]:
        """The method's result for every part, in part order."""
        extra: Sequence[tuple[Any, ...]] = [()] * self.n_parts if own is None else [(item,) for item in own]
        return [getattr(part, method)(*first, *args) for part, first in zip(self.parts, extra, strict=True)]

    def total(self, method: str, *args: Any, changes: bool = False) -> Any:
        """The sum of the method's results; at most log2(parts) partial sums are held at once."""
        return tree_total(lambda number: getattr(self.parts[number], method)(*args), 0, self.n_parts)


def tree_total(value: Callable[[int], Any], first: int, last: int) -> Any:
    """The sum of value(first) .. value(last - 1) over the tree that splits at multiples of powers of two."""
    if last - first <= 1:
        return value(first) if last > first else None
    half = first + (1 << (last - first - 1).bit_length() - 1)
    return add(tree_total(value, first, half), tree_total(value, half, last))


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

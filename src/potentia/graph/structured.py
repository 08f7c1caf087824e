"""Structured factors: scores of many variables that depend on one outcome of them, such as how many are on.

The outcome is a commutative sum: each variable's state is an element of a small monoid, and the sum of all elements
decides. Messages, log Z and gradients of such a factor come from sums over a balanced tree of its variables
(`kernels.factors`), so that its table of all configurations is never written out.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from ..base.types import ArrayLike, Bools, Floats, Ints, PotentiaError, real_numbers, shown, texts_of, whole_numbers
from ..kernels.tables import LARGEST

#: Most states of variables that `AllDifferent` takes: its elements are sets of states.
MAX_DIFFERENT = 8


@dataclass(frozen=True)
class Structure:
    """What a factor's score depends on.

    Attributes:
        rule: "count" (how many variables are on), "parity" (whether that is even), "same" (the state that all variables
            have, if they have one) or "different" (whether no two have one state).
        limit: of "count": this many or more are one outcome.
        on: of "count" and "parity": the state that counts, for all variables or one for each.
    """

    rule: str
    limit: int = 0
    on: tuple[int, ...] = (1,)

    def n_outcomes(self, order: int, n_states: int) -> int:
        """Number of outcomes of a region of `order` variables with up to `n_states` states."""
        return {"count": min(self.limit, order) + 1, "same": n_states + 1}.get(self.rule, 2)

    def sums(self, n_states: int) -> tuple[Ints, Ints]:
        """The element that two elements add up to, (n, n), and the outcome of each; of other rules than "count"."""
        if self.rule == "parity":
            return np.array([[0, 1], [1, 0]]), np.arange(2)
        if self.rule == "same":
            element = np.arange(n_states + 1)
            alike = (element[:, None] == element) & (element < n_states)
            return np.where(alike, element, n_states), element
        sets = np.arange(2**n_states)
        table = np.full((len(sets) + 1,) * 2, len(sets))
        table[:-1, :-1] = np.where(sets[:, None] & sets, len(sets), sets[:, None] | sets)
        return table, np.append(np.zeros_like(sets), 1)

    def all_sums(self, order: int, n_states: int) -> tuple[Ints, Ints]:
        """`sums` of every rule; of "count" the table is quadratic in the number of outcomes."""
        if self.rule != "count":
            return self.sums(n_states)
        count = np.arange(self.n_outcomes(order, n_states))
        return np.minimum(count[:, None] + count, count[-1]), count

    def symbols(self, order: int, n_states: int) -> Ints:
        """The element that each state of each variable stands for, (order, n_states)."""
        states = np.broadcast_to(np.arange(n_states), (order, n_states))
        if self.rule == "same":
            return states
        if self.rule == "different":
            return 1 << states
        return (states == np.resize(self.on, order)[:, None]).astype(np.int64)

    def configurations(self, shape: tuple[int, ...], n_states: int) -> Ints:
        """The outcome of every configuration of a table of this shape."""
        return self.outcomes(np.moveaxis(np.indices(tuple(shape)), 0, -1), n_states)

    def outcomes(self, labels: Ints, n_states: int) -> Ints:
        """The outcome of labels (..., order)."""
        order = labels.shape[-1]
        if self.rule == "same":
            return np.where((labels == labels[..., :1]).all(axis=-1), labels[..., 0], n_states)
        if self.rule == "different":
            ordered = np.sort(labels, axis=-1)
            return (ordered[..., 1:] == ordered[..., :-1]).any(axis=-1).astype(np.int64)
        count = (labels == np.resize(self.on, order)).sum(axis=-1)
        return count % 2 if self.rule == "parity" else np.minimum(count, min(self.limit, order))


class StructuredValue(ABC):
    """A value of theta for regions of any number of variables; subclasses say what the score depends on.

    names: of the variables, for models that call them by name (labels of a multi-label model, say).
    """

    names: tuple[str, ...] = ()
    #: Number of variables that must be given by name, if any are.
    arity: ClassVar[int] = 1

    @abstractmethod
    def structure(self, order: int) -> Structure:
        """What the score of a region of `order` variables depends on."""

    @abstractmethod
    def table(self, order: int, n_states: int) -> Floats:
        """The score of every outcome, (n_outcomes,), or for each region its own, (n_regions, n_outcomes)."""

    @abstractmethod
    def pull(self, d_table: Floats, order: int, n_states: int) -> Floats | None:
        """Cotangents of `table` as those of the value's parameter, in its shape; None if it has none."""

    def __sklearn_clone__(self) -> Self:
        """An unfitted copy, with the names, which are no option."""
        copied = copy.copy(self)
        for name in [name for name in vars(copied) if name.endswith("_")]:
            delattr(copied, name)
        return copied

    def take_names(self, names: tuple[str, ...]) -> None:
        """Set the names of the variables."""
        self.names = tuple(texts_of("names", names)) if names else ()
        if len(set(self.names)) < len(self.names):
            raise PotentiaError(f"{type(self).__name__} names a variable twice: {', '.join(self.names)}.")
        if self.names and len(self.names) < self.arity:
            raise PotentiaError(f"{type(self).__name__} needs at least {self.arity} names, not {len(self.names)}.")

    def score(self, labels: ArrayLike) -> Floats:
        """The scores of labellings, (..., n_variables) -> (...), for a factor that is not of several regions."""
        y = whole_numbers(labels, "labels")
        if y.ndim == 0 or y.shape[-1] < self.arity or (self.names and y.shape[-1] != len(self.names)):
            wanted = str(len(self.names) or f"at least {self.arity}")
            raise PotentiaError(f"labels has shape {y.shape}; the last axis must have {wanted} variables.")
        if y.size and y.min() < 0:
            raise PotentiaError("labels must be complete; they hold -1.")
        n_states = int(y.max(initial=1)) + 1
        table = self.table(y.shape[-1], n_states)
        if table.ndim != 1:
            raise PotentiaError(f"{type(self).__name__} has a weight for each of {len(table)} regions; give one.")
        scores: Floats = table[self.structure(y.shape[-1]).outcomes(y, n_states)]
        return scores

    def allows(self, labels: ArrayLike) -> Bools:
        """Whether labellings are allowed, (..., n_variables) -> (...): their score is not -inf."""
        return np.asarray(self.score(labels) > -np.inf)


def outcome_scores(weight: Any, unit: ArrayLike) -> Floats:
    """-weight times `unit` (n_outcomes,): of one weight, infinity for a hard constraint, or of one for each region."""
    if weight is None:
        raise PotentiaError("a factor without a weight is learned by a CRF; in theta give its weight.")
    cost = real_numbers(weight, "weight")
    if cost.ndim > 1 or np.isnan(cost).any() or np.any(np.isneginf(cost)):
        raise PotentiaError(
            f"weight must be a number, infinite for a hard constraint, or one per region, not {shown(weight)}."
        )
    paid = np.asarray(unit, dtype=np.float64) > 0
    table: Floats = np.where(paid, -cost[..., None], 0.0)
    return table


def checked_scores(scores: Any, name: str) -> Floats:
    """Scores of outcomes, (k,) or (n_regions, k): -inf forbids."""
    table = real_numbers(scores, name)
    if table.ndim not in (1, 2) or not table.shape[-1]:
        raise PotentiaError(f"{name} must have shape (k,), or (n_regions, k), not {table.shape}.")
    if not np.all((np.abs(table) <= LARGEST) | np.isneginf(table)):
        raise PotentiaError(f"{name} holds NaN, +inf or a score beyond 1e100; only -inf may be infinite.")
    return table

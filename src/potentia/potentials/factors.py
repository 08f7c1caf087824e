"""Structured factors: constraints and scores of many variables at once, with fast messages.

`theta = {"group": pt.factors.AtMostOne()}` constrains every region of kind "group"; a finite `weight` is the cost
of violating it. In a `pt.CRF`, `weight=None` (and `Cardinality()`) learns a score for each outcome.

Regions of one or two variables are written out as tables. Larger ones score by an *outcome* (how many variables are on,
say), and `result.marginals["group"]` has a row of outcome probabilities for each, (n_regions, n_outcomes), in the order
that each class states. Message passing links such regions to their variables only, not to regions inside them. `MAP`,
`Exact`, `Anytime` and `LinearProgram` use tables of auxiliary variables; `Gibbs`, the residual schedule and implicit
gradients refuse them. `IteratedLogistic` needs finite scores.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..base.types import Floats, PotentiaError, check_count, real_numbers
from ..graph.structured import MAX_DIFFERENT, Structure, StructuredValue, checked_scores, outcome_scores
from .linear import Linear
from .problem import Batch, Problem

__all__ = ["AllDifferent", "And", "AtMostOne", "Cardinality", "ExactlyOne", "Implies", "Or", "Parity", "PnPotts"]


@dataclass(frozen=True)
class Outcomes(StructuredValue):
    """A value of theta made by a fitted factor: what scores depend on is that of the factor, scores are given."""

    factor: StructuredValue
    values: Floats

    def structure(self, order: int) -> Structure:
        """That of the factor."""
        return self.factor.structure(order)

    def table(self, order: int, n_states: int) -> Floats:
        """The scores."""
        return self.values

    def pull(self, d_table: Floats, order: int, n_states: int) -> Floats:
        """Cotangents of the scores are those of the table."""
        return d_table


class Factor(StructuredValue, Linear):
    """A value of theta, or in a `pt.CRF` a potential: with given scores a fixed one, otherwise one that is learned.

    What is learned is a score for each outcome, f(x) = x W + b of the features of a region, if it has any.
    """

    def __init__(
        self, on: int = 1, ridge: float = 1e-3, max_iter: int = 200, tol: float = 1e-6, intercept: bool = True
    ) -> None:
        super().__init__(ridge, max_iter, tol, intercept)
        check_count("on", on)
        self.on = on

    @property
    @abstractmethod
    def fixed(self) -> bool:
        """Whether scores are given, so that nothing is learned."""

    def check_shape(self, kind: str, shape: tuple[int, ...]) -> None:
        """Refuse regions of one or two variables, which have tables."""
        if len(shape) != 1:
            raise PotentiaError(
                f"the potential of {kind!r} is {type(self).__name__}, which needs regions of at least three variables: "
                "pairs take pt.Linear or pt.Constant."
            )

    def as_theta(self, values: Floats, shape: tuple[int, ...], shared: bool) -> Outcomes:
        """Scores of outcomes."""
        return Outcomes(self, values[0] if shared else values)

    def _row(self) -> Floats:
        """The given scores, (n_outputs_,)."""
        n_outputs = self.n_outputs_
        table = self.table(max(n_outputs - 1, 3), n_outputs - 1)
        if table.shape != (n_outputs,):
            raise PotentiaError(
                f"{type(self).__name__} in a CRF needs one row of {n_outputs} scores, or one weight, for all regions."
            )
        return table

    def _scores(self, x: Any) -> Floats:
        return np.tile(self._row(), (x.shape[0], 1)) if self.fixed else super()._scores(x)

    def _slope(self, batch: Batch) -> tuple[float, Floats]:
        if self.fixed:
            return batch.loss(self._scores(batch.x)), np.zeros_like(self.table_)
        return super()._slope(batch)

    def _improve(self, problem: Problem) -> tuple[float, float]:
        if not self.fixed:
            return super()._improve(problem)
        loss = self._objective(problem)
        return loss, loss

    def _vjp(self, x: Any, d_scores: Floats) -> Floats:
        d_parameters: Floats = super()._vjp(x, d_scores)
        return np.zeros_like(d_parameters) if self.fixed else d_parameters


class WeightedFactor(Factor):
    """A factor that costs its weight where it is violated.

    names: of the variables, for multi-label models. weight: infinity for a hard constraint, a cost, a cost per region,
    (m,), or None to learn the scores. on: the state of a variable that counts as on. Other options: `pt.Linear`.
    """

    def __init__(self, *names: str, weight: Any = math.inf, **options: Any) -> None:
        super().__init__(**options)
        self.take_names(names)
        self.weight = weight

    #: 1 for outcomes that violate the factor.
    bad: ClassVar[tuple[int, ...]] = ()

    @property
    def fixed(self) -> bool:
        """Whether there is a weight."""
        return self.weight is not None

    def table(self, order: int, n_states: int) -> Floats:
        """Minus the weight of outcomes that violate the factor."""
        return outcome_scores(self.weight, self.violated(order, n_states))

    def pull(self, d_table: Floats, order: int, n_states: int) -> Floats | None:
        """Cotangents of the weight; None of a hard constraint."""
        if np.any(np.isinf(real_numbers(self.weight, "weight"))):
            return None
        d_weight: Floats = np.asarray(-(d_table @ np.asarray(self.violated(order, n_states), dtype=float)))
        return d_weight

    def violated(self, order: int, n_states: int) -> list[int]:
        """1 for outcomes that violate the factor, (n_outcomes,)."""
        return [*self.bad][: self.structure(order).n_outcomes(order, n_states)]


class AtMostOne(WeightedFactor):
    """At most one variable is on; outcomes: none, one, more."""

    bad = (0, 0, 1)

    def structure(self, order: int) -> Structure:
        """The number of variables that are on, up to 2."""
        return Structure("count", 2, (self.on,))


class ExactlyOne(AtMostOne):
    """One variable is on; outcomes: none, one, more."""

    bad = (1, 0, 1)


class Or(WeightedFactor):
    """At least one variable is on; outcomes: none, some."""

    bad = (1, 0)

    def structure(self, order: int) -> Structure:
        """Whether any variable is on."""
        return Structure("count", 1, (self.on,))


class And(WeightedFactor):
    """All (binary) variables are on; outcomes: all, not all."""

    bad = (0, 1)

    def structure(self, order: int) -> Structure:
        """Whether any variable is off."""
        return Structure("count", 1, (1 - self._binary(),))

    def _binary(self) -> int:
        if self.on > 1:
            raise PotentiaError(f"{type(self).__name__} takes binary variables: on must be 0 or 1, not {self.on}.")
        return self.on


class Implies(And):
    """If the first (binary) variable is on, then at least one of the others is; outcomes: violated, satisfied."""

    arity, bad = 2, (1, 0)

    def structure(self, order: int) -> Structure:
        """Whether the first variable is off or another one on."""
        on = self._binary()
        return Structure("count", 1, (1 - on, *(on,) * (order - 1)))


class Parity(WeightedFactor):
    """An even number of variables is on, or with `odd` an odd one; outcomes: even, odd."""

    def __init__(self, *names: str, odd: bool = False, **options: Any) -> None:
        super().__init__(*names, **options)
        self.odd = odd

    def structure(self, order: int) -> Structure:
        """The parity of the number of variables that are on."""
        return Structure("parity", on=(self.on,))

    def violated(self, order: int, n_states: int) -> list[int]:
        """The other parity."""
        return [1, 0] if self.odd else [0, 1]


class PnPotts(WeightedFactor):
    """All variables have the same state [Kohli et al. 2007]; outcomes: all in state 0, 1, ..., mixed."""

    def structure(self, order: int) -> Structure:
        """The state that all variables share."""
        return Structure("same")

    def violated(self, order: int, n_states: int) -> list[int]:
        """Mixed states."""
        return [0] * n_states + [1]


class AllDifferent(WeightedFactor):
    """No two variables have the same state; outcomes: different, repeated. For up to 8 states."""

    def structure(self, order: int) -> Structure:
        """Whether a state is repeated."""
        return Structure("different")

    def violated(self, order: int, n_states: int) -> list[int]:
        """A repeated state."""
        if n_states > MAX_DIFFERENT:
            raise PotentiaError(
                f"AllDifferent takes variables of up to {MAX_DIFFERENT} states, not {n_states}: use a kind of pairs."
            )
        return [0, 1]


class Cardinality(Factor):
    """A score for the number of variables that are on; None learns it in a `pt.CRF`.

    counts: counts[k] if k are on, the last entry for K or more, (K + 1,), or for each region, (m, K + 1); -inf
    forbids. `Cardinality([0, 0, 0, -inf])` allows at most two. names and on are those of other factors.
    """

    def __init__(self, counts: Any = None, *names: str, **options: Any) -> None:
        super().__init__(**options)
        self.take_names(names)
        self.counts = counts

    @property
    def fixed(self) -> bool:
        """Whether there are scores."""
        return self.counts is not None

    def structure(self, order: int) -> Structure:
        """The number of variables that are on, up to the last that has its own score."""
        limit = order if self.counts is None else np.shape(self.counts)[-1] - 1
        return Structure("count", min(limit, order), (self.on,))

    def table(self, order: int, n_states: int) -> Floats:
        """The scores of 0, 1, ... variables."""
        if self.counts is None:
            raise PotentiaError("Cardinality without scores is learned by a CRF; in theta give its scores.")
        return checked_scores(self.counts, "counts")[..., : order + 1]

    def pull(self, d_table: Floats, order: int, n_states: int) -> Floats:
        """Cotangents of the scores; zero of those of more variables than there are."""
        d_scores = np.zeros(np.shape(self.counts))
        d_scores[..., : d_table.shape[-1]] = d_table
        return d_scores

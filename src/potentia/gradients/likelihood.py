"""The likelihood and its approximations that need inference [MBL-tpami sec. 4.1 and 7.3]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..base.types import Floats, Ints, PotentiaError
from ..graph.cotangents import (
    MarginalCotangent,
    Tables,
    add_cliques,
    add_singles,
    clique_kinds,
    flat_marginals,
    own_tables,
    zero_tables,
)
from ..graph.scores import Scores
from ..inference.base import Expectations, Result
from ..kernels.regions import information
from .loss import Loss, Methods, label_difference, region_weights, subtract_labels


@dataclass(frozen=True)
class SurrogateLikelihood(Loss):
    """A(theta) - theta . f(y), gradient mu - f(y) [MBL-tpami Eq. 19-20]; A - A(clamped) where labels are hidden.

    One weight for all variables multiplies the loss. Different ones weigh the terms of A's variational form,
    sum_alpha w_alpha (theta . mu + c H(mu) - theta . f(y)), which needs the gradient through inference.
    """

    name: ClassVar[str] = "surrogate_likelihood"

    def evaluate(
        self, scores: Scores, labels: Ints, weights: Floats | None, methods: Methods
    ) -> tuple[float, Tables]:
        """The loss and its gradient."""
        if weights is None or np.all(weights == weights[0]):
            value, tables = self._unweighted(scores, labels, methods)
            factor = 1.0 if weights is None or len(weights) == 0 else float(weights[0])
            return factor * value, {kind: factor * table for kind, table in tables.items()}
        return TruncatedLikelihood().evaluate(scores, labels, weights, methods)

    def _unweighted(self, scores: Scores, labels: Ints, methods: Methods) -> tuple[float, Tables]:
        free = methods.expect(scores)
        self._check(free)
        if np.all(labels >= 0):
            return free.value - subtract_labels(scores, labels, free.tables), free.tables
        given = methods.expect(scores.clamp(labels), clamped=True)
        self._check(given)
        return free.value - given.value, {
            kind: free.tables[kind] - given.tables[kind] for kind in free.tables
        }

    def _check(self, found: Expectations) -> None:
        """Whether the value of inference may be used as A."""


@dataclass(frozen=True)
class Likelihood(SurrogateLikelihood):
    """log Z - theta . f(y), exact: for forests and graphs that can be eliminated."""

    name: ClassVar[str] = "likelihood"

    def _check(self, found: Expectations) -> None:
        if found.bound != "exact" or found.target != "log_partition":
            raise PotentiaError(
                "the likelihood needs exact inference (pt.Exact()): use 'surrogate_likelihood' with another."
            )


@dataclass(frozen=True)
class SurrogateEM(SurrogateLikelihood):
    """A(theta) - A(theta, observed clamped) [MBL-tpami Eq. 21]; the clamped inference may be another method.

    Mean field clamped with TRW free bounds the true loss from above.
    """

    name: ClassVar[str] = "surrogate_em"


@dataclass(frozen=True)
class SaddlePoint(Loss):
    """theta . f(MAP) - theta . f(y); where labels are hidden, y is completed by the MAP given the others."""

    name: ClassVar[str] = "saddle_point"

    def evaluate(
        self, scores: Scores, labels: Ints, weights: Floats | None, methods: Methods
    ) -> tuple[float, Tables]:
        """The loss and its gradient f(MAP) - f(y), weighted by region."""
        best = methods.inference.run(scores, None).argmax()
        given = labels
        if np.any(labels < 0):
            given = methods.clamped.run(scores.clamp(labels), None).argmax()
        return label_difference(scores, best, given, weights)


@dataclass(frozen=True)
class TruncatedLikelihood(Loss):
    """A(theta) - theta . f(y) with A := theta . mu + H(mu) at the marginals reached [MBL-tpami sec. 7.3].

    H = sum_i C_i H(mu_i) - sum_c c_c I(mu_c): node entropies minus weighted mutual informations, Eq. 16 for TRW.
    Too few iterations make it diverge: nothing then stops A from falling without end. Hidden labels as in EM.
    """

    name: ClassVar[str] = "truncated_likelihood"

    def evaluate(
        self, scores: Scores, labels: Ints, weights: Floats | None, methods: Methods
    ) -> tuple[float, Tables]:
        """The loss and its gradient through inference."""
        value, tables = _truncated(scores, weights, methods)
        if np.all(labels >= 0):
            return value - subtract_labels(scores, labels, tables, weights), tables
        given, d_given = _truncated(scores.clamp(labels), weights, methods, clamped=True)
        return value - given, {kind: tables[kind] - d_given[kind] for kind in tables}


@dataclass(frozen=True)
class TruncatedEM(TruncatedLikelihood):
    """A(theta) - A(theta, observed clamped), both at the marginals reached."""

    name: ClassVar[str] = "truncated_em"


def _truncated(
    scores: Scores, weights: Floats | None, methods: Methods, clamped: bool = False
) -> tuple[float, Tables]:
    """sum_alpha w_alpha theta . mu + H(mu), weighted alike, and its gradient."""
    inference = methods.clamped if clamped else methods.inference
    counting = inference.counting_numbers(scores.graph)
    if counting is None:
        raise PotentiaError(
            f"{type(inference).__name__} on this graph has no entropy in terms of marginals, which this loss needs."
        )
    result, pull = methods.solve(scores, clamped=clamped)
    own = np.ones(scores.graph.n_variables) if weights is None else weights
    value, d_singles = _of_variables(scores, result, own, counting)
    direct, d_cliques = zero_tables(scores), {}
    add_singles(scores, own[:, None] * result.variable_marginals, direct)
    for kind in clique_kinds(scores):
        weight, size = region_weights(scores, kind, weights), scores.graph.table_sizes(kind)
        flat = flat_marginals(result.marginals[kind])
        more, d_cliques[kind] = _of_cliques(scores, kind, result, weight, counting, d_singles)
        value += more
        add_cliques(scores, kind, np.repeat(weight, size) * flat, direct)
    pulled = pull(MarginalCotangent(d_singles, d_cliques))
    return value, {kind: direct[kind] + pulled[kind] for kind in direct}


def _of_variables(scores: Scores, result: Result, own: Floats, counting: Floats) -> tuple[float, Floats]:
    """sum_i w_i (theta_i . mu_i + C_i H(mu_i)) and its derivative; C_i sums c over all regions with i."""
    regions = scores.regions
    total = np.add.reduceat(counting[regions.member], regions.member_ptr[:-1])[:, None]
    mu = result.variable_marginals
    theta = np.where(np.isfinite(scores.singles), scores.singles, 0.0)
    log_mu = np.log(np.where(mu > 0, mu, 1.0))
    value = float(own @ ((theta - total * log_mu) * mu).sum(axis=1))
    return value, own[:, None] * np.where(mu > 0, theta - total * (log_mu + 1.0), 0.0)


def _of_cliques(
    scores: Scores, kind: str, result: Result, weight: Floats, counting: Floats, d_singles: Floats
) -> tuple[float, Floats]:
    """sum_c w_c (theta_c . mu_c - c_c I(mu_c)) and its derivative; adds that of variables to d_singles."""
    graph, mu = scores.graph, result.variable_marginals
    number = graph.kinds.index(kind)
    own = counting[scores.regions.kind_ptr[number] : scores.regions.kind_ptr[number + 1]]
    flat = flat_marginals(result.marginals[kind])
    d_flat = np.zeros(len(flat))
    value = information(
        graph.scopes[kind], graph.n_states, weight, own, own_tables(scores, kind), flat, mu,
        np.log(np.where(mu > 0, mu, 1.0)), d_flat, d_singles,
    )  # fmt: skip
    return float(value), d_flat

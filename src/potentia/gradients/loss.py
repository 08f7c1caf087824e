"""The interface between losses, inference and gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from ..base.saving import Registered
from ..base.types import Bools, Floats, Ints, PotentiaError
from ..graph.cotangents import MarginalCotangent, Tables, add_singles, clique_kinds, zero_tables
from ..graph.scores import Scores, region_scores
from ..inference.base import Expectations, Inference, Result

#: Cotangents of a result's marginals to cotangents of its scores; to be called once.
Pull = Callable[[MarginalCotangent], Tables]


class Solve(Protocol):
    """Inference, and what pulls cotangents of its marginals back."""

    def __call__(
        self, inference: Inference, scores: Scores, cliques: bool = True, /
    ) -> tuple[Result, Pull]: ...


@dataclass(frozen=True)
class Methods:
    """How a loss may call inference: `solve` when it needs the gradient through marginals, `expect` for a value's own.

    Losses of variables alone may solve without `cliques`, whose marginals and value then need not be computed.
    inference: that of the model. clamped: what runs given the observed labels, where a loss needs that (EM).
    """

    inference: Inference
    clamped: Inference
    solve: Solve
    expect: Callable[[Inference, Scores], Expectations]


class Loss(Registered, ABC):
    """A function of scores and labels to be minimised, with its gradient.

    A custom loss is a dataclass of its options that implements `evaluate`; `MarginalLoss` asks for less where the loss
    only looks at marginals.
    """

    #: Name in `pt.loss_and_gradient` and `pt.MarginalRisk`; custom losses need none.
    name: ClassVar[str] = ""

    @abstractmethod
    def evaluate(
        self, scores: Scores, labels: Ints, weights: Floats | None, methods: Methods
    ) -> tuple[float, Tables]:
        """The loss and d_theta.

        Args:
            scores: theta of a graph.
            labels: (n,), -1 where hidden.
            weights: of the variables, (n,) and not negative, or None.
            methods: inference and gradients through it.
        """


def region_weights(scores: Scores, kind: str, weights: Floats | None) -> Floats:
    """Weight of every region of a kind: the mean of its variables'."""
    scope = scores.graph.scopes[kind]
    return np.ones(len(scope)) if weights is None else weights[scope].mean(axis=1)


def seen_regions(scores: Scores, kind: str, labels: Ints) -> Bools:
    """Regions all of whose variables have labels."""
    return np.all(labels[scores.graph.scopes[kind]] >= 0, axis=1)


def tables_by_size(scores: Scores, kind: str, seen: Bools) -> Iterator[tuple[Ints, Ints]]:
    """Regions of a kind that are `seen`, those of one table size at a time, and where their entries lie, (k, size)."""
    size = scores.graph.table_sizes(kind)
    start = np.cumsum(size) - size
    for entries in np.unique(size):
        rows = np.flatnonzero(seen & (size == entries))
        yield rows, start[rows][:, None] + np.arange(entries)


def label_difference(
    scores: Scores, first: Ints, second: Ints, weights: Floats | None
) -> tuple[float, Tables]:
    """theta . f(first) - theta . f(second) of complete labellings, and its gradient, both weighted by region."""
    tables = zero_tables(scores)
    value = subtract_labels(scores, first, tables, weights)
    tables = {kind: -table for kind, table in tables.items()}
    return value - subtract_labels(scores, second, tables, weights), tables


def subtract_labels(scores: Scores, labels: Ints, tables: Tables, weights: Floats | None = None) -> float:
    """tables -= f(y) for a complete labelling; returns theta . f(y); both weighted by region."""
    n = np.arange(len(labels))
    own = np.ones(len(labels)) if weights is None else weights
    indicator = np.zeros_like(scores.singles)
    indicator[n, labels] = own
    add_singles(scores, -indicator, tables)
    total = own @ scores.singles[n, labels]
    for kind in clique_kinds(scores):
        weight, index = region_weights(scores, kind, weights), scores.graph.table_index(kind, labels)
        total += weight @ region_scores(scores, kind, labels)
        if kind in scores.weighted:
            weighted = scores.weighted[kind]
            tables[kind] -= weighted.sum(weight * weighted.unit.ravel()[index])
        else:
            values, offset = scores.as_given(kind)
            tables[kind] -= np.bincount(offset + index, weights=weight, minlength=len(values))
    if total == -np.inf:
        raise PotentiaError("the labels have a forbidden (-inf) configuration.")
    return float(total)

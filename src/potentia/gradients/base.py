"""The interface of losses and gradients through inference."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

import numpy as np

from ..base.saving import Registered
from ..base.schema import Array, Either, Schema, check_state
from ..base.types import Bools, Floats, Ints, PotentiaError, prefixed
from ..graph.cotangents import MarginalCotangent, Tables, add_singles, zero_tables
from ..graph.scores import Scores, region_scores
from ..graph.structure import Graph
from ..inference.base import Expectations, Inference, Result

#: Cotangents of a result's marginals to cotangents of its scores; to be called once.
Pull = Callable[[MarginalCotangent], Tables]

#: Tolerances below this may not be met at a fixed point, because of rounding; the residual is then compared with the
#: default tolerance.
_STRICT, _DEFAULT = 1e-10, 1e-6


class GradientError(PotentiaError):
    """A gradient that is not finite at these scores; a line search takes it for a step that went too far."""


class Gradient(Registered, ABC):
    """A way through inference: the result, and what pulls cotangents of its marginals back to scores.

    A custom gradient is a dataclass of its options that implements `solve`.
    """

    #: Inference may start from an earlier result, because the gradient is that of a fixed point.
    at_fixed_point: ClassVar[bool] = True

    @abstractmethod
    def solve(
        self, inference: Inference, scores: Scores, start: Result | None = None, cliques: bool = True
    ) -> tuple[Result, Pull]:
        """Inference, and the function that pulls cotangents of its marginals back; that is called once.

        Without `cliques` the result may lack marginals of cliques and its value (nan), for losses of variables alone.
        """

    def doubt(self, inference: Inference, result: Result) -> str | None:
        """Why the gradient at a result is inaccurate, in one sentence; None if nothing is known against it.

        What only the function of `solve` can know, it leaves in `result.memo["doubt"]`.
        """
        if self.at_fixed_point and _moving(inference, result):
            return (
                "Inference did not converge, which this gradient requires: raise the `iterations` of inference, or use "
                "gradient='truncated'."
            )
        doubt: str | None = result.memo.get("doubt")
        return doubt


def _moving(inference: Inference, result: Result) -> bool:
    """Whether marginals still change by more than the tolerance, if there is one, or the default one."""
    strict = getattr(inference, "tol", 0.0) < _STRICT
    return result.residual > _DEFAULT if strict else not result.converged


class Methods:
    """Inference as losses call it: `solve` for the gradient through marginals, `expect` for that of the value.

    Each loss calls inference at most twice: free, and given the observed labels (clamped, for EM).

    Args:
        inference: that of the model.
        gradient: how marginals are differentiated.
        clamped: what runs given the observed labels; None for `inference`.
        starts: what `next_starts` gave after the last evaluation on the same graph, which is right for methods run to
            convergence only; None to use none.
    """

    def __init__(
        self,
        inference: Inference,
        gradient: Gradient,
        clamped: Inference | None = None,
        starts: Mapping[str, Floats] | None = None,
    ) -> None:
        self.inference, self.gradient, self.starts = inference, gradient, starts
        self.clamped = clamped or inference
        self._results: dict[str, Result] = {}
        self._differentiated: list[tuple[Inference, Result]] = []

    def solve(self, scores: Scores, cliques: bool = True, clamped: bool = False) -> tuple[Result, Pull]:
        """Inference, and what pulls cotangents of its marginals back.

        Losses of variables alone may solve without `cliques`, whose marginals and value then need not be computed.
        """
        inference, name = self._method(clamped)
        result, pull = self.gradient.solve(inference, scores, self._start(name, scores), cliques)
        self._results[name] = result
        self._differentiated.append((inference, result))
        return result, pull

    def expect(self, scores: Scores, clamped: bool = False) -> Expectations:
        """The value of inference and its gradient by the scores."""
        inference, name = self._method(clamped)
        expected = inference.expectations(scores, self._start(name, scores))
        if expected.result is not None:
            self._results[name] = expected.result
        return expected

    def _method(self, clamped: bool) -> tuple[Inference, str]:
        """The method to run, and the name of its start."""
        return (self.clamped, "clamped") if clamped else (self.inference, "free")

    def _start(self, name: str, scores: Scores) -> Result | None:
        """As much of an earlier result as a start needs."""
        start = prefixed(self.starts or {}, f"{name}/")
        if not start:
            return None
        result = Result(
            graph=scores.graph, scores=scores, marginals={}, value=np.nan, bound="estimate", target="log_partition",
            variable_marginals=start.get("marginals", _NONE), messages=start.get("messages"),
            iterations=int(start["iterations"][0]), residual=np.inf, converged=False, best=Result.mpm,
        )  # fmt: skip
        if "cotangents" in start:
            result.memo["cotangents"] = start["cotangents"]
        return result

    def next_starts(self) -> dict[str, Floats] | None:
        """Messages that the next evaluation may start from, as named arrays; None if evaluations use none."""
        if self.starts is None:
            return None
        starts = {}
        for name, result in self._results.items():
            starts[f"{name}/iterations"] = np.array([result.iterations])
            sent = isinstance(result.messages, np.ndarray)
            starts[f"{name}/{'messages' if sent else 'marginals'}"] = (
                result.messages if sent else result.variable_marginals
            )
            cotangents = result.memo.get("cotangents")
            if cotangents is not None and np.isfinite(cotangents).all():  # others are no start
                starts[f"{name}/cotangents"] = cotangents
        return starts

    def doubt(self) -> str | None:
        """Why the gradient is inaccurate, in one sentence; None if nothing is known against it."""
        doubts = (self.gradient.doubt(inference, result) for inference, result in self._differentiated)
        return next(filter(None, doubts), None)


_NONE = np.zeros((0, 0))


def check_starts(graph: Graph, starts: Mapping[str, Floats]) -> dict[str, Floats]:
    """Saved arrays of `Methods.next_starts`, checked."""
    # floats of message passing, or labels of every chain of Gibbs sampling
    messages = Either(
        Array("f8", None, below=np.inf, finite=False),
        Array("i8", ("chains", graph.n_variables), low=0, below=graph.n_states),
        optional=True,
    )
    marginals = Array("f8", (graph.n_variables, int(graph.n_states.max())), low=0.0, optional=True)
    checked: dict[str, Floats] = {}
    for name in {key.split("/")[0] for key in starts}:
        schema: Schema = {
            f"{name}/messages": messages,
            f"{name}/marginals": marginals,
            f"{name}/iterations": Array("i8", (1,), low=0, below=2**62),
            f"{name}/cotangents": Array("f8", None, optional=True),
        }
        checked |= {key: array for key, array in check_state(schema, starts).items() if array is not None}
    return checked


class Loss(Registered, ABC):
    """A function of scores and labels to be minimised, with its gradient.

    A custom loss is a dataclass of its options that implements `evaluate`; `MarginalLoss` asks for less where the loss
    only looks at marginals.
    """

    @abstractmethod
    def evaluate(self, scores: Scores, labels: Ints, weights: Floats | None, methods: Methods) -> tuple[float, Tables]:
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


def label_difference(scores: Scores, first: Ints, second: Ints, weights: Floats | None) -> tuple[float, Tables]:
    """theta . f(first) - theta . f(second) of complete labellings, and its gradient, both weighted by region."""
    tables = zero_tables(scores)
    value = subtract_labels(scores, first, tables, weights)
    tables = {kind: -table for kind, table in tables.items()}
    return value - subtract_labels(scores, second, tables, weights), tables


def subtract_labels(scores: Scores, labels: Ints, tables: Tables, weights: Floats | None = None) -> float:
    """tables -= f(y) for a complete labelling; returns theta . f(y); both weighted by region."""
    n = np.arange(len(labels))
    weight_of = np.ones(len(labels)) if weights is None else weights
    indicator = np.zeros_like(scores.singles)
    indicator[n, labels] = weight_of
    add_singles(scores, -indicator, tables)
    total = weight_of @ scores.singles[n, labels]
    for kind in scores.graph.clique_kinds:
        weight, index = region_weights(scores, kind, weights), scores.graph.table_index(kind, labels)
        total += weight @ region_scores(scores, kind, labels)
        if kind in scores.weighted:
            weighted = scores.weighted[kind]
            tables[kind] -= weighted.sum(weight * weighted.unit.ravel()[index])
        else:
            values, offset = scores.kind(kind, widen=False)
            tables[kind] -= np.bincount(offset + index, weights=weight, minlength=len(values))
    if total == -np.inf:
        raise PotentiaError("the labels have a forbidden (-inf) configuration.")
    return float(total)

"""A loss, an inference and a gradient method put together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np

from ..base.options import check_choice
from ..base.schema import Array, Either, Schema, check_state
from ..base.types import (
    ArrayLike,
    ConvergenceWarning,
    Floats,
    Ints,
    PotentiaError,
    real_numbers,
    shown,
    warn_caller,
)
from ..graph.cotangents import MarginalCotangent, Tables, user_tables
from ..graph.labels import check_labels
from ..graph.scores import Scores
from ..graph.structure import Graph
from ..inference.base import Expectations, Inference, Result
from .base import Gradient
from .implicit import Implicit
from .loss import Loss, Methods, Pull
from .losses import LossName, loss_of
from .marginal import MarginalLoss
from .perturbation import Perturbation
from .truncated import BackPropagation, Truncated

GradientName = Literal["truncated", "backpropagation", "perturbation", "implicit"]
GRADIENTS: dict[str, type[Gradient]] = {
    "truncated": Truncated,
    "backpropagation": BackPropagation,
    "perturbation": Perturbation,
    "implicit": Implicit,
}


def gradient_of(given: str | Gradient) -> Gradient:
    """A gradient method by name with its default options, or the method itself."""
    if isinstance(given, Gradient):
        return given
    check_choice("gradient", given, GRADIENTS, "a Gradient")
    return GRADIENTS[given]()


class Memory:
    """Results of a loss's inference calls, in their order, for the next evaluation on the same graph to start from."""

    def __init__(self) -> None:
        self._results: list[Result | None] = []
        self._saved: dict[str, Floats] = {}
        self._next = 0

    def rewind(self) -> None:
        """Called before an evaluation."""
        self._next = 0

    def start(self, scores: Scores) -> Result | None:
        """Where the next inference may start."""
        if self._next < len(self._results):
            return self._results[self._next]
        return self._revive(scores) if f"iterations{self._next}" in self._saved else None

    def _revive(self, scores: Scores) -> Result:
        """As much of a result as a start needs, from what `state` gave."""
        graph = scores.graph
        # floats of message passing, or labels of every chain of Gibbs sampling
        messages = Either(
            Array("f8", None, below=np.inf, finite=False),
            Array("i8", ("chains", graph.n_variables), low=0, below=graph.n_states),
            optional=True,
        )
        shape = graph.n_variables, int(graph.n_states.max())
        schema: Schema = {
            f"messages{self._next}": messages,
            f"marginals{self._next}": Array("f8", shape, low=0.0, optional=True),
            f"iterations{self._next}": Array("i8", (1,), low=0, below=2**62),
            f"cotangents{self._next}": Array("f8", None, optional=True),
        }
        sent, singles, iterations, cotangents = check_state(schema, self._saved).values()
        singles = np.zeros(shape) if singles is None else singles
        start = Result(
            graph, {}, singles, np.nan, "estimate", "log_partition", int(iterations[0]), np.inf, False, scores,
            lambda result: np.zeros(0, np.int64), sent,
        )  # fmt: skip
        if cotangents is not None:
            start.memo["cotangents"] = cotangents
        return start

    def keep(self, result: Result | None) -> None:
        """The inference just made."""
        self._results[self._next : self._next + 1] = [result]
        self._next += 1

    def state(self) -> dict[str, Floats]:
        """What the next evaluation starts from, as arrays."""
        found = dict(self._saved) if not self._results else {}
        for number, result in enumerate(self._results):
            if result is None:
                continue
            found[f"iterations{number}"] = np.array([result.iterations])
            sent = isinstance(result.messages, np.ndarray)
            name, start = ("messages", result.messages) if sent else ("marginals", result.variable_marginals)
            found[f"{name}{number}"] = start
            cotangents = result.memo.get("cotangents")
            if cotangents is not None and np.isfinite(cotangents).all():  # others are no start
                found[f"cotangents{number}"] = cotangents
        return found

    def restore(self, arrays: Mapping[str, Floats]) -> None:
        """Take back what `state` gave."""
        self._results, self._saved = [], dict(arrays)


class Evaluation(NamedTuple):
    """A loss, d_theta per kind, flat, and a sentence if something makes that inaccurate."""

    value: float
    tables: Tables
    doubt: str | None


def evaluate(
    loss: Loss,
    inference: Inference,
    gradient: Gradient,
    scores: Scores,
    labels: Ints,
    weights: Floats | None,
    clamped: Inference | None = None,
    memory: Memory | None = None,
) -> Evaluation:
    """The loss and its gradient; all arguments checked.

    memory: start inference where the last evaluation ended, which is right for methods run to convergence only.
    """
    kept = memory or Memory()
    kept.rewind()
    doubts: list[str | None] = []

    def solve(method: Inference, given: Scores, cliques: bool = True) -> tuple[Result, Pull]:
        result, pull = gradient.solve(method, given, kept.start(given), cliques)
        kept.keep(result)

        def checked(cotangent: MarginalCotangent) -> Tables:
            tables = pull(cotangent)
            doubts.append(gradient.doubt(method, result))
            return tables

        return result, checked

    def expect(method: Inference, given: Scores) -> Expectations:
        found = method.expectations(given, kept.start(given))
        kept.keep(found.result)
        return found

    methods = Methods(inference, clamped or inference, solve, expect)
    value, tables = loss.evaluate(scores, labels, weights, methods)
    return Evaluation(value, tables, next(filter(None, doubts), None))


def loss_and_gradient(
    loss: LossName | Loss,
    inference: Inference,
    graph: Graph,
    theta: Mapping[str, ArrayLike],
    y: ArrayLike,
    gradient: GradientName | Gradient = "truncated",
    *,
    weights: ArrayLike | None = None,
    class_weight: ArrayLike | None = None,
    clamped: Inference | None = None,
) -> tuple[float, dict[str, Floats | list[Floats]]]:
    """A loss of scores and labels and its gradient with respect to the scores.

    Args:
        loss: a name such as "univariate_logistic", "surrogate_likelihood" or "pseudolikelihood", or a loss object
            with options, such as `pt.losses.SmoothedError(alpha=50)`.
        inference: what predicts the marginals.
        theta: scores per kind, as for `infer`.
        y: labels (n,), -1 where hidden.
        gradient: "truncated" (through the iterations that were run), "backpropagation" (at a fixed point, nothing
            stored), "perturbation" or "implicit", or an object with options. All but the first require converged
            inference and emit `pt.ConvergenceWarning` otherwise.
        weights: of the variables, (n,).
        class_weight: of the states, multiplied to the weight of variables with that label.
        clamped: inference given the labels, for losses with hidden variables; None for the same.

    Returns:
        the loss and d_theta in the layout of theta; of scores given by a weight (`pt.Potts`, `pt.DenseGaussian`, ...)
        the derivative with respect to it, in its shape.
    """
    if not isinstance(inference, Inference):
        raise PotentiaError(
            f"inference, the second argument, must be an Inference such as pt.TRW(), not a {type(inference).__name__}."
        )
    scores = Scores(graph, theta, dense=inference.dense_pairs)
    labels = check_labels(graph, y, "y")
    chosen, through = loss_of(loss), gradient_of(gradient)
    if scores.dense and not (
        isinstance(chosen, MarginalLoss) and isinstance(through, Truncated | BackPropagation)
    ):
        raise PotentiaError(
            "a DenseGaussian goes with losses of marginals (univariate_logistic, clique_logistic, ...) and "
            "gradient='truncated' or 'backpropagation' only."
        )
    value, tables, doubt = evaluate(
        chosen, inference, through, scores, labels,
        variable_weights(graph, labels, weights, class_weight), clamped,
    )  # fmt: skip
    if doubt is not None:
        warn_caller(doubt, ConvergenceWarning)
    return value, user_tables(scores, tables, theta)


def variable_weights(
    graph: Graph, labels: Ints, weights: ArrayLike | None, class_weight: ArrayLike | None
) -> Floats | None:
    """Weight of every variable, or None if all are 1."""
    found: Floats | None = None
    if weights is not None:
        found = real_numbers(weights, "weights")
        if found.shape != (graph.n_variables,) or not np.all(np.isfinite(found) & (found >= 0)):
            raise PotentiaError(
                f"weights must hold {graph.n_variables} finite numbers >= 0, one per variable."
            )
    if class_weight is not None:
        table = class_factors(class_weight, int(graph.n_states.max()))
        factor = np.where(labels >= 0, table[np.maximum(labels, 0)], 1.0)
        found = factor if found is None else found * factor
    return found


def class_factors(class_weight: ArrayLike, n_states: int) -> Floats:
    """Class weights as an array, one per state."""
    table = real_numbers(class_weight, "class_weight")
    if table.shape != (n_states,) or not np.all(np.isfinite(table) & (table >= 0)):
        raise PotentiaError(
            f"class_weight must hold {n_states} finite numbers >= 0, one per state, not {shown(class_weight)}."
        )
    return table

"""A loss, an inference and a gradient method put together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from ..base.types import (
    ArrayLike,
    ConvergenceWarning,
    Floats,
    Ints,
    PotentiaError,
    by_name,
    real_numbers,
    shown,
    warn_caller,
)
from ..graph.cotangents import user_tables
from ..graph.scores import Scores, check_labels
from ..graph.structure import Graph
from ..inference.base import Inference
from .base import Gradient, Loss, Methods
from .implicit import Implicit
from .losses import LossName, MarginalLoss, loss_of
from .perturbation import Perturbation
from .truncated import BackPropagation, Truncated

GradientName = Literal["truncated", "backpropagation", "perturbation", "implicit"]
GRADIENTS: dict[str, type[Gradient]] = {
    "truncated": Truncated,
    "backpropagation": BackPropagation,
    "perturbation": Perturbation,
    "implicit": Implicit,
}


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
            with options, such as `pt.gradients.losses.SmoothedError(alpha=50)`.
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

    Example:
        >>> import potentia as pt
        >>> import numpy as np
        >>> graph = pt.Graph.chain(3, n_states=2)
        >>> theta = {"node": np.zeros((3, 2)), "edge": np.eye(2)}
        >>> value, d_theta = pt.loss_and_gradient("univariate_logistic", pt.TRW(), graph, theta, [0, 1, -1])
        >>> round(value, 4), d_theta["node"].shape, d_theta["edge"].shape
        (1.3863, (3, 2), (2, 2))
    """
    if not isinstance(inference, Inference):
        raise PotentiaError(
            f"inference, the second argument, must be an Inference such as pt.TRW(), not a {type(inference).__name__}."
        )
    scores = Scores(graph, theta, dense=inference.dense_pairs)
    labels = check_labels(graph, y, "y")
    chosen, through = loss_of(loss), by_name("gradient", gradient, GRADIENTS, Gradient)
    if scores.dense:
        check_dense_loss(chosen, through)
    methods = Methods(inference, through, clamped)
    variable_weight = variable_weights(graph, labels, weights, class_weight)
    value, tables = chosen.evaluate(scores, labels, variable_weight, methods)
    doubt = methods.doubt()
    if doubt is not None:
        warn_caller(doubt, ConvergenceWarning)
    return value, user_tables(scores, tables, theta)


def check_dense_loss(loss: Loss, gradient: Gradient) -> None:
    """Refuse losses and gradients that do not see Gaussian terms of all pairs."""
    if not (isinstance(loss, MarginalLoss) and isinstance(gradient, Truncated | BackPropagation)):
        raise PotentiaError(
            "a DenseGaussian goes with losses of marginals (univariate_logistic, clique_logistic, ...) and "
            "gradient='truncated' or 'backpropagation' only."
        )


def variable_weights(
    graph: Graph, labels: Ints, weights: ArrayLike | None, class_weight: ArrayLike | None
) -> Floats | None:
    """Weight of every variable, or None if all are 1."""
    weight: Floats | None = None
    if weights is not None:
        weight = real_numbers(weights, "weights")
        if weight.shape != (graph.n_variables,) or not np.all(np.isfinite(weight) & (weight >= 0)):
            raise PotentiaError(f"weights must hold {graph.n_variables} finite numbers >= 0, one per variable.")
    if class_weight is not None:
        table = class_factors(class_weight, int(graph.n_states.max()))
        factor = np.where(labels >= 0, table[np.maximum(labels, 0)], 1.0)
        weight = factor if weight is None else weight * factor
    return weight


def class_factors(class_weight: ArrayLike, n_states: int) -> Floats:
    """Class weights as an array, one per state."""
    table = real_numbers(class_weight, "class_weight")
    if table.shape != (n_states,) or not np.all(np.isfinite(table) & (table >= 0)):
        raise PotentiaError(
            f"class_weight must hold {n_states} finite numbers >= 0, one per state, not {shown(class_weight)}."
        )
    return table

"""Losses of predicted marginals [MBL-tpami sec. 4.2], and all losses by name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Literal

import numpy as np

from ..base.types import Floats, Ints, PotentiaError, by_name, check_positive
from ..graph.cotangents import MarginalCotangent, Tables, flat_marginals
from ..graph.scores import Scores
from ..inference.base import Result
from .base import Loss, Methods, region_weights, seen_regions, tables_by_size
from .likelihood import (
    ContrastiveDivergence,
    Likelihood,
    Piecewise,
    Pseudolikelihood,
    SaddlePoint,
    SurrogateLikelihood,
    TruncatedLikelihood,
)

__all__ = [
    "ContrastiveDivergence",
    "Likelihood",
    "Loss",
    "MarginalLoss",
    "Methods",
    "Piecewise",
    "Pseudolikelihood",
    "SaddlePoint",
    "SmoothedError",
    "SurrogateLikelihood",
    "TruncatedLikelihood",
    "UnivariateLogistic",
    "UnivariateQuadratic",
]

#: Marginals are taken as at least this, so that a wrong certainty costs much but stays finite.
_TINY = 1e-300


@dataclass(frozen=True)
class MarginalLoss(Loss):
    """A sum over observed variables, or cliques if `cliques`, of a function of their marginals.

    Variables and cliques of one configuration cannot be wrong, and are left out.
    """

    _: KW_ONLY
    cliques: bool = False

    @abstractmethod
    def terms(self, mu: Floats, y: Ints) -> tuple[Floats, Floats]:
        """Loss of every row of mu (k, states) with label y (k,), and its derivatives, (k, states); mu must stay."""

    def evaluate(self, scores: Scores, labels: Ints, weights: Floats | None, methods: Methods) -> tuple[float, Tables]:
        """The loss and its gradient through inference."""
        _refuse_forbidden(scores, labels)
        result, pull = methods.solve(scores, self.cliques)
        value, cotangent = (self._of_cliques if self.cliques else self._of_variables)(scores, result, labels, weights)
        return value, pull(cotangent)

    def _of_variables(
        self, scores: Scores, result: Result, labels: Ints, weights: Floats | None
    ) -> tuple[float, MarginalCotangent]:
        """The weighted sum over observed variables, and its derivative by marginals."""
        mu = result.variable_marginals
        counted = (labels >= 0) & (scores.graph.n_states > 1)
        whole = weights is None and bool(np.all(counted))  # the usual case needs no copies
        seen = slice(None) if whole else np.flatnonzero(counted)
        losses, slopes = self.terms(mu[seen], labels[seen])
        if slopes.shape != mu[seen].shape:
            raise PotentiaError(
                f"{type(self).__name__}.terms gave derivatives of shape {slopes.shape} for marginals of shape "
                f"{mu[seen].shape}."
            )
        if whole:
            return float(losses.sum()), MarginalCotangent(slopes, {})
        weight = np.ones(len(losses)) if weights is None else weights[seen]
        d_mu = np.zeros_like(mu)
        d_mu[seen] = weight[:, None] * slopes
        return float(weight @ losses), MarginalCotangent(d_mu, {})

    def _of_cliques(
        self, scores: Scores, result: Result, labels: Ints, weights: Floats | None
    ) -> tuple[float, MarginalCotangent]:
        """The weighted sum over cliques whose variables are all observed, and its derivative by marginals."""
        value, d_mu = 0.0, {}
        for kind in scores.graph.clique_kinds:
            index = scores.graph.table_index(kind, np.maximum(labels, 0))
            seen = seen_regions(scores, kind, labels) & (scores.graph.table_sizes(kind) > 1)
            weight = region_weights(scores, kind, weights)
            flat = flat_marginals(result.marginals[kind])
            d_mu[kind] = np.zeros(len(flat))
            for rows, where in tables_by_size(scores, kind, seen):
                losses, slopes = self.terms(flat[where], index[rows])
                value += float(weight[rows] @ losses)
                d_mu[kind][where] = weight[rows][:, None] * slopes
        return value, MarginalCotangent(None, d_mu)


def _refuse_forbidden(scores: Scores, labels: Ints) -> None:
    """Refuse a label that its variable's scores forbid."""
    seen = np.flatnonzero(labels >= 0)
    bad = seen[scores.singles[seen, labels[seen]] == -np.inf]
    if bad.size:
        raise PotentiaError(f"variable {bad[0]} has the label {labels[bad[0]]}, which its scores forbid.")


@dataclass(frozen=True)
class UnivariateLogistic(MarginalLoss):
    """-log mu(y) of variables, or of cliques."""

    def terms(self, mu: Floats, y: Ints) -> tuple[Floats, Floats]:
        """-log mu(y)."""
        rows = np.arange(len(y))
        right = np.maximum(mu[rows, y], _TINY)
        slopes = np.zeros_like(mu)
        slopes[rows, y] = -1.0 / right
        return -np.log(right), slopes


@dataclass(frozen=True)
class UnivariateQuadratic(MarginalLoss):
    """sum_s (mu(s) - [s = y])^2 of variables, or of cliques."""

    def terms(self, mu: Floats, y: Ints) -> tuple[Floats, Floats]:
        """sum_s (mu(s) - [s = y])^2."""
        off = mu.copy()
        off[np.arange(len(y)), y] -= 1.0
        return (off * off).sum(axis=1), 2.0 * off


@dataclass(frozen=True)
class SmoothedError(MarginalLoss):
    """S(max_{s != y} mu(s) - mu(y)) with S(t) = 1 / (1 + exp(-alpha t)): the classification error, smoothed."""

    alpha: float = 15.0

    def __post_init__(self) -> None:
        check_positive("alpha", self.alpha)

    def terms(self, mu: Floats, y: Ints) -> tuple[Floats, Floats]:
        """S of how far the best wrong state is above the right one."""
        from scipy.special import expit

        rows = np.arange(len(y))
        wrong = mu.copy()
        wrong[rows, y] = -1.0  # below any marginal
        rival = wrong.argmax(axis=1)
        loss = expit(self.alpha * (mu[rows, rival] - mu[rows, y]))
        slope = self.alpha * loss * (1.0 - loss)
        slopes = np.zeros_like(mu)
        slopes[rows, rival] += slope
        slopes[rows, y] -= slope
        return loss, slopes


LossName = Literal[
    "likelihood",
    "surrogate_likelihood",
    "surrogate_em",
    "saddle_point",
    "pseudolikelihood",
    "piecewise",
    "univariate_logistic",
    "clique_logistic",
    "univariate_quadratic",
    "clique_quadratic",
    "smoothed_error",
    "clique_smoothed_error",
    "truncated_likelihood",
    "truncated_em",
    "contrastive_divergence",
]
#: The EM names say what hidden labels make of a loss: A(theta) - A(theta, observed clamped).
LOSSES: dict[str, Callable[[], Loss]] = {
    "likelihood": Likelihood,
    "surrogate_likelihood": SurrogateLikelihood,
    "surrogate_em": SurrogateLikelihood,
    "saddle_point": SaddlePoint,
    "pseudolikelihood": Pseudolikelihood,
    "piecewise": Piecewise,
    "univariate_logistic": UnivariateLogistic,
    "clique_logistic": partial(UnivariateLogistic, cliques=True),
    "univariate_quadratic": UnivariateQuadratic,
    "clique_quadratic": partial(UnivariateQuadratic, cliques=True),
    "smoothed_error": SmoothedError,
    "clique_smoothed_error": partial(SmoothedError, cliques=True),
    "truncated_likelihood": TruncatedLikelihood,
    "truncated_em": TruncatedLikelihood,
    "contrastive_divergence": ContrastiveDivergence,
}


def loss_of(loss: str | Loss) -> Loss:
    """A loss by name with its default options, or the loss itself."""
    return by_name("loss", loss, LOSSES, Loss)

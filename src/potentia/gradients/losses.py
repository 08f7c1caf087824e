"""What is minimised: functions of scores, labels and what inference makes of the scores."""

from __future__ import annotations

from typing import Literal

from ..base.options import check_choice
from .likelihood import (
    Likelihood,
    SaddlePoint,
    SurrogateEM,
    SurrogateLikelihood,
    TruncatedEM,
    TruncatedLikelihood,
)
from .local import ContrastiveDivergence, Piecewise, Pseudolikelihood
from .loss import Loss, Methods
from .marginal import (
    CliqueLogistic,
    CliqueQuadratic,
    CliqueSmoothedError,
    MarginalLoss,
    SmoothedError,
    UnivariateLogistic,
    UnivariateQuadratic,
)

__all__ = [
    "CliqueLogistic",
    "CliqueQuadratic",
    "CliqueSmoothedError",
    "ContrastiveDivergence",
    "Likelihood",
    "Loss",
    "MarginalLoss",
    "Methods",
    "Piecewise",
    "Pseudolikelihood",
    "SaddlePoint",
    "SmoothedError",
    "SurrogateEM",
    "SurrogateLikelihood",
    "TruncatedEM",
    "TruncatedLikelihood",
    "UnivariateLogistic",
    "UnivariateQuadratic",
]


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
LOSSES: dict[str, type[Loss]] = {
    loss.name: loss
    for loss in (
        Likelihood,
        SurrogateLikelihood,
        SurrogateEM,
        SaddlePoint,
        Pseudolikelihood,
        Piecewise,
        UnivariateLogistic,
        CliqueLogistic,
        UnivariateQuadratic,
        CliqueQuadratic,
        SmoothedError,
        CliqueSmoothedError,
        TruncatedLikelihood,
        TruncatedEM,
        ContrastiveDivergence,
    )
}


def loss_of(given: str | Loss) -> Loss:
    """A loss by name with its default options, or the loss itself."""
    if isinstance(given, Loss):
        return given
    check_choice("loss", given, LOSSES, "a Loss")
    return LOSSES[given]()

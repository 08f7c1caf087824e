"""All losses by name."""

from __future__ import annotations

from .._types import PotentiaError
from .base import Loss
from .likelihood import (
    Likelihood,
    SaddlePoint,
    SurrogateEM,
    SurrogateLikelihood,
    TruncatedEM,
    TruncatedLikelihood,
)
from .local import ContrastiveDivergence, Piecewise, Pseudolikelihood
from .marginal import (
    CliqueLogistic,
    CliqueQuadratic,
    CliqueSmoothedError,
    SmoothedError,
    UnivariateLogistic,
    UnivariateQuadratic,
)

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
    if given not in LOSSES:
        raise PotentiaError(f"there is no loss {given!r}; there are {', '.join(LOSSES)}")
    return LOSSES[given]()

"""What is minimised: functions of scores, labels and what inference makes of the scores."""

from .base import Loss, Methods
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

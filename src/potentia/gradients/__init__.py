"""From cotangents of marginals to cotangents of scores: gradients through inference."""

from . import losses
from .base import Gradient
from .implicit import Implicit, linear_response
from .perturbation import Perturbation
from .truncated import BackPropagation, Truncated

__all__ = ["BackPropagation", "Gradient", "Implicit", "Perturbation", "Truncated", "linear_response", "losses"]

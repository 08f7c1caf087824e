"""From cotangents of marginals to cotangents of scores: gradients through inference."""

from .base import Gradient
from .implicit import Implicit
from .perturbation import Perturbation
from .truncated import BackPropagation, Truncated

__all__ = ["BackPropagation", "Gradient", "Implicit", "Perturbation", "Truncated"]

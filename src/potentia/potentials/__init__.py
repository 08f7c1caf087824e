"""Potentials: functions from features to scores, each able to lower a biased logistic loss."""

from .adapters import LightGBM
from .base import Differentiable, Potential
from .boosting import Boosting
from .linear import Linear
from .mlp import MLP
from .tables import Constant, Potts, Scaled, Temperature, TruncatedLinear, TruncatedQuadratic, Zero

__all__ = [
    "MLP",
    "Boosting",
    "Constant",
    "Differentiable",
    "LightGBM",
    "Linear",
    "Potential",
    "Potts",
    "Scaled",
    "Temperature",
    "TruncatedLinear",
    "TruncatedQuadratic",
    "Zero",
]

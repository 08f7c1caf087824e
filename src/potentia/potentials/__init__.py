"""Potentials: functions from features to scores, each able to lower a biased logistic loss."""

from potentia.potentials.adapters import LightGBM
from potentia.potentials.base import Potential
from potentia.potentials.boosting import Boosting
from potentia.potentials.constant import Constant
from potentia.potentials.differentiable import Differentiable
from potentia.potentials.linear import Linear
from potentia.potentials.mlp import MLP
from potentia.potentials.temperature import Temperature
from potentia.potentials.weighted import Potts, Scaled, TruncatedLinear, TruncatedQuadratic
from potentia.potentials.zero import Zero

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

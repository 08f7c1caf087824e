"""Potentials: functions from features to scores, each able to lower a biased logistic loss."""

# ruff: noqa: F401 (what other rooms import)

from .adapters import LightGBM
from .base import Differentiable, Potential
from .boosting import Boosting
from .linear import Linear
from .mlp import MLP
from .tables import Constant, Potts, Scaled, Temperature, TruncatedLinear, TruncatedQuadratic, Zero

"""Structured prediction: learning to predict many dependent labels at once, with approximate inference.

The public names are those below; see README for a first example.
"""

from __future__ import annotations

from . import datasets
from ._types import ConvergenceWarning, InfeasibleError, PotentiaError, WidthError
from ._version import __version__
from .data.example import Example
from .estimators import CRF, load
from .graph.assign import indicators_to_labels, labels_to_indicators
from .graph.structure import Graph
from .graph.uai import UaiResult, read_uai, read_uai_evidence, read_uai_result, write_uai, write_uai_result
from .graph.union import Union
from .inference.base import Inference, Result
from .inference.exact import Exact
from .inference.gibbs import Gibbs
from .inference.linear_program import LinearProgram
from .inference.mean_field import MeanField
from .inference.message_passing import TRW, Kikuchi, LoopyBP, MessagePassing, Smoothed
from .learn.iterated import IteratedLogistic
from .potentials import MLP, Boosting, Constant, LightGBM, Linear, Potential, Zero

__all__ = [
    "CRF",
    "MLP",
    "TRW",
    "Boosting",
    "Constant",
    "ConvergenceWarning",
    "Exact",
    "Example",
    "Gibbs",
    "Graph",
    "InfeasibleError",
    "Inference",
    "IteratedLogistic",
    "Kikuchi",
    "LightGBM",
    "Linear",
    "LinearProgram",
    "LoopyBP",
    "MeanField",
    "MessagePassing",
    "PotentiaError",
    "Potential",
    "Result",
    "Smoothed",
    "UaiResult",
    "Union",
    "WidthError",
    "Zero",
    "__version__",
    "datasets",
    "indicators_to_labels",
    "labels_to_indicators",
    "load",
    "read_uai",
    "read_uai_evidence",
    "read_uai_result",
    "write_uai",
    "write_uai_result",
]

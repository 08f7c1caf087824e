"""Structured prediction: learning to predict many dependent labels at once, with approximate inference.

The public names are those below; see README for a first example.
"""

from __future__ import annotations

from ._types import ConvergenceWarning, InfeasibleError, PotentiaError, WidthError
from .graph.assign import indicators_to_labels, labels_to_indicators
from .graph.structure import Graph
from .graph.uai import read_uai, read_uai_evidence, read_uai_result, write_uai, write_uai_result
from .graph.union import Union
from .inference.base import Inference, Result
from .inference.exact import Exact
from .inference.gibbs import Gibbs
from .inference.linear_program import LinearProgram
from .inference.mean_field import MeanField
from .inference.message_passing import TRW, Kikuchi, LoopyBP, MessagePassing, Smoothed

__version__ = "0.1.0"

__all__ = [
    "TRW",
    "ConvergenceWarning",
    "Exact",
    "Gibbs",
    "Graph",
    "Inference",
    "InfeasibleError",
    "Kikuchi",
    "LinearProgram",
    "LoopyBP",
    "MeanField",
    "MessagePassing",
    "PotentiaError",
    "Result",
    "Smoothed",
    "Union",
    "WidthError",
    "indicators_to_labels",
    "labels_to_indicators",
    "read_uai",
    "read_uai_evidence",
    "read_uai_result",
    "write_uai",
    "write_uai_result",
]

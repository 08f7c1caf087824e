"""Structured prediction: learning to predict many dependent labels at once, with approximate inference.

The public names are those below; see README for a first example.
"""

from __future__ import annotations

from ._types import ConvergenceWarning, InfeasibleError, PotentiaError, WidthError
from ._version import __version__
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

__all__ = [
    "TRW",
    "ConvergenceWarning",
    "Exact",
    "Gibbs",
    "Graph",
    "InfeasibleError",
    "Inference",
    "Kikuchi",
    "LinearProgram",
    "LoopyBP",
    "MeanField",
    "MessagePassing",
    "PotentiaError",
    "Result",
    "Smoothed",
    "UaiResult",
    "Union",
    "WidthError",
    "__version__",
    "indicators_to_labels",
    "labels_to_indicators",
    "read_uai",
    "read_uai_evidence",
    "read_uai_result",
    "write_uai",
    "write_uai_result",
]

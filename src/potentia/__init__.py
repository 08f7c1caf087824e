"""Structured prediction: learning to predict many dependent labels at once, with approximate inference.

The public names are those below; see README for a first example.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING

from . import _signals

# the imports below take about a second, in which Ctrl-C must not print a traceback
if _signals.is_command():
    _signals.exit_at_once()

from . import adjoint, losses, metrics
from ._registry import Registered
from ._types import ConvergenceWarning, InfeasibleError, PotentiaError, WidthError
from ._version import __version__
from .adjoint.gradient import loss_and_gradient
from .adjoint.implicit import linear_response
from .data.example import Example
from .data.parts import Parts
from .estimators import CRF
from .graph.assign import indicators_to_labels, labels_to_indicators
from .graph.dense import DenseGaussian
from .graph.structure import Graph
from .graph.uai import UaiResult, read_uai, read_uai_evidence, read_uai_result, write_uai, write_uai_result
from .graph.union import Union
from .inference.base import Inference, Result
from .inference.exact import Exact
from .inference.gibbs import Gibbs
from .inference.linear_program import LinearProgram
from .inference.map import MAP, MAPResult
from .inference.mean_field import MeanField
from .inference.message_passing import TRW, Kikuchi, LoopyBP, MessagePassing, Smoothed
from .io.part_files import parts, write_parts
from .learn.iterated import IteratedLogistic
from .learn.learner import Fit, Learner
from .learn.max_margin import MaxMargin
from .learn.risk import MarginalRisk
from .loading import load
from .parallel.connection import cluster
from .potentials import (
    MLP,
    Boosting,
    Constant,
    LightGBM,
    Linear,
    Potential,
    Potts,
    Scaled,
    Temperature,
    TruncatedLinear,
    TruncatedQuadratic,
    Zero,
)

# what is logged is shown only where a program asks for it
logging.getLogger(__name__).addHandler(logging.NullHandler())

if TYPE_CHECKING:
    from . import datasets, features, plot, segmentation
    from .chain_crf import ChainCRF
    from .multilabel.baselines import ClassifierChain, IndependentClassifiers, LabelPowerset
    from .multilabel.bounds import error_bound, likelihood_bound, search_bound
    from .multilabel.label_network import LabelNetwork
    from .multilabel.lmbm import LMBM
    from .multilabel.lmsbn import LMSBN
    from .multilabel.ssvm import ChainSSVM, CompleteSSVM
    from .multilabel.thresholds import ThresholdClassifier

#: Modules imported at first use, because they bring parts of SciPy or PyTorch along.
_ROOMS = ("datasets", "features", "plot", "segmentation", "torch")
#: Names imported at first use, because they bring scikit-learn along, and their modules.
_LATER = {
    "ChainCRF": "chain_crf",
    "ChainSSVM": "multilabel.ssvm",
    "ClassifierChain": "multilabel.baselines",
    "CompleteSSVM": "multilabel.ssvm",
    "IndependentClassifiers": "multilabel.baselines",
    "LMBM": "multilabel.lmbm",
    "LMSBN": "multilabel.lmsbn",
    "LabelNetwork": "multilabel.label_network",
    "LabelPowerset": "multilabel.baselines",
    "ThresholdClassifier": "multilabel.thresholds",
    "error_bound": "multilabel.bounds",
    "likelihood_bound": "multilabel.bounds",
    "search_bound": "multilabel.bounds",
}


if not TYPE_CHECKING:  # or a misspelt name would pass for one of these

    def __getattr__(name):
        if name in _ROOMS:
            return import_module(f".{name}", __name__)
        if name in _LATER:
            return getattr(import_module(f".{_LATER[name]}", __name__), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "CRF",
    "LMBM",
    "LMSBN",
    "MAP",
    "MLP",
    "TRW",
    "Boosting",
    "ChainCRF",
    "ChainSSVM",
    "ClassifierChain",
    "CompleteSSVM",
    "Constant",
    "ConvergenceWarning",
    "DenseGaussian",
    "Exact",
    "Example",
    "Fit",
    "Gibbs",
    "Graph",
    "IndependentClassifiers",
    "InfeasibleError",
    "Inference",
    "IteratedLogistic",
    "Kikuchi",
    "LabelNetwork",
    "LabelPowerset",
    "Learner",
    "LightGBM",
    "Linear",
    "LinearProgram",
    "LoopyBP",
    "MAPResult",
    "MarginalRisk",
    "MaxMargin",
    "MeanField",
    "MessagePassing",
    "Parts",
    "PotentiaError",
    "Potential",
    "Potts",
    "Registered",
    "Result",
    "Scaled",
    "Smoothed",
    "Temperature",
    "ThresholdClassifier",
    "TruncatedLinear",
    "TruncatedQuadratic",
    "UaiResult",
    "Union",
    "WidthError",
    "Zero",
    "__version__",
    "adjoint",
    "cluster",
    "datasets",
    "error_bound",
    "features",
    "indicators_to_labels",
    "labels_to_indicators",
    "likelihood_bound",
    "linear_response",
    "load",
    "loss_and_gradient",
    "losses",
    "metrics",
    "parts",
    "plot",
    "read_uai",
    "read_uai_evidence",
    "read_uai_result",
    "search_bound",
    "segmentation",
    "write_parts",
    "write_uai",
    "write_uai_result",
]

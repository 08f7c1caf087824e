"""Structured prediction: learning to predict many dependent labels at once, with approximate inference.

The public names are those below; see README for a first example.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING

from .base import signals

# the imports below take about a second, in which Ctrl-C must not print a traceback
if signals.is_command():
    signals.exit_at_once()

from .base import __version__ as __version__
from .base.types import ConvergenceWarning, InfeasibleError, PotentiaError

# what is logged is shown only where a program asks for it
logging.getLogger(__name__).addHandler(logging.NullHandler())

if TYPE_CHECKING:
    from . import extend, features, gradients, metrics
    from .app import plot
    from .app.pipeline import load
    from .app.segment import segment
    from .app.segmenter import ImageSegmenter
    from .features import datasets
    from .features.example import Example
    from .gradients.entry import loss_and_gradient
    from .graph import formats, uai
    from .graph.structure import Graph
    from .graph.tables import DenseGaussian
    from .inference.anytime import Anytime
    from .inference.base import Result
    from .inference.exact import Exact
    from .inference.gibbs import Gibbs
    from .inference.linear_program import LinearProgram
    from .inference.map.portfolio import MAP
    from .inference.mean_field import MeanField
    from .inference.messages import TRW, Kikuchi, LoopyBP, Smoothed
    from .learn.backends.connection import cluster
    from .learn.iterated import IteratedLogistic
    from .learn.max_margin import MaxMargin
    from .learn.part_files import parts, write_parts
    from .learn.risk import MarginalRisk
    from .models import multilabel
    from .models.chain_crf import ChainCRF
    from .models.crf import CRF
    from .models.multilabel import LMBM, LMSBN, LabelNetwork
    from .models.node_classifier import NodeClassifier
    from .models.segment_crf import SegmentCRF
    from .models.sequence_labeller import SequenceLabeller
    from .potentials import (
        MLP,
        Boosting,
        Constant,
        LightGBM,
        Linear,
        Potts,
        Scaled,
        Temperature,
        TruncatedLinear,
        TruncatedQuadratic,
        Zero,
        factors,
    )

#: Modules by their public names.
_ROOMS = {
    "datasets": "features.datasets",
    "extend": "extend",
    "factors": "potentials.factors",
    "features": "features",
    "formats": "graph.formats",
    "gradients": "gradients",
    "metrics": "metrics",
    "multilabel": "models.multilabel",
    "plot": "app.plot",
    "torch": "models.torch",
    "uai": "graph.uai",
}
#: Public names by module. Each is imported at first use, so that a program pays for what it uses only.
_NAMES = {
    "app.pipeline": "load",
    "app.segment": "segment",
    "app.segmenter": "ImageSegmenter",
    "features.example": "Example",
    "gradients.entry": "loss_and_gradient",
    "graph.structure": "Graph",
    "graph.tables": "DenseGaussian",
    "inference.anytime": "Anytime",
    "inference.base": "Result",
    "inference.exact": "Exact",
    "inference.gibbs": "Gibbs",
    "inference.linear_program": "LinearProgram",
    "inference.map.portfolio": "MAP",
    "inference.mean_field": "MeanField",
    "inference.messages": "Kikuchi LoopyBP Smoothed TRW",
    "learn.backends.connection": "cluster",
    "learn.iterated": "IteratedLogistic",
    "learn.max_margin": "MaxMargin",
    "learn.part_files": "parts write_parts",
    "learn.risk": "MarginalRisk",
    "models.chain_crf": "ChainCRF",
    "models.crf": "CRF",
    "models.node_classifier": "NodeClassifier",
    "models.sequence_labeller": "SequenceLabeller",
    "models.multilabel": "LMBM LMSBN LabelNetwork",
    "models.segment_crf": "SegmentCRF",
    "potentials": "Boosting Constant LightGBM Linear MLP Potts Scaled Temperature TruncatedLinear TruncatedQuadratic "
    "Zero",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


if not TYPE_CHECKING:  # or a misspelt name would pass for one of these

    def __getattr__(name):
        if name in _ROOMS:
            return import_module(f".{_ROOMS[name]}", __name__)
        if name in _MODULES:
            globals()[name] = found = getattr(import_module(f".{_MODULES[name]}", __name__), name)
            return found
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
    "Anytime",
    "Boosting",
    "ChainCRF",
    "Constant",
    "ConvergenceWarning",
    "DenseGaussian",
    "Exact",
    "Example",
    "Gibbs",
    "Graph",
    "ImageSegmenter",
    "InfeasibleError",
    "IteratedLogistic",
    "Kikuchi",
    "LabelNetwork",
    "LightGBM",
    "Linear",
    "LinearProgram",
    "LoopyBP",
    "MarginalRisk",
    "MaxMargin",
    "MeanField",
    "NodeClassifier",
    "PotentiaError",
    "Potts",
    "Result",
    "Scaled",
    "SegmentCRF",
    "SequenceLabeller",
    "Smoothed",
    "Temperature",
    "TruncatedLinear",
    "TruncatedQuadratic",
    "Zero",
    "cluster",
    "datasets",
    "extend",
    "factors",
    "features",
    "formats",
    "gradients",
    "load",
    "loss_and_gradient",
    "metrics",
    "multilabel",
    "parts",
    "plot",
    "segment",
    "uai",
    "write_parts",
]

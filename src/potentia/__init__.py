"""Structured prediction: learning to predict many dependent labels at once, with approximate inference.

The public names are those below; see README for a first example.
"""

# ruff: noqa: I001 (several names of a module share a line)

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING

from .base import signals

# the imports below take about a second, in which Ctrl-C must not print a traceback
if signals.is_command():
    signals.exit_at_once()

from .base import __version__ as __version__
from .base.types import (
    ConvergenceWarning as ConvergenceWarning, InfeasibleError as InfeasibleError, PotentiaError as PotentiaError,
)  # fmt: skip

# what is logged is shown only where a program asks for it
logging.getLogger(__name__).addHandler(logging.NullHandler())

if TYPE_CHECKING:
    from . import extend as extend, features as features, gradients as gradients, metrics as metrics
    from .app import plot as plot
    from .app.images import ImageSegmenter as ImageSegmenter
    from .app.pipeline import load as load
    from .app.refine import refine as refine
    from .app.segment import segment as segment
    from .features import datasets as datasets
    from .features.example import Example as Example
    from .gradients.entry import loss_and_gradient as loss_and_gradient
    from .graph import formats as formats, uai as uai
    from .graph.structure import Graph as Graph
    from .inference.anytime import Anytime as Anytime
    from .inference.base import Result as Result
    from .inference.exact import Exact as Exact
    from .inference.gibbs import Gibbs as Gibbs
    from .inference.linear_program import LinearProgram as LinearProgram
    from .inference.map.portfolio import MAP as MAP
    from .inference.mean_field import MeanField as MeanField
    from .inference.messages import TRW as TRW, Kikuchi as Kikuchi, LoopyBP as LoopyBP, Smoothed as Smoothed
    from .learn.backends.connection import cluster as cluster
    from .learn.iterated import IteratedLogistic as IteratedLogistic
    from .learn.max_margin import MaxMargin as MaxMargin
    from .learn.part_files import parts as parts, write_parts as write_parts
    from .learn.risk import MarginalRisk as MarginalRisk
    from .models import multilabel as multilabel
    from .models.chain_crf import ChainCRF as ChainCRF
    from .models.crf import CRF as CRF
    from .models.multilabel import LMBM as LMBM, LMSBN as LMSBN, LabelNetwork as LabelNetwork
    from .models.node_classifier import NodeClassifier as NodeClassifier
    from .models.segment_crf import SegmentCRF as SegmentCRF
    from .models.sequence_labeller import SequenceLabeller as SequenceLabeller
    from .potentials.dense import DenseGaussian as DenseGaussian
    from .potentials import (
        MLP as MLP, Boosting as Boosting, Constant as Constant, LightGBM as LightGBM, Linear as Linear,
        Potts as Potts, Scaled as Scaled, Temperature as Temperature, TruncatedLinear as TruncatedLinear,
        TruncatedQuadratic as TruncatedQuadratic, Zero as Zero, factors as factors,
    )  # fmt: skip

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
    "app.refine": "refine",
    "app.segment": "segment",
    "app.images": "ImageSegmenter",
    "features.example": "Example",
    "gradients.entry": "loss_and_gradient",
    "graph.structure": "Graph",
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
    "potentials.dense": "DenseGaussian",
    "potentials": "Boosting Constant LightGBM Linear MLP Potts Scaled Temperature TruncatedLinear TruncatedQuadratic "
    "Zero",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
# without PyTorch, which is optional
__all__ = sorted({"ConvergenceWarning", "InfeasibleError", "PotentiaError", *_ROOMS, *_MODULES} - {"torch"})


if not TYPE_CHECKING:  # or a misspelt name would pass for one of these

    def __getattr__(name):
        if name in _ROOMS:
            return import_module(f".{_ROOMS[name]}", __name__)
        if name in _MODULES:
            globals()[name] = found = getattr(import_module(f".{_MODULES[name]}", __name__), name)
            return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

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

from . import extend, gradients, metrics
from .app.pipeline import load
from .base import __version__ as __version__
from .base.types import ConvergenceWarning, InfeasibleError, PotentiaError
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
from .models.crf import CRF
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

# what is logged is shown only where a program asks for it
logging.getLogger(__name__).addHandler(logging.NullHandler())

if TYPE_CHECKING:
    from . import features
    from .app import plot
    from .features import datasets
    from .models import multilabel
    from .models.chain_crf import ChainCRF
    from .models.multilabel import LMBM, LMSBN, LabelNetwork

#: Modules imported at first use, because they bring parts of SciPy or PyTorch along.
_ROOMS = {
    "datasets": "features.datasets",
    "features": "features",
    "multilabel": "models.multilabel",
    "plot": "app.plot",
    "torch": "models.torch",
}
#: Names imported at first use, because they bring scikit-learn along, and their modules.
_LATER = {
    "ChainCRF": "models.chain_crf",
    "LMBM": "models.multilabel",
    "LMSBN": "models.multilabel",
    "LabelNetwork": "models.multilabel",
}


if not TYPE_CHECKING:  # or a misspelt name would pass for one of these

    def __getattr__(name):
        if name in _ROOMS:
            return import_module(f".{_ROOMS[name]}", __name__)
        if name in _LATER:
            globals()[name] = found = getattr(import_module(f".{_LATER[name]}", __name__), name)
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
    "PotentiaError",
    "Potts",
    "Result",
    "Scaled",
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
    "uai",
    "write_parts",
]

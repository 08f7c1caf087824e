"""Multi-label classifiers: `potentia.multilabel`."""

from ...graph.scores import indicators_to_labels, labels_to_indicators
from .independent import IndependentClassifiers
from .label_network import LabelNetwork
from .lmbm import LMBM
from .lmsbn import LMSBN

__all__ = ["LMBM", "LMSBN", "IndependentClassifiers", "LabelNetwork", "indicators_to_labels", "labels_to_indicators"]

"""Classifiers of many labels at once, and what theory says of them: `potentia.multilabel`."""

from ...graph.scores import indicators_to_labels, labels_to_indicators
from .bounds import error_bound, likelihood_bound, search_bound
from .independent import IndependentClassifiers
from .label_network import LabelNetwork
from .lmbm import LMBM
from .lmsbn import LMSBN
from .thresholds import ThresholdClassifier

__all__ = [
    "LMBM",
    "LMSBN",
    "IndependentClassifiers",
    "LabelNetwork",
    "ThresholdClassifier",
    "error_bound",
    "indicators_to_labels",
    "labels_to_indicators",
    "likelihood_bound",
    "search_bound",
]

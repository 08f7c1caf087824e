"""Multi-label classifiers and the error bounds that theory gives for them: `potentia.multilabel`."""

from ...graph.scores import indicators_to_labels, labels_to_indicators
from .independent import IndependentClassifiers, ThresholdClassifier
from .label_network import LabelNetwork
from .lmbm import LMBM
from .lmsbn import LMSBN, error_bound, likelihood_bound, search_bound

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

"""scikit-learn's measures over the labels of all sequences, joined, and the share of sequences that are right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from sklearn import metrics

Labels = Sequence[Sequence[Any]]


def _joined(y: Iterable[Iterable[Any]]) -> list[Any]:
    return [*chain.from_iterable(y)]


def flat_accuracy_score(y_true: Labels, y_pred: Labels) -> float:
    """The share of right labels."""
    return float(metrics.accuracy_score(_joined(y_true), _joined(y_pred)))


def flat_precision_score(y_true: Labels, y_pred: Labels, **options: Any) -> Any:
    """`sklearn.metrics.precision_score` of all labels."""
    return metrics.precision_score(_joined(y_true), _joined(y_pred), **options)


def flat_recall_score(y_true: Labels, y_pred: Labels, **options: Any) -> Any:
    """`sklearn.metrics.recall_score` of all labels."""
    return metrics.recall_score(_joined(y_true), _joined(y_pred), **options)


def flat_f1_score(y_true: Labels, y_pred: Labels, **options: Any) -> Any:
    """`sklearn.metrics.f1_score` of all labels."""
    return metrics.f1_score(_joined(y_true), _joined(y_pred), **options)


def flat_fbeta_score(y_true: Labels, y_pred: Labels, beta: float, **options: Any) -> Any:
    """`sklearn.metrics.fbeta_score` of all labels."""
    return metrics.fbeta_score(_joined(y_true), _joined(y_pred), beta=beta, **options)


def flat_classification_report(y_true: Labels, y_pred: Labels, labels: Any = None, **options: Any) -> Any:
    """`sklearn.metrics.classification_report` of all labels."""
    return metrics.classification_report(_joined(y_true), _joined(y_pred), labels=labels, **options)


def sequence_accuracy_score(y_true: Labels, y_pred: Labels) -> float:
    """The share of sequences with right labels only; 0 without sequences."""
    if not len(y_true):
        return 0.0
    return sum(list(a) == list(b) for a, b in zip(y_true, y_pred, strict=True)) / len(y_true)

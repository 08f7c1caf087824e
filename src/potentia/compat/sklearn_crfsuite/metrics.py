"""sklearn-crfsuite's measures: scikit-learn's over all labels of all sequences, and of whole sequences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

__all__ = [
    "flat_accuracy_score",
    "flat_classification_report",
    "flat_f1_score",
    "flat_fbeta_score",
    "flat_precision_score",
    "flat_recall_score",
    "sequence_accuracy_score",
]


def flatten(sequences: Iterable[Iterable[Any]]) -> list[Any]:
    """The labels of all sequences, one after another."""
    return list(chain.from_iterable(sequences))


def _flat(name: str, y_true: Any, y_pred: Any, *args: Any, **options: Any) -> Any:
    from sklearn import metrics

    return getattr(metrics, name)(flatten(y_true), flatten(y_pred), *args, **options)


def flat_accuracy_score(y_true: Any, y_pred: Any) -> float:
    """Share of right labels."""
    return float(_flat("accuracy_score", y_true, y_pred))


def flat_precision_score(y_true: Any, y_pred: Any, **options: Any) -> Any:
    """scikit-learn's `precision_score` over all labels."""
    return _flat("precision_score", y_true, y_pred, **options)


def flat_recall_score(y_true: Any, y_pred: Any, **options: Any) -> Any:
    """scikit-learn's `recall_score` over all labels."""
    return _flat("recall_score", y_true, y_pred, **options)


def flat_f1_score(y_true: Any, y_pred: Any, **options: Any) -> Any:
    """scikit-learn's `f1_score` over all labels."""
    return _flat("f1_score", y_true, y_pred, **options)


def flat_fbeta_score(y_true: Any, y_pred: Any, beta: float, **options: Any) -> Any:
    """scikit-learn's `fbeta_score` over all labels."""
    return _flat("fbeta_score", y_true, y_pred, beta=beta, **options)


def flat_classification_report(
    y_true: Any, y_pred: Any, labels: Sequence[Any] | None = None, **options: Any
) -> Any:
    """scikit-learn's `classification_report` over all labels."""
    return _flat("classification_report", y_true, y_pred, labels=labels, **options)


def sequence_accuracy_score(y_true: Any, y_pred: Any) -> float:
    """Share of sequences whose labels are all right."""
    pairs = list(zip(y_true, y_pred, strict=True))
    return sum(list(a) == list(b) for a, b in pairs) / len(pairs) if pairs else 0.0

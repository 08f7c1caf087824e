"""Scorers for scikit-learn's `cross_val_score` and searches: the share of right labels, and of right sequences."""

from __future__ import annotations

from sklearn.metrics import make_scorer

from . import metrics

flat_accuracy = make_scorer(metrics.flat_accuracy_score)
sequence_accuracy = make_scorer(metrics.sequence_accuracy_score)

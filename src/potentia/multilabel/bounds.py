"""What theory says of a fitted network, computed from data: Theorems 4 and 9 of [LMSBN]."""

from __future__ import annotations

from math import ceil, comb
from typing import Any, NamedTuple

import numpy as np

from .._types import Floats, PotentiaError
from .lmsbn import LMSBN

#: Remark 6: a labelling other than the predicted one has loss at least 1.
THRESHOLD = 1.0


class ErrorBound(NamedTuple):
    """Mean loss of true labellings, the bound mean / threshold on the share of rows predicted wrong, that share."""

    mean_loss: float
    bound: float
    error: float


class SearchBound(NamedTuple):
    """Per bound S: the least share of rows with certain optima by theory, the share observed, and states at most.

    guaranteed: max(0, 1 - mean loss / S). certain: rows whose search below S ended with a labelling found. states: a
    search below S visits at most this many partial labellings. visited: the most that one did.
    """

    bounds: Floats
    guaranteed: Floats
    certain: Floats
    states: list[int]
    visited: list[int]


def error_bound(model: LMSBN, X: Any, y: Any) -> ErrorBound:
    """Theorem 4 with the threshold 1 of Remark 6: P(prediction != truth) <= E[loss of the truth] / 1.

    On the rows given it holds for their means; on rows that the model has not learned from these estimate the
    expectations. Predictions are exact here, whatever the model's `bound`.
    """
    losses = model.labelling_loss(X, y)
    predicted = model.search(X, bound=np.inf).labels
    truth = np.asarray(y.toarray() if hasattr(y, "toarray") else y).reshape(len(losses), -1)
    wrong = np.any(predicted.reshape(len(losses), -1) != truth, axis=1)
    mean = float(np.mean(losses))
    return ErrorBound(mean, mean / THRESHOLD, float(np.mean(wrong)))


def search_bound(model: LMSBN, X: Any, y: Any, bounds: Any) -> SearchBound:
    """Theorem 9: with probability at least 1 - E[loss] / S the search below S finds the optimum, in O(K^S) states."""
    S = np.asarray(bounds, dtype=float).ravel()
    if S.size == 0 or not np.all(S >= 1):
        raise PotentiaError("bounds must be numbers of at least 1.")
    mean = float(np.mean(model.labelling_loss(X, y)))
    found = [model.search(X, bound=s) for s in S]
    K = len(model.order_)
    return SearchBound(
        S,
        np.maximum(0.0, 1.0 - mean / S),
        np.array([np.mean(f.optimal) for f in found]),
        [states_below(K, s) for s in S],
        [int(f.states.max()) for f in found],
    )


def states_below(n_labels: int, bound: float) -> int:
    """Partial labellings of K labels that a search below S can visit: those with fewer than S second branches.

    A second branch costs at least 1, so one of loss below S has at most ceil(S) - 1 of them: the sum over depths d =
    1..K and i < S of C(d, i).
    """
    most = n_labels if np.isinf(bound) else min(n_labels, ceil(bound) - 1)
    return sum(comb(d, i) for d in range(1, n_labels + 1) for i in range(min(d, most) + 1))

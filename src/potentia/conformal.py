"""Conformal prediction: thresholds from held-out examples that give sets of predictions a stated coverage.

A score says how badly a value fits a prediction, for instance one minus its probability. The examples (images,
sentences, rows) that thresholds are computed from must not be used in training, and must be exchangeable with those
predicted later. The guarantees then hold for any model and any number of examples, on average over held-out and
predicted examples.
"""

from __future__ import annotations

import math

import numpy as np

from .base.types import ArrayLike, Floats, PotentiaError, check_count, real_number, real_numbers

#: Thresholds on scores in [0, 1] that are tried by default: dense at both ends, in the log-odds of the score.
THRESHOLDS: Floats = np.concatenate([[0.0], 1.0 / (1.0 + np.exp(-np.linspace(-15.0, 15.0, 3001))), [1.0]])


def split_threshold(scores: ArrayLike, coverage: float) -> float:
    r"""The :math:`\lceil (n + 1) \, \text{coverage} \rceil`-th smallest of n held-out scores [Vovk et al. 2005].

    The score of a further example is at most the threshold with probability at least `coverage`, and at most
    coverage + 1 / (n + 1) if no scores are equal. Infinite, so that every value is in the set, where n is too small:
    below coverage / (1 - coverage).
    """
    check_coverage(coverage)
    values = real_numbers(scores, "scores").ravel()
    if np.isnan(values).any():
        raise PotentiaError("scores must not be NaN.")
    rank = math.ceil((len(values) + 1) * coverage - 1e-9)  # products such as 0.7 * 10 are rounded upwards
    return float(np.sort(values)[rank - 1]) if rank <= len(values) else math.inf


def missed_shares(scores: ArrayLike, thresholds: ArrayLike = THRESHOLDS) -> Floats:
    """The share of one example's scores that is above each of the ascending thresholds, in their shape.

    `scores` are those of the true values of its variables: the share is what sets cut at a threshold miss.
    """
    values = np.sort(real_numbers(scores, "scores").ravel())
    if values.size == 0 or np.isnan(values[-1]):
        raise PotentiaError("scores must be one or more numbers, not NaN.")
    return 1.0 - np.searchsorted(values, real_numbers(thresholds, "thresholds"), side="right") / len(values)


def risk_threshold(losses: ArrayLike, n: int, coverage: float, thresholds: ArrayLike = THRESHOLDS) -> float:
    r"""The smallest threshold t with :math:`(L(t) + 1) / (n + 1) \le 1 - \text{coverage}` [Angelopoulos et al. 2022].

    `losses` are the sums :math:`L(t)` over n held-out examples of losses in [0, 1] that do not rise with t, such as
    `missed_shares`, at each of the ascending thresholds. The expected loss of a further example is then at most
    1 - coverage. Infinite if no threshold satisfies it.
    """
    check_coverage(coverage)
    check_count("n", n)
    sums, limits = real_numbers(losses, "losses"), real_numbers(thresholds, "thresholds")
    if sums.shape != limits.shape or sums.ndim != 1:
        raise PotentiaError(f"losses must have one sum per threshold, {limits.shape}, not {sums.shape}.")
    fair = np.flatnonzero((sums + 1.0) / (n + 1.0) <= 1.0 - coverage + 1e-12)
    return float(limits[fair[0]]) if fair.size else math.inf


def check_coverage(coverage: object) -> None:
    """Refuse anything but a share between 0 and 1."""
    if not 0 < real_number(coverage, "coverage") < 1:
        raise PotentiaError(f"coverage must be above 0 and below 1, not {coverage}.")

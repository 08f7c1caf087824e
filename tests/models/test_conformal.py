"""Thresholds of conformal prediction: their definitions, and coverage over random splits."""

import numpy as np
import pytest
from scipy.stats import betabinom

import potentia as pt
from potentia.conformal import THRESHOLDS, missed_shares, risk_threshold, split_threshold


def band(n, n_test, coverage, level=0.99):
    """Covered test examples of a single split: rank ~ Beta(k, n + 1 - k), a count given it binomial."""
    k = int(np.ceil((n + 1) * coverage - 1e-9))
    return betabinom(n_test, k, n + 1 - k).interval(level)


@pytest.mark.parametrize(
    ("n", "coverage", "rank"), [(9, 0.9, 9), (99, 0.9, 90), (10, 0.7, 8), (19, 0.5, 10), (9, 0.7, 7)]
)
def test_the_threshold_is_an_order_statistic(n, coverage, rank):
    scores = np.random.default_rng(0).permutation(n).astype(float)
    assert split_threshold(scores, coverage) == rank - 1


def test_too_few_examples_leave_every_value_in():
    assert split_threshold(np.zeros(8), 0.9) == np.inf
    assert split_threshold([], 0.5) == np.inf
    assert risk_threshold(np.zeros(2), 8, 0.9, [0.0, 1.0]) == np.inf


@pytest.mark.parametrize("coverage", [0.8, 0.9, 0.95])
def test_split_thresholds_cover_over_random_splits(coverage):
    rng, covered = np.random.default_rng(0), []
    low, high = band(200, 300, coverage, 0.9999)
    for _ in range(200):
        scores = rng.gamma(2.0, size=500)
        covered.append(int(np.sum(scores[200:] <= split_threshold(scores[:200], coverage))))
        assert low <= covered[-1] <= high
    inside = [band(200, 300, coverage)[0] <= count <= band(200, 300, coverage)[1] for count in covered]
    assert np.mean(inside) >= 0.97
    assert abs(np.mean(covered) / 300 - coverage) < 0.01


def test_missed_shares_count_scores_above_thresholds():
    rng = np.random.default_rng(0)
    scores = rng.random(50).round(2)
    thresholds = np.linspace(0, 1, 11).round(2)
    expected = [(scores > t).mean() for t in thresholds]
    np.testing.assert_allclose(missed_shares(scores, thresholds), expected)
    assert np.all(np.diff(THRESHOLDS) > 0)
    assert missed_shares([1.0])[-1] == 0


@pytest.mark.parametrize("coverage", [0.8, 0.9])
def test_the_expected_share_missed_is_controlled(coverage):
    rng, n, missed = np.random.default_rng(0), 100, []
    for _ in range(100):
        examples = [rng.random(rng.integers(1, 40)) ** (0.5 + rng.random()) for _ in range(n + 100)]
        losses = np.array([missed_shares(scores) for scores in examples])
        t = risk_threshold(losses[:n].sum(axis=0), n, coverage)
        at = np.searchsorted(THRESHOLDS, t)
        assert (losses[:n, at].sum() + 1) / (n + 1) <= 1 - coverage + 1e-9
        assert (losses[:n, at - 1].sum() + 1) / (n + 1) > 1 - coverage
        missed.append(losses[n:, at].mean())
    assert np.mean(missed) <= 1 - coverage + 0.003
    assert np.mean(missed) > 1 - coverage - 0.02


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: split_threshold([0.5], 1.0), "coverage must be"),
        (lambda: split_threshold([np.nan], 0.9), "NaN"),
        (lambda: missed_shares([]), "scores must be one or more numbers"),
        (lambda: risk_threshold(np.zeros(3), 4, 0.9, [0.0, 1.0]), "one sum per threshold"),
    ],
)
def test_bad_input_is_one_sentence(call, words):
    with pytest.raises(pt.PotentiaError, match=words):
        call()

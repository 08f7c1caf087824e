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


def labelled_rows(n, K=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 5))
    Z = X @ rng.normal(size=(5, K)) + rng.normal(size=(n, K))
    Z[:, 1:] += 0.7 * (Z[:, :-1] > 0)
    return X, (Z > 0.3).astype(int)


def hits(sets, labels):
    return np.array([any(np.array_equal(y, row) for row in own) for own, y in zip(sets.labels, labels, strict=True)])


@pytest.mark.parametrize(
    "model",
    [pt.LMSBN(1e-2), pt.LabelNetwork(["linear"], n_trees=10, cv=2), pt.multilabel.IndependentClassifiers(1e-2)],
    ids=["LMSBN", "LabelNetwork", "IndependentClassifiers"],
)
def test_sets_of_labels_and_labellings_cover_over_random_splits(model, tmp_path):
    X, Y = labelled_rows(700)
    model.fit(X[:100], Y[:100])
    rest, rng = np.arange(100, 700), np.random.default_rng(0)
    shares, wholes = [], []
    low, high = band(300, 300, 0.9, 0.9999)
    for _ in range(10):
        order = rng.permutation(rest)
        held, test = order[:300], order[300:]
        model.calibrate(X[held], Y[held])
        sets = model.predict_set(X[test], 0.9)
        inside = np.where(Y[test] > 0, sets.high, sets.low)
        assert np.all((low <= inside.sum(axis=0)) & (inside.sum(axis=0) <= high))
        shares.append(inside.mean())
        if model._ranks:
            found = model.predict_set(X[test], 0.9, of="labellings")
            assert found.complete.all()
            wholes.append(hits(found, Y[test]).sum())
            assert low <= wholes[-1] <= high
    assert np.mean(shares) > 0.89
    model.save(tmp_path / "m")
    again = pt.load(tmp_path / "m").predict_set(X[:5])
    np.testing.assert_array_equal(again.high, model.predict_set(X[:5]).high)


def test_sets_know_missing_labels_constants_and_limits():
    X, Y = labelled_rows(300)
    Y = np.column_stack([Y, np.ones(300, dtype=int)])
    model = pt.LMSBN(1e-2).fit(X[:100], Y[:100])
    with pytest.raises(pt.PotentiaError, match="call calibrate"):
        model.predict_set(X)
    holes = np.where(np.random.default_rng(0).random(Y.shape) < 0.1, np.nan, Y)
    model.calibrate(X[100:], holes[100:])
    sets = model.predict_set(X[:10])
    assert not sets.low[:, 4].any()
    assert sets.high[:, 4].all()
    wide = model.predict_set(X[:10], 0.99, of="labellings", limit=2)
    assert max(len(own) for own in wide.labels) == 2
    assert not wide.complete.all()
    with pytest.raises(pt.PotentiaError, match="coverage"):
        model.predict_set(X, 1.0)
    with pytest.raises(pt.PotentiaError, match="no sets of labellings"):
        pt.LMBM().fit(X[:60], Y[:60]).calibrate(X, Y).predict_set(X, of="labellings")


@pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")
def test_sets_of_variables_miss_no_more_than_stated(tmp_path):
    from sample_images import noisy

    examples = noisy(90, (6, 7))
    crf = pt.CRF({"node": pt.Linear(), "edge": pt.Linear()}, pt.IteratedLogistic(iterations=3, tol=0.0)).fit(
        examples[:10]
    )
    with pytest.raises(pt.PotentiaError, match="call calibrate"):
        crf.predict_set(examples[:1])
    missed, rng = [], np.random.default_rng(0)
    for _ in range(5):
        order = 10 + rng.permutation(80)
        crf.calibrate([examples[i] for i in order[:40]])
        test = [examples[i] for i in order[40:]]
        sets = crf.predict_set(test, 0.9)
        shares = [1 - own[np.arange(42), e.labels].mean() for own, e in zip(sets, test, strict=True)]
        missed.append(np.mean(shares))
    assert np.mean(missed) <= 0.11
    crf.save(tmp_path / "crf")
    again = pt.load(tmp_path / "crf")
    np.testing.assert_array_equal(again.predict_set(test[:1])[0], crf.predict_set(test[:1])[0])
    crf.fit(examples[:10])
    with pytest.raises(pt.PotentiaError, match="call calibrate"):
        crf.predict_set(test)

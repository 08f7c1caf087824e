"""Scores of label maps: against plain definitions, with unknown pixels, and calibration."""

import numpy as np
import pytest

from potentia.base.types import PotentiaError
from potentia.metrics import (
    Calibration,
    boundary_counts,
    boundary_f1,
    class_scores,
    confusion_matrix,
    mean_iou,
    segmentation_scores,
)


def maps(seed=0, void=True):
    rng = np.random.default_rng(seed)
    truth = rng.integers(-1 if void else 0, 3, (13, 17))
    return truth, rng.integers(0, 3, (13, 17))


def test_scores_are_those_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    truth, found = maps()
    known = truth >= 0
    counts = confusion_matrix(truth, found, 3)
    assert np.array_equal(counts, metrics.confusion_matrix(truth[known], found[known]))
    scores = class_scores(counts)
    assert np.allclose(scores["iou"], metrics.jaccard_score(truth[known], found[known], average=None))
    assert np.allclose(scores["f1"], metrics.f1_score(truth[known], found[known], average=None))
    assert mean_iou(truth, found, 3) == pytest.approx(scores["iou"].mean())


def test_classes_that_are_nowhere_are_left_out():
    found = segmentation_scores(confusion_matrix([[0, 1]], [[0, 1]], 3), ["a", "b", "c"])
    assert np.isnan(found["classes"][2]["iou"])
    assert found["mean_iou"] == found["mean_f1"] == 1.0
    assert found["error"] == 0.0
    with pytest.raises(PotentiaError, match="no pixel"):
        segmentation_scores(confusion_matrix([[-1]], [[0]], 2), ["a", "b"])
    with pytest.raises(PotentiaError, match=r"classes are 0\.\.1"):
        confusion_matrix([[0]], [[2]], 2)
    with pytest.raises(PotentiaError, match="shape"):
        confusion_matrix([[0]], [[0, 1]], 2)


def naive_boundary(truth, found, k, tolerance):
    """Boundary precision and recall of a class, pixel by pixel."""

    def line(a):
        h, w = a.shape
        return [
            (i, j)
            for i in range(h)
            for j in range(w)
            if a[i, j] == k
            and any(
                0 <= i + di < h and 0 <= j + dj < w and a[i + di, j + dj] != k
                for di, dj in ((0, 1), (1, 0), (0, -1), (-1, 0))
            )
        ]

    own, other = line(truth), line(found)

    def near(a, b):
        return sum(any(max(abs(i - m), abs(j - n)) <= tolerance for m, n in b) for i, j in a)

    return near(other, own), len(other), near(own, other), len(own)


@pytest.mark.parametrize("tolerance", [1, 2])
def test_boundaries_agree_with_their_slow_twin(tolerance):
    truth = np.zeros((14, 16), dtype=int)
    truth[3:9, 2:11] = 1
    found = np.zeros_like(truth)
    found[5:13, 4:9] = 1
    found[0, 15] = 1
    counts = boundary_counts(truth, found, 2, tolerance)
    assert counts.tolist() == [list(naive_boundary(truth, found, k, tolerance)) for k in (0, 1)]
    assert np.all(boundary_f1(boundary_counts(truth, truth, 2)) == 1.0)
    assert np.isnan(boundary_f1(boundary_counts(truth, truth, 3))[2])


def test_boundaries_beside_the_unknown_do_not_count():
    truth = np.zeros((20, 20), dtype=int)
    truth[:, 10:] = 1
    found = truth.copy()
    found[:4, 5:] = 1  # wrong only where nothing is known
    truth[:8] = -1
    assert np.all(boundary_f1(boundary_counts(truth, found, 2)) == 1.0)
    volume = np.zeros((4, 5, 6), dtype=int)
    volume[2:] = 1
    assert np.all(boundary_f1(boundary_counts(volume, volume, 2)) == 1.0)


def test_calibration_is_the_distance_of_confidence_and_accuracy():
    rng = np.random.default_rng(0)
    soft = rng.dirichlet([1, 1, 1], size=(60, 60))
    truth = np.array([rng.choice(3, p=p) for p in soft.reshape(-1, 3)]).reshape(60, 60)
    fair = Calibration()
    fair.add(truth, soft)
    assert fair.error() < 0.03
    sharp = soft**4 / (soft**4).sum(axis=-1, keepdims=True)
    bold = Calibration()
    bold.add(truth, sharp)
    assert bold.error() > 0.1
    curve = bold.curve()
    assert sum(line["pixels"] for line in curve) == 3600
    total = sum(line["pixels"] * abs(line["confidence"] - line["accuracy"]) for line in curve)
    assert total / 3600 == pytest.approx(bold.error())
    void = Calibration()
    void.add(np.full((60, 60), -1), soft)
    assert void.error() == 0.0
    assert void.curve() == []

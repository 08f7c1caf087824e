"""Measures of labellings against their definitions and scikit-learn's."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score, hamming_loss

import potentia as pt


def test_measures_equal_scikit_learns():
    rng = np.random.default_rng(0)
    a, b = rng.random((50, 5)) < 0.4, rng.random((50, 5)) < 0.4
    found = pt.metrics.all_measures(a, b)
    assert found["exact_match"] == pytest.approx(accuracy_score(a, b))
    assert found["hamming_loss"] == pytest.approx(hamming_loss(a, b))
    assert found["f_micro"] == pytest.approx(f1_score(a, b, average="micro"))
    assert found["f_macro"] == pytest.approx(f1_score(a, b, average="macro"))
    assert found["f_samples"] == pytest.approx(f1_score(a, b, average="samples", zero_division=1))
    assert np.allclose(pt.metrics.f_scores(a, b), f1_score(a, b, average=None))


def test_empty_rows_and_labels():
    none = np.zeros((3, 2), dtype=int)
    assert pt.metrics.f_samples(none, none) == 1.0
    assert pt.metrics.f_macro(none, none) == 0.0
    assert pt.metrics.f_micro(none, none) == 0.0
    one = np.array([[1, 0], [0, 0]])
    assert pt.metrics.f_samples(one, [[0, 0], [0, 0]]) == 0.5


def test_other_values_and_one_label():
    a, b = np.array(["yes", "no", "yes"]), np.array(["yes", "yes", "no"])
    assert pt.metrics.exact_match(a, b, positive="yes") == pytest.approx(1 / 3)
    assert pt.metrics.f_micro(a, b, positive="yes") == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("truth", "predicted", "words"),
    [([[1, 0]], [[1, 0, 0]], "shape"), (np.zeros((0, 2)), np.zeros((0, 2)), "truth must be"), (3, 3, "truth")],
)
def test_shapes_are_checked(truth, predicted, words):
    with pytest.raises(pt.PotentiaError, match=words):
        pt.metrics.exact_match(truth, predicted)

"""The one logistic loss: against a plain NumPy twin, central differences, and its own invariances."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp, softmax

from potentia.kernels.linear_losses import linear_loss_rows, loss_rows

NONE = np.zeros((0, 0))
NO_LABELS = np.zeros(0, np.int64)
NO_WEIGHT = np.zeros(0)


def twin(scores, bias, target, weight):
    """Summed loss and gradient, straight from the formula; target (n, K)."""
    z = scores + bias
    with np.errstate(invalid="ignore"):
        score = np.where(target > 0, target * z, 0.0).sum(1)
    value = (weight * (logsumexp(z, axis=1) - score)).sum()
    return value, weight[:, None] * (softmax(z, axis=1) - target)


def problem(n, k, seed, scale=3.0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, k, n)
    weight = rng.uniform(0.1, 2, n)
    return scale * rng.normal(size=(n, k)), scale * rng.normal(size=(n, k)), labels, weight


@pytest.mark.parametrize("n", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("k", [1, 2, 5, 64])
def test_value_and_gradient_equal_the_formula(n, k):
    scores, bias, labels, weight = problem(n, k, n + k)
    gradient = np.empty((n, k))
    value = loss_rows(scores, bias, labels, NONE, weight, gradient)
    expected, d_scores = twin(scores, bias, np.eye(k)[labels], weight)
    assert value == pytest.approx(expected, rel=1e-12, abs=1e-12)
    np.testing.assert_allclose(gradient, d_scores, atol=1e-13)


def test_soft_targets_and_absent_arrays():
    scores, _, _, _ = problem(130, 3, 0)
    soft = np.random.default_rng(1).dirichlet(np.ones(3), 130)
    gradient = np.empty((130, 3))
    value = loss_rows(scores, NONE, NO_LABELS, soft, NO_WEIGHT, gradient)
    expected, d_scores = twin(scores, np.zeros((130, 3)), soft, np.ones(130))
    assert value == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(gradient, d_scores, atol=1e-13)
    assert loss_rows(scores, NONE, NO_LABELS, soft, NO_WEIGHT, NONE) == value


@pytest.mark.parametrize("height", [10.0, 50.0, 700.0, 1e6])
def test_saturated_rows_keep_exact_gradients(height):
    labels = np.array([0, 1, 2, 1])
    bias = np.full((4, 3), height)
    bias[np.arange(4), labels] = 0.0
    gradient = np.empty((4, 3))
    value = loss_rows(np.zeros((4, 3)), bias, labels, NONE, NO_WEIGHT, gradient)
    assert value == pytest.approx(4 * (height + np.log(2)), rel=1e-4)
    expected = np.full((4, 3), 0.5)
    expected[np.arange(4), labels] = -1.0
    np.testing.assert_allclose(gradient, expected, atol=1e-4)


def test_forbidden_configurations_take_no_part():
    scores, bias, labels, weight = problem(70, 4, 3)
    wrong = (labels + 1) % 4
    bias[np.arange(70), wrong] = -np.inf
    for labelled, soft in ((labels, NONE), (NO_LABELS, np.eye(4)[labels])):
        gradient = np.empty((70, 4))
        value = loss_rows(scores, bias, labelled, soft, weight, gradient)
        assert value == pytest.approx(twin(scores, bias, np.eye(4)[labels], weight)[0], rel=1e-12)
        assert not gradient[np.arange(70), wrong].any()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 150), st.integers(2, 9), st.floats(-1e3, 1e3), st.integers(0, 1000))
def test_a_constant_per_row_changes_nothing(n, k, shift, seed):
    scores, bias, labels, weight = problem(n, k, seed)
    lift = shift * np.random.default_rng(seed).normal(size=(n, 1))
    value = loss_rows(scores, bias, labels, NONE, weight, NONE)
    lifted = loss_rows(scores, bias + lift, labels, NONE, weight, NONE)
    assert lifted == pytest.approx(value, rel=1e-9, abs=1e-9 * (1 + abs(shift)))


@pytest.mark.parametrize("intercept", [False, True])
def test_fused_linear_loss_against_central_differences(intercept):
    _, bias, labels, weight = problem(150, 4, 5)
    rng = np.random.default_rng(6)
    x, coef = rng.normal(size=(150, 3)), rng.normal(size=(3 + intercept, 4))
    gradient = np.zeros_like(coef)
    value = linear_loss_rows(x, coef, bias, labels, NONE, weight, gradient)
    full = np.c_[x, np.ones(150)] if intercept else x
    assert value == pytest.approx(loss_rows(full @ coef, bias, labels, NONE, weight, NONE), rel=1e-12)
    for i, k in np.ndindex(coef.shape):
        step = np.zeros_like(coef)
        step[i, k] = 1e-6
        high, low = (
            linear_loss_rows(x, coef + s * step, bias, labels, NONE, weight, np.zeros_like(coef)) for s in (1, -1)
        )
        assert gradient[i, k] == pytest.approx((high - low) / 2e-6, rel=1e-5, abs=1e-5)

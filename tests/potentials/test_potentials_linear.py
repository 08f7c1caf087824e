"""Constant and linear potentials: closed forms, scikit-learn, sparse rows, expansions, saturation."""

import numpy as np
import pytest
import scipy.sparse
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, SplineTransformer, StandardScaler

from potentia.base.types import PotentiaError
from potentia.potentials import Constant, Linear, Potential


def rows(n=400, d=4, k=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) * np.array([1.0, 10.0, 0.1, 1.0])[:d] + np.array([0.0, 50.0, 0.0, -3.0])[:d]
    y = ((x - x.mean(0)) / x.std(0) @ rng.normal(size=(d, k)) + rng.gumbel(size=(n, k))).argmax(1)
    return x, y


def centred(a):
    return a - a.mean(-1, keepdims=True)


def test_constant_without_bias_is_the_log_frequency():
    y = np.repeat([0, 1, 2], [10, 30, 60])
    table = Constant().fit(None, y).table_
    np.testing.assert_allclose(centred(table), centred(np.log([0.1, 0.3, 0.6])), atol=1e-6)


def test_constant_undoes_a_constant_bias():
    y = np.repeat([0, 1, 2], [10, 30, 60])
    v = np.array([5.0, -3.0, 20.0])
    free, biased = Constant().fit(None, y), Constant().fit(None, y, np.tile(v, (100, 1)))
    np.testing.assert_allclose(centred(biased.table_ + v), centred(free.table_), atol=1e-5)
    assert biased.objective_ == pytest.approx(free.objective_, rel=1e-9)


@pytest.mark.parametrize("ridge", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("intercept", [True, False])
def test_linear_equals_scikit_learn(ridge, intercept):
    x, y = rows()
    weight = np.random.default_rng(1).uniform(0, 2, len(y))
    ours = Linear(ridge=ridge, intercept=intercept, tol=1e-9, max_iter=2000).fit(x, y, weight=weight)
    theirs = LogisticRegression(C=1 / ridge, fit_intercept=intercept, solver="newton-cholesky", tol=1e-10)
    theirs.fit(x, y, sample_weight=weight)
    np.testing.assert_allclose(centred(ours.coef_), centred(theirs.coef_.T), atol=1e-4)
    if intercept:
        np.testing.assert_allclose(centred(ours.intercept_), centred(theirs.intercept_), atol=1e-4)


def test_sparse_rows_equal_dense_ones():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 20)) * (rng.random((300, 20)) < 0.2)
    y, bias = rng.integers(0, 4, 300), rng.normal(size=(300, 4))
    dense = Linear(ridge=0.5, tol=1e-9).fit(x, y, bias)
    for make in (scipy.sparse.csr_matrix, scipy.sparse.csc_array):
        sparse = Linear(ridge=0.5, tol=1e-9).fit(make(x), y, bias)
        np.testing.assert_allclose(centred(sparse.coef_), centred(dense.coef_), atol=1e-6)
        np.testing.assert_allclose(sparse.scores(make(x)), sparse.scores(x), atol=1e-12)
        d_scores = rng.normal(size=(300, 4))
        np.testing.assert_allclose(sparse.vjp(make(x), d_scores), sparse.vjp(x, d_scores), atol=1e-9)


@pytest.mark.parametrize("make", [np.asarray, scipy.sparse.csr_array])
def test_more_features_than_are_decorrelated(make):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 600)) * rng.uniform(0.1, 10, 600), rng.integers(0, 3, 80)
    x[:, 5] = 0.0
    ours = Linear(ridge=20.0, tol=1e-9, max_iter=5000).fit(make(x), y)
    theirs = LogisticRegression(C=0.05, tol=1e-9, max_iter=5000).fit(x, y)
    np.testing.assert_allclose(centred(ours.coef_), centred(theirs.coef_.T), atol=1e-4)


def test_redundant_features_do_no_harm():
    """Two constants, a copy and a zero column: the papers' features hold a constant and so may the intercept."""
    x, y = rows()
    wide = np.c_[x, np.ones((len(x), 2)), x[:, 0], np.zeros(len(x))]
    for ridge in (0.0, 1.0):
        plain = Linear(ridge=ridge, tol=1e-9).fit(x, y)
        more = Linear(ridge=ridge, tol=1e-9).fit(wide, y)
        assert more.objective_ <= plain.objective_ + 1e-6
        if ridge == 0.0:
            assert more.objective_ == pytest.approx(plain.objective_, rel=1e-8)
            np.testing.assert_allclose(centred(more.scores(wide)), centred(plain.scores(x)), atol=1e-3)


@pytest.mark.parametrize("height", [10.0, 30.0])
def test_saturated_fit_reaches_the_optimum_from_anywhere(height):
    """Biases of margin over temperature: a start at zero and a start far away must meet."""
    x, y = rows(600)
    bias = np.full((600, 3), height)
    bias[np.arange(600), y] = 0.0
    cold = Linear(tol=1e-7, max_iter=2000).fit(x, y, bias)
    warm = Linear(tol=1e-7, max_iter=2000).fit(x, (y + 1) % 3, bias).fit(x, y, bias)
    assert cold.objective_ < 0.97 * 600 * height
    assert warm.objective_ == pytest.approx(cold.objective_, rel=1e-6)
    _, gradient = cold.penalty_and_gradient()
    z = cold.scores(x) + bias
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(600), y] -= 1.0
    assert np.abs(cold.vjp(x, p) + gradient).max() < 1e-6 * 600


def test_parameters_drive_the_function():
    x, y = rows()
    linear = Linear().start(x, 3)
    vector = np.random.default_rng(0).normal(size=linear.n_parameters)
    linear.parameters = vector
    np.testing.assert_allclose(linear.scores(x), x @ linear.coef_ + linear.intercept_, atol=1e-12)
    with pytest.raises(PotentiaError, match="parameters must have shape"):
        linear.parameters = vector[:-1]
    assert linear.fit(x, y).objective_ < 400 * np.log(3)


@pytest.mark.parametrize(
    "transformer",
    [
        PolynomialFeatures(3, include_bias=False),
        SplineTransformer(n_knots=6, degree=2),
        make_pipeline(StandardScaler(), PolynomialFeatures(2)),
    ],
    ids=["polynomial", "spline", "pipeline"],
)
def test_expansions_fit_curves_and_survive_saving(transformer):
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (500, 2))
    y = (np.abs(x[:, 0]) > 1).astype(int)
    curved = Linear(transformer=transformer).fit(x, y)
    assert (curved.scores(x).argmax(1) == y).mean() > 0.97 > (Linear().fit(x, y).scores(x).argmax(1) == y).mean()
    assert not hasattr(transformer, "n_features_in_"), "the user's own transformer stays untouched"
    loaded = Potential.from_state(*curved.state())
    fresh = rng.uniform(-3, 3, (50, 2))
    np.testing.assert_array_equal(loaded.scores(fresh), curved.scores(fresh))
    np.testing.assert_array_equal(loaded.fit(x, 1 - y).scores(x), curved.fit(x, 1 - y).scores(x))


def test_nested_parameters_are_reached():
    linear = Linear(transformer=PolynomialFeatures(2))
    assert linear.get_params()["transformer__degree"] == 2
    assert linear.set_params(transformer__degree=3, ridge=2.0).transformer.degree == 3
    assert repr(linear) == "Linear(ridge=2.0, transformer=PolynomialFeatures(degree=3))"
    with pytest.raises(PotentiaError, match="no parameter 'rigde'"):
        linear.set_params(rigde=1.0)


def test_negative_ridge_is_refused():
    with pytest.raises(PotentiaError, match="ridge must be a finite number, at least 0"):
        Linear(ridge=-1.0).fit(*rows())


def _far(n=300, offset=1e6, seed=0):
    """Rows whose first feature decides the label and varies by 1 around a large offset."""
    rng = np.random.default_rng(seed)
    t = rng.normal(size=n)
    y = (t + 0.3 * rng.normal(size=n) > 0).astype(int)
    return np.column_stack([t, rng.normal(size=n)]), np.array([offset, 0.0]), y


def _dense(x):
    return x


@pytest.mark.parametrize("make", [_dense, scipy.sparse.csr_matrix, np.asfortranarray])
@pytest.mark.parametrize("offset", [1e3, 1e6, -1e9])
def test_features_far_from_zero_fit_as_if_they_were_centred(offset, make):
    x, shift, y = _far(offset=offset)
    near, far = Linear().fit(x, y), Linear().fit(make(x + shift), y)
    tol = max(1e-5, 1e-12 * abs(offset))  # scores are sums of terms as large as the offset
    assert np.allclose(far.coef_, near.coef_, atol=tol)
    assert np.allclose(far.scores(make(x + shift)), near.scores(x), atol=tol)


def test_a_far_feature_among_more_than_are_decorrelated():
    x, shift, y = _far()
    x = np.hstack([x, np.random.default_rng(1).normal(size=(len(x), 600))])
    shift = np.append(shift, np.zeros(600))
    near, far = Linear(ridge=1.0).fit(x, y), Linear(ridge=1.0).fit(x + shift, y)
    assert np.allclose(far.coef_, near.coef_, atol=1e-4)


def test_far_features_with_weights_soft_targets_and_constants():
    x, shift, y = _far()
    constant = np.full((len(x), 1), 12345.678)
    weight = np.random.default_rng(2).uniform(0.5, 2.0, len(x))
    soft = np.where(np.eye(2)[y] > 0, 0.9, 0.1)
    near = Linear(ridge=1e-9).fit(x, soft, weight=weight)
    far = Linear(ridge=1e-9).fit(np.hstack([x + shift, constant]), soft, weight=weight)
    assert np.allclose(far.coef_[:2], near.coef_, atol=1e-4)
    assert np.allclose(far.coef_[2], 0.0)


def test_far_features_survive_saving():
    x, shift, y = _far()
    far = Linear().fit(x + shift, y)
    meta, arrays = far.state()
    again = Potential.from_state(meta, arrays)
    again.parameters = again.parameters
    assert np.array_equal(again.scores(x + shift), far.scores(x + shift))
    again.set_table(far.table_)
    assert np.allclose(again.coordinates_, far.coordinates_, atol=1e-6)


def test_a_constant_feature_alone_changes_no_coordinates():
    x, _, y = _far()
    fitted = Linear().fit(np.hstack([x, np.full((len(x), 1), 0.1)]), y)
    assert fitted.offset_ is None


def test_values_whose_squares_overflow_are_refused_by_feature():
    x, _, y = _far()
    x[3, 1] = 1e200
    with pytest.raises(PotentiaError, match="feature 1 of x holds values whose squares overflow"):
        Linear().fit(x, y)

"""The network: its steps, its derivatives, and that it keeps the best."""

import numpy as np
import pytest

from potentia.base.types import PotentiaError
from potentia.potentials import MLP, Linear


def waves(n=2000, seed=0):
    rng = np.random.default_rng(seed)
    x = np.c_[rng.uniform(-1, 1, n), rng.uniform(900, 1100, n), np.ones(n)]
    return x, (np.sin(5 * x[:, 0]) + 0.01 * (x[:, 1] - 1000) > 0).astype(int)


def saturated(y, height):
    bias = np.full((len(y), 2), height)
    bias[np.arange(len(y)), y] = 0.0
    return bias


def test_learns_a_curve_in_badly_scaled_features():
    x, y = waves()
    network = MLP(hidden=30, batch=20, epochs=20).fit(x, y)
    test_x, test_y = waves(1000, 1)
    assert (network.scores(test_x).argmax(1) == test_y).mean() > 0.95
    assert (Linear().fit(x, y).scores(test_x).argmax(1) == test_y).mean() < 0.9


@pytest.mark.parametrize("height", [10.0, 50.0])
def test_learns_in_the_saturated_regime_and_goes_on_where_it_stopped(height):
    x, y = waves()
    bias = saturated(y, height)
    network = MLP(hidden=30, batch=20, epochs=3)
    reached = [network.fit(x, y, bias).objective_ for _ in range(4)]
    assert reached == sorted(reached, reverse=True)
    assert reached[-1] < 0.5 * len(y) * height


def test_one_pass_is_the_papers_step_rule():
    """step = .9 step + .1 gradient, weights -= rate * step, gradients by central differences of the batch loss."""
    rng = np.random.default_rng(0)
    x, y, weight = rng.normal(size=(6, 2)), np.array([0, 1, 2, 1, 0, 2]), rng.uniform(0.5, 1.5, 6)
    bias = rng.normal(size=(6, 3))
    network = MLP(hidden=2, batch=3, epochs=1, learning_rate=0.3, ridge=0.2, seed=4)
    twin = MLP(hidden=2, ridge=0.2, seed=4).start(x, 3)
    network.fit(x, y, bias, weight)
    order = np.random.default_rng([4, 0]).permutation(6)
    point, step = twin.parameters, np.zeros(twin.n_parameters)
    for rows in (order[:3], order[3:]):

        def mean_loss(vector, rows=rows):
            twin.parameters = vector
            share = 6 / weight.sum() / 3
            return twin.loss(x[rows], y[rows], bias[rows], weight[rows]) * share + twin.penalty() / weight.sum()

        sides = np.eye(len(point)) * 1e-6
        gradient = np.array([(mean_loss(point + e) - mean_loss(point - e)) / 2e-6 for e in sides])
        step = 0.9 * step + 0.1 * gradient
        point = point - 0.3 * step
    np.testing.assert_allclose(network.parameters, point, atol=1e-8)


def test_a_reckless_rate_leaves_the_old_network():
    x, y = waves(300)
    network = MLP(hidden=5, epochs=2).fit(x, y)
    kept, reached = network.parameters, network.objective_
    network.set_params(learning_rate=1e6).fit(x, y)
    np.testing.assert_array_equal(network.parameters, kept)
    assert network.objective_ == pytest.approx(reached, rel=1e-12)


def test_a_constant_feature_does_not_blow_up_on_other_rows():
    x, y = waves(300)
    x[:, 2] = 0.1 + 0.2
    network = MLP(hidden=5).fit(x, y)
    x[:, 2] = 1.0
    assert np.abs(network.scores(x)).max() < 100


def test_impossible_settings_are_refused():
    with pytest.raises(PotentiaError, match="momentum"):
        MLP(momentum=1.0).fit(*waves(20))

"""L-BFGS and Adam: known minima, SciPy's answers, and runs that resume bit for bit."""

import numpy as np
import pytest
from scipy.optimize import minimize, rosen, rosen_der

from potentia.base.optimise import LBFGS, OWLQN, Adam
from potentia.base.types import PotentiaError


def rosenbrock(x):
    return rosen(x), rosen_der(x)


def logistic(seed, spread=2.0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(200, 12)) * np.logspace(0, spread, 12)
    y = 2.0 * rng.integers(0, 2, 200) - 1

    def value(w):
        margin = y * (x @ w)
        slope = -x.T @ (y / (1 + np.exp(np.clip(margin, -500, 500)))) + 1e-2 * w
        return float(np.logaddexp(0, -margin).sum() + 0.5e-2 * w @ w), slope

    return value, np.zeros(12)


def run(search, steps=5000, tol=1e-7):
    while (steps and np.abs(search.gradient).max() > tol) or not search.begun:
        if not search.step():
            break
        steps -= 1
    return search


@pytest.mark.parametrize(
    ("objective", "start"),
    [(rosenbrock, np.full(8, -1.2)), (rosenbrock, np.linspace(-2, 2, 30)), logistic(0), logistic(1, 0.0)],
)
def test_minima_are_those_of_scipy(objective, start):
    found = run(LBFGS(objective, start))
    known = minimize(objective, start, jac=True, method="BFGS", options={"gtol": 1e-7})
    assert found.value == pytest.approx(known.fun, rel=1e-7, abs=1e-10)


def test_every_step_lowers_the_value_and_ends_where_it_was_evaluated_last():
    seen = []

    def objective(x):
        seen.append(x.copy())
        return rosenbrock(x)

    search = LBFGS(objective, np.full(6, 3.0), memory=4)
    search.begin()
    last = search.value
    while search.step() and search.value > 1e-8:
        assert search.value < last
        np.testing.assert_array_equal(seen[-1], search.point)
        last = search.value


@pytest.mark.parametrize("cut", [1, 2, 7, 20])
def test_a_resumed_run_is_the_same_run(cut):
    straight = LBFGS(rosenbrock, np.linspace(-1, 1, 10), memory=5)
    for _ in range(40):
        straight.step()
    first = LBFGS(rosenbrock, np.linspace(-1, 1, 10), memory=5)
    for _ in range(cut):
        first.step()
    second = LBFGS(rosenbrock, np.zeros(10), memory=5)
    second.restore({name: array.copy() for name, array in first.state().items()})
    for _ in range(40 - cut):
        second.step()
    np.testing.assert_array_equal(second.point, straight.point)
    assert second.value == straight.value


def test_a_state_of_another_size_is_refused():
    state = LBFGS(rosenbrock, np.zeros(3)).state()
    with pytest.raises(PotentiaError, match=r"point has the shape \(3,\), not \(4\); delete it"):
        LBFGS(rosenbrock, np.zeros(4)).restore(state)
    with pytest.raises(PotentiaError, match="value is missing"):
        LBFGS(rosenbrock, np.zeros(3)).restore({"point": np.zeros(3)})
    with pytest.raises(PotentiaError, match=r"point has the shape \(3,\), not \(4\)"):
        Adam(np.zeros(4)).restore(Adam(np.zeros(3)).state())


def test_values_that_are_not_finite_count_as_too_far():
    def barrier(x):
        if x[0] <= 0:
            return np.nan, np.full(1, np.nan)
        return float(x[0] - np.log(x[0])), 1 - 1 / x

    assert run(LBFGS(barrier, np.array([50.0]))).point[0] == pytest.approx(1.0, abs=1e-6)
    with pytest.raises(PotentiaError, match="where the fit begins"):
        LBFGS(barrier, np.array([-1.0])).step()


def test_nothing_is_gained_at_a_minimum():
    search = LBFGS(lambda x: (float(x @ x), 2 * x), np.zeros(3))
    assert not search.step()
    assert search.value == 0.0


def test_adam_takes_steps_of_its_rate_and_resumes():
    a, b = Adam(np.array([3.0, -2.0])), Adam(np.array([3.0, -2.0]))
    a.step(np.array([10.0, 1e-3]), 0.1)
    np.testing.assert_allclose(a.point, [2.9, -2.1], atol=1e-4)
    b.restore(a.state())
    for adam in (a, b):
        for _ in range(300):
            adam.step(2 * adam.point, 0.05)
    np.testing.assert_array_equal(a.point, b.point)
    assert np.abs(a.point).max() < 0.1


def lasso(seed):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(30, 12)), rng.normal(size=30)
    return lambda x: (0.5 * float(np.sum((a @ x - b) ** 2)), a.T @ (a @ x - b))


@pytest.mark.parametrize("l1", [0.5, 5.0, np.linspace(0.0, 9.0, 12)])
def test_owl_qn_meets_the_conditions_of_the_lasso(l1):
    objective = lasso(0)
    search = OWLQN(objective, np.zeros(12), l1)
    for _ in range(300):
        if not search.step():
            break
    gradient, weight = objective(search.point)[1], np.broadcast_to(l1, 12)
    moved = search.point != 0
    assert 0 < moved.sum() < 12 or np.isscalar(l1)
    np.testing.assert_allclose(gradient[moved], -weight[moved] * np.sign(search.point[moved]), atol=1e-5)
    assert np.all(np.abs(gradient[~moved]) <= weight[~moved] + 1e-6)


def test_owl_qn_resumes_bit_for_bit():
    straight, first, second = (OWLQN(lasso(1), np.zeros(12), 1.0, memory=4) for _ in range(3))
    for _ in range(12):
        straight.step()
    for _ in range(5):
        first.step()
    second.restore({name: array.copy() for name, array in first.state().items()})
    for _ in range(7):
        second.step()
    np.testing.assert_array_equal(second.point, straight.point)


@pytest.mark.parametrize("method", [LBFGS, lambda f, x: OWLQN(f, x, 0.01)])
def test_a_step_that_fails_says_what_the_slope_promised(method):
    def bowl(x):
        return float(x @ x), 2 * x

    search = method(bowl, np.ones(3))
    while search.step():
        pass
    assert search.missed < 1e-9
    wrong = method(lambda x: (float(x @ x), -2 * x), np.ones(3))
    assert not wrong.step()
    assert wrong.missed > 0.1
    lonely = method(lambda x: bowl(x) if np.all(x == 1.0) else (np.nan, x), np.ones(3))
    assert not lonely.step()
    assert lonely.missed > 0.1

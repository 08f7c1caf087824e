"""L-BFGS, OWL-QN and Adam: known minima, SciPy's answers, and runs that resume bit for bit."""

import numpy as np
import pytest
from scipy.optimize import minimize, rosen, rosen_der

from potentia.base.optimise import Search, adam, adam_start, begin, check_adam, lbfgs, owlqn
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


def run(step, objective, start, steps=5000, tol=1e-7):
    """Steps until the gradient vanishes or nothing is gained."""
    search = begin(Search(np.asarray(start, float)), objective)
    while steps and np.abs(search.gradient).max() > tol and not search.stopped:
        search, steps = step(search, objective), steps - 1
    return search


@pytest.mark.parametrize(
    ("objective", "start"),
    [(rosenbrock, np.full(8, -1.2)), (rosenbrock, np.linspace(-2, 2, 30)), logistic(0), logistic(1, 0.0)],
)
def test_minima_are_those_of_scipy(objective, start):
    found = run(lbfgs, objective, start)
    known = minimize(objective, start, jac=True, method="BFGS", options={"gtol": 1e-7})
    assert found.value == pytest.approx(known.fun, rel=1e-7, abs=1e-10)


def test_every_step_lowers_the_value_and_brings_what_belongs_to_its_point():
    search = begin(Search(np.full(6, 3.0)), rosenbrock)
    while not search.stopped and search.value > 1e-8:
        before = search
        search = lbfgs(before, lambda x: (*rosenbrock(x), x.copy()), memory=4)
        assert search.stopped or search.value < before.value
        np.testing.assert_array_equal(search.point if search.stopped else search.aux, search.point)
        assert before.value == rosen(before.point)  # the state before stays valid


@pytest.mark.parametrize("cut", [1, 2, 7, 20])
def test_a_resumed_run_is_the_same_run(cut):
    straight = Search(np.linspace(-1, 1, 10))
    for number in range(40):
        if number == cut:
            saved = {name: array.copy() for name, array in straight.arrays().items()}
        straight = lbfgs(straight, rosenbrock, memory=5)
    second = Search.of(Search.check(saved, 10))
    for _ in range(40 - cut):
        second = lbfgs(second, rosenbrock, memory=5)
    np.testing.assert_array_equal(second.point, straight.point)
    assert second.value == straight.value


def test_a_state_of_another_size_is_refused():
    state = lbfgs(Search(np.zeros(3)), rosenbrock).arrays()
    with pytest.raises(PotentiaError, match=r"point has the shape \(3,\), not \(4\); delete it"):
        Search.check(state, 4)
    for name in state.keys() - {"step0"}:
        with pytest.raises(PotentiaError, match="is missing"):
            Search.check({key: array for key, array in state.items() if key != name} | {"other": 1}, 3)
    with pytest.raises(PotentiaError, match=r"point has the shape \(3,\), not \(4\)"):
        check_adam(adam_start(np.zeros(3)), 4)


def test_values_that_are_not_finite_count_as_too_far():
    def barrier(x):
        if x[0] <= 0:
            return np.nan, np.full(1, np.nan)
        return float(x[0] - np.log(x[0])), 1 - 1 / x

    assert run(lbfgs, barrier, [50.0]).point[0] == pytest.approx(1.0, abs=1e-6)
    with pytest.raises(PotentiaError, match="where the fit begins"):
        lbfgs(Search(np.array([-1.0])), barrier)


def test_nothing_is_gained_at_a_minimum():
    search = lbfgs(Search(np.zeros(3)), lambda x: (float(x @ x), 2 * x))
    assert search.stopped
    assert search.value == 0.0


def test_adam_takes_steps_of_its_rate_and_resumes():
    first = adam(adam_start(np.array([3.0, -2.0])), np.array([10.0, 1e-3]), 0.1)
    np.testing.assert_allclose(first["point"], [2.9, -2.1], atol=1e-4)
    ends = []
    for state in (first, check_adam(first, 2)):
        for _ in range(300):
            state = adam(state, 2 * state["point"], 0.05)
        ends.append(state["point"])
    np.testing.assert_array_equal(*ends)
    assert np.abs(ends[0]).max() < 0.1


def lasso(seed):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(30, 12)), rng.normal(size=30)
    return lambda x: (0.5 * float(np.sum((a @ x - b) ** 2)), a.T @ (a @ x - b))


@pytest.mark.parametrize("l1", [0.5, 5.0, np.linspace(0.0, 9.0, 12)])
def test_owl_qn_meets_the_conditions_of_the_lasso(l1):
    objective = lasso(0)
    search = run(lambda s, f: owlqn(s, f, l1), objective, np.zeros(12), 300, 0.0)
    gradient, weight = objective(search.point)[1], np.broadcast_to(l1, 12)
    moved = search.point != 0
    assert 0 < moved.sum() < 12 or np.isscalar(l1)
    np.testing.assert_allclose(gradient[moved], -weight[moved] * np.sign(search.point[moved]), atol=1e-5)
    assert np.all(np.abs(gradient[~moved]) <= weight[~moved] + 1e-6)


def test_owl_qn_resumes_bit_for_bit():
    straight = Search(np.zeros(12))
    for number in range(12):
        if number == 5:
            saved = {name: array.copy() for name, array in straight.arrays().items()}
        straight = owlqn(straight, lasso(1), 1.0, memory=4)
    second = Search.of(Search.check(saved, 12))
    for _ in range(7):
        second = owlqn(second, lasso(1), 1.0, memory=4)
    np.testing.assert_array_equal(second.point, straight.point)


@pytest.mark.parametrize("step", [lbfgs, lambda search, f: owlqn(search, f, 0.01)])
def test_a_step_that_fails_says_what_the_slope_promised(step):
    def bowl(x):
        return float(x @ x), 2 * x

    search = Search(np.ones(3))
    while not search.stopped:
        search = step(search, bowl)
    assert search.missed < 1e-9
    wrong = step(Search(np.ones(3)), lambda x: (float(x @ x), -2 * x))
    assert wrong.stopped
    assert wrong.missed > 0.1
    lonely = step(Search(np.ones(3)), lambda x: bowl(x) if np.all(x == 1.0) else (np.nan, x))
    assert lonely.stopped
    assert lonely.missed > 0.1

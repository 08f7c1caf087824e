"""Mean field against its plain twin, and its guarantees."""

import numpy as np
import pytest

import naive_engines
import potentia as pt
import reference
import zoo


@pytest.mark.parametrize("problem", zoo.problems(has_forbidden=False, clamped=False), ids=str)
def test_sequential_mean_field_is_plain_coordinate_ascent(problem):
    result = None
    for _ in range(4):  # each call starts forwards again, as the twin does
        result = pt.MeanField(iterations=1, tol=0, schedule="sequential").infer(*problem.model, start=result)
    q, value = naive_engines.mean_field(*problem.model, iterations=4, tol=0)
    np.testing.assert_allclose(result.variable_marginals, q, atol=1e-10)
    assert result.value == pytest.approx(value, rel=1e-10)


@pytest.mark.parametrize("problem", zoo.problems(), ids=str)
def test_lower_bound_that_never_falls_and_products_for_marginals(problem):
    values, start = [], None
    for _ in range(8):
        start = pt.MeanField(iterations=1, tol=0).infer(*problem.model, start=start)
        values.append(start.value)
    log_z = reference.log_partition(*problem.model)
    scale = max(1.0, abs(log_z))
    assert np.all(np.diff(values) >= -1e-12 * scale)
    assert values[-1] <= log_z + 1e-9 * scale
    assert start.bound == "lower"
    for kind, scope in problem.graph.scopes.items():
        for row, table in zip(scope, start.marginals[kind], strict=True):
            product = np.ones(())
            for i in row:
                product = np.multiply.outer(product, start.variable_marginals[i, : problem.graph.n_states[i]])
            np.testing.assert_allclose(table, product, atol=1e-15)


def test_exact_without_pairs():
    problem = zoo.zoo()["single"]
    result = pt.MeanField().infer(*problem.model)
    assert result.value == pytest.approx(reference.log_partition(*problem.model))
    assert result.converged


def test_refuses_without_a_feasible_start():
    with pytest.raises(pt.InfeasibleError, match="finite score"):
        pt.MeanField().infer(*zoo.zoo()["odd_cycle"].model)


def test_residual_schedule_is_refused():
    with pytest.raises(pt.PotentiaError, match="residual"):
        pt.MeanField(schedule="residual").infer(*zoo.zoo()["grid"].model)


def test_threads_change_nothing(monkeypatch):
    monkeypatch.setattr("potentia.inference.mean_field._PARALLEL_WORK", 0)
    graph = pt.Graph.grid((30, 30), n_states=3)
    theta = zoo.scores(graph, np.random.default_rng(0))
    one, two = (pt.MeanField(iterations=5, tol=0, threads=t).infer(graph, theta) for t in (1, 2))
    np.testing.assert_array_equal(one.variable_marginals, two.variable_marginals)
    assert [pt.MeanField(threads=t).infer(graph, theta).value for t in (1, 2, 3, 5)] == [
        pt.MeanField(threads=1).infer(graph, theta).value
    ] * 4


@pytest.mark.parametrize("schedule", [np.zeros(3), None, ["coloured"], "sideways"])
def test_a_wrong_schedule_gets_one_sentence(schedule):
    with pytest.raises(pt.PotentiaError, match="schedule must be one of"):
        pt.MeanField(schedule=schedule).infer(pt.Graph.chain(3, n_states=2), {})

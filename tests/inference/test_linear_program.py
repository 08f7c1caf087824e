"""The local-polytope LP against a plain one, its certificates, and what it says when there is no answer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference as ref
from potentia.base.types import InfeasibleError, PotentiaError
from potentia.graph.structure import Graph
from potentia.inference.linear_program import LinearProgram
from zoo import Problem, problems, random_models, zoo


def assert_locally_consistent(result) -> None:
    """Region marginals are distributions that agree with the variables' marginals."""
    graph = result.graph
    np.testing.assert_allclose(result.variable_marginals.sum(axis=1), 1, atol=1e-7)
    for kind, scopes in graph.scopes.items():
        for scope, table in zip(scopes, result.marginals[kind], strict=True):
            assert table.min() >= 0
            for axis, i in enumerate(scope):
                own = table.sum(axis=tuple(k for k in range(table.ndim) if k != axis))
                np.testing.assert_allclose(own, result.variable_marginals[i, : graph.n_states[i]], atol=1e-7)


@pytest.mark.parametrize("problem", problems(), ids=str)
def test_value_is_the_plain_lp(problem: Problem) -> None:
    result = LinearProgram().infer(*problem.model)
    expected = ref.local_polytope_value(*problem.model)
    best = ref.max_score(*problem.model)
    assert result.value == pytest.approx(expected, rel=1e-7, abs=1e-12)
    assert result.converged
    assert result.residual < 1e-7
    assert result.target == "max_score"
    assert_locally_consistent(result)
    assert result.score(result.argmax()) <= best + 1e-9 * (1 + abs(best))
    if result.bound == "exact":
        assert result.value == pytest.approx(best, rel=1e-9, abs=1e-12)
    else:
        assert result.bound == "upper"


@pytest.mark.parametrize("problem", problems(is_forest=True), ids=str)
def test_forests_are_tight(problem: Problem) -> None:
    result = LinearProgram().infer(*problem.model)
    assert result.value == pytest.approx(ref.max_score(*problem.model), rel=1e-9, abs=1e-12)
    assert result.gap == pytest.approx(0, abs=1e-6 * (1 + abs(result.value)))


def test_fractional_optimum_is_an_upper_bound_with_a_gap() -> None:
    problem = zoo()["frustrated"]
    result = LinearProgram().infer(*problem.model)
    assert result.bound == "upper"
    assert result.gap == pytest.approx(result.value - ref.max_score(*problem.model), abs=1e-9)
    assert result.gap > 1
    fractional = (result.variable_marginals > 0.1) & (result.variable_marginals < 0.9)
    assert fractional.any()


@pytest.mark.parametrize("method", ["highs-ds", "highs-ipm"])
def test_solvers_agree(method: str) -> None:
    for problem in random_models(6, seed=3):
        expected = LinearProgram().infer(*problem.model).value
        assert LinearProgram(method=method).infer(*problem.model).value == pytest.approx(expected, rel=1e-7)


@given(shift=st.floats(-50, 50), scale=st.floats(1e-3, 1e3), seed=st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_shift_and_scale(shift: float, scale: float, seed: int) -> None:
    graph = Graph.complete(4, n_states=2)
    rng = np.random.default_rng(seed)
    node, edge = rng.standard_normal((4, 2)), rng.standard_normal((6, 2, 2))
    value = LinearProgram().infer(graph, {"node": node, "edge": edge}).value
    moved = LinearProgram().infer(graph, {"node": scale * node + shift, "edge": scale * edge}).value
    assert moved == pytest.approx(scale * value + 4 * shift, rel=1e-6, abs=1e-6 * scale)


def test_forbidden_configurations_get_no_mass() -> None:
    for name in ("forbidden_nodes", "forbidden_edges", "hard_chain"):
        graph, theta, _ = zoo()[name].model
        result = LinearProgram().infer(graph, theta)
        for kind, tables in theta.items():
            mu = result.marginals[kind]
            assert np.all(mu[np.broadcast_to(np.isneginf(tables), mu.shape)] == 0)


def test_infeasible_models_are_refused_or_seen_through() -> None:
    with pytest.raises(InfeasibleError, match="forbidden"):
        LinearProgram().infer(*zoo()["contradiction"].model)
    # locally consistent marginals exist, but no labelling does
    result = LinearProgram().infer(*zoo()["odd_cycle"].model)
    assert result.bound == "upper"
    assert result.score(result.argmax()) == -np.inf


def test_iteration_limit_still_bounds() -> None:
    problem = zoo()["grid"]
    result = LinearProgram(iterations=1).infer(*problem.model)
    assert not result.converged
    assert result.residual > 0.1
    assert result.bound == "upper"
    assert result.value >= ref.local_polytope_value(*problem.model)


def test_options_are_checked() -> None:
    with pytest.raises(PotentiaError, match="method"):
        LinearProgram(method="simplex")
    with pytest.raises(PotentiaError, match="iterations"):
        LinearProgram(iterations=0)

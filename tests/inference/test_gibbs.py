"""Gibbs sampling against brute force within its own error bars; reproducible; refuses what it cannot do."""

from __future__ import annotations

import numpy as np
import pytest

import reference as ref
from potentia.base.types import InfeasibleError, PotentiaError
from potentia.graph.structure import Graph
from potentia.inference.gibbs import Gibbs
from potentia.inference.linear_program import LinearProgram
from zoo import Problem, problems, zoo

# at scores of 1e4 single changes never leave a local optimum
MOVING = [p for p in problems() if not p.name.startswith("huge")]


@pytest.mark.parametrize("problem", MOVING, ids=str)
def test_marginals_are_within_sampling_error(problem: Problem) -> None:
    result = Gibbs(samples=4000, chains=5, seed=1).infer(*problem.model)
    exact = ref.variable_marginals(*problem.model)
    # hard chains mix slowly; their own error estimate must say so
    assert np.abs(result.variable_marginals - exact).max() < max(0.03, 5 * result.residual)
    expected = ref.marginals(*problem.model)
    for kind in problem.graph.kinds:
        for found, table in zip(result.marginals[kind], expected[kind], strict=True):
            assert np.abs(found - table).max() < max(0.03, 5 * result.residual)
    assert result.bound == "estimate"


@pytest.mark.parametrize("problem", [p for p in MOVING if p.is_forest or p.is_junction], ids=str)
def test_value_tends_to_log_partition_on_forests_and_junction_trees(problem: Problem) -> None:
    result = Gibbs(samples=4000, seed=2).infer(*problem.model)
    assert result.log_partition == pytest.approx(ref.log_partition(*problem.model), abs=0.02)


def test_error_estimate_shrinks_as_samples_grow() -> None:
    model = zoo()["grid"].model
    short, long = (Gibbs(samples=n, chains=8, seed=3).infer(*model).residual for n in (100, 10_000))
    assert long < short / 4
    assert Gibbs(samples=20_000, chains=8, tol=0.01).infer(*model).converged
    assert not Gibbs(samples=20, tol=0.001).infer(*model).converged


def test_same_seed_same_samples_and_other_seed_others() -> None:
    graph, theta, observed = zoo()["observed"].model
    draws = Gibbs(seed=4).sample(graph, theta, 50, observed)
    np.testing.assert_array_equal(draws, Gibbs(seed=4).sample(graph, theta, 50, observed))
    assert np.any(draws != Gibbs(seed=5).sample(graph, theta, 50, observed))
    a, b = (Gibbs(seed=6, samples=50).infer(graph, theta, observed) for _ in range(2))
    np.testing.assert_array_equal(a.variable_marginals, b.variable_marginals)


def test_samples_follow_the_distribution_and_the_clamps() -> None:
    graph, theta, observed = zoo()["observed"].model
    draws = Gibbs(thin=2).sample(graph, theta, 4001, observed)
    assert draws.shape == (4001, graph.n_variables)
    for i, state in observed.items():
        assert np.all(draws[:, i] == state)
    frequency = np.stack([(draws == s).mean(axis=0) for s in range(3)], axis=1)
    assert np.abs(frequency - ref.variable_marginals(graph, theta, observed)).max() < 0.05


def test_samples_never_break_hard_constraints() -> None:
    graph, theta, _ = zoo()["hard_chain"].model
    draws = Gibbs(burn_in=0).sample(graph, theta, 500)
    assert np.abs(np.diff(draws, axis=1)).max() <= 1
    assert np.all(draws[:, -1] == 2)


def test_blocks_of_random_numbers_do_not_change_the_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo()["chain"].model
    whole = Gibbs(samples=30, burn_in=7, thin=3).infer(*model)
    monkeypatch.setattr("potentia.inference.gibbs._BLOCK", 16)
    pieces = Gibbs(samples=30, burn_in=7, thin=3).infer(*model)
    np.testing.assert_array_equal(whole.variable_marginals, pieces.variable_marginals)


def test_a_start_goes_on_where_it_ended() -> None:
    graph, theta, _ = zoo()["huge_chain"].model
    first = Gibbs(samples=10).infer(graph, theta)
    second = Gibbs(samples=10).infer(graph, theta, start=first)
    assert second.iterations == first.iterations + 10
    np.testing.assert_array_equal(second.variable_marginals, first.variable_marginals)
    # clamped away from where the chains ended, they start afresh
    moved = Gibbs(samples=10).infer(graph, theta, observed={0: (int(first.mpm()[0]) + 1) % 3}, start=first)
    assert moved.mpm()[0] != first.mpm()[0]


def test_infeasible_and_bad_options_are_refused() -> None:
    for name in ("odd_cycle", "contradiction"):
        with pytest.raises(InfeasibleError, match="finite score"):
            Gibbs().infer(*zoo()[name].model)
    for option in ("samples", "burn_in", "thin", "chains"):
        with pytest.raises(PotentiaError, match=option):
            Gibbs(**{option: -1})
    graph = Graph.chain(2, n_states=2)
    other = LinearProgram().infer(graph, {})
    with pytest.raises(PotentiaError, match="chains"):
        Gibbs().infer(graph, {}, start=other)

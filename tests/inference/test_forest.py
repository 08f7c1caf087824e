"""log Z of forests and its gradient in two passes, against enumeration and the general engine."""

import numpy as np
import pytest

import potentia as pt
from potentia.graph.cotangents import flat_marginals, user_tables
from potentia.graph.scores import Scores
from potentia.inference import forest
from potentia.inference.base import Inference
from reference import all_marginals, label_scores, log_partition
from zoo import problems

FORESTS = [p for p in problems() if p.is_forest and p.pairwise and p.feasible]


@pytest.mark.parametrize("problem", FORESTS, ids=str)
def test_value_and_gradient_equal_enumeration(problem):
    scores = Scores(*problem.model)
    found = pt.Exact().expectations(scores)
    assert found.value == pytest.approx(log_partition(*problem.model), rel=1e-10, abs=1e-10)
    want = Inference.expectations(pt.Exact(), scores)
    for kind, table in want.tables.items():
        np.testing.assert_allclose(found.tables[kind], table, atol=1e-10)
    assert (found.bound, found.target) == ("exact", "log_partition")


def test_scores_beyond_the_safe_range_take_the_general_way():
    rng = np.random.default_rng(0)
    graph = pt.Graph.chain(5, n_states=3)
    for scale, fast in ((1.0, True), (100.0, True), (1e4, False)):
        theta = {"node": scale * rng.standard_normal((5, 3)), "edge": rng.standard_normal((3, 3))}
        scores = Scores(graph, theta)
        assert (forest.log_partition(scores) is not None) == fast
        found = pt.Exact().expectations(scores)
        assert found.value == pytest.approx(log_partition(graph, theta), rel=1e-12)


def test_long_chains_neither_overflow_nor_lose_precision():
    rng = np.random.default_rng(1)
    graph = pt.Graph.chain(20_000, n_states=4)
    theta = {"node": 5 * rng.standard_normal((20_000, 4)), "edge": 3 * rng.standard_normal((4, 4))}
    scores = Scores(graph, theta)
    found, want = forest.log_partition(scores), Inference.expectations(pt.Exact(), scores)
    assert found[0] == pytest.approx(want.value, rel=1e-12)
    np.testing.assert_allclose(found[1]["edge"], want.tables["edge"], rtol=1e-9)


def test_trees_of_mixed_states_and_two_kinds_of_pairs():
    rng = np.random.default_rng(2)
    kinds = {"node": [[0], [2], [4]], "a": [[1, 0], [1, 2]], "b": [[3, 1], [4, 3], [5, 3]]}
    graph = pt.Graph([2, 3, 4, 2, 3, 2], kinds)
    theta = {k: [rng.standard_normal(graph.n_states[s]) for s in scope] for k, scope in graph.scopes.items()}
    scores = Scores(graph, theta)
    value, tables = forest.log_partition(scores)
    assert value == pytest.approx(log_partition(graph, theta), rel=1e-12)
    _, exact = all_marginals(graph, theta)
    shaped = user_tables(scores, tables, theta)
    flat = [t for kind in graph.kinds for t in shaped[kind]]
    for a, b in zip(flat, exact, strict=False):
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_expectations_of_any_method_are_its_marginals_summed_over_shared_tables():
    rng = np.random.default_rng(3)
    graph = pt.Graph.grid((3, 4), n_states=2)
    theta = {"node": rng.standard_normal(2), "edge": rng.standard_normal((2, 2))}
    scores = Scores(graph, theta)
    inference = pt.TRW(iterations=50)
    result, found = inference.run(scores, None), inference.expectations(scores)
    assert found.value == result.value
    for kind in scores.graph.clique_kinds:
        sums = flat_marginals(result.marginals[kind]).reshape(-1, 4).sum(axis=0)
        np.testing.assert_allclose(found.tables[kind], sums)
    np.testing.assert_allclose(found.tables["node"], result.variable_marginals.sum(axis=0))


@pytest.mark.parametrize("k", [1, 3, 40])
@pytest.mark.parametrize("problem", FORESTS, ids=str)
def test_the_k_best_labellings_are_those_of_enumeration(problem, k):
    found = pt.Exact().k_best(problem.graph, problem.theta, k, observed=problem.observed)
    every = label_scores(*problem.model)
    right = np.sort(every[np.isfinite(every)])[::-1][:k]
    np.testing.assert_allclose(found.scores, right, rtol=1e-9, atol=1e-9)
    assert len({tuple(y) for y in found.labels.tolist()}) == len(right)
    result = pt.Exact().infer(*problem.model)
    np.testing.assert_allclose([result.score(y) for y in found.labels], right, rtol=1e-9, atol=1e-9)


def test_k_best_refuses_loops_and_empty_lists():
    with pytest.raises(pt.PotentiaError, match="without loops"):
        pt.Exact().k_best(pt.Graph.grid((2, 2), n_states=2), {}, 3)
    with pytest.raises(pt.PotentiaError, match="k must be"):
        pt.Exact().k_best(pt.Graph.chain(3, n_states=2), {}, 0)


def test_k_best_of_an_infeasible_forest_is_refused_as_the_best_labelling_is():
    graph = pt.Graph.chain(3, n_states=2)
    # state 0 first and state 1 second, twice in a row
    forbidden = np.array([[-np.inf, 0.0], [-np.inf, -np.inf]])
    with pytest.raises(pt.InfeasibleError, match="no labelling has a finite score"):
        pt.Exact().k_best(graph, {"edge": forbidden}, 2)
    with pytest.raises(pt.InfeasibleError):
        pt.Exact().infer(graph, {"edge": forbidden})

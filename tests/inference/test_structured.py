"""Structured factors against the same factors as tables, in every method that takes them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.support.factors import BINARY, FACTORS, by_outcome, problem, tables

import potentia as pt
from potentia.graph.scores import Scores, score_labels

CASES = [(name, n_states) for name in FACTORS for n_states in (2, 3) if n_states == 2 or name not in BINARY]
#: Orders of update are the same as with tables where variables are visited one after another.
STEPS = {
    "bp": pt.LoopyBP(iterations=6, tol=0, schedule="sequential", damping=0.1),
    "trw": pt.TRW(iterations=5, tol=0, schedule="sequential", rho=0.3),
    "mean field": pt.MeanField(iterations=4, tol=0, schedule="sequential"),
}


def compare(name, graph, theta, method, observed=None, tol=1e-9):
    factor = FACTORS[name]
    ours = method.infer(graph, {**theta, "group": factor}, observed)
    twin = method.infer(graph, {**theta, "group": tables(factor, graph)}, observed)
    assert ours.value == pytest.approx(twin.value, abs=tol)
    np.testing.assert_allclose(ours.variable_marginals, twin.variable_marginals, atol=tol)
    np.testing.assert_allclose(ours.marginals["edge"], twin.marginals["edge"], atol=tol)
    return ours, twin


@pytest.mark.parametrize("method", STEPS)
@pytest.mark.parametrize(("name", "n_states"), CASES)
def test_iterations_equal_those_of_tables(name, n_states, method):
    if method == "mean field" and np.isinf(FACTORS[name].table(4, n_states)).any():
        pytest.skip("mean field starts at a feasible labelling, which the two find in different ways")
    graph, theta = problem(n_states)
    ours, twin = compare(name, graph, theta, STEPS[method], {3: 0})
    expected = by_outcome(FACTORS[name], graph, twin.marginals["group"])
    np.testing.assert_allclose(ours.marginals["group"], expected, atol=1e-9)


@pytest.mark.parametrize("method", [pt.Smoothed(epsilon=0.3), pt.Smoothed(epsilon=0.0), pt.Kikuchi(), pt.LoopyBP()])
@pytest.mark.parametrize(("name", "n_states"), CASES)
def test_methods_that_link_regions_agree_where_none_lies_inside(name, n_states, method):
    rng = np.random.default_rng(1)
    graph = pt.Graph(
        [n_states] * 8,
        {"node": np.arange(8)[:, None], "edge": [[0, 7], [5, 7], [1, 4]], "group": [[0, 1, 2, 3], [6, 4, 5, 3]]},
    )
    theta = {"node": rng.normal(size=(8, n_states)), "edge": rng.normal(size=(3, n_states, n_states))}
    compare(
        name, graph, theta, method.__class__(**{**vars(method), "schedule": "sequential", "iterations": 300}), tol=1e-5
    )


@pytest.mark.parametrize(("name", "n_states"), CASES)
def test_exact_inference_equals_that_of_tables(name, n_states):
    graph, theta = problem(n_states)
    ours, twin = compare(name, graph, theta, pt.Exact(), {1: 0})
    expected = by_outcome(FACTORS[name], graph, twin.marginals["group"])
    np.testing.assert_allclose(ours.marginals["group"], expected, atol=1e-9)
    assert ours.score(ours.argmax()) == pytest.approx(twin.score(twin.argmax()))


@pytest.mark.parametrize("name", [name for name in FACTORS if name not in ("different", "counts of each")])
def test_chains_of_auxiliary_variables_equal_trees_of_sums(name):
    # one factor: belief propagation is exact, and too large a table to be written out
    n = 12
    rng = np.random.default_rng(2)
    graph = pt.Graph([2] * n, {"node": np.arange(n)[:, None], "group": [np.arange(n)]})
    value = pt.factors.Or(weight=1.5) if name == "or" else FACTORS[name]
    theta = {"node": rng.normal(size=(n, 2)), "group": value}
    exact, bp = pt.Exact().infer(graph, theta), pt.LoopyBP().infer(graph, theta)
    assert bp.bound == "exact"
    assert bp.value == pytest.approx(exact.value, abs=1e-9)
    np.testing.assert_allclose(bp.variable_marginals, exact.variable_marginals, atol=1e-9)
    np.testing.assert_allclose(bp.marginals["group"], exact.marginals["group"], atol=1e-9)


@pytest.mark.parametrize(("name", "n_states"), CASES)
def test_map_finds_the_best_labelling_and_bounds_hold(name, n_states):
    graph, theta = problem(n_states, n=5, order=4)
    theta = {**theta, "group": FACTORS[name]}
    scores = Scores(graph, theta)
    best = max(score_labels(scores, np.array(y)) for y in itertools.product(range(n_states), repeat=5))
    result = pt.MAP(exact_search=False).infer(graph, theta)
    assert result.score(result.argmax()) == pytest.approx(best)
    for method in (result, pt.LinearProgram().infer(graph, theta), pt.Smoothed(epsilon=0.0).infer(graph, theta)):
        assert method.value >= best - 1e-7


def test_large_factors_are_exact_where_one_covers_all_variables():
    n = 500
    rng = np.random.default_rng(0)
    gain, scores = rng.normal(size=n), 5 * rng.normal(size=n + 1)
    graph = pt.Graph([2] * n, {"node": np.arange(n)[:, None], "group": [np.arange(n)]})
    theta = {"node": np.stack([np.zeros(n), gain], axis=1), "group": pt.factors.Cardinality(scores)}
    result = pt.LoopyBP().infer(graph, theta)
    ways = np.full(n + 1, -np.inf)
    ways[0] = 0.0
    for a in gain:
        ways[1:] = np.logaddexp(ways[1:], ways[:-1] + a)
    expected = np.logaddexp.reduce(ways + scores)
    assert result.value == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(result.marginals["group"][0], np.exp(ways + scores - expected), atol=1e-9)
    # the best labelling has the largest gains
    totals = np.concatenate([[0.0], np.cumsum(np.sort(gain)[::-1])]) + scores
    best = pt.Smoothed(epsilon=0.0).infer(graph, theta)
    assert best.score(best.argmax()) == pytest.approx(totals.max())
    assert pt.MAP(exact_search=False).infer(graph, theta).bound == "exact"


def test_counts_far_apart_lose_nothing():
    # both allowed counts have probabilities below the range of doubles
    n = 1500
    scores = np.full(n + 1, -np.inf)
    scores[[0, n]] = 0.0
    graph = pt.Graph([2] * n, {"group": [np.arange(n)]})
    result = pt.LoopyBP().infer(graph, {"group": pt.factors.Cardinality(scores)})
    assert result.value == pytest.approx(np.log(2.0), abs=1e-9)
    np.testing.assert_allclose(result.variable_marginals, 0.5, atol=1e-9)


def test_regions_of_two_variables_are_tables():
    graph = pt.Graph.chain(3, n_states=2)
    result = pt.Exact().infer(graph, {"edge": pt.factors.Implies()})
    assert result.marginals["edge"].shape == (2, 2, 2)
    assert result.marginals["edge"][:, 1, 0].max() == 0.0
    assert result.value == pytest.approx(np.log(4))


def test_threads_results_and_starts_fit():
    graph, theta = problem()
    theta = {**theta, "group": FACTORS["counts"]}
    first = pt.TRW(threads=2).infer(graph, theta)
    assert first.value == pt.TRW(threads=1).infer(graph, theta).value
    again = pt.TRW().infer(graph, theta, start=first)
    assert again.iterations <= 3
    assert first.marginals["group"].shape == (2, 5)


@pytest.mark.parametrize(("name", "order"), [("counts", 4), ("at most two", 4), ("odd", 4), ("soft at most one", 11)])
def test_marginal_map_equals_that_of_tables(name, order):
    graph, theta = problem(n=12, order=order)
    query = [0, 3, 4, 7]
    ours = pt.MAP(query=query).infer(graph, {**theta, "group": FACTORS[name]})
    twin = pt.MAP(query=query).infer(graph, {**theta, "group": tables(FACTORS[name], graph)})
    assert ours.bound == twin.bound == "exact"
    assert ours.value == pytest.approx(twin.value, abs=1e-9)
    np.testing.assert_array_equal(ours.argmax(), twin.argmax())
    assert ours.score(ours.argmax()) == pytest.approx(ours.value, abs=1e-9)


@pytest.mark.parametrize(("name", "n_states"), CASES)
def test_samples_follow_the_distribution(name, n_states):
    graph, theta = problem(n_states)
    theta = {**theta, "group": FACTORS[name]}
    exact = pt.Exact().infer(graph, theta, {2: 0})
    method = pt.Gibbs(samples=3000, chains=3, seed=1)
    result = method.infer(graph, theta, {2: 0})
    room = max(0.03, 5 * result.residual)
    assert np.abs(result.variable_marginals - exact.variable_marginals).max() < room
    for kind in ("edge", "group"):
        assert np.abs(result.marginals[kind] - exact.marginals[kind]).max() < room
    assert np.isnan(result.value)
    draws = method.sample(graph, theta, 300, {2: 0})
    scores = Scores(graph, theta, {2: 0})
    assert all(score_labels(scores, labels) > -np.inf for labels in draws)
    np.testing.assert_array_equal(draws, method.sample(graph, theta, 300, {2: 0}))
    more = method.infer(graph, theta, {2: 0}, start=result)
    assert more.iterations == result.iterations + 3000


@pytest.mark.parametrize(
    ("method", "message"),
    [(pt.LoopyBP(schedule="residual"), "residual"), (pt.TRW(optimise_rho=True), "optimise_rho takes no values")],
)
def test_what_takes_no_structured_factors_says_so(method, message):
    graph, theta = problem()
    with pytest.raises(pt.PotentiaError, match=message):
        method.infer(graph, {**theta, "group": FACTORS["counts"]})


def test_wrong_values_are_refused_in_a_sentence():
    graph, theta = problem()
    for value, message in [
        (pt.factors.Cardinality(np.zeros((3, 5))), "scores for 3 regions, but the kind has 2"),
        (pt.factors.AtMostOne(weight=[1.0, 2.0, 3.0]), "scores for 3 regions"),
        (pt.factors.Cardinality(), "give its scores"),
        (pt.factors.AllDifferent(), "finite|forbids|forbidden|feasible|labelling"),
    ]:
        with pytest.raises(pt.PotentiaError, match=message):
            pt.LoopyBP().infer(graph, {**theta, "group": value})
    wide = pt.Graph([2] * 100, {"group": [np.arange(100)]})
    with pytest.raises(pt.PotentiaError, match=r"give a value of pt\.factors"):
        pt.LoopyBP().infer(wide, {})

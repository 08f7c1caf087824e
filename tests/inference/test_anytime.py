"""Mini-buckets, `Anytime` and marginal MAP against brute force: bounds that hold, estimates, and refusals."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from test_elimination import draw_model

import potentia as pt
import reference
from potentia.base.types import InfeasibleError, PotentiaError
from potentia.graph.scores import Scores, score_labels
from potentia.inference import anytime
from potentia.inference.conditioning import choose_cutset
from potentia.inference.map import marginal
from potentia.inference.minibucket import MiniBuckets, factors_in_order, split_buckets
from potentia.inference.order_search import allowed_states, first_order, interactions, search_orders, trials

pytestmark = pytest.mark.filterwarnings("ignore:regions")


def forever() -> bool:
    return True


def prepare(graph, theta, observed):
    scores = Scores(graph, theta, observed)
    allowed = allowed_states(scores)
    joined = interactions(scores, allowed)
    return scores, allowed, joined


def models(count, forbid=True):
    for seed in range(count):
        graph, theta, observed = draw_model(seed, forbid=0.15 * (seed % 2) * forbid, scale=1.5)
        scores, allowed, joined = prepare(graph, theta, observed)
        if len(joined.free):
            factors = factors_in_order(scores, allowed, joined.free[first_order(joined).order])
            yield seed, factors, reference.log_partition(graph, theta, observed)


def test_mini_buckets_bound_log_z_on_both_sides_and_are_exact_without_splits():
    gaps = []
    for seed, factors, log_z in models(150):
        slack = 1e-9 * (1 + abs(log_z))
        assert MiniBuckets(factors, split_buckets(factors, 10**9)).send() == pytest.approx(log_z, abs=slack)
        split = split_buckets(factors, int(np.random.default_rng(seed).integers(2, 8)))
        above, below = MiniBuckets(factors, split), MiniBuckets(factors, split, lower=True)
        loose, least = above.send(), below.send()
        tight, most = above.tighten(loose, 20, forever), below.tighten(least, 20, forever)
        assert loose + slack >= tight >= log_z - slack
        assert least - slack <= most <= log_z + slack
        assert above.send() == pytest.approx(tight, abs=slack)  # the messages left are those of the best bound
        gaps.append((loose - log_z, tight - log_z))
    before, after = np.mean(gaps, axis=0)
    assert after < 0.3 * before


def test_importance_weights_are_bounded_and_unbiased():
    errors = []
    for seed, factors, log_z in models(40):
        buckets = MiniBuckets(factors, split_buckets(factors, 4))
        upper = buckets.tighten(buckets.send(), 10, forever)
        _, log_weight = buckets.sample(2000, np.random.default_rng(seed))
        assert log_weight.max() <= 1e-9
        errors.append(math.expm1(upper + math.log(np.exp(log_weight).mean()) - log_z))
    assert abs(np.mean(errors)) < 0.01


def test_importance_weights_are_the_scores_over_the_proposal():
    graph, theta, observed = draw_model(5, scale=1.5)
    scores, allowed, joined = prepare(graph, theta, observed)
    factors = factors_in_order(scores, allowed, joined.free[first_order(joined).order])
    buckets = MiniBuckets(factors, split_buckets(factors, 4))
    upper = buckets.send()
    positions, log_weight = buckets.sample(4000, np.random.default_rng(0))
    rows, first, count = np.unique(positions, axis=0, return_index=True, return_counts=True)
    common = np.argmax(count)
    labels = factors.labels(rows[common : common + 1])[0]
    proposal = score_labels(scores, labels) - (log_weight[first[common]] + upper)
    assert math.exp(proposal) == pytest.approx(count[common] / 4000, rel=0.15)


def test_anytime_is_exact_where_elimination_fits(monkeypatch):
    for seed in range(40):
        graph, theta, observed = draw_model(seed, forbid=0.15 * (seed % 2))
        result = pt.Anytime(time_limit=60).infer(graph, theta, observed)
        log_z = reference.log_partition(graph, theta, observed)
        assert result.bound == "exact"
        assert result.value == pytest.approx(log_z, rel=1e-9, abs=1e-9)
        assert result.lower == result.upper == result.value
        assert result.confidence == 1.0
        expected = pt.Exact().infer(graph, theta, observed)
        np.testing.assert_allclose(result.variable_marginals, expected.variable_marginals, atol=1e-9)
        for kind in graph.kinds:
            for table, other in zip(result.marginals[kind], expected.marginals[kind], strict=True):
                np.testing.assert_allclose(table, other, atol=1e-9)


def test_anytime_brackets_log_z_where_memory_is_short():
    exact = 0
    for seed in range(60):
        graph, theta, observed = draw_model(seed, forbid=0.15 * (seed % 2), scale=1.5)
        result = pt.Anytime(time_limit=0.05, memory=2e-7, seed=seed).infer(graph, theta, observed)
        log_z = reference.log_partition(graph, theta, observed)
        slack = 1e-9 * (1 + abs(log_z))
        assert result.certain[0] - slack <= log_z <= result.certain[1] + slack
        assert result.lower <= result.value <= result.upper
        exact += result.bound == "exact"
    assert exact < 60


def test_stochastic_bounds_fail_at_most_as_often_as_stated(monkeypatch):
    monkeypatch.setattr(anytime, "_LEAST_SAMPLES", 1000)
    graph = pt.Graph.grid((4, 4), n_states=2)
    rng = np.random.default_rng(3)
    theta = {"node": rng.normal(size=(16, 2)), "edge": 2 * rng.normal(size=(24, 2, 2))}
    log_z = reference.log_partition(graph, theta, None)
    task = anytime._Task(pt.Anytime(confidence=0.9), Scores(graph, theta))
    scores, allowed, joined = prepare(graph, theta, None)
    factors = factors_in_order(scores, allowed, joined.free[first_order(joined).order])
    buckets = MiniBuckets(factors, split_buckets(factors, 4))
    upper = buckets.send()
    misses = 0
    for trial in range(200):
        task._estimate(buckets.sample(1000, np.random.default_rng(trial))[1], upper)
        misses += not task.likely[0] <= log_z <= task.likely[1]
    assert misses <= 20


def test_anytime_conditions_on_a_cutset(monkeypatch):
    graph = pt.Graph.grid((6, 6), n_states=3)
    rng = np.random.default_rng(0)
    theta = {"node": rng.normal(size=(36, 3)), "edge": rng.normal(size=(60, 3, 3))}
    expected = pt.Exact().infer(graph, theta)
    scores, _, joined = prepare(graph, theta, None)
    order = first_order(joined)
    cutset = choose_cutset(joined, order, order.total / 8, 1e12, 0)
    assert cutset is not None
    assert len(cutset.variables)
    task = anytime._Task(pt.Anytime(), scores)
    assert task._eliminate(cutset)
    result = task.result()
    assert result.value == pytest.approx(expected.value, rel=1e-12)
    assert "conditioned" in result.found_by
    np.testing.assert_allclose(result.variable_marginals, expected.variable_marginals, atol=1e-9)


def test_random_orders_are_permutations_and_never_cost_more():
    for seed in range(10):
        _, _, joined = prepare(*draw_model(seed))
        if not len(joined.free):
            continue
        first = first_order(joined)
        best = search_orders(joined, first, trials(20), seed)
        assert sorted(best.order.tolist()) == list(range(len(joined.free)))
        assert best.total <= first.total


def test_anytime_refuses_what_is_forbidden_and_bad_options():
    graph = pt.Graph.chain(3, n_states=2)
    table = np.array([[0.0, -np.inf], [-np.inf, 0.0]])
    with pytest.raises(InfeasibleError):
        pt.Anytime().infer(graph, {"edge": table}, observed={0: 0, 2: 1})
    for option in ({"time_limit": -1}, {"memory": 0}, {"confidence": 1.0}, {"seed": -1}, {"cpu_limit": "x"}):
        with pytest.raises(PotentiaError, match=next(iter(option))):
            pt.Anytime(**option).infer(graph, {})


# -- marginal MAP ---------------------------------------------------------------------------------------------------


def values_of_queries(graph, theta, observed, query):
    """The log of the sum for every labelling of the query, by enumeration."""
    scores, sums = Scores(graph, theta, observed), {}
    for labels in itertools.product(*(range(k) for k in graph.n_states)):
        sums.setdefault(tuple(labels[q] for q in query), []).append(score_labels(scores, np.array(labels)))
    return {key: np.logaddexp.reduce(parts) for key, parts in sums.items()}


@pytest.mark.parametrize("largest", [2**16, 0])
def test_marginal_map_against_enumeration(largest, monkeypatch):
    monkeypatch.setattr(marginal, "_MAX_TABLE", largest)
    for seed in range(25):
        graph, theta, observed = draw_model(seed, forbid=0.15 * (seed % 2), scale=1.5)
        query = np.flatnonzero(np.random.default_rng(seed).random(graph.n_variables) < 0.5)
        if not len(query):
            continue
        sums = values_of_queries(graph, theta, observed, query)
        best = max(sums.values())
        result = pt.MAP(query=query, time_limit=0.3).infer(graph, theta, observed)
        labels = result.argmax()
        slack = 1e-8 * (1 + abs(best))
        assert np.array_equal(np.flatnonzero(labels >= 0), query)
        assert result.score_bound == "exact"
        assert result.score(labels) == pytest.approx(sums[tuple(labels[query])], abs=slack)
        assert result.value >= best - slack
        assert result.score(labels) == pytest.approx(best, abs=slack)
        if largest:
            assert result.bound == "exact"
            assert result.gap == pytest.approx(0.0, abs=slack)


def test_scores_of_other_labellings_and_lower_bounds(monkeypatch):
    graph, theta, _ = draw_model(7, scale=1.5)
    query = np.array([0, graph.n_variables - 1])
    sums = values_of_queries(graph, theta, None, query)
    result = pt.MAP(query=query, time_limit=1.0).infer(graph, theta)
    for key, value in sums.items():
        labels = np.full(graph.n_variables, -1)
        labels[query] = key
        assert result.score(labels) == pytest.approx(value, abs=1e-8)
    monkeypatch.setattr(marginal, "_MAX_TABLE", 0)
    monkeypatch.setattr(marginal, "_MAX_ENTRIES", 0.0)
    rough = pt.MAP(query=query, time_limit=1.0).infer(graph, theta)
    assert rough.score_bound == "lower"
    assert rough.score(rough.argmax()) <= sums[tuple(rough.argmax()[query])] + 1e-9
    assert rough.value >= max(sums.values()) - 1e-9


def test_marginal_map_refuses_bad_queries():
    graph = pt.Graph.chain(3, n_states=2)
    for query, words in (([3], "names variable 3"), ([0, 0], "twice"), ([], "list of variables"), ([[0]], "shape")):
        with pytest.raises(PotentiaError, match=words):
            pt.MAP(query=query).infer(graph, {})
    result = pt.MAP(query=[0]).infer(graph, {"node": np.zeros((3, 2)), "edge": np.zeros((2, 2, 2))})
    with pytest.raises(PotentiaError, match="every variable of the query"):
        result.score([-1, -1, -1])


def test_little_time_on_a_large_grid_draws_few_samples_and_still_bounds() -> None:
    rng = np.random.default_rng(0)
    graph = pt.Graph.grid((40, 40), n_states=2)
    theta = {"node": rng.normal(size=(1600, 2)), "edge": rng.normal(size=(len(graph.scopes["edge"]), 2, 2))}
    result = pt.Anytime(time_limit=0.01, threads=1).infer(graph, theta)
    assert result.samples < 1000
    assert np.isfinite(result.upper)
    query = pt.MAP(query=np.arange(0, 1600, 5), time_limit=0.01, exact_search=False).infer(graph, theta)
    assert np.isfinite(query.value)
    assert query.score(query.argmax()) <= query.value


def test_the_value_is_at_least_the_score_of_a_good_labelling() -> None:
    # strong couplings on all pairs: samples from small mini-buckets miss what dominates the sum
    rng = np.random.default_rng(1)
    pairs = np.array([(i, j) for i in range(30) for j in range(i)])
    graph = pt.Graph([2] * 30, {"node": np.arange(30)[:, None], "edge": pairs})
    theta = {"node": rng.normal(size=(30, 2)), "edge": 4.0 * rng.normal(size=(len(pairs), 2, 2))}
    best = pt.MAP(exact_search=False, threads=1).infer(graph, theta)
    result = pt.Anytime(time_limit=2.0, memory=2e-5, threads=1).infer(graph, theta)
    assert result.bound == "estimate"
    assert result.value >= result.certain[0] >= best.score(best.argmax()) - 1e-6

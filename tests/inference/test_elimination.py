"""Exact inference by elimination, against brute force and against the published answers of the UAI models."""

from __future__ import annotations

import csv
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from data_sets import DATA
from potentia import uai
from potentia.base.types import InfeasibleError, WidthError
from potentia.graph.scores import Scores, score_labels
from potentia.graph.structure import Graph
from potentia.inference import elimination
from potentia.inference.elimination import plan
from potentia.inference.order_search import Interactions, adjacency, find_order
from potentia.kernels.traversal import order_cliques

UAI = DATA / "uai"


def draw_model(seed, forbid=0.0, scale=1.0):
    """A random graph of 1-3 variable regions, axes in any order, mixed states, scores of -inf, observations.

    One labelling is kept possible, so that the model is feasible.
    """
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 8))
    n_states = rng.integers(1, 4, size=n)
    y = rng.integers(0, n_states)
    regions, theta = {}, {}
    for order, kind in ((1, "node"), (2, "edge"), (3, "triple")):
        count = int(rng.integers(0, 2 * n)) if n >= order else 0
        scopes = [rng.permutation(n)[:order] for _ in range(count)]
        if order == 1:
            scopes = [[v] for v in rng.permutation(n)[: int(rng.integers(0, n + 1))]]
        tables = []
        for scope in scopes:
            table = scale * rng.normal(size=n_states[scope])
            table[rng.random(table.shape) < forbid] = -np.inf
            table[tuple(y[scope])] = scale * rng.normal()
            tables.append(table)
        regions[kind], theta[kind] = scopes, tables
    graph = Graph(n_states, regions)
    theta = {k: np.array(t) if graph.shared_shape(k) else t for k, t in theta.items()}
    observed = {int(v): int(y[v]) for v in np.flatnonzero(rng.random(n) < 0.2)}
    return graph, theta, observed


def check_against_brute_force(graph, theta, observed):
    scores = Scores(graph, theta, observed)
    result = elimination.eliminate(scores)
    assert result.value == pytest.approx(reference.log_partition(graph, theta, observed), rel=1e-11, abs=1e-11)
    assert elimination.log_partition(scores) == result.value
    expected = reference.marginals(graph, theta, observed)
    assert set(result.marginals) == set(expected)
    for kind, tables in expected.items():
        assert len(result.marginals[kind]) == len(tables)
        for found, table in zip(result.marginals[kind], tables, strict=True):
            np.testing.assert_allclose(found, table, atol=1e-10)
    singles = reference.variable_marginals(graph, theta, observed)
    np.testing.assert_allclose(result.variable_marginals, singles, atol=1e-10)
    best = reference.max_score(graph, theta, observed)
    assert result.score(result.argmax()) == pytest.approx(best, rel=1e-12, abs=1e-12)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), forbid=st.sampled_from([0.0, 0.3, 0.7]))
def test_matches_brute_force(seed, forbid):
    check_against_brute_force(*draw_model(seed, forbid))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_huge_scores(seed):
    check_against_brute_force(*draw_model(seed, 0.2, scale=1e4))


@pytest.mark.parametrize("scale", [1e18, 1e25, 1e99])
def test_absurd_scores_give_no_nan(scale):
    for seed in range(100):
        graph, theta, observed = draw_model(seed, 0.2, scale)
        result = elimination.eliminate(Scores(graph, theta, observed))
        expected = reference.variable_marginals(graph, theta, observed)
        np.testing.assert_allclose(result.variable_marginals, expected, atol=1e-9)


def test_dense_binary_graph_uses_blocks():
    # a clique of 14 binary variables has more entries than one block of the kernels
    rng = np.random.default_rng(0)
    graph = Graph.complete(14, n_states=2)
    theta = {"node": rng.normal(size=(14, 2)), "edge": rng.normal(size=(91, 2, 2))}
    check_against_brute_force(graph, theta, {3: 1})


def test_wide_states_use_blocks():
    rng = np.random.default_rng(1)
    graph = Graph([40, 3, 50, 7], {"edge": [[0, 1], [2, 0], [3, 2], [1, 3]], "triple": [[3, 1, 2]]})
    theta = {"edge": [rng.normal(size=s) for s in ((40, 3), (50, 40), (7, 50), (3, 7))]}
    check_against_brute_force(graph, theta | {"triple": rng.normal(size=(1, 7, 3, 50))}, {})


def test_disconnected_and_single_state():
    graph = Graph([2, 1, 3, 2], {"node": [[2]], "edge": [[0, 1]]})
    check_against_brute_force(graph, {"node": [[0.0, 1.0, -np.inf]], "edge": [[[1.0], [2.0]]]}, {})


def test_everything_observed():
    graph = Graph.grid((2, 2), n_states=2)
    theta = {"edge": np.arange(16.0).reshape(4, 2, 2)}
    observed = {0: 1, 1: 0, 2: 1, 3: 1}
    check_against_brute_force(graph, theta, observed)
    samples = elimination.sample(Scores(graph, theta, observed), 3, np.random.default_rng(0))
    np.testing.assert_array_equal(samples, [[1, 0, 1, 1]] * 3)


def test_contradiction_is_infeasible():
    differ = np.array([[-np.inf, 0.0], [0.0, -np.inf]])
    scores = Scores(Graph.complete(3, n_states=2), {"edge": differ})
    for run in (elimination.log_partition, elimination.best_labelling, elimination.eliminate):
        with pytest.raises(InfeasibleError, match="every labelling is forbidden"):
            run(scores)


def test_contradicting_evidence_is_infeasible():
    differ = np.array([[-np.inf, 0.0], [0.0, -np.inf]])
    graph = Graph.chain(3, n_states=2)
    with pytest.raises(InfeasibleError, match="rule out all states of variable"):
        elimination.log_partition(Scores(graph, {"edge": differ}, {0: 0, 2: 1}))


def test_sample_frequencies():
    graph, theta, observed = draw_model(11, 0.2)
    scores = Scores(graph, theta, observed)
    samples = elimination.sample(scores, 40_000, np.random.default_rng(5))
    every = reference.labellings(graph)
    p = np.exp(reference.label_scores(graph, theta, observed) - reference.log_partition(graph, theta, observed))
    place = np.ravel_multi_index(tuple(samples.T), tuple(graph.n_states))
    count = np.bincount(place, minlength=len(every))
    assert count[p == 0].sum() == 0
    error = np.abs(count / len(samples) - p)
    assert np.all(error <= 5 * np.sqrt(p / len(samples)))


def test_samples_repeat_with_the_seed():
    graph, theta, observed = draw_model(3)
    scores = Scores(graph, theta, observed)
    first, again = (elimination.sample(scores, 50, np.random.default_rng(7)) for _ in range(2))
    np.testing.assert_array_equal(first, again)


def test_width_error_states_width_and_size():
    graph = Graph.complete(12, n_states=2)
    with pytest.raises(WidthError, match=r"table of 4096 entries \(induced width 11\).*max_table = 4095"):
        elimination.eliminate(Scores(graph, {}), max_table=4095)
    assert elimination.log_partition(Scores(graph, {}), max_table=4096) == pytest.approx(12 * np.log(2))
    # the plan is remembered by now, the limit still holds
    with pytest.raises(WidthError, match="4096 entries"):
        elimination.eliminate(Scores(graph, {}), max_table=4095)


def test_hopeless_width_is_refused_quickly():
    with pytest.raises(WidthError, match=r"more than 2\^62 entries \(induced width at least 99\)"):
        elimination.log_partition(Scores(Graph.complete(100, n_states=2), {}))


def test_memory_of_all_messages_is_limited():
    graph = Graph.grid((3, 2000), n_states=2)
    with pytest.raises(WidthError, match="message entries in all"):
        elimination.log_partition(Scores(graph, {}), max_table=32)


def test_evidence_narrows_the_graph():
    graph = Graph.grid((6, 6), n_states=2)
    free = plan(Scores(graph, {})).cost.width
    cut = plan(Scores(graph, {}, {6 * i + 3: 0 for i in range(6)})).cost.width
    assert (free, cut) == (6, 3)


def test_hard_tables_propagate_evidence():
    equal = np.where(np.eye(2) > 0, 0.0, -np.inf)
    scores = Scores(Graph.complete(8, n_states=2), {"edge": equal}, {0: 1})
    assert len(plan(scores).order) == 0
    assert elimination.log_partition(scores) == 0.0


def test_plans_are_remembered_per_evidence():
    graph = Graph.grid((3, 3), n_states=2)
    first = plan(Scores(graph, {}))
    assert plan(Scores(graph, {"edge": np.ones((2, 2))})) is first
    assert plan(Scores(graph, {}, {0: 1})) is not first


def test_cliques_form_a_junction_tree():
    rng = np.random.default_rng(2)
    n = 40
    scope = np.array([rng.permutation(n)[:2] for _ in range(70)])
    ptr, neighbour = adjacency(n, np.arange(0, 141, 2), scope.ravel())
    found = find_order(Interactions(np.arange(n), rng.integers(2, 5, size=n), ptr, neighbour))
    clique_ptr, clique = order_cliques(ptr, neighbour, found.order, found.members)
    sets = [set(clique[a:b].tolist()) for a, b in pairwise(clique_ptr)]
    position = np.argsort(found.order)
    assert sorted(found.order.tolist()) == list(range(n))
    assert max(len(s) for s in sets) == found.width + 1
    for a, b in position[scope].tolist():
        assert {a, b} <= sets[min(a, b)]
    for p, members in enumerate(sets):
        assert min(members) == p
        rest = members - {p}
        assert not rest or rest <= sets[min(rest)]


def test_ten_thousand_variables_of_small_width():
    # a long strip equals the product of transfer matrices
    rng = np.random.default_rng(4)
    graph = Graph.grid((3333, 3), n_states=2)
    theta = {"node": rng.normal(size=(9999, 2)), "edge": rng.normal(size=(len(graph.scopes["edge"]), 2, 2))}
    result = elimination.eliminate(Scores(graph, theta))
    assert result.value == pytest.approx(transfer_matrix_log_partition(graph, theta), rel=1e-12)
    labels = result.argmax()
    for v in range(0, 9999, 1111):
        for state in range(2):
            changed = labels.copy()
            changed[v] = state
            assert result.score(changed) <= result.score(labels)


def transfer_matrix_log_partition(graph, theta):
    states = np.array(np.unravel_index(np.arange(8), (2, 2, 2))).T
    across = {tuple(s): t for s, t in zip(graph.scopes["edge"].tolist(), theta["edge"], strict=True)}
    log_weight = np.zeros(8)
    for row in range(3333):
        v = 3 * row + np.arange(3)
        own = sum(theta["node"][v[k]][states[:, k]] for k in range(3))
        own = own + sum(across[v[k], v[k + 1]][states[:, k], states[:, k + 1]] for k in range(2))
        if row:
            step = sum(across[v[k] - 3, v[k]][states[:, None, k], states[None, :, k]] for k in range(3))
            log_weight = np.logaddexp.reduce(log_weight[:, None] + step, axis=0)
        log_weight = log_weight + own
    return float(np.logaddexp.reduce(log_weight))


# -- the UAI models ------------------------------------------------------------------------------------------


def index_rows():
    if not (UAI / "index.csv").exists():
        reason = "the UAI models are not there; set POTENTIA_DATA to the data folder"
        return [pytest.param(None, marks=pytest.mark.skip(reason=reason))]
    with open(UAI / "index.csv", newline="") as file:
        return [pytest.param(row, id=row["instance"]) for row in csv.DictReader(file)]


def too_wide(scores):
    try:
        plan(scores)
    except WidthError:
        return True
    return False


@pytest.mark.parametrize("row", index_rows())
def test_uai_model(row):
    path = UAI / f"{row['instance']}.uai"
    graph, theta = uai.read(path)
    scores = Scores(graph, theta, uai.read_evidence(f"{path}.evid"))
    if not row["log10Z_exact"] and too_wide(scores):
        pytest.skip("its largest table is beyond the limit, and index.csv has no exact answer")
    result = elimination.eliminate(scores)
    log10 = result.value / np.log(10)
    if row["log10Z_exact"]:
        assert log10 == pytest.approx(float(row["log10Z_exact"]), abs=1e-6)
    if row["log10Z_reference"]:
        # printed with six digits
        assert log10 == pytest.approx(float(row["log10Z_reference"]), rel=1e-5)
    published = uai.read_result(f"{path}.MAR").marginals
    np.testing.assert_allclose(result.variable_marginals, published, atol=1e-5)
    if not row["map_ln_exact"]:
        return
    labels = result.argmax()
    assert result.score(labels) == pytest.approx(float(row["map_ln_exact"]), abs=1e-6)
    assert score_labels(scores, uai.read_result(f"{path}.MAP").labels) <= result.score(labels) + 1e-9

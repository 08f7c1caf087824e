"""Labellings from marginals: local optima, repairs, what rounding guarantees, agreement with brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import potentia as pt
import reference as ref
from potentia.base.types import PotentiaError
from potentia.graph.scores import Scores, score_labels
from potentia.graph.structure import Graph
from potentia.inference.base import Result
from potentia.inference.decode import _Climb, best_labelling, conditional_rounding, feasible_labelling, search
from zoo import Problem, problems, random_models, scores, zoo


def result_with(problem: Problem, variable_marginals) -> Result:
    """A result record around given variable marginals."""
    facts = {"value": 0.0, "bound": "estimate", "target": "log_partition", "iterations": 0, "residual": 0.0}
    own = Scores(*problem.model)
    return Result(problem.graph, {}, variable_marginals, **facts, converged=False, scores=own, best=best_labelling)


def kicked(own: Scores, labels, variable_marginals):
    """Iterated local search from a labelling."""
    climb = _Climb(own, pairs=True)
    return climb.kicked(climb(labels), variable_marginals, seed=0).labels


def key(problem: Problem, labels) -> tuple[int, float]:
    """Forbidden configurations and finite score of a labelling, plainly."""
    scopes, tables = ref.region_tables(*problem.model)
    entries = np.array([t[tuple(labels[list(s)])] for s, t in zip(scopes, tables, strict=True)])
    return int(np.isneginf(entries).sum()), float(entries[np.isfinite(entries)].sum())


def improves(new: tuple[int, float], old: tuple[int, float]) -> bool:
    return new[0] < old[0] or (new[0] == old[0] and new[1] > old[1] + 1e-9 * (1 + abs(old[1])))


@pytest.mark.parametrize("problem", problems(None), ids=str)
@pytest.mark.parametrize("pairs", [False, True])
def test_search_ends_where_no_move_improves(problem: Problem, pairs: bool) -> None:
    graph, own = problem.graph, Scores(*problem.model)
    rng = np.random.default_rng(5)
    for _ in range(3):
        start = rng.integers(0, graph.n_states)
        labels = search(own, [start], pairs)
        reached = key(problem, labels)
        assert not improves(key(problem, start), reached)
        moves = [(i,) for i in range(graph.n_variables)]
        if pairs:
            moves += [tuple(s) for rows in graph.scopes.values() if rows.shape[1] == 2 for s in rows.tolist()]
        for move in moves:
            for states in np.ndindex(*graph.n_states[list(move)]):
                other = labels.copy()
                other[list(move)] = states
                assert not improves(key(problem, other), reached)


@pytest.mark.parametrize("problem", problems(), ids=str)
def test_best_labelling_from_exact_marginals_is_the_best(problem: Problem) -> None:
    result = result_with(problem, ref.variable_marginals(*problem.model))
    labels = result.argmax()
    best = ref.max_score(*problem.model)
    assert result.score(labels) == pytest.approx(best, rel=1e-12, abs=1e-12)


def test_best_labelling_from_uninformed_marginals_is_mostly_the_best() -> None:
    hits = 0
    for problem in random_models(30, seed=11):
        flat = np.full((problem.graph.n_variables, int(problem.graph.n_states.max())), 1.0)
        result = result_with(problem, flat / flat.sum(axis=1, keepdims=True))
        hits += result.score(result.argmax()) >= ref.max_score(*problem.model) - 1e-9
    assert hits >= 28


@given(seed=st.integers(0, 10_000), kind=st.sampled_from(["grid", "factor_loop", "mixed", "nested"]))
@settings(max_examples=40, deadline=None)
def test_conditional_rounding_scores_at_least_the_expected_score(seed: int, kind: str) -> None:
    graph = zoo()[kind].graph
    rng = np.random.default_rng(seed)
    theta = scores(graph, rng)
    q = np.zeros((graph.n_variables, int(graph.n_states.max())))
    for i, n in enumerate(graph.n_states):
        q[i, :n] = rng.dirichlet(np.full(n, 0.5))
    every = ref.labellings(graph)
    chance = np.prod(q[np.arange(graph.n_variables), every], axis=1)
    expected = chance @ ref.label_scores(graph, theta)
    own = Scores(graph, theta)
    assert score_labels(own, conditional_rounding(own, q)) >= expected - 1e-6


def test_conditional_rounding_respects_what_is_fixed() -> None:
    # symmetric marginals of an attractive chain: independent rounding could disagree, conditioning may not
    graph = Graph.chain(6, n_states=2)
    own = Scores(graph, {"edge": 2 * np.eye(2)})
    labels = conditional_rounding(own, np.full((6, 2), 0.5))
    assert len(set(labels.tolist())) == 1
    hard = Scores(graph, {"edge": np.where(np.eye(2) > 0, -np.inf, 0.0)}, {0: 1})
    assert conditional_rounding(hard, np.full((6, 2), 0.5)).tolist() == [1, 0, 1, 0, 1, 0]


def test_pair_moves_leave_optima_of_single_moves() -> None:
    graph = Graph([2, 2], {"node": [[0], [1]], "edge": [[0, 1]]})
    own = Scores(graph, {"node": [[0, 1], [0, 1]], "edge": [[3, 0], [0, 3]]})
    assert search(own, [[0, 0]], pairs=False).tolist() == [0, 0]
    assert search(own, [[0, 0]]).tolist() == [1, 1]


@pytest.mark.parametrize("name", ["hard_chain", "forbidden_edges", "propagated", "observed_all"])
def test_search_and_kicks_repair_infeasible_starts(name: str) -> None:
    problem = zoo()[name]
    own = Scores(*problem.model)
    repaired = tried = 0
    for start in ref.labellings(problem.graph)[:: max(1, len(ref.labellings(problem.graph)) // 40)]:
        labels = kicked(own, search(own, [start]), np.ones(own.singles.shape))
        repaired += score_labels(own, labels) > -np.inf
        assert not improves(key(problem, start), key(problem, labels))
        tried += 1
    assert repaired == tried


@pytest.mark.parametrize("colours", [2, 3])
def test_colourings_of_grids_are_found(colours: int) -> None:
    graph = Graph.grid((20, 20), n_states=colours)
    differ = np.where(np.eye(colours) > 0, -np.inf, 0.0)
    own = Scores(graph, {"node": np.random.default_rng(0).standard_normal((400, colours)), "edge": differ})
    labels = feasible_labelling(own)
    assert labels is not None
    assert np.all(labels[graph.scopes["edge"][:, 0]] != labels[graph.scopes["edge"][:, 1]])


def test_no_feasible_labelling_is_claimed_where_there_is_none() -> None:
    for name in ("odd_cycle", "contradiction"):
        assert feasible_labelling(Scores(*zoo()[name].model)) is None
    own = Scores(*zoo()["forbidden_nodes"].model)
    drawn = [feasible_labelling(own, seed) for seed in range(20)]
    assert all(score_labels(own, y) > -np.inf for y in drawn)
    assert len({tuple(y) for y in drawn}) > 5


def test_results_repeat_and_starts_stay_untouched() -> None:
    problem = next(iter(random_models(1, seed=2)))
    own, start = Scores(*problem.model), np.zeros(problem.graph.n_variables, dtype=np.int64)
    q = np.full(own.singles.shape, 1.0)
    first = kicked(own, search(own, [start]), q)
    np.testing.assert_array_equal(first, kicked(own, search(own, [start]), q))
    assert not start.any()
    with pytest.raises(PotentiaError, match="at least one"):
        search(own, [])


EVERY = {
    "trw": pt.TRW(),
    "cut_short": pt.TRW(iterations=1),
    "loopy": pt.LoopyBP(),
    "smoothed": pt.Smoothed(0.1),
    "maximum": pt.Smoothed(0.0),
    "mean_field": pt.MeanField(),
    "linear_program": pt.LinearProgram(),
    "gibbs": pt.Gibbs(samples=20, burn_in=5),
}


def hard_pairs(n_groups: int, size: int, rng: np.random.Generator) -> tuple[Graph, dict]:
    """Cycles with chords in a tree, most pair states forbidden, one labelling planted."""
    edges = {(g * size + a, g * size + (a + 1) % size) for g in range(n_groups) for a in range(size)}
    for g in range(n_groups):
        edges |= {tuple(g * size + rng.choice(size, 2, replace=False)) for _ in range(2)}
        edges |= {(int(rng.integers(0, g * size)), g * size)} if g else set()
    scope = np.unique(np.sort(np.array(list(edges)), axis=1), axis=0)
    plant = rng.integers(0, 3, n_groups * size)
    table = np.where(rng.random((len(scope), 3, 3)) < 0.55, -np.inf, rng.standard_normal((len(scope), 3, 3)))
    table[np.arange(len(scope)), plant[scope[:, 0]], plant[scope[:, 1]]] = 0.0
    graph = Graph(np.full(len(plant), 3), {"node": np.arange(len(plant))[:, None], "edge": scope})
    return graph, {"node": rng.standard_normal((len(plant), 3)), "edge": table}


@pytest.mark.parametrize("name", EVERY)
def test_every_method_finds_an_allowed_labelling_among_many_forbidden_pairs(name: str) -> None:
    graph, theta = hard_pairs(60, 7, np.random.default_rng(3))
    result = EVERY[name].infer(graph, theta)
    assert result.feasible
    assert result.score(result.argmax()) > -np.inf
    assert "no feasible" not in repr(result)


@pytest.mark.parametrize("name", ["trw", "smoothed", "maximum", "linear_program"])
def test_a_result_says_that_no_feasible_labelling_was_found(name: str) -> None:
    result = EVERY[name].infer(*zoo()["odd_cycle"].model)
    assert "no feasible" not in repr(result)
    assert result.score(result.argmax()) == -np.inf
    assert not result.feasible
    assert "no feasible labelling found" in repr(result)
    assert "none found" in result._repr_html_()


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("problem", problems(is_forest=True, pairwise=True), ids=str)
def test_labellings_of_forests_are_the_best(problem: Problem, name: str) -> None:
    result = EVERY[name].infer(*problem.model)
    best = ref.max_score(*problem.model)
    assert result.score(result.argmax()) == pytest.approx(best, rel=1e-12, abs=1e-12)


@given(seed=st.integers(0, 10_000), share=st.floats(0.2, 0.9))
@settings(max_examples=60, deadline=None)
def test_constraint_search_is_right_about_feasibility(seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    graph = zoo()[["grid", "factor_loop", "mixed", "nested", "complete"][seed % 5]].graph
    theta = scores(graph, rng)
    kind = graph.kinds[-1]
    tables = [np.where(rng.random(t.shape) < share, -np.inf, t) for t in theta[kind]]
    if any(np.isneginf(t).all() for t in tables):
        return
    own = Scores(graph, {**theta, kind: tables})
    climb = _Climb(own, pairs=True)
    labels = climb.rounded(np.ones(own.singles.shape))
    feasible = ref.max_score(graph, {**theta, kind: tables}) > -np.inf
    assert (score_labels(own, labels) > -np.inf) == feasible
    assert climb.impossible == (not feasible)


def test_a_search_reads_as_many_entries_as_there_are_pairs_however_they_meet() -> None:
    def read(n: int) -> int:
        ends = [(0, i) for i in range(1, n)] + [(1, 2)]
        graph = Graph([2] * n, {"node": np.arange(n)[:, None], "edge": ends})
        climb = _Climb(Scores(graph, scores(graph, np.random.default_rng(0))), pairs=True)
        climb(np.zeros(n, dtype=int))
        return climb.work

    assert read(4000) < 6 * read(1000)

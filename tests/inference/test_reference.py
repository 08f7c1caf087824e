"""The specification itself: brute force, textbook messages and the twins must agree where theory says so."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import reference as ref
from naive_engines import Star, mean_field
from zoo import Problem, problems, random_models, zoo

# rho = 1/2 is a valid appearance probability on each of these
HALF = ["loop", "grid", "mixed", "propagated", "hard_chain", "forbidden_nodes", "observed", "huge_chain"]


def bethe(scopes, rho=1.0):
    """Counting numbers: rho per clique, 1 - sum of its cliques' rho per variable."""
    return [rho if len(s) > 1 else 1 - rho * sum(s[0] in t for t in scopes if len(t) > 1) for s in scopes]


def kikuchi(scopes):
    """c_r = 1 - sum of c over strict super-regions."""
    c = {}
    for r in sorted(range(len(scopes)), key=lambda r: -len(scopes[r])):
        c[r] = 1 - sum(v for p, v in c.items() if set(scopes[r]) < set(scopes[p]))
    return [c[r] for r in range(len(scopes))]


def assert_close(found, expected, tol=1e-9):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tol)


@pytest.mark.parametrize("problem", problems(None), ids=str)
def test_declared_facts_are_true(problem: Problem) -> None:
    best = ref.max_score(*problem.model)
    assert np.isfinite(best) == problem.feasible
    assert ref.local_polytope_value(*problem.model) >= best - 1e-7 * (1 + abs(best))


def test_zoo_covers_what_the_methods_must_survive() -> None:
    gap = [p for p in problems() if ref.local_polytope_value(*p.model) > ref.max_score(*p.model) + 0.1]
    tied = [p for p in problems() if len(ref.map_labellings(*p.model)) > 1]
    assert gap
    assert tied
    for facts in ({"has_forbidden": True}, {"clamped": True}, {"is_forest": False}, {"pairwise": False}):
        assert problems(**facts)


# differences of 1e-6 drown in scores of 1e4
@pytest.mark.parametrize("problem", [p for p in problems() if "huge" not in p.name], ids=str)
def test_gradient_of_log_partition_is_the_marginals(problem: Problem) -> None:
    graph, theta, observed = problem.model
    mu = ref.marginals(graph, theta, observed)
    for kind, tables in theta.items():
        shared = len(tables) and np.ndim(tables[0]) < graph.scopes[kind].shape[1]
        for r in range(0 if shared else min(2, len(tables))):

            def value(table, kind=kind, r=r, tables=tables):
                changed = [table if k == r else t for k, t in enumerate(tables)]
                return ref.log_partition(graph, {**theta, kind: changed}, observed)

            np.testing.assert_allclose(ref.differences(value, tables[r]), mu[kind][r], atol=1e-7)


@pytest.mark.parametrize("problem", problems(is_forest=True, pairwise=True), ids=str)
def test_textbook_bp_is_exact_on_forests(problem: Problem) -> None:
    mu, met = ref.textbook(problem.graph, problem.theta, 1.0, problem.observed)
    assert met
    assert_close(mu, ref.all_marginals(*problem.model)[1])


@pytest.mark.parametrize("name", HALF)
@pytest.mark.parametrize("rho", [0.5, 1.0])
def test_star_fixed_point_is_the_textbook_one(name: str, rho: float) -> None:
    problem = zoo()[name]
    scopes, tables = ref.region_tables(*problem.model)
    expected, met = ref.textbook(problem.graph, problem.theta, rho, problem.observed, damping=0.2)
    assert met
    star = Star(scopes, tables, ref.links(scopes, "star"), bethe(scopes, rho))
    assert_close(star.run(), expected, 1e-8)


@pytest.mark.parametrize("problem", problems(is_forest=True), ids=str)
def test_star_with_bethe_numbers_is_exact_on_factor_forests(problem: Problem) -> None:
    scopes, tables = ref.region_tables(*problem.model)
    star = Star(scopes, tables, ref.links(scopes, "star"), bethe(scopes))
    assert_close(star.run(200), ref.all_marginals(*problem.model)[1])
    assert star.dual() == pytest.approx(ref.log_partition(*problem.model), rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("problem", problems(is_junction=True), ids=str)
def test_star_with_kikuchi_numbers_is_exact_on_junction_graphs(problem: Problem) -> None:
    scopes, tables = ref.region_tables(*problem.model)
    star = Star(scopes, tables, ref.links(scopes, "maximal"), kikuchi(scopes))
    assert_close(star.run(2000), ref.all_marginals(*problem.model)[1])
    assert star.dual() == pytest.approx(ref.log_partition(*problem.model), rel=1e-10)


@pytest.mark.parametrize("name", ["grid", "nested", "factor_loop", "junction", "forbidden_edges"])
def test_smoothed_star_closes_the_gap_and_brackets_the_lp(name: str) -> None:
    problem, epsilon = zoo()[name], 0.3
    scopes, tables = ref.region_tables(*problem.model)
    star = Star(scopes, tables, ref.links(scopes, "containment"), [epsilon] * len(scopes))
    duals = [star.dual()]
    for _ in range(20):
        star.run(1)
        duals.append(star.dual())
    assert all(b <= a + 1e-12 for a, b in pairwise(duals))
    mu = star.run()
    assert ref.primal(star.tables, mu, star.c) == pytest.approx(star.dual(), abs=1e-8)
    lp = ref.local_polytope_value(*problem.model)
    assert lp <= star.dual() <= lp + epsilon * sum(np.log(t.size) for t in tables)


def test_trw_with_valid_weights_bounds_log_partition_and_mean_field_lies_below() -> None:
    for problem in random_models(12, seed=1):
        n = problem.graph.n_variables
        edges = problem.graph.scopes["edge"].tolist()
        # every edge of these symmetric or bipartite graphs gets the same share, cut back until it is valid
        rho = np.full(len(edges), (n - 1) / len(edges))
        while not ref.in_forest_polytope(n, edges, rho):
            rho *= 0.9
        scopes, tables = ref.region_tables(*problem.model)
        weight = iter(rho)
        c = [next(weight) if len(s) == 2 else 0.0 for s in scopes]
        for r, s in enumerate(scopes):
            if len(s) == 1:
                c[r] = 1 - sum(w for t, w in zip(scopes, c, strict=True) if len(t) == 2 and s[0] in t)
        star = Star(scopes, tables, ref.links(scopes, "star"), c)
        star.run(300, tol=1e-10)
        exact = ref.log_partition(*problem.model)
        assert mean_field(*problem.model, iterations=50)[1] <= exact + 1e-9
        assert exact <= star.dual() + 1e-9


def test_mean_field_is_exact_without_couplings_and_keeps_forbidden_states_out() -> None:
    q, value = mean_field(*zoo()["no_regions"].model)
    assert value == pytest.approx(np.log(6))
    np.testing.assert_allclose(q.sum(axis=1), 1)
    problem = zoo()["hard_chain"]
    start = np.eye(3)[ref.map_labellings(*problem.model)[0]]
    q, value = mean_field(*problem.model, start=start)
    assert np.isfinite(value)
    assert ref.max_score(*problem.model) <= value <= ref.log_partition(*problem.model)


def test_forest_polytope_on_known_cases() -> None:
    triangle = [(0, 1), (1, 2), (0, 2)]
    assert ref.in_forest_polytope(3, triangle, [2 / 3] * 3)
    assert not ref.in_forest_polytope(3, triangle, [0.7] * 3)
    assert ref.in_forest_polytope(3, triangle, [1.0, 1.0, 0.0])
    assert not ref.in_forest_polytope(3, triangle, [1.1, 0.0, 0.0])
    grid = zoo()["grid3d"].graph
    assert not ref.in_forest_polytope(8, grid.scopes["edge"].tolist(), [0.6] * 12)

"""Message passing against brute force, textbook updates and plain twins on the zoo."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest

import naive_engines
import potentia as pt
import reference
import zoo
from potentia.graph.scores import Scores
from potentia.inference import pair_engine, tree_weights
from potentia.inference.engine import Tape, bethe, drive
from potentia.inference.messages import reweighted, smoothed
from potentia.inference.pair_engine import PairEngine, suits_pairs
from potentia.inference.region_engine import RegionEngine
from potentia.kernels.star_blocks import RECEIVES
from sweep_counter import counted_updates

LONG = {"iterations": 20_000, "tol": 1e-13}
named = {"ids": str}


def tables_of(result):
    return [np.asarray(t) for kind in result.graph.kinds for t in result.marginals[kind]]


def assert_marginals(result, problem, atol=1e-10):
    expected = reference.marginals(*problem.model)
    for kind in problem.graph.kinds:
        for found, right in zip(result.marginals[kind], expected[kind], strict=True):
            np.testing.assert_allclose(found, right, atol=atol)
    np.testing.assert_allclose(result.variable_marginals, reference.variable_marginals(*problem.model), atol=atol)


# -- exact where they must be -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [pt.LoopyBP(**LONG), pt.TRW(**LONG), pt.Exact()], ids=["bp", "trw", "exact"])
@pytest.mark.parametrize("problem", zoo.problems(is_forest=True), **named)
def test_exact_on_forests(problem, method):
    result = method.infer(*problem.model)
    log_z = reference.log_partition(*problem.model)
    assert result.value == pytest.approx(log_z, rel=1e-10, abs=1e-10)
    assert result.log_partition == result.value
    assert result.bound == "exact"
    assert result.converged
    assert_marginals(result, problem)


@pytest.mark.parametrize("schedule", ["coloured", "sequential", "random", "residual"])
@pytest.mark.parametrize("problem", zoo.problems(is_forest=True), **named)
def test_damped_messages_are_exact_on_forests_when_called_so(problem, schedule):
    result = pt.TRW(schedule=schedule, damping=0.3, **LONG).infer(*problem.model)
    assert result.bound == "exact"
    assert result.value == pytest.approx(reference.log_partition(*problem.model), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("problem", zoo.problems(), **named)
def test_exact_inference_on_the_zoo(problem):
    result = pt.Exact().infer(*problem.model)
    assert result.value == pytest.approx(reference.log_partition(*problem.model), rel=1e-10, abs=1e-10)
    assert_marginals(result, problem)
    best = result.argmax()
    assert result.score(best) == pytest.approx(reference.max_score(*problem.model), rel=1e-12)


@pytest.mark.parametrize("problem", zoo.problems(is_junction=True), **named)
def test_kikuchi_is_exact_on_junction_trees(problem):
    result = pt.Kikuchi(**LONG).infer(*problem.model)
    assert result.converged
    assert result.value == pytest.approx(reference.log_partition(*problem.model), rel=1e-10, abs=1e-10)
    assert_marginals(result, problem, atol=1e-9)


# -- fixed points against plain implementations -------------------------------------------------------------


@pytest.mark.parametrize("problem", zoo.problems(pairwise=True), **named)
def test_trw_meets_the_textbook_fixed_point(problem):
    result = pt.TRW(**LONG).infer(*problem.model)
    rho = problem.graph.forest_weights
    mu, met = reference.textbook(*problem.model[:2], rho, problem.observed)
    assert met
    assert result.converged
    for found, right in zip(tables_of(result), mu, strict=False):
        np.testing.assert_allclose(found, right, atol=1e-8)


# on these two no update of loopy BP comes to rest, damped or not
RESTLESS = ("frustrated", "huge")


@pytest.mark.parametrize("problem", [p for p in zoo.problems(pairwise=True) if p.name not in RESTLESS], **named)
def test_loopy_bp_meets_the_textbook_fixed_point(problem):
    result = pt.LoopyBP(damping=0.3, **LONG).infer(*problem.model)
    mu, met = reference.textbook(*problem.model[:2], 1.0, problem.observed, damping=0.3)
    assert met
    assert result.converged
    for found, right in zip(tables_of(result), mu, strict=False):
        np.testing.assert_allclose(found, right, atol=1e-8)


#: Algorithm 3 as written divides by messages, which must not be zero.
plain_problems = [p for p in zoo.problems(has_forbidden=False, clamped=False) if "huge" not in p.name]


def updated_variables(engine):
    """Variables in the order in which an iteration updates them."""
    if isinstance(engine, PairEngine):
        order = engine.layout.variable.ravel()
        return [int(i) for i in order if i >= 0]
    regions = engine.scores.regions
    return [int(regions.scope[regions.scope_ptr[unit]]) for unit in engine.units]


@pytest.mark.parametrize("schedule", ["coloured", "sequential"])
@pytest.mark.parametrize("method", [pt.TRW, pt.LoopyBP])
@pytest.mark.parametrize("problem", plain_problems, **named)
def test_every_iteration_is_that_of_algorithm_three(problem, method, schedule):
    scopes, tables = reference.region_tables(*problem.model)
    for k in (0, 1, 2, 5):
        inference = method(iterations=k, tol=0, schedule=schedule)
        result = inference.infer(*problem.model)
        entropy = inference.entropy(problem.graph)
        order = updated_variables(inference.engine(result.scores, entropy=entropy))
        rho = [c for c, s in zip(entropy.counting, scopes, strict=True) if len(s) > 1]
        plain = naive_engines.AlgorithmThree(scopes, tables, rho)
        plain.run([order[::-1] if schedule == "sequential" and n % 2 else order for n in range(k)])
        cliques = [t for t, s in zip(tables_of(result), scopes, strict=False) if len(s) > 1]
        for c, found in enumerate(cliques):
            np.testing.assert_allclose(found, plain.clique(c), atol=1e-10)
        plain.refresh()
        for i, found in enumerate(result.variable_marginals):
            np.testing.assert_allclose(found[: problem.graph.n_states[i]], plain.variable(i), atol=1e-10)


def star_twin(problem, entropy):
    scopes, tables = reference.region_tables(*problem.model)
    return naive_engines.Star(scopes, tables, reference.links(scopes, entropy.links), list(entropy.counting)), tables


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
@pytest.mark.parametrize("problem", [p for p in zoo.problems() if "huge" not in p.name], **named)
def test_smoothed_meets_its_twin_and_closes_the_gap(problem, epsilon):
    method = pt.Smoothed(epsilon, **LONG)
    result = method.infer(*problem.model)
    entropy = method.entropy(problem.graph)
    twin, tables = star_twin(problem, entropy)
    mu = twin.run(iterations=20_000)
    assert result.converged
    assert result.value == pytest.approx(twin.dual(), rel=1e-8, abs=1e-8)
    for found, right in zip(tables_of(result), mu, strict=False):
        np.testing.assert_allclose(found, right, atol=1e-7)
    singles = [r[:n] for r, n in zip(result.variable_marginals, problem.graph.n_states, strict=True)]
    own = tables_of(result)
    implicit = [singles[s[0]] for s in twin.scopes[len(own) :]]
    primal = reference.primal(tables, own + implicit, entropy.counting)
    assert primal == pytest.approx(result.value, rel=1e-8, abs=1e-8)


@pytest.mark.parametrize("problem", zoo.problems(pairwise=False, has_forbidden=False), **named)
def test_trw_on_larger_cliques_meets_its_twin_and_bounds(problem):
    method = pt.TRW(**LONG)
    result = method.infer(*problem.model)
    twin, _ = star_twin(problem, method.entropy(problem.graph))
    mu = twin.run(iterations=20_000)
    assert result.converged
    for found, right in zip(tables_of(result), mu, strict=False):
        np.testing.assert_allclose(found, right, atol=1e-8)
    assert result.bound in ("upper", "exact")
    assert result.value >= reference.log_partition(*problem.model) - 1e-9


# -- the smoothed LP ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.0, 1e-3, 0.3])
@pytest.mark.parametrize("problem", zoo.problems(), **named)
def test_smoothed_dual_never_rises_and_bounds_the_lp(problem, epsilon):
    values, start = [], None
    for _ in range(15):
        start = pt.Smoothed(epsilon, iterations=1, tol=0).infer(*problem.model, start=start)
        values.append(start.value)
        assert start.bound == "upper"
        assert start.target == "max_score"
    scale = max(1.0, abs(values[0]))
    assert np.all(np.diff(values) <= 1e-12 * scale)
    lp = reference.local_polytope_value(*problem.model)
    decoded = start.score(start.argmax())
    best = reference.max_score(*problem.model)
    assert decoded <= best + 1e-9 * scale
    assert best <= lp + 1e-7 * scale
    assert lp <= values[-1] + 1e-7 * scale
    assert start.gap == pytest.approx(values[-1] - decoded, abs=1e-15 * scale)


@pytest.mark.parametrize("problem", [p for p in zoo.problems() if "huge" not in p.name], **named)
def test_smoothed_is_within_the_entropy_of_the_lp(problem):
    lp = reference.local_polytope_value(*problem.model)
    slack = sum(np.log(t.size) for t in reference.region_tables(*problem.model)[1])
    for epsilon in (0.5, 0.01):
        value = pt.Smoothed(epsilon, iterations=30_000, tol=1e-12).infer(*problem.model).value
        assert lp - 1e-7 <= value <= lp + epsilon * slack + 1e-7


@pytest.mark.parametrize("name", ["grid", "complete", "nested", "frustrated", "mixed"])
def test_smoothed_tends_to_the_lp(name):
    problem = zoo.zoo()[name]
    lp = pt.LinearProgram().infer(*problem.model).value
    start = None
    for epsilon in (1.0, 0.1, 0.01, 1e-3, 1e-4, 1e-5):
        start = pt.Smoothed(epsilon, iterations=40_000, tol=0 if epsilon < 1e-3 else 1e-12).infer(
            *problem.model, start=start
        )
    assert start.value == pytest.approx(lp, abs=1e-3)


# -- bounds on log Z ----------------------------------------------------------------------------------------


def test_mean_field_below_and_trw_above_log_z_on_200_random_models():
    uppers = 0
    for problem in zoo.random_models(200):
        log_z = reference.log_partition(*problem.model)
        low = pt.MeanField(iterations=500).infer(*problem.model)
        high = pt.TRW(iterations=2000, tol=1e-10).infer(*problem.model)
        assert low.bound == "lower"
        assert low.value <= log_z + 1e-9
        if high.bound in ("upper", "exact"):
            uppers += 1
            assert high.value >= log_z - 1e-8
    assert uppers > 190


def test_bound_is_not_called_upper_for_weights_outside_the_forest_polytope():
    rng = np.random.default_rng(1)
    below = 0
    for _ in range(20):
        graph = pt.Graph.complete(6, n_states=2)
        theta = {"node": rng.normal(size=(6, 2)) * 0.1, "edge": 2 * np.eye(2)}
        result = pt.TRW(0.5, iterations=500).infer(graph, theta)
        assert result.bound == "estimate"
        below += result.value < reference.log_partition(graph, theta)
    assert below > 0  # the label matters: these are no bounds


@pytest.mark.parametrize("problem", zoo.problems(pairwise=True), **named)
def test_default_weights_lie_in_the_forest_polytope(problem):
    rho = problem.graph.forest_weights
    edges = [tuple(p) for k, s in problem.graph.scopes.items() if s.shape[1] == 2 for p in s.tolist()]
    assert reference.in_forest_polytope(problem.graph.n_variables, edges, rho)
    assert np.all(rho > 0)


def test_not_converged_is_an_estimate():
    problem = zoo.zoo()["grid"]
    result = pt.TRW(iterations=2, tol=1e-12).infer(*problem.model)
    assert not result.converged
    assert result.bound == "estimate"
    assert result.iterations == 2


# -- one engine, several paths ------------------------------------------------------------------------------


def both_engines(problem, entropy, schedule, iterations=6):
    scores = Scores(*problem.model)
    reads = []
    for kind in (PairEngine, RegionEngine):
        engine = kind(scores, entropy, schedule)
        drive(engine, iterations, 0.0)
        reads.append(engine.read())
    return reads


@pytest.mark.parametrize("states", [2, 3])
def test_iterations_done_together_are_those_done_one_by_one(states, monkeypatch):
    rng = np.random.default_rng(states)
    graph = pt.Graph.grid((9, 11), n_states=states)
    theta = {"node": rng.normal(size=(99, states)), "edge": rng.normal(size=(178, states, states))}
    y = rng.integers(states, size=99)
    method = pt.TRW(iterations=13, tol=0)

    def found():
        result = method.infer(graph, theta)
        value, tables = pt.loss_and_gradient("univariate_logistic", method, graph, theta, y)
        return result.residual, value, result.variable_marginals, tables["node"], tables["edge"]

    calls = counted_updates(monkeypatch)
    together = found()
    n_together = len(calls)
    calls.clear()
    monkeypatch.setattr(pair_engine, "_CALL_WORK", 1)  # one iteration in a call
    for a, b in zip(together, found(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert n_together < len(calls) / 2


METHODS = {
    "trw": lambda g: reweighted(g, None),
    "bethe": bethe,
    "smoothed": lambda g: smoothed(g, 0.3),
    "sharp": lambda g: smoothed(g, 1e-3),
    "maximum": lambda g: smoothed(g, 0.0),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("problem", zoo.problems(pairwise=True), **named)
def test_results_do_not_depend_on_the_path_that_ran(problem, method):
    """Blocks in the probability domain, blocks in the log domain and general regions; -inf and 1e4 included."""
    entropy = METHODS[method](problem.graph)
    pairs, regions = both_engines(problem, entropy, "sequential")
    scale = max(1.0, abs(regions.value))
    assert pairs.value == pytest.approx(regions.value, abs=1e-11 * scale)
    if method != "maximum":  # an indicator may fall either way at a tie
        # where scores of 1e4 meet epsilon 1e-3, rounding of 1e-12 in a score moves a marginal by 1e-9
        np.testing.assert_allclose(pairs.singles, regions.singles, atol=1e-8 if "huge" in problem.name else 1e-10)


def test_probability_and_log_blocks_meet_in_one_graph():
    rng = np.random.default_rng(3)
    graph = pt.Graph.grid((40, 40), n_states=3)
    edge = rng.normal(size=(len(graph.scopes["edge"]), 3, 3))
    edge[:60] *= 1e4
    edge[60:120][rng.random((60, 3, 3)) < 0.2] = -np.inf
    theta = {"node": rng.normal(size=(1600, 3)), "edge": edge}
    entropy = smoothed(graph, 0.5)
    mixed = PairEngine(Scores(graph, theta), entropy)
    assert set(mixed.blocks.mode) == {0, 1}
    drive(mixed, 10, 0.0)
    regions = RegionEngine(Scores(graph, theta), entropy)
    drive(regions, 10, 0.0)
    np.testing.assert_allclose(mixed.read().singles, regions.read().singles, atol=1e-9)


@pytest.mark.parametrize("damping", [None, 0.3])
@pytest.mark.parametrize("shape", [(1, 60), (5, 12)])
def test_variables_of_one_state_have_the_value_of_their_scores(shape, damping):
    rng = np.random.default_rng(0)
    graph = pt.Graph.grid(shape, n_states=1)
    theta = {kind: rng.normal(size=(len(s), *[1] * s.shape[1])) for kind, s in graph.scopes.items()}
    total = sum(table.sum() for table in theta.values())
    for method in (pt.LoopyBP, pt.TRW, pt.Smoothed):
        assert method(damping=damping).infer(graph, theta).value == pytest.approx(total, abs=1e-12)


@pytest.mark.parametrize("case", ["own", "shared", "weights"])
def test_the_residual_of_damped_messages_leaves_out_empty_slots(case, monkeypatch):
    rng = np.random.default_rng(0)
    # of variables in one block those with few pairs move most
    pairs = {"edge": np.arange(12).reshape(6, 2), "more": np.stack([np.arange(7), np.arange(1, 8)], axis=1)}
    node = rng.normal(size=(16, 3)) * np.where(np.arange(16) < 8, 0.1, 3.0)[:, None]
    one = {"shared": rng.normal(size=(3, 3)), "weights": pt.Potts(0.7)}.get(case)
    theta = {kind: rng.normal(size=(len(p), 3, 3)) if one is None else one for kind, p in pairs.items()}
    found = []
    for lanes in (8, 1):  # a lane by itself has no empty slots
        monkeypatch.setattr("potentia.graph.layout._LANES", (lanes,))
        graph = pt.Graph(np.full(16, 3), {"node": np.arange(16)[:, None], **pairs})
        method = pt.LoopyBP(damping=0.4, iterations=4, tol=0, threads=1)
        found.append(method.infer(graph, {"node": node, **theta}).residual)
    assert found[0] == pytest.approx(found[1], rel=1e-9)


def test_one_shared_table_equals_the_same_table_for_every_pair():
    rng = np.random.default_rng(4)
    for graph in (pt.Graph.grid((7, 9), n_states=3), pt.Graph.complete(6, n_states=3), pt.Graph.chain(40, n_states=3)):
        table, nodes = rng.normal(size=(3, 3)), rng.normal(size=(graph.n_variables, 3))
        every = np.broadcast_to(table, (len(graph.scopes["edge"]), 3, 3))
        for epsilon in (0.5, 1e-4, 0.0):
            one, many = (
                pt.Smoothed(epsilon, iterations=9, tol=0, schedule="sequential").infer(
                    graph, {"node": nodes, "edge": e}
                )
                for e in (table, every)
            )
            assert one.value == pytest.approx(many.value, abs=1e-10)
            np.testing.assert_allclose(one.marginals["edge"], many.marginals["edge"], atol=1e-10)


def test_wavefronts_equal_raster_order():
    problem = zoo.zoo()["grid"]
    entropy = reweighted(problem.graph, 0.5)
    engine = PairEngine(Scores(*problem.model), entropy, "sequential")
    assert engine.layout.variable.shape[0] < problem.graph.n_variables  # several variables at once
    drive(engine, 2, 0.0)
    twin, _ = star_twin(problem, entropy)
    n = problem.graph.n_variables
    for i in [*range(n), *reversed(range(n))]:
        twin.update(i)
    np.testing.assert_allclose(engine.read().singles, np.array(twin.marginals()[:n]), atol=1e-13)


@pytest.mark.parametrize("problem", zoo.problems(has_forbidden=False), **named)
def test_schedules_agree_at_convergence(problem):
    found = [
        pt.TRW(schedule=s, **LONG).infer(*problem.model).variable_marginals
        for s in ("coloured", "sequential", "random", "residual")
    ]
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], atol=1e-9)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_nothing(threads, monkeypatch):
    for name in ("pair_engine._HAND_OVER", "pair_engine._WAIT", "region_engine._PARALLEL_WORK"):
        monkeypatch.setattr(f"potentia.inference.{name}", 1)
    rng = np.random.default_rng(5)
    grid = pt.Graph.grid((30, 30), n_states=3)
    triples = pt.Graph([2] * 60, {"node": np.arange(60)[:, None], "t": rng.permutation(60).reshape(20, 3)})
    for graph in (grid, triples):
        theta = zoo.scores(graph, rng)
        for schedule in ("coloured", "sequential"):
            one, many = (
                pt.Smoothed(0.4, iterations=5, tol=0, threads=t, schedule=schedule).infer(graph, theta)
                for t in (1, threads)
            )
            np.testing.assert_array_equal(one.variable_marginals, many.variable_marginals)
            assert one.value == pytest.approx(many.value, rel=1e-13)


# -- options ------------------------------------------------------------------------------------------------


def test_warm_start_continues_where_it_stopped():
    problem = zoo.zoo()["grid"]
    for method in (pt.TRW, pt.Smoothed, pt.LoopyBP, pt.Kikuchi):
        first = method(iterations=7, tol=0).infer(*problem.model)
        more = method(iterations=5, tol=0).infer(*problem.model, start=first)
        straight = method(iterations=12, tol=0).infer(*problem.model)
        np.testing.assert_allclose(more.variable_marginals, straight.variable_marginals, atol=1e-12)


def test_warm_start_revives_states_that_were_forbidden():
    graph = pt.Graph.chain(3, n_states=2)
    same = np.where(np.eye(2) > 0, 0.0, -np.inf)
    nodes = np.array([[0.3, 0.1], [0.0, 0.0], [0.0, 0.5]])
    clamped = pt.LoopyBP(iterations=50).infer(graph, {"node": nodes, "edge": same}, observed={0: 0})
    assert clamped.variable_marginals[2, 1] == 0.0
    free = pt.LoopyBP(iterations=50).infer(graph, {"node": nodes, "edge": same}, start=clamped)
    np.testing.assert_allclose(
        free.variable_marginals, reference.variable_marginals(graph, {"node": nodes, "edge": same}), atol=1e-9
    )


def test_damping_keeps_fixed_points_and_helps_where_bp_oscillates():
    problem = zoo.zoo()["complete"]
    plain = pt.TRW(**LONG).infer(*problem.model)
    damped = pt.TRW(damping=0.5, **LONG).infer(*problem.model)
    np.testing.assert_allclose(plain.variable_marginals, damped.variable_marginals, atol=1e-9)
    rng = np.random.default_rng(0)
    graph = pt.Graph.complete(5, n_states=2)
    theta = {"node": rng.normal(size=(5, 2)) / 2, "edge": rng.choice([-1.5, 1.5], size=(10, 1, 1)) * np.eye(2)}
    assert not pt.LoopyBP(iterations=500, damping=0.0).infer(graph, theta).converged
    assert pt.LoopyBP(iterations=500, damping=0.7).infer(graph, theta).converged


@pytest.mark.parametrize("method", [pt.TRW(), pt.LoopyBP(), pt.Exact()])
def test_counting_numbers_are_the_caller_s_own(method):
    problem = zoo.zoo()["tree"]
    first = method.infer(*problem.model).value
    method.counting_numbers(problem.graph)[:] *= 2
    assert method.infer(*problem.model).value == first


def test_epsilon_per_kind_equals_counting_numbers_per_kind():
    problem = zoo.zoo()["nested"]
    given = {"node": 0.2, "edge": 0.5, "triple": 1.0}
    smoothed = pt.Smoothed(given, **LONG).infer(*problem.model)
    own = pt.extend.MessagePassing(given, "containment", **LONG).infer(*problem.model)
    assert smoothed.value == pytest.approx(own.value)
    np.testing.assert_allclose(smoothed.variable_marginals, own.variable_marginals, atol=1e-12)
    assert own.bound == "estimate"
    twin, _ = star_twin(problem, pt.Smoothed(given).entropy(problem.graph))
    twin.run(iterations=20_000)
    assert smoothed.value == pytest.approx(twin.dual(), abs=1e-9)


def test_rho_per_clique_and_per_kind():
    problem = zoo.zoo()["two_edge_kinds"]
    rho = {"a": [0.5, 0.6], "b": 0.4}
    by_kind = pt.TRW(rho, **LONG).infer(*problem.model)
    by_clique = pt.TRW([0.5, 0.6, 0.4, 0.4], **LONG).infer(*problem.model)
    assert by_kind.value == by_clique.value
    valid = reference.in_forest_polytope(3, [(0, 1), (1, 2), (1, 0), (2, 0)], [0.5, 0.6, 0.4, 0.4])
    assert by_kind.bound == ("upper" if valid else "estimate")


def test_kikuchi_differs_from_bethe_on_squares_and_is_better():
    rng = np.random.default_rng(8)
    squares = np.array([[r * 4 + c, r * 4 + c + 1, r * 4 + c + 4, r * 4 + c + 5] for r in range(3) for c in range(3)])
    plain = pt.Graph.grid((4, 4), n_states=2)
    graph = pt.Graph([2] * 16, {**plain.scopes, "square": squares})
    theta = {"node": rng.normal(size=(16, 2)) * 0.3, "edge": rng.normal(size=(24, 2, 2))}
    log_z = pt.Exact().infer(plain, theta).value
    kikuchi = pt.Kikuchi(iterations=5000, damping=0.5).infer(graph, theta)
    bethe = pt.LoopyBP(iterations=5000, damping=0.5).infer(plain, theta)
    assert kikuchi.converged
    assert abs(kikuchi.value - log_z) < 0.2 * abs(bethe.value - log_z)


def test_large_mixed_states_take_the_general_path_with_the_same_result():
    rng = np.random.default_rng(9)
    edges = [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 1]]
    graph = pt.Graph([40, 2, 2, 2, 2, 2], {"node": np.arange(6)[:, None], "edge": edges})
    assert not suits_pairs(graph)
    theta = zoo.scores(graph, rng)
    result = pt.TRW(**LONG).infer(graph, theta)
    engine = PairEngine(Scores(graph, theta), reweighted(graph, None))
    drive(engine, 20_000, 1e-13)
    np.testing.assert_allclose(engine.read().singles, result.variable_marginals, atol=1e-10)


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("case", ["whole", "turned", "mixed", "forbidden"])
@pytest.mark.parametrize("states", [2, 8, 9, 21])
def test_tables_of_any_size_are_laid_out_as_the_pairs_are_seen(states, case, single):
    """Whole tables of eight pairs are filled at a time, others entry by entry; general regions read them in place."""
    rng = np.random.default_rng(states)
    edges = pt.Graph.grid((5, 18), n_states=2).scopes["edge"]
    if case == "turned":  # half of the pairs begin with their other variable
        edges = np.where(rng.random((len(edges), 1)) < 0.5, edges, edges[:, ::-1])
    n_states = np.full(90, states)
    if case == "mixed":
        n_states[rng.random(90) < 0.3] = states - 1
    graph = pt.Graph(n_states, {"node": np.arange(90)[:, None], "edge": edges})
    theta = zoo.scores(graph, rng)
    if case == "forbidden":
        theta["edge"][::7, 0, 1] = -np.inf
    if single and case != "mixed":
        theta["edge"] = theta["edge"].astype(np.float32)
    scores, entropy = Scores(graph, theta), reweighted(graph, 0.6)
    engines = [kind(scores, entropy) for kind in (PairEngine, RegionEngine)]
    for engine in engines:
        drive(engine, 5, 0.0)
    pairs, regions = (engine.read() for engine in engines)
    rounding = 1e-5 if engines[0].single else 1e-10
    np.testing.assert_allclose(pairs.singles, regions.singles, atol=rounding)
    assert pairs.value == pytest.approx(regions.value, rel=rounding)


METHODS_THAT_PROPAGATE = [pt.TRW(), pt.Smoothed(0.0), pt.LoopyBP()]


@pytest.mark.parametrize("method", METHODS_THAT_PROPAGATE, ids=["trw", "maximum", "bp"])
def test_contradictions_are_refused(method):
    with pytest.raises(pt.InfeasibleError, match="finite score"):
        method.infer(*zoo.zoo()["contradiction"].model)


@pytest.mark.parametrize("method", METHODS_THAT_PROPAGATE, ids=["trw", "maximum", "bp"])
def test_what_local_consistency_cannot_see_decodes_to_minus_infinity(method):
    result = method.infer(*zoo.zoo()["odd_cycle"].model)
    assert not np.isnan(result.variable_marginals).any()
    assert result.score(result.argmax()) == -np.inf


@pytest.mark.parametrize("problem", zoo.problems(feasible=False), **named)
def test_exact_refuses_infeasible_models(problem):
    with pytest.raises(pt.InfeasibleError):
        pt.Exact().infer(*problem.model)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (pt.TRW(iterations=-1), "iterations"),
        (pt.TRW(tol=-1.0), "tol"),
        (pt.TRW(damping=1.0), "damping"),
        (pt.TRW(schedule="spiral"), "schedule"),
        (pt.TRW(threads=0), "threads"),
        (pt.TRW(0.0), "rho must be positive"),
        (pt.TRW([0.5, 0.5]), "rho has shape"),
        (pt.TRW({"edges": 0.5}), "rho must name"),
        (pt.TRW(5.0), None),
        (pt.Smoothed(-0.1), "epsilon"),
        (pt.Smoothed(np.nan), "epsilon"),
        (pt.Smoothed({"node": 0.1}), "epsilon must name"),
        (pt.Smoothed({"node": 0.1, "edge": 0.0}), "epsilon must be zero"),
        (pt.extend.MessagePassing({"edge": -1.0, "node": 1.0}), "positive"),
        (pt.extend.MessagePassing({"edge": 1.0, "node": -9.0}), "positive sum"),
        (pt.extend.MessagePassing({"egde": 1.0}), "names kind 'egde'"),
        (pt.extend.MessagePassing({"edge": [1.0]}), "shape"),
        (pt.extend.MessagePassing({"edge": 1.0, "node": 1.0}, links="all"), "links"),
    ],
)
def test_bad_options_get_one_sentence(method, words):
    problem = zoo.zoo()["grid"]
    if words is None:  # counting numbers 1 - sum rho may be as low as they like: C = 1 stays positive
        assert method.infer(*problem.model).bound == "estimate"
        return
    with pytest.raises(pt.PotentiaError, match=words) as caught:
        method.infer(*problem.model)
    assert "\n" not in str(caught.value)


def test_later_changes_to_the_scores_do_not_touch_a_result():
    graph = pt.Graph.chain(4, n_states=2)
    theta = {"edge": np.random.default_rng(0).normal(size=(3, 2, 2))}
    result = pt.TRW().infer(graph, theta)
    before = result.score([0, 0, 0, 0])
    theta["edge"] *= -5
    assert result.score([0, 0, 0, 0]) == before


def test_copies_and_pickles_of_graphs_and_results_infer_the_same():
    problem = zoo.zoo()["grid"]
    union = pt.extend.Union([problem.graph, problem.graph])
    joined = union.join([problem.theta] * 2)
    for graph, theta in ((problem.graph, problem.theta), (union.graph, joined)):
        again = pickle.loads(pickle.dumps(graph))
        assert pt.TRW().infer(again, theta).value == pt.TRW().infer(graph, theta).value
    for method in (pt.Exact(), pt.TRW()):
        for problem in (zoo.zoo()["chain"], zoo.zoo()["grid"]):
            result = method.infer(*problem.model)
            np.testing.assert_array_equal(pickle.loads(pickle.dumps(result)).argmax(), result.argmax())


def test_labels_of_bounds_need_a_real_fixed_point():
    chain = pt.Graph.chain(30, n_states=2)
    theta = zoo.scores(chain, np.random.default_rng(0))
    assert pt.LoopyBP(iterations=3, tol=np.inf).infer(chain, theta).bound == "estimate"
    settled = pt.LoopyBP(iterations=200, tol=0).infer(chain, theta)
    assert settled.residual <= 4 * np.finfo(float).eps
    assert settled.converged
    assert settled.bound == "exact"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda g: pt.TRW().infer(g, {}, start="x"), "earlier Result"),
        (lambda g: pt.TRW().infer(g, {}, start=pt.Gibbs(samples=5).infer(g, {})), "same method"),
        (lambda g: pt.TRW("a").infer(g, {}), "rho"),
        (lambda g: pt.TRW({"edge": [0.1, 0.2, 0.3]}).infer(g, {}), "rho"),
        (lambda g: pt.Smoothed("a").infer(g, {}), "epsilon"),
        (lambda g: pt.Smoothed([0.1, 0.2]).infer(g, {}), "epsilon"),
        (lambda g: pt.extend.MessagePassing([1]).infer(g, {}), "counting"),
        (lambda g: pt.TRW(tol="a").infer(g, {}), "tol"),
        (lambda g: pt.TRW(seed=-1).infer(g, {}), "seed"),
        (lambda g: pt.MeanField(iterations=-1).infer(g, {}), "iterations"),
        (lambda g: pt.MeanField(tol=np.nan).infer(g, {}), "tol"),
        (lambda g: pt.LinearProgram(tol=-1.0), "tol"),
        (lambda g: pt.Exact(max_table="a").infer(g, {}), "max_table"),
        (lambda g: pt.Exact().sample(g, {}, 2.5), "samples"),
        (lambda g: pt.TRW().infer(None, {}), "Graph"),
        (lambda g: pt.TRW().infer(g, {"node": np.full((6, 2), 1e308)}), "1e100"),
    ],
)
def test_wrong_types_get_one_sentence(make, words):
    with pytest.raises(pt.PotentiaError, match=words) as caught:
        make(pt.Graph.grid((2, 3), n_states=2))
    assert "\n" not in str(caught.value)


def test_the_lp_does_not_call_exact_what_its_solver_could_not_resolve():
    graph = pt.Graph.grid((3, 3), n_states=2)
    for seed in range(6):
        rng = np.random.default_rng(seed)
        theta = {"node": rng.normal(size=(9, 2)), "edge": rng.normal(size=(12, 2, 2))}
        theta["node"][0] = [0, -1e11]
        result = pt.LinearProgram().infer(graph, theta)
        best = reference.max_score(graph, theta)
        assert result.bound == "estimate" or result.value >= best - 1e-6


@pytest.mark.parametrize("n_states", [2, 3])
@pytest.mark.parametrize("schedule", ["coloured", "sequential"])
def test_a_warm_start_takes_states_that_are_newly_forbidden(n_states, schedule):
    rng = np.random.default_rng(0)
    graph = pt.Graph.grid((10, 12), n_states=n_states)
    edges = len(graph.scopes["edge"])
    theta = {"node": 2 * rng.normal(size=(120, n_states)), "edge": 2 * rng.normal(size=(edges, n_states, n_states))}
    method = pt.TRW(iterations=2000, tol=1e-10, schedule=schedule)
    free = method.infer(graph, theta)
    for _ in range(10):
        observed = np.where(rng.random(120) < 0.2, rng.integers(0, n_states, 120), -1)
        warm, cold = (method.infer(graph, theta, observed=observed, start=start) for start in (free, None))
        np.testing.assert_allclose(warm.variable_marginals, cold.variable_marginals, atol=1e-7)


def test_marginals_of_pairs_are_made_on_demand_and_survive_pickling_and_later_calls():
    graph = pt.Graph.grid((9, 9), n_states=3)
    rng = np.random.default_rng(0)
    nodes, edges = rng.normal(size=(81, 3)), rng.normal(size=(len(graph.scopes["edge"]), 3, 3))
    theta = {"node": nodes, "edge": edges}
    early, late = pt.TRW().infer(graph, theta), pt.TRW().infer(graph, theta)
    expected = early.marginals["edge"].copy()
    edges *= -1.0
    pt.TRW().infer(graph, theta).marginals["edge"]
    np.testing.assert_array_equal(late.marginals["edge"], expected)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(late)).marginals["edge"], expected)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(late)).marginals["node"], late.marginals["node"])
    assert list(late.marginals) == ["node", "edge"]
    assert len(late.marginals) == 2
    np.testing.assert_allclose(expected.sum(axis=2), early.variable_marginals[graph.scopes["edge"][:, 0]], atol=1e-5)


@pytest.mark.parametrize("problem", zoo.problems(), **named)
def test_single_precision_tables_give_nearly_the_same(problem):
    graph, theta, observed = problem.model
    single = {kind: _in_single(tables) for kind, tables in theta.items()}
    back = {kind: _in_double(tables) for kind, tables in single.items()}
    for method in (pt.TRW(iterations=20, tol=0), pt.Smoothed(0.5, iterations=20, tol=0)):
        found, expected = method.infer(graph, single, observed), method.infer(graph, back, observed)
        np.testing.assert_allclose(found.variable_marginals, expected.variable_marginals, atol=1e-4)
        assert found.value == pytest.approx(expected.value, rel=1e-5, abs=1e-5)


def _in_single(tables):
    return [np.asarray(t, np.float32) for t in tables] if isinstance(tables, list) else np.asarray(tables, np.float32)


def _in_double(tables):
    return [t.astype(float) for t in tables] if isinstance(tables, list) else tables.astype(float)


@pytest.mark.parametrize("states", [2, 5])
def test_single_precision_on_grids_and_its_gradient(states):
    graph = pt.Graph.grid((12, 14), n_states=states)
    rng = np.random.default_rng(states)
    single = {
        "node": rng.normal(size=(168, states)).astype(np.float32),
        "edge": rng.normal(size=(len(graph.scopes["edge"]), states, states)).astype(np.float32),
    }
    theta = {kind: table.astype(float) for kind, table in single.items()}
    found, expected = pt.TRW().infer(graph, single), pt.TRW().infer(graph, theta)
    assert not np.array_equal(found.variable_marginals, expected.variable_marginals)  # another path was taken
    np.testing.assert_allclose(found.variable_marginals, expected.variable_marginals, atol=1e-4)
    np.testing.assert_allclose(found.marginals["edge"], expected.marginals["edge"], atol=1e-4)
    assert found.value == pytest.approx(expected.value, rel=1e-5)
    y = rng.integers(0, states, 168)
    method = pt.TRW(iterations=10, tol=0)
    for a, b in zip(
        pt.loss_and_gradient("clique_logistic", method, graph, single, y, gradient="truncated")[1].values(),
        pt.loss_and_gradient("clique_logistic", method, graph, theta, y, gradient="truncated")[1].values(),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, atol=1e-4)


# -- bounds, damping and the residual schedule --------------------------------------------------------------


@pytest.mark.parametrize("problem", zoo.problems(), **named)
def test_the_upper_bound_of_trw_holds_at_any_messages(problem):
    log_z = reference.log_partition(*problem.model)
    room = 1e-9 * (1.0 + abs(log_z))
    for iterations in (0, 1, 2, 5):
        for options in ({}, {"damping": 0.5}, {"rho": 0.9}):
            result = pt.TRW(iterations=iterations, tol=0, **options).infer(*problem.model)
            assert result.upper_bound() >= log_z - room


@pytest.mark.parametrize("problem", zoo.problems(), **named)
def test_the_bound_over_forests_is_the_value_at_convergence(problem):
    result = pt.TRW(**LONG).infer(*problem.model)
    assert result.converged
    assert tree_weights.forest_bound(result) == pytest.approx(result.value, rel=1e-7, abs=1e-7)


def test_only_trw_and_exact_values_bound_log_z_from_above():
    model = zoo.zoo()["grid"].model
    assert pt.Exact().infer(*model).upper_bound() == pytest.approx(reference.log_partition(*model))
    for method in (pt.LoopyBP(), pt.MeanField(), pt.Smoothed(0.1)):
        with pytest.raises(pt.PotentiaError, match="use TRW"):
            method.infer(*model).upper_bound()


def spin_glass(seed, shape=(6, 6), strength=1.0):
    rng, spins = np.random.default_rng(seed), np.array([-1.0, 1.0])
    graph = pt.Graph.grid(shape, n_states=2)
    coupling = strength * rng.normal(size=len(graph.scopes["edge"]))
    theta = {"node": 0.1 * rng.normal(size=(graph.n_variables, 1)) * spins}
    return graph, theta | {"edge": coupling[:, None, None] * np.outer(spins, spins)}


def test_optimised_weights_tighten_the_bound():
    for seed in range(3):
        model = spin_glass(seed)
        log_z = pt.Exact().infer(*model).value
        plain = pt.TRW(iterations=2000, tol=1e-8).infer(*model)
        best = pt.TRW(iterations=2000, tol=1e-8, optimise_rho=True).infer(*model)
        assert best.bound == "upper"
        assert log_z <= best.value
        assert best.value - log_z < 0.7 * (plain.value - log_z)
        assert best.upper_bound() == best.value


@pytest.mark.parametrize("problem", zoo.problems(), **named)
def test_optimised_weights_stay_valid_on_the_zoo(problem):
    log_z = reference.log_partition(*problem.model)
    best = pt.TRW(iterations=200, optimise_rho=True).infer(*problem.model)
    assert best.upper_bound() >= log_z - 1e-7 * (1.0 + abs(log_z))


def test_optimised_weights_exclude_given_ones_and_gradients():
    graph, theta = spin_glass(0)
    with pytest.raises(pt.PotentiaError, match="leave rho=None"):
        pt.TRW(rho=0.5, optimise_rho=True).infer(graph, theta)
    with pytest.raises(pt.PotentiaError, match="no gradient"):
        pt.loss_and_gradient("univariate_logistic", pt.TRW(optimise_rho=True), graph, theta, np.zeros(36, dtype=int))


def test_oscillating_messages_are_damped_and_called_so():
    model = spin_glass(2, (8, 8), 2.5)
    undamped = pt.LoopyBP(iterations=1000, damping=0.0).infer(*model)
    result = pt.LoopyBP(iterations=1000).infer(*model)
    assert not undamped.converged
    assert not undamped.oscillating
    assert result.converged
    assert result.oscillating
    assert "oscillating" in repr(result)
    assert "oscillating" in result._repr_html_()
    calm = pt.LoopyBP(iterations=1000).infer(*spin_glass(2, (8, 8), 0.2))
    assert calm.converged
    assert not calm.oscillating


def test_the_residual_schedule_updates_the_largest_pending_change_first():
    problem = zoo.zoo()["grid"]
    graph = problem.graph
    scopes, tables = reference.region_tables(*problem.model)
    method = pt.Smoothed(1.0, schedule="residual", iterations=3, tol=0)
    counting = list(method.entropy(graph).counting)
    twin = naive_engines.Star(scopes, tables, reference.links(scopes, "containment"), counting)
    single = {s[0]: r for r, s in enumerate(scopes) if len(s) == 1}
    order = updated_variables(method.engine(Scores(graph, problem.theta)))
    neighbours = {i: {j for s in scopes if i in s for j in s} - {i} for i in order}
    pending, belief = dict.fromkeys(order, np.inf), {i: np.zeros(graph.n_states[i]) for i in order}
    for _ in range(3 * graph.n_variables):
        i = max(order, key=pending.get)
        twin.update(single[i])
        new = twin.marginals()[single[i]]
        change = float(np.abs(new - belief[i]).max())
        belief[i], pending[i] = new, 0.0
        for j in neighbours[i]:
            pending[j] = max(pending[j], change)
    found = method.infer(*problem.model).variable_marginals
    for i in order:
        np.testing.assert_allclose(found[i], twin.marginals()[single[i]], atol=1e-12)


@pytest.mark.parametrize("scale", [10, 30, 300])
@pytest.mark.parametrize("damping", [None, 0.0, 0.3, 0.7])
def test_saturated_marginals_hide_neither_a_wrong_value_nor_messages_under_way(scale, damping):
    for seed in range(12):
        rng = np.random.default_rng(seed)
        chain = pt.Graph.chain(4, n_states=3)
        theta = {"node": scale * rng.normal(size=(4, 3)), "edge": rng.normal(size=(3, 3, 3))}
        truth = pt.Exact().infer(chain, theta).value
        for method, iterations in ((pt.TRW, 5), (pt.LoopyBP, 8), (pt.Kikuchi, 20), (pt.TRW, 500)):
            result = method(iterations=iterations, tol=1e-6, damping=damping).infer(chain, theta)
            assert result.bound == ("exact" if result.converged else "estimate")
            assert not result.converged or result.value == pytest.approx(truth, rel=1e-6)
            assert result.converged or iterations < 500


def test_a_sequential_schedule_waits_for_both_directions():
    # what is updated last on the way there is updated first on the way back, where it finds nothing new
    inf = np.inf
    graph = pt.Graph([1, 3, 4, 3], {"edge": [[3, 1], [1, 2]], "clique": [[1, 2, 3, 0]]})
    first = [[3.15, 3.76, -9.25], [8.74, -inf, -inf], [-inf, -inf, -inf]]
    second = [[-inf, -inf, -5.8, -1.66], [-inf, 4.78, 5.87, -inf], [-inf, -inf, -inf, -4.55]]
    theta = {"edge": [np.array(first), np.array(second)]}
    result = pt.TRW(schedule="sequential", tol=1e-6, iterations=300).infer(graph, theta)
    more = pt.TRW(schedule="sequential", tol=0, iterations=2).infer(graph, theta, start=result)
    assert result.converged
    assert np.abs(more.variable_marginals - result.variable_marginals).max() < 1e-4


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("states", [2, 3])
@pytest.mark.parametrize("rho", [0.5, 1.0, 0.4, "uneven"])
def test_kept_exponentials_of_messages_are_those_of_the_messages(states, shared, rho, monkeypatch):
    rng = np.random.default_rng(states)
    graph = pt.Graph.grid((9, 11), n_states=states)
    pairs = len(graph.scopes["edge"])
    node = rng.normal(size=(graph.n_variables, states)) + 1e3 * rng.normal(size=(graph.n_variables, 1))
    node[3, 0] = -np.inf
    edge = rng.normal(size=(states, states) if shared else (pairs, states, states))
    weights = rng.uniform(0.3, 0.6, pairs) if rho == "uneven" else rho
    scores = Scores(graph, {"node": node, "edge": edge})
    engines = []
    for widest in (600.0, 0.0):  # a range of 0 is safe for no messages
        monkeypatch.setattr(pair_engine, "SAFE_RANGE", widest)
        engines.append(pt.TRW(rho=weights, threads=1).engine(scores))
    assert [engine.exponentials for engine in engines] == [True, False]
    assert (engines[0].blocks.own.size > 0) == (rho in (0.5, 1.0))
    for engine in engines:
        drive(engine, 3, 0.0)
    np.testing.assert_allclose(engines[0].messages(), engines[1].messages(), atol=1e-12)
    quick, plain = (engine.read() for engine in engines)
    assert quick.value == pytest.approx(plain.value, rel=1e-12)
    np.testing.assert_allclose(quick.singles, plain.singles, atol=1e-12)


@pytest.fixture
def shared_products(monkeypatch):
    """Products of pairs are shared on small graphs, too."""
    monkeypatch.setattr(pair_engine, "_SHARED_FROM", 0)


def _unshared(method, scores, monkeypatch):
    """An engine whose rows all do their own products."""
    with monkeypatch.context() as patch:
        patch.setattr(pair_engine, "_SHARED_FROM", 2**62)
        engine = method.engine(scores)
    assert not np.any(engine.blocks.role == RECEIVES)
    return engine


@pytest.mark.usefixtures("shared_products")
@pytest.mark.parametrize("schedule", ["coloured", "sequential", "random"])
@pytest.mark.parametrize("case", ["grid", "eight neighbours", "irregular", "mixed states", "float32"])
@pytest.mark.parametrize("states", [3, 8, 21])
def test_products_done_by_the_first_end_are_those_of_the_second(states, case, schedule, monkeypatch):
    rng = np.random.default_rng(states)
    graph = pt.Graph.grid((9, 40), n_states=states, neighbours=8 if case == "eight neighbours" else 4)
    if case in ("irregular", "mixed states"):
        pairs = np.unique(np.sort(rng.integers(0, 360, (900, 2)), axis=1), axis=0)
        n_states = np.full(360, states)
        if case == "mixed states":
            n_states[rng.random(360) < 0.3] = states - 1
        scopes = {"node": np.arange(360)[:, None], "edge": pairs[pairs[:, 0] < pairs[:, 1]]}
        graph = pt.Graph(n_states, scopes)
    theta = zoo.scores(graph, rng)
    if case == "float32":
        theta["edge"] = theta["edge"].astype(np.float32)
    method = pt.TRW(rho=0.5, schedule=schedule, iterations=7, tol=0, threads=1)
    scores = Scores(graph, theta)
    engines = [method.engine(scores), _unshared(method, scores, monkeypatch)]
    engines.append(replace(method, threads=2).engine(scores))
    if schedule != "random" and case != "mixed states":
        assert np.any(engines[0].blocks.role == RECEIVES)
    for engine in engines:
        drive(engine, 7, 0.0)
    first, plain, threaded = (engine.read() for engine in engines)
    np.testing.assert_allclose(first.singles, plain.singles, atol=1e-6 if case == "float32" else 1e-13)
    assert first.value == pytest.approx(plain.value, rel=1e-6 if case == "float32" else 1e-13)
    np.testing.assert_array_equal(first.messages, threaded.messages)


@pytest.mark.usefixtures("shared_products")
def test_restored_messages_are_sent_again(monkeypatch):
    rng = np.random.default_rng(0)
    graph = pt.Graph.grid((9, 40), n_states=5)
    scores = Scores(graph, zoo.scores(graph, rng))
    engine = pt.TRW(rho=0.5, threads=1).engine(scores)
    drive(engine, 3, 0.0)
    saved = np.empty(engine.saved_shape)
    engine.save(saved)
    before = engine.read()
    drive(engine, 2, 0.0)
    after = engine.read()
    engine.restore(saved)
    np.testing.assert_array_equal(engine.read().singles, before.singles)
    # the later ends come first
    late = pt.TRW(rho=0.5, threads=1).engine(scores)
    late.restore(saved)
    order = np.arange(len(late.layout.variable))
    plain = _unshared(pt.TRW(rho=0.5, threads=1), scores, monkeypatch)
    plain.restore(saved)
    for other in (late, plain):
        other.sweep(order[::-1].copy())
    np.testing.assert_allclose(late.read().singles, plain.read().singles, atol=1e-13)
    drive(engine, 2, 0.0)
    np.testing.assert_array_equal(engine.read().messages, after.messages)


@pytest.mark.usefixtures("shared_products")
def test_damping_that_begins_midway_finds_all_tables(monkeypatch):
    rng = np.random.default_rng(0)
    graph = pt.Graph.grid((9, 40), n_states=5)
    scores = Scores(graph, zoo.scores(graph, rng))
    method = pt.TRW(rho=0.5, threads=1)
    engines = [method.engine(scores), _unshared(method, scores, monkeypatch)]
    for engine in engines:
        drive(engine, 2, 0.0)
        engine.damp(0.5)
        drive(engine, 2, 0.0)
        engine.damp(0.0)
        drive(engine, 2, 0.0)
    first, second = (engine.read() for engine in engines)
    np.testing.assert_allclose(first.singles, second.singles, atol=1e-13)
    assert first.value == pytest.approx(second.value, rel=1e-13)


@pytest.mark.usefixtures("shared_products")
def test_an_engine_whose_iterations_were_run_again_reads_as_before():
    rng = np.random.default_rng(0)
    graph = pt.Graph.grid((9, 40), n_states=5)
    scores = Scores(graph, zoo.scores(graph, rng))
    method = pt.TRW(rho=0.5, iterations=9, tol=0, threads=1)
    engine, tape = method.engine(scores), Tape(1)
    before = method.solve(engine, tape)
    tape.fill(0, 3)
    after = engine.read()
    np.testing.assert_array_equal(before.variable_marginals, after.singles)
    assert before.value == after.value
    copied = copy.deepcopy(engine).read()
    np.testing.assert_array_equal(before.variable_marginals, copied.singles)


@pytest.mark.parametrize("memory", [1, 2**29])
@pytest.mark.parametrize("single", [False, True])
def test_gradients_do_not_depend_on_who_does_the_products(memory, single, monkeypatch):
    rng = np.random.default_rng(1)
    graph = pt.Graph.grid((9, 40), n_states=5)
    theta = zoo.scores(graph, rng)
    theta["node"][4, 2] = -np.inf
    if single:
        theta["edge"] = theta["edge"].astype(np.float32)
    labels = rng.integers(0, 2, graph.n_variables)
    method = pt.TRW(rho=0.5, iterations=9, tol=0, threads=1)
    gradient = pt.gradients.Truncated(memory=memory)
    found = []
    for least in (0, 2**62):
        monkeypatch.setattr(pair_engine, "_SHARED_FROM", least)
        found.append(pt.loss_and_gradient("univariate_logistic", method, graph, theta, labels, gradient))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6 if single else 1e-12)
    for kind in theta:
        close = {"atol": 1e-5 if single else 1e-12}
        np.testing.assert_allclose(found[0][1][kind], found[1][1][kind], **close)


def test_a_single_number_of_either_precision_is_a_shared_table():
    graph = pt.Graph([1, 1], {"node": [[0], [1]]})
    for dtype in (np.float64, np.float32):
        assert pt.TRW().infer(graph, {"node": np.array(1.0, dtype)}).value == pytest.approx(2.0)


def test_uniform_messages_do_not_depend_on_how_messages_were_held():
    graph = pt.Graph.grid((9, 40), n_states=5)
    scores = Scores(graph, zoo.scores(graph, np.random.default_rng(0)))
    engine = pt.TRW(rho=0.5, threads=1).engine(scores)
    first = engine.messages()
    drive(engine, 2, 0.0)
    engine.damp(0.5)
    assert not engine.exponentials
    engine.start_uniform()
    np.testing.assert_allclose(engine.messages(), first, atol=1e-12)


def test_scores_in_single_precision_are_kept_so_where_their_range_is_bounded():
    graph = pt.Graph.grid((3, 4), n_states=3)
    theta = {k: t.astype(np.float32) for k, t in zoo.scores(graph, np.random.default_rng(0)).items()}
    assert Scores(graph, theta, own=True).kind("edge", widen=False)[0].dtype == np.float32
    theta["edge"][0, 0, 0] = -np.inf
    assert Scores(graph, theta, own=True).kind("edge", widen=False)[0].dtype == np.float64


FLOAT32 = {
    "TRW": pt.TRW(iterations=1000, tol=1e-9),
    "LoopyBP": pt.LoopyBP(iterations=1000, tol=1e-9),
    "Smoothed": pt.Smoothed(0.2, iterations=300),
    "maximum": pt.Smoothed(0.0, iterations=300),
}


@pytest.mark.parametrize("name", FLOAT32)
@pytest.mark.parametrize("states", [2, 3, 9])
@pytest.mark.parametrize("scale", [1e-9, 1.0, 5.0])
def test_values_of_single_precision_are_those_of_the_scores_at_the_messages(name, states, scale):
    """A warm start with the same messages in double precision, without a step, has the same value."""
    graph = pt.Graph.grid((12, 15), n_states=states)
    theta = {k: (scale * t).astype(np.float32) for k, t in zoo.scores(graph, np.random.default_rng(3)).items()}
    double = {k: t.astype(np.float64) for k, t in theta.items()}
    found = FLOAT32[name].infer(graph, theta)
    same = replace(FLOAT32[name], iterations=0).infer(graph, double, start=found)
    rounding = Scores(graph, double).rounding()
    assert abs(found.value - same.value) <= rounding + 1e-14 * abs(same.value)
    if found.target == "max_score":
        assert found.value >= found.score(found.argmax()) - rounding


@pytest.mark.parametrize("scale", [1e-9, 1.0])
def test_exact_is_exact_for_scores_of_single_precision(scale):
    graph = pt.Graph.chain(40, n_states=3)
    theta = {k: (scale * t).astype(np.float32) for k, t in zoo.scores(graph, np.random.default_rng(4)).items()}
    double = {k: t.astype(np.float64) for k, t in theta.items()}
    for method in (pt.Exact(), pt.LoopyBP(iterations=300, tol=1e-12)):
        one, two = method.infer(graph, theta), method.infer(graph, double)
        assert one.bound == two.bound == "exact"
        assert one.value == pytest.approx(two.value, rel=1e-14)
    one, two = pt.Exact().infer(graph, theta), pt.Exact().infer(graph, double)
    np.testing.assert_allclose(one.variable_marginals, two.variable_marginals, rtol=1e-13)
    np.testing.assert_allclose(one.marginals["edge"], two.marginals["edge"], rtol=1e-12)


@pytest.mark.parametrize("seed", [2732, 5313, 7538])
def test_optimised_weights_end_before_a_clique_has_none(seed):
    rng = np.random.default_rng(seed)
    cliques = {"edge": [[1, 0], [2, 1], [3, 1]], "tri": [[0, 3, 4], [0, 1, 4], [0, 2, 3], [2, 3, 4]]}
    graph = pt.Graph([2] * 5, cliques)
    tri = rng.standard_normal((4, 2, 2, 2))
    tri[rng.random(tri.shape) < 0.4] = -np.inf
    theta = {"edge": rng.standard_normal((3, 2, 2)), "tri": tri}
    result = pt.TRW(optimise_rho=True, threads=1).infer(graph, theta)
    assert result.upper_bound() >= reference.log_partition(graph, theta) - 1e-12


@pytest.mark.parametrize("damping", [None, 0.0, 0.5])
@pytest.mark.parametrize("iterations", [40, 300])
def test_messages_that_grow_without_limit_are_called_diverged(damping, iterations):
    """Regions of up to six variables that lie inside each other have no stable fixed point."""
    rng = np.random.default_rng([6, 2])
    sizes = {2: 10, 3: 8, 4: 9, 5: 10, 6: 4}
    scopes = {
        f"c{order}": sorted({tuple(sorted(rng.choice(9, order, replace=False).tolist())) for _ in range(n)})
        for order, n in sizes.items()
    }
    graph = pt.Graph([3] * 9, scopes)
    theta = {k: rng.standard_normal((len(s), *(3,) * s.shape[1])) for k, s in graph.scopes.items()}
    result = pt.Kikuchi(iterations=iterations, damping=damping, threads=1).infer(graph, theta)
    assert np.abs(result.messages).max() > 1e6
    assert result.diverged
    assert not result.converged
    assert "diverged" in repr(result)
    assert "diverged" in result._repr_html_()
    calm = pt.TRW(iterations=iterations, damping=damping, threads=1).infer(graph, theta)
    assert not calm.diverged
    assert "diverged" not in repr(calm)


@pytest.mark.parametrize("method", [pt.TRW(), pt.Kikuchi(), pt.TRW(schedule="residual")], ids=repr)
def test_values_of_larger_regions_do_not_depend_on_threads(method, monkeypatch):
    monkeypatch.setattr("potentia.inference.region_engine._PARALLEL_WORK", 0)
    scopes = np.arange(900)[:, None] + np.arange(3)
    graph = pt.Graph(np.full(902, 2), {"node": np.arange(902)[:, None], "clique": scopes})
    theta = zoo.scores(graph, np.random.default_rng(0))
    values = {replace(method, threads=n, iterations=3).infer(graph, theta).value for n in (1, 2, 3, 5)}
    assert len(values) == 1


def test_a_random_schedule_counts_two_iterations_before_it_calls_itself_converged():
    # an order that begins where the one before it ended changes nothing there
    never = -np.inf
    table = np.array([[0.72546738, 0.35886783, never], [0.6078252, 0.0, never], [never, never, -1.05764866]])
    node = np.random.default_rng(0).standard_normal((5, 3))
    node[:3] = [[2.17667971, -0.77687543, -0.76901713], [0.01930486, -0.23350902, 0.35981523], [1.088, 0.407, 1.864]]
    graph = pt.Graph([3] * 5, {"node": np.arange(5)[:, None], "edge": [[0, 1], [1, 2]]})
    theta = {"node": node, "edge": np.stack([table, table])}
    truth = pt.Smoothed(0.5, iterations=5000, tol=1e-14).infer(graph, theta)
    for seed in range(20):
        method = pt.Smoothed(0.5, schedule="random", seed=seed, iterations=5000, tol=1e-12)
        np.testing.assert_allclose(method.infer(graph, theta).variable_marginals, truth.variable_marginals, atol=1e-10)


@pytest.mark.parametrize("threads", [1, 2])
def test_numbers_of_iterations_may_be_of_few_bits(threads):
    graph = pt.Graph.grid((8, 8), n_states=3)
    theta = {"node": np.random.default_rng(0).standard_normal((64, 3)), "edge": np.eye(3)}
    few, plain = (pt.TRW(iterations=n, tol=0.0, threads=threads).infer(graph, theta) for n in (np.int8(3), 3))
    assert few.value == plain.value

"""What must not matter does not, and derivatives of values are marginals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import potentia as pt
import reference
import zoo

LONG = {"iterations": 5000, "tol": 1e-12}
METHODS = {
    "trw": pt.TRW(**LONG),
    "smoothed": pt.Smoothed(0.5, **LONG),
    "loopy": pt.LoopyBP(damping=0.2, **LONG),
    "mean_field": pt.MeanField(iterations=5000, tol=1e-13),
    "exact": pt.Exact(),
}
CONVEX = ["trw", "smoothed", "exact"]
few = settings(max_examples=15, deadline=None)


@st.composite
def models(draw):
    """A random graph of regions of one to three variables with moderate scores."""
    n = draw(st.integers(2, 6))
    states = draw(st.lists(st.integers(1, 3), min_size=n, max_size=n))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    pairs = draw(
        st.sets(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda p: p[0] != p[1]), max_size=6)
    )
    regions = {"node": np.arange(n)[:, None], "edge": np.array(sorted(pairs), dtype=int).reshape(-1, 2)}
    if n > 2 and draw(st.booleans()):
        regions["triple"] = [rng.permutation(n)[:3]]
    graph = pt.Graph(states, regions)
    return graph, zoo.scores(graph, rng, 0.7), rng


@pytest.mark.parametrize("name", METHODS)
@given(model=models())
@few
def test_adding_a_constant_shifts_the_value_only(name, model):
    graph, theta, rng = model
    shifted, total = {}, 0.0
    for kind, tables in theta.items():
        shifted[kind] = [t + c for t, c in zip(tables, rng.normal(size=len(tables)), strict=True)]
        total += sum(float((s - t).flat[0]) for s, t in zip(shifted[kind], tables, strict=True))
    a, b = METHODS[name].infer(graph, theta), METHODS[name].infer(graph, shifted)
    assert b.value - a.value == pytest.approx(total, abs=1e-9)
    np.testing.assert_allclose(a.variable_marginals, b.variable_marginals, atol=1e-9)


@st.composite
def shared_models(draw):
    """Pairs of one kind on a random graph, one table for all of them that may forbid much, and evidence."""
    n, states = draw(st.integers(2, 6)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    ends = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda p: p[0] != p[1])
    pairs = np.array(sorted(draw(st.sets(ends, min_size=2, max_size=7))), dtype=int)
    graph = pt.Graph([states] * n, {"node": np.arange(n)[:, None], "edge": pairs})
    form = draw(st.sampled_from(["row", "column", "state", "entries", "none"]))
    node = rng.standard_normal((n, states))
    if draw(st.booleans()):
        node[:, draw(st.integers(0, states - 1))] = -np.inf
    observed = {0: draw(st.integers(0, states - 1))} if draw(st.booleans()) else {}
    return graph, node, zoo.forbidden_table(rng, states, form), observed


def outcome(method, *model):
    """A method's result, or None where it finds that nothing is allowed."""
    try:
        return method.infer(*model)
    except pt.InfeasibleError:
        return None


SCHEDULES = ["coloured", "sequential", "random", "residual"]
EVERY = {
    **{f"trw_{s}": pt.TRW(schedule=s, **LONG) for s in SCHEDULES},
    **{f"loopy_{s}": pt.LoopyBP(schedule=s, damping=0.2, **LONG) for s in SCHEDULES},
    **{f"smoothed_{s}": pt.Smoothed(0.5, schedule=s, **LONG) for s in SCHEDULES},
    **{f"maximum_{s}": pt.Smoothed(0.0, schedule=s) for s in SCHEDULES},
    **{f"mean_field_{s}": pt.MeanField(schedule=s) for s in SCHEDULES[:3]},
    "kikuchi": pt.Kikuchi(damping=0.2, **LONG),
    "exact": pt.Exact(),
    "linear_program": pt.LinearProgram(),
    "gibbs": pt.Gibbs(samples=20, burn_in=5),
}


@pytest.mark.parametrize("name", EVERY)
@given(model=shared_models())
@few
def test_a_shared_table_is_the_same_table_written_out(name, model):
    graph, node, table, observed = model
    written = {"node": node, "edge": np.repeat(table[None], len(graph.scopes["edge"]), axis=0)}
    a = outcome(EVERY[name], graph, {"node": node, "edge": table}, observed)
    b = outcome(EVERY[name], graph, written, observed)
    assert (a is None) == (b is None)
    if a is None or reference.max_score(graph, written, observed) == -np.inf:
        return
    assert (a.bound, a.target, a.converged) == (b.bound, b.target, b.converged)
    assert a.value == pytest.approx(b.value, abs=1e-9)
    if not name.startswith(("maximum", "linear")):  # ties
        np.testing.assert_allclose(a.variable_marginals, b.variable_marginals, atol=1e-9)
    if a.bound == "exact" and a.target == "log_partition":
        assert a.value == pytest.approx(reference.log_partition(graph, written, observed), abs=1e-9)
        truth = reference.variable_marginals(graph, written, observed)
        np.testing.assert_allclose(a.variable_marginals, truth, atol=1e-8)


@pytest.mark.parametrize("method", [pt.TRW, pt.LoopyBP, pt.Smoothed])
@pytest.mark.parametrize("schedule", ["coloured", "sequential"])
@given(model=shared_models())
@few
def test_the_gradient_of_a_shared_table_is_the_sum_over_its_regions(method, schedule, model):
    graph, node, table, _ = model
    written = {"node": node, "edge": np.repeat(table[None], len(graph.scopes["edge"]), axis=0)}
    f = reference.label_scores(graph, written)
    if f.max() == -np.inf:
        return
    labels = reference.labellings(graph)[f.argmax()]
    few_steps = method(iterations=3, tol=0, schedule=schedule)
    value, shared = pt.loss_and_gradient("clique_logistic", few_steps, graph, {"node": node, "edge": table}, labels)
    same, each = pt.loss_and_gradient("clique_logistic", few_steps, graph, written, labels)
    assert value == pytest.approx(same, abs=1e-9)
    np.testing.assert_allclose(shared["node"], each["node"], atol=1e-9)
    np.testing.assert_allclose(shared["edge"], each["edge"].sum(axis=0), atol=1e-9)


@pytest.mark.parametrize("name", ["trw_coloured", "loopy_sequential", "smoothed_residual"])
@given(model=shared_models(), other=st.integers(0, 2**32 - 1))
@few
def test_a_warm_start_from_other_constraints_ends_in_the_same_place(name, model, other):
    graph, node, table, observed = model
    rng = np.random.default_rng(other)
    before = zoo.forbidden_table(rng, int(graph.n_states[0]), "row")
    start = outcome(EVERY[name], graph, {"node": node, "edge": before})
    cold = outcome(EVERY[name], graph, {"node": node, "edge": table}, observed)
    if start is None or cold is None or not cold.converged:
        return
    warm = EVERY[name].infer(graph, {"node": node, "edge": table}, observed, start=start)
    if cold.bound != "estimate":  # other fixed points of loopy BP are no error
        assert warm.value == pytest.approx(cold.value, abs=1e-7)
        np.testing.assert_allclose(warm.variable_marginals, cold.variable_marginals, atol=1e-6)


@pytest.mark.parametrize("name", CONVEX)
@given(model=models())
@few
def test_moving_score_between_a_pair_and_its_ends_changes_nothing(name, model):
    graph, theta, rng = model
    moved = {kind: [t.copy() for t in tables] for kind, tables in theta.items()}
    for e, (i, j) in enumerate(graph.scopes["edge"]):
        u, v = rng.normal(size=graph.n_states[i]), rng.normal(size=graph.n_states[j])
        moved["edge"][e] += u[:, None] + v
        moved["node"][i] -= u
        moved["node"][j] -= v
    a, b = METHODS[name].infer(graph, theta), METHODS[name].infer(graph, moved)
    assert a.value == pytest.approx(b.value, abs=1e-8)
    np.testing.assert_allclose(a.variable_marginals, b.variable_marginals, atol=1e-7)


@pytest.mark.parametrize("name", CONVEX)
@given(model=models())
@few
def test_names_of_variables_and_order_of_axes_do_not_matter(name, model):
    graph, theta, rng = model
    name_of = rng.permutation(graph.n_variables)
    states = np.empty_like(graph.n_states)
    states[name_of] = graph.n_states
    regions = {kind: name_of[scope][:, ::-1] for kind, scope in graph.scopes.items() if len(scope)}
    other = pt.Graph(states, regions)
    turned = {kind: [t.T for t in theta[kind]] for kind in regions}
    a, b = METHODS[name].infer(graph, theta), METHODS[name].infer(other, turned)
    assert a.value == pytest.approx(b.value, abs=1e-8)
    np.testing.assert_allclose(a.variable_marginals, b.variable_marginals[name_of], atol=1e-7)
    for kind in regions:
        for one, two in zip(a.marginals[kind], b.marginals[kind], strict=True):
            np.testing.assert_allclose(one, two.T, atol=1e-7)


@pytest.mark.parametrize("name", METHODS)
@given(data=st.data())
@few
def test_a_union_is_its_parts(name, data):
    parts = [data.draw(models()) for _ in range(3)]
    union = pt.extend.Union(graph for graph, _, _ in parts)
    # one iteration limit for all: a part that has converged must not move on in the union
    whole = METHODS[name].infer(union.graph, union.join([theta for _, theta, _ in parts]))
    alone = [METHODS[name].infer(graph, theta) for graph, theta, _ in parts]
    assert whole.value == pytest.approx(sum(r.value for r in alone), abs=1e-7)
    for part, marginals in zip(alone, union.split(whole.marginals), strict=True):
        assert set(marginals) == set(part.graph.kinds)
        for kind in part.graph.kinds:
            for one, two in zip(part.marginals[kind], marginals[kind], strict=True):
                np.testing.assert_allclose(one, two, atol=1e-6)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("problem", ["grid", "nested", "mixed", "factor_loop"])
def test_the_gradient_of_the_value_is_the_marginals(name, problem):
    problem = zoo.zoo()[problem]
    method = METHODS[name]
    result = method.infer(*problem.model)
    for kind in problem.graph.kinds:
        row = len(problem.theta[kind]) - 1

        def value(table, kind=kind, row=row):
            tables = [t.copy() for t in problem.theta[kind]]
            tables[row] = table
            return method.infer(problem.graph, {**problem.theta, kind: tables}).value

        slope = reference.differences(value, problem.theta[kind][row], step=1e-5)
        np.testing.assert_allclose(slope, result.marginals[kind][row], atol=2e-6)


@given(model=models(), state=st.integers(0, 2))
@few
def test_observing_equals_conditioning(model, state):
    graph, theta, _ = model
    state = min(state, int(graph.n_states[0]) - 1)
    result = pt.Exact().infer(graph, theta, observed={0: state})
    assert result.value == pytest.approx(reference.log_partition(graph, theta, {0: state}), abs=1e-9)
    as_array = np.full(graph.n_variables, -1)
    as_array[0] = state
    np.testing.assert_array_equal(
        pt.TRW().infer(graph, theta, observed=as_array).variable_marginals[0] > 0,
        np.arange(graph.n_states.max()) == state,
    )

"""Tables of pairs given by weights: the same as the tables written out, in every method, schedule and gradient."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import potentia as pt
import reference as ref
from potentia.graph.scores import Scores
from potentia.inference.pair_engine import PairEngine
from potentia.inference.weight_engine import suits_weights
from potentia.testing import check_potential

pytestmark = pytest.mark.filterwarnings("ignore::potentia.ConvergenceWarning")

RNG = np.random.default_rng(7)
LABELS = 5


def written(value: pt.Potts, n: int, states: int) -> np.ndarray:
    """The tables of n pairs, by the definitions."""
    a, b = np.indices((states, states))
    apart = np.abs(a - b)
    if isinstance(value, pt.TruncatedQuadratic):
        unit = -np.minimum(apart**2, value.cut)
    elif isinstance(value, pt.TruncatedLinear):
        unit = -np.minimum(apart, value.cut)
    elif isinstance(value, pt.Potts):
        unit = -(apart > 0).astype(float)
    else:
        unit = np.asarray(value.table)
    return np.broadcast_to(value.weight, (n,))[:, None, None] * unit


def values(n: int, states: int = LABELS, low: float = 0.0) -> dict[str, object]:
    """One of each sort, with one weight and with one per pair."""
    rng = np.random.default_rng(3)
    weight = rng.uniform(low, 1.5, n)
    return {
        "potts": pt.Potts(0.7),
        "potts_each": pt.Potts(weight),
        "linear": pt.TruncatedLinear(weight, 1.5),
        "linear_far": pt.TruncatedLinear(weight / 4, 9),
        "linear_whole": pt.TruncatedLinear(0.4),
        "quadratic": pt.TruncatedQuadratic(weight, 5.0),
        "scaled": pt.Scaled(rng.standard_normal((states, states)), weight),
        "scaled_one": pt.Scaled(rng.standard_normal((states, states)), 0.5),
    }


def grid(states: int = LABELS, shape: tuple[int, int] = (4, 5)) -> pt.Graph:
    return pt.Graph.grid(shape, n_states=states)


def nodes(graph: pt.Graph, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((graph.n_variables, int(graph.n_states.max())))


METHODS = {
    "trw": pt.TRW(iterations=12, tol=0),
    "trw_sequential": pt.TRW(iterations=6, tol=0, schedule="sequential"),
    "trw_random": pt.TRW(iterations=6, tol=0, schedule="random"),
    "trw_residual": pt.TRW(iterations=6, tol=0, schedule="residual"),
    "bp": pt.LoopyBP(iterations=8, tol=0),
    "bp_damped": pt.LoopyBP(iterations=8, tol=0, damping=0.4),
    "smoothed": pt.Smoothed(0.3, iterations=8, tol=0),
    "maximum": pt.Smoothed(0.0, iterations=8, tol=0),
    "maximum_damped": pt.Smoothed(0.0, iterations=8, tol=0, damping=0.3),
    "mean_field": pt.MeanField(iterations=6, tol=0),
    "mean_field_sequential": pt.MeanField(iterations=6, tol=0, schedule="sequential"),
    "kikuchi": pt.Kikuchi(iterations=8, tol=0),
}


def assert_same(found: pt.Result, expected: pt.Result, tol: float = 1e-12) -> None:
    assert found.value == pytest.approx(expected.value, rel=tol, abs=tol)
    assert np.abs(found.variable_marginals - expected.variable_marginals).max() <= tol
    for kind in expected.marginals:
        assert np.abs(np.asarray(found.marginals[kind]) - np.asarray(expected.marginals[kind])).max() <= tol
    assert found.residual == pytest.approx(expected.residual, rel=1e-6, abs=1e-10)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", list(values(1)))
def test_inference_is_that_of_the_tables_written_out(name: str, method: str) -> None:
    graph = grid()
    m = len(graph.scopes["edge"])
    value, node = values(m)[name], nodes(graph)
    node[3, 1:] = -np.inf
    node[7, :2] = -np.inf
    infer = METHODS[method].infer
    for observed in (None, {2: 1, 11: 4}):
        found = infer(graph, {"node": node, "edge": value}, observed)
        expected = infer(graph, {"node": node, "edge": written(value, m, LABELS)}, observed)
        assert_same(found, expected)
    labels = found.argmax()
    assert found.score(labels) == pytest.approx(expected.score(labels), rel=1e-12)
    assert found.score(labels) == pytest.approx(expected.score(expected.argmax()), rel=1e-9)


@pytest.mark.parametrize("name", list(values(1)))
def test_exact_methods_agree_with_enumeration(name: str) -> None:
    graph = grid(3, (2, 3))
    m = len(graph.scopes["edge"])
    value, node = values(m, 3)[name], nodes(graph)
    theta, tables = {"node": node, "edge": value}, {"node": node, "edge": written(value, m, 3)}
    exact = pt.Exact().infer(graph, theta)
    assert exact.value == pytest.approx(ref.log_partition(graph, tables), rel=1e-12)
    assert np.abs(exact.variable_marginals - ref.variable_marginals(graph, tables)).max() < 1e-12
    found = pt.MAP(exact_search=False).infer(graph, theta)
    assert found.bound == "exact"
    assert found.score(found.argmax()) == pytest.approx(ref.max_score(graph, tables), rel=1e-12)
    lp = pt.LinearProgram().infer(graph, theta)
    assert lp.value == pytest.approx(pt.LinearProgram().infer(graph, tables).value, rel=1e-9)
    chain = pt.Graph.chain(6, n_states=3)
    value = values(5, 3)[name]
    on_chain = {"node": nodes(chain), "edge": value}
    dense = {"node": nodes(chain), "edge": written(value, 5, 3)}
    assert pt.Exact().infer(chain, on_chain).value == pytest.approx(pt.Exact().infer(chain, dense).value)


@pytest.mark.parametrize("name", list(values(1)))
@pytest.mark.parametrize("method", ["trw", "trw_sequential", "bp", "bp_damped", "smoothed", "mean_field"])
def test_gradients_are_those_of_the_tables_contracted(name: str, method: str) -> None:
    graph = grid()
    m = len(graph.scopes["edge"])
    value, node = values(m)[name], nodes(graph)
    node[3, 2] = -np.inf
    y = np.random.default_rng(1).integers(0, LABELS, graph.n_variables)
    y[3], y[8] = 0, -1
    unit = written(value.with_weight(1.0), 1, LABELS)[0]
    for loss, gradient in product(("univariate_logistic", "clique_logistic"), ("truncated", "backpropagation")):
        settled = replace(METHODS[method], iterations=300)
        args = (loss, settled if gradient == "backpropagation" else METHODS[method], graph)
        got, d_got = pt.loss_and_gradient(*args, {"node": node, "edge": value}, y, gradient=gradient)
        tables = {"node": node, "edge": written(value, m, LABELS)}
        want, d_want = pt.loss_and_gradient(*args, tables, y, gradient=gradient)
        assert got == pytest.approx(want, rel=1e-12)
        assert np.abs(d_got["node"] - d_want["node"]).max() < 1e-9
        slope = (d_want["edge"] * unit).sum(axis=(1, 2))
        shape = np.shape(value.weight)
        assert np.shape(d_got["edge"]) == shape
        assert np.abs(d_got["edge"] - (slope.sum() if shape == () else slope)).max() < 1e-9


@pytest.mark.parametrize(
    "loss", ["surrogate_likelihood", "pseudolikelihood", "piecewise", "saddle_point", "truncated_likelihood"]
)
def test_every_loss_differentiates_weights(loss: str) -> None:
    graph = grid(3, (2, 3))
    m = len(graph.scopes["edge"])
    y, node = np.array([0, 1, 2, 0, 0, 1]), nodes(graph)
    for value in values(m, 3, low=0.2).values():
        weight = np.asarray(value.weight, float)
        way = np.random.default_rng(2).standard_normal(weight.shape)
        method = pt.TRW(iterations=300, tol=1e-13)

        def at(step: float, value=value, weight=weight, way=way, method=method) -> float:
            theta = {"node": node, "edge": value.with_weight(weight + step * way)}
            return pt.loss_and_gradient(loss, method, graph, theta, y)[0]

        _, slope = pt.loss_and_gradient(loss, method, graph, {"node": node, "edge": value}, y)
        expected = (at(1e-5) - at(-1e-5)) / 2e-5
        assert float((slope["edge"] * way).sum()) == pytest.approx(expected, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("gradient", ["perturbation", "implicit"])
def test_gradients_at_a_fixed_point(gradient: str) -> None:
    graph = grid(3, (3, 3))
    m = len(graph.scopes["edge"])
    y, method = np.arange(9) % 3, pt.TRW(iterations=2000, tol=1e-12)
    for name in ("potts_each", "linear_far", "quadratic", "scaled"):
        theta = {"node": nodes(graph), "edge": values(m, 3)[name]}
        _, slope = pt.loss_and_gradient("univariate_logistic", method, graph, theta, y, gradient=gradient)
        _, exact = pt.loss_and_gradient("univariate_logistic", method, graph, theta, y)
        assert np.abs(slope["edge"] - exact["edge"]).max() < 1e-5


def test_which_problems_take_the_quick_messages() -> None:
    graph = grid()
    m = len(graph.scopes["edge"])
    method = pt.TRW()

    def quick(value: object, on: pt.Graph = graph) -> bool:
        return suits_weights(Scores(on, {"edge": value}), method.entropy(on), "colours")

    for value in (pt.Potts(1.0), pt.TruncatedLinear(np.full(m, 0.1), 3), pt.TruncatedQuadratic(0.0, 2)):
        assert quick(value)
    for value in (pt.Potts(-0.1), pt.Potts(1e4), pt.Scaled(np.eye(LABELS), 1.0), np.zeros((LABELS, LABELS))):
        assert not quick(value)
    assert not quick(pt.Potts(1.0), grid(2))


@pytest.mark.parametrize("weight", [-0.6, 500.0])
def test_negative_and_steep_weights_are_written_out(weight: float) -> None:
    graph = grid(4, (3, 4))
    m, node = len(graph.scopes["edge"]), nodes(grid(4, (3, 4)))
    for value in (pt.Potts(weight), pt.TruncatedLinear(np.full(m, weight), 2), pt.TruncatedQuadratic(weight, 3)):
        for method in (pt.TRW(iterations=10), pt.Smoothed(0.0, iterations=10), pt.MeanField(iterations=5)):
            found = method.infer(graph, {"node": node, "edge": value})
            assert_same(found, method.infer(graph, {"node": node, "edge": written(value, m, 4)}), 1e-10)


def test_beside_dense_kinds_and_larger_regions() -> None:
    rng = np.random.default_rng(5)
    index = np.arange(12)[:, None]
    across, down = [[i, i + 1] for i in range(11)], [[i, i + 4] for i in range(8)]
    far = [[0, 11], [1, 7]]
    regions = {"node": index, "across": across, "down": down, "far": far}
    node = rng.standard_normal((12, 4))
    y = rng.integers(0, 4, 12)
    for triple in (False, True):
        graph = pt.Graph([4] * 12, {**regions, **({"triple": [[0, 5, 9]]} if triple else {})})
        theta = {
            "node": node,
            "across": pt.Potts(rng.uniform(0, 1, 11)),
            "down": rng.standard_normal((8, 4, 4)),
            "far": pt.TruncatedLinear(0.3, 2),
        }
        same = {**theta, "across": written(theta["across"], 11, 4), "far": written(theta["far"], 2, 4)}
        for method in (pt.TRW(iterations=9, tol=0), pt.MeanField(iterations=5, tol=0), pt.Smoothed(0.2, iterations=5)):
            assert_same(method.infer(graph, theta), method.infer(graph, same))
            _, got = pt.loss_and_gradient("univariate_logistic", method, graph, theta, y)
            _, want = pt.loss_and_gradient("univariate_logistic", method, graph, same, y)
            for kind in ("node", "down"):
                assert np.abs(got[kind] - want[kind]).max() < 1e-11
            unit = written(pt.Potts(1.0), 1, 4)[0]
            assert np.abs(got["across"] - (want["across"] * unit).sum(axis=(1, 2))).max() < 1e-11
    both = {"node": node, "across": pt.Potts(0.4), "down": pt.Potts(rng.uniform(0, 1, 8)), "far": pt.Potts(0.0)}
    graph = pt.Graph([4] * 12, regions)
    dense = {k: v if k == "node" else written(v, len(regions[k]), 4) for k, v in both.items()}
    assert_same(pt.TRW(iterations=9, tol=0).infer(graph, both), pt.TRW(iterations=9, tol=0).infer(graph, dense))
    _, got = pt.loss_and_gradient("univariate_logistic", pt.TRW(iterations=4), graph, both, y)
    _, want = pt.loss_and_gradient("univariate_logistic", pt.TRW(iterations=4), graph, dense, y)
    assert got["across"] == pytest.approx((want["across"] * unit).sum())
    assert np.allclose(got["down"], (want["down"] * unit).sum(axis=(1, 2)))


def test_unions_join_weights_or_write_them_out() -> None:
    parts = [grid(3, (2, 3)), grid(3, (3, 3))]
    union = pt.extend.Union(parts)
    node = [nodes(g, k) for k, g in enumerate(parts)]
    counts = [len(g.scopes["edge"]) for g in parts]
    given = [pt.Potts(0.4), pt.Potts(np.linspace(0, 1, counts[1]))]
    joined = union.join([{"node": n, "edge": v} for n, v in zip(node, given, strict=True)])
    assert isinstance(joined["edge"], pt.Potts)
    mixed = union.join(
        [{"node": n, "edge": v} for n, v in zip(node, [given[0], pt.TruncatedLinear(0.2, 2)], strict=True)]
    )
    assert isinstance(mixed["edge"], np.ndarray)
    together = pt.TRW(iterations=20, tol=0).infer(union.graph, joined)
    apart = [
        pt.TRW(iterations=20, tol=0).infer(g, {"node": n, "edge": v})
        for g, n, v in zip(parts, node, given, strict=True)
    ]
    assert together.value == pytest.approx(sum(r.value for r in apart), rel=1e-12)


def test_weights_in_single_precision_and_many_labels() -> None:
    graph = grid(40, (5, 6))
    m, node = len(graph.scopes["edge"]), nodes(grid(40, (5, 6))).astype(np.float32)
    weight = np.random.default_rng(0).uniform(0, 0.2, m).astype(np.float32)
    for value in (pt.TruncatedLinear(weight, 12), pt.TruncatedLinear(weight), pt.TruncatedQuadratic(weight, 30.0)):
        for method in (
            pt.TRW(iterations=10, tol=0),
            pt.Smoothed(0.0, iterations=10, tol=0),
            pt.MeanField(iterations=4),
        ):
            found = method.infer(graph, {"node": node, "edge": value})
            assert_same(found, method.infer(graph, {"node": node, "edge": written(value, m, 40)}), 1e-11)


def test_a_warm_start_and_threads_change_nothing() -> None:
    graph = grid(6, (12, 14))
    theta = {"node": nodes(graph), "edge": pt.Potts(0.8)}
    whole = pt.TRW(iterations=30, tol=0, threads=1).infer(graph, theta)
    half = pt.TRW(iterations=15, tol=0, threads=2).infer(graph, theta)
    assert_same(pt.TRW(iterations=15, tol=0, threads=2).infer(graph, theta, start=half), whole, 1e-10)


def test_messages_that_oscillate_are_damped_alike() -> None:
    graph = pt.Graph.complete(9, n_states=4)
    m, node = len(graph.scopes["edge"]), 2.0 * nodes(pt.Graph.complete(9, n_states=4))
    value = pt.TruncatedLinear(1.5, 2)
    method = pt.LoopyBP(iterations=60)
    found = method.infer(graph, {"node": node, "edge": value})
    expected = method.infer(graph, {"node": node, "edge": written(value, m, 4)})
    assert found.iterations == expected.iterations
    assert np.abs(found.variable_marginals - expected.variable_marginals).max() < 1e-6


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (pt.Potts(), "without a weight"),
        (pt.Potts(np.ones(3)), "one per pair"),
        (pt.Potts("much"), "not an array of numbers"),
        (pt.Potts(np.nan), "NaN"),
        (pt.TruncatedLinear(1.0, -1), "cut must be"),
        (pt.TruncatedLinear(1.0, "far"), "cut must be"),
        (pt.Scaled(np.eye(2), 1.0), "expected"),
        (pt.Scaled(np.full((5, 5), -np.inf), 1.0), "finite"),
    ],
)
def test_refusals(value: object, words: str) -> None:
    graph = grid()
    with pytest.raises(pt.PotentiaError, match=words):
        pt.TRW().infer(graph, {"edge": value})


def test_pairs_of_unequal_states_are_refused() -> None:
    graph = pt.Graph([2, 8, 3], {"node": [[0], [1], [2]], "edge": [[0, 1]]})
    for kind in ("edge", "node"):
        with pytest.raises(pt.PotentiaError, match="one number of states"):
            pt.TRW().infer(graph, {kind: pt.Potts(1.0)})


def examples(n: int = 6) -> list[pt.Example]:
    """Small images of three classes in patches, with pair features: a constant and the contrast."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(n):
        graph = grid(3, (6, 6))
        rows, columns = np.indices((6, 6))
        y = ((rows // 3 + columns // 3 + rng.integers(3)) % 3).ravel()
        x = np.eye(3)[y] + 0.8 * rng.standard_normal((36, 3))
        i, j = graph.scopes["edge"].T
        contrast = np.abs(x[i] - x[j]).sum(axis=1, keepdims=True)
        found.append(pt.Example(graph, {"node": x, "edge": contrast}, labels=y))
    return found


POTENTIALS = {
    "potts": pt.Potts,
    "linear": lambda: pt.TruncatedLinear(cut=2),
    "quadratic": lambda: pt.TruncatedQuadratic(cut=3.5),
    "scaled": lambda: pt.Scaled(np.eye(3)),
}


@pytest.mark.parametrize("name", POTENTIALS)
def test_potentials_keep_the_contract(name: str) -> None:
    make = POTENTIALS[name] if name != "scaled" else lambda: pt.Scaled(np.eye(2))
    check_potential(make, n_outputs=4)


@pytest.mark.parametrize("name", POTENTIALS)
@pytest.mark.parametrize(
    "learner",
    [
        pt.IteratedLogistic(epsilon=0.2, iterations=15),
        pt.MarginalRisk("univariate_logistic", inference=pt.TRW(iterations=8), iterations=15, ridge=1e-3),
        pt.MarginalRisk("surrogate_likelihood", inference=pt.TRW(iterations=30), iterations=10),
    ],
    ids=["iterated", "risk", "likelihood"],
)
def test_learning_a_few_weights(tmp_path, name: str, learner: pt.extend.Learner) -> None:
    data = examples()
    alone = pt.CRF({"node": pt.Linear(), "edge": pt.Zero()}, learner=learner).fit(data[:4])
    crf = pt.CRF({"node": pt.Linear(), "edge": POTENTIALS[name]()}, learner=learner).fit(data[:4])
    assert crf.potentials_["edge"].n_parameters == 2
    assert crf.history_[-1]["objective"] < alone.history_[-1]["objective"]
    crf.save(tmp_path / "model")
    loaded = pt.load(tmp_path / "model")
    for ours, theirs in zip(crf.predict(data), loaded.predict(data), strict=True):
        assert np.array_equal(ours, theirs)
    dense = crf.theta(data[0])
    assert np.allclose(
        crf.inference_.infer(data[0].graph, dense).variable_marginals, crf.infer(data[0]).variable_marginals
    )


def test_without_features_one_weight_is_learned() -> None:
    data = [pt.Example(e.graph, {"node": e.features["node"]}, labels=e.labels) for e in examples()]
    learner = pt.MarginalRisk("univariate_logistic", inference=pt.TRW(iterations=8), iterations=20)
    crf = pt.CRF({"node": pt.Linear(), "edge": pt.Potts()}, learner=learner).fit(data)
    assert crf.potentials_["edge"].table_[-1, 0] > 0.1


def test_the_risk_is_that_of_a_table_tied_by_hand() -> None:
    data = examples(2)
    method = pt.TRW(iterations=8, tol=0)
    learner = pt.MarginalRisk("univariate_logistic", inference=method, iterations=3, ridge=0.0)
    crf = pt.CRF({"node": pt.Linear(), "edge": pt.Potts()}, learner=learner).fit(data)
    value = 0.0
    for example in data:
        value += pt.loss_and_gradient("univariate_logistic", method, example.graph, crf.theta(example), example.labels)[
            0
        ]
    assert crf.history_[-1]["objective"] == pytest.approx(value / 72, rel=1e-9)


def test_potentials_refuse_weights_and_other_tables() -> None:
    data = examples(2)
    learner = pt.IteratedLogistic(epsilon=0.2, iterations=2)
    with pytest.raises(pt.PotentiaError, match="learns its weight"):
        pt.CRF({"node": pt.Linear(), "edge": pt.Potts(1.0)}, learner=learner).fit(data)
    example = pt.Example(pt.Graph([2, 8], {"edge": [[0, 1]]}), {}, labels=[0, 3])
    for method in (learner, pt.MarginalRisk("univariate_logistic", iterations=2)):
        with pytest.raises(pt.PotentiaError, match="one number of states"):
            pt.CRF({"edge": pt.Potts()}, learner=method).fit([example])
    with pytest.raises(pt.PotentiaError, match="linear in its parameters"):
        pt.CRF({"node": pt.Linear(), "edge": pt.Potts()}, learner=pt.MaxMargin(iterations=2)).fit(data)


def test_bounds_schedules_and_diverse_labellings_are_those_of_the_tables_written_out():
    rng = np.random.default_rng(0)
    graph = pt.Graph.grid((3, 4), n_states=3)
    node, weight = rng.normal(size=(12, 3)), rng.uniform(0.2, 1.0, len(graph.scopes["edge"]))
    node[2, 1] = -np.inf
    distance = np.abs(np.subtract.outer(np.arange(3), np.arange(3)))
    short = {"node": node, "edge": pt.TruncatedLinear(weight, 1.5)}
    written = {"node": node, "edge": -weight[:, None, None] * np.minimum(distance, 1.5)}
    log_z = pt.Exact().infer(graph, written).value
    for method in (pt.TRW(iterations=2, tol=0), pt.TRW(iterations=300, optimise_rho=True)):
        bound = method.infer(graph, short).upper_bound()
        assert bound == pytest.approx(method.infer(graph, written).upper_bound(), rel=1e-12)
        assert bound >= log_z
    residual = pt.TRW(iterations=300, schedule="residual")
    np.testing.assert_allclose(
        residual.infer(graph, short).variable_marginals, residual.infer(graph, written).variable_marginals, atol=1e-12
    )
    one, other = (pt.MAP(exact_search=False).diverse(graph, theta, 3) for theta in (short, written))
    np.testing.assert_array_equal(one.labels, other.labels)
    np.testing.assert_allclose(one.scores, other.scores, atol=1e-12)


def smooth(rows, columns, n_states: int):
    """Labels that rise from one corner to the other."""
    return ((rows + columns) * n_states // (sum(rows.shape))).ravel()


def labelled_grids(n_states: int, labels=smooth, n: int = 3, shape=(10, 12)) -> list[pt.Example]:
    """Images with noisy features, and a feature of pairs that says nothing."""
    rng = np.random.default_rng(n_states)
    found = []
    for _ in range(n):
        graph = grid(n_states, shape)
        rows, columns = np.indices(shape)
        y = labels(rows, columns, n_states)
        x = np.eye(n_states)[y] + 0.8 * rng.standard_normal((len(y), n_states))
        strength = rng.random((len(graph.scopes["edge"]), 1))
        found.append(pt.Example(graph, {"node": x, "edge": strength}, labels=y))
    return found


class _Written(pt.Scaled):
    """The same table, learned by its weight, that messages read as L x L numbers."""

    by_weight = False
    theta_values, as_theta = pt.extend.Potential.theta_values, pt.extend.Potential.as_theta


WEIGHTED = {
    "potts": pt.Potts(),
    "linear": pt.TruncatedLinear(cut=2),
    "long linear": pt.TruncatedLinear(cut=8),
    "quadratic": pt.TruncatedQuadratic(cut=6.0),
}


@pytest.mark.parametrize(("solver", "hidden"), [("direct", "drop"), ("alternating", "drop"), ("alternating", "soft")])
@pytest.mark.parametrize("name", WEIGHTED)
def test_iterated_logistic_passes_messages_by_weights(name: str, solver: str, hidden: str, monkeypatch) -> None:
    """No L x L table is built for message passing, and the fit is that of written-out tables."""
    states, potential = 12, WEIGHTED[name]
    data = labelled_grids(states)
    if hidden == "soft":
        numbers = np.arange(120)
        data = [pt.Example(e.graph, e.features, np.where(numbers % 7, e.labels, -1)) for e in data]
    made = count_engines(monkeypatch)
    learner = pt.IteratedLogistic(epsilon=0.5, iterations=6, solver=solver, tol=0.0, hidden=hidden)
    ours = pt.CRF({"node": pt.Linear(), "edge": potential}, learner=learner).fit(data)
    # a line search may try a negative weight, which takes written tables
    assert {kind for kind, _, negative in made if not negative} == {"WeightEngine"}
    assert all(entries < states**2 for _, entries, negative in made if not negative)
    made.clear()
    written = _Written(potential.base_table(states))
    theirs = pt.CRF({"node": pt.Linear(), "edge": written}, learner=learner).fit(data)
    assert {kind for kind, _, _ in made} == {"PairEngine"}
    assert ours.history_[-1]["objective"] == pytest.approx(theirs.history_[-1]["objective"], rel=1e-9)
    for a, b in zip(ours.predict_marginals(data), theirs.predict_marginals(data), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def count_engines(monkeypatch) -> list[tuple[str, int, bool]]:
    """Takes up each engine of pairs: its kind, how many numbers a pair's table takes, if a weight is negative."""
    made, init = [], PairEngine.__init__

    def counted(engine, *args, **options) -> None:
        init(engine, *args, **options)
        entries = engine.blocks.table.size // max(engine.layout.pair.size, 1)
        negative = any(own.weight.min() < 0 for own in engine.scores.weighted.values())
        made.append((type(engine).__name__, entries, negative))

    monkeypatch.setattr(PairEngine, "__init__", counted)
    return made


def test_negative_weights_are_learned_on_written_tables(monkeypatch) -> None:
    # labels that avoid those of their neighbours
    data = labelled_grids(5, lambda rows, columns, n: ((rows + 2 * columns) % n).ravel())
    made = count_engines(monkeypatch)
    learner = pt.IteratedLogistic(epsilon=0.5, iterations=8, tol=0.0)
    ours = pt.CRF({"node": pt.Linear(), "edge": pt.Potts()}, learner=learner).fit(data)
    assert {kind for kind, _, negative in made if negative} == {"PairEngine"}
    assert ours.theta(data[0])["edge"][:, 0, 1].min() > 0
    written = _Written(pt.Potts().base_table(5))
    theirs = pt.CRF({"node": pt.Linear(), "edge": written}, learner=learner).fit(data)
    assert ours.history_[-1]["objective"] == pytest.approx(theirs.history_[-1]["objective"], rel=1e-9)

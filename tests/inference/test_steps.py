"""Several iterations in one call of a kernel: the results of iterations one by one."""

from dataclasses import replace

import numpy as np
import pytest

import potentia as pt
import zoo
from potentia.base import resources as _threads
from potentia.inference import pair_engine
from potentia.inference.engine import _likely_left
from sweep_counter import counted_updates


@pytest.fixture(autouse=True)
def teams(monkeypatch):
    """Teams and shared products even on small graphs, in narrow blocks."""
    monkeypatch.setattr("potentia.graph.layout._LANES", (8,))
    monkeypatch.setattr(pair_engine, "_SHARED_FROM", 1)
    monkeypatch.setattr(pair_engine, "_HAND_OVER", 1)
    monkeypatch.setattr(pair_engine, "_WAIT", 1)
    monkeypatch.setattr(_threads._Crowding, "LOST", 1.0)  # whatever else runs


def _models():
    rng = np.random.default_rng(0)
    for states in (2, 3):
        graph = pt.Graph.grid((24, 9), n_states=states)
        yield f"{states} states", graph, zoo.scores(graph, rng)
    graph = pt.Graph.grid((20, 9), n_states=3, neighbours=8)
    yield "eight neighbours", graph, zoo.scores(graph, rng)
    graph = pt.Graph.grid((24, 9), n_states=9)
    single = {kind: table.astype(np.float32) for kind, table in zoo.scores(graph, rng).items()}
    yield "float32", graph, single
    pairs = graph.scopes["edge"]
    graph = pt.Graph(graph.n_states, {**graph.scopes, "edge": pairs[::2], "other": pairs[1::2]})
    shared = {kind: rng.normal(size=(9, 9)) for kind in ("edge", "other")}
    yield "a table for each kind", graph, {"node": single["node"], **shared}
    n = 200
    far = rng.integers(1, 6, size=400)
    first = rng.integers(n - 6, size=400)
    pairs = np.unique(np.stack([first, first + far], axis=1), axis=0)
    graph = pt.Graph(rng.integers(2, 4, size=n), {"node": np.arange(n)[:, None], "edge": pairs})
    yield "irregular", graph, zoo.scores(graph, rng)
    forbidden = zoo.scores(graph, rng)
    for table in forbidden["edge"][::7]:
        table[0, 1] = -np.inf
    yield "forbidden", graph, forbidden


MODELS = {name: (graph, theta) for name, graph, theta in _models()}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("method", [pt.TRW(iterations=12, tol=0), pt.LoopyBP(iterations=9, tol=0, damping=0.2)])
@pytest.mark.parametrize("model", MODELS)
def test_results_and_gradients_are_those_of_iterations_one_by_one(model, method, threads, monkeypatch):
    graph, theta = MODELS[model]
    y = np.zeros(graph.n_variables, dtype=int)

    def found(method):
        result = method.infer(graph, theta)
        value, tables = pt.loss_and_gradient("univariate_logistic", method, graph, theta, y)
        gradient = [np.concatenate([t.ravel() for t in table]) for table in tables.values()]
        return result.residual, value, result.variable_marginals, result.messages, *gradient

    together = found(replace(method, threads=threads))
    monkeypatch.setattr(pair_engine, "_CALL_WORK", 1)  # one iteration in a call
    for a, b in zip(together, found(replace(method, threads=1)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("method", [pt.TRW, pt.LoopyBP])
def test_a_tolerance_is_met_in_the_iteration_in_which_it_would_be_one_by_one(method, seed, monkeypatch):
    rng = np.random.default_rng(seed)
    graph = pt.Graph.grid((9, 12), n_states=3)
    theta = {kind: (0.5 + 0.2 * seed) * table for kind, table in zoo.scores(graph, rng).items()}
    calls = counted_updates(monkeypatch)
    some = method(iterations=200, threads=1).infer(graph, theta)
    n_together = len(calls)
    calls.clear()
    monkeypatch.setattr(pair_engine, "_CALL_WORK", 1)  # one iteration in a call
    one_by_one = method(iterations=200, threads=1).infer(graph, theta)
    assert (some.iterations, some.residual) == (one_by_one.iterations, one_by_one.residual)
    assert some.converged
    np.testing.assert_array_equal(some.messages, one_by_one.messages)
    assert n_together < len(calls) or some.iterations < 12


def test_how_many_iterations_are_left_is_judged_with_caution():
    falling = [0.5**k for k in range(10)]
    assert _likely_left(falling, 1e-4) == int(0.7 * np.log2(1e4 * 0.5**9))
    assert _likely_left(falling, 1e-6) == 3  # a third of those that were looked at
    assert _likely_left(falling, 0.5**9) == 1
    assert _likely_left(falling[:3], 1e-6) == 1
    assert _likely_left([np.inf, 1.0, 0.5, 0.25], 1e-6) == 1
    assert _likely_left([1.0, 0.1, 0.9, 0.09], 1e-6) == 1  # not steady
    assert _likely_left([1.0, 0.99, 0.98, 0.97], 1e-6) == 1
    assert _likely_left([1.0, 0.5, 0.25, 0.0], 1e-6) == 1
    assert _likely_left([1.0, 0.0, 0.5, 0.25], 1e-6) == 1  # a change of nothing, in the midst of a call
    assert _likely_left(falling, 0.0) == 1

"""Threads that update one graph together: the same bits as one thread, and no thread that waits for ever."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

import potentia as pt
import zoo
from potentia.base import resources as _threads
from potentia.base.resources import PIECES, cut_ranges, piece_of, run_team
from potentia.graph.scores import Scores
from potentia.inference import pair_engine
from potentia.inference.engine import run_lists, unit_lists
from potentia.kernels.machine.team import BARRIER, gather, release


@pytest.fixture(autouse=True)
def small_shares(monkeypatch):
    """Teams even for small graphs."""
    monkeypatch.setattr(pair_engine, "_HAND_OVER", 1)
    monkeypatch.setattr(pair_engine, "_WAIT", 1)
    monkeypatch.setattr(_threads._Crowding, "LOST", 1.0)  # whatever else runs


def _models():
    """Graphs and scores for every kernel: two states, products, logarithms, shared tables, weights, several groups."""
    rng = np.random.default_rng(0)
    for states in (2, 3, 9):
        graph = pt.Graph.grid((16, 16), n_states=states)
        yield f"{states} states", graph, zoo.scores(graph, rng)
    graph = pt.Graph.grid((16, 16), n_states=3)
    node = rng.normal(size=(256, 3))
    yield "one table", graph, {"node": node, "edge": rng.normal(size=(3, 3))}
    yield "Potts", graph, {"node": node, "edge": pt.Potts(rng.random(len(graph.scopes["edge"])))}
    edge = rng.normal(size=(len(graph.scopes["edge"]), 3, 3))
    edge[::7, 0, 1] = -np.inf
    yield "forbidden", graph, {"node": node, "edge": edge}
    n = 120
    pairs = np.unique(np.sort(rng.integers(n, size=(240, 2)), axis=1), axis=0)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    graph = pt.Graph(rng.integers(2, 5, size=n), {"node": np.arange(n)[:, None], "edge": pairs})
    yield "irregular", graph, zoo.scores(graph, rng)


MODELS = {name: (graph, theta) for name, graph, theta in _models()}
METHODS = {
    "TRW": pt.TRW(iterations=5, tol=0),
    "to a tolerance": pt.TRW(iterations=15, tol=1e-3),
    "Smoothed": pt.Smoothed(0.3, iterations=4, tol=0),
    "damped": pt.LoopyBP(iterations=4, tol=0, damping=0.3),
    "maximum": pt.Smoothed(0.0, iterations=4, tol=0),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", MODELS)
def test_a_team_has_the_bits_of_one_thread(model, method):
    _compare(METHODS[method], model, threads=2)


@pytest.mark.parametrize("model", ["3 states", "9 states", "irregular"])
def test_a_team_that_shares_products(model, monkeypatch):
    monkeypatch.setattr(pair_engine, "_SHARED_FROM", 1)
    _compare(METHODS["TRW"], model, threads=3)


def _compare(method, model, threads):
    one, other = (replace(method, threads=n).infer(*MODELS[model]) for n in (1, threads))
    np.testing.assert_array_equal(other.variable_marginals, one.variable_marginals)
    np.testing.assert_array_equal(other.messages, one.messages)
    assert (other.iterations, other.residual) == (one.iterations, one.residual)
    assert other.value == pytest.approx(one.value, rel=1e-12)


@pytest.mark.parametrize(("gradient", "iterations"), [("truncated", 12), ("backpropagation", 200)])
@pytest.mark.parametrize("model", MODELS)
def test_gradients_of_a_team(model, gradient, iterations):
    graph, theta = MODELS[model]
    y = np.zeros(graph.n_variables, dtype=int)
    (value, one), *more = (
        pt.loss_and_gradient(
            "univariate_logistic", pt.TRW(iterations=iterations, threads=threads), graph, theta, y, gradient=gradient
        )
        for threads in (1, 2)
    )
    for other_value, other in more:
        assert other_value == value
        for kind in one:
            for a, b in zip(one[kind], other[kind], strict=True):
                np.testing.assert_array_equal(a, b)


def test_every_unit_is_updated_once_per_iteration_by_one_thread(monkeypatch):
    monkeypatch.setattr("potentia.inference.engine.teams_pay", lambda: True)
    monkeypatch.setattr("potentia.inference.engine.TEAMS", True)
    graph, theta = MODELS["3 states"]
    engine = pt.TRW(threads=3).engine(Scores(graph, theta))
    (lists,) = unit_lists(engine, 0, many=4)
    assert len(lists) == 3
    n, groups = int(engine.group_ptr[-1]), len(engine.group_ptr) - 1
    group = np.searchsorted(engine.group_ptr, np.arange(n), "right") - 1
    for units in lists:
        assert int((units == BARRIER).sum()) == groups
        # what comes before the k-th barrier is of the k-th group
        np.testing.assert_array_equal(group[units[units >= 0]], np.cumsum(units == BARRIER)[units >= 0])
    units = np.concatenate(lists)
    assert sorted(units[units != BARRIER]) == list(range(n))


def test_a_thread_that_fails_releases_the_others():
    lists = [np.array([0, BARRIER]), np.array([1, BARRIER])]
    graph, theta = MODELS["3 states"]
    engine = pt.TRW(threads=2).engine(Scores(graph, theta))

    def fail(units, team):
        if units[0] == 1:
            raise RuntimeError("lost")
        engine.sweep(units, team=team)

    with pytest.raises(RuntimeError, match="lost"):
        run_lists(lists, fail)
    with pytest.raises(RuntimeError, match="lost"):  # in the calling thread
        run_lists(lists[::-1], fail)
    assert _threads._team_pool().submit(int).result(timeout=60) == 0
    deadline = time.monotonic() + 60
    while _threads._team_pool()._idle_semaphore._value < len(_threads._team_pool()._threads):
        assert time.monotonic() < deadline, "a thread still waits"
        time.sleep(0.01)


def test_release_of_a_team_that_never_waited():
    team = gather(4)
    assert run_team(lambda k: k + 1, range(4), lambda: release(team)) == [1, 2, 3, 4]
    assert team.arrivals[0] == 0


def test_teams_of_several_callers_at_once():
    graph, theta = MODELS["9 states"]
    method = pt.TRW(iterations=5, tol=0, threads=3)
    want = method.infer(graph, theta).variable_marginals
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: method.infer(graph, theta).variable_marginals, range(8)):
            np.testing.assert_array_equal(found, want)


_FORK = """
import os, numpy as np, potentia as pt
from potentia.inference import pair_engine
pair_engine._HAND_OVER = pair_engine._WAIT = 1
graph = pt.Graph.grid((16, 16), n_states=2)
theta = {"node": np.random.default_rng(0).normal(size=(256, 2)), "edge": np.eye(2)}
infer = lambda: pt.TRW(iterations=10, tol=0, threads=3).infer(graph, theta).value
want = infer()
child = os.fork()
if child == 0:
    os._exit(0 if infer() == want else 1)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_forked_process_has_teams_of_its_own():
    subprocess.run([sys.executable, "-W", "ignore::DeprecationWarning", "-c", _FORK], check=True, timeout=120)


_LATER = """
import sys, potentia
from potentia.base.resources import one_blas_thread
from threadpoolctl import threadpool_info, threadpool_limits
with one_blas_thread():
    assert "scipy.special" not in sys.modules
import scipy.linalg
with threadpool_limits(2, user_api="blas"), one_blas_thread():
    print({library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"})
"""


def test_linear_algebra_that_is_loaded_late_keeps_to_one_thread_too():
    done = subprocess.run([sys.executable, "-c", _LATER], capture_output=True, text=True, check=True)
    assert done.stdout == "{1}\n"


@pytest.mark.parametrize("n", [0, 1, 5, 63, 64, 65, 1000])
def test_ranges_are_cut_between_pieces(n):
    piece = piece_of(n)
    assert piece == sorted(piece)
    assert all(0 <= p < PIECES for p in piece)
    for threads in (1, 2, 3, 7, 64, 100):
        ranges = cut_ranges(10, 10 + n, threads)
        assert [k for a, b in ranges for k in range(a, b)] == list(range(10, 10 + n))
        held = [set(piece[a - 10 : b - 10]) for a, b in ranges]
        assert sum(map(len, held)) == len(set(piece))


def test_teams_pause_while_threads_have_no_cores(monkeypatch):
    monkeypatch.setattr(_threads._Crowding, "LOST", 0.2)
    crowding = _threads._Crowding()
    monkeypatch.setattr(_threads, "_crowding", crowding)
    assert _threads.teams_pay()
    crowding.judge(took=[1.0, 1.0], worked=[1.0, 0.9])
    assert _threads.teams_pay()
    crowding.judge(took=[1.0, 1.0], worked=[1.0, 0.2])
    assert not _threads.teams_pay()
    graph, theta = MODELS["3 states"]
    engine = pt.TRW(threads=3).engine(Scores(graph, theta))
    assert [len(lists) for lists in unit_lists(engine, 0, many=4)] == [1]
    first = crowding.until
    crowding.judge(took=[1.0, 1.0], worked=[0.1, 0.1])
    assert crowding.until > first + 0.2  # longer each time
    crowding.until = -np.inf
    assert _threads.teams_pay()

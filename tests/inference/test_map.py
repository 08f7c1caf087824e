"""MAP against brute force: bounds, proofs, feasibility, each part by itself, and what ends a search early."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

import potentia as pt
import reference as ref
from potentia.app.cli import main
from potentia.base.types import InfeasibleError, PotentiaError
from potentia.graph.scores import Scores, score_labels, trivial_bound
from potentia.inference.clock import Clock
from potentia.inference.decode import feasible_labelling
from potentia.inference.map import moves, portfolio
from potentia.inference.map.branch import branch
from potentia.inference.map.dual import ascend, dual
from potentia.inference.map.guided import guided_search
from potentia.inference.map.moves import (
    BlockMoves,
    Windows,
    choice_energies,
    least_energy,
    move_labels,
    roof_duality,
    solve_components,
)
from potentia.inference.map.task import SearchTask, penalty, reduce
from potentia.kernels.max_flow import max_flow
from potentia.kernels.trw_s import sweep
from zoo import Problem, problems, random_models, scores, zoo

#: Parts that a test may leave out, to see what the others do.
PARTS = (
    "_eliminate_narrow", "_eliminate_wide", "roof_duality", "_ascend",
    "_branch", "move_labels", "_local_search", "_repair", "_believe", "_guide",
)  # fmt: skip


def close(value: float) -> float:
    return 1e-9 * (1 + abs(value))


def check(problem: Problem, result: pt.extend.MAPResult) -> None:
    """What holds of every result."""
    best, labels = ref.max_score(*problem.model), result.argmax()
    score = result.score(labels)
    assert score <= best + close(best)
    assert result.value >= best - close(best)
    assert result.feasible == (score > -np.inf)
    assert result.gap >= 0
    if result.bound == "exact":
        assert score == pytest.approx(best, rel=1e-9, abs=1e-9)
        assert result.value == score
    if result.feasible:
        assert all(labels[i] == state for i, state in problem.observed.items())


def leave_out(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    for name in names:
        monkeypatch.setattr(portfolio, name, lambda *arguments: None)


def open_task(graph: pt.Graph, theta: dict, observed: dict | None = None) -> SearchTask:
    """A task after propagation."""
    task = SearchTask(Scores(graph, theta, observed), Clock(None, None), 0)
    task.restrict(task.scores.singles > -np.inf, "propagation")
    return task


def any_model(rng: np.random.Generator) -> Problem:
    """Orders 1 to 4, mixed states, shared and separate tables, forbidden entries, evidence."""
    n = int(rng.integers(2, 7))
    states = rng.integers(1, 4, n) if rng.random() < 0.5 else np.full(n, rng.integers(2, 4))
    regions = {"node": np.flatnonzero(rng.random(n) < 0.8)[:, None]}
    for order, chance, most in ((2, 0.9, 10), (3, 0.4, 4), (4, 0.3, 3)):
        if n >= order and rng.random() < chance:
            count = int(rng.integers(1, most))
            regions[f"clique{order}"] = np.array([rng.choice(n, order, replace=False) for _ in range(count)])
    graph, forbidden, whole = pt.Graph(states, regions), rng.choice([0, 0.2, 0.5]), rng.random() < 0.4

    def table(shape: tuple) -> np.ndarray:
        values = rng.integers(-2, 3, shape).astype(float) if whole else rng.normal(size=shape)
        values = np.where(rng.random(shape) < forbidden, -np.inf, values)
        values.flat[0] = max(values.flat[0], -3.0)
        return values

    theta: dict = {}
    for kind, rows in graph.scopes.items():
        one = graph.shared_shape(kind)
        if one is not None and rng.random() < 0.4:
            theta[kind] = table(one)
        else:
            tables = [table(tuple(graph.n_states[row])) for row in rows]
            theta[kind] = np.array(tables) if one is not None else tables
    observed = {int(i): 0 for i in range(n) if rng.random() < 0.1}
    return Problem("any", graph, theta, observed)


@pytest.mark.parametrize("problem", problems(), ids=str)
def test_every_small_problem_is_solved_and_proven(problem: Problem) -> None:
    result = pt.MAP().infer(*problem.model)
    check(problem, result)
    assert result.bound == "exact"
    assert result.converged


@pytest.mark.parametrize("problem", problems(feasible=False), ids=str)
def test_contradictions_are_refused(problem: Problem) -> None:
    with pytest.raises(InfeasibleError, match="every labelling is forbidden"):
        pt.MAP().infer(*problem.model)


@pytest.mark.filterwarnings("ignore:regions.*lists every pair")
@pytest.mark.parametrize("seed", range(120))
def test_random_models_with_parts_left_out(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    problem = any_model(rng)
    leave_out(monkeypatch, *(part for part in PARTS if rng.random() < 0.5))
    try:
        result = pt.MAP(exact_search=False).infer(*problem.model)
    except InfeasibleError:
        assert ref.max_score(*problem.model) == -np.inf
        return
    check(problem, result)


@pytest.mark.parametrize("seed", range(6))
def test_exact_search_proves_what_the_others_leave_open(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = any_model(np.random.default_rng(seed + 500))
    leave_out(monkeypatch, *PARTS)
    monkeypatch.setattr(portfolio, "_first_labelling", lambda task: None)
    try:
        result = pt.MAP().infer(*problem.model)
    except InfeasibleError:
        assert ref.max_score(*problem.model) == -np.inf
        return
    check(problem, result)
    assert result.bound == "exact" or not np.isfinite(ref.max_score(*problem.model))


def test_exact_search_from_a_forbidden_labelling_misses_nothing() -> None:
    problem = zoo()["forbidden_edges"]
    task = open_task(*problem.model)
    forbidden = ref.labellings(problem.graph)[ref.label_scores(*problem.model) == -np.inf]
    inside = task.problem.scores.singles[np.arange(6), forbidden] > -np.inf
    task.labels = forbidden[inside.all(axis=1)][0]
    search = portfolio.ExactSearch(task)
    search.wait()
    search.stop()
    assert task.score == pytest.approx(ref.max_score(*problem.model), rel=1e-9)
    assert task.proven


def test_exact_search_is_given_up_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_out(monkeypatch, *PARTS)
    graph = pt.Graph.complete(60, n_states=4)
    result = pt.MAP(time_limit=0.5).infer(graph, scores(graph, np.random.default_rng(0)))
    assert result.feasible
    assert result.bound == "upper"


def bounds_of_exact_search(task: SearchTask, enough: Callable[[SearchTask], bool]) -> list[float]:
    """The bounds that exact search gives until it ends or they are enough."""
    found, tighten = [], task.tighten

    def note(bound: float, part: str) -> None:
        found.append(bound + task.problem.constant)
        tighten(bound, part)

    task.tighten = note  # type: ignore[method-assign]
    search = portfolio.ExactSearch(task)
    while search.collect() and not enough(task):
        time.sleep(0.01)
    search.stop()
    return found


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_bounds_of_a_running_exact_search_hold(seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    graph = pt.Graph.complete(8, n_states=3)
    theta = {kind: scale * table for kind, table in scores(graph, rng).items()}
    best = ref.max_score(graph, theta)
    found = bounds_of_exact_search(open_task(graph, theta), lambda task: False)
    assert len(found) > 1  # more than that of the end
    assert min(found) >= best - close(best)
    assert found[0] > found[-1]
    assert found[-1] == pytest.approx(best, rel=1e-9)


def test_a_search_that_is_cut_off_leaves_its_bound() -> None:
    graph = pt.Graph.grid((12, 12), n_states=3)
    theta = {kind: 3 * table for kind, table in scores(graph, np.random.default_rng(0)).items()}
    best = pt.MAP().infer(graph, theta)
    assert best.bound == "exact"
    task = SearchTask(Scores(graph, theta), Clock(600.0, None), 0)
    trivial = trivial_bound(task.scores)
    task.tighten(trivial, "maxima of the tables")
    found = bounds_of_exact_search(task, lambda task: task.bound_by == "toulbar2")
    assert task.bound_by == "toulbar2"
    assert best.value - close(best.value) <= min(found) == task.bound < trivial


LONG_SEARCH = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import potentia as pt
from potentia.inference.map import portfolio
from zoo import scores
graph = pt.Graph.complete(60, n_states=4)
portfolio._ascend = portfolio.move_labels = portfolio._eliminate_wide = lambda task: None
pt.MAP(time_limit=150).infer(graph, scores(graph, np.random.default_rng(0)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_exact_search_ends_with_the_process_that_started_it(number: int, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", LONG_SEARCH, str(Path(__file__).parents[1] / "support")],
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        worker = until(lambda: workers_of(process.pid))[0]
        process.send_signal(number)
        process.wait()
        until(lambda: not is_worker(worker))
    finally:
        process.kill()
        process.wait()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_exact_search_ends_by_itself_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portfolio, "_GRACE", 0.0)
    graph = pt.Graph.complete(60, n_states=4)
    search = portfolio.ExactSearch(
        SearchTask(Scores(graph, scores(graph, np.random.default_rng(0))), Clock(2.0, None), 0)
    )
    until(lambda: not search.collect())  # nobody stops it
    search.stop()


def until(found: Callable[[], Any]) -> Any:
    """What `found` gives once it is something."""
    for _ in range(6000):
        if result := found():
            return result
        time.sleep(0.02)
    raise AssertionError("it did not happen in two minutes")


def is_worker(pid: int) -> bool:
    """Whether a process runs exact search; one that ended but was not waited for has no command line."""
    try:
        return b"map/worker.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def workers_of(parent: int) -> list[int]:
    listed = Path(f"/proc/{parent}/task").glob("*/children")
    children = [int(child) for path in listed for child in path.read_text().split()]
    return [child for child in children if is_worker(child)]


@pytest.mark.parametrize("seed", range(8))
def test_the_bound_of_dual_ascent_never_loosens(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = zoo()["factor_loop" if seed % 2 else "grid_diagonal"]
    theta = scores(problem.graph, rng)
    best = ref.max_score(problem.graph, theta)
    d, labels = dual(Scores(problem.graph, theta)), np.zeros(problem.graph.n_variables, dtype=np.int64)
    bounds = [sweep(d, k % 2 == 0, True, labels) for k in range(30)]
    assert all(after <= before + 1e-9 for before, after in pairwise(bounds))
    assert bounds[-1] >= best - 1e-9
    lp = ref.local_polytope_value(problem.graph, theta)
    if problem.pairwise:
        assert bounds[-1] >= lp - 1e-9


@pytest.mark.parametrize("seed", range(8))
def test_dual_ascent_drops_no_state_of_a_better_labelling(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = pt.Graph.grid((3, 3), n_states=3)
    theta = scores(graph, rng)
    task = open_task(graph, theta)
    ascend(task, 1.0)
    if not task.proven:
        better = ref.labellings(graph)[ref.label_scores(graph, theta) > task.score]
        assert task.problem.scores is not None
        allowed = task.problem.scores.singles > -np.inf
        fixed = np.setdiff1d(np.arange(9), task.problem.variables)
        for labels in better:
            assert allowed[np.arange(len(allowed)), labels[task.problem.variables]].all()
            assert (labels[fixed] == task.problem.labels[fixed]).all()


def test_dual_ascent_knows_pairs_without_scores_by_shape() -> None:
    rng = np.random.default_rng(0)
    ring, chords = [[0, 1], [1, 2], [2, 3], [3, 0]], [[0, 2], [1, 3]]
    graph = pt.Graph([2, 4, 3, 2], {"node": [[0], [1], [2], [3]], "none": ring, "edge": chords})
    theta = scores(graph, rng)
    theta["none"] = None
    d = dual(Scores(graph, theta))
    assert d.tables.size == 2 * (8 + 12 + 6 + 4 + 6 + 8)
    labels = np.zeros(4, dtype=np.int64)
    bound = min(sweep(d, k % 2 == 0, False, labels) for k in range(20))
    assert bound == pytest.approx(ref.max_score(graph, theta))  # a forest once pairs without scores are left out


def test_dual_ascent_keeps_shared_tables_shared() -> None:
    graph = pt.Graph.grid((20, 30), n_states=4)
    assert dual(Scores(graph, {"edge": np.eye(4)})).tables.size == 2 * 16


@pytest.mark.parametrize("seed", range(40))
def test_branch_and_bound_proves_the_best_labelling(seed: int) -> None:
    problem = any_model(np.random.default_rng([7, seed]))
    best = ref.max_score(*problem.model)
    try:
        task = open_task(*problem.model)
        if task.problem.scores is not None and not task.proven:
            branch(task, 0.5)
    except InfeasibleError:
        assert best == -np.inf
        return
    assert task.proven
    assert task.score == pytest.approx(best, rel=1e-9, abs=1e-9)


def test_branch_and_bound_without_room_for_messages_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    graph = pt.Graph.grid((5, 5), n_states=2)
    theta = {"node": rng.normal(size=(25, 2)), "edge": rng.normal(size=(len(graph.scopes["edge"]), 2, 2)) * 2}
    monkeypatch.setattr("potentia.inference.map.branch._BYTES", -1.0)
    task = open_task(graph, theta)
    branch(task, 0.5)
    assert task.labels is not None
    assert not task.proven
    assert task.score <= pt.Exact().infer(graph, theta).score(pt.Exact().infer(graph, theta).argmax()) + 1e-9


@pytest.mark.parametrize("seed", range(8))
def test_guided_search_finds_the_best(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scopes: dict[str, Any] = {"node": np.arange(9)[:, None], "edge": list(combinations(range(9), 2))}
    if seed % 2:
        scopes["triple"] = [[0, 3, 7], [2, 5, 8], [1, 4, 6]]
    graph = pt.Graph(rng.integers(2, 4, 9), scopes)
    theta = {kind: [rng.normal(size=tuple(s)) for s in graph.table_shapes(kind)] for kind in graph.kinds}
    for table in theta["edge"][::5]:
        table[rng.random(table.shape) < 0.3] = -np.inf
    task = open_task(graph, theta)
    start = feasible_labelling(task.undecided)
    assert start is not None
    task.offer(start, "start")
    guided_search(task, 0.5, 200)
    assert task.score == score_labels(task.scores, task.labels)
    assert task.score == pytest.approx(ref.max_score(graph, theta))


def test_guided_search_leaves_costly_violations_that_single_changes_do_not() -> None:
    # a ring of 40 variables in three colours with two chords each: weighted colouring from one colour
    rng = np.random.default_rng(3)
    n = 40
    colours = rng.integers(0, 3, n)
    pairs = {tuple(sorted(rng.choice(n, 2, replace=False).tolist())) for _ in range(110)}
    pairs = sorted(p for p in pairs if colours[p[0]] != colours[p[1]])
    graph = pt.Graph([3] * n, {"node": np.arange(n)[:, None], "edge": pairs})
    task = open_task(graph, {"node": rng.normal(size=(n, 3)) * 0.01, "edge": -10.0 * np.eye(3)})
    task.offer(np.zeros(n, dtype=np.int64), "start")
    guided_search(task, 0.5, 200)
    assert task.score > -5.0


def test_cpu_seconds_of_workers_count() -> None:
    spent = [0.0]
    clock = Clock(None, 10.0, [lambda: spent[0]])
    part = clock.part(4.0)
    spent[0] = 3.0
    assert part.left < 1.01
    assert 6.0 < clock.left < 7.01
    assert clock.part(np.inf).left == np.inf
    assert Clock(5.0, None).part(2.0).left < 2.01


@pytest.mark.parametrize("seed", range(12))
def test_roof_duality_decides_only_what_every_best_labelling_has(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = [pt.Graph.grid((3, 3), n_states=2), pt.Graph.complete(5, n_states=2)][seed % 2]
    theta = scores(graph, rng, 2.0)
    if seed % 3 == 0:
        theta["edge"] = np.where(rng.random(theta["edge"].shape) < 0.1, -np.inf, theta["edge"])
        theta["edge"][:, 0, 0] = 0.0
    task = open_task(graph, theta)
    roof_duality(task)
    best = ref.max_score(graph, theta)
    assert task.bound >= best - close(best)
    for labels in ref.map_labellings(graph, theta):
        decided = np.setdiff1d(np.arange(graph.n_variables), task.problem.variables)
        assert (task.problem.labels[decided] == labels[decided]).all()


def test_labels_that_are_ruled_out_are_replaced() -> None:
    graph = pt.Graph.grid((2, 2), n_states=3)
    theta = scores(graph, np.random.default_rng(0))
    task = open_task(graph, theta)
    task.offer(np.zeros(4, dtype=np.int64), "start")
    allowed = np.ones((4, 3), dtype=bool)
    allowed[1, 0] = False
    task.restrict(allowed, "test")
    assert task.current is not None
    assert task.current[[0, 2, 3]].tolist() == [0, 0, 0]
    assert task.current[1] == 1 + theta["node"][1, 1:].argmax()


def test_roof_duality_solves_attractive_models() -> None:
    rng = np.random.default_rng(3)
    graph = pt.Graph.grid((4, 3), n_states=2)
    theta = {"node": rng.normal(size=(12, 2)), "edge": 0.7 * np.eye(2)}
    task = open_task(graph, theta)
    roof_duality(task)
    assert task.proven
    assert task.score == pytest.approx(ref.max_score(graph, theta), rel=1e-12)


@pytest.mark.parametrize("table", ["linear", "quadratic"])
def test_moves_end_where_no_expansion_or_swap_improves(table: str) -> None:
    rng = np.random.default_rng(5)
    graph = pt.Graph.grid((3, 3), n_states=3)
    apart = np.abs(np.arange(3)[:, None] - np.arange(3))
    theta = {"node": rng.normal(size=(9, 3)), "edge": -1.0 * (apart if table == "linear" else apart**2)}
    task = open_task(graph, theta)
    task.offer(np.zeros(9, dtype=np.int64), "start")
    move_labels(task)
    assert task.labels is not None
    every = ref.labellings(graph)
    value = ref.label_scores(graph, theta)
    for a in range(3):
        if table == "linear":
            expansion = ((every == task.labels) | (every == a)).all(axis=1)
            assert value[expansion].max() <= task.score + 1e-9
        for b in range(a):
            inside = np.isin(task.labels, (a, b))
            swap = ((every == task.labels) | (inside & np.isin(every, (a, b)))).all(axis=1)
            assert value[swap].max() <= task.score + 1e-9


@pytest.mark.parametrize("name", ["grid", "factor_loop", "mixed", "forbidden_edges", "observed"])
def test_blocks_find_the_best_labels_given_the_rest(name: str) -> None:
    problem, rng = zoo()[name], np.random.default_rng(1)
    graph = problem.graph
    own = Scores(*problem.model)
    every, value = ref.labellings(graph), ref.label_scores(*problem.model)
    for _ in range(5):
        labels = every[value > -np.inf][rng.integers((value > -np.inf).sum())].copy()
        old = labels.copy()
        block = np.sort(rng.choice(graph.n_variables, 3, replace=False))
        gain, _ = BlockMoves(own).improve(labels, block, 1e6)
        rest = np.setdiff1d(np.arange(graph.n_variables), block)
        same = (every[:, rest] == old[rest]).all(axis=1)
        assert score_labels(own, labels) == pytest.approx(value[same].max())
        assert gain == pytest.approx(score_labels(own, labels) - score_labels(own, old), abs=1e-9)


def test_windows_repair_and_improve() -> None:
    problem = zoo()["hard_chain"]
    task = open_task(*problem.model)
    windows, start = Windows(task), np.zeros(5, dtype=np.int64)
    windows.descend(start[: len(task.problem.variables)])
    assert task.score == pytest.approx(ref.max_score(*problem.model))
    windows.kick_on(task.current)
    assert task.score == pytest.approx(ref.max_score(*problem.model))


def test_components_are_solved_one_by_one() -> None:
    # a wide component beside narrow ones: only those are decided
    rng = np.random.default_rng(0)
    wide, narrow = pt.Graph.complete(12, n_states=3), pt.Graph.chain(4, n_states=3)
    union = pt.extend.Union([narrow, wide, narrow])
    theta = union.join([scores(g, rng) for g in union.parts])
    task = open_task(union.graph, theta)
    solve_components(task, 1e4)
    assert task.problem.variables.tolist() == list(range(4, 16))
    for begin in (0, 16):
        part = union.split(theta)[0 if begin == 0 else 2]
        assert task.problem.labels[begin : begin + 4].tolist() in ref.map_labellings(narrow, part).tolist()


def test_forests_with_hubs_take_two_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "_MAX_DEGREE_SQUARES", 0.0)
    graph = pt.Graph.tree([-1, 0, 0, 0, 0, 1, 1], n_states=3)
    theta = scores(graph, np.random.default_rng(2))
    task = open_task(graph, theta)
    solve_components(task, 1e6)
    assert task.proven
    assert task.score == pytest.approx(ref.max_score(graph, theta))


def test_reduction_keeps_scores() -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        problem = any_model(rng)
        if ref.max_score(*problem.model) == -np.inf:
            continue
        task = open_task(*problem.model)
        if task.problem.scores is None:
            continue
        allowed = task.problem.scores.singles > -np.inf
        rows = np.flatnonzero(rng.random(len(allowed)) < 0.5)[:-1]
        keep = allowed[rows].argmax(axis=1)
        allowed[rows] = False
        allowed[rows, keep] = True
        left = reduce(task.problem, allowed)
        if left.scores is None:
            continue
        for _ in range(5):
            labels = np.array([rng.choice(np.flatnonzero(row > -np.inf)) for row in left.scores.singles])
            whole = score_labels(task.scores, left.expand(labels))
            assert left.constant + score_labels(left.scores, labels) == pytest.approx(whole, abs=1e-9)


def test_maximum_flows_are_those_of_scipy() -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        n, m = int(rng.integers(2, 20)), int(rng.integers(1, 60))
        ends = np.array([rng.choice(n, 2, replace=False) for _ in range(m)])
        capacity, terminal = rng.integers(0, 20, (m, 2)), rng.integers(-30, 30, n)
        head, tail = ends[:, ::-1].ravel(), ends.ravel()
        ptr = np.concatenate([[0], np.cumsum(np.bincount(tail, minlength=n))])
        side = np.zeros(n, dtype=np.int64)
        arcs = ptr, np.argsort(tail, kind="stable"), head, capacity.ravel().copy()
        flow = max_flow(*arcs, terminal.copy(), side, 2**62)
        matrix = np.zeros((n + 2, n + 2), dtype=np.int32)
        np.add.at(matrix, (tail, head), capacity.ravel())
        matrix[n, :n], matrix[:n, n + 1] = np.maximum(terminal, 0), np.maximum(-terminal, 0)
        assert flow == maximum_flow(csr_array(matrix), n, n + 1).flow_value
        for source in (side == 0, side != 1):
            cut = matrix[n, :n][~source].sum() + matrix[:n, n + 1][source].sum()
            assert flow == cut + matrix[:n, :n][np.ix_(source, ~source)].sum()


def test_a_flow_stopped_early_decides_nothing() -> None:
    rng = np.random.default_rng(0)
    graph = pt.Graph.grid((10, 10), n_states=2)
    task = open_task(graph, scores(graph, rng))
    assert task.problem.scores is not None
    energy = choice_energies(task.problem.scores)(np.zeros(100, dtype=np.int64), np.ones(100, dtype=np.int64))
    chosen, bound = least_energy(energy, 5)
    assert (chosen == -1).all()
    assert bound <= least_energy(energy, 2**62)[1]


def test_equal_seeds_give_equal_labellings() -> None:
    graph = pt.Graph.grid((12, 12), n_states=4)
    theta = scores(graph, np.random.default_rng(0))
    first, second = (pt.MAP(seed=3, exact_search=False).infer(graph, theta) for _ in range(2))
    assert first.argmax().tolist() == second.argmax().tolist()
    assert first.value == second.value


def test_no_time_still_gives_a_labelling_and_a_bound() -> None:
    for problem in random_models(6, seed=1):
        check(problem, pt.MAP(time_limit=0.0).infer(*problem.model))


@pytest.mark.parametrize("part", ["_first_labelling", "_ascend", "_local_search"])
def test_ctrl_c_returns_the_best_so_far(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    leave_out(monkeypatch, "_branch", "_eliminate_narrow", "_eliminate_wide")
    if part == "_local_search":
        leave_out(monkeypatch, "_ascend", "roof_duality")
    monkeypatch.setattr(portfolio, part, interrupt)
    problem = zoo()["frustrated"] if part == "_ascend" else zoo()["grid_diagonal"]
    result = pt.MAP(exact_search=False).infer(*problem.model)
    assert result.interrupted
    assert "interrupted" in repr(result) or not result.feasible
    check(problem, result)
    with pytest.raises(KeyboardInterrupt):
        pt.MAP(exact_search=False).maximise(Scores(*problem.model))


def test_ctrl_c_ends_the_search_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[portfolio.ExactSearch] = []

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    class Watched(portfolio.ExactSearch):
        def __init__(self, task: SearchTask) -> None:
            super().__init__(task)
            started.append(self)

    leave_out(monkeypatch, *PARTS)
    monkeypatch.setattr(portfolio, "_local_search", interrupt)
    monkeypatch.setattr(portfolio, "ExactSearch", Watched)
    graph = pt.Graph.complete(40, n_states=4)
    result = pt.MAP().infer(graph, scores(graph, np.random.default_rng(0)))
    assert result.interrupted
    assert result.feasible
    assert [search._process.poll() is not None for search in started] == [True]


def test_results_say_what_was_found_and_by_what(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = zoo()["grid"]
    result = pt.MAP().infer(*problem.model)
    assert isinstance(result, pt.extend.MAPResult)
    assert (result.found_by, result.bound_by) == ("local search", "elimination")
    assert result.target == "max_score"
    assert "proven best" in repr(result)
    labels = result.argmax()
    assert result.mpm().tolist() == labels.tolist()
    assert set(result.marginals) == set(problem.graph.kinds)
    for kind, tables in result.marginals.items():
        for table, row in zip(tables, problem.graph.scopes[kind], strict=True):
            assert table.sum() == 1
            assert table[tuple(labels[row])] == 1
    with pytest.raises(PotentiaError, match="best score"):
        _ = result.log_partition
    leave_out(monkeypatch, *PARTS)
    odd = zoo()["odd_cycle"]  # propagation alone cannot see that nothing is allowed
    nothing = pt.MAP(exact_search=False).infer(*odd.model)
    assert not nothing.feasible
    assert nothing.bound == "upper"
    assert "no feasible labelling found" in repr(nothing)


def test_start_is_the_first_to_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = zoo()["grid_diagonal"]
    good = pt.MAP().infer(*problem.model)
    leave_out(monkeypatch, *PARTS)
    result = pt.MAP(exact_search=False).infer(*problem.model, start=good)
    assert result.argmax().tolist() == good.argmax().tolist()
    assert result.found_by == "start"


@pytest.mark.parametrize(("options", "name"), [({"time_limit": -1.0}, "time_limit"), ({"seed": -1}, "seed")])
def test_options_are_checked(options: dict, name: str) -> None:
    with pytest.raises(PotentiaError, match=name):
        pt.MAP(**options).infer(*zoo()["chain"].model)


def test_crf_decodes_by_it(tmp_path) -> None:
    examples = pt.datasets.denoising(n_images=2, size=(8, 8), seed=0)
    parts = {"node": pt.Linear(), "edge": pt.Linear()}
    learner = pt.IteratedLogistic(iterations=2)
    crf, exact = (
        pt.CRF(parts, learner=learner, inference=inference, decode="map").fit(examples)
        for inference in (pt.MAP(seed=2), pt.Exact())
    )
    crf.save(tmp_path / "model")
    again = pt.load(tmp_path / "model")
    assert again.inference == pt.MAP(seed=2)
    for found, best in zip(again.predict(examples), exact.predict(examples), strict=True):
        assert found.tolist() == best.tolist()


def test_the_command_line_finds_the_best_labelling(tmp_path, capsys) -> None:
    problem = zoo()["grid"]
    pt.uai.write(tmp_path / "model.uai", problem.graph, problem.theta)
    assert main(["infer", str(tmp_path / "model.uai"), "--task", "map", "--seconds", "5", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["best_score"] == pytest.approx(ref.max_score(*problem.model))
    assert facts["bound"] == "exact"
    assert facts["bound_by"] == "elimination"
    assert main(["infer", str(tmp_path / "model.uai"), "--task", "map", "--method", "trw"]) == 2
    assert main(["infer", str(tmp_path / "model.uai"), "--seconds", "5"]) == 2
    assert "--seconds" in capsys.readouterr().err


def test_a_labelling_has_no_gradient():
    graph = pt.Graph.chain(3, n_states=2)
    theta = {"node": np.zeros((3, 2)), "edge": np.eye(2)}
    with pytest.raises(pt.PotentiaError, match="not a smooth function of the scores"):
        pt.loss_and_gradient("univariate_logistic", pt.MAP(), graph, theta, [0, 1, 0], gradient="perturbation")


def test_diverse_labellings_follow_the_definition():
    rng = np.random.default_rng(3)
    graph = pt.Graph.grid((3, 3), n_states=3)
    theta = {"node": rng.normal(size=(9, 3)), "edge": rng.normal(size=(12, 3, 3))}
    found = pt.MAP(exact_search=False).diverse(graph, theta, 4, diversity=0.7)
    every, scores = np.array(list(ref.labellings(graph))), ref.label_scores(graph, theta)
    taken = np.zeros((9, 3))
    expected = []
    for _ in range(4):
        labels = every[np.argmax(scores - 0.7 * taken[np.arange(9), every].sum(axis=1))]
        taken[np.arange(9), labels] += 1
        expected.append(labels.tolist())
    assert sorted(found.labels.tolist()) == sorted(expected)
    assert np.all(np.diff(found.scores) <= 0)
    result = pt.Exact().infer(graph, theta)
    assert [result.score(labels) for labels in found.labels] == pytest.approx(found.scores.tolist())


def test_diverse_labellings_are_distinct_and_allowed():
    graph = pt.Graph.chain(3, n_states=2)
    forbid = {"node": np.array([[0.0, -np.inf], [5.0, 0.0], [9.0, 0.0]]), "edge": np.zeros((2, 2, 2))}
    found = pt.MAP().diverse(graph, forbid, 10, diversity=0.1)
    assert found.labels.tolist() == [[0, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 1]]
    with pytest.raises(pt.PotentiaError, match="k must be"):
        pt.MAP().diverse(graph, forbid, 0)


def powers_of_two_apart(problem: Problem, method: pt.extend.Inference) -> None:
    """Scores times a power of two are exact, so that labelling and claim must be the same."""
    found = [
        method.infer(
            problem.graph,
            {kind: scaled(theta, factor) for kind, theta in problem.theta.items()},
            observed=problem.observed,
        )
        for factor in (1.0, 2.0**-40, 2.0**40)
    ]
    for other, factor in zip(found[1:], (2.0**-40, 2.0**40), strict=True):
        np.testing.assert_array_equal(other.argmax(), found[0].argmax())
        assert other.bound == found[0].bound
        assert other.value == pytest.approx(factor * found[0].value, rel=1e-9)
        if other.bound in ("upper", "exact") and other.target == "max_score":
            assert other.gap == pytest.approx(factor * found[0].gap, rel=1e-6, abs=1e-9 * abs(other.value))


def scaled(theta: object, factor: float) -> object:
    return [factor * np.asarray(t) for t in theta] if isinstance(theta, list) else factor * np.asarray(theta)


@pytest.mark.filterwarnings("ignore:regions.*lists every pair")
@pytest.mark.parametrize("seed", range(40))
def test_a_power_of_two_changes_neither_labelling_nor_claim(seed: int) -> None:
    problem = any_model(np.random.default_rng(seed))
    for method in (pt.MAP(exact_search=False), pt.LinearProgram()):
        try:
            method.infer(*problem.model)
        except InfeasibleError:
            continue
        powers_of_two_apart(problem, method)


@pytest.mark.parametrize("scale", [1e-9, 1e-12, 1e9])
def test_a_claim_is_relative_to_the_scores(scale: float) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        g = pt.Graph.grid((3, 3), n_states=3)
        theta = {"node": scale * rng.normal(size=(9, 3)), "edge": scale * rng.normal(size=(12, 3, 3))}
        result = pt.MAP().infer(g, theta)
        best = ref.max_score(g, theta)
        assert result.bound == "exact"
        assert result.score(result.argmax()) == pytest.approx(best, rel=1e-9, abs=0.0)


def test_what_is_forbidden_weighs_more_than_equal_scores_of_any_size() -> None:
    for size in (2.0**-60, 1.0, 2.0**60):
        assert penalty(np.full(4, size), 4) < size
        assert penalty(np.full(4, -size), 4) < -size
        assert penalty(size * np.arange(4.0), 4) == size * penalty(np.arange(4.0), 4)


@pytest.mark.parametrize("seed", [168, 770, 1212, 1378, 1679])
def test_an_infeasible_labelling_respects_what_is_observed(seed: int) -> None:
    rng, n = np.random.default_rng(seed), 5
    triples = [rng.permutation(n)[:3] for _ in range(3)]
    regions = {"node": np.arange(n)[:, None], "edge": [[i, (i + 1) % n] for i in range(n)], "triple": triples}
    theta = {
        "node": rng.normal(size=(n, 2)),
        "edge": np.where(rng.random((n, 2, 2)) < 0.3, -np.inf, 0.0),
        "triple": np.where(rng.random((3, 2, 2, 2)) < 0.4, -np.inf, rng.normal(size=(3, 2, 2, 2))),
    }
    variable, state = int(rng.integers(n)), int(rng.integers(2))
    observed = {variable: state}
    result = pt.MAP(time_limit=1e-9).infer(pt.Graph([2] * n, regions), theta, observed=observed)
    assert not result.feasible
    assert result.argmax()[variable] == state

"""Small problems by name, with the facts that decide which guarantees hold; all small enough to enumerate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import product

import numpy as np

from potentia.graph.structure import Graph


@dataclass(frozen=True, eq=False)
class Problem:
    """A graph with scores and clamps.

    Facts: `pairwise` no region of three or more variables; `is_forest` regions and variables form an acyclic
    factor graph, so that loopy BP is exact; `has_forbidden` some score is -inf; `clamped` some variable is
    observed; `feasible` some labelling is allowed; `is_junction` nested regions that make Kikuchi exact
    (declared, not computed).
    """

    name: str
    graph: Graph
    theta: dict
    observed: dict = field(default_factory=dict)
    feasible: bool = True
    is_junction: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def pairwise(self) -> bool:
        return self.graph.max_order <= 2

    @property
    def clamped(self) -> bool:
        return bool(self.observed)

    @cached_property
    def has_forbidden(self) -> bool:
        return any(np.isneginf(t).any() for tables in self.theta.values() for t in tables)

    @cached_property
    def is_forest(self) -> bool:
        root = list(range(self.graph.n_variables))

        def find(i):
            while root[i] != i:
                i = root[i]
            return i

        for scope in (row for rows in self.graph.scopes.values() for row in rows.tolist()):
            tops = {find(i) for i in scope}
            if len(tops) < len(scope):
                return False
            for top in tops:
                root[top] = min(tops)
        return True

    @property
    def model(self) -> tuple:
        """(graph, theta, observed), as `reference` and `infer` take them."""
        return self.graph, self.theta, self.observed


def scores(graph: Graph, rng: np.random.Generator, scale: float = 1.0) -> dict:
    """Normal scores for every kind, a list of tables where state counts are mixed."""
    theta = {}
    for kind, rows in graph.scopes.items():
        tables = [scale * rng.standard_normal(graph.n_states[row]) for row in rows]
        theta[kind] = tables if len({t.shape for t in tables}) != 1 else np.array(tables)
    return theta


def forbid(theta: dict, kind: str, rng: np.random.Generator, share: float) -> dict:
    """Scores with about this share of one kind's entries forbidden, but never a table's first."""
    tables = [t.copy() for t in theta[kind]]
    for table in tables:
        gone = rng.random(table.shape) < share
        gone[(0,) * table.ndim] = False
        table[gone] = -np.inf
    return {**theta, kind: np.array(tables)}


def _plain_graphs() -> dict[str, Graph]:
    three, five = [[0], [1], [2]], [[0], [1], [2], [3], [4]]
    ring = [[0, 1], [2, 1], [2, 3], [3, 0]]
    around = {"a": [[0, 1], [1, 2]], "b": [[1, 0], [2, 0]]}
    nested = {"node": three, "edge": [[0, 1], [1, 2], [2, 0]], "triple": [[0, 1, 2]]}
    edges = [[0, 1], [2, 1], [0, 2], [1, 3], [2, 3], [3, 4]]
    junction = {"node": five, "edge": edges, "triple": [[1, 0, 2], [1, 2, 3]]}
    factors = {"node": [[0], [3]], "triple": [[0, 1, 2], [2, 3, 4]], "edge": [[4, 0]]}
    return {
        "single": Graph([3], {"node": [[0]]}),
        "pair": Graph([2, 3], {"node": [[0], [1]], "edge": [[1, 0]]}),
        "chain": Graph.chain(5, n_states=3),
        "tree": Graph.tree([-1, 0, 0, 1, 1, 2, 5], n_states=2),
        "loop": Graph([2] * 4, {"node": five[:4], "edge": ring}),
        "grid": Graph.grid((3, 3), n_states=2),
        "grid_diagonal": Graph.grid((2, 3), n_states=3, neighbours=8),
        "grid3d": Graph.grid((2, 2, 2), n_states=2),
        "complete": Graph.complete(5, n_states=2),
        "factor3": Graph([2, 3, 2], {"triple": [[2, 0, 1]]}),
        "factor4": Graph([2, 2, 3, 2, 2], {"quad": [[3, 0, 2, 1]], "edge": [[4, 3]], "node": [[2]]}),
        "factor_loop": Graph([2] * 5, factors),
        "nested": Graph([2, 2, 3], nested),
        "junction": Graph([2, 3, 2, 2, 2], junction),
        "mixed": Graph([2, 3, 4, 2], {"node": five[3::-1], "edge": ring}),
        "disconnected": Graph([2] * 6, {"node": np.arange(6)[:, None], "edge": [[0, 1], [1, 2], [4, 5]]}),
        "isolated": Graph([2, 2, 3], {"node": three, "edge": [[0, 1]]}),
        "one_state": Graph([2, 1, 3], {"node": three, "edge": [[0, 1], [1, 2]]}),
        "two_edge_kinds": Graph([3] * 3, {"node": three, **around}),
        "empty_kind": Graph([2] * 3, {"none": [], "node": three, "edge": [[0, 1], [1, 2]]}),
        "no_nodes": Graph([2] * 4, {"edge": [[0, 1], [2, 1], [3, 2]], "node": [[1]]}),
        "no_regions": Graph([2, 3], {}),
    }


def _special(rng: np.random.Generator) -> Iterator[Problem]:
    grid, chain, line = Graph.grid((2, 3), n_states=3), Graph.chain(5, n_states=3), Graph.chain(4, n_states=2)
    step = np.where(np.abs(np.arange(3)[:, None] - np.arange(3)) <= 1, 0.3, -np.inf)
    ends = np.where([[True, True, False]] + [[True] * 3] * 3 + [[False, False, True]], 0.0, -np.inf)
    yield Problem("forbidden_nodes", grid, forbid(scores(grid, rng), "node", rng, 0.4))
    yield Problem("forbidden_edges", grid, forbid(scores(grid, rng), "edge", rng, 0.3))
    yield Problem("hard_chain", chain, {"node": ends + rng.standard_normal((5, 3)), "edge": step})
    # the first pair rules out a state of variable 1, which the later pairs must come to know
    block = scores(line, rng)
    block["edge"][0, :, 1] = -np.inf
    yield Problem("propagated", line, block)
    yield Problem("ties", grid, {})
    yield Problem("ties_attractive", Graph.grid((3, 3), n_states=2), {"edge": np.eye(2)})
    torn = Graph.complete(4, n_states=2)  # its LP optimum is fractional
    yield Problem("frustrated", torn, {**scores(torn, rng, 0.1), "edge": -2 * np.eye(2)})
    yield Problem("huge", grid, scores(grid, rng, 1e4))
    yield Problem("huge_chain", chain, scores(chain, rng, 1e4))
    yield Problem("tiny", grid, scores(grid, rng, 1e-6))
    yield Problem("shared_table", grid, {**scores(grid, rng), "edge": rng.standard_normal((3, 3))})
    yield Problem("observed", grid, scores(grid, rng), {1: 2, 5: 0})
    yield Problem("observed_chain", chain, scores(chain, rng), {2: 1})
    yield Problem("observed_all", chain, scores(chain, rng), dict.fromkeys(range(5), 1))
    # only fractional points satisfy the first; not even those the second
    differ = np.where(np.eye(2) > 0, -np.inf, 0.0)
    yield Problem("odd_cycle", Graph.complete(3, n_states=2), {"edge": differ}, feasible=False)
    clash = {"node": np.where([[True, False], [True, True], [True, False]], 0.0, -np.inf)}
    clash["edge"] = np.array([differ, differ[::-1]])
    yield Problem("contradiction", Graph.chain(3, n_states=2), clash, feasible=False)
    yield from _shared_forbidden(rng)


def forbidden_table(rng: np.random.Generator, n_states: int, form: str) -> np.ndarray:
    """A square table with normal scores and one row, one column or one state (both) forbidden, or many entries."""
    table, state = rng.standard_normal((n_states, n_states)), int(rng.integers(n_states))
    if form in ("row", "state"):
        table[state] = -np.inf
    if form in ("column", "state"):
        table[:, state] = -np.inf
    if form == "entries":
        table[rng.random(table.shape) < 0.4] = -np.inf
        table[state, state] = 0.0
    return table


def _shared_forbidden(rng: np.random.Generator) -> Iterator[Problem]:
    """One table for all pairs that rules out states, on graphs whose blocks have empty slots."""
    graphs = {
        "chain": Graph.chain(4, n_states=2),
        "tree": Graph.tree([-1, 0, 0, 1, 1, 2], n_states=3),
        "grid": Graph.grid((2, 3), n_states=3),
    }
    for (name, graph), form in product(graphs.items(), ("row", "column", "state", "entries")):
        table = forbidden_table(rng, int(graph.n_states[0]), form)
        theta = {**scores(graph, rng), "edge": table}
        allowed = {0: int(np.flatnonzero(np.isfinite(table).any(axis=1) & np.isfinite(table).any(axis=0))[0])}
        yield Problem(f"shared_{form}_{name}", graph, theta, allowed if name == "tree" else {})


@cache
def zoo() -> dict[str, Problem]:
    """All problems by name."""
    rng = np.random.default_rng(20130)
    exact = {"factor3", "nested", "junction", "single", "pair", "factor4"}
    plain = [Problem(k, g, scores(g, rng), is_junction=k in exact) for k, g in _plain_graphs().items()]
    return {p.name: p for p in [*plain, *_special(rng)]}


def problems(feasible: bool | None = True, **facts: bool) -> list[Problem]:
    """Problems with these facts, e.g. `problems(pairwise=True, is_forest=False)`; feasible=None takes all."""
    wanted = facts if feasible is None else {**facts, "feasible": feasible}
    return [p for p in zoo().values() if all(getattr(p, fact) == value for fact, value in wanted.items())]


def random_models(n: int, seed: int = 0, scale: float = 1.5) -> Iterator[Problem]:
    """Random grids, 3-D grids and complete graphs in turn, strong enough for loops to matter."""
    rng = np.random.default_rng(seed)
    for k in range(n):
        states = int(rng.integers(2, 4))
        if k % 3 == 0:
            graph = Graph.grid((2, int(rng.integers(2, 5))) if states == 3 else (3, 3), n_states=states)
        elif k % 3 == 1:
            graph = Graph.grid((2, 2, 2), n_states=states)
        else:
            graph = Graph.complete(int(rng.integers(3, 7)), n_states=states)
        yield Problem(f"random{k}", graph, scores(graph, rng, rng.uniform(0.2, 1.0) * scale))

"""Every inference method on random small models against enumeration of all labellings (`make check`)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from potentia.base.types import Floats, InfeasibleError, Ints
from potentia.graph.structure import Graph
from potentia.graph.tables import WeightedTable
from potentia.inference.base import Inference, Result
from potentia.inference.engine import SCHEDULES
from potentia.inference.exact import Exact
from potentia.inference.gibbs import Gibbs
from potentia.inference.linear_program import LinearProgram
from potentia.inference.mean_field import MeanField
from potentia.inference.messages import TRW, Kikuchi, LoopyBP, MessagePassingMethod, Schedule, Smoothed
from potentia.potentials.tables import Potts, Scaled, TruncatedLinear, TruncatedQuadratic

#: Labellings of a model at most.
_MAX_LABELLINGS = 5000
#: How far values and marginals may be off where a method that iterates claims them, relative to 1 + |value|; and the
#: rounding of bounds and of `Exact`, which hold at any messages.
_TOLERANCE, _ROUNDING = 1e-5, 1e-12
#: How far marginals, and the value relative to 1 + its size, may move in two more iterations of a method that calls
#: itself converged.
_STILL = 1e-4


class Model(NamedTuple):
    """A graph with scores and clamps, and the score of every labelling, one axis per variable."""

    graph: Graph
    theta: dict[str, Any]
    observed: dict[int, int]
    scores: Floats

    @property
    def log_partition(self) -> float:
        """log Z."""
        return float(np.logaddexp.reduce(self.scores, axis=None))

    @property
    def max_score(self) -> float:
        """The best score, -inf where all labellings are forbidden."""
        return float(self.scores.max())

    def marginals(self) -> Floats:
        """Exact marginals of the variables, (n_variables, max states)."""
        n, p = self.graph.n_variables, np.exp(self.scores - self.log_partition)
        out = np.zeros((n, int(self.graph.n_states.max())))
        for i in range(n):
            out[i, : p.shape[i]] = p.sum(axis=tuple(j for j in range(n) if j != i))
        return out


def random_model(rng: np.random.Generator) -> Model:
    """Regions of one to four variables, one to four states, any form of tables, forbidden entries, clamps.

    A fifth of the models is in single precision.
    """
    n = int(rng.integers(1, 7))
    n_states = np.full(n, rng.integers(1, 5)) if rng.random() < 0.6 else rng.integers(1, 5, n)
    while n_states.prod() > _MAX_LABELLINGS:
        n_states[n_states.argmax()] -= 1
    regions: dict[str, Ints] = {"node": rng.permutation(n)[: rng.integers(0, n + 1), None]}
    for order, kind in ((2, "edge"), (3, "clique3"), (4, "clique4")):
        if n >= order and rng.random() < (0.9 if order == 2 else 0.25):
            size = int(rng.integers(1, n + 3)) if order == 2 else int(rng.integers(1, 3))
            drawn = [rng.choice(n, order, replace=False) for _ in range(size)]
            if order == 2 and rng.random() < 0.4:  # a tree, on which methods claim exactness
                drawn = [rng.permutation([i, int(rng.integers(0, i))]) for i in range(1, n)]
            regions[kind] = np.array(list({tuple(sorted(s)): s for s in drawn}.values()), dtype=np.int64)
    graph = Graph(n_states, {kind: scope for kind, scope in regions.items() if len(scope)})
    theta = {kind: _random_tables(graph, kind, rng) if rng.random() < 0.9 else None for kind in graph.kinds}
    if rng.random() < 0.2:
        theta = {kind: None if given is None else _single(given) for kind, given in theta.items()}
    observed = {i: int(rng.integers(n_states[i])) for i in range(n) if rng.random() < 0.1}
    return Model(graph, theta, observed, _enumerate(graph, theta, observed))


def _random_tables(graph: Graph, kind: str, rng: np.random.Generator) -> Any:
    """Normal scores of one kind: one shared table, an array, a list where state counts are mixed, or by weights."""
    scale, form = (
        rng.choice([1e-9, 0.1, 1.0, 5.0, 30.0, 1000.0], p=[0.1, 0.1, 0.5, 0.15, 0.1, 0.05]),
        int(rng.integers(0, 6)),
    )
    one = graph.shared_shape(kind)
    if one is not None and len(one) == 2 and one[0] == one[1] and rng.random() < 0.3:
        weight = scale * rng.standard_normal(len(graph.scopes[kind]) if rng.random() < 0.5 else ())
        cut = float(rng.choice([0.5, 1.0, 2.0, np.inf]))
        forms = (
            Potts(weight),
            TruncatedLinear(weight, cut=cut),
            TruncatedQuadratic(weight, cut=cut),
            Scaled(rng.standard_normal(one), weight),
        )
        return forms[rng.integers(len(forms))]
    if one is not None and rng.random() < 0.5:
        return _forbid(scale * rng.standard_normal(one), form, rng)
    tables = [_forbid(scale * rng.standard_normal(tuple(shape)), form, rng) for shape in graph.table_shapes(kind)]
    return tables if one is None else np.array(tables)


def _single(given: Any) -> Any:
    """The same scores of dtype float32; those given by weights as they are."""
    if isinstance(given, WeightedTable):
        return given
    return given.astype(np.float32) if isinstance(given, np.ndarray) else [t.astype(np.float32) for t in given]


def _forbid(table: Floats, form: int, rng: np.random.Generator) -> Floats:
    """The table with a slice, the slices of one state along every axis, or many entries forbidden (or nothing)."""
    kept = tuple(int(rng.integers(size)) for size in table.shape)
    value = table[kept]
    if form == 0:
        axis = int(rng.integers(table.ndim))
        np.moveaxis(table, axis, 0)[rng.integers(table.shape[axis])] = -np.inf
    elif form == 1:
        for axis, size in enumerate(table.shape):
            np.moveaxis(table, axis, 0)[min(size - 1, 1)] = -np.inf
    elif form == 2:
        table[rng.random(table.shape) < 0.5] = -np.inf
    if np.all(table == -np.inf):  # a table that forbids everything is refused
        table[kept] = value
    return table


def _enumerate(graph: Graph, theta: dict[str, Any], observed: dict[int, int]) -> Floats:
    total = np.zeros(tuple(graph.n_states))
    states = np.ogrid[tuple(slice(0, s) for s in total.shape)]
    for kind, scope in graph.scopes.items():
        for r, row in enumerate(scope if theta[kind] is not None else []):
            given = theta[kind]
            if isinstance(given, WeightedTable):
                weight = np.broadcast_to(given.weight, len(scope))[r]
                given = weight * given.base_table(int(graph.n_states[row[0]]))
            shared = isinstance(given, np.ndarray) and given.ndim == scope.shape[1]
            table = given if shared else given[r]
            total = total + table[tuple(states[i] for i in row)]
    for i, state in observed.items():
        total = np.where(states[i] == state, total, -np.inf)
    return total


def methods(rng: np.random.Generator) -> Iterator[Inference]:
    """Every method, the message-passing ones with a random schedule, damping and limit."""
    options: dict[str, Any] = {
        "schedule": str(rng.choice(SCHEDULES)),
        "damping": [None, 0.0, 0.3, 0.7][rng.integers(4)],
        "iterations": int(rng.choice([1, 5, 300])),
        "tol": float(rng.choice([1e-6, 1e-9])),
        "threads": 1,
    }
    yield from (TRW(**options), LoopyBP(**options), Kikuchi(**options))
    yield TRW(optimise_rho=True, threads=1)
    yield from (Smoothed(0.3, **options), Smoothed(0.0, **options))
    yield MeanField(threads=1)
    yield from (Exact(), LinearProgram(), Gibbs(samples=10, burn_in=2))


def faults(model: Model, method: Inference) -> Iterator[str]:
    """What a method claims of a model that is not so."""
    feasible = model.max_score > -np.inf
    try:
        result = method.infer(model.graph, model.theta, model.observed)
    except InfeasibleError:
        if feasible and not isinstance(method, MeanField | Gibbs):  # these say that they found no start
            yield "a feasible model refused as infeasible"
        return
    labels = result.argmax() if not isinstance(method, Exact) or feasible else None
    if labels is not None and result.feasible != bool(model.scores[tuple(labels)] > -np.inf):
        yield "wrong about the feasibility of its labelling"
    if not feasible:
        if result.bound == "exact":
            yield "exact on an infeasible model"
        return
    yield from _wrong_value(model, method, result)
    yield from _wrong_marginals(model, result)
    # two more iterations of optimised weights are those of other weights
    optimised = isinstance(method, TRW) and method.optimise_rho
    if result.converged and isinstance(method, MessagePassingMethod) and not optimised:
        # the residual schedule keeps its messages in another layout
        schedule: Schedule = "residual" if method.schedule == "residual" else "coloured"
        plain = replace(method, iterations=2, tol=0.0, schedule=schedule, damping=0.0)
        more = plain.infer(model.graph, model.theta, model.observed, start=result)
        moved = float(np.abs(more.variable_marginals - result.variable_marginals).max())
        drift = abs(more.value - result.value) / (1 + abs(result.value))
        if result.target == "log_partition" and max(moved, drift) > _STILL:
            yield f"converged, but marginals move by {moved:.2g} and the value by a share of {drift:.2g}"


def _wrong_value(model: Model, method: Inference, result: Result) -> Iterator[str]:
    truth = model.log_partition if result.target == "log_partition" else model.max_score
    off = (result.value - truth) / (1 + abs(truth))
    if not np.isfinite(result.value):
        yield f"value {result.value}"
    elif (
        (result.bound == "exact" and abs(off) > (_ROUNDING if isinstance(method, Exact) else _TOLERANCE))
        or (result.bound == "upper" and off < -_ROUNDING)
        or (result.bound == "lower" and off > _ROUNDING)
    ):
        yield f"value {result.value:.15g} called {result.bound}, but the truth is {truth:.15g}"
    if isinstance(method, TRW) and result.upper_bound() < truth - _ROUNDING * (1 + abs(truth)):
        yield f"upper bound {result.upper_bound():.15g}, but the truth is {truth:.15g}"
    if result.score(result.argmax()) > model.max_score + _ROUNDING * (1 + abs(model.max_score)):
        yield "a labelling above the best score"


def _wrong_marginals(model: Model, result: Result) -> Iterator[str]:
    mu = result.variable_marginals
    if not np.all(np.isfinite(mu)) or np.abs(mu.sum(axis=1) - 1).max() > _TOLERANCE:
        yield "marginals that are no distribution"
    elif result.bound == "exact" and result.target == "log_partition":
        off = float(np.abs(mu - model.marginals()).max())
        if off > 10 * _TOLERANCE:
            yield f"marginals off by {off:.2g} although exact"


def check(n_models: int, first_seed: int) -> list[dict[str, Any]]:
    """Rows of the faults of all methods on models number 0 .. n_models - 1 of a seed."""
    rows = []
    for number in range(n_models):
        rng = np.random.default_rng([first_seed, number])
        try:
            model = random_model(rng)
        except InfeasibleError:
            continue
        for method in methods(rng):
            rows += [{"model": number, "method": repr(method), "fault": text} for text in faults(model, method)]
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Print the faults; 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=10_000, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    chosen = parser.parse_args(arguments)
    rows = check(chosen.models, chosen.seed)
    for row in rows:
        print(f"model {row['model']}: {row['method']}: {row['fault']}")
    print(f"{chosen.models} models, seed {chosen.seed}: {len(rows)} faults")
    return int(bool(rows))


if __name__ == "__main__":
    sys.exit(main())

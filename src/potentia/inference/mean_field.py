"""Mean field: coordinate ascent over product distributions, with pairs given by tables, weights or Gaussians."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import numpy as np

from ..base.memory import borrow
from ..base.options import check_count, check_share
from ..base.threads import map_ranges, thread_count
from ..base.types import Bools, Floats, InfeasibleError, Ints, PotentiaError
from ..graph.layout import adjacency
from ..graph.regions import Stars
from ..graph.scores import Scores
from ..graph.structure import Graph
from ..graph.tables import Weighted
from ..kernels import mean_field as kernels
from ..kernels.machine.team import SOLO, Team
from ..kernels.mean_field import DENSE, HOPELESS, LINEAR, WINDOW, WeightedPairs, expected_links, spread_all
from .base import Inference, ProductMarginals, Result
from .decode import best_labelling, feasible_labelling
from .engine import Engine, Readout, Tape, check_schedule, drive, layout_order


def weighted_links(scores: Scores) -> WeightedPairs:
    """The pairs of all weighted kinds, kind after kind, around their variables."""
    graph, weighted = scores.graph, scores.weighted
    shape = (0, graph.n_variables, int(graph.n_states.max()))
    ptr, other, pair, kind_of, side = _around(graph, list(weighted))
    tables = _DistinctTables()
    # the table that multiplies the other end's distribution, seen from the first end and from the second
    numbers = np.array([tables.of(own) for own in weighted.values()], dtype=np.int64).reshape(-1, 2)
    number = numbers[kind_of, side]
    readers = np.unique(np.stack([other, number], axis=1), axis=0).reshape(-1, 2)
    user_ptr = np.concatenate([[0], np.cumsum(np.bincount(readers[:, 0], minlength=graph.n_variables))])
    weights = [own.of_pairs(len(graph.scopes[kind])) for kind, own in weighted.items()]
    return WeightedPairs(
        ptr, other, pair, number, np.concatenate([np.zeros(0), *weights]), *tables.arrays(),
        user_ptr.astype(np.int64), readers[:, 1].copy(), np.zeros((len(tables.form), *shape[1:])),
    )  # fmt: skip


def _around(graph: Graph, kinds: list[str]) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """CSR over variables of the pairs of some kinds: other ends, pairs' numbers, kinds' numbers and own sides."""

    def build() -> tuple[Ints, Ints, Ints, Ints, Ints]:
        scopes = [graph.scopes[kind] for kind in kinds]
        pairs = np.concatenate([np.zeros((0, 2), dtype=np.int64), *scopes])
        kind_of = np.repeat(np.arange(len(kinds)), [len(scope) for scope in scopes]).astype(np.int64)
        ptr, other = adjacency(graph.n_variables, pairs)
        order = np.argsort(pairs.T.ravel(), kind="stable")
        pair, side = order % max(len(pairs), 1), order // max(len(pairs), 1)
        return ptr, other, pair, kind_of[pair], side

    return graph.cached(("weighted_links", *kinds), build)


class _DistinctTables:
    """The distinct tables of weighted kinds, as arrays of `WeightedPairs`."""

    def __init__(self) -> None:
        self.form: list[int] = []
        self.reach: list[int] = []
        self.cap: list[float] = []
        self.cost: list[Floats] = []
        self.table: list[Floats] = []

    def of(self, own: Weighted) -> tuple[int, int]:
        """Numbers of a kind's table seen from its first end and from its second."""
        if own.cost is None:
            sides = [own.unit] if np.array_equal(own.unit, own.unit.T) else [own.unit, own.unit.T]
            numbers = [self._add(DENSE, 0, 0.0, np.zeros(1), table) for table in sides]
            return numbers[0], numbers[-1]
        cost = own.cost.of(len(own.unit))
        cap = float(cost[-1])
        reach = int((cost < cap).sum()) - 1
        linear = own.cost.power == 1 and reach > 2
        number = self._add(LINEAR if linear else WINDOW, reach, cap, cost[: reach + 1], own.unit)
        return number, number

    def _add(self, form: int, reach: int, cap: float, cost: Floats, table: Floats) -> int:
        self.form.append(form)
        self.reach.append(reach)
        self.cap.append(cap)
        self.cost.append(cost)
        self.table.append(table)
        return len(self.form) - 1

    def arrays(self) -> tuple[Ints, Ints, Ints, Floats, Floats, Floats]:
        """form, states, reach, cap, cost and table of `WeightedPairs`."""
        states = np.array([len(table) for table in self.table], dtype=np.int64)
        widest = max((len(cost) for cost in self.cost), default=1)
        most = int(states.max(initial=1))
        cost, table = np.zeros((len(states), widest)), np.zeros((len(states), most, most))
        for k, own in enumerate(self.cost):
            cost[k, : len(own)] = own
            table[k, : states[k], : states[k]] = self.table[k]
        form, reach = np.array(self.form, dtype=np.int64), np.array(self.reach, dtype=np.int64)
        return form, states, reach, np.array(self.cap, dtype=np.float64), cost, table


#: Variables a group must hold before a second thread pays.
_PARALLEL_WORK = 20_000


class MeanFieldEngine(Engine):
    """Variables in groups of which no two share a region, and the current product distribution."""

    def __init__(self, scores: Scores, schedule: str, threads: int, seed: int) -> None:
        self.scores, self.schedule, self.threads, self.seed = scores, schedule, threads, seed
        self.theta, self.at = scores.flat(leave=scores.weighted)
        np.maximum(self.theta, kernels.FORBIDDEN, out=self.theta)
        #: Regions with separate tables.
        self.written = _written(scores)
        self.links, stars = weighted_links(scores), _stars_of(scores, self.written)
        self.model = kernels.MeanFieldModel(
            scores.regions, stars, self.links, self.theta, self.at, self.at[stars.pair]
        )
        self.variables, self.group_ptr = scores.graph.variable_groups(layout_order(schedule))
        if len(self.variables) >= _PARALLEL_WORK * (len(self.group_ptr) - 1):
            self.group_threads = threads
        self.q = self._first_guess()
        spread_all(self.links, self.q)

    def _first_guess(self) -> Floats:
        """Uniform over allowed states; a feasible labelling where larger regions forbid configurations."""
        allowed = self.scores.singles > -np.inf
        weighted = self.scores.weighted
        kinds = [k for k, s in self.scores.graph.scopes.items() if s.shape[1] > 1 and k not in weighted]
        if all(np.isfinite(self.scores.kind(k)[0]).all() for k in kinds):
            return allowed / allowed.sum(axis=1, keepdims=True)
        labels = feasible_labelling(self.scores)
        if labels is None:
            raise InfeasibleError(
                "mean field needs a labelling with a finite score to start from, and found none."
            )
        return (np.arange(allowed.shape[1]) == labels[:, None]).astype(float)

    @property
    def state(self) -> Floats:
        """The product distribution itself."""
        return self.q

    def messages(self) -> Floats:
        """The product distribution, (n, states)."""
        return self.q.copy()

    def set_messages(self, messages: Floats) -> None:
        """Start from the product distribution of an earlier run."""
        start = np.where(self.q > 0, messages, 0.0)
        total = start.sum(axis=1, keepdims=True)
        self.q = np.where(total > 0, start / np.where(total > 0, total, 1.0), self.q)
        spread_all(self.links, self.q)

    def sweep(
        self, units: Ints, iterations: int = 1, write: bool = True, watch: bool = True, team: Team = SOLO
    ) -> Floats:
        """Coordinate ascent over the variables at these positions, once in this order."""
        return np.array([kernels.sweep_variables(self.model, self.variables[units], self.q)])

    def read(self, cliques: bool = True) -> Readout:
        """Product marginals and E[theta] + H(q)."""
        regions = self.scores.regions
        # summed here, so that the order does not depend on threads
        own = borrow((len(regions.size),))
        map_ranges(
            lambda a, b: kernels.expected_scores(
                regions, self.theta, self.at, self.q, self.written, a, b, own
            ),
            0,
            len(own),
            self.group_threads,
        )
        positive = self.q[self.q > 0]
        value = float(own.sum()) + float(expected_links(self.links, self.q))
        value -= float((positive * np.log(positive)).sum())
        q = self.q.copy()
        return Readout(ProductMarginals(self.scores.graph, q, self.group_threads), q, value, None)


def _written(scores: Scores) -> Bools:
    """Regions whose tables are written out, in the `Regions` numbering."""
    taken, ptr = np.ones(len(scores.regions.size), dtype=np.bool_), scores.regions.kind_ptr
    for number, kind in enumerate(scores.graph.kinds):
        taken[ptr[number] : ptr[number + 1]] = kind not in scores.weighted
    return taken


def _stars_of(scores: Scores, written: Bools) -> Stars:
    """The graph's `Stars` without pairs given by weights."""
    every = scores.graph.stars
    if not scores.weighted:
        return every
    keep = written[every.pair]
    ptr = np.concatenate([[0], np.cumsum(keep)])[every.pair_ptr]
    return every._replace(
        pair_ptr=ptr,
        pair=every.pair[keep],
        other=every.other[keep],
        own=every.own[keep],
        step=every.step[keep],
    )


class DenseMeanFieldEngine(MeanFieldEngine):
    """Iterations begin with the fields of all Gaussian terms at the current distribution, which then stay as they are.

    Without other pairs that is the parallel update of dense CRFs, starting at the softmax of single scores.
    """

    def __init__(self, scores: Scores, schedule: str, threads: int, seed: int) -> None:
        super().__init__(scores, schedule, threads, seed)
        self.group_threads = 1  # an iteration is one call
        states = np.arange(self.q.shape[1])
        #: Where single scores lie in `theta`, (n, states), and what they are.
        self.singles_at: Ints = self.at[scores.regions.single][:, None] + states
        self.base: Floats = self.theta[self.singles_at]
        #: Whether the first distribution is the softmax of single scores; else it is a feasible labelling.
        self.soft_start = not self._forbids()
        if self.soft_start:
            self.q = softmax(self.base)
        spread_all(self.links, self.q)

    def _forbids(self) -> bool:
        """Whether explicit regions of several variables forbid configurations."""
        scores = self.scores
        kinds = [k for k, s in scores.graph.scopes.items() if s.shape[1] > 1 and k not in scores.weighted]
        return any(not np.isfinite(scores.kind(k)[0]).all() for k in kinds)

    def dense_field(self, q: Floats) -> Floats:
        """Expected scores of every variable's labels under all Gaussian terms, (n, states)."""
        field = np.zeros_like(q)
        for term in self.scores.dense.values():
            field += term.weight * term.field(term.kernel.multiply(q))
        return field

    def sweep(
        self, units: Ints, iterations: int = 1, write: bool = True, watch: bool = True, team: Team = SOLO
    ) -> Floats:
        """One iteration over the variables at these positions."""
        self.theta[self.singles_at] = self.base + self.dense_field(self.q)
        return super().sweep(units)

    def read(self, cliques: bool = True) -> Readout:
        """Product marginals and E[theta] + H(q)."""
        self.theta[self.singles_at] = self.base
        read = super().read(cliques)
        return read._replace(value=read.value + 0.5 * float((self.q * self.dense_field(self.q)).sum()))


def softmax(scores: Floats) -> Floats:
    """exp(scores) over their sum along the last axis."""
    found = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return found / found.sum(axis=-1, keepdims=True)


@dataclass
class MeanField(Inference):
    r"""Mean field [MBL-tpami sec. 3.2]: a lower bound on log Z.

    Coordinate ascent on :math:`E_q[\theta] + H(q)` over product distributions q.

    theta may hold `pt.DenseGaussian` terms. Then all variables are updated at once, starting at the softmax of their
    own scores. This is the algorithm of dense CRFs, whose objective need not rise. `argmax` is then the most likely
    label of each variable.

    Attributes:
        iterations: limit; one iteration updates every variable once.
        tol: stop when no marginal changed by more in an iteration.
        schedule: "coloured", "sequential" (0, 1, 2, ... then back) or "random".
        seed: of the random schedule.
        threads: None for all cores (or POTENTIA_THREADS).
    """

    threaded: ClassVar[bool] = True
    iterative: ClassVar[bool] = True
    dense_pairs: ClassVar[bool] = True

    iterations: int = 100
    tol: float = 1e-6
    schedule: Literal["coloured", "sequential", "random"] = "coloured"
    seed: int = 0
    threads: int | None = None

    def run(self, scores: Scores, start: Result | None) -> Result:
        """Coordinate ascent from uniform marginals or those of `start` (of any method)."""
        return self.solve(self.engine(scores, start))

    def on_one_thread(self) -> Self:
        """The same method with one thread."""
        return replace(self, threads=1)

    def counting_numbers(self, graph: Graph) -> Floats:
        """1 on variables, 0 on larger regions."""
        regions = graph.regions
        return (regions.order == 1).astype(float)

    def engine(self, scores: Scores, start: Result | None = None) -> MeanFieldEngine:
        """An engine at uniform marginals or those of `start`."""
        check_count("iterations", self.iterations)
        check_count("seed", self.seed)
        check_share("tol", self.tol)
        check_schedule(self.schedule)
        if self.schedule == "residual":
            raise PotentiaError("mean field has no residual schedule; use coloured, sequential or random.")
        kind = DenseMeanFieldEngine if scores.dense else MeanFieldEngine
        engine = kind(scores, self.schedule, thread_count(self.threads), self.seed)
        engine.from_scores = bool(scores.dense) and start is None
        if start is not None:
            engine.set_messages(start.variable_marginals)
        return engine

    def solve(self, engine: MeanFieldEngine, tape: Tape | None = None, cliques: bool = True) -> Result:
        """Coordinate ascent until the tolerance is met or the iterations run out, and what it gives."""
        scores, outcome = engine.scores, drive(engine, self.iterations, self.tol, tape)
        if tape is not None:
            engine.record(tape.slots, 0)
        read = engine.read(cliques)
        if read.value < HOPELESS:
            raise InfeasibleError(
                "mean field started from marginals that put weight on forbidden configurations."
            )
        bound = "lower" if all(term.kernel.exact for term in scores.dense.values()) else "estimate"
        best = Result.mpm if scores.dense else best_labelling
        return Result.of(scores, outcome, read, bound=bound, target="log_partition", best=best)

"""Mean field: coordinate ascent over product distributions, with pairs given by tables, weights or Gaussians."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import numpy as np

from ..base.resources import borrow, map_ranges, thread_count
from ..base.types import Bools, Floats, InfeasibleError, Ints, check_choice
from ..graph.layout import adjacency
from ..graph.regions import Stars
from ..graph.scores import Scores
from ..graph.structure import Graph, per_graph
from ..graph.tables import Weighted
from ..kernels import mean_field as kernels
from ..kernels.factors import FIRST, VALUE_AT
from ..kernels.machine.team import SOLO, Team
from ..kernels.mean_field import DENSE, HOPELESS, LINEAR, WINDOW, WeightedPairs, expected_links, spread_all
from .base import Inference, Result, TablesByKind, single_tables
from .decode import best_labelling, feasible_labelling
from .engine import Engine, Entropy, Readout, Tape, check_options, drive, layout_order
from .factor_trees import arrange, factor_trees

#: Variables a group must hold before a second thread pays.
_PARALLEL_WORK = 20_000


def weighted_links(scores: Scores) -> WeightedPairs:
    """The pairs of all weighted kinds, kind after kind, around their variables."""
    graph, weighted = scores.graph, scores.weighted
    ptr, other, pair, kind_of, side = _around(graph, tuple(weighted))
    forms: list[tuple[int, int, float, Floats, Floats]] = []
    # per kind, the table that multiplies the other end's distribution, seen from the first end and from the second
    numbers = np.zeros((len(weighted), 2), dtype=np.int64)
    for k, kind in enumerate(weighted.values()):
        numbers[k] = len(forms)
        forms += _forms(kind)
        numbers[k, 1] = len(forms) - 1
    number = numbers[kind_of, side]
    readers = np.unique(np.stack([other, number], axis=1), axis=0).reshape(-1, 2)
    user_ptr = np.concatenate([[0], np.cumsum(np.bincount(readers[:, 0], minlength=graph.n_variables))])
    weights = [kind.of_pairs(len(graph.scopes[name])) for name, kind in weighted.items()]
    states = np.array([len(form[4]) for form in forms], dtype=np.int64)
    most = int(states.max(initial=1))
    cost = np.zeros((len(forms), max((len(form[3]) for form in forms), default=1)))
    table = np.zeros((len(forms), most, most))
    for k, (_, _, _, costs, unit) in enumerate(forms):
        cost[k, : len(costs)] = costs
        table[k, : len(unit), : len(unit)] = unit
    return WeightedPairs(
        ptr, other, pair, number, np.concatenate([np.zeros(0), *weights]),
        np.array([form[0] for form in forms], dtype=np.int64), states,
        np.array([form[1] for form in forms], dtype=np.int64), np.array([form[2] for form in forms], dtype=np.float64),
        cost, table, user_ptr.astype(np.int64), readers[:, 1].copy(),
        np.zeros((len(forms), graph.n_variables, int(graph.n_states.max()))),
    )  # fmt: skip


def _forms(weighted: Weighted) -> list[tuple[int, int, float, Floats, Floats]]:
    """form, reach, cap, cost and table of a kind's unit table; twice, for both ends, where it is not symmetric."""
    if weighted.cost is None:
        unit = weighted.unit
        sides = [unit] if np.array_equal(unit, unit.T) else [unit, unit.T]
        return [(DENSE, 0, 0.0, np.zeros(1), table) for table in sides]
    cost = weighted.cost.of(len(weighted.unit))
    cap = float(cost[-1])
    reach = int((cost < cap).sum()) - 1
    linear = weighted.cost.power == 1 and reach > 2
    return [(LINEAR if linear else WINDOW, reach, cap, cost[: reach + 1], weighted.unit)]


@per_graph
def _around(graph: Graph, kinds: tuple[str, ...]) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """CSR over variables of the pairs of some kinds: other ends, pairs' numbers, kinds' numbers and own sides."""
    scopes = [graph.scopes[kind] for kind in kinds]
    pairs = np.concatenate([np.zeros((0, 2), dtype=np.int64), *scopes])
    kind_of = np.repeat(np.arange(len(kinds)), [len(scope) for scope in scopes]).astype(np.int64)
    ptr, other = adjacency(graph.n_variables, pairs)
    order = np.argsort(pairs.T.ravel(), kind="stable")
    pair, side = order % max(len(pairs), 1), order // max(len(pairs), 1)
    return ptr, other, pair, kind_of[pair], side


class MeanFieldEngine(Engine):
    """Variables in groups of which no two share a region, and the current product distribution q, (n, states).

    With Gaussian terms, an iteration begins with their fields at the current distribution, which then stay as they are;
    without other pairs that is the parallel update of dense CRFs, starting at the softmax of single scores.
    """

    def __post_init__(self) -> None:
        """Scores as flat arrays, pairs by weight around their variables, and the first distribution."""
        scores = self.scores
        self.theta, self.at = scores.flat(leave=scores.weighted, structured=True)
        np.maximum(self.theta, kernels.FORBIDDEN, out=self.theta)
        #: Regions with separate tables.
        self.written = _written(scores)
        self.links, stars = weighted_links(scores), _stars_of(scores, self.written)
        trees, _, variable = factor_trees(scores, self.at, trim=False)
        trees.items[:, VALUE_AT] = variable * scores.singles.shape[1]
        #: Factor and variable of the items of structured factors.
        self.owner = np.repeat(np.arange(len(trees.factor) - 1), np.diff(trees.factor[:, FIRST]))
        self.item_variable = variable
        item_ptr = np.concatenate([[0], np.cumsum(np.bincount(variable, minlength=scores.graph.n_variables))])
        self.model = kernels.MeanFieldModel(
            scores.regions, stars, self.links, self.theta, self.at, self.at[stars.pair], trees, item_ptr,
            np.argsort(variable, kind="stable"), self.owner,
        )  # fmt: skip
        self.variables, self.group_ptr = scores.graph.variable_groups(layout_order(self.schedule))
        # with Gaussian terms an iteration is one call
        if len(self.variables) >= _PARALLEL_WORK * (len(self.group_ptr) - 1) and not scores.dense:
            self.group_threads = self.threads
        if scores.dense:
            #: Where single scores lie in `theta`, (n, states), and what they are.
            self.singles_at: Ints = self.at[scores.regions.single][:, None] + np.arange(scores.singles.shape[1])
            self.base: Floats = self.theta[self.singles_at]
        self.q = self._first_guess()
        spread_all(self.links, self.q)

    def _first_guess(self) -> Floats:
        """Uniform over allowed states, or the softmax of single scores; a feasible labelling where regions forbid."""
        scores, allowed = self.scores, self.scores.singles > -np.inf
        kinds = [kind for kind in scores.graph.clique_kinds if kind not in scores.weighted]
        if all(np.isfinite(scores.kind(kind)[0]).all() for kind in kinds):
            self.from_scores = bool(scores.dense)
            return softmax(self.base) if scores.dense else allowed / allowed.sum(axis=1, keepdims=True)
        labels = feasible_labelling(scores)
        if labels is None:
            raise InfeasibleError("mean field needs a labelling with a finite score to start from, and found none.")
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
        self.from_scores = False
        spread_all(self.links, self.q)

    def dense_field(self) -> Floats:
        """Expected scores of every variable's labels under all Gaussian terms, (n, states)."""
        field = np.zeros_like(self.q)
        for term in self.scores.dense.values():
            field += term.weight * term.field(term.multiply(self.q))
        return field

    def sweep(
        self, units: Ints, iterations: int = 1, write: bool = True, watch: bool = True, team: Team = SOLO
    ) -> Floats:
        """Coordinate ascent over the variables at these positions, once in this order."""
        if self.scores.dense:
            self.theta[self.singles_at] = self.base + self.dense_field()
        self.arrange(units)
        return np.array([kernels.sweep_variables(self.model, self.variables[units], self.q)])

    def arrange(self, units: Ints) -> None:
        """Order the leaves of trees as the variables at these positions are visited."""
        if len(self.item_variable):
            rank = np.empty(len(self.variables), dtype=np.int64)
            rank[self.variables[units]] = np.arange(len(units))
            arrange(self.model.trees, rank[self.item_variable])

    def outcomes(self) -> dict[str, Floats]:
        """Probabilities of the outcomes of kinds of structured factors, (n_regions, n_outcomes)."""
        graph, tables = self.scores.graph, {}
        for kind in graph.structures:
            rows, shape = graph.region_slices[kind], graph.shared_shape(kind)
            if shape is not None:
                tables[kind] = np.empty((rows.stop - rows.start, *shape))
                for row, region in zip(tables[kind], range(rows.start, rows.stop), strict=True):
                    kernels.outcome_probabilities(self.model, self.q, self.model.trees.of[region], row)
        return tables

    def read(self, cliques: bool = True) -> Readout:
        """Product marginals and E[theta] + H(q)."""
        regions, q = self.scores.regions, self.q.copy()
        if self.scores.dense:
            self.theta[self.singles_at] = self.base
        # summed here, so that the order does not depend on threads
        expected = borrow((len(regions.size),))
        map_ranges(
            lambda a, b: kernels.expected_scores(regions, self.theta, self.at, q, self.written, a, b, expected),
            0, len(expected), self.group_threads,
        )  # fmt: skip
        positive = q[q > 0]
        outcomes = self.outcomes()
        for kind, table in outcomes.items():
            rows = self.scores.graph.region_slices[kind]
            own = self.theta[self.at[rows, None] + np.arange(table.shape[1])]
            expected[rows] = np.where(table > 0, own * table, 0.0).sum(axis=1)
        value = float(expected.sum()) + float(expected_links(self.links, q))
        value -= float((positive * np.log(positive)).sum())
        if self.scores.dense:
            value += 0.5 * float((q * self.dense_field()).sum())
        graph, threads = self.scores.graph, self.group_threads

        def tables(kind: str) -> Floats | list[Floats]:
            return outcomes[kind] if kind in outcomes else product_tables(graph, q, threads, kind)

        return Readout(TablesByKind(graph, tables), q, value, None)


def product_tables(graph: Graph, q: Floats, threads: int, kind: str) -> Floats | list[Floats]:
    """Marginals of a kind under the product distribution q (n, states)."""
    if graph.scopes[kind].shape[1] <= 1 or not len(graph.scopes[kind]):
        return single_tables(graph, kind, q)
    regions, rows = graph.regions, graph.region_slices[kind]
    first, last = rows.start, rows.stop
    size = regions.size[first:last]
    start, flat = np.cumsum(size) - size, borrow((int(size.sum()),))
    map_ranges(
        lambda a, b: kernels.product_marginals(regions, q, a, b, start[a - first : b - first], flat),
        first, last, threads,
    )  # fmt: skip
    return graph.shape_tables(kind, flat)


def _written(scores: Scores) -> Bools:
    """Regions whose tables are written out, in the `Regions` numbering."""
    written = np.ones(len(scores.regions.size), dtype=np.bool_)
    for kind in (*scores.weighted, *scores.graph.structures):
        written[scores.graph.region_slices[kind]] = False
    return written


def _stars_of(scores: Scores, written: Bools) -> Stars:
    """The graph's `Stars` without pairs given by weights."""
    every = scores.graph.stars
    if not scores.weighted:
        return every
    keep = written[every.pair]
    ptr = np.concatenate([[0], np.cumsum(keep)])[every.pair_ptr]
    pairs = {name: getattr(every, name)[keep] for name in ("pair", "other", "own", "step")}
    return every._replace(pair_ptr=ptr, **pairs)


@per_graph
def product_entropy(graph: Graph) -> Entropy:
    """The entropy of a product distribution: c = 1 on variables, 0 on larger regions."""
    return Entropy((graph.regions.order == 1).astype(float), "star", "log_partition", "lower")


def softmax(scores: Floats) -> Floats:
    """exp(scores) over their sum along the last axis."""
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


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

    Example:
        >>> import potentia as pt
        >>> import numpy as np
        >>> graph = pt.Graph.chain(4, n_states=2)
        >>> theta = {"node": [[0, 1]] * 4, "edge": np.eye(2)}
        >>> result = pt.MeanField().infer(graph, theta)
        >>> result.bound, result.value <= pt.Exact().infer(graph, theta).value
        ('lower', True)
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
        """This method with one thread."""
        return replace(self, threads=1)

    def counting_numbers(self, graph: Graph) -> Floats:
        """1 on variables, 0 on larger regions."""
        return product_entropy(graph).counting.copy()

    def engine(self, scores: Scores, start: Result | None = None) -> MeanFieldEngine:
        """An engine at uniform marginals or those of `start`."""
        check_options(self)
        check_choice("schedule", self.schedule, ("coloured", "sequential", "random"))
        entropy, threads = product_entropy(scores.graph), thread_count(self.threads)
        engine = MeanFieldEngine(scores, entropy, self.schedule, threads=threads, seed=self.seed)
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
            raise InfeasibleError("mean field started from marginals that put weight on forbidden configurations.")
        bound = engine.entropy.bound if all(term.is_exact for term in scores.dense.values()) else "estimate"
        best = Result.mpm if scores.dense else best_labelling
        return Result.of(scores, outcome, read, bound=bound, target=engine.entropy.target, best=best)

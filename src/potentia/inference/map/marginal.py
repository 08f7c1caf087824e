"""Marginal MAP: the best labelling of some variables with the others summed out."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from ...base.resources import available_memory
from ...base.types import ArrayLike, Bools, Floats, InfeasibleError, Ints, PotentiaError, WidthError, whole_numbers
from ...graph.factors import join_factors
from ...graph.layout import components, walk
from ...graph.scores import Scores, check_labels, score_labels, trivial_bound
from ..base import Interrupted
from ..clock import Clock
from ..elimination import EliminationPlan, make_plan, send_all_up
from ..mean_field import MeanField
from ..messages import LoopyBP
from ..minibucket import MiniBuckets, choose_split, factors_in_order
from ..order_search import Interactions, allowed_states, first_order, interactions, search_orders, trials, without
from ..structured import Expansion
from .moves import csr_rows
from .portfolio import MAP, MAPResult
from .sums import sum_out, tables_of

#: Table entries of the sum given a labelling, at most; tables of summing out variables beforehand, at most.
_MAX_ENTRIES, _MAX_TABLE = 2.0**28, 2**16
#: How many times too wide an order may be for others to be tried.
_HOPELESS = 2.0**12
#: Shares of the time for the joint labelling and for the bound.
_JOINT, _BOUND = 0.3, 0.15
#: States of a variable that a move tries, at most.
_STATES = 8
#: Variables that a kick changes.
_KICK = 3
#: Temperature of maxima while mini-buckets are tightened.
_COLD = 0.02


def check_query(query: ArrayLike | None, n: int) -> Bools:
    """The variables of the query as a mask, (n,)."""
    variables = whole_numbers(query, "query")
    if variables.ndim != 1 or not len(variables):
        raise PotentiaError(f"query must be a list of variables, not of shape {variables.shape}.")
    if variables.min() < 0 or variables.max() >= n:
        bad = int(variables[(variables < 0) | (variables >= n)][0])
        raise PotentiaError(f"query names variable {bad}; the graph has 0..{n - 1}.")
    mask = np.zeros(n, dtype=bool)
    mask[variables] = True
    if mask.sum() < len(variables):
        raise PotentiaError("query names a variable twice.")
    return mask


@dataclass(frozen=True, eq=False, repr=False)
class MarginalMAPResult(MAPResult):
    """The result of `MAP(query=...)`: `argmax()` has -1 at summed-out variables, `value` is an upper bound.

    Marginals are indicators of the query's labels, and uniform for the other variables.

    Attributes:
        query: which variables are labelled, (n_variables,).
        score_bound: "exact" if `score` is the log of the sum, "lower" if it is a lower bound on it.
    """

    query: Bools = field(default_factory=lambda: np.zeros(0, dtype=bool))
    score_bound: str = "exact"

    def score(self, labels: ArrayLike) -> float:
        """The log of the sum of exp F(y) over the variables whose labels are -1; the query needs labels."""
        y = check_labels(self.graph, labels)
        if np.any(y[self.query] < 0):
            raise PotentiaError("score needs a label of every variable of the query; labels hold -1 there.")
        if np.all(y >= 0):
            return score_labels(self.scores, y)
        key = f"score {y.tobytes().hex()}"
        if key not in self.memo:
            self.memo[key] = sum_given(self.scores, y, self.score_bound == "exact")
        value: float = self.memo[key]
        return value


def label_query(method: MAP, scores: Scores, clock: Clock) -> MarginalMAPResult:
    """Marginal MAP with the options of `method`; Ctrl-C raises `Interrupted` with the best so far."""
    query = check_query(method.query, scores.graph.n_variables)
    solved = Expansion(scores).scores if scores.graph.structures else scores
    every = np.zeros(solved.graph.n_variables, dtype=bool)  # with auxiliary variables, which are summed out
    every[: len(query)] = query
    answer = QueryAnswer(np.where(every, 0, -1))
    try:
        _solve(method, solved, every, answer, clock)
    except KeyboardInterrupt:
        answer.interrupted = True
        raise Interrupted(_result(scores, query, answer, clock)) from None
    return _result(scores, query, answer, clock)


def _result(scores: Scores, query: Bools, answer: QueryAnswer, clock: Clock) -> MarginalMAPResult:
    """The record of a labelling of some variables."""
    answer.labels = answer.labels[: len(query)]
    width, n_states = scores.singles.shape[1], scores.graph.n_states[:, None]
    uniform = (np.arange(width) < n_states) / n_states
    indicator = (np.arange(width) == answer.labels[:, None]).astype(np.float64)
    slack = 1e-9 * (1.0 + abs(answer.value)) + scores.rounding()
    proven = answer.exact and math.isfinite(answer.value) and answer.upper <= answer.value + slack
    return MarginalMAPResult.of_labels(
        scores, answer.labels, np.where(query[:, None], indicator, uniform),
        answer.value if proven else answer.upper, proven,
        iterations=0, found_by=answer.found_by, bound_by=answer.bound_by, interrupted=answer.interrupted,
        feasible=math.isfinite(answer.value), query=query, score_bound="exact" if answer.exact else "lower",
        seconds=clock.seconds, cpu_seconds=clock.cpu_seconds,
    )  # fmt: skip


# -- the value of a labelling -------------------------------------------------------------------------------------


class ClampedSum:
    """log sum over the summed-out variables given labels of the query, by components that do not share a region.

    Args:
        scores, allowed: the problem and the states that propagation leaves. query: mask of variables.

    Raises `WidthError` where elimination given the query would take too large tables.
    """

    def __init__(self, scores: Scores, allowed: Bools, query: Bools) -> None:
        self.scores, regions = scores, scores.regions
        self.values, self.where = scores.flat()
        free = ~query & (allowed.sum(axis=1) > 1)
        self._query, self._decided = query, allowed.argmax(axis=1)
        narrow = allowed.copy()
        narrow[~free] = np.arange(allowed.shape[1]) == 0
        self._narrow, self._region = narrow, np.repeat(np.arange(len(regions.size)), regions.order)
        self._fixed = ~free[regions.scope]
        joined = interactions(scores, narrow)
        order = first_order(joined)
        if 2.0**16 < order.total < _HOPELESS * _MAX_ENTRIES:
            order = search_orders(joined, order, trials(min(30, 1 + 20_000 // len(joined.free))), 0)
        if order.total > _MAX_ENTRIES:
            raise WidthError(
                f"the sum given the query needs {order.total:.3g} table entries, more than {_MAX_ENTRIES:.3g}."
            )
        in_order = joined.free[order.order]
        component = components(*walk(joined.ptr, joined.neighbour))
        position = np.full(len(query), -1)
        position[joined.free] = component
        #: The elimination of each component.
        self.plans: list[EliminationPlan] = []
        owner = np.full(len(regions.size), -1)
        owner[self._region[~self._fixed]] = position[regions.scope[~self._fixed]]
        for number in range(int(component.max(initial=-1)) + 1):
            self.plans.append(self._plan(in_order[position[in_order] == number]))
        #: The component of each region, -1 where it has no summed-out variable.
        self.owner = owner

    def _plan(self, order: Ints) -> EliminationPlan:
        """The elimination of some variables in this order, with all others clamped to one state."""
        inside = np.isin(np.arange(len(self._narrow)), order)
        narrow = np.where(inside[:, None], self._narrow, np.arange(self._narrow.shape[1]) == 0)
        return make_plan(self.scores.regions, narrow, 2**62, order=order)

    def base(self, labels: Ints) -> Ints:
        """Index of each region's entry where the clamped variables are at their labels and the others in state 0."""
        regions = self.scores.regions
        labels = np.where(self._query, labels, self._decided)
        steps = regions.stride[self._fixed] * labels[regions.scope[self._fixed]]
        return self.where + np.bincount(self._region[self._fixed], steps, len(self.where)).astype(np.int64)

    def component(self, number: int, base: Ints) -> float:
        """The log of the sum over one component."""
        _, peaks = send_all_up(self.plans[number], self.values, base, maximise=False)
        return math.fsum(peaks)

    def plain(self, base: Ints) -> Floats:
        """Scores of the regions without summed-out variables, zero at the others."""
        return np.where(self.owner < 0, self.values[base], 0.0)

    def value(self, labels: Ints) -> float:
        """The log of the whole sum; labels of summed-out variables are ignored."""
        base = self.base(labels)
        total = float(self.plain(base).sum())
        for number in range(len(self.plans)):
            if total == -math.inf:
                break
            total += self.component(number, base)
        return total


# -- search ---------------------------------------------------------------------------------------------------------


@dataclass
class QueryAnswer:
    """The best labelling of the query so far (-1 elsewhere), its value, an upper bound, and who found them."""

    labels: Ints
    value: float = -math.inf
    found_by: str = "none"
    upper: float = math.inf
    bound_by: str = "none"
    #: Whether values of labellings are exact; otherwise they are lower bounds.
    exact: bool = True
    interrupted: bool = False

    def offer(self, labels: Ints, value: float, part: str) -> bool:
        """Take a labelling if it is better."""
        if value <= self.value:
            return False
        self.labels, self.value, self.found_by = labels.copy(), value, part
        return True

    def tighten(self, upper: float, part: str) -> None:
        """Take an upper bound if it is lower."""
        if upper < self.upper:
            self.upper, self.bound_by = upper, part


def _solve(method: MAP, scores: Scores, query: Bools, answer: QueryAnswer, clock: Clock) -> None:
    """Improve the answer until it is proven or the time is over."""
    allowed = allowed_states(scores)
    if _sum_out(method, scores, allowed, query, answer, clock):
        return
    summed = float(np.log(allowed.sum(axis=1)[~query]).sum())
    answer.tighten(trivial_bound(scores) + summed, "maxima of the tables")
    try:
        total: ClampedSum | None = ClampedSum(scores, allowed, query)
    except WidthError:
        total, answer.exact = None, False
    for labels, part in _starts(method, scores, clock):
        clamp = np.where(query, labels, -1)
        answer.offer(clamp, lower_value(scores, clamp, labels) if total is None else total.value(labels), part)
    _bound(scores, allowed, query, answer, clock)
    if total is not None:
        _QueryClimb(total, query, allowed, answer, clock, method.seed).run()


def sum_given(scores: Scores, clamp: Ints, exactly: bool) -> float:
    """The log of the sum over the variables where `clamp` is -1: exact, or a lower bound; -inf if all is forbidden."""
    if scores.graph.structures:
        scores = Expansion(scores).scores
        clamp = np.append(clamp, np.full(scores.graph.n_variables - len(clamp), -1))
    try:
        clamped = scores.clamp(clamp)
        if exactly:
            return ClampedSum(clamped, allowed_states(clamped), clamp >= 0).value(clamp)
    except InfeasibleError:
        return -math.inf
    return lower_value(scores, clamp)


def lower_value(scores: Scores, clamp: Ints, labels: Ints | None = None) -> float:
    """A lower bound on the log of the sum over the variables where `clamp` is -1."""
    try:
        value = MeanField(iterations=50).run(scores.clamp(clamp), None).value
    except InfeasibleError:
        return -math.inf
    least = -math.inf if labels is None else score_labels(scores, labels)
    return max(value, least) if math.isfinite(value) else least


def _starts(method: MAP, scores: Scores, clock: Clock) -> list[tuple[Ints, str]]:
    """Labellings to start from: the best joint one, and the most likely states by belief propagation."""
    joint = replace(method, query=None).label(scores, None, clock.part(_JOINT * clock.left))
    starts = [(joint.argmax(), "joint labelling")]
    if clock.left > 0:
        beliefs = LoopyBP(iterations=30, threads=1).run(scores, None)
        if np.all(np.isfinite(beliefs.variable_marginals)):
            starts.append((beliefs.variable_marginals.argmax(axis=1), "belief propagation"))
    return starts


def _bound(scores: Scores, allowed: Bools, query: Bools, answer: QueryAnswer, clock: Clock) -> None:
    """An upper bound by mini-buckets that sum first and maximise over the query last."""
    joined = interactions(scores, allowed)
    order = constrained_order(joined, query[joined.free])
    factors = factors_in_order(scores, allowed, joined.free[order])
    seconds = min(clock.left, 600.0)
    memory = min(0.3 * available_memory(), 2e9)
    split = choose_split(factors, memory, _BOUND * seconds / 2e-7, clock.going(clock.left - _BOUND * seconds))
    buckets = MiniBuckets(factors, split, summed=~query[factors.order], cold=_COLD)
    value = buckets.send(clock.going())
    if value is None:
        return
    value = buckets.tighten(value, 30, clock.going(clock.left - _BOUND * seconds))
    answer.tighten(value, "mini-buckets")
    frozen = buckets.freeze()
    if frozen is not None:
        answer.tighten(frozen, "mini-buckets")
    if answer.upper == -math.inf:
        raise InfeasibleError("every labelling is forbidden: the -inf scores contradict each other.")


def constrained_order(joined: Interactions, query: Bools) -> Ints:
    """Positions in an order that eliminates the summed-out variables first, each part by a greedy order."""
    parts = ((~query, without(joined, query)), (query, without(joined, ~query)))
    return np.concatenate([np.flatnonzero(own)[first_order(graph).order] for own, graph in parts])


class _QueryClimb:
    """Coordinate ascent over the query with exact sums, and kicks."""

    def __init__(
        self, total: ClampedSum, query: Bools, allowed: Bools, answer: QueryAnswer, clock: Clock, seed: int
    ) -> None:
        self.total, self.answer, self.clock, self.allowed = total, answer, clock, allowed
        self.query = np.flatnonzero(query & (allowed.sum(axis=1) > 1))
        self.fixed = np.where(query, allowed.argmax(axis=1), -1)
        self.rng = np.random.default_rng(seed)
        regions = total.scores.regions
        members = {int(q): slice(*regions.member_ptr[q : q + 2]) for q in self.query}
        #: Regions of each variable of the query and its step in them.
        self.around = {
            q: (regions.member[m].astype(np.int64), regions.stride[regions.member_at[m]].astype(np.int64))
            for q, m in members.items()
        }
        self.components = {q: np.unique(total.owner[r][total.owner[r] >= 0]) for q, (r, _) in self.around.items()}

    def run(self) -> None:
        """Ascents from the answer, then from kicked versions of the best labelling, until the time is over."""
        self._ascend(self.answer.labels.copy(), "coordinate ascent")
        kicks = 0
        while self.clock.left > 0 and len(self.query) and kicks < 10 * len(self.query):
            labels = self.answer.labels.copy()
            for q in self.rng.choice(self.query, min(_KICK, len(self.query)), replace=False):
                labels[q] = self.rng.choice(np.flatnonzero(self.allowed[q]))
            if self._ascend(labels, "kicks"):
                kicks = 0
            kicks += 1

    def _ascend(self, labels: Ints, part: str) -> bool:
        """Change one variable at a time while that helps; whether the answer improved."""
        labels = np.where(self.fixed >= 0, np.where(labels >= 0, labels, self.fixed), -1)
        base = self.total.base(labels)
        sums = np.array([self.total.component(c, base) for c in range(len(self.total.plans))])
        value = float(self.total.plain(base).sum()) + float(sums.sum())
        improved = self.answer.offer(labels, value, part)
        queue = list(self.rng.permutation(self.query))
        while queue and self.clock.left > 0:
            q = int(queue.pop())
            state, gain, new = self._best_state(q, labels, base, sums)
            if state == labels[q]:
                continue
            regions, steps = self.around[q]
            base[regions] += steps * (state - labels[q])
            sums[self.components[q]] = new
            labels[q] = state
            value = value + gain if math.isfinite(gain) else float(self.total.plain(base).sum() + sums.sum())
            improved = self.answer.offer(labels, value, part) or improved
            near = self._near(q, set(queue))
            queue = [*self.rng.permutation(near), *queue] if len(near) else queue
        return improved

    def _near(self, q: int, waiting: set[int]) -> list[int]:
        """Variables of the query that share a region with q and are not waiting."""
        regions = self.total.scores.regions
        near = set(regions.scope[csr_rows(regions.scope_ptr, self.around[q][0])].tolist()) - {q} - waiting
        return [v for v in near if v in self.around]

    def _best_state(self, q: int, labels: Ints, base: Ints, sums: Floats) -> tuple[int, float, Floats]:
        """The best state of q given all others, what it gains, and the sums of its components there."""
        regions, steps = self.around[q]
        mine, total = self.components[q], self.total
        plain = total.owner[regions] < 0
        states = np.flatnonzero(self.allowed[q])
        direct = np.array([
            total.values[(base[regions] + steps * (s - labels[q]))[plain]].sum() for s in states
        ])  # fmt: skip
        now = float(direct[states == labels[q]][0] + sums[mine].sum())
        best, best_value, best_sums = int(labels[q]), now, sums[mine]
        for k in np.argsort(-direct, kind="stable")[:_STATES]:
            if states[k] == labels[q] or direct[k] == -math.inf:
                continue
            moved = base.copy()
            moved[regions] += steps * (states[k] - labels[q])
            new = np.array([total.component(int(c), moved) for c in mine])
            value = float(direct[k] + new.sum())
            if value > best_value + 1e-12 * abs(best_value):
                best, best_value, best_sums = int(states[k]), value, new
            if self.clock.left <= 0:
                break
        gain = best_value - now if math.isfinite(now) else math.inf
        return best, gain, best_sums


def _sum_out(method: MAP, scores: Scores, allowed: Bools, query: Bools, answer: QueryAnswer, clock: Clock) -> bool:
    """Where all sums fit into small tables over the query: the best labelling of those; False otherwise."""
    free = np.flatnonzero(query & (allowed.sum(axis=1) > 1))
    tables = tables_of(scores, allowed)
    if not sum_out(tables, np.flatnonzero(~query & (allowed.sum(axis=1) > 1)), allowed, _MAX_TABLE):
        return False
    number = np.cumsum(np.isin(np.arange(len(query)), free)) - 1
    constant = sum(float(table) for scope, table in tables.values() if not scope)
    kept = [np.flatnonzero(row) for row in allowed]
    labels = np.where(query, allowed.argmax(axis=1), -1)
    if constant == -math.inf:
        raise InfeasibleError("every labelling is forbidden: the -inf scores contradict each other.")
    if not len(free):
        answer.offer(labels, constant, "elimination")
        answer.tighten(constant, "elimination")
        return True
    factors = [([int(number[v]) for v in scope], table) for scope, table in tables.values() if scope]
    graph, theta = join_factors(factors, [len(kept[v]) for v in free])
    result = replace(method, query=None).label(Scores(graph, theta), None, clock.part(clock.left))
    states = result.argmax()
    labels[free] = [kept[v][s] for v, s in zip(free, states, strict=True)]
    answer.offer(labels, result.score(states) + constant, result.found_by)
    answer.tighten(result.value + constant, result.bound_by)
    return True

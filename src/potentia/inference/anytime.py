"""`Anytime`: log Z with bounds on both sides and marginals, by a portfolio that gets better until its time is over."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from ..base.resources import available_memory
from ..base.types import Bools, Floats, InfeasibleError, Ints, check_count, check_positive, check_share
from ..graph.scores import Scores, score_labels, trivial_bound
from ..graph.structure import Graph
from ..kernels.elimination import send_labels
from .base import Inference, Interrupted, Result, TablesByKind, all_singles, marginals_by_kind
from .clock import Clock
from .conditioning import Cutset, choose_cutset, clamped, send_up_timed
from .decode import best_labelling
from .elimination import EliminationPlan, make_plan, send_all_down
from .exact import Exact
from .map.portfolio import MAP
from .mean_field import MeanField, product_tables
from .messages import LoopyBP
from .minibucket import BucketFactors, MiniBuckets, Split, choose_split, factors_in_order
from .order_search import Interactions, Order, allowed_states, first_order, interactions, search_orders
from .structured import Expansion

Tables = Floats | list[Floats]

#: Seconds per table entry of elimination upwards, downwards, and of an iteration of mini-buckets, to plan with.
_UP, _DOWN, _ITERATION = 2.5e-9, 6e-9, 1e-8
#: Table entries that elimination takes without looking for something better.
_FEW = 2.0**22
#: Variables from which belief propagation comes before an elimination order, which then takes long.
_LARGE = 1000
#: Shares of the time for belief propagation, for orders, and of what is then left for tightening mini-buckets and for a
#: labelling.
_MESSAGES, _ORDERS, _TIGHTEN, _LABELLING = 0.05, 0.15, 0.4, 0.05
#: Table entries of belief propagation per second to count on, and its iterations.
_MESSAGE_SPEED, _MESSAGE_ITERATIONS = 3e7, 50
#: Iterations of mini-buckets that their size leaves time for, and at most.
_ROUNDS, _MAX_ROUNDS = 10, 100
#: Samples at a time, importance samples at least, exact ones at most, and variables drawn at a time.
_BATCH, _LEAST_SAMPLES, _MAX_SAMPLES, _DRAWS = 1000, 100, 200_000, 1e6
#: Samples end once their weights' variance says that log Z is known to the square root of this.
_PRECISION = 1e-6
#: Effective samples that weigh as much as belief propagation does in marginals.
_PRIOR = 5.0
#: Share of the memory to plan with.
_MEMORY = 0.9
#: Rounding of bounds, relative to their size.
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False, repr=False)
class AnytimeResult(Result):
    """What `Anytime` computed: `value` is its estimate of log Z, `lower` and `upper` are bounds on it.

    Attributes:
        lower, upper: the best bounds. `lower_certain` and `upper_certain` say whether they always hold (to rounding);
            otherwise they hold with probability `confidence` over the seed (both together).
        certain: lower and upper bounds that always hold.
        confidence: 1 where both bounds are certain.
        found_by: what computed the value. marginals_by: what computed the marginals.
        samples: importance samples drawn. effective: how many independent ones they are worth.
        seconds, cpu_seconds: what it took, without the compilation of kernels.
        interrupted: whether Ctrl-C ended it.
    """

    lower: float = -math.inf
    upper: float = math.inf
    lower_certain: bool = True
    upper_certain: bool = True
    certain: tuple[float, float] = (-math.inf, math.inf)
    confidence: float = 1.0
    found_by: str = ""
    marginals_by: str = ""
    samples: int = 0
    effective: float = 0.0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    interrupted: bool = False

    def __repr__(self) -> str:
        if self.bound == "exact":
            return f"AnytimeResult(log_partition {self.value:.6g} (exact) by {self.found_by})"
        sure = "certain" if self.confidence == 1.0 else f"with probability {self.confidence:g}"
        return (
            f"AnytimeResult(log_partition {self.value:.6g} by {self.found_by}, "
            f"between {self.lower:.6g} and {self.upper:.6g} ({sure}))"
        )

    def upper_bound(self) -> float:
        """The upper bound on log Z that always holds."""
        return self.certain[1]


@dataclass
class Anytime(Inference):
    """log Z between two bounds, and marginals, within a time: exact where that is possible, otherwise getting better.

    Hard constraints are propagated, then an elimination order is searched for. Where elimination fits into time and
    memory, perhaps with a few variables conditioned on, everything is exact. Elsewhere weighted mini-buckets as large
    as memory and time allow give a certain upper bound, tightened by matching moments, and a proposal; importance
    samples from it give the estimate, bounds that hold with probability `confidence`, and marginals, together with
    loopy belief propagation where samples are few. See `AnytimeResult` for which bounds are certain. Ctrl-C and the
    limits return the bounds and marginals so far; a kernel call that is running is finished first.

    Attributes:
        time_limit: seconds of wall time, without the compilation of kernels; None for none.
        cpu_limit: seconds of CPU time of this process; None for none.
        memory: GB that tables may take; None for what the machine has left.
        threads: of belief propagation; None for all cores (or POTENTIA_THREADS).
        seed: of orders and samples.
        confidence: probability with which the bounds hold that are not certain.

    Example:
        >>> import potentia as pt
        >>> import numpy as np
        >>> graph = pt.Graph.grid((3, 3), n_states=2)
        >>> result = pt.Anytime(time_limit=2).infer(graph, {"edge": np.eye(2)})
        >>> result.bound, bool(result.lower <= result.value <= result.upper)
        ('exact', True)
    """

    smooth: ClassVar[bool] = False

    time_limit: float | None = 20.0
    cpu_limit: float | None = None
    memory: float | None = None
    threads: int | None = None
    seed: int = 0
    confidence: float = 0.95

    def run(self, scores: Scores, start: Result | None) -> Result:
        """The portfolio; Ctrl-C is passed on to the caller, which may be a loop over many problems."""
        for name in ("time_limit", "cpu_limit", "memory"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        check_count("seed", self.seed)
        check_share("confidence", self.confidence, 1.0)
        if scores.graph.structures:
            tables = Expansion(scores)
            try:
                return tables.fold(self.run(tables.scores, None))
            except Interrupted as stop:
                raise Interrupted(tables.fold(stop.result)) from None
        task = _Task(self, scores)
        try:
            task.search()
        except KeyboardInterrupt:
            raise Interrupted(task.result(interrupted=True)) from None
        return task.result()


class _Task:
    """One computation of log Z: the bounds, estimate and marginals so far, and the time left."""

    def __init__(self, method: Anytime, scores: Scores) -> None:
        self.method, self.scores = method, scores
        self.clock = Clock(method.time_limit, method.cpu_limit)
        self.memory = _MEMORY * (available_memory() if method.memory is None else 1e9 * method.memory)
        self.allowed: Bools = allowed_states(scores)
        states = self.allowed.sum(axis=1)
        self.singles: Floats = self.allowed / states[:, None]
        self.cliques: Mapping[str, Tables] = {}
        self.value, self.found_by, self.marginals_by = math.nan, "none", "allowed states"
        self.exact = self.exact_marginals = False
        self.lower, self.upper = -math.inf, float(np.log(states).sum()) + trivial_bound(scores)
        self.likely = -math.inf, math.inf
        self.samples, self.effective = 0, 0.0
        self.seen: dict[bytes, float] = {}
        self.messages: Result | None = None

    def search(self) -> None:
        """All parts in turn until the answer is exact or the time is over."""
        if self.scores.graph.is_forest:
            self._take_exact(Exact().run(self.scores, None))
            return
        joined = interactions(self.scores, self.allowed)
        if not len(joined.free):
            self._decided()
            return
        large = len(joined.free) > _LARGE
        if large:
            self._pass_messages()
        order = first_order(joined)
        if order.total > _FEW:
            if not large:
                self._pass_messages()
            order = self._search_orders(joined, order)
        if self._fits(order) and self._eliminate(Cutset(np.zeros(0, dtype=np.int64), joined.free[order.order])):
            return
        if self._condition(joined, order):
            return
        self._approximate(joined.free[order.order])

    # -- exact ------------------------------------------------------------------------------------------------

    def _decided(self) -> None:
        """Propagation has left one labelling."""
        value = score_labels(self.scores, self.allowed.argmax(axis=1))
        if value == -math.inf:
            raise InfeasibleError("every labelling is forbidden: the -inf scores contradict each other.")
        self._set_exact(value, "propagation")
        self.exact_marginals, self.marginals_by = True, "propagation"

    def _take_exact(self, result: Result) -> None:
        """Take value and marginals of an exact result."""
        self._set_exact(result.value, "belief propagation on a forest")
        self.singles, self.cliques = result.variable_marginals, result.marginals
        self.exact_marginals, self.marginals_by = True, self.found_by

    def _set_exact(self, value: float, part: str) -> None:
        """Take the exact value, which is both bounds, and the part that found it."""
        self.value, self.lower, self.upper, self.exact, self.found_by = value, value, value, True, part

    def _search_orders(self, joined: Interactions, order: Order) -> Order:
        """Orders for as long as elimination by the best so far would take, within a share of the time."""
        clock, begun = self.clock, self.clock.now
        most = min(_ORDERS * clock.left, 60.0)

        def going(best: Order) -> bool:
            """Whether looking for better orders still costs less time than eliminating by the best one."""
            return clock.now - begun < min(most, best.total * (_UP + _DOWN)) and clock.left > 0

        return search_orders(joined, order, going, self.method.seed)

    def _fits(self, order: Order) -> bool:
        """Whether elimination by this order fits into the memory and, by a hopeful estimate, the time."""
        # a message has its bucket's entries divided by the states of the bucket's variable
        messages = order.total / int(self.scores.graph.n_states.max())
        return 8.0 * messages < self.memory and 0.5 * _UP * order.total < self.clock.left

    def _sample_exactly(self, made: EliminationPlan, store: Floats) -> None:
        """Marginals from independent samples of the distribution itself."""
        rng, counts, n = np.random.default_rng(self.method.seed), np.zeros_like(self.singles), 0
        positions = np.zeros((_BATCH, len(made.order)), dtype=np.int64)
        while n == 0 or (self.clock.left > 0 and n < _MAX_SAMPLES):
            send_labels(made.program, store, rng.random(positions.shape), positions)
            labels = np.tile(made.kept[:, 0], (_BATCH, 1))
            labels[:, made.order] = made.kept[made.order, positions]
            _count(counts, labels, np.ones(_BATCH))
            n += _BATCH
        self.samples, self.effective = n, float(n)
        self.singles, self.marginals_by = counts / n, "exact samples"

    def _condition(self, joined: Interactions, order: Order) -> bool:
        """Exact elimination given each joint state of a few variables, added up; False where that takes too long."""
        if 4 * _UP * order.total > self.clock.left:
            return False
        cutset = choose_cutset(joined, order, self.memory / 8.0, self.clock.left / (2 * _UP), self.method.seed)
        return cutset is not None and self._eliminate(cutset)

    def _eliminate(self, cutset: Cutset) -> bool:
        """Exact log Z and, time permitting, marginals, from all joint states of the cutset, which may be empty.

        False where memory or time are not enough; partial sums are lower bounds.
        """
        values, where = self.scores.flat()
        parts: list[float] = []
        total: Floats | None = None
        states = list(cutset.states(self.allowed))
        for number, joint in enumerate(states):
            allowed = clamped(self.allowed, cutset.variables, joint)
            made = make_plan(self.scores.regions, allowed, 2**62, order=cutset.order)
            if 8.0 * made.program.offset[-1] > self.memory:
                return False
            up = send_up_timed(made, values, where, self.clock)
            if up is None:
                self._raise_lower(_log_sum(parts))
                return False
            store, peaks, spent = up
            fits = 8.0 * (len(store) + 2 * made.cost.largest) < self.memory
            if number == 0 and fits and self.clock.left > 3.0 * spent * len(states):
                total = np.zeros(int(self.scores.regions.size.sum()))
            value = math.fsum(peaks) + made.constant(values, where)
            if total is not None and value > -math.inf:
                flat, start = send_all_down(self.scores, made, store, peaks)
                peak = max([value, *parts])
                total *= math.exp(max(parts, default=peak) - peak)
                total += math.exp(value - peak) * flat
            parts.append(value)
        if max(parts) == -math.inf:
            raise InfeasibleError("every labelling is forbidden: the -inf scores contradict each other.")
        self._set_exact(_log_sum(parts), "elimination" if len(states) == 1 else "elimination, conditioned")
        if total is not None:
            self._take_marginals(total * math.exp(max(parts) - self.value), start)
        elif len(states) == 1:
            self._sample_exactly(made, store)
        return True

    def _take_marginals(self, flat: Floats, start: Ints) -> None:
        """Take exact marginals of all regions, flat; those of region r begin at start[r]."""
        self.singles = all_singles(self.scores, flat, start)
        self.cliques = marginals_by_kind(self.scores, flat)
        self.exact_marginals, self.marginals_by = True, self.found_by

    # -- approximate ------------------------------------------------------------------------------------------

    def _pass_messages(self) -> None:
        """A first answer by loopy belief propagation."""
        entries = float(self.scores.regions.size.sum())
        seconds = min(_MESSAGES * self.clock.left, 30.0)
        iterations = int(min(_MESSAGE_ITERATIONS, seconds * _MESSAGE_SPEED / entries))
        if iterations < 1:
            return
        result = LoopyBP(iterations=iterations, threads=self.method.threads).run(self.scores, None)
        if not result.diverged and np.all(np.isfinite(result.variable_marginals)):
            self.messages = result
            self.singles, self.cliques = result.variable_marginals, result.marginals
            self.value, self.found_by, self.marginals_by = result.value, *2 * ("belief propagation",)
            self._raise_lower(score_labels(self.scores, result.variable_marginals.argmax(axis=1)))

    def _approximate(self, order: Ints) -> None:
        """Mini-buckets for an upper bound and a proposal, other lower bounds, then samples until the time is over."""
        factors = factors_in_order(self.scores, self.allowed, order)
        seconds = min(self.clock.left, 600.0)
        entries = _TIGHTEN * seconds / (_ROUNDS * _ITERATION)
        split = choose_split(factors, self.memory / 2, entries, self.clock.going(0.5 * seconds))
        buckets = MiniBuckets(factors, split)
        upper = buckets.send(self.clock.going())
        if upper is None:
            return
        if upper == -math.inf:
            raise InfeasibleError("every labelling is forbidden: the -inf scores contradict each other.")
        until = self.clock.left - _TIGHTEN * seconds
        upper = buckets.tighten(upper, _MAX_ROUNDS, self.clock.going(max(until, 0.0)))
        self.upper = min(self.upper, upper)
        self._bound_below(factors, split)
        self._sample(buckets, upper)

    def _bound_below(self, factors: BucketFactors, split: Split) -> None:
        """Certain lower bounds by a good labelling, by mean field and by mini-buckets of negative weights."""
        search = MAP(seed=self.method.seed, exact_search=False, threads=1)
        best = search.label(self.scores, None, self.clock.part(_LABELLING * self.clock.left))
        self._raise_lower(best.score(best.argmax()))
        if split.entries * 30 * _ITERATION < 0.1 * self.clock.left and np.all(factors.values > -np.inf):
            below = MiniBuckets(factors, split, lower=True)
            value = below.send(self.clock.going())
            if value is not None:
                self._raise_lower(below.tighten(value, 10, self.clock.going()))
        if float(self.scores.regions.size.sum()) * 50 / _MESSAGE_SPEED < 0.1 * self.clock.left:
            field = MeanField(iterations=50).run(self.scores, None)
            if field.bound == "lower" and math.isfinite(field.value):
                self._raise_lower(field.value)

    def _raise_lower(self, value: float) -> None:
        """Take a lower bound if it is better."""
        self.lower = max(self.lower, value)

    def _sample(self, buckets: MiniBuckets, upper: float) -> None:
        """Importance samples until the time is over; the estimate, its bounds, and marginals."""
        rng = np.random.default_rng(self.method.seed)
        weights: list[Floats] = []
        counts, peak, factors = np.zeros_like(self.singles), -math.inf, buckets.factors
        squares = 0.0
        batch = int(np.clip(_DRAWS / len(factors.card), _LEAST_SAMPLES, _BATCH))
        while self.samples < _LEAST_SAMPLES or (
            self.clock.left > 0
            and (squares == 0.0 or squares > (_PRECISION + 1.0 / self.samples) * counts[0].sum() ** 2)
        ):
            positions, log_weight = buckets.sample(batch, rng)
            top = float(log_weight.max())
            if top > peak:
                counts *= math.exp(peak - top)
                squares *= math.exp(2.0 * (peak - top))
                peak = top
            labels = factors.labels(positions)
            if peak > -math.inf:
                _count(counts, labels, np.exp(log_weight - peak))
                squares += float(np.exp(2.0 * (log_weight - peak)).sum())
            self._remember(labels, log_weight)
            weights.append(log_weight)
            self.samples += batch
        self._estimate(np.concatenate(weights), upper)
        if peak > -math.inf:
            share = self.effective / (self.effective + _PRIOR) if self.messages is not None else 1.0
            self.singles = (1.0 - share) * self.singles + share * counts / counts.sum(axis=1, keepdims=True)
            self.marginals_by = "importance samples" if share > 0.5 else self.marginals_by

    def _remember(self, labels: Ints, log_weight: Floats) -> None:
        """Keep the scores of the heaviest distinct labellings: their sum is a certain lower bound."""
        for row in np.argsort(-log_weight)[:20]:
            key = labels[row].tobytes()
            if log_weight[row] > -np.inf and key not in self.seen and len(self.seen) < 20_000:
                self.seen[key] = score_labels(self.scores, labels[row])

    def _estimate(self, log_weight: Floats, upper: float) -> None:
        """The mean importance weight, and bounds by the empirical Bernstein and Markov inequalities.

        Weights relative to the upper bound lie in [0, 1]. Three events fail with a third of 1 - confidence each.
        """
        self._raise_lower(_log_sum(list(self.seen.values())))
        weight, n = np.exp(log_weight), len(log_weight)
        mean = float(weight.mean())
        self.effective = mean * mean * n / max(float((weight * weight).mean()), 1e-300) if mean > 0 else 0.0
        failure = (1.0 - self.method.confidence) / 3.0
        deviation = math.sqrt(2.0 * float(weight.var(ddof=1)) * math.log(2.0 / failure) / n)
        deviation += 7.0 * math.log(2.0 / failure) / (3.0 * (n - 1))
        below = max(mean - deviation, mean * failure)
        self.likely = upper + _log(below), upper + _log(mean + deviation)
        trusted = self.messages is None or not self.messages.converged or self.effective > _PRIOR
        if trusted and mean > 0:
            self.value, self.found_by = upper + _log(mean), "importance sampling from mini-buckets"

    # -- the record ---------------------------------------------------------------------------------------------

    def result(self, interrupted: bool = False) -> AnytimeResult:
        """The record of bounds, estimate and marginals."""
        slack = 0.0 if self.exact else _ROUNDING * (1.0 + abs(self.upper)) + self.scores.rounding()
        certain = self.lower - slack, self.upper + slack
        lower, upper = max(certain[0], self.likely[0]), min(certain[1], self.likely[1])
        sure = lower <= certain[0], upper >= certain[1]
        value = self.value
        if math.isnan(value):
            value, self.found_by = certain[1], "maxima of the tables"
        tables = partial(_tables, self.scores.graph, self.singles, self.cliques)
        return AnytimeResult(
            graph=self.scores.graph, marginals=TablesByKind(self.scores.graph, tables),
            variable_marginals=self.singles, value=min(max(value, lower), upper) if lower <= upper else value,
            bound="exact" if self.exact else "estimate", target="log_partition", iterations=0, residual=0.0,
            converged=self.exact and self.exact_marginals, scores=self.scores, best=best_labelling, lower=lower,
            upper=upper, lower_certain=sure[0], upper_certain=sure[1], certain=certain,
            confidence=1.0 if all(sure) else self.method.confidence, found_by=self.found_by,
            marginals_by=self.marginals_by, samples=self.samples, effective=self.effective,
            seconds=self.clock.seconds, cpu_seconds=self.clock.cpu_seconds, interrupted=interrupted,
        )  # fmt: skip


def _tables(graph: Graph, singles: Floats, cliques: Mapping[str, Tables], kind: str) -> Tables:
    """Marginals of a kind: of variables from `singles`, of cliques as given, else products of the variables'."""
    if kind in cliques and graph.scopes[kind].shape[1] > 1:
        return cliques[kind]
    return product_tables(graph, singles, 1, kind)


def _count(counts: Floats, labels: Ints, weight: Floats) -> None:
    """Add weights to the counts (n_variables, states) of each variable's label, of labels (m, n_variables)."""
    n, width = counts.shape
    index = np.arange(n) * width + labels
    counts += np.bincount(index.ravel(), np.repeat(weight, n), n * width).reshape(n, width)


def _log(value: float) -> float:
    """log of a number; -inf for 0."""
    return math.log(value) if value > 0 else -math.inf


def _log_sum(values: list[float]) -> float:
    """log of the sum of exponentials; -inf of none."""
    return float(np.logaddexp.reduce(values, initial=-math.inf))

"""`MAP`: the best labelling and a bound on its score, by a portfolio of methods."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ...base.options import check_count, check_number
from ...base.threads import thread_count
from ...base.types import ArrayLike, Bools, Floats, Ints
from ...graph.labels import labels_to_indicators
from ...graph.scores import Scores, score_labels
from ...graph.structure import Graph
from ..base import Inference, Result, TablesByKind
from ..clock import Clock
from ..decode import conditional_rounding, feasible_labelling, keep_observed, search
from ..exact import Ranking
from ..messages import TRW, LoopyBP
from .cuts import move_labels, roof_duality
from .dual import ascend
from .marginal import Answer, check_partial, check_query, sum_given
from .marginal import solve as solve_query
from .moves import Windows, solve_components
from .task import SearchTask, trivial_bound
from .toulbar2 import ExactSearch, suits

#: Table entries of elimination that takes no noticeable time, and at most.
_FEW_ENTRIES, _MANY_ENTRIES = 3e6, 4e8
#: Share of the time left that one round of dual ascent may take.
_ASCENT = 0.6
#: How often dual ascent starts again, at most, after the bound has ruled out states.
_ROUNDS = 3
#: Table entries of belief propagation per second to count on, and its iterations.
_MESSAGE_SPEED, _MESSAGE_ITERATIONS = 3e7, 30
#: How often `diverse` doubles the diversity.
_DOUBLINGS = 20


@dataclass(frozen=True, eq=False, repr=False)
class MAPResult(Result):
    """What `MAP` found: `argmax()` is the labelling, `value` an upper bound on the best score.

    Attributes:
        found_by, bound_by: the parts of the portfolio that found the labelling and the bound.
        feasible: whether the labelling has a finite score.
        interrupted: whether Ctrl-C ended the search.
    """

    found_by: str = ""
    bound_by: str = ""
    feasible: bool = True
    interrupted: bool = False

    def __repr__(self) -> str:
        if not self.feasible:
            return f"MAPResult(no feasible labelling found, bound {self.value:.6g} by {self.bound_by})"
        proof = "proven best" if self.bound == "exact" else f"gap {self.gap:.4g}"
        score = self.score(self.argmax())
        end = ", interrupted" if self.interrupted else ""
        return f"MAPResult(score {score:.6g} by {self.found_by}, {proof} by {self.bound_by}{end})"


@dataclass(frozen=True, eq=False, repr=False)
class MarginalMAPResult(MAPResult):
    """What `MAP(query=...)` found: `argmax()` has -1 at the variables that are summed out, `value` is an upper bound.

    Marginals are indicators of the query's labels, and uniform for the other variables.

    Attributes:
        query: which variables are labelled, (n_variables,).
        score_bound: "exact" if `score` is the log of the sum, "lower" if it is a lower bound on it.
    """

    query: Bools = field(default_factory=lambda: np.zeros(0, dtype=bool))
    score_bound: str = "exact"

    def score(self, labels: ArrayLike) -> float:
        """The log of the sum of exp F(y) over the variables whose labels are -1; the query needs labels."""
        y = check_partial(self.scores, self.query, labels)
        if np.all(y >= 0):
            return score_labels(self.scores, y)
        key = f"score {y.tobytes().hex()}"
        if key not in self.memo:
            self.memo[key] = sum_given(self.scores, y, self.score_bound == "exact")
        value: float = self.memo[key]
        return value


class _Interrupted(KeyboardInterrupt):
    """Ctrl-C, and what was found until then."""

    def __init__(self, result: MAPResult) -> None:
        super().__init__("interrupted")
        self.result = result


@dataclass
class MAP(Inference):
    """The labelling of highest score, by a portfolio of methods.

    `value` is an upper bound on the score, and `gap` the distance to it. These steps follow one another until the
    labelling is proven best or the time is over: constraint propagation; elimination of narrow components; roof duality
    of binary models; dual ascent (TRW-S) with rounding; expansion and swap moves; local search on windows that
    elimination solves exactly, also from the marginals of belief propagation and TRW; in parallel with it, the exact
    search of toulbar2 if `potentia[map]` is installed. `bound` is "exact" if the labelling is proven best (to a
    relative 1e-9). Ctrl-C makes `infer` return the best labelling so far; see `MAPResult`. Marginals are the
    labelling's indicators. `start` may be a result of any method, whose labelling is the first candidate.

    Attributes:
        time_limit: seconds; a kernel call that is running is finished first. None lets every step run until it no
            longer improves. Equal seeds give equal results unless the time limit decides.
        seed: of the random choices in local search.
        exact_search: whether to use toulbar2 if it is installed.
        threads: of belief propagation; None for all cores (or POTENTIA_THREADS).
        query: variables to label, with the others summed out (marginal MAP); None for all. See `MarginalMAPResult`.
        cpu_limit: seconds of CPU time of this process; None for none.
    """

    smooth: ClassVar[bool] = False

    time_limit: float | None = None
    seed: int = 0
    exact_search: bool = True
    threads: int | None = None
    query: ArrayLike | None = None
    cpu_limit: float | None = None

    def infer(
        self,
        graph: Graph,
        theta: Mapping[str, ArrayLike],
        observed: ArrayLike | None = None,
        start: Result | None = None,
    ) -> Result:
        """As every method's; after Ctrl-C the best so far, with `interrupted` set."""
        try:
            return super().infer(graph, theta, observed, start)
        except _Interrupted as stop:
            return stop.result

    def diverse(
        self,
        graph: Graph,
        theta: Mapping[str, ArrayLike],
        k: int,
        *,
        diversity: float = 1.0,
        observed: ArrayLike | None = None,
    ) -> Ranking:
        """k good labellings that differ from each other, on any graph, with their scores [Batra et al., ECCV 2012].

        Each maximises its score minus `diversity` for every variable in which it agrees with an earlier one, counted
        once for each of them. Where that only finds an earlier labelling again, diversity is doubled; fewer than k are
        returned where no other is found. `time_limit` holds for each labelling.
        """
        check_count("k", k, 1)
        check_number("diversity", diversity)
        scores = Scores(graph, theta, observed)
        penalised, taken = copy(scores), np.zeros(scores.singles.shape)
        labellings: dict[bytes, Ints] = {}
        for _ in range(k + _DOUBLINGS):
            labels = self.run(penalised, None).argmax()
            if labels.tobytes() in labellings or score_labels(scores, labels) == -np.inf:
                diversity *= 2.0
            else:
                labellings[labels.tobytes()] = labels
                taken[np.arange(len(labels)), labels] += 1.0
            if len(labellings) == k:
                break
            penalised.singles = scores.singles - diversity * taken
        every = np.array(list(labellings.values())).reshape(len(labellings), -1)
        values = np.array([score_labels(scores, labels) for labels in every])
        order = np.argsort(-values, kind="stable")
        return Ranking(every[order], values[order])

    def run(self, scores: Scores, start: Result | None) -> Result:
        """The portfolio; Ctrl-C is passed on to the caller, which may be a loop over many problems."""
        if self.time_limit is not None:
            check_number("time_limit", self.time_limit)
        check_count("seed", self.seed)
        if self.query is not None:
            return self._run_query(scores)
        task = SearchTask(scores, self.time_limit, self.seed)
        try:
            if start is not None:
                task.offer(start.argmax(), "start")
            self._search(task)
        except KeyboardInterrupt:
            task.interrupted = True
            raise _Interrupted(_result(task)) from None
        return _result(task)

    def _run_query(self, scores: Scores) -> Result:
        """Marginal MAP."""
        query = check_query(self.query, scores.graph.n_variables)
        answer, clock = Answer(np.where(query, 0, -1)), Clock(self.time_limit, self.cpu_limit)
        try:
            solve_query(self, scores, query, answer, clock)
        except KeyboardInterrupt:
            answer.interrupted = True
            raise _Interrupted(_query_result(scores, query, answer)) from None
        return _query_result(scores, query, answer)

    def _search(self, task: SearchTask) -> None:
        """All parts in turn until the labelling is proven best or the time is over."""
        task.tighten(trivial_bound(task.scores), "maxima of the tables")
        task.restrict(task.scores.singles > -np.inf, "propagation")
        _each(task, _first_labelling, _eliminate_narrow, roof_duality, _eliminate_narrow, _repair)
        for _ in range(_ROUNDS):
            undecided = _states_left(task)
            _each(task, _ascend, _eliminate_narrow)
            if task.over or _states_left(task) > 0.9 * undecided:
                break
        _each(task, move_labels, _eliminate_wide)
        if not task.over:
            with self._exact_search(task) as exact:
                _local_search(task, thread_count(self.threads))
                if exact is not None:
                    exact.wait()

    @contextmanager
    def _exact_search(self, task: SearchTask) -> Iterator[ExactSearch | None]:
        """toulbar2's search beside the body, if there is one."""
        assert task.problem.scores is not None
        if not self.exact_search or not suits(task.problem.scores):
            yield None
            return
        exact = ExactSearch(task)
        task.poll = exact.collect
        try:
            yield exact
        finally:
            exact.collect()
            exact.stop()


def _each(task: SearchTask, *parts: Callable[[SearchTask], None]) -> None:
    for part in parts:
        if not task.over:
            part(task)


def _states_left(task: SearchTask) -> int:
    scores = task.problem.scores
    return 0 if scores is None else int((scores.singles > -np.inf).sum())


def _eliminate_narrow(task: SearchTask) -> None:
    solve_components(task, _FEW_ENTRIES)


def _eliminate_wide(task: SearchTask) -> None:
    solve_components(task, _MANY_ENTRIES)


def _ascend(task: SearchTask) -> None:
    ascend(task, _ASCENT)


def _first_labelling(task: SearchTask) -> None:
    """Each variable's own best state, then local search from there."""
    scores = task.problem.scores
    assert scores is not None
    labels = scores.singles.argmax(axis=1)
    task.offer(labels, "best states")
    if not task.over:
        task.offer(search(scores, [labels], pairs=False), "local search")


def _repair(task: SearchTask) -> None:
    """A labelling with a finite score, if there was none yet."""
    assert task.problem.scores is not None
    labels = feasible_labelling(task.problem.scores, task.rng) if task.labels is None else None
    if labels is not None:
        task.offer(labels, "repair")


def _local_search(task: SearchTask, threads: int) -> None:
    """Windows from the best labelling, then from roundings of the marginals of belief propagation and TRW, then kicks.

    Without a time limit, kicks end when none has helped for long.
    """
    scores = task.problem.scores
    assert scores is not None
    windows = Windows(task)
    windows.descend(scores.singles.argmax(axis=1) if task.current is None else task.current)
    entries = float(scores.regions.size.sum())
    iterations = int(min(_MESSAGE_ITERATIONS, 0.05 * task.left * _MESSAGE_SPEED / entries))
    for method in (LoopyBP, TRW):
        if iterations and not task.over:
            marginals = method(iterations=iterations, threads=threads).run(scores, None).variable_marginals
            windows.descend(conditional_rounding(scores, marginals))
    if task.current is not None:
        windows.kick_on(task.current)


def _result(task: SearchTask) -> MAPResult:
    """The record of what was found."""
    graph, labels, found_by = task.scores.graph, task.labels, task.found_by
    if labels is None:
        found = search(task.scores, [task.scores.singles.argmax(axis=1)])
        labels, found_by = keep_observed(task.scores, found), "local search"
    indicator = np.arange(task.scores.singles.shape[1]) == labels[:, None]
    return MAPResult(
        graph=graph,
        marginals=_Indicators(graph, labels),
        variable_marginals=indicator.astype(np.float64),
        value=task.score if task.proven else task.bound,
        bound="exact" if task.proven else "upper",
        target="max_score",
        iterations=task.iterations,
        residual=0.0,
        converged=task.proven,
        scores=task.scores,
        best=lambda result: result.variable_marginals.argmax(axis=1),
        found_by=found_by,
        bound_by=task.bound_by,
        feasible=score_labels(task.scores, labels) > -np.inf,
        interrupted=task.interrupted,
    )


def _query_result(scores: Scores, query: Bools, answer: Answer) -> MarginalMAPResult:
    """The record of a labelling of some variables."""
    width, n_states = scores.singles.shape[1], scores.graph.n_states[:, None]
    uniform = (np.arange(width) < n_states) / n_states
    indicator = (np.arange(width) == answer.labels[:, None]).astype(np.float64)
    slack = 1e-9 * (1.0 + abs(answer.value)) + scores.rounding()
    proven = answer.exact and math.isfinite(answer.value) and answer.upper <= answer.value + slack
    return MarginalMAPResult(
        graph=scores.graph,
        marginals=_Indicators(scores.graph, answer.labels),
        variable_marginals=np.where(query[:, None], indicator, uniform),
        value=answer.value if proven else answer.upper,
        bound="exact" if proven else "upper",
        target="max_score",
        iterations=0,
        residual=0.0,
        converged=proven,
        scores=scores,
        best=lambda _: answer.labels,
        found_by=answer.found_by,
        bound_by=answer.bound_by,
        feasible=math.isfinite(answer.value),
        interrupted=answer.interrupted,
        query=query,
        score_bound="exact" if answer.exact else "lower",
    )


@dataclass(frozen=True, eq=False)
class _Indicators(TablesByKind):
    """Indicators of a labelling per kind, made at first use: shared tables are small, these are one per region."""

    labels: Ints

    def make(self, kind: str) -> Floats | list[Floats]:
        """Those of all kinds at once."""
        self._made.update(labels_to_indicators(self.graph, self.labels))
        return self._made[kind]

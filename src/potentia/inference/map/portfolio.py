"""`MAP`: the best labelling and a bound on its score, by a portfolio of methods.

Among them the exact search of toulbar2 (`pip install potentia[map]`), in a separate process beside the others.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryFile
from threading import Thread
from typing import Any, ClassVar, Self

import numpy as np

from ...base.resources import thread_count
from ...base.types import ArrayLike, Floats, Ints, WidthError, check_count, check_number
from ...graph.scores import Scores, region_indicators, score_labels, trivial_bound
from ...graph.structure import Graph
from ..base import Inference, Interrupted, Result, TablesByKind
from ..clock import Clock
from ..decode import conditional_rounding, feasible_labelling, keep_observed, search
from ..exact import Ranking
from ..messages import TRW, LoopyBP, Smoothed
from ..structured import Expansion, structured_labelling
from .branch import branch
from .dual import ascend
from .guided import guided_search
from .moves import Windows, entries_at, move_labels, roof_duality, solve_components
from .task import SearchTask, table_entries

#: Table entries of elimination that takes no noticeable time, and at most.
_FEW_ENTRIES, _MANY_ENTRIES = 3e6, 4e8
#: Share of the time left that one round of dual ascent may take.
_ASCENT = 0.6
#: Variables of a window below which guided local search comes next, and its share of the time left.
_SMALL_WINDOWS, _GUIDED = 24.0, 0.5
#: Share of the time left for the first guided local search, and for belief propagation before it.
_EARLY = 0.02
#: Rounds of guided local search at first, and later without a time limit.
_FEW_ROUNDS, _MANY_ROUNDS = 8, 200
#: Share of the time left for branch and bound.
_BRANCHING = 0.4
#: How often dual ascent starts again, at most, after the bound has ruled out states.
_ROUNDS = 3
#: Table entries of belief propagation per second to count on, and its iterations.
_MESSAGE_SPEED, _MESSAGE_ITERATIONS = 3e7, 30
#: How often `diverse` doubles the diversity.
_DOUBLINGS = 20
#: Problems with more table entries or regions than this take longer to transfer than the time left to search.
_MAX_ENTRIES, _MAX_REGIONS = 5_000_000, 100_000
#: Integer costs of all tables together; toulbar2 holds up to 5e17.
_TOTAL_COST = 1e15
#: Backtracks without a time limit.
_BACKTRACKS = 5_000
#: Seconds between looks at a running search.
_PAUSE = 0.02
#: How long it may run after the time limit, should nobody end it: seconds of compilation come on top of the limit.
_GRACE = 60.0
_PART = "toulbar2"
#: How it prints a lower bound on whole costs, and the least cost so far.
_BOUNDS = re.compile(r"(?:Initial lower and upper bounds|Optimality gap): \[(-?\d+), ")

_eliminate_narrow = partial(solve_components, entries=_FEW_ENTRIES)
_eliminate_wide = partial(solve_components, entries=_MANY_ENTRIES)
_guide = partial(guided_search, share=_EARLY, rounds=_FEW_ROUNDS)
_ascend, _branch = partial(ascend, share=_ASCENT), partial(branch, share=_BRANCHING)


@dataclass(frozen=True, eq=False, repr=False)
class MAPResult(Result):
    """The result of `MAP`: `argmax()` is the labelling, `value` an upper bound on the best score.

    Attributes:
        found_by, bound_by: the parts of the portfolio that found the labelling and the bound.
        feasible: whether the labelling has a finite score.
        interrupted: whether Ctrl-C ended the search.
        seconds, cpu_seconds: what it took, without the compilation of kernels; CPU time with that of toulbar2.

    Example:
        >>> import potentia as pt
        >>> import numpy as np
        >>> graph = pt.Graph.chain(3, n_states=2)
        >>> result = pt.MAP(time_limit=2).infer(graph, {"node": [[0, 1]] * 3, "edge": np.eye(2)})
        >>> result.feasible, result.interrupted, result.argmax().tolist()
        (True, False, [1, 1, 1])
    """

    found_by: str = ""
    bound_by: str = ""
    feasible: bool = True
    interrupted: bool = False
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @classmethod
    def of_labels(cls, scores: Scores, labels: Ints, singles: Floats, value: float, proven: bool, **facts: Any) -> Self:
        """The record of a labelling (-1: no label), with marginals of all variables and a bound, exact if `proven`."""
        graph = scores.graph
        return cls(
            graph=graph, scores=scores, marginals=TablesByKind(graph, partial(region_indicators, graph, labels)),
            variable_marginals=singles, value=value, bound="exact" if proven else "upper", target="max_score",
            residual=0.0, converged=proven, best=lambda _: labels, **facts,
        )  # fmt: skip

    def __repr__(self) -> str:
        if not self.feasible:
            return f"MAPResult(no feasible labelling found, bound {self.value:.6g} by {self.bound_by})"
        proof = "proven best" if self.bound == "exact" else f"gap {self.gap:.4g}"
        score = self.score(self.argmax())
        end = ", interrupted" if self.interrupted else ""
        return f"MAPResult(score {score:.6g} by {self.found_by}, {proof} by {self.bound_by}{end})"


@dataclass
class MAP(Inference):
    """The labelling of highest score, by a portfolio of methods.

    `value` is an upper bound on the score, and `gap` the distance to it. These steps follow one another until the
    labelling is proven best or the time is over: constraint propagation; elimination of narrow components; roof duality
    of binary models; dual ascent (TRW-S) with rounding; branch and bound with its bounds; expansion and swap moves;
    local search on windows that elimination solves exactly, also from the marginals of belief propagation and TRW; in
    parallel with it, the exact search of toulbar2 if `potentia[map]` is installed. `bound` is "exact" if proven (to a
    relative 1e-9). Ctrl-C makes `infer` return the best labelling so far; see `MAPResult`. Marginals are the
    labelling's indicators. `start` may be a result of any method, whose labelling is the first candidate.

    Values of `pt.factors` are searched as tables of auxiliary variables where these are small enough; elsewhere the
    bound is that of `Smoothed(epsilon=0)`, and the labelling the best of local searches; a query needs the tables.

    Attributes:
        time_limit: seconds; a kernel call that is running is finished first. None lets every step run until it no
            longer improves. Equal seeds give equal results unless the time limit decides.
        seed: of the random choices in local search.
        exact_search: whether to use toulbar2 if it is installed.
        threads: of belief propagation; None for all cores (or POTENTIA_THREADS).
        query: variables to label, with the others summed out (marginal MAP); None for all. See `MarginalMAPResult`.
        cpu_limit: seconds of CPU time of this process and of toulbar2's; None for none.

    Example:
        >>> import potentia as pt
        >>> import numpy as np
        >>> graph = pt.Graph.grid((3, 3), n_states=3)
        >>> theta = {"node": np.arange(27).reshape(9, 3) % 4, "edge": np.eye(3)}
        >>> result = pt.MAP(time_limit=5).infer(graph, theta)
        >>> result.bound, round(float(result.value), 6), result.argmax().tolist()
        ('exact', 29.0, [2, 0, 0, 2, 2, 0, 1, 2, 2])
    """

    smooth: ClassVar[bool] = False

    time_limit: float | None = None
    seed: int = 0
    exact_search: bool = True
    threads: int | None = None
    query: ArrayLike | None = None
    cpu_limit: float | None = None

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
        for name in ("time_limit", "cpu_limit"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name))
        check_count("seed", self.seed)
        return self.label(scores, start, Clock(self.time_limit, self.cpu_limit))

    def label(self, scores: Scores, start: Result | None, clock: Clock) -> MAPResult:
        """The portfolio within the limits of a clock."""
        if self.query is not None:
            from .marginal import label_query

            return label_query(self, scores, clock)
        if scores.graph.structures:
            return _label_structured(self, scores, start, clock)
        task = SearchTask(scores, clock, self.seed)
        try:
            if start is not None:
                task.offer(start.argmax(), "start")
            self._search(task)
        except KeyboardInterrupt:
            task.interrupted = True
            raise Interrupted(_result(task)) from None
        return _result(task)

    def _search(self, task: SearchTask) -> None:
        """All parts in turn until the labelling is proven best or the time is over."""
        task.tighten(trivial_bound(task.scores), "maxima of the tables")
        task.restrict(task.scores.singles > -np.inf, "propagation")
        _each(task, _first_labelling, _eliminate_narrow, roof_duality, _eliminate_narrow, _repair, _believe, _guide)
        for _ in range(_ROUNDS):
            undecided = _states_left(task)
            _each(task, _ascend, _eliminate_narrow)
            if task.over or _states_left(task) > 0.9 * undecided:
                break
        _each(task, _branch, move_labels, _eliminate_wide)
        if not task.over:
            with self._exact_search(task) as exact:
                _local_search(task, thread_count(self.threads))
                if exact is not None:
                    exact.wait()

    @contextmanager
    def _exact_search(self, task: SearchTask) -> Iterator[ExactSearch | None]:
        """toulbar2's search beside the body, if there is one."""
        if not self.exact_search or not suits_toulbar2(task.undecided):
            yield None
            return
        exact = ExactSearch(task)
        task.poll = exact.collect
        try:
            yield exact
        finally:
            exact.collect()
            exact.stop()


def _label_structured(method: MAP, scores: Scores, start: Result | None, clock: Clock) -> MAPResult:
    """MAP with structured factors: the portfolio on tables of auxiliary variables, else a bound and local search."""
    dual = Smoothed(epsilon=0.0, iterations=_MESSAGE_ITERATIONS, threads=1).run(scores, None)
    marginals = LoopyBP(iterations=_MESSAGE_ITERATIONS, threads=1).run(scores, None)
    starts = [dual.mpm(), marginals.mpm(), *([] if start is None else [start.argmax()])]
    labels = structured_labelling(scores, starts)
    task = SearchTask(scores, clock, method.seed)
    task.offer(labels, "local search")
    task.tighten(dual.value, "max-product")
    if task.proven:
        return _result(task)
    try:
        tables = Expansion(scores)
    except WidthError:
        return _result(task)
    inner = replace(
        dual, graph=tables.scores.graph, scores=tables.scores, best=lambda _: tables.extend(labels), memo={}
    )
    try:
        return tables.fold(method.label(tables.scores, inner, clock))
    except Interrupted as stop:
        raise Interrupted(tables.fold(stop.result)) from None


def _each(task: SearchTask, *parts: Callable[[SearchTask], None]) -> None:
    """Run parts one after another until the task is over."""
    for part in parts:
        if not task.over:
            part(task)


def _states_left(task: SearchTask) -> int:
    """How many states the undecided variables have left in all."""
    scores = task.problem.scores
    return 0 if scores is None else int((scores.singles > -np.inf).sum())


def _first_labelling(task: SearchTask) -> None:
    """Each variable's own best state, then local search from there."""
    scores = task.undecided
    labels = scores.singles.argmax(axis=1)
    task.offer(labels, "best states")
    if not task.over:
        task.offer(search(scores, [labels], pairs=False), "local search")


def _believe(task: SearchTask) -> None:
    """Local search from the most likely states by belief propagation."""
    scores = task.undecided
    iterations = int(min(_MESSAGE_ITERATIONS, _EARLY * task.left * _MESSAGE_SPEED / scores.regions.size.sum()))
    if iterations:
        beliefs = LoopyBP(iterations=iterations, threads=1).run(scores, None).variable_marginals
        labels = np.where(scores.singles > -np.inf, beliefs, -1.0).argmax(axis=1)
        task.offer(search(scores, [labels], pairs=False), "belief propagation")


def _repair(task: SearchTask) -> None:
    """A labelling with a finite score, if there was none yet."""
    labels = feasible_labelling(task.undecided, task.rng) if task.labels is None else None
    if labels is not None:
        task.offer(labels, "repair")


def _local_search(task: SearchTask, threads: int) -> None:
    """Windows from the best labelling, then from roundings of the marginals of belief propagation and TRW, then kicks.

    Without a time limit, kicks end when none has helped for long.
    """
    scores = task.undecided
    windows = Windows(task)
    windows.descend(scores.singles.argmax(axis=1) if task.current is None else task.current)
    if windows.size < _SMALL_WINDOWS and not task.over:
        guided_search(task, _GUIDED, math.inf if task.timed else _MANY_ROUNDS)
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
    labels, found_by = task.labels, task.found_by
    if labels is None:
        best = search(task.scores, [task.scores.singles.argmax(axis=1)])
        labels, found_by = keep_observed(task.scores, best), "local search"
    indicator = np.arange(task.scores.singles.shape[1]) == labels[:, None]
    return MAPResult.of_labels(
        task.scores, labels, indicator.astype(np.float64), task.score if task.proven else task.bound, task.proven,
        iterations=task.iterations, found_by=found_by, bound_by=task.bound_by, interrupted=task.interrupted,
        feasible=score_labels(task.scores, labels) > -np.inf,
        seconds=task.clock.seconds, cpu_seconds=task.clock.cpu_seconds,
    )  # fmt: skip


# -- toulbar2


def suits_toulbar2(scores: Scores) -> bool:
    """Whether pytoulbar2 is installed and the problem small enough to be transferred."""
    small = len(scores.regions.size) <= _MAX_REGIONS and float(scores.regions.size.sum()) <= _MAX_ENTRIES
    return small and find_spec("pytoulbar2") is not None


class ExactSearch:
    """A search for labellings better than the best so far; `collect` takes what is found, `stop` ends it."""

    def __init__(self, task: SearchTask) -> None:
        self._task, self._problem = task, task.problem
        model = _integer_costs(task.undecided, task.current)
        arrays, self._states, self._scale, self._base, self._error = model
        self._least = int(arrays["upper"])
        backtracks, seconds = (0, task.left + _GRACE) if task.timed else (_BACKTRACKS, 0.0)
        worker = Path(__file__).with_name("worker.py")
        with TemporaryFile(prefix="potentia-map-") as file:
            np.savez(
                file, allow_pickle=False, backtracks=np.array(backtracks), seconds=np.array(seconds),
                parent=np.array(os.getpid()), **arrays,
            )  # fmt: skip
            file.seek(0)
            # a separate session, so that Ctrl-C reaches this process only, which then ends the search
            self._process = subprocess.Popen(
                [sys.executable, str(worker)],
                stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
                text=True,
            )  # fmt: skip
        self._begun, self._cpu_seconds = time.monotonic(), 0.0
        task.clock.workers.append(self._spent)
        self._lines: SimpleQueue[str] = SimpleQueue()
        # a full pipe would hold up the search while nobody collects
        self._reader = Thread(target=self._read, name="potentia-map", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        """Pass the lines that the process prints on to `collect`; runs in a thread."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def _spent(self) -> float:
        """CPU seconds of the process; where the system does not say, the seconds that it has run."""
        if self._process.poll() is None:
            try:
                fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
                self._cpu_seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            except (OSError, ValueError, IndexError):
                self._cpu_seconds = time.monotonic() - self._begun
        return self._cpu_seconds

    def wait(self) -> None:
        """Collect until the search or the time is over."""
        while not self._task.over and self.collect():
            time.sleep(_PAUSE)

    def collect(self) -> bool:
        """Take what was found since the last call; return whether the search is still running."""
        running = self._reader.is_alive()
        while not self._lines.empty():
            line = self._lines.get()
            words, bounds = line.split(), _BOUNDS.match(line)
            if words[:2] == ["New", "solution:"]:
                self._least = min(self._least, int(words[2]))
            elif words == ["finished"] and self._task.labels is None:
                self._task.exhaust(_PART)
            elif words == ["finished"]:
                self._tighten(self._least)
            elif bounds is not None:
                # of labellings that cost less than the best so far; no others cost less than that one
                self._tighten(min(int(bounds[1]), self._least))
            elif len(words) == len(self._problem.variables) and all(map(str.isdecimal, words)):
                self._offer(np.array(words, dtype=np.int64))
        return running

    def _tighten(self, cost: int) -> None:
        """Take note that no labelling costs less."""
        score = -(cost / self._scale + self._base) + self._error + self._problem.constant
        self._task.tighten(score - self._task.problem.constant, _PART)

    def _offer(self, positions: Ints) -> None:
        """Offer a labelling that the process has printed to the task."""
        labels = self._states[np.arange(len(positions)), positions]
        self._task.offer(self._problem.expand(labels)[self._task.problem.variables], _PART)

    def stop(self) -> None:
        """End the search."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


def _integer_costs(scores: Scores, labels: Ints | None) -> tuple[dict[str, Ints], Ints, float, float, float]:
    """Whole costs of all regions at allowed states: score = -(cost / scale + base), up to `error`.

    Forbidden entries cost as much as the given labels, or as anything. Returns the arrays that the worker reads, the
    states behind the worker's, (n_variables, max states), and scale, base and error.
    """
    regions, (values, where) = scores.regions, scores.flat()
    allowed = scores.singles > -np.inf
    states, count = np.argsort(~allowed, axis=1, kind="stable"), allowed.sum(axis=1)
    index, ptr = table_entries(regions.scope_ptr, regions.scope, regions.stride, where, count, states)
    cost = -values[index]
    least = np.minimum.reduceat(cost, ptr[:-1])
    cost -= np.repeat(least, np.diff(ptr))
    forbidden = np.isinf(cost)
    total = float(np.maximum.reduceat(np.where(forbidden, 0.0, cost), ptr[:-1]).sum())
    scale = _TOTAL_COST / (total or 1.0)
    whole = np.rint(np.where(forbidden, 0.0, cost) * scale).astype(np.int64)
    upper = int(np.maximum.reduceat(whole, ptr[:-1]).sum()) + 1
    start = np.zeros(len(count), dtype=np.int64)
    if labels is not None:
        start = (states == labels[:, None]).argmax(axis=1)
        own = -entries_at(regions, values, where, labels) - least
        if not np.isinf(own).any():
            upper = int(np.rint(own * scale).astype(np.int64).sum())
    whole[forbidden] = upper
    arrays = {
        "n_states": count, "scope_ptr": regions.scope_ptr, "scope": regions.scope, "cost_ptr": ptr, "costs": whole,
        "labels": start, "upper": np.array(upper),
    }  # fmt: skip
    return arrays, states, scale, float(least.sum()), 0.5 * len(where) / scale

"""Mean field: the best product distribution, a lower bound on log Z."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import numpy as np

from .._options import check_count, check_share
from .._threads import map_ranges, thread_count
from .._types import Floats, InfeasibleError, Ints, PotentiaError
from ..graph.flat import flat_regions, stars
from ..graph.schedule import variable_groups
from ..graph.scores import Scores
from ..graph.structure import Graph
from ..kernels import mean_field as kernels
from .base import Inference, Result
from .decode import best_labelling, feasible_labelling
from .engine import Outcome, Readout, Session, WholeStates, layout_order
from .readout import marginals_by_kind

#: Variables a group must hold before a second thread pays.
_PARALLEL_WORK = 20_000


class MeanFieldEngine(WholeStates):
    """Variables in groups of which no two share a region, and the current product distribution."""

    def __init__(self, scores: Scores, order: str, threads: int) -> None:
        self.scores, self.threads = scores, threads
        values, self.at = scores.flat()
        self.theta = np.maximum(values, kernels.FORBIDDEN)
        self.stars = stars(scores.graph)
        self.pair_at = self.at[self.stars.pair]
        self.variables, self._group_ptr = variable_groups(scores.graph, order)
        self.q = self._first_guess()

    def _first_guess(self) -> Floats:
        """Uniform over allowed states; a feasible labelling where larger regions forbid configurations."""
        allowed = self.scores.singles > -np.inf
        kinds = [k for k, s in self.scores.graph.scopes.items() if s.shape[1] > 1]
        if all(np.isfinite(self.scores.kind(k)[0]).all() for k in kinds):
            return allowed / allowed.sum(axis=1, keepdims=True)
        labels = feasible_labelling(self.scores)
        if labels is None:
            raise InfeasibleError(
                "mean field needs a labelling with a finite score to start from, and found none"
            )
        return (np.arange(allowed.shape[1]) == labels[:, None]).astype(float)

    @property
    def group_ptr(self) -> Ints:
        """Ranges of variables that share no region."""
        return self._group_ptr

    @property
    def group_threads(self) -> int:
        """Threads that pay for a group of average size."""
        return self.threads if len(self.variables) >= _PARALLEL_WORK * (len(self._group_ptr) - 1) else 1

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

    def sweep(self, units: Ints, write: bool = True, watch: bool = True) -> float:
        """Coordinate ascent over the variables at these positions, in this order."""
        return float(
            kernels.sweep_variables(
                self.scores.regions,
                self.stars,
                self.theta,
                self.at,
                self.pair_at,
                self.variables[units],
                self.q,
            )
        )

    def read(self, cliques: bool = True) -> Readout:
        """Product marginals and E[theta] + H(q)."""
        regions = self.scores.regions
        start = np.concatenate([[0], np.cumsum(regions.size)]).astype(np.int64)
        flat = np.empty(start[-1])
        parts = map_ranges(
            lambda a, b: kernels.read_products(regions, self.theta, self.at, self.q, a, b, start, flat),
            0,
            len(regions.size),
            self.group_threads,
        )
        positive = self.q[self.q > 0]
        value = float(sum(parts)) - float((positive * np.log(positive)).sum())
        return Readout(marginals_by_kind(self.scores, flat, start), self.q.copy(), value, self.q.copy())


@dataclass
class MeanField(Inference):
    """Coordinate ascent on E_q[theta] + H(q) over product distributions q [MBL-tpami sec. 3.2]: a lower bound on log Z.

    Attributes:
        iterations: limit; one iteration updates every variable once.
        tol: stop when no marginal changed by more in an iteration.
        schedule: "coloured", "sequential" (0, 1, 2, ... then back) or "random".
        seed: of the random schedule.
        threads: None for all cores (or POTENTIA_THREADS).
    """

    threaded: ClassVar[bool] = True
    iterative: ClassVar[bool] = True

    iterations: int = 100
    tol: float = 1e-6
    schedule: Literal["coloured", "sequential", "random"] = "coloured"
    seed: int = 0
    threads: int | None = None

    def run(self, scores: Scores, start: Result | None) -> Result:
        """Coordinate ascent from uniform marginals or those of `start` (of any method)."""
        return self.session(scores, start).run()

    def on_one_thread(self) -> Self:
        """The same method with one thread."""
        return replace(self, threads=1)

    def counting_numbers(self, graph: Graph) -> Floats:
        """1 on variables, 0 on larger regions."""
        regions = flat_regions(graph)
        return (regions.order == 1).astype(float)

    def session(self, scores: Scores, start: Result | None) -> Session:
        """Coordinate ascent that is still to be driven."""
        check_count("iterations", self.iterations)
        check_count("seed", self.seed)
        check_share("tol", self.tol)
        if self.schedule == "residual":
            raise PotentiaError("mean field has no residual schedule; use coloured, sequential or random.")
        engine = MeanFieldEngine(scores, layout_order(self.schedule), thread_count(self.threads))
        if start is not None:
            engine.set_messages(start.variable_marginals)

        def finish(outcome: Outcome, read: Readout) -> Result:
            if read.value < kernels.HOPELESS:
                raise InfeasibleError(
                    "mean field started from marginals that put weight on forbidden configurations"
                )
            return Result(
                graph=scores.graph,
                marginals=read.marginals,
                variable_marginals=read.singles,
                value=read.value,
                bound="lower",
                target="log_partition",
                iterations=outcome.iterations,
                residual=outcome.residual,
                converged=outcome.converged,
                scores=scores,
                best=best_labelling,
            )

        return Session(engine, self.schedule, self.iterations, self.tol, self.seed, finish)

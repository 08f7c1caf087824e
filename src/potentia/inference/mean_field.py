"""Mean field: the best product distribution, a lower bound on log Z."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from .._options import check_count, check_share
from .._threads import thread_count
from .._types import Floats, InfeasibleError, PotentiaError
from ..graph.flat import flat_regions
from ..graph.scores import Scores
from ..graph.structure import Graph
from ..kernels.mean_field import HOPELESS
from .base import Inference, Result
from .decode import best_labelling
from .dense_mean_field import DenseMeanFieldEngine
from .drive import Outcome, Session, layout_order
from .engine import Readout
from .mean_field_engine import MeanFieldEngine


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
        order = layout_order(self.schedule)
        if self.schedule == "residual":
            raise PotentiaError("mean field has no residual schedule; use coloured, sequential or random.")
        kind = DenseMeanFieldEngine if scores.dense else MeanFieldEngine
        engine = kind(scores, order, thread_count(self.threads))
        if start is not None:
            engine.set_messages(start.variable_marginals)

        def finish(outcome: Outcome, read: Readout) -> Result:
            if read.value < HOPELESS:
                raise InfeasibleError(
                    "mean field started from marginals that put weight on forbidden configurations."
                )
            return Result(
                graph=scores.graph,
                marginals=read.marginals,
                variable_marginals=read.singles,
                value=read.value,
                bound="lower" if all(term.kernel.exact for term in scores.dense.values()) else "estimate",
                target="log_partition",
                iterations=outcome.iterations,
                residual=outcome.residual,
                converged=outcome.converged,
                scores=scores,
                best=Result.mpm if scores.dense else best_labelling,
            )

        begun = bool(scores.dense) and start is None
        return Session(engine, self.schedule, self.iterations, self.tol, self.seed, finish, uniform=begun)

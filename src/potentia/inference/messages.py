"""Message-passing methods: different counting numbers, and the one place that chooses an engine for them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np

from ..base.options import check_count, check_share
from ..base.threads import thread_count
from ..base.types import ArrayLike, Floats, PotentiaError
from ..graph.scores import Scores
from ..graph.structure import Graph
from . import entropy as entropies
from .base import Inference, Result
from .decode import best_labelling
from .engine import Tape, check_schedule, drive, layout_order, settle
from .entropy import Entropy
from .pair_engine import PairEngine, suits_pairs
from .region_engine import RegionEngine
from .tree_weights import forest_bound, optimise_rho
from .weight_engine import WeightEngine, suits_weights

#: Scores beyond this may make marginals near 0 and 1 that hide what messages do.
_SHARP = 10.0
#: Largest residual that counts as a fixed point, whatever the tolerance.
_FIXED = 1e-4
#: Messages on their way, and their values, go beyond values of fixed points, but not by this factor unless they
#: diverge.
_FAR = 100.0


Schedule = Literal["coloured", "sequential", "random", "residual"]


def make_engine(
    scores: Scores,
    entropy: Entropy,
    schedule: str,
    damping: float = 0.0,
    threads: int = 1,
    seed: int = 0,
    regions: bool = False,
) -> PairEngine | RegionEngine:
    """The fastest engine for these scores, with messages at zero: the one place where it is chosen.

    Pairs are updated in blocks: by their weights in O(L) per message where all tables are `pt.Potts` or one of its kin
    with weights that are not negative, else by tables in O(L^2). Larger regions, very unequal numbers of states and the
    residual schedule, which updates single variables, take the engine of regions, and so does `regions`.
    """
    check_schedule(schedule)
    kind: type[PairEngine | RegionEngine] = PairEngine
    if regions or schedule == "residual" or not suits_pairs(scores.graph):
        kind = RegionEngine
    elif scores.weighted and suits_weights(scores, entropy, layout_order(schedule)):
        kind = WeightEngine
    return kind(scores, entropy, schedule, damping, threads, seed)


@dataclass(kw_only=True)
class MessagePassingMethod(Inference):
    """Options every message-passing method shares.

    Attributes:
        iterations: limit; one iteration updates every message once.
        tol: stop when no variable's marginal changed by more in an iteration (0: run all iterations).
        schedule: "coloured" (independent variables together), "sequential" (0, 1, 2, ... then back, alternating),
            "random" (blocks in random order) or "residual" (one variable at a time, the one whose surroundings changed
            most: residual belief propagation).
        damping: weight of the old message in [0, 1), which helps loopy BP and Kikuchi to converge; None for 0,
            raised to 0.5, 0.75 and 0.9 while the largest change does not fall (`Result.oscillating` then says so).
        seed: of the random schedule.
        threads: None for all cores (or POTENTIA_THREADS).
    """

    threaded: ClassVar[bool] = True
    iterative: ClassVar[bool] = True
    #: Messages start uniform, lam = (c / C) theta, instead of at zero.
    uniform_start: ClassVar[bool] = False

    iterations: int = 40
    tol: float = 1e-6
    schedule: Schedule = "coloured"
    damping: float | None = None
    seed: int = 0
    threads: int | None = None

    #: What computes an upper bound on log Z from a result's messages; None if there is none.
    upper_bound: ClassVar[Any] = None

    @abstractmethod
    def entropy(self, graph: Graph) -> Entropy:
        """The method's counting numbers and links on a graph."""

    def on_one_thread(self) -> Self:
        """The same method with one thread."""
        return replace(self, threads=1)

    def entropy_on(self, graph: Graph) -> Entropy:
        """The method's own."""
        return self.entropy(graph)

    def counting_numbers(self, graph: Graph) -> Floats:
        """Those of its entropy."""
        return self.entropy(graph).counting.copy()

    def run(self, scores: Scores, start: Result | None) -> Result:
        """Message passing from the method's first messages or those of `start`."""
        return self.solve(self.engine(scores, start))

    def engine(
        self, scores: Scores, start: Result | None = None, entropy: Entropy | None = None
    ) -> PairEngine | RegionEngine:
        """An engine loaded with scores and first messages; entropy: instead of the method's own."""
        check_count("iterations", self.iterations)
        check_count("seed", self.seed)
        check_share("tol", self.tol)
        if self.damping is not None:
            check_share("damping", self.damping, 1.0)
        entropy, threads = entropy or self.entropy(scores.graph), thread_count(self.threads)
        engine = make_engine(scores, entropy, self.schedule, self.damping or 0.0, threads, self.seed)
        if start is None:
            if self.uniform_start:
                engine.start_uniform()
            return engine
        if np.shape(start.messages) != engine.messages().shape:
            raise PotentiaError("start holds no messages of this kind; it must come from the same method.")
        # a message of -inf would keep dead what new scores allow again
        dead = np.isneginf(start.messages) & (not scores.forbids_all_of(start.scores))
        engine.set_messages(np.where(dead, 0.0, start.messages))
        return engine

    def solve(
        self, engine: PairEngine | RegionEngine, tape: Tape | None = None, cliques: bool = True
    ) -> Result:
        """Message passing until the tolerance is met or the iterations run out, and what it gives."""
        scores, entropy, largest = engine.scores, engine.entropy, engine.scores.largest()
        # a gradient through iterations follows them as they are asked for
        free = tape is None or tape.end_only
        # a bound that holds at any messages falls in every update, so that they cannot oscillate
        adapt = free and self.damping is None and self.tol > 0 and not entropy.always
        outcome, read = drive(engine, self.iterations, self.tol, tape, adapt), None
        # regions inside each other may have no stable fixed point, and messages that grow make sharp marginals
        nested = not entropy.always and entropy.links != "star"
        if free and (nested or self.damping or outcome.oscillating or largest > _SHARP):
            outcome, read = settle(engine, self.iterations, self.tol, outcome)
        if tape is not None:
            engine.record(tape.slots, 0)
        if read is None or tape is not None:
            read = engine.read(cliques)
        # no fixed point has more: expected scores, and entropies times counting numbers
        limit = 1.0 + len(entropy.counting) * largest + entropy.largest_value(scores.regions.size)
        diverged = not abs(read.value) <= (limit if outcome.converged else _FAR * limit)
        if nested:  # large messages of both signs may cancel in the value
            sizes = np.abs(read.messages)
            diverged = diverged or bool(sizes.max(initial=0.0, where=sizes < np.inf) > _FAR * limit)
        outcome = outcome._replace(converged=outcome.converged and not diverged)
        fixed = entropy.always or (outcome.converged and outcome.residual <= _FIXED)
        return Result.of(
            scores, outcome, read, bound=entropy.bound if fixed else "estimate", target=entropy.target,
            best=best_labelling, diverged=diverged, upper_of=self.upper_bound,
        )  # fmt: skip


@dataclass
class Smoothed(MessagePassingMethod):
    r"""The entropy-smoothed LP [ILR-chapter Thm 1.3]: the value is an upper bound on the best score at any messages.

    At convergence it exceeds that of the LP by at most :math:`\epsilon \sum_\alpha \log |\alpha|`, where
    :math:`|\alpha|` are the sizes of the tables. epsilon is one number or {kind: number}; 0 is max-product coordinate
    descent on the LP's dual, which may stall above the LP. `Result.argmax` rounds and
    searches locally, `Result.gap` is the distance to the bound.
    """

    epsilon: float | Mapping[str, float] = 0.1

    def entropy(self, graph: Graph) -> Entropy:
        return entropies.smoothed(graph, self.epsilon)


@dataclass
class TRW(MessagePassingMethod):
    """Tree-reweighted message passing [MBL-tpami Eq. 16-18]: an upper bound on log Z at convergence if rho is valid.

    rho: clique appearance probabilities; None takes valid ones from spanning forests (1 on a forest, 0.5 on a
    four-neighbour grid), otherwise one number, one per clique, or {kind: number or array}. Messages start uniform.
    After k iterations the marginals of cliques are those of [MBL-tpami Algorithm 3]; the marginals of variables are
    those of the algorithm after one more update of all messages. `Result.upper_bound()` holds at any messages.

    optimise_rho: choose the weights that make the bound tightest, by conditional gradient over spanning forests, in up
    to 60 steps, each a run of message passing. Such results have no gradient.
    """

    uniform_start: ClassVar[bool] = True

    rho: float | ArrayLike | None = None
    optimise_rho: bool = False

    #: The average over the forests behind the default weights.
    upper_bound: ClassVar[Any] = staticmethod(forest_bound)

    def entropy(self, graph: Graph) -> Entropy:
        if self.optimise_rho:
            raise PotentiaError("weights chosen by optimise_rho have no gradient; use fixed ones (rho=).")
        return entropies.reweighted(graph, self.rho)

    def run(self, scores: Scores, start: Result | None) -> Result:
        """Message passing from uniform messages or those of `start`, with the given or chosen weights."""
        if not self.optimise_rho:
            return self.solve(self.engine(scores, start))
        if self.rho is not None:
            raise PotentiaError("optimise_rho chooses rho itself; leave rho=None.")
        return optimise_rho(self, scores, start)


@dataclass
class LoopyBP(MessagePassingMethod):
    """Loopy belief propagation (the Bethe entropy): an estimate of log Z, exact on forests."""

    uniform_start: ClassVar[bool] = True

    def entropy(self, graph: Graph) -> Entropy:
        return entropies.bethe(graph)


@dataclass
class Kikuchi(MessagePassingMethod):
    """Generalised belief propagation: counting numbers from the containment of regions; an estimate of log Z.

    Exact when the regions form a junction tree. Equal to `LoopyBP` on graphs of pairs.
    """

    def entropy(self, graph: Graph) -> Entropy:
        return entropies.kikuchi(graph)


@dataclass
class MessagePassing(MessagePassingMethod):
    """Message passing with custom counting numbers.

    counting: {kind: one number or one per region}; kinds that are left out have counting number 0. links: "star"
    (cliques to variables), "containment" (every region to every region inside it) or "maximal" (regions inside no other
    to all inside).
    """

    counting: Mapping[str, ArrayLike] = field(default_factory=dict)
    links: Literal["star", "containment", "maximal"] = "star"

    def entropy(self, graph: Graph) -> Entropy:
        return entropies.given(graph, self.counting, self.links)

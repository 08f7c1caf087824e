"""Message-passing methods: one engine, different counting numbers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self

import numpy as np

from ..base.options import check_count, check_share
from ..base.threads import thread_count
from ..base.types import ArrayLike, Floats, PotentiaError, warn_caller
from ..graph.scores import Scores
from ..graph.structure import Graph
from . import entropy as entropies
from .base import Inference, Result
from .decode import best_labelling
from .engine import Outcome, Readout, Session, layout_order
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
    scores: Scores, entropy: Entropy, schedule: str, damping: float = 0.0, threads: int = 1
) -> PairEngine | RegionEngine:
    """The fastest engine for these scores, with messages at zero; the one place where it is chosen.

    Pairs are updated in blocks: by their weights in O(L) per message where all tables are `pt.Potts` or one of its kin
    with weights that are not negative, else by tables in O(L^2). Larger regions, very unequal numbers of states and the
    residual schedule, which updates single variables, take the engine of regions.
    """
    order = layout_order(schedule)
    if schedule == "residual" or not suits_pairs(scores.graph):
        return RegionEngine(scores, entropy, order, damping, threads)
    by_weights = suits_weights(scores, entropy, order)
    return (WeightEngine if by_weights else PairEngine)(scores, entropy, order, damping, threads)


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

    def __post_init__(self) -> None:
        if isinstance(self.schedule, str) and self.schedule == "greedy":
            warn_caller("schedule='greedy' is now called 'residual'.", FutureWarning)
            self.schedule = "residual"

    @property
    def upper_bound(self) -> Callable[[Result], float] | None:
        """What computes an upper bound on log Z from a result's messages; None if there is none."""
        return None

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

    def engine(self, scores: Scores, entropy: Entropy) -> PairEngine | RegionEngine:
        """An engine loaded with scores, its messages at zero."""
        damping = 0.0 if self.damping is None else float(self.damping)
        return make_engine(scores, entropy, self.schedule, damping, thread_count(self.threads))

    def run(self, scores: Scores, start: Result | None) -> Result:
        """Message passing from the method's first messages or those of `start`."""
        return self.session(scores, start).run()

    def session(self, scores: Scores, start: Result | None) -> Session:
        """Message passing that is still to be driven."""
        return self.session_with(self.entropy(scores.graph), scores, start)

    def session_with(self, entropy: Entropy, scores: Scores, start: Result | None) -> Session:
        """The same with given counting numbers."""
        self._check()
        engine = self.engine(scores, entropy)
        uniform = self.uniform_start and start is None
        if uniform:
            engine.start_uniform()
        if start is not None:
            if np.shape(start.messages) != engine.messages().shape:
                raise PotentiaError(
                    "start holds no messages of this kind; it must come from the same method."
                )
            # a message of -inf would keep dead what new scores allow again
            same = scores.forbids_all_of(start.scores)
            engine.set_messages(
                start.messages if same else np.where(np.isneginf(start.messages), 0.0, start.messages)
            )

        largest, sizes = scores.largest(), scores.regions.size
        # no fixed point has more: expected scores, and entropies times counting numbers
        entropies = entropy.cached("most", lambda: float(np.abs(entropy.counting) @ np.log(sizes)))
        most = 1.0 + len(sizes) * largest + entropies

        # regions inside each other may have no stable fixed point, and messages that grow make sharp marginals
        nested = not entropy.always and entropy.links != "star"

        def finish(outcome: Outcome, read: Readout) -> Result:
            diverged = not abs(read.value) <= (most if outcome.converged else _FAR * most)
            if nested:  # large messages of both signs may cancel in the value
                sent = np.abs(read.messages)
                diverged = diverged or bool(sent.max(initial=0.0, where=sent < np.inf) > _FAR * most)
            outcome = outcome._replace(converged=outcome.converged and not diverged)
            fixed = entropy.always or (outcome.converged and outcome.residual <= _FIXED)
            return Result(
                graph=scores.graph,
                marginals=read.marginals,
                variable_marginals=read.singles,
                value=read.value,
                bound=entropy.bound if fixed else "estimate",
                target=entropy.target,
                iterations=outcome.iterations,
                residual=outcome.residual,
                converged=outcome.converged,
                scores=scores,
                best=best_labelling,
                messages=read.messages,
                oscillating=outcome.oscillating,
                diverged=diverged,
                upper=self.upper_bound,
            )

        sharp = bool(self.damping) or largest > _SHARP or nested
        # a bound that holds at any messages falls in every update, so that they cannot oscillate
        adapt = self.damping is None and not entropy.always
        return Session(
            engine, self.schedule, self.iterations, self.tol, self.seed, finish, sharp, uniform, adapt
        )

    def _check(self) -> None:
        check_count("iterations", self.iterations)
        check_count("seed", self.seed)
        check_share("tol", self.tol)
        if self.damping is not None:
            check_share("damping", self.damping, 1.0)


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

    @property
    def upper_bound(self) -> Callable[[Result], float]:
        """The average over the forests behind the default weights."""
        return forest_bound

    def entropy(self, graph: Graph) -> Entropy:
        return entropies.reweighted(graph, self.rho)

    def run(self, scores: Scores, start: Result | None) -> Result:
        """Message passing from uniform messages or those of `start`, with the given or chosen weights."""
        if not self.optimise_rho:
            return super().run(scores, start)
        if self.rho is not None:
            raise PotentiaError("optimise_rho chooses rho itself; leave rho=None.")
        return optimise_rho(self, scores, start)

    def session(self, scores: Scores, start: Result | None) -> Session:
        """Message passing that is still to be driven."""
        if self.optimise_rho:
            raise PotentiaError("weights chosen by optimise_rho have no gradient; use fixed ones (rho=).")
        return super().session(scores, start)


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

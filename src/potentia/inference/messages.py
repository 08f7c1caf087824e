"""Message-passing methods: different counting numbers, and the one place that chooses an engine for them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, ClassVar, Literal, Self

import numpy as np

from ..base.resources import thread_count
from ..base.types import ArrayLike, Floats, PotentiaError, check_choice, check_share, real_number, real_numbers
from ..graph.forests import certified
from ..graph.regions import RULES
from ..graph.scores import Scores
from ..graph.structure import Graph, per_graph
from .base import Inference, Result
from .decode import best_labelling
from .engine import SCHEDULES, Entropy, Tape, bethe, check_options, drive, kikuchi, layout_order, settle, star_entropy
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
    check_choice("schedule", schedule, SCHEDULES)
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
        """This method with one thread."""
        return replace(self, threads=1)

    def entropy_on(self, graph: Graph) -> Entropy:
        """The method's entropy, whose maximum its marginals are."""
        return self.entropy(graph)

    def run(self, scores: Scores, start: Result | None) -> Result:
        """Message passing from the method's first messages or those of `start`."""
        return self.solve(self.engine(scores, start))

    def engine(
        self, scores: Scores, start: Result | None = None, entropy: Entropy | None = None
    ) -> PairEngine | RegionEngine:
        """An engine loaded with scores and first messages; entropy: instead of the method's own."""
        check_options(self)
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

    def solve(self, engine: PairEngine | RegionEngine, tape: Tape | None = None, cliques: bool = True) -> Result:
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
        entropies = entropy.cached("largest", lambda: float(np.abs(entropy.counting) @ scores.regions.log_size))
        limit = 1.0 + len(entropy.counting) * largest + entropies
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

    Example:
        >>> import potentia as pt
        >>> import numpy as np
        >>> graph = pt.Graph.grid((3, 3), n_states=2)
        >>> result = pt.Smoothed(0.01, iterations=200).infer(graph, {"node": [[0, 1]] * 9, "edge": np.eye(2)})
        >>> result.target, round(result.score(result.argmax()), 6), result.gap < 1
        ('max_score', 21.0, True)
    """

    epsilon: float | Mapping[str, float] = 0.1

    def entropy(self, graph: Graph) -> Entropy:
        """The entropy smoothed by epsilon."""
        return smoothed(graph, self.epsilon)


@dataclass
class TRW(MessagePassingMethod):
    """Tree-reweighted message passing [MBL-tpami Eq. 16-18]: an upper bound on log Z at convergence if rho is valid.

    rho: clique appearance probabilities; None takes valid ones from spanning forests (1 on a forest, 0.5 on a
    four-neighbour grid), otherwise one number, one per clique, or {kind: number or array}. Messages start uniform.
    After k iterations the marginals of cliques are those of [MBL-tpami Algorithm 3]; the marginals of variables are
    those of the algorithm after one more update of all messages. `Result.upper_bound()` holds at any messages.

    optimise_rho: choose the weights that make the bound tightest, by conditional gradient over spanning forests, in up
    to 60 steps, each a run of message passing. Such results have no gradient.

    Example:
        >>> import potentia as pt
        >>> import numpy as np
        >>> graph = pt.Graph.grid((3, 3), n_states=2)
        >>> theta = {"node": [[0.0, 0.5]] * 9, "edge": np.eye(2)}
        >>> result = pt.TRW().infer(graph, theta)
        >>> result.bound, result.converged
        ('upper', True)
        >>> result.value >= pt.Exact().infer(graph, theta).value
        True
    """

    uniform_start: ClassVar[bool] = True

    rho: float | ArrayLike | None = None
    optimise_rho: bool = False

    #: The average over the forests behind the default weights.
    upper_bound: ClassVar[Any] = staticmethod(forest_bound)

    def entropy(self, graph: Graph) -> Entropy:
        """The tree-reweighted entropy of rho; refuses weights that inference chooses itself."""
        if self.optimise_rho:
            raise PotentiaError("weights chosen by optimise_rho have no gradient; use fixed ones (rho=).")
        return reweighted(graph, self.rho)

    def run(self, scores: Scores, start: Result | None) -> Result:
        """Message passing from uniform messages or those of `start`, with the given or chosen weights."""
        if not self.optimise_rho:
            return self.solve(self.engine(scores, start))
        if self.rho is not None:
            raise PotentiaError("optimise_rho chooses rho itself; leave rho=None.")
        return optimise_rho(self, scores, start)


@dataclass
class LoopyBP(MessagePassingMethod):
    """Loopy belief propagation (the Bethe entropy): an estimate of log Z, exact on forests.

    Example:
        >>> import potentia as pt
        >>> import numpy as np
        >>> graph = pt.Graph.chain(4, n_states=2)
        >>> theta = {"node": [[0, 1]] * 4, "edge": np.eye(2)}
        >>> pt.LoopyBP(iterations=10).infer(graph, theta).marginals["node"].round(3).tolist()
        [[0.164, 0.836], [0.117, 0.883], [0.117, 0.883], [0.164, 0.836]]
    """

    uniform_start: ClassVar[bool] = True

    def entropy(self, graph: Graph) -> Entropy:
        """The Bethe entropy."""
        return bethe(graph)


@dataclass
class Kikuchi(MessagePassingMethod):
    """Generalised belief propagation: counting numbers from the containment of regions; an estimate of log Z.

    Exact when the regions form a junction tree. Equal to `LoopyBP` on graphs of pairs.

    Example:
        >>> import potentia as pt
        >>> graph = pt.Graph([2, 2, 2], {"triple": [[0, 1, 2]]})
        >>> theta = {"triple": [[[[0, 0], [0, 1]], [[0, 1], [1, 3]]]]}
        >>> result = pt.Kikuchi().infer(graph, theta)
        >>> round(float(result.value - pt.Exact().infer(graph, theta).value), 6)
        -0.0
    """

    def entropy(self, graph: Graph) -> Entropy:
        """Kikuchi's entropy."""
        return kikuchi(graph)


@dataclass
class MessagePassing(MessagePassingMethod):
    """Message passing with custom counting numbers.

    counting: {kind: one number or one per region}; kinds that are left out have counting number 0. links: "star"
    (cliques to variables), "containment" (every region to every region inside it) or "maximal" (regions inside no other
    to all inside).

    Example:
        >>> import potentia as pt
        >>> import numpy as np
        >>> graph = pt.Graph.grid((3, 3), n_states=2)
        >>> method = pt.extend.MessagePassing(counting={"edge": 0.5, "node": 0.5}, links="star")
        >>> method.infer(graph, {"node": [[0, 1]] * 9, "edge": np.eye(2)}).mpm().tolist()
        [1, 1, 1, 1, 1, 1, 1, 1, 1]
    """

    counting: Mapping[str, ArrayLike] = field(default_factory=dict)
    links: Literal["star", "containment", "maximal"] = "star"

    def entropy(self, graph: Graph) -> Entropy:
        """The entropy of the custom counting numbers."""
        return from_counting(graph, self.counting, self.links)


# -- counting numbers from options


def _latest(make: Callable[[Graph, Any], Entropy]) -> Callable[[Graph, Any], Entropy]:
    """Decorate make(graph, option): the graph stores the entropy of the latest option that is a number or None."""

    @per_graph
    def stored(graph: Graph) -> dict[float | None, Entropy]:
        """The latest entropy by its option."""
        return {}

    @wraps(make)
    def entropy(graph: Graph, option: Any) -> Entropy:
        """make(graph, option), or the stored one."""
        if option is not None and not isinstance(option, float):
            return make(graph, option)
        latest = stored(graph)
        made = latest.get(option)
        if made is None:
            made = make(graph, option)
            latest.clear()
            latest[option] = made
        return made

    return entropy


@_latest
def smoothed(graph: Graph, epsilon: float | Mapping[str, float]) -> Entropy:
    """Entropy-smoothed LP: c = epsilon on every region, every containment linked [ILR-chapter Eq. 1.7].

    Regions of a variable without a single-variable region take the largest epsilon given.
    """
    values = _per_kind(graph, epsilon)
    if not np.all(np.isfinite(values)) or values.min() < 0:
        raise PotentiaError(f"epsilon must be finite and not negative, not {epsilon}.")
    maximum = bool(values.max() == 0)
    if values.min() == 0 and not maximum:
        raise PotentiaError("epsilon must be zero for every kind or for none.")
    counting = np.ones(len(graph.regions.size)) if maximum else _spread(graph, values)
    return Entropy(counting, "containment", "max_score", "upper", always=True, maximum=maximum)


def _per_kind(graph: Graph, epsilon: float | Mapping[str, float]) -> Floats:
    """Epsilon of each kind, and last the largest one; a kind without regions need not be named."""
    if not isinstance(epsilon, Mapping):
        return np.full(len(graph.kinds) + 1, real_number(epsilon, "epsilon"))
    present = [kind for kind, scopes in graph.scopes.items() if len(scopes)]
    if not epsilon or any(kind not in epsilon for kind in present):
        raise PotentiaError(f"epsilon must name the graph's kinds {present}, not {list(epsilon)}.")
    values = {kind: real_number(value, f"epsilon[{kind!r}]") for kind, value in epsilon.items()}
    largest = max(values.values())
    return np.array([*(values.get(kind, largest) for kind in graph.kinds), largest])


def _spread(graph: Graph, values: Floats) -> Floats:
    """One value per kind, and one for implicit singles, to every region."""
    ptr = graph.regions.kind_ptr
    sizes = np.append(np.diff(ptr), len(graph.regions.size) - ptr[-1])
    return np.repeat(values, sizes) if len(graph.kinds) else np.full(sizes[-1], values[-1])


@_latest
def reweighted(graph: Graph, rho: float | ArrayLike | None) -> Entropy:
    """TRW: c = rho on cliques and 1 - sum of its cliques' rho on variables [MBL-tpami Eq. 16].

    rho: None for valid weights from spanning forests, one number, one per clique in the order of the graph's
    kinds, or {kind: number or array}.
    """
    if rho is None:
        return star_entropy(graph, graph.forest_weights, valid=True)
    weights = _clique_weights(graph, rho)
    if weights.size and not (np.all(np.isfinite(weights)) and weights.min() > 0):
        raise PotentiaError("rho must be positive and finite for every clique.")
    return star_entropy(graph, weights, valid=certified(graph, weights))


def _clique_weights(graph: Graph, rho: float | ArrayLike) -> Floats:
    """rho of every clique, (cliques,)."""
    if not isinstance(rho, Mapping):
        return _spread_weights(rho, len(graph.cliques), "rho")
    kinds = graph.clique_kinds
    if set(rho) != set(kinds):
        raise PotentiaError(f"rho must name the kinds with cliques {kinds}, not {list(rho)}.")
    parts = [_spread_weights(rho[k], len(graph.scopes[k]), f"rho[{k!r}]") for k in kinds]
    return np.concatenate([np.zeros(0), *parts])


def _spread_weights(rho: ArrayLike, n: int, name: str) -> Floats:
    """One number for all n cliques, or one each."""
    weights = real_numbers(rho, name)
    if weights.ndim and weights.shape != (n,):
        raise PotentiaError(f"{name} has shape {weights.shape}; there are {n} cliques.")
    return np.broadcast_to(weights, (n,)).astype(float)


def from_counting(graph: Graph, counting: Mapping[str, ArrayLike], links: str) -> Entropy:
    """A user's counting numbers: {kind: one number or one per region}; kinds left out and implicit singles get 0."""
    check_choice("links", links, RULES)
    if not isinstance(counting, Mapping):
        raise PotentiaError(f"counting must map kinds to numbers, not be a {type(counting).__name__}.")
    values = np.zeros(len(graph.regions.size))
    for kind, numbers in counting.items():
        if kind not in graph.scopes:
            raise PotentiaError(f"counting names kind {kind!r}, but the graph's kinds are {list(graph.kinds)}.")
        part = real_numbers(numbers, f"counting[{kind!r}]")
        rows = len(graph.scopes[kind])
        if part.ndim and part.shape != (rows,):
            raise PotentiaError(f"counting[{kind!r}] has shape {part.shape}; the kind has {rows} regions.")
        if not np.all(np.isfinite(part)):
            raise PotentiaError(f"counting[{kind!r}] must be finite.")
        values[graph.region_slices[kind]] = part
    return Entropy(values, links, "log_partition", "estimate")

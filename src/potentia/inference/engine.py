"""Entropies, the engines that maximise them, and the loop over their iterations with its tape for gradients."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from ..base.resources import borrow, cut_ranges, map_items, pooled, run_team, teams_pay
from ..base.types import Floats, Ints, PotentiaError, check_count, check_share
from ..graph.scores import Scores
from ..graph.structure import Graph, per_graph
from ..kernels.machine.team import BARRIER, SOLO, TEAMS, Team, gather, release

T = TypeVar("T")

#: Counting numbers closer to zero than this are rounding of sums such as 1 - 2 * 0.5.
_ZERO = 1e-12

SCHEDULES = ("coloured", "sequential", "random", "residual")

#: Damping of messages that oscillate: weights of old messages, one after another, each with the number of iterations
#: over which the largest change must fall before it; by how much, and what is too small to matter.
_DAMPING = ((0.5, 10), (0.75, 50), (0.9, 100))
_FALL, _SMALL = 0.9, 1e-3
#: Changes that fall at least so fast from one iteration to the next tell how many more will be needed. This share of
#: them is done without looking, but at most one for every three iterations so far, or since damping was raised.
_STEADY, _CAUTION, _LOOKED = 0.97, 0.7, 3
#: Changes of a marginal that rounding makes at a fixed point.
_ROUNDING = 2.0**-50


@dataclass(frozen=True, eq=False)
class Entropy:
    """Counting numbers of all regions of a graph and the links between them, for the objective

    A(theta) = max over the local polytope of  theta . mu + sum_alpha c_alpha H(mu_alpha)   (docs/concepts.md).

    Attributes:
        counting: c_alpha per region in the `Regions` numbering.
        links: rule of `Graph.links`: "containment", "star" or "maximal".
        target: what the value speaks of, "log_partition" or "max_score".
        bound: what the value is at a fixed point.
        always: whether `bound` holds at any messages, not only at a fixed point.
        maximum: replace c log sum exp(b / c) by max b (epsilon = 0); `counting` then only weighs the updates.
    """

    counting: Floats
    links: str
    target: str
    bound: str
    always: bool = False
    maximum: bool = False
    _memo: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    def cached(self, key: Any, make: Callable[[], T]) -> T:
        """Derive arrays from the counting numbers once per key; an entropy belongs to one graph."""
        if key not in self._memo:
            self._memo[key] = make()
        value: T = self._memo[key]
        return value


def star_entropy(graph: Graph, weights: Floats, valid: bool) -> Entropy:
    """c = weights on cliques, 1 minus their sum on variables [MBL-tpami Eq. 16]: TRW, and Bethe if all are 1.

    valid: whether the weights are an average of forests, so that the value bounds log Z from above.
    """
    regions = graph.regions
    counting = np.zeros(len(regions.size))
    counting[graph.cliques] = weights
    sums = np.add.reduceat(np.append(counting[regions.member], 0.0), regions.member_ptr[:-1])
    single = 1.0 - sums  # singles still count zero, so they add nothing to their own sums
    counting[regions.single] = np.where(np.abs(single) < _ZERO, 0.0, single)
    exact = graph.is_acyclic and bool(np.all(weights == 1.0))
    return Entropy(counting, "star", "log_partition", "exact" if exact else "upper" if valid else "estimate")


@per_graph
def bethe(graph: Graph) -> Entropy:
    """Loopy BP: c = 1 on cliques, 1 - (number of cliques) on variables; exact on forests."""
    return star_entropy(graph, np.ones(len(graph.cliques)), valid=False)


def kikuchi(graph: Graph) -> Entropy:
    """Kikuchi: c = 1 - sum of c over strict super-regions, maximal regions linked to all their sub-regions."""
    if graph.max_order <= 2:
        return bethe(graph)
    regions, links = graph.regions, graph.links("containment")
    counting = np.ones(len(regions.size))
    order = regions.order
    for size in np.unique(order)[::-1]:
        here = order[links.child] == size
        taken = np.bincount(links.child[here], counting[links.parent[here]], minlength=len(counting))
        counting[order == size] -= taken[order == size]
    return Entropy(counting, "maximal", "log_partition", "estimate")


def check_counting(graph: Graph, counting: Floats, parent: Ints, child: Ints) -> Floats:
    """C = c + sum of the parents' c for every region; refuses numbers the star update cannot use."""
    bad = np.flatnonzero(counting[parent] <= 0)
    if bad.size:
        region = parent[bad[0]]
        raise PotentiaError(
            f"the counting number of the region on variables {_scope(graph, region)} is {counting[region]:g}, "
            "but message passing needs every parent's to be positive."
        )
    total = counting + np.bincount(child, counting[parent], minlength=len(counting))
    linked = np.zeros(len(counting), dtype=bool)
    linked[parent] = linked[child] = True
    # a region on its own needs c > 0 just the same: its marginal is softmax(theta / c)
    low = np.flatnonzero((total <= _ZERO * np.abs(counting).max(initial=0.0)) & (linked | (graph.regions.order == 1)))
    if low.size:
        raise PotentiaError(
            f"the counting numbers of the region on variables {_scope(graph, low[0])} and its parents sum to "
            f"{total[low[0]]:g}, but message passing needs a positive sum."
        )
    return total


def _scope(graph: Graph, region: int) -> list[int]:
    """The variables of a region, in the `Regions` numbering."""
    r = graph.regions
    scope: list[int] = r.scope[r.scope_ptr[region] : r.scope_ptr[region + 1]].tolist()
    return scope


class Readout(NamedTuple):
    """Marginals per kind, of every variable, the value, and the messages in users' order."""

    marginals: Mapping[str, Floats | list[Floats]]
    singles: Floats
    value: float
    messages: Any


class Outcome(NamedTuple):
    """Iterations run, largest change of a marginal in the last one, and whether messages converged or oscillated."""

    iterations: int
    residual: float
    converged: bool
    oscillating: bool = False


def check_options(method: Any) -> None:
    """Refuse wrong iterations, seed and tolerance of an iterative method."""
    check_count("iterations", method.iterations)
    check_count("seed", method.seed)
    check_share("tol", method.tol)


def layout_order(schedule: str) -> str:
    """The order of `pair_layout` that a schedule needs: "colours", "sequence" or "tree"."""
    return {"sequential": "sequence", "tree": "tree"}.get(schedule, "colours")


@dataclass(eq=False, repr=False)
class Engine(ABC):
    """Messages (or the marginals of mean field) on one graph, for one entropy and schedule, and their updates.

    Units (blocks of variables, or regions) come in groups; the units of one group are independent of each other.
    Schedules are those of `MessagePassingMethod`, and "tree": from the leaves to the roots, then back.
    """

    scores: Scores
    entropy: Entropy
    schedule: str = "coloured"
    #: Weight of old messages.
    damping: float = 0.0
    threads: int = 1
    #: Of the random schedule.
    seed: int = 0

    #: Group k holds the units group_ptr[k] .. group_ptr[k + 1], and this many threads are worth using for one group.
    group_ptr: Ints = field(init=False)
    group_threads: int = field(default=1, init=False)
    #: Most iterations that one call of `sweep` should make; more than one for the coloured schedule only.
    bulk: int = field(default=1, init=False)
    #: Whether the first messages are a function of the scores, which a gradient through all iterations must follow.
    from_scores: bool = field(default=False, init=False)

    @abstractmethod
    def __post_init__(self) -> None:
        """Bring scores into the layout of the kernels, with messages at zero."""

    @property
    def graph(self) -> Graph:
        """The graph of the scores."""
        return self.scores.graph

    def team(self, many: int) -> int:
        """Number of threads worth using for `many` iterations in one call, inside which they wait for each other."""
        return 1

    @abstractmethod
    def sweep(
        self, units: Ints, iterations: int = 1, write: bool = True, watch: bool = True, team: Team = SOLO
    ) -> Floats:
        """Update units in this order, `iterations` times over; the largest change of a marginal in each, if watched.

        Without `write` marginals are refreshed and messages stay.
        """

    #: residual_sweep(priority): as many updates as there are units, the largest pending change of `priority` (units,)
    #: first; the largest that is pending then. Only of engines that take the residual schedule.
    residual_sweep: ClassVar[Callable[[Any, Floats], float]]

    def damp(self, damping: float) -> None:
        """Give old messages this weight from now on."""
        self.damping = damping

    @abstractmethod
    def read(self, cliques: bool = True) -> Readout:
        """Marginals and value; without `cliques` those of larger regions and the value may be left out (nan)."""

    @abstractmethod
    def messages(self) -> Any:
        """The messages in users' order."""

    @abstractmethod
    def set_messages(self, messages: Any) -> None:
        """Start from what `messages` gave."""

    # What gradients need: states to go back to, and a tape of what each iteration read.

    @property
    @abstractmethod
    def state(self) -> Floats:
        """The messages (or marginals) that iterations change, in the engine's layout."""

    @property
    def saved_shape(self) -> tuple[int, ...]:
        """Shape of a saved state."""
        return self.state.shape

    def save(self, out: Floats) -> None:
        """Copy the state to `out`."""
        out[...] = self.state

    def restore(self, saved: Floats) -> None:
        """Take up a saved state."""
        self.state[...] = saved

    @property
    def slot_bytes(self) -> int:
        """Memory of a slot of a tape."""
        return self.state.nbytes

    def new_slots(self, slots: int) -> Any:
        """Room for what the reverse of this many iterations needs: the states before them."""
        return borrow((slots, *self.state.shape))

    def record(self, slots: Any, slot: int) -> None:
        """Leave what the reverse of the next iterations (or read-out) needs in the slots from this one on."""
        slots[slot] = self.state


class Tape:
    """Messages that iterations read, for their reverse: slot 0 is of the read-out, slot 1 + k of iteration k.

    memory: bytes that all slots may take. If they need more, only states before every sqrt(N)-th iteration are kept,
    and `fill` runs a segment again: a second forward pass for 2 sqrt(N) instead of N slots. None records the read-out
    only, which at a fixed point is what any further iteration would leave.
    """

    def __init__(self, memory: int | None) -> None:
        self.memory = memory

    @property
    def end_only(self) -> bool:
        """Whether only where the iterations end counts, so that messages that oscillate may be damped."""
        return self.memory is None

    def begin(self, engine: Engine, iterations: int) -> None:
        """Make room for at most this many iterations."""
        n = max(iterations, 1)
        self.engine = engine
        self._whole = self.memory is None or (n + 1) * engine.slot_bytes <= self.memory
        self._every = n if self._whole else math.isqrt(n - 1) + 1
        self._states = borrow((0 if self._whole else -(-n // self._every), *engine.saved_shape))
        self.slots = engine.new_slots(1 if self.end_only else 1 + self._every)

    def before(self, done: int) -> int:
        """Called before iteration `done`; how many iterations may run before the next call."""
        if not self._whole and done % self._every == 0:
            self.engine.save(self._states[done // self._every])
        elif self._whole and not self.end_only:
            self.engine.record(self.slots, 1 + done)
        return self._every - done % self._every

    def segments(self, iterations: int) -> list[tuple[int, int]]:
        """Ranges of iterations whose slots are filled together, from the last to the first."""
        return pieces(0, iterations, self._every)[::-1]

    def fill(self, first: int, last: int) -> None:
        """Run a segment again to fill its slots; the engine's state afterwards is that of before."""
        if self._whole:
            return
        engine, after = self.engine, borrow(self.engine.saved_shape)
        engine.save(after)
        engine.restore(self._states[first // self._every])
        for start, stop in pieces(first, last, engine.bulk):
            engine.record(self.slots, 1 + start - first)
            iterate(engine, start, stop - start, watch=False)
        engine.restore(after)
        engine.record(self.slots, 0)


def pieces(first: int, last: int, size: int) -> list[tuple[int, int]]:
    """first..last in pieces of at most `size`."""
    return [(start, min(start + size, last)) for start in range(first, last, size)]


def drive(engine: Engine, iterations: int, tol: float, tape: Tape | None = None, adapt: bool = False) -> Outcome:
    """Iterate (every message once per iteration) until the largest change of a marginal is below `tol`.

    Schedules that alternate or are random count the last two iterations: what is updated last in one may be updated
    first in the next, where it finds nothing new.

    adapt: damp messages from the iteration on at which they turn out to oscillate.
    """
    iterations = int(iterations)  # a NumPy integer of few bits would overflow in what is computed from it
    changes: list[float] = []
    stages = list(_DAMPING if adapt else ())
    n_units = int(engine.group_ptr[-1])
    priority = np.full(n_units, np.inf)
    residual = before = np.inf if n_units else 0.0
    lag = 1 if engine.schedule in ("coloured", "residual") else 2
    done = 0
    if tape is not None:
        tape.begin(engine, iterations)
    while done < iterations and n_units and not residual < tol:
        room = iterations if tape is None else tape.before(done)
        many = 1
        if engine.schedule == "residual":
            residual = engine.residual_sweep(priority)
            changes.append(residual)
        else:
            # a change is between two iterations; without tolerance only the last ones count
            unwatched = 0 if tol > 0 else iterations - 1 - lag - done
            watch = unwatched <= 0
            if engine.bulk > 1:
                left = min(_likely_left(changes, tol), iterations - done) if watch else unwatched
                many = min(room, engine.bulk, left)
            latest = iterate(engine, done, many, watch).tolist()
            if done == 0:
                latest[0] = np.inf  # the first iteration compares with nothing
            residual, before = max(latest[-1], before) if lag == 2 else latest[-1], latest[-1]
            changes.extend([*latest[:-1], residual])
        done += many
        if stages and _oscillate(changes, stages[0][1]):
            engine.damp(stages.pop(0)[0])
            changes.clear()
    damped = adapt and len(stages) < len(_DAMPING)
    return Outcome(done, float(residual), bool(residual <= max(tol, _ROUNDING)), damped)


def _likely_left(changes: list[float], tol: float) -> int:
    """A conservative estimate of how many more iterations are needed to reach `tol` (at least 1)."""
    latest = changes[-4:]
    if len(latest) < 4 or tol <= 0.0 or min(latest) <= 0.0 or not latest[-1] < latest[0] < np.inf:
        return 1
    rates = np.divide(latest[1:], latest[:-1])
    # where changes do not fall steadily, messages may oscillate
    if rates.max() > _STEADY:
        return 1
    likely = int(_CAUTION * np.log(tol / latest[-1]) / np.log(rates.min()))
    return max(1, min(likely, len(changes) // _LOOKED))


def _oscillate(changes: list[float], window: int) -> bool:
    """Whether the largest change per iteration no longer falls over the given number of iterations."""
    recent, before = changes[-window:], changes[-2 * window : -window]
    return len(before) == window and min(recent) > max(_SMALL, _FALL * min(before))


def settle(engine: Engine, iterations: int, tol: float, outcome: Outcome) -> tuple[Outcome, Readout]:
    """Continue until value and messages no longer change either; not converged if the iterations run out first.

    Large scores make marginals near 0 and 1, which no longer change while messages still move, and damping makes
    messages move slowly.
    """
    calm, read = 0, engine.read()
    while outcome.converged and outcome.iterations < iterations:
        residual = float(iterate(engine, outcome.iterations)[-1])
        after = engine.read()
        finite = np.isfinite(read.messages) & np.isfinite(after.messages)
        moved = float(np.abs(after.messages[finite] - read.messages[finite]).max(initial=0.0))
        # what is damped moves by this share of the way that is left
        moved = max(abs(after.value - read.value), moved) / (1.0 - engine.damping)
        still = moved <= tol * (1.0 + abs(read.value)) and residual <= tol
        # a value that changes direction may not change for one iteration
        calm = calm + 1 if still else 0
        outcome, read = outcome._replace(iterations=outcome.iterations + 1, residual=residual), after
        if calm == 2:
            return outcome, read
    return outcome._replace(converged=False), read


def iterate(engine: Engine, done: int, many: int = 1, watch: bool = True) -> Floats:
    """`many` iterations from number `done` on, at most `engine.bulk`; the largest change of a marginal in each."""
    rounds = unit_lists(engine, done, many)
    if len(rounds) == len(rounds[0]) == 1:
        return engine.sweep(rounds[0][0], many, watch=watch)
    changes = [
        by_thread
        for lists in rounds
        for by_thread in run_lists(lists, lambda units, team: engine.sweep(units, many, watch=watch, team=team))
    ]
    return np.maximum.reduce(changes)


def unit_lists(engine: Engine, done: int, many: int = 1) -> list[list[Ints]]:
    """Units in the order in which each of `many` iterations from number `done` on updates them.

    Rounds that follow each other; the lists of a round are for one thread each, at the same time. Where they end with
    `BARRIER`, threads wait for each other at their barriers. The residual schedule, whose order depends on messages,
    is that of colours here.
    """
    schedule, ptr = engine.schedule, engine.group_ptr
    n = int(ptr[-1])
    if schedule == "random":
        return [[np.random.default_rng([engine.seed, done]).permutation(n)]]
    if engine.threads > 1 and (team := team_size(engine, many)) > 1:
        shares = zip(*(cut_ranges(a, b, team) for a, b in pairwise(ptr.tolist())), strict=True)
        return [[np.concatenate([np.append(np.arange(*ends), BARRIER) for ends in share]) for share in shares]]
    back = schedule in ("sequential", "tree") and done % 2 == 1
    threads = engine.group_threads
    if threads == 1 or many > 1 or pooled():
        return [[np.arange(n - 1, -1, -1) if back else np.arange(n)]]  # not a view: kernels would compile once more
    rounds = [
        [np.arange(*ends) for ends in cut_ranges(a, b, threads) if ends[0] < ends[1]]
        for a, b in pairwise(ptr.tolist())
        if a < b
    ]
    return rounds[::-1] if back else rounds


def team_size(engine: Engine, many: int) -> int:
    """Threads that make `many` iterations as a team, waiting for each other inside the kernel; 1 for no team."""
    return engine.team(many) if TEAMS and engine.schedule == "coloured" and teams_pay() else 1


def run_lists(lists: list[Ints], function: Callable[[Ints, Team], T]) -> list[T]:
    """function(units, team) of every list of a round, one thread each."""
    if len(lists) == 1:
        return [function(lists[0], SOLO)]
    if lists[0][-1] != BARRIER:
        return map_items(lambda units: function(units, SOLO), lists, len(lists))
    team = gather(len(lists))
    return run_team(lambda units: function(units, team), lists, lambda: release(team))

"""What a message-passing engine offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from .._memory import borrow
from .._types import Floats, Ints
from ..kernels.machine.team import Team


class Readout(NamedTuple):
    """Marginals per kind, of every variable, the value, and the messages in users' order."""

    marginals: Mapping[str, Floats | list[Floats]]
    singles: Floats
    value: float
    messages: Any


class Engine(Protocol):
    """Units (blocks of variables, or regions) in groups; the units of one group are independent of each other."""

    threads: int

    @property
    def group_ptr(self) -> Ints: ...

    @property
    def group_threads(self) -> int: ...

    @property
    def bulk(self) -> int:
        """Iterations that one call of `sweep` may be given where nothing needs to be known between them."""
        ...

    def team(self, many: int) -> int:
        """Threads that pay for this many iterations together; more than one only for a `TeamEngine`."""
        ...

    def sweep(self, units: Ints, write: bool = True, watch: bool = True) -> float:
        """Update units in this order; the largest change of a marginal, which need not be known without `watch`."""
        ...

    def read(self, cliques: bool = True) -> Readout:
        """Marginals and value; without `cliques` those of larger regions and the value may be left out (nan)."""
        ...

    def messages(self) -> Any: ...

    def set_messages(self, messages: Any) -> None: ...

    @property
    def state(self) -> Floats:
        """What iterations change: messages, or marginals of mean field."""
        ...

    @property
    def saved_shape(self) -> tuple[int, ...]: ...

    def save(self, out: Floats) -> None: ...

    def restore(self, saved: Floats) -> None: ...

    @property
    def slot_bytes(self) -> int:
        """Memory of a slot of a tape."""
        ...

    def tape(self, slots: int) -> Any:
        """Room for what this many iterations leave for their reverse."""
        ...

    def record(self, tape: Any, slot: int) -> None:
        """Leave what the reverse of the next iteration (or read-out) needs in a slot of the tape."""
        ...


class TeamEngine(Engine, Protocol):
    """An engine that makes updates of several iterations in one call, by threads that wait for each other inside it."""

    @property
    def reach(self) -> int:
        """How far apart the numbers of linked units are, each counted in its group."""
        ...

    @property
    def depth(self) -> int:
        """Iterations that may be under way at once, each `reach` units behind the one before, in every group."""
        ...

    def update(self, updates: Ints, watch: bool, team: Team) -> Floats:
        """A thread's share of the updates of whole iterations, see `steps.Step`; the largest changes by iteration."""
        ...


class ResidualEngine(Engine, Protocol):
    """An engine that can update its units one at a time, the largest pending change first."""

    def residual_sweep(self, priority: Floats) -> float:
        """As many updates as there are units; the largest change that is pending then."""
        ...


class DampedEngine(Engine, Protocol):
    """An engine whose messages can be damped."""

    damping: float

    def damp(self, damping: float) -> None:
        """Give old messages this weight from now on."""
        ...


class WholeStates(ABC):
    """An engine whose states are saved as they are, and whose reverse needs the state before an iteration."""

    bulk = 1

    def team(self, many: int) -> int:
        """Threads do not wait for each other inside an iteration."""
        return 1

    @property
    @abstractmethod
    def state(self) -> Floats:
        """What iterations change."""

    @property
    def saved_shape(self) -> tuple[int, ...]:
        """Shape of a saved state."""
        return self.state.shape

    def save(self, out: Floats) -> None:
        """Keep the state in `out`."""
        out[...] = self.state

    def restore(self, saved: Floats) -> None:
        """Take up a saved state."""
        self.state[...] = saved

    @property
    def slot_bytes(self) -> int:
        """Memory of a slot of a tape."""
        return self.state.nbytes

    def tape(self, slots: int) -> Floats:
        """Room for the states before this many iterations."""
        return borrow((slots, *self.state.shape))

    def record(self, tape: Floats, slot: int) -> None:
        """Keep the state before an iteration."""
        tape[slot] = self.state


class Recorder(Protocol):
    """Announce the iterations to come, so that the engine records what the reverse pass needs."""

    #: Whether only where the iterations end counts, so that messages that oscillate may be damped.
    end_only: bool

    def before(self, done: int) -> int:
        """Another iteration, after `done` of them; how many may follow before this is called again."""
        ...

    def reading(self) -> None:
        """The read-out."""
        ...

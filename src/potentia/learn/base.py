"""`Learner` and `Fit`: how potentials are trained, and a training run that one loop drives for all of them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, NamedTuple

from ..base.optimise import Search
from ..base.options import check_choice
from ..base.saving import Registered
from ..base.types import Floats, PotentiaError
from ..features.parts import Examples
from ..inference.base import Inference
from ..inference.messages import TRW
from ..potentials.base import Potential
from .data import Dataset

#: Iterations over which the objective's fall is judged: a single step may be short without being the last.
WINDOW = 10
#: A fall in WINDOW iterations beyond this share counts as unfinished where no tolerance is given.
STILL_FALLING = 1e-2


class SavedFit(NamedTuple):
    """What a checkpoint holds of a fit beside its potentials: the history, and what `arrays` and `part_arrays` gave."""

    history: Sequence[Mapping[str, Any]]
    arrays: Mapping[str, Floats]
    parts: Sequence[Mapping[str, Floats]]


class Fit(ABC):
    """A fit under way. The loop calls `step` until it is settled, and owns history, clock, callbacks and checkpoints.

    A custom class needs `step`. One that has state beyond its potentials' adds `arrays` and `restore`.

    Attributes:
        limit: iterations after which the fit ends at the latest.
        data: the data set's parts, where the fit works on such; evaluations reuse them.
    """

    limit: int
    tol: float = 0.0
    data: Dataset | None = None
    #: The option that a user sets the limit by.
    limit_name: ClassVar[str] = "iterations"

    def prepare(self) -> None:
        """Work before the first iteration of a fit that is not resumed."""
        return

    @abstractmethod
    def step(self, history: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
        """One iteration: returns the row of the history, at least {"objective": ...}; None if nothing can be gained."""

    def settled(self, history: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the objective fell by at most `tol` of itself in the last ten iterations."""
        return has_settled(history, self.tol)

    def standing(self) -> dict[str, Any] | None:
        """The row of where a fit stands that had nothing to gain from its start; None if it is not known."""
        return None

    def failure(self, history: Sequence[Mapping[str, Any]]) -> str | None:
        """Why the fit ended elsewhere than at a minimum, for a warning; None if nothing went wrong."""
        return None

    def converged(self, history: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the fit ended before its limit, and did not fail."""
        return self.failure(history) is None and (len(history) < self.limit or self.settled(history))

    def complaint(self, history: Sequence[Mapping[str, Any]]) -> str | None:
        """The warning if the fit failed, or was stopped by its iteration limit."""
        failure = self.failure(history)
        if failure is not None:
            return failure
        cut = 2 <= len(history) >= self.limit
        if cut and not self.settled(history) and fall(history) > (self.tol or STILL_FALLING):
            return (
                f"The objective still fell by {fall(history):.2g} of itself in the last "
                f"{min(WINDOW, len(history) - 1)} of {len(history)} iterations; raise `{self.limit_name}`."
            )
        return None

    def arrays(self) -> dict[str, Floats]:
        """State beyond the potentials', as named arrays, for a checkpoint."""
        return {}

    def statistics(self) -> dict[str, Any]:
        """What the rounds of an iteration took on a cluster, for the history; nothing elsewhere."""
        return {} if self.data is None else self.data.parts.statistics()

    def part_arrays(self) -> Iterable[dict[str, Floats]]:
        """State of every part of the data, for a checkpoint."""
        return []

    def restore(self, saved: SavedFit) -> None:
        """Take back what was saved; the potentials have been restored already."""
        return


class Learner(Registered, ABC):
    """Trains the potentials of a `CRF`: a dataclass whose fields are its options.

    A custom class defines `begin`, which returns a `Fit`, and may override what predictions of the trained model
    use. It works with checkpoints, progress and saving as the library's own do.
    """

    #: What predictions take of inference's result unless a CRF says otherwise.
    decode: ClassVar[str] = "mpm"
    #: Predict the examples after every iteration, or after those listed; None: where that costs little.
    track_error: bool | Sequence[int] | None = False
    threads: int | None = None

    def check(self, potentials: Mapping[str, Potential]) -> None:
        """Refuse options and potentials that cannot be used, before work starts."""
        return

    @abstractmethod
    def begin(self, potentials: Mapping[str, Potential], examples: Examples) -> Fit:
        """Begin to train the potentials, in place; examples are a list, or `pt.parts` where those were given."""

    def scales(self, kinds: Sequence[str]) -> dict[str, float]:
        """Factors between f and theta at prediction, per kind."""
        return dict.fromkeys(kinds, 1.0)

    def predictor(self, kinds: Sequence[str]) -> Inference:
        """The inference that predictions of the trained model use."""
        return TRW(iterations=20)

    def check_choices(self, choices: Mapping[str, Sequence[str]]) -> None:
        """Refuse an option that is not one of its choices."""
        for name, allowed in choices.items():
            check_choice(name, getattr(self, name), allowed)

    def check_inference(self, *names: str) -> None:
        """Refuse an option that should be an inference method and is not."""
        for name in names:
            given = getattr(self, name)
            if given is not None and not isinstance(given, Inference):
                raise PotentiaError(f"{name} must be an inference method, not a {type(given).__name__}.")

    def __repr__(self) -> str:
        """The constructor call, with the arguments that differ from their defaults."""
        values = {f.name: (getattr(self, f.name), f.default) for f in fields(self)}  # type: ignore[arg-type]
        options = [f"{name}={v!r}" for name, (v, default) in values.items() if repr(v) != repr(default)]
        return f"{type(self).__name__}({', '.join(options)})"


def steps_made(history: Sequence[Mapping[str, Any]]) -> int:
    """Iterations that a history tells of; the row of a start is number 0."""
    return int(history[-1]["iteration"]) if history else 0


def stuck(search: Search, tol: float) -> str | None:
    """What to say of a search that found no lower value although the slope promised one; None if it did not."""
    if not search.missed > (tol or STILL_FALLING) * abs(search.value):
        return None
    return (
        "The fit ended before its minimum: no step along the gradient lowers the objective, so nearby values or "
        "gradients are inaccurate or not finite."
    )


def has_settled(history: Sequence[Mapping[str, Any]], tol: float) -> bool:
    """Whether the objective fell by at most `tol` of itself in the last ten iterations; never for a tolerance of 0."""
    return tol > 0 and len(history) > WINDOW and fall(history) <= tol


def fall(history: Sequence[Mapping[str, Any]]) -> float:
    """Share of itself by which the objective fell in the last ten iterations."""
    before = history[max(0, len(history) - 1 - WINDOW)]["objective"]
    now = history[-1]["objective"]
    return share(before - now, before) if before != now else 0.0


def share(amount: float, objective: float) -> float:
    """An amount relative to an objective, which may be zero: then any amount but zero is infinitely large."""
    if objective == 0:
        return math.copysign(math.inf, amount) if amount != 0 else 0.0
    return float(amount / abs(objective))

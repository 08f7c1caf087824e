"""Back-propagation through the iterations of inference: those that were run, or as many as a fixed point needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..base.memory import borrow
from ..base.options import check_count, check_number
from ..base.types import Floats, Ints, PotentiaError
from ..graph.cotangents import MarginalCotangent, Tables
from ..graph.scores import Scores
from ..inference.base import Inference, Result
from ..inference.engine import Session, iterate, unit_lists
from ..inference.mean_field import DenseMeanFieldEngine, MeanFieldEngine
from ..inference.pair_engine import PairEngine
from ..inference.region_engine import RegionEngine
from ..inference.weight_engine import WeightEngine
from .base import Gradient, GradientError
from .loss import Pull
from .pairs import PairReverse, WeightReverse
from .regions import DenseMeanFieldReverse, MeanFieldReverse, RegionReverse

_REVERSE: dict[type, Any] = {
    PairEngine: PairReverse,
    WeightEngine: WeightReverse,
    RegionEngine: RegionReverse,
    MeanFieldEngine: MeanFieldReverse,
    DenseMeanFieldEngine: DenseMeanFieldReverse,
}


#: Cotangents that have grown by this factor have no finite sum.
_DIVERGED = 1e12
#: Reverse iterations over which the rate of their fall is measured, and the share of the largest that is rounding.
_RATE, _EXACT = 4, 1e-16
#: A gradient that may be off by this share is doubtful.
_LOOSE = 1e-5


@dataclass(frozen=True)
class Truncated(Gradient):
    """The exact gradient of the marginals after however many iterations were run [MBL-tpami sec. 7].

    Iterations leave on a tape what their reverse needs, or where that takes more than `memory` bytes only states
    before every sqrt(N)-th are kept, from which a segment at a time is run again: a second forward pass for
    2 sqrt(N) instead of N slots. Messages that oscillate are not damped automatically, unlike in `infer` and with
    the other gradients: set `damping` where `Result.oscillating` says that they do.
    """

    at_fixed_point: ClassVar[bool] = False

    memory: int = 2**29

    def __post_init__(self) -> None:
        check_count("memory", self.memory)

    def solve(
        self, inference: Inference, scores: Scores, start: Result | None = None, cliques: bool = True
    ) -> tuple[Result, Pull]:
        """Inference and the function that pulls cotangents of its marginals back."""
        session = stepwise(inference, scores, start)
        tape = _Tape(session, self.memory)
        result = session.run(tape, cliques)

        def pull(cotangent: MarginalCotangent) -> Tables:
            reverse = _REVERSE[type(session.engine)](session.engine, result, tape.slots, fixed=False)
            reverse.read(cotangent)
            for first, last in tape.segments(result.iterations):
                tape.fill(first, last)
                for start, stop in reversed(pieces(first, last, tape.bulk)):
                    run = unit_lists(session.engine, session.schedule, session.seed, start, stop - start)
                    reverse.undo(run, 1 + start - first, stop - start)
                reverse.flush(1 + last - first)
            if session.uniform:
                reverse.pull_start()
            tables: Tables = reverse.tables()
            return tables

        return result, pull


@dataclass(frozen=True)
class BackPropagation(Gradient):
    """Back-propagation at a fixed point until what is left sums to a share of `threshold` [MBL-tpami sec. 7.2].

    Every reverse iteration uses the final messages, so nothing is stored; the gradient is that of the fixed point,
    as good as inference has converged. Where inference converges so slowly that this may be off by a share of 1e-5,
    to judge by how fast cotangents fall, it is in doubt. `iterations` limits the reverse iterations. What they sum to
    solves a linear system; started from an earlier result, they begin at the solution found there. They diverge where
    inference with the same damping does, which raises an error.
    """

    threshold: float = 1e-8
    iterations: int = 10_000

    def __post_init__(self) -> None:
        check_number("threshold", self.threshold)
        check_count("iterations", self.iterations)

    def solve(
        self, inference: Inference, scores: Scores, start: Result | None = None, cliques: bool = True
    ) -> tuple[Result, Pull]:
        """Inference and the function that pulls cotangents of its marginals back."""
        session = stepwise(inference, scores, start)
        end = _End(session)
        result = session.run(end, cliques)
        guess = None if start is None else start.memo.get("cotangents")
        if guess is not None and not np.isfinite(guess).all():
            guess = None

        def pull(cotangent: MarginalCotangent) -> Tables:
            reverse = _REVERSE[type(session.engine)](session.engine, result, end.slots, fixed=True)
            reverse.read(cotangent)
            # any order of updates has the same fixed point and gradient, so one order serves all iterations
            order = unit_lists(session.engine, session.schedule, session.seed, 0)
            result.memo["cotangents"], settled, rate = self._settle(reverse, order, guess)
            # marginals are residual * rate / (1 - rate) from the fixed point, and their slopes change the faster, the
            # slower they converge
            off = result.residual * rate / (1.0 - rate) ** 2 if rate < 1.0 else np.inf
            if not settled:
                result.memo["doubt"] = (
                    f"Back-propagation did not reach its threshold in {self.iterations} reverse iterations, so the "
                    "gradient is inaccurate; raise its `iterations` or its `threshold`."
                )
            elif off > _LOOSE:
                result.memo["doubt"] = (
                    f"Inference converges so slowly that back-propagation may be off by a share of {off:.0e}; lower "
                    "the `tol` of inference and raise its `iterations`."
                )
            tables: Tables = reverse.tables()
            return tables

        return result, pull

    def _settle(
        self, reverse: Any, order: list[list[Ints]], guess: Floats | None
    ) -> tuple[Floats, bool, float]:
        """Undo iterations until nothing is left; the sum of all cotangents that were undone, S = g + J' S.

        Then whether that was reached, and the factor by which cotangents fell per iteration at the end.
        """
        left: Floats = reverse.pending
        first = _size(left)
        total = np.zeros_like(left)
        # the first cotangents are those of marginals, which a loss may make as large as the inverse of a marginal; how
        # large the others are is known once an iteration has been undone
        most = rate = 0.0
        if guess is not None and guess.shape == left.shape and first > 0.0:
            total += guess
            direct = left.copy()
            left[...] = guess
            reverse.undo(order, 0)
            most = _size(left)
            left += direct - guess
        largest = _DIVERGED * max(first, _size(left))
        sizes: list[float] = []
        for done in range(self.iterations + 1):
            size = _size(left)
            if done:
                most, sizes = max(most, size), [*sizes[-_RATE:], size]
            if len(sizes) > 1 and sizes[0] > 0.0:
                rate = (size / sizes[0]) ** (1.0 / (len(sizes) - 1))
            # what is left out is a geometric series
            if size <= most * max(self.threshold * (1.0 - rate), min(self.threshold, _EXACT)):
                return total, True, rate
            if done == self.iterations:
                break
            if not size <= largest:
                raise GradientError(
                    "Back-propagation diverges at these marginals: use another gradient, or damping and more "
                    "iterations of inference."
                )
            total += left
            reverse.undo(order, 0)
        return total, False, rate


def _size(cotangents: Floats) -> float:
    return float(np.abs(cotangents).max(initial=0.0))


def stepwise(inference: Inference, scores: Scores, start: Result | None) -> Session:
    """The inference as iterations that can be undone, or a sentence why it is none."""
    session = inference.session(scores, start)
    if session is None:
        raise PotentiaError(
            f"{type(inference).__name__} on this graph has no iterations to differentiate: "
            "use gradient='perturbation', or another inference."
        )
    if session.schedule == "residual":
        raise PotentiaError("the order of the residual schedule depends on the scores: use another schedule.")
    return session


def pieces(first: int, last: int, size: int) -> list[tuple[int, int]]:
    """first..last in pieces of at most `size`."""
    return [(start, min(start + size, last)) for start in range(first, last, size)]


class _End:
    """Keeps what the read-out leaves, which at a fixed point is what any further iteration would."""

    end_only = True

    def __init__(self, session: Session) -> None:
        self._session, self.slots = session, session.engine.tape(1)

    def before(self, done: int) -> int:
        """Nothing of the iterations themselves."""
        return self._session.iterations

    def reading(self) -> None:
        """Slot 0."""
        self._session.engine.record(self.slots, 0)


class _Tape:
    """Slot 0 of the read-out and one for every iteration: of all of them, or of a segment at a time."""

    end_only = False

    def __init__(self, session: Session, memory: int) -> None:
        self._session = session
        engine, n = session.engine, max(session.iterations, 1)
        self.bulk = engine.bulk if session.schedule == "coloured" else 1
        self._whole = (n + 1) * engine.slot_bytes <= memory
        self._every = n if self._whole else math.isqrt(n - 1) + 1
        self._checkpoints = borrow((0 if self._whole else -(-n // self._every), *engine.saved_shape))
        self.slots = engine.tape(1 + self._every)

    def before(self, done: int) -> int:
        """Called before iterations of the forward run; how many may follow before the next call."""
        if self._whole:
            self._session.engine.record(self.slots, 1 + done)
        elif done % self._every == 0:
            self._session.engine.save(self._checkpoints[done // self._every])
        return self._every - done % self._every

    def reading(self) -> None:
        """Called before the read-out."""
        self._session.engine.record(self.slots, 0)

    def segments(self, iterations: int) -> list[tuple[int, int]]:
        """Ranges of iterations that are on the tape together, from the last to the first."""
        return pieces(0, iterations, self._every)[::-1]

    def fill(self, first: int, last: int) -> None:
        """Run a segment again, for the tape; the engine's state afterwards is that of before."""
        if self._whole:
            return
        engine = self._session.engine
        after = borrow(engine.saved_shape)
        engine.save(after)
        engine.restore(self._checkpoints[first // self._every])
        for start, stop in pieces(first, last, self.bulk):
            engine.record(self.slots, 1 + start - first)
            iterate(engine, self._session.schedule, self._session.seed, start, stop - start, watch=False)
        engine.restore(after)

"""Back-propagation through the iterations of inference: those that were run, or as many as a fixed point needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..base.types import Floats, Ints, PotentiaError, check_count, check_number
from ..graph.cotangents import MarginalCotangent, Tables
from ..graph.scores import Scores
from ..inference.base import Inference, Result
from ..inference.engine import Engine, Tape, pieces, unit_lists
from .base import Gradient, GradientError, Pull
from .reverse import Reverse, make_reverse

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
        engine, tape = _reversible(inference, inference.engine(scores, start)), Tape(self.memory)
        result = inference.solve(engine, tape, cliques)

        def pull(cotangent: MarginalCotangent) -> Tables:
            """d_mu to d_theta through all iterations, the last one first, from messages on tape."""
            reverse = make_reverse(engine, result, tape.slots, fixed=False)
            reverse.read(cotangent)
            for first, last in tape.segments(result.iterations):
                tape.fill(first, last)
                for start, stop in reversed(pieces(first, last, engine.bulk)):
                    reverse.undo(unit_lists(engine, start, stop - start), 1 + start - first, stop - start)
                reverse.flush(1 + last - first)
            if engine.from_scores:
                reverse.pull_start()
            return reverse.tables()

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
        engine, end = _reversible(inference, inference.engine(scores, start)), Tape(None)
        result = inference.solve(engine, end, cliques)
        guess = None if start is None else start.memo.get("cotangents")
        if guess is not None and not np.isfinite(guess).all():
            guess = None

        def pull(cotangent: MarginalCotangent) -> Tables:
            """d_mu to d_theta by iterating the transposed update at the fixed point until cotangents settle."""
            reverse = make_reverse(engine, result, end.slots, fixed=True)
            reverse.read(cotangent)
            # any order of updates has the same fixed point and gradient, so one order serves all iterations
            order = unit_lists(engine, 0)
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
            return reverse.tables()

        return result, pull

    def _settle(self, reverse: Reverse, order: list[list[Ints]], guess: Floats | None) -> tuple[Floats, bool, float]:
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
    """The largest cotangent by size."""
    return float(np.abs(cotangents).max(initial=0.0))


def _reversible(inference: Inference, engine: Engine | None) -> Engine:
    """The engine whose iterations are to be undone, or a sentence why there is none."""
    if engine is None:
        raise PotentiaError(
            f"{type(inference).__name__} on this graph has no iterations to differentiate: "
            "use gradient='perturbation', or another inference."
        )
    if engine.schedule == "residual":
        raise PotentiaError("the order of the residual schedule depends on the scores: use another schedule.")
    return engine

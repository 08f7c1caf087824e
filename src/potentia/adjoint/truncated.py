"""Back-propagation through the iterations of inference: those that were run, or as many as a fixed point needs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._memory import borrow
from .._types import Floats, Ints, PotentiaError
from ..graph.cotangents import MarginalCotangent, Tables
from ..graph.scores import Scores
from ..inference.base import Inference, Result
from ..inference.engine import Session, iterate, steps
from ..inference.mean_field import MeanFieldEngine
from ..inference.pair_engine import PairEngine
from ..inference.region_engine import RegionEngine
from .pairs import PairReverse
from .regions import MeanFieldReverse, RegionReverse

#: Turns cotangents of a result's marginals into cotangents of its scores; to be called once.
Pull = Callable[[MarginalCotangent], Tables]

_REVERSE: dict[type, Any] = {
    PairEngine: PairReverse,
    RegionEngine: RegionReverse,
    MeanFieldEngine: MeanFieldReverse,
}


@dataclass(frozen=True)
class Truncated:
    """The exact gradient of the marginals after however many iterations were run [MBL-tpami sec. 7].

    Messages before every iteration are kept, or where that takes more than `memory` bytes those before every
    sqrt(N)-th, from which the others are computed again: a second forward pass for 2 sqrt(N) instead of N copies.
    """

    memory: int = 2**28

    def solve(
        self, inference: Inference, scores: Scores, start: Result | None = None, cliques: bool = True
    ) -> tuple[Result, Pull]:
        """Inference and the function that pulls cotangents of its marginals back."""
        session = stepwise(inference, scores, start)
        tape = _Tape(session, self.memory)
        result = session.run(tape.before, cliques)

        def pull(cotangent: MarginalCotangent) -> Tables:
            reverse = _REVERSE[type(session.engine)](session.engine, result)
            reverse.read(cotangent)
            for done in reversed(range(result.iterations)):
                groups = steps(session.engine, session.schedule, session.seed, done)
                reverse.undo(groups, tape.before_iteration(done))
            tables: Tables = reverse.tables()
            return tables

        return result, pull


@dataclass(frozen=True)
class BackPropagation:
    """Back-propagation at a fixed point until cotangents fall below `threshold` of the first [MBL-tpami sec. 7.2].

    Every reverse iteration uses the final messages, so nothing is stored; the gradient is that of the fixed point,
    as good as inference has converged. `iterations` limits the reverse iterations. What they sum to solves a linear
    system; started from an earlier result, they begin at the solution found there.
    """

    threshold: float = 1e-8
    iterations: int = 10_000

    def solve(
        self, inference: Inference, scores: Scores, start: Result | None = None, cliques: bool = True
    ) -> tuple[Result, Pull]:
        """Inference and the function that pulls cotangents of its marginals back."""
        session = stepwise(inference, scores, start)
        result = session.run(cliques=cliques)
        guess = None if start is None else start.memo.get("cotangents")

        def pull(cotangent: MarginalCotangent) -> Tables:
            reverse = _REVERSE[type(session.engine)](session.engine, result)
            reverse.read(cotangent)
            # any order of updates has the same fixed point and gradient, so one order serves all iterations
            order = steps(session.engine, session.schedule, session.seed, 0)
            result.memo["cotangents"] = self._settle(reverse, order, guess)
            tables: Tables = reverse.tables()
            return tables

        return result, pull

    def _settle(self, reverse: Any, order: list[tuple[Ints, int]], guess: Floats | None) -> Floats:
        """Undo iterations until nothing is left; the sum of all cotangents that were undone, S = g + J' S."""
        left: Floats = reverse.pending
        first = float(np.abs(left).max(initial=0.0))
        total = np.zeros_like(left)
        if guess is not None and guess.shape == left.shape:
            total += guess
            direct = left.copy()
            left[...] = guess
            reverse.undo(order, None)
            left += direct - guess
        for _ in range(self.iterations):
            if np.abs(left).max(initial=0.0) <= self.threshold * first:
                break
            total += left
            reverse.undo(order, None)
        return total


def stepwise(inference: Inference, scores: Scores, start: Result | None) -> Session:
    """The inference as iterations that can be undone, or a sentence why it is none."""
    session = inference.session(scores, start)
    if session is None:
        raise PotentiaError(
            f"{type(inference).__name__} on this graph is no iteration to differentiate: "
            "use gradient='perturbation', or another inference"
        )
    if session.schedule == "greedy":
        raise PotentiaError("the order of the greedy schedule depends on the scores: use another schedule")
    return session


class _Tape:
    """States before iterations: all of them, or checkpoints from which a segment at a time is made again."""

    def __init__(self, session: Session, memory: int) -> None:
        self._session = session
        shape, n = session.engine.saved_shape, max(session.iterations, 1)
        fits = n * 8 * math.prod(shape) <= memory
        self._every = 1 if fits else math.isqrt(n - 1) + 1
        self._checkpoints = borrow((-(-n // self._every), *shape))
        self._segment = borrow((self._every - 1, *shape))
        self._segment_start = -1

    def before(self, done: int) -> None:
        """Called before each iteration of the forward run."""
        if done % self._every == 0:
            self._session.engine.save(self._checkpoints[done // self._every])

    def before_iteration(self, done: int) -> Floats:
        """The saved state before iteration `done`; asked for from the last iteration to the first."""
        first = done - done % self._every
        if done == first:
            return self._checkpoints[done // self._every]
        if self._segment_start != first:
            self._make_segment(first, done)
        state: Floats = self._segment[done - first - 1]
        return state

    def _make_segment(self, first: int, last: int) -> None:
        engine = self._session.engine
        after = engine.state.copy()
        engine.restore(self._checkpoints[first // self._every])
        for done in range(first, last):
            iterate(engine, self._session.schedule, self._session.seed, done, watch=False)
            engine.save(self._segment[done - first])
        engine.state[...] = after
        self._segment_start = first

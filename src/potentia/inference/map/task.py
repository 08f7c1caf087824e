"""What the parts of `MAP` share: the best labelling and bound so far, the time left, and what is still undecided."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

from ...base.types import Bools, InfeasibleError, Ints
from ...graph.scores import Scores, score_labels
from ...kernels.machine.jit import compilation_seconds
from . import reduce
from .reduce import Reduced

#: Share of the score below which a gap is rounding.
_ROUNDING = 1e-9


def _clock() -> float:
    """Seconds that pass, without those in which kernels are compiled: only a first call has those."""
    return time.monotonic() - compilation_seconds()


class SearchTask:
    """One search for the best labelling.

    Attributes:
        scores: the problem as given.
        problem: what is left of it; every labelling better than `labels` is still in there.
        labels, score, found_by: the best labelling so far, its score (-inf: none) and the part that found it.
        bound, bound_by: the least upper bound so far, and the part that found it.
        iterations: iterations of dual ascent.
        interrupted: whether a KeyboardInterrupt ended the search.
    """

    def __init__(self, scores: Scores, time_limit: float | None, seed: int) -> None:
        self.scores = scores
        self.problem: Reduced = reduce.whole(scores)
        self.labels: Ints | None = None
        self.score, self.found_by = -math.inf, "none"
        self.bound, self.bound_by = math.inf, "none"
        self.iterations, self.interrupted = 0, False
        #: Scores of which elimination has solved what it can, and the table entries it was allowed.
        self.unsolved: tuple[Scores | None, float] = (None, 0.0)
        #: Called now and then: takes what is found beside the part under way.
        self.poll: Callable[[], object] = lambda: None
        self.rng = np.random.default_rng(seed)
        self.timed = time_limit is not None
        self._deadline = math.inf if time_limit is None else _clock() + time_limit
        self._cancelling = scores.rounding()

    @property
    def left(self) -> float:
        """Seconds left, inf without a limit."""
        return self._deadline - _clock()

    @property
    def slack(self) -> float:
        """What counts as rounding in scores; large scores of either sign may add up to a small one."""
        return _ROUNDING * abs(self.score) + self._cancelling

    @property
    def proven(self) -> bool:
        """Whether the labelling is the best."""
        return self.labels is not None and self.bound <= self.score + self.slack

    @property
    def over(self) -> bool:
        """Whether there is nothing left to do, or no time for it."""
        self.poll()
        return self.proven or self.left <= 0

    def offer(self, labels: Ints, part: str) -> bool:
        """Take labels of the undecided variables if they are better than the best so far."""
        full = self.problem.expand(labels)
        score = score_labels(self.scores, full)
        if score <= self.score:
            return False
        self.labels, self.score, self.found_by = full, score, part
        return True

    def tighten(self, bound: float, part: str) -> None:
        """Take an upper bound on the score of the undecided part."""
        bound = max(bound + self.problem.constant, self.score)
        if bound < self.bound:
            self.bound, self.bound_by = bound, part

    @property
    def current(self) -> Ints | None:
        """The best labelling's labels of the undecided variables, None if there is none.

        A label that is ruled out meanwhile is replaced by the variable's own best state.
        """
        if self.labels is None or self.problem.scores is None:
            return None
        labels, singles = self.labels[self.problem.variables], self.problem.scores.singles
        allowed = singles[np.arange(len(labels)), labels] > -np.inf
        return np.where(allowed, labels, singles.argmax(axis=1))

    def restrict(self, allowed: Bools, part: str) -> None:
        """Keep only these states of the undecided variables; none of the others is in a better labelling.

        Follows up hard constraints. Where nothing remains the best labelling is proven, or there is none at all.
        """
        scores = self.problem.scores
        assert scores is not None
        if not reduce.propagate(scores, allowed):
            self.exhaust(part)
            return
        self.problem = reduce.reduce(self.problem, allowed)
        if self.problem.scores is None:
            self.offer(self.problem.variables, part)
            self.exhaust(part)

    def exhaust(self, part: str) -> None:
        """Take note that no labelling is better than the best so far."""
        if self.labels is None:
            raise InfeasibleError("every labelling is forbidden: the -inf scores contradict each other.")
        self.bound, self.bound_by = self.score, part

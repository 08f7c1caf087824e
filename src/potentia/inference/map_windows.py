"""Local search whose moves are exact on windows: balls of variables as large as elimination can afford."""

from __future__ import annotations

import numpy as np

from .._types import Ints, WidthError
from ..kernels.induced_forest import induced_forest
from .map_blocks import Blocks, csr_rows
from .map_task import Task

#: Table entries that a window may take, from the first round to the last.
_ENTRIES = (2e4, 2e5, 2e6)
#: The same after a kick.
_KICK_ENTRIES = 2e5
#: The same of a forest, and the share of the best forest's gain below which windows gain more.
_FOREST_ENTRIES, _FOREST_GAIN = 1e8, 0.05
#: Variables of the first window.
_FIRST_SIZE = 16.0
#: A kick's ball in windows, the share of it that is redrawn, and the windows solved after it.
_BALL, _REDRAWN, _TRIES = 2.0, 0.3, 6
#: Kicks in vain after which an untimed search ends.
_PATIENCE = 50
_PART = "windows"


class Windows:
    """Improves a labelling window by window; keeps the size of windows at what elimination can afford."""

    def __init__(self, task: Task) -> None:
        scores = task.problem.scores
        assert scores is not None
        self.task, self.blocks, self.regions = task, Blocks(scores), scores.regions
        self.size = _FIRST_SIZE

    def descend(self, labels: Ints) -> None:
        """Forests, then windows of growing width, until none improves the labelling, which is changed in place."""
        try:
            self._visit_forests(labels)
            for entries in _ENTRIES:
                self.size = _FIRST_SIZE
                self._visit_all(labels, entries)
        finally:
            self.task.offer(labels, _PART)

    def _visit_forests(self, labels: Ints) -> None:
        """Solve random induced forests, each about half of all variables, as long as they gain much."""
        gain, most, inside = np.inf, self.task.slack, np.zeros(len(labels), dtype=bool)
        while gain > _FOREST_GAIN * most and not self.task.over:
            induced_forest(self.regions, self.task.rng.permutation(len(labels)), inside)
            try:
                gain, _ = self.blocks.improve(labels, np.flatnonzero(inside), _FOREST_ENTRIES)
            except WidthError:
                return
            most = max(most, gain)

    def _visit_all(self, labels: Ints, entries: float) -> None:
        """Windows around variables in random order until each has been in one that gained nothing."""
        pending = np.ones(len(labels), dtype=bool)
        while pending.any() and not self.task.over:
            for seed in self.task.rng.permutation(np.flatnonzero(pending)):
                if not pending[seed]:
                    continue
                if self.task.over:
                    break
                block, gain = self.improve(labels, int(seed), entries)
                pending[block] = False
                if gain > self.task.slack:
                    pending[self.neighbours(block)] = True

    def kick_on(self, labels: Ints) -> None:
        """Random kicks until the time limit; without one, until many in a row bring no gain."""
        quiet = 0
        while not self.task.over and (self.task.timed or quiet < _PATIENCE):
            quiet = 0 if self.kick(labels) and self.task.offer(labels, _PART) else quiet + 1

    def kick(self, labels: Ints) -> bool:
        """Redraw some labels of a ball and search around it; taken back if it ends worse. Whether it ends better."""
        rng, old = self.task.rng, labels.copy()
        ball = self.ball(int(rng.integers(len(labels))), int(_BALL * self.size))
        redrawn = ball[rng.random(len(ball)) < _REDRAWN]
        before = self.blocks.score_around(labels, ball)
        allowed = self.blocks.allowed[redrawn]
        labels[redrawn] = np.where(allowed, rng.random(allowed.shape), -1.0).argmax(axis=1)
        gain = self.blocks.score_around(labels, ball) - before
        for seed in rng.choice(ball, min(_TRIES, len(ball)), replace=False):
            gain += self.improve(labels, int(seed), _KICK_ENTRIES)[1]
        if gain < -self.task.slack:
            labels[:] = old
        return gain > self.task.slack

    def improve(self, labels: Ints, seed: int, entries: float) -> tuple[Ints, float]:
        """Solve the window around a variable; the window and the gain."""
        while True:
            block = self.ball(seed, max(int(self.size), 1))
            try:
                gain, used = self.blocks.improve(labels, block, entries)
            except WidthError:
                self.size *= 0.8
                if self.size < 1:
                    return block, 0.0
                continue
            if used < 0.5 * entries:
                self.size = min(1.05 * self.size + 1, len(labels))
            return block, gain

    def ball(self, seed: int, size: int) -> Ints:
        """The `size` variables nearest to a variable, those of the last layer drawn at random."""
        inside, layer = np.array([seed]), np.array([seed])
        while len(inside) < size:
            layer = np.setdiff1d(self.neighbours(layer), inside, assume_unique=True)
            if not len(layer):
                break
            inside = np.concatenate([inside, self.task.rng.permutation(layer)])
        return np.sort(inside[:size])

    def neighbours(self, block: Ints) -> Ints:
        """The variables that share a region with the block, and the block."""
        r = self.regions
        touched = r.member[csr_rows(r.member_ptr, block)].astype(np.int64)
        return np.unique(r.scope[csr_rows(r.scope_ptr, touched)]).astype(np.int64)

"""Conformal sets of labels and of labellings: what is kept of held-out rows, and how sets are cut."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ...base.types import Bools, Floats, Ints, PotentiaError
from ...conformal import split_threshold


class HeldOut(NamedTuple):
    """Scores of m held-out rows: labels (m, K) of their true values, whole (m) of their labellings; -1 if unknown."""

    labels: Floats
    whole: Floats

    def label_thresholds(self, coverage: float) -> Floats:
        """The threshold (K) of each label."""
        return np.array([split_threshold(column[column >= 0], coverage) for column in self.labels.T])

    def whole_threshold(self, coverage: float) -> float:
        """The threshold of labellings."""
        if not np.any(self.whole >= 0):
            raise PotentiaError("no row of calibrate had all labels known, so that there are no sets of labellings.")
        return split_threshold(self.whole[self.whole >= 0], coverage)


class LabelSets(NamedTuple):
    """Of n rows and K labels: whether a label's smaller value is in its set, `low` (n, K), and its larger, `high`."""

    low: Bools
    high: Bools


class LabellingSets(NamedTuple):
    """Of n rows the labellings in their sets, (m, K) each, best first.

    complete (n): nothing is missing. Where it is False, the limit cut the set, which may then miss the truth more often
    than the coverage says.
    """

    labels: list[np.ndarray]
    complete: Bools


class Ranked(NamedTuple):
    """Labellings (m, V) of rows (m), as signs, with their losses; rows ascend, losses ascend in each.

    rest (n): no labelling of a row that is not listed has less loss.
    """

    rows: Ints
    signs: Floats
    loss: Floats
    rest: Floats

    def excess(self, loss: Floats) -> Floats:
        """How much larger other losses (n) of the rows are than the least ones, at least 0."""
        least = self.loss[np.searchsorted(self.rows, np.arange(len(self.rest)))]
        return np.maximum(loss - least, 0.0)

    def within(self, threshold: float) -> tuple[list[Ints], Bools]:
        """Which labellings of each row exceed its least loss by at most the threshold, and whether these are all."""
        start = np.searchsorted(self.rows, np.arange(len(self.rest) + 1))
        limit = self.loss[start[:-1]] + threshold
        kept = self.loss <= limit[self.rows] + 1e-9
        return [np.flatnonzero(kept[a:b]) + a for a, b in pairwise(start)], self.rest > limit + 1e-9

    def drawn(self, number: int, rng: np.random.Generator) -> Ints:
        """Places (number, n) of labellings of each row: its first, half of the time, or drawn by exp(-loss)."""
        start = np.searchsorted(self.rows, np.arange(len(self.rest) + 1))
        first, last = start[:-1], start[1:] - 1
        sums = np.cumsum(np.exp(self.loss[first][self.rows] - self.loss))
        low = np.append(0.0, sums)[first]
        points = low + (sums[last] - low) * rng.random((number - number // 2, len(first)))
        found = np.clip(np.searchsorted(sums, points), first, last)
        return np.concatenate([np.tile(first, (number // 2, 1)), found])

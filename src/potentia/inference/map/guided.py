"""Guided local search over single labels: penalties on costly entries drive it out of local optima."""

from __future__ import annotations

import numpy as np

from ...graph.regions import runs
from ...graph.scores import Scores
from ...kernels.guided import guide
from ...kernels.labelling import Fields, fill_fields
from .moves import entries_at
from .task import SearchTask, penalty

#: Table entries at most, a separate table for each region.
_MAX_ENTRIES = 2e7
#: Steps of a round, what a penalty is of the mean cost, and the share of labels redrawn before a round, in turn.
_STEPS, _WEIGHTS, _REDRAWN = 1000, (0.3, 1.0), (0.03, 0.1, 0.03, 0.3, 1.0)
_PART = "guided local search"


def suits_guided(scores: Scores) -> bool:
    """Whether there is room for a table of every region."""
    return float(scores.regions.size.sum()) <= _MAX_ENTRIES


def guided_search(task: SearchTask, share: float, rounds: float) -> None:
    """Guided local search from the best labelling with some labels redrawn, in rounds and a share of the time left."""
    scores, best = task.undecided, task.current
    if best is None or not suits_guided(scores):
        return
    stop, allowed, rng = (1 - share) * task.left, scores.singles > -np.inf, task.rng
    regions, (values, where) = scores.regions, scores.flat()
    values = np.maximum(values, penalty(values, len(where)))
    at, own = np.cumsum(regions.size) - regions.size, values[runs(where, regions.size)]
    peak, shape = np.maximum.reduceat(own, at), allowed.shape
    fields = Fields(np.zeros(shape, dtype=np.int64), np.zeros(shape), np.zeros((2, len(best)), dtype=np.bool_))
    number = 0
    while not task.over and task.left >= stop and number < rounds:
        cost = peak - entries_at(regions, values, where, best)
        weight = _WEIGHTS[number % len(_WEIGHTS)] * float(cost[cost > 0].mean() if cost.any() else 1.0)
        redrawn = (rng.random(len(best)) < _REDRAWN[number % len(_REDRAWN)]) & (number > 0)
        labels = np.where(redrawn, np.where(allowed, rng.random(shape), -1.0).argmax(axis=1), best)
        found, weighed, count = labels.copy(), own.copy(), np.zeros(len(where))
        fill_fields(regions, weighed, at, labels, fields)
        guide(regions, values, where, weighed, at, peak, count, labels, fields, found, weight, rng, _STEPS)
        best = found if task.offer(found, _PART) else best
        number += 1

"""The most probable labellings of a directed network whose conditionals are any functions of earlier labels.

A prefix's probability bounds that of all its completions, and the probabilities of all prefixes of one length sum to 1.
So at most 1 / p prefixes of a length are as probable as a labelling of probability p: a search that keeps as many is
exact.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .._types import Bools, Floats, Ints
from .conditionals import ScoresAt


class Kept(NamedTuple):
    """Labellings kept: of row rows[m] the signs (m, V) by place, with log P (m); rows ascend, and log P falls in each.

    bound (n): no labelling left out has a larger log P. states (n): prefixes looked at.
    """

    rows: Ints
    signs: Floats
    log_p: Floats
    bound: Floats
    states: Ints

    def best(self) -> tuple[Ints, Bools]:
        """Places of each row's best labelling, and whether it is certainly the most probable of all."""
        first = np.searchsorted(self.rows, np.arange(len(self.bound)))
        return first, self.log_p[first] >= self.bound


def most_probable(n: int, places: int, scores_at: ScoresAt, width: int) -> Kept:
    """The most probable labelling of each row: breadth first, without prefixes below the greedy labelling's P.

    Where more than `width` prefixes of a row remain, the least probable are left out, and the result may not be exact.
    """
    greedy = beam(n, places, scores_at, 1)
    found = beam(n, places, scores_at, width, greedy.log_p)
    return found._replace(states=found.states + greedy.states)


def beam(n: int, places: int, scores_at: ScoresAt, width: int, least: Floats | None = None) -> Kept:
    """Up to `width` labellings per row by beam search; `least` (n): log P below which prefixes are dropped."""
    rows, signs, log_p = np.arange(n), np.empty((n, 0)), np.zeros(n)
    bound, states = np.full(n, -np.inf), np.zeros(n, dtype=np.int64)
    for i in range(places):
        odds = scores_at(i, rows, signs)
        log_p = np.concatenate([log_p - np.logaddexp(0.0, odds), log_p - np.logaddexp(0.0, -odds)])
        added = np.repeat([-1.0, 1.0], len(rows))[:, None]
        rows, signs = np.tile(rows, 2), np.hstack([np.tile(signs, (2, 1)), added])
        states += np.bincount(rows, minlength=n)
        if least is not None:
            # rounding must not drop the greedy labelling itself
            fair = log_p >= least[rows] - 1e-9
            rows, signs, log_p = rows[fair], signs[fair], log_p[fair]
        order = np.lexsort((-log_p, rows))
        rows, signs, log_p = rows[order], signs[order], log_p[order]
        rank = np.arange(len(rows)) - np.searchsorted(rows, rows)
        out = rank >= width
        np.maximum.at(bound, rows[out], log_p[out])
        rows, signs, log_p = rows[~out], signs[~out], log_p[~out]
    return Kept(rows, signs, log_p, bound, states)

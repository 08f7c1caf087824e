"""Tabu search over single labels, for dense models whose windows of exact elimination stay small."""

from __future__ import annotations

import numpy as np

from ...base.types import Floats, Ints
from ...graph.scores import Scores, score_labels
from .task import SearchTask, penalty

#: Table entries of all pairs, both ways and padded, at most.
_MAX_ENTRIES = 2e7
#: Steps between two looks at the clock, of a round, and steps that a label stays forbidden, by round.
_LOOK, _ROUND, _TENURES = 1000, 100_000, (10, 30, 20, 50)
#: Rounds without a time limit.
_ROUNDS = 2
_PART = "tabu search"


def suits_tabu(scores: Scores) -> bool:
    """Whether there are pairs only, and room for their tables in both directions."""
    entries = 2.0 * len(scores.graph.pairs) * scores.singles.shape[1] ** 2
    return scores.graph.max_order == 2 and entries <= _MAX_ENTRIES


def tabu_search(task: SearchTask, labels: Ints, share: float) -> None:
    """The best change of one label at every step, even for the worse; labels that were left may not return soon.

    Changes `labels` in place and offers the best to the task, for a share of the time left.
    """
    scores, stop, slack = task.undecided, (1 - share) * task.left, task.slack
    n, width = scores.singles.shape
    ptr, other, table = _both_ways(scores)
    field = np.maximum(scores.singles, penalty(scores.flat()[0], len(scores.regions.size)))
    for v in range(n):
        np.add.at(field, other[ptr[v] : ptr[v + 1]], table[ptr[v] : ptr[v + 1], labels[v]])
    every, until, step = np.arange(n), np.zeros((n, width), dtype=np.int64), 0
    score = best = score_labels(scores, labels)
    while not task.over and task.left >= stop and (task.timed or step < _ROUNDS * _ROUND):
        tenure = min(_TENURES[step // _ROUND % len(_TENURES)], 1 + n // 3)
        waits = task.rng.integers(tenure, 2 * tenure, _LOOK)
        for wait in waits.tolist():
            step += 1
            gain = field - field[every, labels][:, None]
            gain[every, labels] = -np.inf
            # a forbidden label is taken if the result is the best so far
            gain[(until > step) & (gain <= best - score + slack)] = -np.inf
            v, state = divmod(int(gain.argmax()), width)
            if gain[v, state] == -np.inf:
                continue
            old, score = labels[v], score + float(gain[v, state])
            pairs = slice(ptr[v], ptr[v + 1])
            np.add.at(field, other[pairs], table[pairs, state] - table[pairs, old])
            labels[v], until[v, old] = state, step + wait
            if score > best + slack:
                best = score
                task.offer(labels, _PART)


def _both_ways(scores: Scores) -> tuple[Ints, Ints, Floats]:
    """CSR over variables of the other ends of their pairs, and each pair's table with rows of the variable, padded."""
    regions, (values, where) = scores.regions, scores.flat()
    pairs = np.flatnonzero(regions.order == 2)
    at = regions.scope_ptr[pairs][:, None] + np.arange(2)
    ends, strides = regions.scope[at].astype(np.int64), regions.stride[at].astype(np.int64)
    state = np.minimum(np.arange(scores.singles.shape[1]), scores.graph.n_states[ends][:, :, None] - 1)
    steps = strides[:, :, None] * state
    tables = np.maximum(values, penalty(values, len(regions.size)))[
        where[pairs][:, None, None] + steps[:, 0, :, None] + steps[:, 1, None, :]
    ]
    order = np.argsort(ends.T.ravel(), kind="stable")
    ptr = np.concatenate([[0], np.cumsum(np.bincount(ends.ravel(), minlength=len(scores.graph.n_states)))])
    both = np.concatenate([tables, tables.transpose(0, 2, 1)])
    return ptr, ends[:, ::-1].T.ravel()[order], np.ascontiguousarray(both[order])

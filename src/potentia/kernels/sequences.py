"""Padded batches of chains with scores of a network, as `torch.LinearChain` has them, on the program of `lanes`.

Scores of first and last states are added to those of the first and last step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .forest import Forest, k_best
from .lanes import best_states, sum_chain
from .machine.jit import njit
from .vecmath import KERNEL

#: Largest score.
HIGHEST = 1e100

_NO_LABELS = np.zeros(0, dtype=np.int32)


class PaddedChains(NamedTuple):
    """Padded sequences with scores; -inf forbids.

    scores: of any float type, flat; step t of sequence k begins at k * per_sequence + t * per_step.
    n_steps: of the longest sequence, with its padding. length: of each sequence.
    start, end: (L,) scores of first and last states.
    """

    scores: Any
    per_sequence: int
    per_step: int
    n_steps: int
    length: Any
    start: Any
    end: Any
    lanes: Any


@njit(inline="always", **KERNEL)
def _load(chains, k, u):
    """Scores of the steps of sequence k, rows of P; whether all are numbers that may occur."""
    L, P, n = chains.start.size, chains.lanes.start.size, chains.length[k]
    good = True
    for t in range(n):
        at = k * chains.per_sequence + t * chains.per_step
        for b in range(L):
            u[t * P + b] = chains.scores[at + b]
            good &= chains.scores[at + b] <= HIGHEST
    for b in range(L):
        u[b] += chains.start[b]
        u[(n - 1) * P + b] += chains.end[b]
    return good


@njit(allocates=True, **KERNEL)
def sum_up(chains, weight, value, d_scores, d_start, d_pair, d_end, first, last):
    """log Z of sequences first .. last - 1 into `value`, and the gradient of sum_k weight_k log Z_k.

    Writes d_scores in the layout of scores (zero after a sequence's end), empty for no gradient; adds to d_start,
    d_pair (L, L) and d_end. A value is NaN if a score is NaN, +inf or beyond 1e100, -inf if all is forbidden.
    """
    lanes, L, P = chains.lanes, chains.start.size, chains.lanes.start.size
    size = chains.n_steps * P
    u, alpha, m = np.empty(size), np.empty(size), np.empty(size)
    d_psi, d_logs = np.zeros(L * P), np.zeros(L * P)
    gradient = d_scores.size > 0
    for k in range(first, last):
        n, value[k] = chains.length[k], np.nan
        if _load(chains, k, u):
            value[k] = sum_chain(lanes, _NO_LABELS, 0, n, weight[k], u, alpha, m, gradient, d_psi, d_logs)
        if not gradient or not value[k] > -np.inf:
            continue
        for t in range(chains.n_steps):
            at = k * chains.per_sequence + t * chains.per_step
            for b in range(L):
                d_scores[at + b] = u[t * P + b] if t < n else 0.0
        for b in range(L):
            d_start[b] += u[b]
            d_end[b] += u[(n - 1) * P + b]
    for a in range(L):
        for b in range(L):
            d_pair[a, b] += lanes.psi[a * P + b] * d_psi[a * P + b] + d_logs[a * P + b]


@njit(**KERNEL)
def subtract_labels(chains, labels, weight, d_scores, d_start, d_pair, d_end, first, last):
    """Subtract weight_k times the indicators of labels, (sequences, steps), from what `sum_up` gave."""
    for k in range(first, last):
        n = chains.length[k]
        for t in range(n):
            y = labels[k, t]
            d_scores[k * chains.per_sequence + t * chains.per_step + y] -= weight[k]
            if t > 0:
                d_pair[labels[k, t - 1], y] -= weight[k]
        d_start[labels[k, 0]] -= weight[k]
        d_end[labels[k, n - 1]] -= weight[k]


@njit(**KERNEL)
def score_labels(chains, labels, score):
    """The score of every sequence's labels, -inf where they are forbidden."""
    P = chains.lanes.start.size
    for k in range(score.size):
        n = chains.length[k]
        total = chains.start[labels[k, 0]] + chains.end[labels[k, n - 1]]
        for t in range(n):
            y = labels[k, t]
            total += chains.scores[k * chains.per_sequence + t * chains.per_step + y]
            if t > 0:
                total += chains.lanes.pair[labels[k, t - 1] * P + y]
        score[k] = total


@njit(allocates=True, **KERNEL)
def best_labels(chains, labels, score):
    """The best labels of every sequence, (sequences, steps), and their scores.

    A score is -inf if everything is forbidden, NaN as in `sum_up`.
    """
    size = labels.shape[1] * chains.lanes.start.size
    u, best, before = np.empty(size), np.empty(size), np.empty(size)
    for k in range(score.size):
        good = _load(chains, k, u)
        score[k] = best_states(chains.lanes, chains.length[k], u, best, before, labels[k], 0) if good else np.nan


@njit(allocates=True, **KERNEL)
def k_best_labels(chains, labels, score):
    """The k best labellings of every sequence, labels (sequences, k, steps), and their scores, as `k_best_states`."""
    L, P = chains.start.size, chains.lanes.start.size
    u = np.empty(labels.shape[2] * P)
    for k in range(score.shape[0]):
        _load(chains, k, u)
        n = chains.length[k]
        k_best_states(chains.lanes, u.reshape(-1, P)[:n, :L], labels[k, :, :n], score[k])


@njit(allocates=True, **KERNEL)
def k_best_states(lanes, u, labels, score):
    """The k best labellings (k, n) of a chain with scores u (n, L), best first; scores -inf where there are fewer."""
    n, L = u.shape
    P, node = lanes.start.size, u.copy()
    for b in range(L):
        node[0, b] += 0.0 if lanes.start[b] > 0.0 else -np.inf
        node[n - 1, b] += 0.0 if lanes.end[b] > 0.0 else -np.inf
    pair = lanes.pair.reshape(L, P)[:, :L].copy().ravel()
    order, zeros = np.arange(n), np.zeros(n, dtype=np.int64)
    # the parent of a variable is the one before it
    chain = Forest(order, order - 1, zeros + 1, zeros + L, pair, zeros)
    k_best(chain, node, labels, score)

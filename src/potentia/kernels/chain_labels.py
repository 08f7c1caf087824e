"""Labellings of many chains: their scores, the best one, and the k best; see `chain_batch`."""

from __future__ import annotations

import numpy as np

from .chain import best_path
from .chain_batch import load_step
from .machine.jit import njit
from .vecmath import KERNEL


@njit(**KERNEL)
def subtract_labels(chains, labels, weight, d_scores, d_start, d_pair, d_end, first, last):
    """Subtract weight_k times the indicators of labels, (sequences, steps), from what `downward` gave."""
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
    for k in range(score.size):
        n = chains.length[k]
        total = chains.start[labels[k, 0]] + chains.end[labels[k, n - 1]]
        for t in range(n):
            y = labels[k, t]
            total += chains.scores[k * chains.per_sequence + t * chains.per_step + y]
            if t > 0:
                total += chains.pair[labels[k, t - 1], y]
        score[k] = total


@njit(allocates=True, **KERNEL)
def best_labels(chains, labels, score):
    """The best labels of every sequence, (sequences, steps), and their scores.

    A score is -inf if everything is forbidden, NaN as in `Chains.value`.
    """
    steps, L = labels.shape[1], chains.start.size
    node, value, back = np.empty((steps, L)), np.empty((2, L)), np.empty((steps, L), dtype=np.int64)
    node_at, pair_at = np.arange(steps) * L, np.zeros(steps, dtype=np.int64)
    for k in range(score.size):
        n = chains.length[k]
        good = True
        for t in range(n):
            good &= not np.isnan(load_step(chains, k, t, node[t])[0])
        found = best_path(node.ravel(), node_at, chains.pair.ravel(), pair_at, 0, n, value, back, labels[k])
        score[k] = found if good else np.nan


@njit(allocates=True, **KERNEL)
def k_best_labels(chains, labels, score):
    """The k best labellings of every sequence, labels (sequences, k, steps), best first, and their scores.

    Scores are -inf where a sequence has fewer. Each state keeps its k best prefixes: k^2 L^2 operations a step.
    """
    k_best, steps, L = labels.shape[1], labels.shape[2], chains.start.size
    u, value = np.empty(L), np.empty((steps, L, k_best))
    back = np.empty((steps, L, k_best), dtype=np.int64)
    ends, end = np.empty(k_best), np.empty(k_best, dtype=np.int64)
    for k in range(score.shape[0]):
        n = chains.length[k]
        for t in range(n):
            load_step(chains, k, t, u)
            for b in range(L):
                value[t, b], back[t, b] = -np.inf, 0
                if t == 0:
                    value[t, b, 0] = u[b]
                    continue
                for a in range(L):
                    _offer(value[t - 1, a], chains.pair[a, b] + u[b], a, value[t, b], back[t, b])
        ends[:], end[:] = -np.inf, 0
        for a in range(L):
            _offer(value[n - 1, a], 0.0, a, ends, end)
        for j in range(k_best):
            score[k, j], at = ends[j], end[j]
            for t in range(n - 1, -1, -1):
                labels[k, j, t] = at // k_best
                at = back[t, at // k_best, at % k_best]


@njit(inline="always", **KERNEL)
def _offer(values, more, state, best, origin):
    """Insert values + more, in descending order, into the descending list `best`; origin is state * k + rank."""
    k_best = best.size
    for rank in range(k_best):
        v = values[rank] + more
        if not v > best[k_best - 1]:
            return
        j = k_best - 1
        while j > 0 and best[j - 1] < v:
            best[j], origin[j] = best[j - 1], origin[j - 1]
            j -= 1
        best[j], origin[j] = v, state * k_best + rank

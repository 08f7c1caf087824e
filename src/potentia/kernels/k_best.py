"""The k best labellings of a forest by max-product over sorted lists, leaves to roots and back."""

from __future__ import annotations

import numpy as np

from .forest_descent import entry
from .machine.jit import njit
from .vecmath import KERNEL


@njit(**KERNEL)
def _insert(values, first, second, v, x, y):
    """Put v, with its origin (x, y), into a list in descending order that is full; the last one drops out."""
    at = values.size - 1
    if not v > values[at]:
        return
    while at > 0 and values[at - 1] < v:
        values[at], first[at], second[at] = values[at - 1], first[at - 1], second[at - 1]
        at -= 1
    values[at], first[at], second[at] = v, x, y


@njit(allocates=True, **KERNEL)
def k_best(order, parent, side, n_states, values, offset, singles, labels, scores):
    """Fill labels (k, n_variables) and scores (k), best first; -inf from where there are no more labellings.

    Every state of a variable keeps the k best scores of the subtree below it. A child's lists, with the pair's score
    added, are merged into its parent's one child after another; roots merge into a variable of one state above them.
    Arguments as those of `forest_descent.best_labels`. Costs O(n L^2 k^2) at worst.
    """
    k, n = labels.shape
    width = singles.shape[1]
    up = np.full((n + 1, width, k), -np.inf)
    up[:n, :, 0] = singles
    up[n, 0, 0] = 0.0
    # where each entry came from: of a child's list its state and rank there, of a merged list the ranks in both
    state, rank = np.zeros((n, width, k), dtype=np.int32), np.zeros((n, width, k), dtype=np.int32)
    own, below = np.zeros((n, width, k), dtype=np.int32), np.zeros((n, width, k), dtype=np.int32)
    message, merged = np.empty(k), np.empty(k)
    for at in range(n - 1, -1, -1):
        i = order[at]
        p = parent[i] if parent[i] >= 0 else n
        for a in range(n_states[p] if p < n else 1):
            message[:] = -np.inf
            merged[:] = -np.inf
            for b in range(n_states[i]):
                score = values[entry(side, n_states, offset, i, b, p, a)] if p < n else 0.0
                for r in range(k):
                    _insert(message, state[i, a], rank[i, a], up[i, b, r] + score, b, r)
            for s in range(k):
                for t in range(
                    k // (s + 1)
                ):  # what is at rank (s + 1)(t + 1) or later cannot be among the first k
                    _insert(merged, own[i, a], below[i, a], up[p, a, s] + message[t], s, t)
            up[p, a] = merged
    scores[:] = up[n, 0]
    ranks = np.empty(n + 1, dtype=np.int64)
    for row in range(k):
        ranks[n] = row
        for i in order:  # the reverse of the order in which children were merged
            p = parent[i] if parent[i] >= 0 else n
            a = labels[row, p] if p < n else 0
            r = ranks[p]
            ranks[p] = own[i, a, r]
            labels[row, i], ranks[i] = state[i, a, below[i, a, r]], rank[i, a, below[i, a, r]]

"""From roots to leaves of a forest: exact samples given messages from leaves to roots, and the best labelling."""

from __future__ import annotations

import numpy as np

from .machine.jit import njit
from .vecmath import KERNEL


@njit(**KERNEL)
def descend(order, parent, parent_pair, side, scores, lam, root, noise, labels):
    """labels(i) = argmax over a of theta_e(a, label of the parent) + lam_e,i(a) + noise(i, a), roots first.

    parent_pair, side: the pair that joins a variable to its parent and which end of it the variable is. root
    (n, states): scores used at roots. With Gumbel noise this draws an exact sample.
    """
    for i in order:
        best = -np.inf
        for a in range(root.shape[1]):
            if parent[i] < 0:
                v = root[i, a]
            else:
                e, b = parent_pair[i], labels[parent[i]]
                n0, n1 = scores.shapes[e, 0], scores.shapes[e, 1]
                if a >= (n0 if side[i] == 0 else n1):
                    break
                first, second = (a, b) if side[i] == 0 else (b, a)
                v = scores.values[scores.offset[e] + first * n1 + second] + lam[e, side[i], a]
            v += noise[i, a]
            if v > best:
                best, labels[i] = v, a


@njit(**KERNEL)
def best_labels(order, parent, side, n_states, values, offset, up, labels):
    """The best labelling of a forest by max-product, leaves to roots and back; its score.

    up (n, states): scores of the variables, overwritten. offset: where the scores of the pair with the parent begin
    in `values`, C-ordered; side: which end of that pair the variable is. -inf where all labellings are forbidden.
    """
    for k in range(order.size - 1, -1, -1):
        i = order[k]
        p = parent[i]
        if p < 0:
            continue
        for a in range(n_states[p]):
            best = -np.inf
            for b in range(n_states[i]):
                best = max(best, up[i, b] + values[entry(side, n_states, offset, i, b, p, a)])
            up[p, a] += best
    total = 0.0
    for i in order:
        p, best = parent[i], -np.inf
        labels[i] = 0
        for b in range(n_states[i]):
            v = up[i, b] if p < 0 else up[i, b] + values[entry(side, n_states, offset, i, b, p, labels[p])]
            if v > best:
                best, labels[i] = v, b
        total += best if p < 0 else 0.0
    return total


@njit(inline="always", **KERNEL)
def entry(side, n_states, offset, i, b, p, a):
    """Where the score of variable i in state b beside its parent p in state a stands."""
    return offset[i] + (b * n_states[p] + a if side[i] == 0 else a * n_states[i] + b)

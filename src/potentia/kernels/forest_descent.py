"""From roots to leaves of a forest: best labelling or exact samples, given messages from leaves to roots."""

from __future__ import annotations

import numpy as np

from .jit import njit
from .vecmath import KERNEL


@njit(**KERNEL)
def descend(order, parent, parent_pair, side, scores, lam, root, noise, labels):
    """labels(i) = argmax over a of theta_e(a, label of the parent) + lam_e,i(a) + noise(i, a), roots first.

    parent_pair, side: the pair that joins a variable to its parent and which end of it the variable is. root
    (n, states): scores used at roots. With Gumbel noise this draws an exact sample; with zero noise it is the best
    labelling if lam are max-product messages.
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

"""Breadth-first search over labellings of a network of logistic conditionals, and log-probabilities of labellings.

The label at place i has the log-odds base_i + sum over its parents j < i of weight_ij y_j. A label that rules force,
given the labels before it, has probability 1; see `kernels.search` for rules and clamps.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from .machine.jit import njit
from .search import allowed, enter, logistic_loss
from .vecmath import SUMS


class Links(namedtuple("Links", "ptr parent weight")):
    """The parents of label i are parent[ptr[i]..ptr[i + 1]], places before i, with these weights."""


@njit(inline="always", **SUMS)
def _odds(links, base, row, i, y):
    """The log-odds of label i after the labels y."""
    total = base[row, i]
    for s in range(links.ptr[i], links.ptr[i + 1]):
        total += links.weight[s] * y[links.parent[s]]
    return total


@njit(allocates=True, **SUMS)
def beam(links, rules, base, clamp, first, last, least, labels, log_p, bound, states):
    """The most probable labellings of rows first..last that a search of width labels.shape[1] keeps.

    clamp (n, V): signs that labels must have, 0 if free; or no rows. least (n): log P below which prefixes are dropped.
    labels (n, width, V) as int8 and log_p (n, width) descend in log P, which is -inf where there are fewer. bound (n):
    no labelling left out has a larger log P. states (n): prefixes visited.
    """
    width, V = labels.shape[1], labels.shape[2]
    R = rules.size.size
    other = np.empty((width, V), dtype=np.int8)
    count, counted = np.zeros((width, R), dtype=np.int64), np.empty((width, R), dtype=np.int64)
    left, p = np.empty(R, dtype=np.int64), np.empty(width)
    found, source, sign = np.empty(2 * width), np.empty(2 * width, dtype=np.int64), np.empty(2 * width, dtype=np.int8)
    for row in range(first, last):
        size, bound[row], states[row] = 1, -np.inf, 0
        p[0] = 0.0
        for r in range(R):
            left[r], count[0, r] = rules.size[r], 0
        y = labels[row]
        for i in range(V):
            fixed, m = clamp[row, i] if clamp.shape[0] > 0 else 0.0, 0
            for w in range(size):
                g = _odds(links, base, row, i, y[w])
                up, low = allowed(rules, i, 1.0, count[w], left), allowed(rules, i, -1.0, count[w], left)
                if up and fixed >= 0.0:
                    found[m], source[m], sign[m] = p[w] - (logistic_loss(g) if low else 0.0), w, 1
                    m += 1
                if low and fixed <= 0.0:
                    found[m], source[m], sign[m] = p[w] - (logistic_loss(-g) if up else 0.0), w, -1
                    m += 1
            states[row] += m
            order = np.argsort(-found[:m], kind="mergesort")
            for s in range(rules.label_ptr[i], rules.label_ptr[i + 1]):
                left[rules.rule[s]] -= 1
            size = 0
            for place in range(m):
                c = order[place]
                # rounding must not drop the labelling that `least` is of
                if found[c] < least[row] - 1e-9:
                    break
                if size == width:
                    bound[row] = max(bound[row], found[c])
                    break
                for j in range(i):
                    other[size, j] = y[source[c], j]
                other[size, i], p[size] = sign[c], found[c]
                for r in range(R):
                    counted[size, r] = count[source[c], r]
                for s in range(rules.label_ptr[i], rules.label_ptr[i + 1]):
                    if rules.on[s] == sign[c]:
                        counted[size, rules.rule[s]] += 1
                size += 1
            for w in range(size):
                for j in range(i + 1):
                    y[w, j] = other[w, j]
                for r in range(R):
                    count[w, r] = counted[w, r]
        for w in range(width):
            log_p[row, w] = p[w] if w < size else -np.inf


@njit(allocates=True, **SUMS)
def log_probabilities(links, rules, base, rows, labels, first, last, least, out):
    """out[m] = log P of the labelling labels[m] of a row rows[m], for m in first..last.

    -inf for one that violates rules, or whose log P is below least[m].
    """
    V, R = base.shape[1], rules.size.size
    count, left = np.empty(R, dtype=np.int64), np.empty(R, dtype=np.int64)
    for m in range(first, last):
        total, y = 0.0, labels[m]
        for r in range(R):
            count[r], left[r] = 0, rules.size[r]
        for i in range(V):
            up, low = allowed(rules, i, 1.0, count, left), allowed(rules, i, -1.0, count, left)
            if not (up if y[i] > 0 else low):
                total = -np.inf
            elif up and low:
                total -= logistic_loss(y[i] * _odds(links, base, rows[m], i, y))
            if total < least[m]:
                total = -np.inf
                break
            enter(rules, i, y[i], 1, count, left)
        out[m] = total

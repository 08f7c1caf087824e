"""Semi-Markov chains in padded batches: sums over all segmentations, marginals and the best one, in logarithms.

A segment begins at a token t, holds d + 1 tokens and has one label; `scores` (B, T, D, L) are those of whole segments.
Transitions join the labels of segments that follow each other. Time O(T D L + T L^2) per sequence.
"""

from __future__ import annotations

import numpy as np

from .machine.jit import njit
from .vecmath import KERNEL, exp, log


@njit(inline="always", **KERNEL)
def _add(total, peak, value):
    """A running log-sum (peak, total of exponentials below it) with one more value."""
    if value == -np.inf:
        return total, peak
    if value > peak:
        return total * exp(peak - value) + 1.0 if peak > -np.inf else 1.0, value
    return total + exp(value - peak), peak


@njit(inline="always", **KERNEL)
def _log(total, peak):
    """log of a sum whose terms were divided by exp(peak)."""
    return log(total) + peak if total > 0.0 else -np.inf


@njit(allocates=True, **KERNEL)
def sum_segments(scores, length, start, pair, end, value, p, joint, want_pairs):
    """log Z of every sequence into `value`, marginals of segments into p (B, T, D, L), zero elsewhere.

    joint (B, T - 1, L, L), if wanted: probabilities that one segment ends at t and the next begins at t + 1, by labels.
    """
    B, T, D, L = scores.shape
    begin, ended = np.empty((T, L)), np.empty((T, L))
    after, whole = np.empty((T, L)), np.empty((T, L))
    for k in range(B):
        n, s = length[k], scores[k]
        for t in range(n):
            for b in range(L):
                if t == 0:
                    begin[t, b] = start[b]
                    continue
                total, peak = 0.0, -np.inf
                for a in range(L):
                    total, peak = _add(total, peak, ended[t - 1, a] + pair[a, b])
                begin[t, b] = _log(total, peak)
            for b in range(L):
                total, peak = 0.0, -np.inf
                for d in range(min(D, t + 1)):
                    total, peak = _add(total, peak, begin[t - d, b] + s[t - d, d, b])
                ended[t, b] = _log(total, peak)
        total, peak = 0.0, -np.inf
        for b in range(L):
            total, peak = _add(total, peak, ended[n - 1, b] + end[b])
        log_z = value[k] = _log(total, peak)
        if log_z == -np.inf or p.size == 0:
            continue
        for t in range(n - 1, -1, -1):
            for a in range(L):
                if t == n - 1:
                    after[t, a] = end[a]
                    continue
                total, peak = 0.0, -np.inf
                for b in range(L):
                    total, peak = _add(total, peak, pair[a, b] + whole[t + 1, b])
                after[t, a] = _log(total, peak)
            for b in range(L):
                total, peak = 0.0, -np.inf
                for d in range(min(D, n - t)):
                    total, peak = _add(total, peak, s[t, d, b] + after[t + d, b])
                    p[k, t, d, b] = exp(begin[t, b] + s[t, d, b] + after[t + d, b] - log_z)
                whole[t, b] = _log(total, peak)
        if want_pairs:
            for t in range(n - 1):
                for a in range(L):
                    for b in range(L):
                        joint[k, t, a, b] = exp(ended[t, a] + pair[a, b] + whole[t + 1, b] - log_z)


@njit(allocates=True, **KERNEL)
def best_segments(scores, length, start, pair, end, tags, begins, value):
    """The best segmentation of every sequence: tags (B, T), where segments begin (B, T), and its score."""
    B, T, D, L = scores.shape
    begin, ended = np.empty((T, L)), np.empty((T, L))
    came, size = np.zeros((T, L), dtype=np.int64), np.zeros((T, L), dtype=np.int64)
    for k in range(B):
        n, s = length[k], scores[k]
        for t in range(n):
            for b in range(L):
                begin[t, b] = start[b] if t == 0 else -np.inf
                if t > 0:
                    for a in range(L):
                        if ended[t - 1, a] + pair[a, b] > begin[t, b]:
                            begin[t, b], came[t, b] = ended[t - 1, a] + pair[a, b], a
            for b in range(L):
                ended[t, b] = -np.inf
                for d in range(min(D, t + 1)):
                    if begin[t - d, b] + s[t - d, d, b] > ended[t, b]:
                        ended[t, b], size[t, b] = begin[t - d, b] + s[t - d, d, b], d
        tag, value[k] = 0, -np.inf
        for b in range(L):
            if ended[n - 1, b] + end[b] > value[k]:
                tag, value[k] = b, ended[n - 1, b] + end[b]
        t = n - 1
        while t >= 0:
            first = t - size[t, tag]
            for u in range(first, t + 1):
                tags[k, u] = tag
            begins[k, first] = True
            tag, t = came[first, tag], first - 1

"""Semi-Markov chains: sums over all segmentations, marginals, the best ones, in logarithms.

A segment begins at a token t, holds d + 1 tokens and has one label; s (n, D, L) are scores of whole segments.
Transitions join the labels of segments that follow each other. Time O(n (D L + L^2)) per sequence. Labels are lanes:
all loops over them are innermost and vectorised, also those with exponentials.

    begin_t(b) = log sum_a exp(ended_{t-1}(a) + pair(a, b)) ;  ended_t(b) = log sum_d exp(begin_{t-d}(b) + s_{t-d,d}(b))
    after_t(a) = log sum_b exp(pair(a, b) + whole_{t+1}(b)) ;  whole_t(b) = log sum_d exp(s_{t,d}(b) + after_{t+d}(b))
    p(t, d, b) = exp(begin_t(b) + s_{t,d}(b) + after_{t+d}(b) - log Z)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .attributes import add_token, score_token
from .forest import offer
from .machine.jit import njit
from .vecmath import KERNEL, exp, log


class SegmentTables(NamedTuple):
    """Scores that all sequences share.

    Attributes:
        start, end: (L,) of first and last segments.
        pair: (L, L) of labels of segments that follow each other.
        length: (D, L) of lengths, -inf for those that a label does not have.
        n_rows: rows of attributes per token for segments that begin there: D, or 0 for none. They follow the tokens.
        tag_label, tag_first, tag_last: what a known tag says of its token: the label of its segment, and whether it is
            the segment's first and last token (1, 0, or -1 where that is not known).
    """

    start: Any
    end: Any
    pair: Any
    length: Any
    n_rows: int
    tag_label: Any
    tag_first: Any
    tag_last: Any


@njit(inline="always", **KERNEL)
def _log_sums(work, m, total, out):
    """out[b] = log sum_{k < m} exp(work[k, b]), -inf if all are."""
    L = out.size
    for b in range(L):
        out[b] = -np.inf
        total[b] = 0.0
    for k in range(m):
        for b in range(L):
            out[b] = max(out[b], work[k, b])
    for b in range(L):
        out[b] = out[b] if out[b] > -np.inf else 0.0
    for k in range(m):
        for b in range(L):
            total[b] += exp(work[k, b] - out[b])
    for b in range(L):
        out[b] += log(total[b])


@njit(inner=True, **KERNEL)
def _forward(s, n, start, pair, end, begin, ended, work, total):
    """log Z; fills begin and ended (n, L)."""
    D, L = s.shape[1], s.shape[2]
    for t in range(n):
        if t == 0:
            for b in range(L):
                begin[0, b] = start[b]
        else:
            for a in range(L):
                for b in range(L):
                    work[a, b] = ended[t - 1, a] + pair[a, b]
            _log_sums(work, L, total, begin[t])
        m = min(D, t + 1)
        for d in range(m):
            for b in range(L):
                work[d, b] = begin[t - d, b] + s[t - d, d, b]
        _log_sums(work, m, total, ended[t])
    peak, sums = -np.inf, 0.0
    for b in range(L):
        peak = max(peak, ended[n - 1, b] + end[b])
    if peak == -np.inf:
        return peak
    for b in range(L):
        sums += exp(ended[n - 1, b] + end[b] - peak)
    return peak + np.log(sums)


@njit(inner=True, **KERNEL)
def _backward(s, n, log_z, turned, end, begin, after, whole, work, total, p):
    """Marginals p (n, D, L), which may be s, after `_forward`; fills after and whole. turned: pair transposed."""
    D, L = s.shape[1], s.shape[2]
    for t in range(n - 1, -1, -1):
        if t == n - 1:
            for a in range(L):
                after[t, a] = end[a]
        else:
            for b in range(L):
                for a in range(L):
                    work[b, a] = turned[b, a] + whole[t + 1, b]
            _log_sums(work, L, total, after[t])
        m = min(D, n - t)
        for d in range(m):
            for b in range(L):
                work[d, b] = s[t, d, b] + after[t + d, b]
        _log_sums(work, m, total, whole[t])
        for d in range(m):
            for b in range(L):
                p[t, d, b] = exp(begin[t, b] + work[d, b] - log_z)


@njit(allocates=True, **KERNEL)
def sum_segments(scores, length, start, pair, end, value, p, joint, want_pairs):
    """log Z of every sequence of scores (B, T, D, L) into `value`, marginals into p (B, T, D, L), zero elsewhere.

    joint (B, T - 1, L, L), if wanted: probabilities that one segment ends at t and the next begins at t + 1, by labels.
    """
    B, T, D, L = scores.shape
    begin, ended, after, whole = np.empty((T, L)), np.empty((T, L)), np.empty((T, L)), np.empty((T, L))
    work, total, turned = np.empty((max(D, L), L)), np.empty(L), pair.T.copy()
    for k in range(B):
        n, s = length[k], scores[k]
        log_z = value[k] = _forward(s, n, start, pair, end, begin, ended, work, total)
        if log_z == -np.inf or p.size == 0:
            continue
        _backward(s, n, log_z, turned, end, begin, after, whole, work, total, p[k])
        if want_pairs:
            for t in range(n - 1):
                for a in range(L):
                    for b in range(L):
                        joint[k, t, a, b] = exp(ended[t, a] + pair[a, b] + whole[t + 1, b] - log_z)


@njit(inner=True, **KERNEL)
def _best(s, n, start, pair, end, begin, ended, tags, begins):
    """Tags and beginnings of the best segmentation, the first of equals; its score, -inf if there is none.

    Only values are kept on the way; the path is found by what equals them.
    """
    D, L = s.shape[1], s.shape[2]
    for t in range(n):
        for b in range(L):
            begin[t, b] = start[b] if t == 0 else -np.inf
            ended[t, b] = -np.inf
        for a in range(L if t > 0 else 0):
            for b in range(L):
                begin[t, b] = max(begin[t, b], ended[t - 1, a] + pair[a, b])
        for d in range(min(D, t + 1)):
            for b in range(L):
                ended[t, b] = max(ended[t, b], begin[t - d, b] + s[t - d, d, b])
    tag, score = 0, -np.inf
    for b in range(L):
        if ended[n - 1, b] + end[b] > score:
            tag, score = b, ended[n - 1, b] + end[b]
    if score == -np.inf:
        return score
    t = n - 1
    while t >= 0:
        first = t
        while begin[first, tag] + s[first, t - first, tag] != ended[t, tag]:
            first -= 1
        for u in range(first, t + 1):
            tags[u] = tag
            begins[u] = u == first
        t = first - 1
        if t >= 0:
            a = 0
            while ended[t, a] + pair[a, tag] != begin[first, tag]:
                a += 1
            tag = a
    return score


@njit(allocates=True, **KERNEL)
def best_segments(scores, length, start, pair, end, tags, begins, value):
    """The best segmentation of every sequence: tags (B, T), where segments begin (B, T), and its score."""
    T, L = scores.shape[1], scores.shape[3]
    begin, ended = np.empty((T, L)), np.empty((T, L))
    for k in range(scores.shape[0]):
        value[k] = _best(scores[k], length[k], start, pair, end, begin, ended, tags[k], begins[k])


# -- segments whose scores are sums of weights of attributes ---------------------------------------------------

# A token has a row of 3 L scores: of being in a segment of each label, of being its first token, and its last.


@njit(inline="always", **KERNEL)
def _fill(tokens, layout, flat, tables, known, begin, n, dense, shift, u, s):
    """Scores s (n, D, L) of the segments of a sequence whose tokens are from `begin` on; -inf for others than known."""
    W, D, L = layout.width, tables.length.shape[0], tables.length.shape[1]
    for k in range(n * (1 + tables.n_rows)):
        for i in range(k * W, (k + 1) * W):
            u[i] = dense[shift + i] if dense.size > 0 else 0.0
        score_token(tokens, layout, flat, begin + k, u, k * W)
    for t in range(n):
        for d in range(D):
            if t + d >= n:
                for b in range(L):
                    s[t, d, b] = -np.inf
                continue
            at, row = (t + d) * W, (n + t * D + d) * W
            for b in range(L):  # sums of tokens from the first on
                s[t, d, b] = u[at + b] + (s[t, d - 1, b] if d > 0 else 0.0)
        for d in range(min(D, n - t)):
            at, row = (t + d) * W, (n + t * D + d) * W
            for b in range(L):
                s[t, d, b] += u[t * W + L + b] + u[at + 2 * L + b] + tables.length[d, b]
            if tables.n_rows > 0:
                for b in range(L):
                    s[t, d, b] += u[row + b]
        open_ = True
        for d in range(min(D, n - t) if known.size > 0 else 0):
            tag = known[begin + t + d]
            label = tables.tag_label[tag] if tag >= 0 else -1
            first = tables.tag_first[tag] if tag >= 0 else -1
            last = tables.tag_last[tag] if tag >= 0 else -1
            open_ = open_ and first != (0 if d == 0 else 1)
            for e in range(d, min(D, n - t)):
                for b in range(L):
                    if not open_ or (label >= 0 and b != label) or (e == d and last == 0) or (e > d and last == 1):
                        s[t, e, b] = -np.inf


@njit(inline="always", **KERNEL)
def _collect(p, n, weight, tables, W, d_length, u):
    """Marginals of segments times weight as those of what their scores are sums of: rows u of tokens, lengths."""
    D, L = tables.length.shape[0], tables.length.shape[1]
    for i in range(n * (1 + tables.n_rows) * W):
        u[i] = 0.0
    for t in range(n):
        for d in range(min(D, n - t)):
            at, row = (t + d) * W, (n + t * D + d) * W
            for b in range(L):
                q = weight * p[t, d, b]
                u[t * W + b] += q
                u[t * W + L + b] += q
                u[at + 2 * L + b] += q
                d_length[d, b] += q
                if t + d + 1 < n:  # the sums below begin with it no more
                    u[at + W + b] -= q
                if tables.n_rows > 0:
                    u[row + b] = q
    for i in range(W, n * W):
        if i % W < L:
            u[i] += u[i - W]


@njit(inline="always", **KERNEL)
def _sizes(tokens, tables, first, last):
    """Most tokens of a sequence, and most rows of attributes."""
    most = 1
    for k in range(first, last):
        most = max(most, tokens.sequence_ptr[k + 1] - tokens.sequence_ptr[k])
    return (most + tables.n_rows) // (1 + tables.n_rows), most


@njit(allocates=True, **KERNEL)
def sum_up(tokens, layout, flat, tables, known, weight, first, last, dense, d_flat, d_length, d_pair, value, p):
    """log Z of sequences first .. last - 1 into `value`, and the gradient of their weighted sum.

    Added to d_flat, d_length (D, L) and d_pair (L, L), empty for none. known: tags of all tokens, -1 where not known:
    only segmentations that agree with them count; empty for none. dense: scores to start from, of the tokens of these
    sequences, replaced by the weighted marginals; empty for none. p: marginals of segments, (tokens of these sequences,
    D, L); empty for none. value[k] is -inf if no segmentation is allowed; such a sequence adds nothing.
    """
    W, D, L = layout.width, tables.length.shape[0], tables.length.shape[1]
    T, rows = _sizes(tokens, tables, first, last)
    begin, ended, after, whole = np.empty((T, L)), np.empty((T, L)), np.empty((T, L)), np.empty((T, L))
    work, total, turned = np.empty((max(D, L), L)), np.empty(L), tables.pair.T.copy()
    u, s, d_own = np.empty(rows * W), np.empty((T, D, L)), np.zeros((D, L))
    origin, done = tokens.sequence_ptr[first], 0
    for k in range(first, last):
        start, m = tokens.sequence_ptr[k], tokens.sequence_ptr[k + 1] - tokens.sequence_ptr[k]
        n, shift = m // (1 + tables.n_rows), (start - origin) * W
        value[k] = 0.0
        if n == 0 or weight[k] == 0.0:
            for i in range(m * W if dense.size > 0 else 0):
                dense[shift + i] = 0.0
            done += n
            continue
        _fill(tokens, layout, flat, tables, known, start, n, dense, shift, u, s)
        log_z = value[k] = _forward(s, n, tables.start, tables.pair, tables.end, begin, ended, work, total)
        if not log_z > -np.inf:
            done += n
            continue
        _backward(s, n, log_z, turned, tables.end, begin, after, whole, work, total, s)
        for t in range(n if p.size > 0 else 0):
            for d in range(min(D, n - t)):
                for b in range(L):
                    p[done + t, d, b] = s[t, d, b]
        done += n
        for t in range(n - 1 if d_pair.size > 0 else 0):
            for a in range(L):
                for b in range(L):
                    q = exp(ended[t, a] + tables.pair[a, b] + whole[t + 1, b] - log_z)
                    d_pair[a, b] += weight[k] * q
        _collect(s, n, weight[k], tables, W, d_length if d_length.size > 0 else d_own, u)
        for t in range(m):
            if d_flat.size > 0:
                add_token(tokens, layout, d_flat, start + t, u, t * W)
        for i in range(m * W if dense.size > 0 else 0):
            dense[shift + i] = u[i]


@njit(allocates=True, **KERNEL)
def best_labels(tokens, layout, flat, tables, first, last, dense, tags, begins, score):
    """The best segmentations of sequences first .. last - 1: labels and beginnings by row of tokens, and scores."""
    W, D, L = layout.width, tables.length.shape[0], tables.length.shape[1]
    T, rows = _sizes(tokens, tables, first, last)
    begin, ended, u, s = np.empty((T, L)), np.empty((T, L)), np.empty(rows * W), np.empty((T, D, L))
    none, origin = np.empty(0, dtype=np.int32), tokens.sequence_ptr[first]
    for k in range(first, last):
        start, m = tokens.sequence_ptr[k], tokens.sequence_ptr[k + 1] - tokens.sequence_ptr[k]
        n = m // (1 + tables.n_rows)
        score[k] = 0.0
        if n == 0:
            continue
        _fill(tokens, layout, flat, tables, none, start, n, dense, (start - origin) * W, u, s)
        own = slice(start, start + n)
        score[k] = _best(s, n, tables.start, tables.pair, tables.end, begin, ended, tags[own], begins[own])


@njit(allocates=True, **KERNEL)
def k_best_labels(tokens, layout, flat, tables, sequence, dense, tags, begins, score):
    """The k best segmentations of a sequence, best first: labels and beginnings (k, n); scores -inf from where there
    are no more.

    Every label keeps the k best scores of segmentations that end with it at a token. Costs O(n L k (D + L)).
    """
    W, D, L, K = layout.width, tables.length.shape[0], tables.length.shape[1], score.size
    start, m = tokens.sequence_ptr[sequence], tokens.sequence_ptr[sequence + 1] - tokens.sequence_ptr[sequence]
    n = m // (1 + tables.n_rows)
    u, s, none = np.empty(m * W), np.empty((n, D, L)), np.empty(0, dtype=np.int32)
    _fill(tokens, layout, flat, tables, none, start, n, dense, 0, u, s)
    begin, ended = np.full((n, L, K), -np.inf), np.full((n, L, K), -np.inf)
    # of each entry: the label before and its rank, the length and the rank of the beginning
    came, rank = np.zeros((n, L, K), dtype=np.int64), np.zeros((n, L, K), dtype=np.int64)
    size, place = np.zeros((n, L, K), dtype=np.int64), np.zeros((n, L, K), dtype=np.int64)
    for t in range(n):
        for b in range(L):
            if t == 0:
                begin[0, b, 0] = tables.start[b]
            for a in range(L if t > 0 else 0):
                offer(ended[t - 1, a], tables.pair[a, b], a, begin[t, b], came[t, b], rank[t, b])
            for d in range(min(D, t + 1)):
                offer(begin[t - d, b], s[t - d, d, b], d, ended[t, b], size[t, b], place[t, b])
    score[:] = -np.inf
    label, of_rank = np.zeros(K, dtype=np.int64), np.zeros(K, dtype=np.int64)
    for b in range(L):
        offer(ended[n - 1, b], tables.end[b], b, score, label, of_rank)
    for k in range(K):
        if not score[k] > -np.inf:
            break
        t, b, r = n - 1, label[k], of_rank[k]
        while t >= 0:
            first, r = t - size[t, b, r], place[t, b, r]
            for v in range(first, t + 1):
                tags[k, v] = b
                begins[k, v] = v == first
            t, b, r = first - 1, came[first, b, r], rank[first, b, r]

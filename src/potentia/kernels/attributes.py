"""Chains whose scores are sums of weights of attributes: log-likelihood with gradient, marginals and best labels.

An attribute that was seen with many labels has a row of weights for all of them; one that was seen with few has a slot
per label. Rows and slots lie in one flat vector, and so do their gradients.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from .lanes import best_states, sum_chain
from .machine.jit import njit
from .machine.simd import CHUNK, add8, fma8, load8, spread8, store8
from .vecmath import KERNEL


class TokenAttributes(namedtuple("TokenAttributes", "sequence_ptr item_ptr attribute value")):
    """Attributes of all tokens.

    Attributes:
        sequence_ptr: first token of each sequence.
        item_ptr: first item of each token.
        attribute: of each item, ascending within a token.
        value: of each item; empty if all are 1.
    """

    @classmethod
    def of(cls, arrays: Mapping[str, Any]) -> TokenAttributes:
        """The tokens among named arrays."""
        return cls(*map(arrays.__getitem__, cls._fields))


class WeightLayout(NamedTuple):
    """Where the weights of attributes are.

    Attributes:
        n_rows: attributes below this number have rows, of `stride` weights each, from the beginning of the vector.
        stride: labels. What follows a row is read with its last ones, and has no effect.
        width: labels rounded up to whole vectors, as rows of scores have them.
        slot_ptr: where in the vector the slots of the other attributes begin.
        slot_label: label of each slot; slot k of the vector is entry k - slot_ptr[0].
        pair_ptr: where in the vector the weights of an attribute with pairs of labels begin; empty if none has any.
        pair_code: a * width + b of each of these pairs of labels (a, b); weight k is entry k - pair_ptr[0].
    """

    n_rows: int
    stride: int
    width: int
    slot_ptr: Any
    slot_label: Any
    pair_ptr: Any
    pair_code: Any


@njit(allocates=True, **KERNEL)
def count_labels(tokens, labels, n_attributes, n_labels):
    """Per attribute the items with labels, and the different labels among them; -1 is no label."""
    ptr = np.zeros(n_attributes + 1, dtype=np.int64)
    for t in range(labels.size):
        if labels[t] >= 0:
            for j in range(tokens.item_ptr[t], tokens.item_ptr[t + 1]):
                ptr[tokens.attribute[j] + 1] += 1
    for a in range(n_attributes):
        ptr[a + 1] += ptr[a]
    seen = np.empty(ptr[n_attributes], dtype=np.uint16)
    fill = ptr[:-1].copy()
    for t in range(labels.size):
        if labels[t] >= 0:
            for j in range(tokens.item_ptr[t], tokens.item_ptr[t + 1]):
                a = tokens.attribute[j]
                seen[fill[a]] = labels[t]
                fill[a] += 1
    stamp, count = np.full(n_labels, -1), np.zeros(n_attributes, dtype=np.int64)
    for a in range(n_attributes):
        # different labels move to the front
        to = ptr[a]
        for k in range(ptr[a], ptr[a + 1]):
            y = seen[k]
            if stamp[y] != a:
                stamp[y] = a
                seen[to] = y
                to += 1
        count[a] = to - ptr[a]
    return ptr, seen, count


@njit(allocates=True, **KERNEL)
def collect_labels(ptr, seen, count, label):
    """The different labels of each attribute, ascending, one attribute after another."""
    to = 0
    for a in range(count.size):
        own = np.sort(seen[ptr[a] : ptr[a] + count[a]])
        for i in range(own.size):
            label[to] = own[i]
            to += 1


@njit(**KERNEL)
def renumber(tokens, number, kept):
    """Replace attributes by their new numbers, ascending within each token; unknown ones go. Returns items left.

    Attributes from the size of `number` on are unknown. `kept` becomes the new item_ptr.
    """
    to = 0
    for t in range(tokens.item_ptr.size - 1):
        begin = to
        for j in range(tokens.item_ptr[t], tokens.item_ptr[t + 1]):
            if tokens.attribute[j] >= number.size:
                continue
            new = number[tokens.attribute[j]]
            value = tokens.value[j] if tokens.value.size > 0 else 1.0
            k = to
            while k > begin and tokens.attribute[k - 1] > new:
                tokens.attribute[k] = tokens.attribute[k - 1]
                if tokens.value.size > 0:
                    tokens.value[k] = tokens.value[k - 1]
                k -= 1
            tokens.attribute[k] = new
            if tokens.value.size > 0:
                tokens.value[k] = value
            to += 1
        kept[t + 1] = to
    return to


@njit(inline="always", inner=True, **KERNEL)
def score_token(tokens, layout, flat, t, u, at):
    """u[at:] += scores of token t."""
    P, S, begin, end = layout.width, layout.stride, tokens.item_ptr[t], tokens.item_ptr[t + 1]
    unit, middle = tokens.value.size == 0, begin
    while middle < end and tokens.attribute[middle] < layout.n_rows:
        middle += 1
    for c in range(0, P, CHUNK):
        s, r = load8(u, at + c), spread8(0.0)
        if unit:
            for j in range(begin, middle - 1, 2):
                s = add8(s, load8(flat, np.int64(tokens.attribute[j]) * S + c))
                r = add8(r, load8(flat, np.int64(tokens.attribute[j + 1]) * S + c))
            if (middle - begin) % 2 == 1:
                s = add8(s, load8(flat, np.int64(tokens.attribute[middle - 1]) * S + c))
        else:
            for j in range(begin, middle):
                row = load8(flat, np.int64(tokens.attribute[j]) * S + c)
                s = fma8(spread8(tokens.value[j]), row, s)
        store8(u, at + c, add8(s, r))
    base = layout.slot_ptr[0]
    for j in range(middle, end):
        a = tokens.attribute[j] - layout.n_rows
        v = 1.0 if unit else tokens.value[j]
        for k in range(layout.slot_ptr[a], layout.slot_ptr[a + 1]):
            u[at + layout.slot_label[k - base]] += v * flat[k]


@njit(inline="always", inner=True, **KERNEL)
def add_token(tokens, layout, flat, t, mu, at):
    """Add mu[at:] of token t to its attributes' weights."""
    P, S, begin, end = layout.width, layout.stride, tokens.item_ptr[t], tokens.item_ptr[t + 1]
    unit, middle = tokens.value.size == 0, begin
    while middle < end and tokens.attribute[middle] < layout.n_rows:
        row = np.int64(tokens.attribute[middle]) * S
        if unit:
            for c in range(0, P, CHUNK):
                store8(flat, row + c, add8(load8(flat, row + c), load8(mu, at + c)))
        else:
            v = spread8(tokens.value[middle])
            for c in range(0, P, CHUNK):
                store8(flat, row + c, fma8(v, load8(mu, at + c), load8(flat, row + c)))
        middle += 1
    base = layout.slot_ptr[0]
    for j in range(middle, end):
        a = tokens.attribute[j] - layout.n_rows
        v = 1.0 if unit else tokens.value[j]
        for k in range(layout.slot_ptr[a], layout.slot_ptr[a + 1]):
            flat[k] += v * mu[at + layout.slot_label[k - base]]


@njit(**KERNEL)
def score_tokens(tokens, layout, flat, first, last, scores):
    """Add the scores of tokens first .. last - 1 to `scores` (flat rows of `width`)."""
    for t in range(first, last):
        score_token(tokens, layout, flat, t, scores, (t - first) * layout.width)


@njit(**KERNEL)
def score_pairs(tokens, layout, flat, lanes, begin, n, tables):
    """Scores of neighbouring labels of the steps 1 .. n - 1 of the sequence from token `begin` on, L * P each."""
    size = lanes.pair.size
    for t in range(1, n):
        at = t * size
        for i in range(size):
            tables[at + i] = lanes.pair[i]
        for j in range(tokens.item_ptr[begin + t], tokens.item_ptr[begin + t + 1]):
            a, v = tokens.attribute[j], tokens.value[j] if tokens.value.size > 0 else 1.0
            for k in range(layout.pair_ptr[a], layout.pair_ptr[a + 1]):
                tables[at + layout.pair_code[k - layout.pair_ptr[0]]] += v * flat[k]


@njit(inline="always", **KERNEL)
def _add_pairs(tokens, layout, d_flat, size, begin, n, tables):
    """Add marginals of pairs of labels, tables of `size` per step, to the weights of the attributes there."""
    for t in range(1, n):
        for j in range(tokens.item_ptr[begin + t], tokens.item_ptr[begin + t + 1]):
            a, v = tokens.attribute[j], tokens.value[j] if tokens.value.size > 0 else 1.0
            for k in range(layout.pair_ptr[a], layout.pair_ptr[a + 1]):
                d_flat[k] += v * tables[t * size + layout.pair_code[k - layout.pair_ptr[0]]]


@njit(**KERNEL)
def _longest(tokens, first, last):
    """Tokens of the longest of the sequences first .. last - 1, at least 1."""
    most = 1
    for k in range(first, last):
        most = max(most, tokens.sequence_ptr[k + 1] - tokens.sequence_ptr[k])
    return most


@njit(allocates=True, **KERNEL)
def sum_up(tokens, layout, flat, lanes, labels, weight, first, last, dense, d_flat, d_psi, d_pair, value):
    """log Z of sequences first .. last - 1 into `value`, and the gradient of their weighted sum.

    The gradient is added to d_flat, d_psi (L * P,) and, of sequences that need logarithms, d_pair (L * P,); empty
    arrays for none. labels: as in `lanes.forward`. value[k] is -inf if no labelling is allowed; such a sequence adds
    nothing. dense: scores to start from, of the tokens of these sequences, replaced by the weighted marginals; empty
    for none.
    """
    P, size = layout.width, _longest(tokens, first, last) * layout.width
    u, alpha, m = np.empty(size), np.empty(size), np.empty(size)
    shared = layout.pair_ptr.size == 0
    stride = 0 if shared else lanes.pair.size
    tables = lanes.pair if shared else np.empty(size * lanes.n_states)
    origin = tokens.sequence_ptr[first]
    for k in range(first, last):
        begin, n = tokens.sequence_ptr[k], tokens.sequence_ptr[k + 1] - tokens.sequence_ptr[k]
        shift = (begin - origin) * P
        value[k] = 0.0
        for i in range(n * P):
            u[i] = dense[shift + i] if dense.size > 0 else 0.0
        if n == 0 or weight[k] == 0.0:
            for i in range(n * P if dense.size > 0 else 0):
                dense[shift + i] = 0.0
            continue
        for t in range(n):
            score_token(tokens, layout, flat, begin + t, u, t * P)
        if not shared:
            score_pairs(tokens, layout, flat, lanes, begin, n, tables)
        value[k] = sum_chain(lanes, tables, stride, labels, begin, n, weight[k], u, alpha, m, True, d_psi, d_pair)
        if not value[k] > -np.inf:
            continue
        if not shared and d_flat.size > 0:
            _add_pairs(tokens, layout, d_flat, stride, begin, n, tables)
        if d_flat.size > 0:
            for t in range(n):
                add_token(tokens, layout, d_flat, begin + t, u, t * P)
        for i in range(n * P if dense.size > 0 else 0):
            dense[shift + i] = u[i]


@njit(**KERNEL)
def observe(tokens, layout, labels, weight, first, last, d_flat, d_pair):
    """Add weighted counts of attributes with labels, and of neighbouring labels (L, L), of sequences without -1."""
    P = layout.width
    base = layout.slot_ptr[0]
    for k in range(first, last):
        whole = weight[k] != 0.0
        for t in range(tokens.sequence_ptr[k], tokens.sequence_ptr[k + 1]):
            whole = whole and labels[t] >= 0
        if not whole:
            continue
        for t in range(tokens.sequence_ptr[k], tokens.sequence_ptr[k + 1]):
            y = labels[t]
            if t > tokens.sequence_ptr[k]:
                d_pair[labels[t - 1], y] += weight[k]
            for j in range(tokens.item_ptr[t], tokens.item_ptr[t + 1]):
                v = weight[k] * (tokens.value[j] if tokens.value.size > 0 else 1.0)
                a = tokens.attribute[j]
                if layout.pair_ptr.size > 0 and t > tokens.sequence_ptr[k]:
                    for i in range(layout.pair_ptr[a], layout.pair_ptr[a + 1]):
                        if layout.pair_code[i - layout.pair_ptr[0]] == labels[t - 1] * P + y:
                            d_flat[i] += v
                if a < layout.n_rows:
                    d_flat[np.int64(a) * layout.stride + y] += v
                    continue
                for i in range(layout.slot_ptr[a - layout.n_rows], layout.slot_ptr[a - layout.n_rows + 1]):
                    if layout.slot_label[i - base] == y:
                        d_flat[i] += v


@njit(**KERNEL)
def add_squares(tokens, weight, sums):
    """Add weighted squares of each attribute's values to `sums`; a weight per token."""
    for t in range(weight.size):
        for j in range(tokens.item_ptr[t], tokens.item_ptr[t + 1]):
            v = tokens.value[j] if tokens.value.size > 0 else 1.0
            sums[tokens.attribute[j]] += weight[t] * v * v


@njit(allocates=True, **KERNEL)
def best_labels(tokens, layout, flat, lanes, first, last, dense, labels, score):
    """The best labels of sequences first .. last - 1, by token, and their scores."""
    P, size = layout.width, _longest(tokens, first, last) * layout.width
    u, best, before = np.empty(size), np.empty(size), np.empty(size)
    shared = layout.pair_ptr.size == 0
    stride = 0 if shared else lanes.pair.size
    tables = lanes.pair if shared else np.empty(size * lanes.n_states)
    origin = tokens.sequence_ptr[first]
    for k in range(first, last):
        begin, n = tokens.sequence_ptr[k], tokens.sequence_ptr[k + 1] - tokens.sequence_ptr[k]
        score[k] = 0.0
        if n == 0:
            continue
        shift = (begin - origin) * P
        for i in range(n * P):
            u[i] = dense[shift + i] if dense.size > 0 else 0.0
        for t in range(n):
            score_token(tokens, layout, flat, begin + t, u, t * P)
        if not shared:
            score_pairs(tokens, layout, flat, lanes, begin, n, tables)
        score[k] = best_states(lanes, tables, stride, n, u, best, before, labels, begin)

"""Bucket elimination over flat log tables: messages up, marginals down, labels back.

Variables are named by their position in the elimination order, and the axes of every table are sorted by it. All
tables live in one array `store`: the factors first, then the message of each bucket. Bucket p holds the clique of p
(p is axis 0) and adds up its *sources*: factors whose first variable is p, and messages of buckets whose parent is p.
A message's id is n_factors + its bucket. `program` is a named tuple of the arrays that say all this:

    card: states per variable.  clique_ptr, clique: CSR, rows sorted, first entry the bucket itself.
    source_ptr, source: CSR over buckets of ids.  offset: start of each id's table in the store (one more at the end).
    scope_ptr, scope: CSR over ids of the table's variables.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .vecmath import KERNEL, exp, log

# Entries of one block of a bucket's table: with its sources it stays in the first-level cache.
_BLOCK = 2048


@njit(**KERNEL)
def _source_strides(program, bucket, ids):
    """Step of every source along every axis of the bucket's clique, zero where it lacks the axis; (sources, axes)."""
    first, end = program.clique_ptr[bucket], program.clique_ptr[bucket + 1]
    strides = np.zeros((ids.size, end - first), dtype=np.int64)
    for i in range(ids.size):
        step = 1
        axis = end - 1
        for k in range(program.scope_ptr[ids[i] + 1] - 1, program.scope_ptr[ids[i]] - 1, -1):
            while program.clique[axis] != program.scope[k]:
                axis -= 1
            strides[i, axis - first] = step
            step *= program.card[program.scope[k]]
    return strides


@njit(**KERNEL)
def _split_axes(card):
    """First axis of the inner block (never axis 0) and the block's size."""
    first = card.size
    block = 1
    while first > 1 and (block == 1 or card[0] * block * card[first - 1] <= _BLOCK):
        first -= 1
        block *= card[first]
    return first, block


@njit(**KERNEL)
def _inner_index(strides, card, first, block):
    """Offsets of each source over the inner block, (sources, block), and how to read them.

    Mode 0: one value for the whole block; 1: contiguous; 2: by the offsets.
    """
    n = strides.shape[0]
    mode = np.empty(n, dtype=np.int64)
    index = np.zeros((n, block), dtype=np.int64)
    for i in range(n):
        missing = 0
        present = 0
        filled = 1
        for axis in range(card.size - 1, first - 1, -1):
            step = strides[i, axis]
            missing += step == 0
            present += step > 0
            for k in range(filled, filled * card[axis]):
                index[i, k] = index[i, k - filled] + step
            filled *= card[axis]
        mode[i] = 0 if present == 0 else (1 if missing == 0 else 2)
    return mode, index


@njit(**KERNEL)
def _advance(digits, card, first, strides, base):
    """Move to the next block: odometer over axes 1 .. first - 1, carrying every source's offset along."""
    axis = first - 1
    while axis >= 1:
        digits[axis] += 1
        if digits[axis] < card[axis]:
            base += strides[:, axis]
            return
        digits[axis] = 0
        base -= strides[:, axis] * (card[axis] - 1)
        axis -= 1


@njit(**KERNEL)
def _add_sources(store, base, first_step, mode, index, block, rows):
    """rows[s, :] = sum of the sources at state s of the bucket's variable, over one block."""
    for s in range(rows.shape[0]):
        row = rows[s]
        row[:] = 0.0
        for i in range(base.size):
            at = base[i] + s * first_step[i]
            if mode[i] == 0:
                value = store[at]
                for j in range(block):
                    row[j] += value
            elif mode[i] == 1:
                for j in range(block):
                    row[j] += store[at + j]
            else:
                for j in range(block):
                    row[j] += store[at + index[i, j]]


@njit(**KERNEL)
def _log_sum_exp(rows, peak, total, out):
    """out = log sum over rows of exp, -inf where every row is; peak and total are scratch."""
    peak[:] = rows[0]
    for s in range(1, rows.shape[0]):
        for j in range(out.size):
            peak[j] = max(peak[j], rows[s, j])
    for j in range(out.size):
        # where all is forbidden -inf - -inf would be NaN
        peak[j] = peak[j] if peak[j] > -np.inf else 0.0
    total[:] = 0.0
    for s in range(rows.shape[0]):
        for j in range(out.size):
            total[j] += exp(rows[s, j] - peak[j])
    for j in range(out.size):
        out[j] = peak[j] + log(total[j])


@njit(**KERNEL)
def _log_sum_exp_pair(a, b, out):
    """The same for two rows, with one exponential instead of two."""
    for j in range(out.size):
        high = max(a[j], b[j])
        shift = high if high > -np.inf else 0.0
        out[j] = high + log(1.0 + exp(min(a[j], b[j]) - shift))


@njit(**KERNEL)
def _largest_row(rows, out):
    """out = max over rows."""
    out[:] = rows[0]
    for s in range(1, rows.shape[0]):
        for j in range(out.size):
            out[j] = max(out[j], rows[s, j])


@njit(**KERNEL)
def _send(program, store, bucket, maximise):
    """Write the bucket's message, its peak moved out; the peak (-inf: everything is forbidden)."""
    n_factors = program.offset.size - program.clique_ptr.size
    ids = program.source[program.source_ptr[bucket] : program.source_ptr[bucket + 1]]
    card = program.card[program.clique[program.clique_ptr[bucket] : program.clique_ptr[bucket + 1]]]
    strides = _source_strides(program, bucket, ids)
    first, block = _split_axes(card)
    mode, index = _inner_index(strides, card, first, block)
    base = program.offset[ids]
    digits = np.zeros(card.size, dtype=np.int64)
    rows = np.empty((card[0], block))
    scratch = np.empty((2, block))
    message = store[program.offset[n_factors + bucket] : program.offset[n_factors + bucket + 1]]
    peak = -np.inf
    for start in range(0, message.size, block):
        _add_sources(store, base, strides[:, 0], mode, index, block, rows)
        out = message[start : start + block]
        if maximise:
            _largest_row(rows, out)
        elif card[0] == 2:
            _log_sum_exp_pair(rows[0], rows[1], out)
        else:
            _log_sum_exp(rows, scratch[0], scratch[1], out)
        peak = max(peak, out.max())
        _advance(digits, card, first, strides, base)
    if peak > -np.inf:
        message -= peak
    return peak


@njit(**KERNEL)
def send_up(program, store, maximise):
    """Fill in all messages: log-sum-exp (or max) over each bucket's variable of the sum of its sources.

    Messages are stored with a peak of zero, so that their size does not grow with the graph; the sum of the
    peaks moved out (log Z, or the best score, of everything in the store) is returned: -inf when all is forbidden.
    """
    total = 0.0
    lost = 0.0
    for bucket in range(program.card.size):
        peak = _send(program, store, bucket, maximise)
        if peak == -np.inf:
            return peak
        # compensated (Neumaier) sum: thousands of peaks of either sign
        moved = total + peak
        lost += (total - moved) + peak if abs(total) >= abs(peak) else (peak - moved) + total
        total = moved
    return total + lost


@njit(**KERNEL)
def send_labels(program, store, uniforms, labels):
    """Labels from the last bucket to the first, given messages: each the best state, or drawn by its conditional.

    uniforms: (n, variables) numbers in [0, 1) to draw with, or of width 0 to take the best state.
    labels: (n, variables) output, in positions and kept states.
    """
    n_variables = program.card.size
    scores = np.empty(program.card.max())
    for bucket in range(n_variables - 1, -1, -1):
        ids = program.source[program.source_ptr[bucket] : program.source_ptr[bucket + 1]]
        n_states = program.card[bucket]
        for row in range(labels.shape[0]):
            scores[:n_states] = 0.0
            for i in ids:
                at = 0
                step = 1
                for k in range(program.scope_ptr[i + 1] - 1, program.scope_ptr[i], -1):
                    at += step * labels[row, program.scope[k]]
                    step *= program.card[program.scope[k]]
                for s in range(n_states):
                    scores[s] += store[program.offset[i] + at + s * step]
            best = np.argmax(scores[:n_states])
            labels[row, bucket] = best
            if uniforms.shape[1]:
                labels[row, bucket] = _draw(scores[:n_states], scores[best], uniforms[row, bucket])


@njit(**KERNEL)
def _draw(scores, peak, uniform):
    """A state with probability proportional to exp(score)."""
    total = 0.0
    for s in range(scores.size):
        scores[s] = exp(scores[s] - peak)
        total += scores[s]
    rest = uniform * total
    last = 0
    for s in range(scores.size):
        if scores[s] > 0.0:
            last = s
            rest -= scores[s]
            if rest < 0.0:
                break
    return last


# -- downwards -------------------------------------------------------------------------------------------------


@njit(**KERNEL)
def _sum_middle(scratch, at, outer, middle, inner, to):
    """Sum a table (outer, middle, inner) at `at` over its middle axis; write (outer, inner) at `to`."""
    # Short rows are added several at a time so that the inner loop stays long enough for SIMD
    together = max(1, min(middle, 64 // inner))
    width = together * inner
    sums = np.empty(width)
    whole = middle // together * together * inner
    for o in range(outer):
        row = scratch[at + o * middle * inner : at + (o + 1) * middle * inner]
        sums[:] = row[:width]
        for k in range(width, whole, width):
            for j in range(width):
                sums[j] += row[k + j]
        for j in range(row.size - whole):
            sums[j] += row[whole + j]
        out = scratch[to + o * inner : to + (o + 1) * inner]
        out[:] = sums[:inner]
        for k in range(inner, width, inner):
            for j in range(inner):
                out[j] += sums[k + j]


@njit(**KERNEL)
def _reduce(scratch, at, card, keep, top):
    """Sum a table at `at` (axes `card`) over the axes not kept, longest runs first; where the result lies.

    Intermediate tables go to `top` and beyond; each is at most half its predecessor.
    """
    shape = card.copy()
    while True:
        best, best_end, best_size = -1, -1, 1
        axis = 0
        while axis < shape.size:
            end = axis
            size = 1
            while end < shape.size and not keep[end]:
                size *= shape[end]
                end += 1
            if size > best_size:
                best, best_end, best_size = axis, end, size
            axis = end + 1
        if best < 0:
            return at
        outer = 1
        for k in range(best):
            outer *= shape[k]
        inner = 1
        for k in range(best_end, shape.size):
            inner *= shape[k]
        _sum_middle(scratch, at, outer, best_size, inner, top)
        shape[best:best_end] = 1
        at = top
        top += outer * inner


@njit(**KERNEL)
def _belief(program, store, bucket, table):
    """table = probabilities of the bucket's clique: exp of its sources plus the message from above."""
    n_factors = program.offset.size - program.clique_ptr.size
    begin, end = program.source_ptr[bucket], program.source_ptr[bucket + 1]
    ids = np.empty(end - begin + 1, dtype=np.int64)
    ids[:-1] = program.source[begin:end]
    ids[-1] = n_factors + bucket
    card = program.card[program.clique[program.clique_ptr[bucket] : program.clique_ptr[bucket + 1]]]
    strides = _source_strides(program, bucket, ids)
    first, block = _split_axes(card)
    mode, index = _inner_index(strides, card, first, block)
    base = program.offset[ids]
    digits = np.zeros(card.size, dtype=np.int64)
    rows = np.empty((card[0], block))
    rest = table.size // card[0]
    for start in range(0, rest, block):
        _add_sources(store, base, strides[:, 0], mode, index, block, rows)
        for s in range(card[0]):
            for j in range(block):
                table[s * rest + start + j] = exp(rows[s, j])
        _advance(digits, card, first, strides, base)


@njit(**KERNEL)
def _answer(message, belief):
    """The message downwards: log of the parent's marginal over the one that came up, in its place."""
    for k in range(message.size):
        # below the smallest double nothing can be seen, so a forbidden entry and an unseen one are both -inf
        up = message[k] if message[k] > -np.inf else 0.0
        message[k] = log(belief[k]) - up


@njit(**KERNEL)
def _keep_scope(program, bucket, i, keep):
    """Mark the axes of the bucket's clique that table i has."""
    axis = program.clique_ptr[bucket]
    for k in range(program.scope_ptr[i], program.scope_ptr[i + 1]):
        while program.clique[axis] != program.scope[k]:
            axis += 1
        keep[axis - program.clique_ptr[bucket]] = True


@njit(**KERNEL)
def _read_out(program, store, bucket, scratch, size):
    """Replace the bucket's factors by their marginals and its children's messages by answers, from its belief."""
    n_factors = program.offset.size - program.clique_ptr.size
    ids = program.source[program.source_ptr[bucket] : program.source_ptr[bucket + 1]]
    card = program.card[program.clique[program.clique_ptr[bucket] : program.clique_ptr[bucket + 1]]]
    keep = np.zeros(card.size, dtype=np.bool_)
    for i in ids:
        if i < n_factors:
            _keep_scope(program, bucket, i, keep)
    # factors share one reduction to the union of their scopes
    union_card = np.where(keep, card, 1)
    union_size = union_card.prod()
    union = _reduce(scratch, 0, card, keep, size)
    for i in ids:
        keep[:] = False
        _keep_scope(program, bucket, i, keep)
        target = store[program.offset[i] : program.offset[i + 1]]
        if i < n_factors:
            at = _reduce(scratch, union, union_card, keep, size if union == 0 else union + union_size)
            marginal = scratch[at : at + target.size]
            target[:] = marginal / marginal.sum()
    for i in ids:
        if i >= n_factors:
            keep[:] = False
            _keep_scope(program, bucket, i, keep)
            at = _reduce(scratch, 0, card, keep, size)
            target = store[program.offset[i] : program.offset[i + 1]]
            _answer(target, scratch[at : at + target.size])


@njit(**KERNEL)
def send_down(program, store, scratch):
    """Turn factors into their marginals, last bucket first, after `send_up` with log-sum-exp.

    The belief of a bucket is recomputed from its sources and the answer from above, so memory is the messages
    plus one table. Scratch needs twice the entries of the largest table.
    """
    n_factors = program.offset.size - program.clique_ptr.size
    for bucket in range(program.card.size - 1, -1, -1):
        size = 1
        for k in range(program.clique_ptr[bucket], program.clique_ptr[bucket + 1]):
            size *= program.card[program.clique[k]]
        _belief(program, store, bucket, scratch[:size])
        _read_out(program, store, bucket, scratch, size)

"""Bucket elimination: messages upwards, and labels back.

Variables are named by their position in the elimination order, and the axes of every table are sorted by it.
All log tables live in one array `store`: the factors first, then the message of each bucket. Bucket p holds
the clique of p (p is axis 0) and adds up its *sources*: factors whose first variable is p, then messages of
buckets whose parent is p. A message's id is n_factors + its bucket. `program` is a named tuple of arrays:

    card: states per variable.  clique_ptr, clique: CSR, rows sorted, first entry the bucket itself.
    source_ptr, source: CSR over buckets of ids.  offset: start of each id's table in the store (and the end).
    scope_ptr, scope: CSR over ids of the table's variables.
"""

from __future__ import annotations

import numpy as np

from .machine.jit import njit
from .tables import log_sum_exp, log_sum_exp_pair, max_rows, next_block, open_blocks, raise_row, reduce_axes
from .vecmath import KERNEL, exp, log

#: A score that stands for +inf where weights are negative and infinities would meet, and half of it.
_HUGE, _LARGE = 1e300, 1e250
#: Logarithm of a probability that counts as zero, in means and where weights are negative.
LEAST = -700.0


@njit(inner=True, **KERNEL)
def n_factors(program):
    """Number of ids that are factors; those beyond are messages."""
    return program.offset.size - program.clique_ptr.size


@njit(inner=True, allocates=True, **KERNEL)
def clique_card(program, bucket):
    """Numbers of states along the axes of the bucket's table."""
    first, end = program.clique_ptr[bucket], program.clique_ptr[bucket + 1]
    card = np.empty(end - first, dtype=np.int64)
    for k in range(first, end):
        card[k - first] = program.card[program.clique[k]]
    return card


@njit(inner=True, allocates=True, **KERNEL)
def open_bucket(program, store, bucket, card, with_own):
    """The sum of a bucket's sources, its axes `card`, to be read by `tables.next_block`.

    With `with_own` the bucket's own message, or the answer to it, is the last source.
    """
    first, end = program.clique_ptr[bucket], program.clique_ptr[bucket + 1]
    listed = program.source[program.source_ptr[bucket] : program.source_ptr[bucket + 1]]
    base = np.empty(listed.size + with_own, dtype=np.int64)
    strides = np.zeros((base.size, end - first), dtype=np.int64)
    for i in range(base.size):
        table = listed[i] if i < listed.size else n_factors(program) + bucket
        base[i] = program.offset[table]
        step = 1
        axis = end - 1
        for k in range(program.scope_ptr[table + 1] - 1, program.scope_ptr[table] - 1, -1):
            while program.clique[axis] != program.scope[k]:
                axis -= 1
            strides[i, axis - first] = step
            step *= program.card[program.scope[k]]
    return open_blocks(store, base, strides, card)


@njit(inner=True, **KERNEL)
def _reduce_rows(rows, w, scratch, out):
    """out = w log sum over rows of exp(row / w); the maximum where w = 0. Rows are overwritten."""
    if w == 0.0:
        max_rows(rows, out)
        return
    if w != 1.0:
        inverse = 1.0 / w
        for s in range(rows.shape[0]):
            row = rows[s]
            for j in range(row.size):
                # -inf times a negative number; infinities would subtract to NaN
                row[j] = min(row[j] * inverse, _HUGE)
    if rows.shape[0] == 2:
        log_sum_exp_pair(rows[0], rows[1], out)
    else:
        log_sum_exp(rows, scratch[0], scratch[1], out)
    if w != 1.0:
        for j in range(out.size):
            out[j] = -np.inf if out[j] > _LARGE else w * out[j]


@njit(inner=True, allocates=True, **KERNEL)
def _send(program, store, bucket, w):
    """Write the bucket's message by `_reduce_rows`, its peak moved out, and return the peak (-inf: all forbidden)."""
    blocks = open_bucket(program, store, bucket, clique_card(program, bucket), False)
    block = blocks.rows.shape[1]
    scratch = np.empty((2, block))
    own = n_factors(program) + bucket
    message = store[program.offset[own] : program.offset[own + 1]]
    highest = np.full(block, -np.inf)
    for start in range(0, message.size, block):
        next_block(store, blocks)
        out = message[start : start + block]
        _reduce_rows(blocks.rows, w, scratch, out)
        raise_row(highest, out)
    peak = highest.max()
    if peak > -np.inf:
        message -= peak
    return peak


@njit(**KERNEL)
def send_up(program, store, weight, peaks, first, last):
    """Messages of buckets first..last - 1: w log-sum-exp(. / w) over the bucket's variable (the maximum where w = 0).

    A message is stored with a peak of zero, so that numbers do not grow with the graph; what was moved out is
    in `peaks`, whose sum is log Z (or the best score). False at a peak of -inf: everything is forbidden.
    """
    for bucket in range(first, last):
        peaks[bucket] = _send(program, store, bucket, weight[bucket])
        if peaks[bucket] == -np.inf:
            return False
    return True


@njit(**KERNEL)
def _draw(scores, peak, uniform):
    """A state with probability proportional to exp(score), never one that is forbidden."""
    total = 0.0
    for s in range(scores.size):
        scores[s] = exp(scores[s] - peak)
        total += scores[s]
    rest = uniform * total
    state = 0
    for s in range(scores.size):
        if scores[s] > 0.0:
            state = s
            rest -= scores[s]
            if rest < 0.0:
                break
    return state


@njit(allocates=True, **KERNEL)
def send_labels(program, store, uniforms, labels):
    """Labels from the last bucket to the first, after `send_up`: the best states, or drawn given later ones.

    uniforms: (n, variables) numbers in [0, 1) to draw with, or (n, 0) to take the best state.
    labels: (n, variables) output.
    """
    scores = np.empty(program.card.max())
    for bucket in range(program.card.size - 1, -1, -1):
        n_states = program.card[bucket]
        for row in range(labels.shape[0]):
            scores[:n_states] = 0.0
            for i in program.source[program.source_ptr[bucket] : program.source_ptr[bucket + 1]]:
                at = program.offset[i]
                step = 1
                for k in range(program.scope_ptr[i + 1] - 1, program.scope_ptr[i], -1):
                    at += step * labels[row, program.scope[k]]
                    step *= program.card[program.scope[k]]
                for s in range(n_states):
                    scores[s] += store[at + s * step]
            best = np.argmax(scores[:n_states])
            labels[row, bucket] = best
            if uniforms.shape[1]:
                labels[row, bucket] = _draw(scores[:n_states], scores[best], uniforms[row, bucket])


@njit(allocates=True, **KERNEL)
def _exp_sources(program, store, bucket, card, shift, table):
    """table = exp(sources + answer from above - shift); returns the largest exponent before the shift."""
    blocks = open_bucket(program, store, bucket, card, True)
    rows, block, rest = blocks.rows, blocks.rows.shape[1], table.size // card[0]
    highest = np.full(block, -np.inf)
    for start in range(0, rest, block):
        next_block(store, blocks)
        for s in range(card[0]):
            raise_row(highest, rows[s])
            out = table[s * rest + start : s * rest + start + block]
            for j in range(block):
                out[j] = exp(rows[s, j] - shift)
    return highest.max()


@njit(**KERNEL)
def _belief(program, store, bucket, card, peak, table):
    """table = probabilities of the bucket's clique."""
    top = _exp_sources(program, store, bucket, card, peak, table)
    # the entries sum to one, so the largest is near one, unless scores of 1e18 and more lost it to rounding
    if abs(top - peak) > 100.0:
        _exp_sources(program, store, bucket, card, top, table)


@njit(inner=True, **KERNEL)
def keep_scope(program, bucket, i, keep):
    """Mark the axes of the bucket's clique that table i has."""
    first = program.clique_ptr[bucket]
    axis = first
    for k in range(program.scope_ptr[i], program.scope_ptr[i + 1]):
        while program.clique[axis] != program.scope[k]:
            axis += 1
        keep[axis - first] = True


@njit(allocates=True, **KERNEL)
def answer(program, store, weight, bucket, card, scratch, size, mean):
    """Replace each message m into the bucket by w log(marginal of the belief) - m, with the sender's weight w.

    mean (buckets): the mean logarithm of each sender's marginal.
    """
    keep = np.empty(card.size, dtype=np.bool_)
    factors = n_factors(program)
    for k in range(program.source_ptr[bucket], program.source_ptr[bucket + 1]):
        table = program.source[k]
        if table < factors:
            continue
        keep[:] = False
        keep_scope(program, bucket, table, keep)
        at = reduce_axes(scratch, 0, card, keep, size)
        message = store[program.offset[table] : program.offset[table + 1]]
        marginal = scratch[at : at + message.size]
        sender = table - factors
        w, total = weight[sender], 0.0
        for j in range(message.size):
            level = log(marginal[j])
            total += marginal[j] * max(level, LEAST)
            # a forbidden entry stays -inf; the difference of two infinities would be NaN
            came = message[j] if message[j] > -np.inf else 0.0
            message[j] = w * (level if w > 0.0 else max(level, LEAST)) - came
        mean[sender] = total


@njit(**KERNEL)
def _write_marginal(target, marginal):
    """Copy a marginal, scaled to sum to one."""
    total = 0.0
    for j in range(target.size):
        total += marginal[j]
    for j in range(target.size):
        target[j] = marginal[j] / total


@njit(allocates=True, **KERNEL)
def _read_factors(program, store, bucket, card, scratch, size):
    """Replace the bucket's factors by their marginals of the belief.

    Halves of the factors share the reduction to the union of their scopes, then quarters, and so on: with
    many small factors in a large clique the belief is read twice instead of once per factor.
    """
    # factors come before messages among a bucket's sources; a stack of ranges of them that share a table
    first, end = program.source_ptr[bucket], program.source_ptr[bucket + 1]
    while program.source[end - 1] >= n_factors(program):
        end -= 1
    todo = np.empty((64, 4), dtype=np.int64)
    shapes = np.empty((64, card.size), dtype=np.int64)
    keep = np.empty(card.size, dtype=np.bool_)
    todo[0, 0], todo[0, 1], todo[0, 2], todo[0, 3] = first, end, 0, size
    for axis in range(card.size):
        shapes[0, axis] = card[axis]
    left = 1
    while left:
        left -= 1
        first, end, at, top = todo[left]
        keep[:] = False
        for k in range(first, end):
            keep_scope(program, bucket, program.source[k], keep)
        union = reduce_axes(scratch, at, shapes[left], keep, top)
        if end - first == 1:
            i = program.source[first]
            _write_marginal(store[program.offset[i] : program.offset[i + 1]], scratch[union:])
            continue
        entries = 1
        for axis in range(card.size):
            shapes[left, axis] = shapes[left, axis] if keep[axis] else 1
            entries *= shapes[left, axis]
        top = top if union == at else union + entries
        half = (first + end) // 2
        todo[left] = first, half, union, top
        todo[left + 1] = half, end, union, top
        shapes[left + 1] = shapes[left]
        left += 2


@njit(allocates=True, **KERNEL)
def send_down(program, store, peaks, scratch):
    """Turn factors into their marginals, last bucket first, after `send_up` with log-sum-exp.

    A bucket's belief is recomputed from its sources and the answer from above, so memory is the messages plus
    one table; scratch needs twice the entries of the largest table.
    """
    ones, mean = np.ones(peaks.size), np.empty(peaks.size)
    for bucket in range(program.card.size - 1, -1, -1):
        card = clique_card(program, bucket)
        size = 1
        for axis in range(card.size):
            size *= card[axis]
        _belief(program, store, bucket, card, peaks[bucket], scratch[:size])
        _read_factors(program, store, bucket, card, scratch, size)
        answer(program, store, ones, bucket, card, scratch, size, mean)

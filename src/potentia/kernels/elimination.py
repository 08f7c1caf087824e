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
from .tables import (
    add_sources,
    advance,
    log_sum_exp,
    log_sum_exp_pair,
    max_rows,
    raise_row,
    read_block,
    split_axes,
)
from .vecmath import KERNEL, exp


@njit(inner=True, **KERNEL)
def n_factors(program):
    """Number of ids that are factors; those beyond are messages."""
    return program.offset.size - program.clique_ptr.size


@njit(inner=True, allocates=True, **KERNEL)
def clique_card(program, bucket):
    """States along the axes of the bucket's table."""
    first, end = program.clique_ptr[bucket], program.clique_ptr[bucket + 1]
    card = np.empty(end - first, dtype=np.int64)
    for k in range(first, end):
        card[k - first] = program.card[program.clique[k]]
    return card


@njit(inner=True, allocates=True, **KERNEL)
def bucket_sources(program, bucket, with_own):
    """Start of each source, (sources,), and its step along the clique's axes, 0 if missing, (sources, axes).

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
    return base, strides


@njit(allocates=True, **KERNEL)
def _send(program, store, bucket, maximise):
    """Write the bucket's message, its peak moved out, and return the peak (-inf: everything is forbidden)."""
    card = clique_card(program, bucket)
    base, strides = bucket_sources(program, bucket, False)
    first, block = split_axes(card)
    mode, index, constant = read_block(store, base, strides, card, first, block)
    digits = np.zeros(card.size, dtype=np.int64)
    rows = np.empty((card[0], block))
    scratch = np.empty((2, block))
    own = n_factors(program) + bucket
    message = store[program.offset[own] : program.offset[own + 1]]
    highest = np.full(block, -np.inf)
    for start in range(0, message.size, block):
        add_sources(store, base, strides, mode, index, constant, rows)
        out = message[start : start + block]
        if maximise:
            max_rows(rows, out)
        elif card[0] == 2:
            log_sum_exp_pair(rows[0], rows[1], out)
        else:
            log_sum_exp(rows, scratch[0], scratch[1], out)
        raise_row(highest, out)
        advance(digits, card, first, strides, base)
    peak = highest.max()
    if peak > -np.inf:
        message -= peak
    return peak


@njit(**KERNEL)
def send_up(program, store, maximise, peaks):
    """Fill in all messages: log-sum-exp (or max) over each bucket's variable of the sum of its sources.

    A message is stored with a peak of zero, so that numbers do not grow with the graph; what was moved out is
    in `peaks`, whose sum is log Z (or the best score). Stops at a peak of -inf: everything is forbidden.
    """
    peaks[:] = 0.0
    for bucket in range(program.card.size):
        peaks[bucket] = _send(program, store, bucket, maximise)
        if peaks[bucket] == -np.inf:
            return


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

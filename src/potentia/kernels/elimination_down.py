"""Bucket elimination: marginals downwards; see `elimination` for the layout."""

from __future__ import annotations

import numpy as np

from .elimination import bucket_sources, clique_card, n_factors
from .machine.jit import njit
from .tables import add_sources, advance, raise_row, read_block, reduce_axes, split_axes
from .vecmath import KERNEL, exp, log


@njit(allocates=True, **KERNEL)
def _exp_sources(program, store, bucket, card, shift, table):
    """table = exp(sources + answer from above - shift); returns the largest exponent before the shift."""
    base, strides = bucket_sources(program, bucket, True)
    first, block = split_axes(card)
    mode, index, constant = read_block(store, base, strides, card, first, block)
    digits = np.zeros(card.size, dtype=np.int64)
    rows = np.empty((card[0], block))
    highest = np.full(block, -np.inf)
    rest = table.size // card[0]
    for start in range(0, rest, block):
        add_sources(store, base, strides, mode, index, constant, rows)
        for s in range(card[0]):
            raise_row(highest, rows[s])
            out = table[s * rest + start : s * rest + start + block]
            for j in range(block):
                out[j] = exp(rows[s, j] - shift)
        advance(digits, card, first, strides, base)
    return highest.max()


@njit(**KERNEL)
def _belief(program, store, bucket, card, peak, table):
    """table = probabilities of the bucket's clique."""
    top = _exp_sources(program, store, bucket, card, peak, table)
    # the entries sum to one, so the largest is near one, unless scores of 1e18 and more lost it to rounding
    if abs(top - peak) > 100.0:
        _exp_sources(program, store, bucket, card, top, table)


@njit(**KERNEL)
def _keep_scope(program, bucket, i, keep):
    """Mark the axes of the bucket's clique that table i has."""
    first = program.clique_ptr[bucket]
    axis = first
    for k in range(program.scope_ptr[i], program.scope_ptr[i + 1]):
        while program.clique[axis] != program.scope[k]:
            axis += 1
        keep[axis - first] = True


@njit(allocates=True, **KERNEL)
def _answer_children(program, store, bucket, card, scratch, size):
    """Replace each message into the bucket by its answer: log marginal of the belief, less the message."""
    keep = np.empty(card.size, dtype=np.bool_)
    for k in range(program.source_ptr[bucket], program.source_ptr[bucket + 1]):
        i = program.source[k]
        if i >= n_factors(program):
            keep[:] = False
            _keep_scope(program, bucket, i, keep)
            at = reduce_axes(scratch, 0, card, keep, size)
            message = store[program.offset[i] : program.offset[i + 1]]
            marginal = scratch[at : at + message.size]
            for j in range(message.size):
                # a forbidden entry stays -inf; the difference of two infinities would be NaN
                came = message[j] if message[j] > -np.inf else 0.0
                message[j] = log(marginal[j]) - came


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
            _keep_scope(program, bucket, program.source[k], keep)
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
    for bucket in range(program.card.size - 1, -1, -1):
        card = clique_card(program, bucket)
        size = 1
        for axis in range(card.size):
            size *= card[axis]
        _belief(program, store, bucket, card, peaks[bucket], scratch[:size])
        _read_factors(program, store, bucket, card, scratch, size)
        _answer_children(program, store, bucket, card, scratch, size)

"""Checks of score tables as they are given, and the sum of the scores of each variable."""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from .machine.jit import njit
from .vecmath import KERNEL, exp, log

#: Finite scores beyond this are refused: sums of them would leave the range of doubles.
LARGEST = 1e100


@njit(**KERNEL)
def first_bad_table(values, offset, size):
    """The first table with NaN, +inf or a finite score beyond LARGEST (code 1) or only -inf (code 2); (-1, 0) if none.

    Table r is values[offset[r] : offset[r] + size[r]]; one that many regions share is looked at once.
    """
    for r in range(offset.size):
        if r > 0 and offset[r] == offset[r - 1] and size[r] == size[r - 1]:
            continue
        table = values[offset[r] : offset[r] + size[r]]
        bad, dead = 0, 0
        for k in range(table.size):  # no way out in between: the loop then runs on vectors
            v = table[k]
            bad += not (v <= LARGEST and v >= -LARGEST)
            dead += v == -np.inf
        if bad > dead:
            return r, 1
        if dead == table.size:
            return r, 2
    return -1, 0


@njit(**KERNEL)
def add_singles(values, offset, variables, n_states, out):
    """out(i, a) += the scores of single-variable regions, table r at values[offset[r]:] of variables[r]."""
    for r in range(variables.size):
        i = variables[r]
        for a in range(n_states[i]):
            out[i, a] += values[offset[r] + a]


@njit(**KERNEL)
def take_singles(d_out, offset, variables, n_states, d_values):
    """The reverse of `add_singles`: d_values of regions that share a table are summed."""
    for r in range(variables.size):
        i = variables[r]
        for a in range(n_states[i]):
            d_values[offset[r] + a] += d_out[i, a]


# Entries of one block of a table: with the blocks of its sources it stays in the first-level cache.
_BLOCK = 2048


@njit(inner=True, **KERNEL)
def _split_axes(card):
    """First axis of the inner block (never axis 0) and the block's size."""
    first = card.size
    block = 1
    while first > 1 and (block == 1 or card[0] * block * card[first - 1] <= _BLOCK):
        first -= 1
        block *= card[first]
    return first, block


@njit(inner=True, allocates=True, **KERNEL)
def _read_block(store, base, strides, card, first, block):
    """How each source fills an inner block: mode (sources,), offsets (sources, block), and constant values.

    Mode 0: one value for the whole block; 1: contiguous; 2: by the offsets; 3: the same in every block, and
    already added up in the constant values, (states of axis 0, block).
    """
    n = strides.shape[0]
    # unsigned: signed offsets would be checked for negative indices in the innermost loop
    mode = np.empty(n, dtype=np.int64)
    index = np.zeros((n, block), dtype=np.uint64)
    constant = np.zeros((card[0], block))
    for i in range(n):
        filled = 1
        missing = 0
        for axis in range(card.size - 1, first - 1, -1):
            missing += strides[i, axis] == 0
            for k in range(filled, filled * card[axis]):
                index[i, k] = index[i, k - filled] + np.uint64(strides[i, axis])
            filled *= card[axis]
        moves = 0
        for axis in range(1, first):
            moves += strides[i, axis]
        if missing == card.size - first:
            mode[i] = 0
        elif moves > 0:
            mode[i] = 1 if missing == 0 else 2
        else:
            mode[i] = 3
            for s in range(card[0]):
                source = store[base[i] + s * strides[i, 0] :]
                for j in range(block):
                    constant[s, j] += source[index[i, j]]
    return mode, index, constant


@njit(inner=True, **KERNEL)
def _advance(digits, card, first, strides, base):
    """Move to the next block: odometer over axes 1 .. first - 1, carrying every source's offset along."""
    axis = first - 1
    while axis >= 1:
        digits[axis] += 1
        carry = digits[axis] == card[axis]
        for i in range(base.size):
            base[i] += strides[i, axis] * (1 - card[axis] if carry else 1)
        if not carry:
            return
        digits[axis] = 0
        axis -= 1


@njit(inner=True, **KERNEL)
def _add_sources(store, base, strides, mode, index, constant, rows):
    """rows[s, :] = sum of the sources at state s of axis 0, over the block where they are at `base`."""
    for s in range(rows.shape[0]):
        row = rows[s]
        level = 0.0
        for i in range(base.size):
            if mode[i] == 0:
                level += store[base[i] + s * strides[i, 0]]
        for j in range(row.size):
            row[j] = constant[s, j] + level
        for i in range(base.size):
            # slices indexed from zero: no check for negative indices, which would keep the loops scalar
            source = store[base[i] + s * strides[i, 0] :]
            if mode[i] == 1:
                for j in range(row.size):
                    row[j] += source[j]
            elif mode[i] == 2:
                for j in range(row.size):
                    row[j] += source[index[i, j]]


class Blocks(namedtuple("Blocks", "base strides card first mode index constant digits rows")):
    """The sum of some tables, read block by block, and where that has come to.

    base (sources,): where each source is read next. strides (sources, axes): its step along the axes `card`, 0 where it
    has none. first: first axis of the inner block. mode, index, constant: see `_read_block`. digits: numbers of the
    next block along the axes before. rows (states of axis 0, block): the block that was read last.
    """


@njit(inner=True, allocates=True, **KERNEL)
def open_blocks(store, base, strides, card):
    """The sum of tables in `store`, (states of axis 0, ..), before its first block."""
    first, block = _split_axes(card)
    mode, index, constant = _read_block(store, base, strides, card, first, block)
    digits, rows = np.zeros(card.size, dtype=np.int64), np.empty((card[0], block))
    return Blocks(base, strides, card, first, mode, index, constant, digits, rows)


@njit(inner=True, **KERNEL)
def next_block(store, b):
    """Fill the rows with the next block, and go on to the one after it."""
    _add_sources(store, b.base, b.strides, b.mode, b.index, b.constant, b.rows)
    _advance(b.digits, b.card, b.first, b.strides, b.base)


@njit(inner=True, **KERNEL)
def add_row(target, row):
    """Add a row to the head of the target; slices carry no check for negative indices, so this is SIMD."""
    for j in range(row.size):
        target[j] += row[j]


@njit(inner=True, **KERNEL)
def raise_row(target, row):
    """target = max(target, row)."""
    for j in range(target.size):
        target[j] = max(target[j], row[j])


@njit(inner=True, **KERNEL)
def max_rows(rows, out):
    """out = max over rows."""
    for j in range(out.size):
        out[j] = rows[0, j]
    for s in range(1, rows.shape[0]):
        raise_row(out, rows[s])


@njit(inner=True, **KERNEL)
def log_sum_exp(rows, peak, total, out):
    """out = log sum over rows of exp, -inf where every row is; peak and total are scratch."""
    max_rows(rows, peak)
    for j in range(out.size):
        # where all is forbidden -inf - -inf would be NaN
        peak[j] = peak[j] if peak[j] > -np.inf else 0.0
    total[:] = 0.0
    for s in range(rows.shape[0]):
        for j in range(out.size):
            total[j] += exp(rows[s, j] - peak[j])
    for j in range(out.size):
        out[j] = peak[j] + log(total[j])


@njit(inner=True, **KERNEL)
def log_sum_exp_pair(a, b, out):
    """out = log(exp(a) + exp(b)), -inf where both are, with one exponential instead of two."""
    for j in range(out.size):
        high = max(a[j], b[j])
        shift = high if high > -np.inf else 0.0
        out[j] = high + log(1.0 + exp(min(a[j], b[j]) - shift))


@njit(**KERNEL)
def _sum_few(scratch, at, outer, middle, inner, to):
    """`_sum_middle` where a row is too short for SIMD."""
    for o in range(outer):
        row = at + o * middle * inner
        for j in range(inner):
            total = scratch[row + j]
            for k in range(1, middle):
                total += scratch[row + k * inner + j]
            scratch[to + o * inner + j] = total


@njit(allocates=True, **KERNEL)
def _sum_middle(scratch, at, outer, middle, inner, to):
    """Sum a table (outer, middle, inner) at `at` over its middle axis; write (outer, inner) at `to`."""
    # short rows are added several at a time, which keeps the innermost loop long enough for SIMD
    together = max(1, min(middle, 64 // inner))
    width = together * inner
    if width < 16:
        _sum_few(scratch, at, outer, middle, inner, to)
        return
    sums = np.empty(width)
    whole = middle // together * width
    for o in range(outer):
        row = scratch[at + o * middle * inner : at + (o + 1) * middle * inner]
        for j in range(width):
            sums[j] = row[j]
        for k in range(width, whole, width):
            add_row(sums, row[k : k + width])
        add_row(sums, row[whole:])
        out = scratch[to + o * inner : to + (o + 1) * inner]
        for j in range(inner):
            out[j] = sums[j]
        for k in range(inner, width, inner):
            add_row(out, sums[k : k + inner])


@njit(inner=True, allocates=True, **KERNEL)
def reduce_axes(scratch, at, card, keep, top):
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
        for axis in range(best, best_end):
            shape[axis] = 1
        at = top
        top += outer * inner

"""What updates of `star` leave for their reverse: the messages they read, slot by slot."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .machine.jit import njit
from .machine.simd import CHUNK, load8, store8
from .vecmath import KERNEL, exp

#: Smallest exp of a message of two states in a record, far below what matters beside 1, so that its sign is never lost.
_LEAST = 1e-300


class Record(NamedTuple):
    """Messages l that updates read, and the slot where those of the next updates go; no inputs: nothing is kept.

    inputs: exp(l) in PRODUCT blocks, l in others, [slot][row][lane chunk][state][chunk]. Of two states one number is
    enough, [slot][row][lane]: `packed`, or l(1) - l(0).
    """

    inputs: Any
    slot: Any


NO_RECORD = Record(np.zeros(0), 0)


@njit(inner=True, **KERNEL)
def keep_row(record, row, n_rows, incoming, L, W):
    """A row's messages, [state][lane], into the record."""
    here = (record.slot * n_rows + row) * L * W
    if W % CHUNK != 0:  # a single lane
        for a in range(L):
            record.inputs[here + a] = incoming[a]
        return
    for x in range(0, W, CHUNK):
        for k in range(x, L * W, W):
            store8(record.inputs, here, load8(incoming, k))
            here += CHUNK


@njit(inner=True, **KERNEL)
def take_row(record, row, n_rows, incoming):
    """A row's messages from the record: the reverse of `keep_row`."""
    L, W = incoming.shape
    width = CHUNK if W % CHUNK == 0 else 1
    here = (record.slot * n_rows + row) * L * W
    for x in range(0, W, width):
        for a in range(L):
            for lane in range(width):
                incoming[a, x + lane] = record.inputs[here]
                here += 1


@njit(inline="always", **KERNEL)
def keep_two(record, row, n_rows, incoming, product):
    """A row's messages of two states into the record: `packed`, or where tables are logarithms l(1) - l(0)."""
    W = incoming.shape[1]
    start = (record.slot * n_rows + row) * W
    kept = record.inputs[start : start + W]
    for x in range(W):
        kept[x] = (
            packed(exp(incoming[0, x]), exp(incoming[1, x])) if product else incoming[1, x] - incoming[0, x]
        )


@njit(inline="always", **KERNEL)
def packed(e0, e1):
    """exp of two messages, one of which is 1, as one number: the other, negative where it is that of state 0."""
    return max(e1, _LEAST) if e1 < 1.0 else -max(e0, _LEAST)

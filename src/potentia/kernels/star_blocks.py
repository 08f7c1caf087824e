"""Blocks of variables that the pair kernels read and write, and the record of messages that the reverse needs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .machine.jit import njit
from .machine.simd import CHUNK, load8, max8, prefetch, spread8, store8, sub8
from .machine.team import BARRIER
from .vecmath import KERNEL, exp

#: Smallest exp of a message of two states in a record, far below what matters beside 1, so that its sign is never lost.
_LEAST = 1e-300


class MessageRecord(NamedTuple):
    """Messages l that updates read, and the slot where those of the next updates go; no inputs: nothing is kept.

    inputs: exp(l) in PRODUCT blocks, l in others, [slot][row][lane chunk][state][chunk]. Of two states one number is
    enough, [slot][row][lane]: `packed`, or l(1) - l(0).
    """

    inputs: Any
    slot: Any


NO_RECORD = MessageRecord(np.zeros(0), 0)


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


PRODUCT, LOG, MAXIMUM = 0, 1, 2

#: What a row does where products are shared: its own, its own and those of the other ends, or none.
ALONE, SENDS, RECEIVES = 0, 1, 2

#: Largest log-range of a table in PRODUCT mode: what exp(-600) drops is below 1e-40 of what it keeps.
SAFE_RANGE = 600.0
#: The same of tables in single precision, whose smallest number is about exp(-87).
SAFE_RANGE_SINGLE = 80.0


class Profile(NamedTuple):
    """The cost g of a distance of labels where tables are weights times -g; see `parametric`.

    cost[d] for d = 0..reach, cap beyond. linear: g(d) = d, by recursion. fields: numbers per slot; 0: written tables.
    """

    linear: Any
    reach: Any
    cost: Any
    cap: Any
    fields: Any


#: Of tables that are written out.
WRITTEN = Profile(False, 0, np.zeros(1), 0.0, 0)


class PairBlocks(NamedTuple):
    """Everything a sweep reads and writes; B blocks of W lanes, R rows, L states.

    slot_ptr (B + 1): first row of each block. opposite (R, W): flat position in `lam` of state 0 of the message at the
    other end of the pair. count (R, W): c_e, 0 in an empty slot. even (R): the c_e that all lanes of a row share, 0
    where they differ; it saves reading them. inverse (B, W): 1 / C. node (B, L, W): scores. own (B, L, W): exp(theta /
    C - max), or nothing; see `star_product`. table: tables, row r at base[r], [a][b][lane], or [a][b] when `shared`;
    PRODUCT blocks of other than two states hold [lane chunk][row][a][b][8] instead, see `chunk_at`; float32 or float64.
    With `profile.fields` it holds that many numbers per slot instead, [row][field][lane]. mode (B). lam (R, L, W),
    belief (B, L, W): marginals (MAXIMUM: P - max P). first (R, W): whether the lane's variable is the first of its
    pair. value (B): where updates are not written, the sum of c_e log sum exp over the pairs of which the block holds
    the first variable, less the tables' shifts. role (R): of each row, ALONE, SENDS or RECEIVES; see `star_product`.
    sent (R, L, W): M of the rows that receive it.
    """

    slot_ptr: Any
    opposite: Any
    count: Any
    even: Any
    inverse: Any
    node: Any
    own: Any
    table: Any
    base: Any
    shared: Any
    profile: Any
    mode: Any
    lam: Any
    belief: Any
    first: Any
    value: Any
    role: Any
    sent: Any


@njit(inner=True, **KERNEL)
def chunk_at(blocks, u, row, x):
    """Where the tables of eight lanes from x on are in a PRODUCT block: in the order in which an update reads them."""
    L, W, first = blocks.lam.shape[1], blocks.lam.shape[2], blocks.slot_ptr[u]
    return (first * W + x * (blocks.slot_ptr[u + 1] - first) + (row - first) * CHUNK) * L * L


# In what follows inner loops index arrays by plain loop variables only. An offset computed from data could be
# negative for all the compiler knows, and the wrap-around test that Python indexing then asks for would keep the
# loop scalar; hence two-dimensional scratch, and views made outside the loops.


@njit(inline="always", **KERNEL)
def slot_of(record, iteration):
    """The record of an iteration of a call: each has a slot."""
    return MessageRecord(record.inputs, record.slot + iteration)


@njit(inner=True, **KERNEL)
def most_rows(blocks, units):
    """Rows of the block that has most, of those in a list of blocks and barriers."""
    most = 0
    for u in units:
        if u != BARRIER:
            most = max(most, blocks.slot_ptr[u + 1] - blocks.slot_ptr[u])
    return most


@njit(inline="always", **KERNEL)
def following(units, k):
    """The block after the k-th, or that itself before a barrier and at the end."""
    return units[k + 1] if k + 1 < units.size and units[k + 1] != BARRIER else units[k]


@njit(inline="always", **KERNEL)
def preceding(units, k):
    """The block before the k-th, or that itself after a barrier and at the beginning."""
    return units[k - 1] if k > 0 and units[k - 1] != BARRIER else units[k]


@njit(inline="always", **KERNEL)
def fetch_ahead(blocks, messages, u):
    """Prefetch the messages that block u will gather."""
    lam, opposite = messages.reshape(-1), blocks.opposite
    L, W = blocks.lam.shape[1], blocks.lam.shape[2]
    for row in range(blocks.slot_ptr[u], blocks.slot_ptr[u + 1]):
        if blocks.role[row] == RECEIVES:
            continue
        for x in range(0, W, CHUNK):
            at = np.int64(opposite[row, x])
            for b in range(L):
                prefetch(lam, at + b * W, 1)


@njit(inline="always", **KERNEL)
def peak_of(values, peak):
    """peak(lane) = max over states."""
    for x in range(peak.size):
        peak[x] = values[0, x]
    for a in range(1, values.shape[0]):
        for x in range(peak.size):
            peak[x] = values[a, x] if values[a, x] > peak[x] else peak[x]


@njit(inline="always", **KERNEL)
def refresh_belief(blocks, u, p, peak, total, moves):
    """Marginals softmax(P) of block u (MAXIMUM: P - max P) into `belief`; returns their largest change."""
    L, W = p.shape
    belief = blocks.belief
    peak_of(p, peak)
    for x in range(W):
        total[x] = 0.0
    if blocks.mode[u] == MAXIMUM:
        for a in range(L):
            for x in range(W):
                p[a, x] -= peak[x]
        for x in range(W):
            total[x] = 1.0
    else:
        for a in range(L):
            for x in range(W):
                v = exp(p[a, x] - peak[x])
                p[a, x] = v
                total[x] += v
    for x in range(W):
        total[x] = 1.0 / total[x]
    for x in range(W):
        moves[x] = 0.0
    for a in range(L):
        for x in range(W):
            v = p[a, x] * total[x]
            moved = abs(v - belief[u, a, x])
            belief[u, a, x] = v
            moves[x] = moved if moved > moves[x] else moves[x]
    most = 0.0
    for x in range(W):
        most = max(most, moves[x])
    return most


@njit(inner=True, **KERNEL)
def write_row(lam, at, p, fresh, L, W, width):
    """lam = P - log M, shifted to maximum 0, of `width` lanes from `at` on; `fresh` (log M) is spent."""
    dead = spread8(-np.inf)
    for x in range(0, width, CHUNK):
        peak = dead
        for k in range(x, L * width, width):
            # -inf - -inf is nan, which stands for -inf, too
            v = max8(sub8(load8(p, k), load8(fresh, k)), dead)
            store8(fresh, k, v)
            peak = max8(v, peak)
        to = at + x
        for k in range(x, L * width, width):
            store8(lam, to, sub8(load8(fresh, k), peak))
            to += W

"""The update of `parametric` on exponentials of messages of bounded range; see `exponentials`."""

from __future__ import annotations

import numpy as np

from .exponentials import gather, pair_values, potentials, refresh, take_largest, write_messages
from .machine.jit import njit
from .machine.simd import CHUNK
from .machine.team import BARRIER, wait
from .parametric import sum_messages
from .star_blocks import block_of, fetch_ahead, following, most_rows, note_change, slot_of
from .vecmath import KERNEL


@njit(allocates=True, **KERNEL)
def sweep(profile, common, blocks, updates, damping, write, watch, changes, record, team):
    """`parametric.sweep` for sums without damping; `common`: the counting number that all pairs have, or 0."""
    L, W = blocks.lam.shape[1], blocks.lam.shape[2]
    widest = most_rows(blocks, updates)
    incoming, p, scratch = np.empty(L * CHUNK), np.empty(L * CHUNK), np.empty(L * CHUNK)
    sums, ends, most = np.empty((widest, L * CHUNK)), np.empty(CHUNK), np.zeros(CHUNK)
    for k in range(updates.size):
        if updates[k] == BARRIER:
            wait(team)
            continue
        u = block_of(blocks, updates[k])
        fetch_ahead(blocks, blocks.lam, following(blocks, updates, k))
        here = slot_of(record, blocks, updates[k])
        value = 0.0
        for x in range(0, W, CHUNK):
            for row in range(blocks.slot_ptr[u], blocks.slot_ptr[u + 1]):
                gather(blocks, row, x, incoming, here)
                at = row * profile.fields * W + x
                sum_messages(
                    profile, blocks.table, at, W, incoming, sums[row - blocks.slot_ptr[u]], 0, L, CHUNK
                )
            if not write:
                value += pair_values(blocks, u, x, sums, ends)
            potentials(blocks, u, x, sums, common, p, scratch)
            if write:
                write_messages(blocks, u, x, p, sums)
            if watch:
                refresh(blocks.belief, u, x, p, most)
        if not write:
            blocks.value[u] = value
        if watch:
            note_change(changes, blocks, updates[k], take_largest(most))
    return -1

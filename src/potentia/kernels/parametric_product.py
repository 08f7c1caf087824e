"""The update of `parametric` on exponentials of messages of bounded range; see `exponentials`."""

from __future__ import annotations

import numpy as np

from .exponentials import gather, largest, pair_values, potentials, refresh, write_messages
from .jit import njit
from .parametric import sum_messages
from .record import slot_of
from .simd import CHUNK
from .star_blocks import fetch_ahead, following, most_rows
from .team import BARRIER, wait
from .vecmath import KERNEL


@njit(allocates=True, **KERNEL)
def sweep(profile, common, blocks, units, damping, write, watch, record, team):
    """`parametric.sweep` for sums without damping; `common`: the counting number that all pairs have, or 0."""
    L, W = blocks.lam.shape[1], blocks.lam.shape[2]
    widest = most_rows(blocks, units)
    incoming, p, scratch = np.empty(L * CHUNK), np.empty(L * CHUNK), np.empty(L * CHUNK)
    sums, ends, most = np.empty((widest, L * CHUNK)), np.empty(CHUNK), np.zeros(CHUNK)
    for k in range(units.size):
        u = units[k]
        if u == BARRIER:
            wait(team)
            continue
        fetch_ahead(blocks, blocks.lam, following(units, k))
        here = slot_of(record, k, team)
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
    return largest(most), -1

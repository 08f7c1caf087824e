"""Single-site Gibbs sampling over regions of any order."""

from __future__ import annotations

import numpy as np

from .labelling import add_states
from .machine.jit import njit
from .vecmath import KERNEL, exp


@njit(**KERNEL)
def _draw(bad, good, uniform):
    """A state with probability proportional to exp(good), never one with bad > 0; `good` is overwritten."""
    peak = -np.inf
    for s in range(bad.size):
        if bad[s] == 0:
            peak = max(peak, good[s])
    total, last = 0.0, 0
    for s in range(bad.size):
        if bad[s] == 0:
            total += exp(good[s] - peak)
            last = s
        good[s] = total
    for s in range(bad.size):
        if bad[s] == 0 and uniform * total < good[s]:
            return s
    return last


@njit(allocates=True, **KERNEL)
def sweep(regions, values, where, labels, uniforms):
    """Redraw every variable in turn given the rest, once per row of uniforms (n_sweeps, n_variables).

    `labels` must have a finite score; it then keeps one, so every conditional has an allowed state.
    """
    bad = np.zeros(regions.n_states.max(), dtype=np.int64)
    good = np.zeros(bad.size)
    for row in range(uniforms.shape[0]):
        for i in range(labels.size):
            n = regions.n_states[i]
            if n > 1:
                add_states(regions, values, where, labels, i, bad, good)
                labels[i] = _draw(bad[:n], good[:n], uniforms[row, i])


@njit(**KERNEL)
def collect(regions, values, where, labels, uniforms, thin, start, counts):
    """Sweep once per row of uniforms; after every `thin` rows count each region's configuration.

    Region r's counts stand at counts[start[r]:].
    """
    for row in range(0, uniforms.shape[0], thin):
        sweep(regions, values, where, labels, uniforms[row : row + thin])
        for r in range(where.size):
            at = start[r]
            for j in range(regions.scope_ptr[r], regions.scope_ptr[r + 1]):
                at += regions.stride[j] * labels[regions.scope[j]]
            counts[at] += 1.0

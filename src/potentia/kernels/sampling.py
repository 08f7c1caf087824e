"""Single-site Gibbs sampling over regions of any order."""

from __future__ import annotations

import numpy as np

from .labelling import add_states, entry
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
            counts[entry(regions, start, labels, r)] += 1.0


@njit(allocates=True, **KERNEL)
def patch_losses(regions, theta, at, patch_ptr, patch, touch_ptr, touch, labels, weight, d_theta):
    """sum over patches of -w log p(y_patch | y_rest), adding its gradient to d_theta (aligned with theta).

    patch_ptr, patch: CSR of each patch's variables. touch_ptr, touch: CSR of the regions that hold any of them.
    A patch of weight 0 is passed over; the others' regions must have labels throughout. Returns the loss, inf where
    a labelling is forbidden.
    """
    y = labels.copy()
    loss = 0.0
    for k in range(patch_ptr.size - 1):
        if weight[k] == 0.0:
            continue
        variables, mine = patch[patch_ptr[k] : patch_ptr[k + 1]], touch[touch_ptr[k] : touch_ptr[k + 1]]
        n = 1
        for i in variables:
            n *= regions.n_states[i]
        totals, truth = np.empty(n), 0
        for c in range(n):
            if _set_configuration(regions, variables, c, y, labels):
                truth = c
            totals[c] = 0.0
            for r in mine:
                totals[c] += theta[entry(regions, at, y, r)]
        peak = np.max(totals)
        loss -= weight[k] * totals[truth]
        for c in range(n):
            totals[c] = exp(totals[c] - peak)
        whole = np.sum(totals)
        loss += weight[k] * (peak + np.log(whole))
        for c in range(n):
            p = totals[c] / whole - (1.0 if c == truth else 0.0)
            if p != 0.0:
                _set_configuration(regions, variables, c, y, labels)
                for r in mine:
                    d_theta[entry(regions, at, y, r)] += weight[k] * p
        for i in variables:
            y[i] = labels[i]
    return loss


@njit(inline="always", **KERNEL)
def _set_configuration(regions, variables, c, y, labels):
    """Put a patch's variables into its configuration number c; whether that is what the labels say."""
    same = True
    for i in variables:
        y[i] = c % regions.n_states[i]
        c //= regions.n_states[i]
        same = same and y[i] == labels[i]
    return same

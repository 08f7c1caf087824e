"""Labellings of large-margin Boltzmann machines: all of them in turn, or the nearest local optimum, by flips.

A labelling's loss is sum_i [1 - z_i]_+ with z_i = y_i s_i + sum over C with i in C of v_C prod_{j in C} y_j; a flip of
one label changes its own term and the cliques it is in.
"""

from __future__ import annotations

import numpy as np

from .coordinate_joint import product
from .machine.jit import njit
from .vecmath import KERNEL

#: Losses closer than this are equal; then the larger sum of z decides.
_TIE = 1e-12


@njit(inner=True, **KERNEL)
def start(cliques, v, s, y, z):
    """z (K) of labelling y."""
    for i in range(y.size):
        z[i] = y[i] * s[i]
    for c in range(v.size):
        amount = v[c] * product(cliques, c, y)
        for m in range(cliques.member_ptr[c], cliques.member_ptr[c + 1]):
            z[cliques.member[m]] += amount


@njit(inner=True, **KERNEL)
def flip(cliques, v, s, i, y, z):
    """Turn y_i and bring z up to date."""
    z[i] -= 2.0 * y[i] * s[i]
    for k in range(cliques.label_ptr[i], cliques.label_ptr[i + 1]):
        c = cliques.clique[k]
        amount = 2.0 * v[c] * product(cliques, c, y)
        for m in range(cliques.member_ptr[c], cliques.member_ptr[c + 1]):
            z[cliques.member[m]] -= amount
    y[i] = -y[i]


@njit(inner=True, **KERNEL)
def loss_of(z):
    """The hinge sum."""
    total = 0.0
    for i in range(z.size):
        total += max(0.0, 1.0 - z[i])
    return total


@njit(allocates=True, **KERNEL)
def enumerate_rows(cliques, v, scores, first, last, labels, loss):
    """The best of all 2^K labellings of rows first .. last - 1, by a walk that flips one label at a time."""
    K = scores.shape[1]
    y, z = np.empty(K), np.empty(K)
    for row in range(first, last):
        y[:] = -1.0
        start(cliques, v, scores[row], y, z)
        best, most = loss_of(z), z.sum()
        labels[row] = y
        for step in range(1, 1 << K):
            i = 0
            while (step >> i) & 1 == 0:
                i += 1
            flip(cliques, v, scores[row], i, y, z)
            found = loss_of(z)
            if found < best - _TIE or (found <= best + _TIE and z.sum() > most):
                best, most = min(found, best) if found <= best + _TIE else found, z.sum()
                labels[row] = y
        start(cliques, v, scores[row], labels[row], z)
        loss[row] = loss_of(z)


@njit(allocates=True, **KERNEL)
def improve_rows(cliques, v, scores, first, last, labels, loss):
    """Flip the label of rows first .. last - 1 that lowers the loss most until none does."""
    K = scores.shape[1]
    z = np.empty(K)
    for row in range(first, last):
        y, s = labels[row], scores[row]
        start(cliques, v, s, y, z)
        best = loss_of(z)
        while True:
            which = -1
            for i in range(K):
                flip(cliques, v, s, i, y, z)
                found = loss_of(z)
                flip(cliques, v, s, i, y, z)
                if found < best - _TIE:
                    best, which = found, i
            if which < 0:
                break
            flip(cliques, v, s, which, y, z)
        loss[row] = best


@njit(allocates=True, **KERNEL)
def flip_costs(cliques, v, scores, first, last, labels, cost, hinge):
    """cost (n, K): what turning each label alone adds to the loss (hinge), or takes from sum_i z_i / 2."""
    K = scores.shape[1]
    y, z = np.empty(K), np.empty(K)
    for row in range(first, last):
        y[:] = labels[row]
        start(cliques, v, scores[row], y, z)
        now = loss_of(z) if hinge else -z.sum() / 2.0
        for i in range(K):
            flip(cliques, v, scores[row], i, y, z)
            cost[row, i] = (loss_of(z) if hinge else -z.sum() / 2.0) - now
            flip(cliques, v, scores[row], i, y, z)

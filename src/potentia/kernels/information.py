"""Weighted scores and mutual informations of cliques at given marginals, with derivatives."""

from __future__ import annotations

import numpy as np

from .machine.jit import njit
from .vecmath import KERNEL, TINY, log


@njit(allocates=True, **KERNEL)
def information(scopes, n_states, weight, counting, theta, mu, singles, log_singles, d_mu, d_singles):
    """sum over cliques of w (theta . mu - c I(mu)), I = sum mu (log mu - sum_i log mu_i); adds its derivatives.

    scopes (m, k); theta, mu and d_mu hold the cliques' own tables one after another; singles (n, states).
    Configurations of probability zero, or next to it, take no part.
    """
    if scopes.shape[1] == 2:
        return _of_pairs(scopes, n_states, weight, counting, theta, mu, singles, log_singles, d_mu, d_singles)
    value, at = 0.0, 0
    for r in range(scopes.shape[0]):
        size = 1
        for k in range(scopes.shape[1]):
            size *= n_states[scopes[r, k]]
        w, c = weight[r], weight[r] * counting[r]
        for y in range(size):
            p = mu[at + y]
            if p >= TINY:
                ratio = log(p)
                step = size
                for k in range(scopes.shape[1]):
                    i = scopes[r, k]
                    step //= n_states[i]
                    a = (y // step) % n_states[i]
                    ratio -= log_singles[i, a]
                    if singles[i, a] > 0.0:
                        d_singles[i, a] += c * p / singles[i, a]
                value += p * (w * theta[at + y] - c * ratio)
                d_mu[at + y] = w * theta[at + y] - c * (ratio + 1.0)
        at += size
    return value


@njit(allocates=True, **KERNEL)
def _of_pairs(scopes, n_states, weight, counting, theta, mu, singles, log_singles, d_mu, d_singles):
    """`information` of pairs, a row of a table at a time."""
    values, columns = np.zeros(singles.shape[1]), np.empty(singles.shape[1])
    at = 0
    for r in range(scopes.shape[0]):
        i, j = scopes[r, 0], scopes[r, 1]
        n, w, c = n_states[j], weight[r], weight[r] * counting[r]
        for b in range(n):
            columns[b] = 0.0
        for a in range(n_states[i]):
            p, score, out = mu[at : at + n], theta[at : at + n], d_mu[at : at + n]
            own, others = log_singles[i, a], log_singles[j]
            for b in range(n):
                part = w * score[b] - c * (log(p[b]) - own - others[b])
                out[b] = part - c if p[b] >= TINY else 0.0
                values[b] += p[b] * part if p[b] >= TINY else 0.0
                columns[b] += p[b] if p[b] >= TINY else 0.0
            row = 0.0
            for b in range(n):
                row += p[b] if p[b] >= TINY else 0.0
            if singles[i, a] > 0.0:
                d_singles[i, a] += c * row / singles[i, a]
            at += n
        for b in range(n):
            d_singles[j, b] += c * columns[b] / singles[j, b] if singles[j, b] > 0.0 else 0.0
    value = 0.0
    for b in range(values.size):
        value += values[b]
    return value

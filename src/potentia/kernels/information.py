"""Weighted scores and mutual informations of cliques at given marginals, with derivatives."""

from __future__ import annotations

from .jit import njit
from .vecmath import KERNEL, TINY, log


@njit(**KERNEL)
def information(scopes, n_states, weight, counting, theta, mu, singles, log_singles, d_mu, d_singles):
    """sum over cliques of w (theta . mu - c I(mu)), I = sum mu (log mu - sum_i log mu_i); adds its derivatives.

    scopes (m, k); theta, mu and d_mu hold the cliques' own tables one after another; singles (n, states).
    Configurations of probability zero, or next to it, take no part.
    """
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

"""Guided local search: single changes of labels on tables whose entries are penalised where the search gets stuck."""

from __future__ import annotations

import numpy as np

from .labelling import change, entry
from .machine.jit import njit
from .vecmath import KERNEL

#: Gains below this share of the largest score are rounding.
_MARGIN = 1e-10


@njit(inner=True, **KERNEL)
def _best_change(n_states, good, labels, i, gain, target):
    """The best other state of i, and what it gains."""
    gain[i] = -np.inf
    for s in range(n_states):
        if s != labels[i] and good[i, s] - good[i, labels[i]] > gain[i]:
            gain[i], target[i] = good[i, s] - good[i, labels[i]], s


@njit(allocates=True, **KERNEL)
def guide(regions, values, where, weighed, at, peak, count, labels, fields, best, weight, rng, steps):
    """Make the best change of one label, or where none helps penalise the worst entries, `steps` times.

    An entry's cost is what it is below the `peak` of its table, divided by the penalties that the table has had; the
    costliest entries of the labelling lose `weight` [Voudouris and Tsang 1999].

    values, where: the scores, finite. weighed, at: a copy, a separate table for each region, less penalties; its
    `fields` at the labels. count (n_regions,): penalties of each region so far. labels: changed in place.
    best: output, the labelling of the highest score met.
    """
    n, good, margin = labels.size, fields.good, _MARGIN * np.abs(values).max()
    gain, target = np.empty(n), labels.copy()
    for i in range(n):
        _best_change(regions.n_states[i], good, labels, i, gain, target)
    score = top = 0.0
    for _ in range(steps):
        i, most, ties = -1, margin, 0
        for j in range(n):
            if gain[j] > most + margin:
                i, most, ties = j, gain[j], 1
            elif gain[j] > most - margin and i >= 0:
                ties += 1
                if rng.random() * ties < 1.0:
                    i = j
        if i >= 0:
            for k in range(regions.member_ptr[i], regions.member_ptr[i + 1]):
                here = entry(regions, where, labels, regions.member[k])
                score += values[here + regions.stride[regions.member_at[k]] * (target[i] - labels[i])] - values[here]
            change(regions, weighed, at, labels, i, target[i], fields)
            for k in range(regions.member_ptr[i], regions.member_ptr[i + 1]):
                r = regions.member[k]
                for m in range(regions.scope_ptr[r], regions.scope_ptr[r + 1]):
                    j = np.int64(regions.scope[m])
                    _best_change(regions.n_states[j], good, labels, j, gain, target)
            if score > top + margin:
                top = score
                best[:] = labels
            continue
        worst = 0.0
        for r in range(peak.size):
            worst = max(worst, (peak[r] - values[entry(regions, where, labels, r)]) / (1.0 + count[r]))
        if worst <= margin:
            return
        for r in range(peak.size):
            if (peak[r] - values[entry(regions, where, labels, r)]) / (1.0 + count[r]) >= worst - margin:
                count[r] += 1.0
                weighed[entry(regions, at, labels, r)] -= weight
                for m in range(regions.scope_ptr[r], regions.scope_ptr[r + 1]):
                    j = np.int64(regions.scope[m])
                    good[j, labels[j]] -= weight
                    gain[j] += weight

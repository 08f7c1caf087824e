"""Pairwise Frank-Wolfe steps with a working set of labellings per example.

A plain step mixes an example's whole m with the oracle's answer, so that labellings once taken up linger for long.
A pairwise step moves weight from the worst labelling of the set to the best one, exactly; it converges far faster
[Lacoste-Julien and Jaggi 2015], touches only the rows in which the two differ, and needs no oracle
[Osokin et al. 2016]. What the set cannot hold (labellings without a slot, fractional answers of a relaxation) is one
more, anonymous member: m minus the weighted labellings.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .frank_wolfe import entries_of, fill_scores, most_entries, move
from .machine.jit import njit
from .vecmath import KERNEL

#: Anonymous weight below this is rounding.
_DUST = 1e-10


class WorkingSet(NamedTuple):
    """region_ptr (examples + 1). entry: the flat entry of each region under each labelling, those of slot j of example
    k from slots * region_ptr[k] + j * regions on; the first is -1 in an empty slot. weight, loss (examples, slots): the
    labellings' shares of m, and their Delta.
    """

    region_ptr: Any
    entry: Any
    weight: Any
    loss: Any


@njit(inner=True, **KERNEL)
def remember(ws, k, answer, loss):
    """Put a labelling (regions,) into the set, over an empty slot or the one of least weight; returns its slot."""
    slots, n = ws.weight.shape[1], ws.region_ptr[k + 1] - ws.region_ptr[k]
    begin = slots * ws.region_ptr[k]
    free = 0
    for j in range(slots):
        o = begin + j * n
        if ws.entry[o] < 0:
            free = j
            break
        same = True
        for r in range(n):
            if ws.entry[o + r] != answer[r]:
                same = False
                break
        if same:
            return j
        if ws.weight[k, j] < ws.weight[k, free]:
            free = j
    for r in range(n):
        ws.entry[begin + free * n + r] = answer[r]
    # the weight of a labelling that is overwritten becomes anonymous
    ws.weight[k, free], ws.loss[k, free] = 0.0, loss
    return free


@njit(**KERNEL)
def _extremes(ws, k, theta, start):
    """The best labelling and its score, the worst of positive weight and its score, all weight, weighted score."""
    slots, n = ws.weight.shape[1], ws.region_ptr[k + 1] - ws.region_ptr[k]
    best, worst, high, low, mass, mean = -1, -1, -np.inf, np.inf, 0.0, 0.0
    for j in range(slots):
        o = slots * ws.region_ptr[k] + j * n
        if ws.entry[o] < 0:
            break
        score = ws.loss[k, j]
        for r in range(n):
            score += theta[ws.entry[o + r] - start]
        if score > high:
            best, high = j, score
        if ws.weight[k, j] > 0.0:
            mass += ws.weight[k, j]
            mean += ws.weight[k, j] * score
            if score < low:
                worst, low = j, score
    return best, high, worst, low, mass, mean


@njit(**KERNEL)
def _add(ws, k, j, start, amount, d):
    """d += amount times the indicators of labelling j."""
    n = ws.region_ptr[k + 1] - ws.region_ptr[k]
    o = ws.weight.shape[1] * ws.region_ptr[k] + j * n
    for r in range(n):
        d[ws.entry[o + r] - start] += amount


@njit(inner=True, **KERNEL)
def visit(design, dual, ws, k, theta, d):
    """One pairwise step of example k; theta are its current scores, d is work space of as many entries."""
    first, last = design.row_ptr[k], design.row_ptr[k + 1]
    start, size = design.at[first], entries_of(design, first, last)
    best, high, worst, low, mass, mean = _extremes(ws, k, theta, start)
    if best < 0:  # scores that are not numbers: there is no step, and no labelling to index with
        return
    rest = 1.0 - mass
    if rest > _DUST:
        value = dual.loss[k] - mean
        for e in range(size):
            value += dual.m[start + e] * theta[e]
        if value / rest < low:
            _leave_rest(design, dual, ws, k, best, high - value / rest, rest, d)
            return
    if worst < 0:
        return
    for e in range(size):
        d[e] = 0.0
    _add(ws, k, best, start, 1.0, d)
    _add(ws, k, worst, start, -1.0, d)
    share = move(design, dual, k, d, high - low, ws.weight[k, worst])
    ws.weight[k, worst] -= share
    ws.weight[k, best] += share
    dual.loss[k] += share * (ws.loss[k, best] - ws.loss[k, worst])


@njit(**KERNEL)
def _leave_rest(design, dual, ws, k, best, gain, rest, d):
    """The step that takes weight from the anonymous member."""
    first, last = design.row_ptr[k], design.row_ptr[k + 1]
    start = design.at[first]
    loss = dual.loss[k]
    for e in range(entries_of(design, first, last)):
        d[e] = -dual.m[start + e] / rest
    for j in range(ws.weight.shape[1]):
        if ws.weight[k, j] > 0.0:
            _add(ws, k, j, start, ws.weight[k, j] / rest, d)
            loss -= ws.weight[k, j] * ws.loss[k, j]
    _add(ws, k, best, start, 1.0, d)
    share = move(design, dual, k, d, gain, rest)
    ws.weight[k, best] += share
    dual.loss[k] += share * (ws.loss[k, best] - loss / rest)


@njit(allocates=True, **KERNEL)
def revisit(design, dual, ws, order):
    """A step of every example of `order` with the labellings that are known."""
    most = most_entries(design, 0, design.row_ptr.size - 1)
    theta, d = np.empty(most), np.empty(most)
    for k in order:
        if ws.region_ptr[k] == ws.region_ptr[k + 1]:
            continue
        fill_scores(design, dual.w, design.row_ptr[k], design.row_ptr[k + 1], theta)
        visit(design, dual, ws, k, theta, d)


@njit(inner=True, **KERNEL)
def mix(design, dual, ws, k, theta, d, entries, shares, loss):
    """A plain Frank-Wolfe step of example k towards an answer that is no labelling: shares of flat entries."""
    first, last = design.row_ptr[k], design.row_ptr[k + 1]
    start, gain = design.at[first], loss - dual.loss[k]
    for e in range(entries_of(design, first, last)):
        d[e] = -dual.m[start + e]
        gain += d[e] * theta[e]
    for j in range(entries.size):
        d[entries[j] - start] += shares[j]
        gain += shares[j] * theta[entries[j] - start]
    share = move(design, dual, k, d, gain, 1.0)
    for j in range(ws.weight.shape[1]):
        ws.weight[k, j] *= 1.0 - share
    dual.loss[k] += share * (loss - dual.loss[k])


@njit(allocates=True, **KERNEL)
def step_batch(design, dual, ws, first, last, ptr, entries, shares, losses):
    """Make a step with the answer of each of examples first .. last - 1.

    Answers are flat entries with shares, those of an example sorted by region and from ptr on. With one entry per
    region an answer is a labelling, which the set takes up.
    """
    most = most_entries(design, first, last)
    theta, d = np.empty(most), np.empty(most)
    for k in range(first, last):
        a, b = ptr[k - first], ptr[k - first + 1]
        if a == b:
            continue
        fill_scores(design, dual.w, design.row_ptr[k], design.row_ptr[k + 1], theta)
        if b - a == ws.region_ptr[k + 1] - ws.region_ptr[k]:
            remember(ws, k, entries[a:b], losses[k - first])
            visit(design, dual, ws, k, theta, d)
        else:
            mix(design, dual, ws, k, theta, d, entries[a:b], shares[a:b], losses[k - first])

"""Block-coordinate Frank-Wolfe on the dual of the structural SVM, with the dual kept as marginals.

Examples own consecutive *rows*. Row g has features (CSR) that multiply a table of parameters of width[g] columns;
its scores lie at at[g] : at[g] + width[g] of flat arrays. An example's dual state is not a vector of parameters
but m, a convex combination of labellings' indicators in the layout of the scores, so that

    eta w = 1/n sum_g x_g (t_g - m_g)'        t: indicators of the true labelling
    gap_k = 1/n ( sum_g (s - m)_g . theta_g + Delta(s) - Delta(m) )     s: answer of the oracle

and memory grows with scores, not with examples times parameters. Regions with equal features share a row, whose m
is the sum over them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .logistic import SUMS
from .machine.jit import njit
from .vecmath import KERNEL


class Design(NamedTuple):
    """row_ptr (examples + 1), feature_ptr (rows + 1): CSR. base: where the feature's parameters begin, value: the
    feature, both per stored feature. width, at (rows). metric (parameters): 1 / (eta n), which turns sums of
    features into parameters. truth: t, flat.
    """

    row_ptr: Any
    feature_ptr: Any
    base: Any
    value: Any
    width: Any
    at: Any
    metric: Any
    truth: Any


class Dual(NamedTuple):
    """w (parameters); m flat like the scores; loss (examples): Delta(m). work (parameters): zeros between steps."""

    w: Any
    m: Any
    loss: Any
    work: Any


@njit(**KERNEL)
def fill_scores(design, w, first, last, theta):
    """theta (flat from at[first] on) = x_g W of rows first .. last - 1."""
    start = design.at[first] if last > first else 0
    for g in range(first, last):
        o, k = design.at[g] - start, design.width[g]
        for c in range(k):
            theta[o + c] = 0.0
        for f in range(design.feature_ptr[g], design.feature_ptr[g + 1]):
            p, x = design.base[f], design.value[f]
            for c in range(k):
                theta[o + c] += x * w[p + c]


@njit(**KERNEL)
def assemble(design, m, w):
    """w = metric * sum_g x_g (t_g - m_g)'."""
    w[:] = 0.0
    for g in range(design.width.size):
        o = design.at[g]
        for f in range(design.feature_ptr[g], design.feature_ptr[g + 1]):
            p, x = design.base[f], design.value[f]
            for c in range(design.width[g]):
                w[p + c] += x * (design.truth[o + c] - m[o + c])
    for p in range(w.size):
        w[p] *= design.metric[p]


@njit(**SUMS)
def margins(design, w, s, delta, out):
    """out (examples) = F(s) - F(truth) + delta, the loss of each example at the oracle's answer s."""
    for k in range(design.row_ptr.size - 1):
        total = delta[k]
        for g in range(design.row_ptr[k], design.row_ptr[k + 1]):
            o = design.at[g]
            for f in range(design.feature_ptr[g], design.feature_ptr[g + 1]):
                p, x = design.base[f], design.value[f]
                part = 0.0
                for c in range(design.width[g]):
                    part += (s[o + c] - design.truth[o + c]) * w[p + c]
                total += x * part
        out[k] = total


@njit(inner=True, allocates=True, **KERNEL)
def move(design, dual, k, d, gain, most):
    """m += share d for example k, with the share of 0 .. most that raises the dual most; w follows.

    d begins at the example's first entry; gain is n times the dual's slope along it. Returns the share.
    """
    first, last = design.row_ptr[k], design.row_ptr[k + 1]
    if gain <= 0.0 or first == last:
        return 0.0
    # two labellings differ in few entries: list them
    ptr, column = np.empty(last - first + 1, dtype=np.int64), np.empty(d.size, dtype=np.int64)
    start, count = design.at[first], 0
    for g in range(first, last):
        ptr[g - first] = count
        for c in range(design.width[g]):
            column[count] = c
            count += d[design.at[g] - start + c] != 0.0
    ptr[last - first] = count
    _spread(design, first, last, d, ptr, column, dual.work)
    curvature = _curvature(design, first, last, d, ptr, column, dual.work)
    share = most if gain >= curvature * most else gain / curvature
    _shift(design, dual, first, last, d, ptr, column, share)
    return share


@njit(**KERNEL)
def _spread(design, first, last, d, ptr, column, work):
    """work += sum_g x_g d_g'."""
    for g in range(first, last):
        o, a, b = design.at[g] - design.at[first], ptr[g - first], ptr[g - first + 1]
        for f in range(design.feature_ptr[g], design.feature_ptr[g + 1] if b > a else 0):
            p, x = design.base[f], design.value[f]
            for j in range(a, b):
                work[p + column[j]] += x * d[o + column[j]]


@njit(**KERNEL)
def _curvature(design, first, last, d, ptr, column, work):
    """sum_p metric_p work_p^2, read through the rows because work is zero elsewhere."""
    total = 0.0
    for g in range(first, last):
        o, a, b = design.at[g] - design.at[first], ptr[g - first], ptr[g - first + 1]
        for f in range(design.feature_ptr[g], design.feature_ptr[g + 1] if b > a else 0):
            p, x = design.base[f], design.value[f]
            for j in range(a, b):
                c = column[j]
                total += x * d[o + c] * design.metric[p + c] * work[p + c]
    return total


@njit(**KERNEL)
def _shift(design, dual, first, last, d, ptr, column, share):
    """m += share d, w follows, work is cleared."""
    for g in range(first, last):
        o, a, b = design.at[g] - design.at[first], ptr[g - first], ptr[g - first + 1]
        for j in range(a, b):
            dual.m[design.at[g] + column[j]] += share * d[o + column[j]]
        for f in range(design.feature_ptr[g], design.feature_ptr[g + 1] if b > a else 0):
            p, x = design.base[f], share * design.value[f]
            for j in range(a, b):
                c = column[j]
                dual.w[p + c] -= x * design.metric[p + c] * d[o + c]
                dual.work[p + c] = 0.0


@njit(**KERNEL)
def entries_of(design, a, b):
    """How many scores rows a .. b - 1 have."""
    return design.at[b - 1] + design.width[b - 1] - design.at[a] if b > a else 0


@njit(inner=True, **KERNEL)
def most_entries(design, first, last):
    """The largest number of scores of an example of first .. last - 1."""
    most = 1
    for k in range(first, last):
        most = max(most, entries_of(design, design.row_ptr[k], design.row_ptr[k + 1]))
    return most

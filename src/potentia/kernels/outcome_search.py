"""Labellings with structured factors: local search by single changes and whole factors at once, and Gibbs sampling."""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from .labelling import entry
from .machine.jit import njit
from .vecmath import KERNEL, exp

#: Rules of outcomes of how many variables show each symbol.
COUNT, PARITY, SAME, DIFFERENT = 0, 1, 2, 3
#: Passes at most.
_PASSES = 30


class OutcomeModel(
    namedtuple("OutcomeModel", "regions theta at of first variable code item_ptr item owner rule score excess shown")
):
    """Scores with penalties in the place of -inf.

    regions: flat regions. theta, at: finite scores, and where tables begin. of (regions): structured factor or -1.
    first (K + 1), variable, code (items, states): variables of each factor, and the symbol of each state.
    item_ptr, item, owner: CSR over variables of their items, and the factor of each item.
    rule (K), score (K, outcomes), excess (K): the penalty of each count beyond the last outcome, or of each variable
    by which "same" and "different" are missed.
    shown (K, symbols): how many variables show each symbol now.
    """


@njit(**KERNEL)
def _factor_score(m, k):
    """The score of a factor for what its variables show."""
    n, shown, rule = m.first[k + 1] - m.first[k], m.shown[k], m.rule[k]
    if rule == COUNT:
        last = m.score.shape[1] - 1
        while not m.score[k, last] < np.inf:  # rows are filled up with inf
            last -= 1
        beyond = max(shown[1] - last, 0)
        return m.score[k, shown[1] - beyond] - beyond * m.excess[k]
    if rule == PARITY:
        return m.score[k, shown[1] % 2]
    most, missed = 0, 0
    for s in range(shown.size):
        if shown[s] > shown[most]:
            most = s
        missed += max(shown[s] - 1, 0)
    if rule == SAME:
        last = m.score.shape[1] - 1
        while not m.score[k, last] < np.inf:
            last -= 1
        return m.score[k, most] if shown[most] == n else m.score[k, last] - (n - shown[most] - 1) * m.excess[k]
    return m.score[k, 0] if missed == 0 else m.score[k, 1] - (missed - 1) * m.excess[k]


@njit(**KERNEL)
def _change(m, labels, i, a, without):
    """The change of the score where variable i takes state a, without that of factor `without`."""
    r, old, total = m.regions, labels[i], 0.0
    for j in range(r.member_ptr[i], r.member_ptr[i + 1]):
        region, here = r.member[j], r.member_at[j]
        if m.of[region] < 0:
            base = entry(r, m.at, labels, region)
            total += m.theta[base + r.stride[here] * (a - old)] - m.theta[base]
    for j in range(m.item_ptr[i], m.item_ptr[i + 1]):
        e = m.item[j]
        k, before, after = m.owner[e], m.code[e, old], m.code[e, a]
        if k != without and before != after:
            total -= _factor_score(m, k)
            m.shown[k, before] -= 1
            m.shown[k, after] += 1
            total += _factor_score(m, k)
            m.shown[k, before] += 1
            m.shown[k, after] -= 1
    return total


@njit(**KERNEL)
def _set(m, labels, i, a):
    """Give variable i state a."""
    for j in range(m.item_ptr[i], m.item_ptr[i + 1]):
        m.shown[m.owner[m.item[j]], m.code[m.item[j], labels[i]]] -= 1
        m.shown[m.owner[m.item[j]], m.code[m.item[j], a]] += 1
    labels[i] = a


@njit(allocates=True, **KERNEL)
def _block(m, labels, k):
    """The best labels of all variables of a factor, if they did not interact otherwise; kept if the score rises."""
    first, n = m.first[k], m.first[k + 1] - m.first[k]
    wide = m.shown.shape[1]
    best_state = np.zeros((n, wide), dtype=np.int64)
    value = np.full((n, wide), -np.inf)
    old = np.empty(n, dtype=np.int64)
    for p in range(n):
        i = m.variable[first + p]
        old[p] = labels[i]
        for a in range(m.regions.n_states[i]):
            s, v = m.code[first + p, a], _change(m, labels, i, a, k)
            if v > value[p, s]:
                value[p, s], best_state[p, s] = v, a
    before = m.shown[k].copy()
    target = np.zeros(n, dtype=np.int64)
    if m.rule[k] == SAME:
        totals, top = np.zeros(wide), 0
        for s in range(wide):
            totals[s] = m.score[k, s] if s < m.score.shape[1] else -np.inf
            for p in range(n):
                totals[s] += value[p, s]
            top = s if totals[s] > totals[top] else top
        target[:] = top
    else:
        gain = value[:, 1] - value[:, 0]
        order = np.argsort(-gain)
        m.shown[k, 0], m.shown[k, 1] = n, 0
        total, top, most = 0.0, _factor_score(m, k), 0
        for p in range(n):
            m.shown[k, 0] -= 1
            m.shown[k, 1] += 1
            total += gain[order[p]]
            here = total + _factor_score(m, k)
            if here > top:
                top, most = here, p + 1
        for p in range(most):
            target[order[p]] = 1
    m.shown[k, : before.size] = before
    rise = 0.0
    for p in range(n):
        i, a = m.variable[first + p], best_state[p, target[p]]
        if value[p, target[p]] > -np.inf and a != labels[i]:
            rise += _change(m, labels, i, a, -1)
            _set(m, labels, i, a)
    if rise > 1e-12:
        return True
    for p in range(n):
        _set(m, labels, m.variable[first + p], old[p])
    return False


@njit(**KERNEL)
def _show(m, labels):
    """Set what each factor's variables show."""
    m.shown[:] = 0
    for e in range(m.variable.size):
        m.shown[m.owner[e], m.code[e, labels[m.variable[e]]]] += 1


@njit(**KERNEL)
def _redraw(m, least, labels, i, j, uniform, total):
    """Redraw variable i, or i and j >= 0 together, given the rest; changes of at most `least` are forbidden."""
    width, old, peak = m.regions.n_states[j] if j >= 0 else 1, labels[i], 0.0
    n = m.regions.n_states[i] * width
    for a in range(m.regions.n_states[i]):
        change = _change(m, labels, i, a, -1)
        _set(m, labels, i, a)
        for b in range(width):
            total[a * width + b] = change + (_change(m, labels, j, b, -1) if j >= 0 else 0.0)
            peak = max(peak, total[a * width + b])
        _set(m, labels, i, old)
    mass, last = 0.0, 0
    for s in range(n):
        if total[s] > least:
            mass += exp(total[s] - peak)
            last = s
        total[s] = mass
    chosen = 0
    while chosen < last and total[chosen] <= uniform * mass:
        chosen += 1
    _set(m, labels, i, chosen // width)
    if j >= 0:
        _set(m, labels, j, chosen % width)


@njit(allocates=True, **KERNEL)
def redraw(m, least, labels, uniforms):
    """Gibbs sampling, a sweep per row of uniforms (sweeps, n_variables + 2 items).

    Redraws every variable, then each variable of a factor together with a random one of the same factor, since a
    single change may be forbidden where an exchange is not. Changes of at most `least` are forbidden.
    """
    _show(m, labels)
    n, total = labels.size, np.empty(m.regions.n_states.max() ** 2)
    for row in range(uniforms.shape[0]):
        for i in range(n):
            _redraw(m, least, labels, i, -1, uniforms[row, i], total)
        for e in range(m.variable.size):
            first, end = m.first[m.owner[e]], m.first[m.owner[e] + 1]
            other = m.variable[first + int(uniforms[row, n + 2 * e] * (end - first))]
            if other != m.variable[e]:
                _redraw(m, least, labels, m.variable[e], other, uniforms[row, n + 2 * e + 1], total)


@njit(allocates=True, **KERNEL)
def climb(m, labels):
    """Improve labels in place until neither a single change nor a factor at once does."""
    _show(m, labels)
    for _ in range(_PASSES):
        moved = False
        for i in range(labels.size):
            top, best = 1e-12, labels[i]
            for a in range(m.regions.n_states[i]):
                if a != labels[i]:
                    v = _change(m, labels, i, a, -1)
                    if v > top:
                        top, best = v, a
            if best != labels[i]:
                _set(m, labels, i, best)
                moved = True
        for k in range(m.rule.size):
            if m.rule[k] != DIFFERENT:
                moved = _block(m, labels, k) or moved
        if not moved:
            return

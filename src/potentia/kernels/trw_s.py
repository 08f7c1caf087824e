"""Sequential tree-reweighted message passing on the dual of the LP (TRW-S), for regions of any order.

A pair keeps one message, towards the end that is visited next; a wider region keeps one vector per variable.
Visiting a variable collects the max-marginals of its regions and hands equal shares back to the regions that
are yet to be visited, so the bound never loosens, whatever the order [Kolmogorov 2006; 2015 for wider regions].
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from .machine.jit import njit
from .machine.simd import CHUNK, add8, load8, max8, spread8, store8
from .vecmath import KERNEL


class ReparametrisedScores(
    namedtuple(
        "ReparametrisedScores",
        "node n_states link_ptr link other send receive tables message wide_ptr wide wide_at scope_ptr scope start "
        "values share lam deficit",
    )
):
    """Everything a pass reads and writes.

    node: (n_variables, width) scores, -inf where forbidden. n_states: states per variable.
    link_ptr, link, other: CSR over variables of pairs and their other ends, earlier ends first.
    send, receive: per link, where `tables` holds the pair's table with rows of the variable and of the other end.
    tables: pair tables. message: (n_pairs, width).
    wide_ptr, wide, wide_at: CSR over variables of wider regions and the position in `scope` of the variable.
    scope_ptr, scope, start, values: the wider regions' variables and C-ordered tables.
    share: (n_variables,), what a region yet to be visited gets.
    lam: (scope.size, width), reparametrisation of the wider regions.
    deficit: (n_variables, width), the bound less the bound with a variable held in a state, at its last visit.
    """


@njit(**KERNEL)
def _wide_marginal(d, r, own, given, forward, labels, digits, out):
    """Max-marginal on scope position `own` of region r less the other variables' lam.

    With `given`, variables visited earlier in this direction are held at their labels instead.
    """
    begin, end = d.scope_ptr[r], d.scope_ptr[r + 1]
    i = d.scope[own]
    out[: d.n_states[i]] = -np.inf
    digits[: end - begin] = 0
    at = d.start[r]
    while True:
        score = d.values[at]
        if score > -np.inf:
            for k in range(begin, end):
                v = d.scope[k]
                if k == own:
                    continue
                if given and (v < i) == forward:
                    if labels[v] != digits[k - begin]:
                        score = -np.inf
                else:
                    score -= d.lam[k, digits[k - begin]]
            state = digits[own - begin]
            # a lam of -inf marks a dead state, so that the difference would be inf
            if score < np.inf and score > out[state]:
                out[state] = score
        at += 1
        k = end - 1
        while k >= begin:
            digits[k - begin] += 1
            if digits[k - begin] < d.n_states[d.scope[k]]:
                break
            digits[k - begin] = 0
            k -= 1
        if k < begin:
            return


@njit(**KERNEL)
def _choose(d, i, forward, labels, digits, work, out):
    """The best state of i given the labels of earlier variables and messages of the others."""
    n = d.n_states[i]
    for s in range(n):
        out[s] = d.node[i, s]
    for k in range(d.link_ptr[i], d.link_ptr[i + 1]):
        if (d.other[k] < i) == forward:
            at = d.receive[k] + labels[d.other[k]] * n
            for s in range(n):
                out[s] += d.tables[at + s]
        else:
            for s in range(n):
                out[s] += d.message[d.link[k], s]
    for k in range(d.wide_ptr[i], d.wide_ptr[i + 1]):
        _wide_marginal(d, d.wide[k], d.wide_at[k], True, forward, labels, digits, work)
        for s in range(n):
            out[s] += work[s]
    best = 0
    for s in range(1, n):
        if out[s] > out[best]:
            best = s
    if out[best] == -np.inf:  # a dead end: at least a state that the variable itself allows
        for s in range(n):
            if d.node[i, s] > d.node[i, best]:
                best = s
    return best


@njit(**KERNEL)
def _send(tables, at, source, new, n_source, n):
    """max over the source's states of source + table, (n,); returns its peak, which is moved out."""
    if n >= CHUNK:
        for chunk in range(0, n, CHUNK):
            first = min(chunk, n - CHUNK)
            top = spread8(-np.inf)
            for s in range(n_source):
                top = max8(add8(load8(tables, at + s * n + first), spread8(source[s])), top)
            store8(new, first, top)
    else:
        for t in range(n):
            best = -np.inf
            for s in range(n_source):
                best = max(best, tables[at + s * n + t] + source[s])
            new[t] = best
    peak = -np.inf
    for t in range(n):
        peak = max(peak, new[t])
    if peak > -np.inf:
        for t in range(n):
            new[t] -= peak
    return peak


@njit(allocates=True, **KERNEL)
def sweep(d, forward, choose, labels):
    """Visit all variables in ascending (or descending) order; returns the bound after it.

    With `choose`, labels are set on the way, each given those before and the messages of the rest. The bound is
    -inf where the scores contradict each other.
    """
    width = d.node.shape[1]
    belief, work, source = np.empty(width), np.empty(width), np.empty(width)
    digits = np.zeros(64, dtype=np.int64)
    bound = 0.0
    n_variables = d.n_states.size
    for step in range(n_variables):
        i = step if forward else n_variables - 1 - step
        n = d.n_states[i]
        if choose:
            labels[i] = _choose(d, i, forward, labels, digits, work, belief)
        belief[:n] = d.node[i, :n]
        for k in range(d.link_ptr[i], d.link_ptr[i + 1]):
            e = d.link[k]
            for s in range(n):
                belief[s] += d.message[e, s]
        for k in range(d.wide_ptr[i], d.wide_ptr[i + 1]):
            _wide_marginal(d, d.wide[k], d.wide_at[k], False, forward, labels, digits, work)
            for s in range(n):
                d.lam[d.wide_at[k], s] = work[s]
                belief[s] += work[s]
        peak = belief[:n].max()
        if peak == -np.inf:
            return peak
        bound += peak
        share = d.share[i]
        for s in range(n):
            belief[s] -= peak
            d.deficit[i, s] = -belief[s]
        for k in range(d.link_ptr[i], d.link_ptr[i + 1]):
            j = d.other[k]
            if (j > i) == forward:
                e = d.link[k]
                for s in range(n):
                    source[s] = share * belief[s] - d.message[e, s] if belief[s] > -np.inf else -np.inf
                m = d.n_states[j]
                top = _send(d.tables, d.send[k], source, d.message[e], n, m)
                if top == -np.inf:
                    return top
                bound += top
        for k in range(d.wide_ptr[i], d.wide_ptr[i + 1]):
            begin, end = d.scope_ptr[d.wide[k]], d.scope_ptr[d.wide[k] + 1]
            last = True
            for other in d.scope[begin:end]:
                last &= other == i or (other < i) == forward
            for s in range(n):
                if belief[s] == -np.inf:
                    d.lam[d.wide_at[k], s] = -np.inf
                elif not last:
                    d.lam[d.wide_at[k], s] -= share * belief[s]
    return bound

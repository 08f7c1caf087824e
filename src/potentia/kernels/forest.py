"""The dynamic program over forests of pairs: log Z with its gradient, the best and the k best labellings, samples.

With root-first order, parent p(i) and psi_i(b, a) = exp theta between i in state b and its parent in state a:

    up_i(b) ~ exp theta_i(b) prod over children m_c(b) ;   m_i(a) = sum_b psi_i(b, a) up_i(b)
    r_i(a) = mu_p(a) / m_i(a) ;   mu_i(b) = up_i(b) sum_a psi_i(b, a) r_i(a) ;   mu_pair = psi_i(b, a) up_i(b) r_i(a)

Sums run over probabilities, rescaled at every variable: no logarithm per state and no exponential per configuration of
a shared table, which is what makes them fast. Scores must be of a range that leaves no sum empty, see `largest_range`.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from .machine.jit import njit
from .traversal import root
from .vecmath import KERNEL, SUMS, exp


class Forest(namedtuple("Forest", "order parent side n_states values offset")):
    """A forest of pairs with scores.

    order: variables, roots first. parent: -1 at roots. side: which end of the pair with its parent a variable is.
    offset: where the scores of that pair, C-ordered, begin in `values`.
    """


class PairFactors(namedtuple("PairFactors", "psi at top")):
    """psi = exp(scores - top) of the pairs of variables with their parents, as [child][parent] tables.

    at: where the table of each variable begins; pairs that share scores and side may share it. top: per variable.
    """


@njit(allocates=True, **KERNEL)
def largest_range(forest, factors, singles):
    """Fill `factors.top`; the largest log-range that a variable's scores and its pairs' tables can add up to.

    Infinite where some score is -inf.
    """
    total = np.zeros(singles.shape[0])
    known, top, spread = -1, 0.0, 0.0
    for i in range(singles.shape[0]):
        p, n = forest.parent[i], forest.n_states[i]
        total[i] += _range_of(singles[i, :n])[1]
        if p >= 0:
            if forest.offset[i] != known:
                known = forest.offset[i]
                top, spread = _range_of(forest.values[known : known + n * forest.n_states[p]])
            factors.top[i] = top
            total[i] += spread
            total[p] += spread
    return np.max(total)


@njit(inline="always", **KERNEL)
def _range_of(values):
    """The largest value, and how far it is above the smallest."""
    high, low = values[0], values[0]
    for k in range(values.size):
        high, low = max(high, values[k]), min(low, values[k])
    return high, high - low


@njit(allocates=True, **KERNEL)
def fill_psi(forest, factors):
    """psi of every pair, once where it is shared."""
    done = np.zeros(factors.psi.size, dtype=np.bool_)
    for i in range(forest.parent.size):
        p, at = forest.parent[i], factors.at[i]
        if p < 0 or done[at]:
            continue
        done[at] = True
        n, width = forest.n_states[i], forest.n_states[p]
        entries = forest.values[forest.offset[i] : forest.offset[i] + n * width]
        out = factors.psi[at : at + n * width]
        if forest.side[i] == 0:
            for k in range(n * width):
                out[k] = exp(entries[k] - factors.top[i])
        else:
            for b in range(n):
                for a in range(width):
                    out[b * width + a] = exp(entries[a * n + b] - factors.top[i])


@njit(allocates=True, **KERNEL)
def add_tables(forest, factors, d_psi, out):
    """Add psi times d_psi, [child][parent], to cotangents of the scores, once where it is shared."""
    done = np.zeros(factors.psi.size, dtype=np.bool_)
    for i in range(forest.parent.size):
        p, at = forest.parent[i], factors.at[i]
        if p < 0 or done[at]:
            continue
        done[at] = True
        n, width, first = forest.n_states[i], forest.n_states[p], forest.offset[i]
        for b in range(n):
            for a in range(width):
                k = at + b * width + a
                to = first + (b * width + a if forest.side[i] == 0 else a * n + b)
                out[to] += factors.psi[k] * d_psi[k]


@njit(**SUMS)
def upward(forest, factors, singles, up, message):
    """Fill `up` and the messages to parents; returns log Z."""
    n_states, value = forest.n_states, 0.0
    for i in range(up.shape[0]):
        peak = -np.inf
        for a in range(n_states[i]):
            peak = max(peak, singles[i, a])
        for a in range(n_states[i]):
            up[i, a] = exp(singles[i, a] - peak)
        value += peak
    scale = 1.0
    for k in range(up.shape[0] - 1, -1, -1):
        i = forest.order[k]
        n = n_states[i]
        total = 0.0
        for b in range(n):
            total += up[i, b]
        for b in range(n):
            up[i, b] /= total
        scale *= total
        if not 1e-100 < scale < 1e100:  # one logarithm for many variables
            value += np.log(scale)
            scale = 1.0
        if forest.parent[i] >= 0:
            _send(forest, factors, i, up, message)
            value += factors.top[i]
    return value + np.log(scale)


@njit(inline="always", **SUMS)
def _send(forest, factors, i, up, message):
    """The message of variable i to its parent, multiplied to the parent's `up`."""
    p = forest.parent[i]
    n, width = forest.n_states[i], forest.n_states[p]
    psi = factors.psi[factors.at[i] : factors.at[i] + n * width].reshape(n, width)
    m, above = message[i], up[p]
    for a in range(width):
        m[a] = 0.0
    for b in range(n):
        weight = up[i, b]
        for a in range(width):
            m[a] += psi[b, a] * weight
    for a in range(width):
        above[a] *= m[a]


@njit(allocates=True, **SUMS)
def downward(forest, factors, up, message, mu, d_psi):
    """Marginals of variables into `mu`; adds up(b) r(a), pair marginals over psi, to d_psi."""
    ratio, sums = np.empty(mu.shape[1]), np.empty(mu.shape[1])
    for k in range(up.shape[0]):
        i = forest.order[k]
        p, n = forest.parent[i], forest.n_states[i]
        if p < 0:
            for b in range(n):
                mu[i, b] = up[i, b]
            continue
        width = forest.n_states[p]
        psi = factors.psi[factors.at[i] : factors.at[i] + n * width].reshape(n, width)
        part = d_psi[factors.at[i] : factors.at[i] + n * width].reshape(n, width)
        for a in range(width):
            ratio[a] = mu[p, a] / message[i, a]
        for b in range(n):
            total, weight = 0.0, up[i, b]
            for a in range(width):
                total += psi[b, a] * ratio[a]
                part[b, a] += weight * ratio[a]
            sums[b] = total
        for b in range(n):
            mu[i, b] = up[i, b] * sums[b]


@njit(**KERNEL)
def descend(order, parent, parent_pair, side, scores, lam, root, noise, labels):
    """labels(i) = argmax over a of theta_e(a, label of the parent) + lam_e,i(a) + noise(i, a), roots first.

    parent_pair, side: the pair that joins a variable to its parent and which end of it the variable is. root
    (n, states): scores used at roots. With Gumbel noise this draws an exact sample.
    """
    for i in order:
        best = -np.inf
        for a in range(root.shape[1]):
            if parent[i] < 0:
                v = root[i, a]
            else:
                e, b = parent_pair[i], labels[parent[i]]
                n0, n1 = scores.shapes[e, 0], scores.shapes[e, 1]
                if a >= (n0 if side[i] == 0 else n1):
                    break
                first, second = (a, b) if side[i] == 0 else (b, a)
                v = scores.values[scores.offset[e] + first * n1 + second] + lam[e, side[i], a]
            v += noise[i, a]
            if v > best:
                best, labels[i] = v, a


@njit(**KERNEL)
def best_labels(forest, up, message, labels):
    """The best labelling by max-product, leaves to roots and back; its score, -inf where all are forbidden.

    up (n, states): scores of the variables, overwritten. message (states,): work space. The smallest state wins ties.
    """
    values, n_states = forest.values, forest.n_states
    for k in range(forest.order.size - 1, -1, -1):
        i = forest.order[k]
        p, at = forest.parent[i], forest.offset[i]
        if p < 0:
            continue
        n, width = n_states[i], n_states[p]
        message[:width] = -np.inf
        if forest.side[i] == 0:
            for b in range(n):  # the parent's states lie side by side: no sum of this loop waits for another
                for a in range(width):
                    v = up[i, b] + values[at + b * width + a]
                    message[a] = v if v > message[a] else message[a]
        else:
            for a in range(width):
                for b in range(n):
                    message[a] = max(message[a], up[i, b] + values[at + a * n + b])
        for a in range(width):
            up[p, a] += message[a]
    total = 0.0
    for i in forest.order:
        p, best = forest.parent[i], -np.inf
        labels[i] = 0
        for b in range(n_states[i]):
            v = up[i, b] if p < 0 else up[i, b] + values[_entry(forest, i, b, p, labels[p])]
            if v > best:
                best, labels[i] = v, b
        total += best if p < 0 else 0.0
    return total


@njit(inline="always", **KERNEL)
def _entry(forest, i, b, p, a):
    """Where the score of variable i in state b beside its parent p in state a stands."""
    return forest.offset[i] + (b * forest.n_states[p] + a if forest.side[i] == 0 else a * forest.n_states[i] + b)


@njit(inline="always", inner=True, **KERNEL)
def offer(values, more, x, best, first, second):
    """Insert values + more, in descending order, into the full descending list `best`, with origins (x, rank)."""
    k = best.size
    for rank in range(values.size):
        v = values[rank] + more
        if not v > best[k - 1]:
            return
        at = k - 1
        while at > 0 and best[at - 1] < v:
            best[at], first[at], second[at] = best[at - 1], first[at - 1], second[at - 1]
            at -= 1
        best[at], first[at], second[at] = v, x, rank


@njit(**KERNEL)
def _merge_lists(forest, up, state, rank, own, below, message, merged):
    """The upward pass of `k_best`: fill the lists and the origins of their entries."""
    order, parent, n_states, n, k = forest.order, forest.parent, forest.n_states, up.shape[0] - 1, merged.size
    for at in range(n - 1, -1, -1):
        i = order[at]
        p = parent[i] if parent[i] >= 0 else n
        for a in range(n_states[p] if p < n else 1):
            message[:] = -np.inf
            merged[:] = -np.inf
            row_state, row_rank, row_own, row_below = state[i, a], rank[i, a], own[i, a], below[i, a]
            for b in range(n_states[i]):
                score = forest.values[_entry(forest, i, b, p, a)] if p < n else 0.0
                offer(up[i, b], score, b, message, row_state, row_rank)
            for s in range(k):  # what is at rank (s + 1)(t + 1) or later cannot be among the first k
                offer(message[: k // (s + 1)], up[p, a, s], s, merged, row_own, row_below)
            for s in range(k):
                up[p, a, s] = merged[s]


@njit(allocates=True, **KERNEL)
def k_best(forest, singles, labels, scores):
    """Fill labels (k, n_variables) and scores (k), best first; -inf from where there are no more labellings.

    Every state of a variable keeps the k best scores of the subtree below it. A child's lists, with the pair's score
    added, are merged into its parent's one child after another; roots merge into a variable of one state above them.
    singles (n, states): scores of the variables. Costs O(n L^2 k^2) at worst.
    """
    order, parent = forest.order, forest.parent
    k, n = labels.shape
    width = singles.shape[1]
    up = np.full((n + 1, width, k), -np.inf)
    up[:n, :, 0] = singles
    up[n, 0, 0] = 0.0
    # where each entry came from: of a child's list its state and rank there, of a merged list the ranks in both
    state, rank = np.zeros((n, width, k), dtype=np.int32), np.zeros((n, width, k), dtype=np.int32)
    own, below = np.zeros((n, width, k), dtype=np.int32), np.zeros((n, width, k), dtype=np.int32)
    message, merged = np.empty(k), np.empty(k)
    _merge_lists(forest, up, state, rank, own, below, message, merged)
    scores[:] = up[n, 0]
    ranks = np.empty(n + 1, dtype=np.int64)
    for row in range(k):
        ranks[n] = row
        for i in order:  # the reverse of the order in which children were merged
            p = parent[i] if parent[i] >= 0 else n
            a = labels[row, p] if p < n else 0
            r = ranks[p]
            ranks[p] = own[i, a, r]
            labels[row, i], ranks[i] = state[i, a, below[i, a, r]], rank[i, a, below[i, a, r]]


@njit(allocates=True, **KERNEL)
def induced_forest(regions, order, inside):
    """Mark variables, in this order, unless they would close a loop or be third in a region.

    inside: (n_variables,) booleans, output. What regions the marked variables share, given all others, are pairs that
    form a forest; parallel pairs count once. Costs a pass over the regions.
    """
    inside[:] = False
    parent = np.arange(order.size)
    # of neighbours and of trees: the last variable that met them
    met, met_tree = np.full(order.size, -1), np.full(order.size, -1)
    for v in order:
        fits = True
        for k in range(regions.member_ptr[v], regions.member_ptr[v + 1]):
            r = regions.member[k]
            among = 0
            for j in regions.scope[regions.scope_ptr[r] : regions.scope_ptr[r + 1]]:
                if inside[j]:
                    among += 1
                    if met[j] != v:
                        met[j] = v
                        tree = root(parent, j)
                        fits &= met_tree[tree] != v
                        met_tree[tree] = v
            fits &= among < 2
            if not fits:
                break
        if not fits:
            continue
        inside[v] = True
        for k in range(regions.member_ptr[v], regions.member_ptr[v + 1]):
            r = regions.member[k]
            for j in regions.scope[regions.scope_ptr[r] : regions.scope_ptr[r + 1]]:
                if inside[j]:
                    parent[root(parent, j)] = root(parent, v)

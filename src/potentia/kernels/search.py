"""Branch and bound over labellings of a directed network [LMSBN Algorithm 2], and sums over them.

A labelling y of signs has the score of label i given the labels before it
    g_i = base_i + sum_{j < i} coupling_ij y_j + sum over products t of label i: weight_t prod_{j in t} y_j,
z_i = y_i g_i, and the loss sum_i [1 - z_i]_+. Labels are numbered in the network's order. The search is depth first and
takes the sign with z_i > 0 first; a partial labelling is left when its loss reaches the best loss found. (As printed,
line 12 of Algorithm 2 goes back before the second branch is tried, and misses the optimum.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .linear_losses import product
from .machine.jit import njit
from .vecmath import KERNEL, SUMS, exp


class NetworkTerms(NamedTuple):
    """How labels depend on those before them.

    coupling (K, K): row i, columns j < i. Products of label i are term_ptr[i]..term_ptr[i + 1]; product t has
    weight[t] and the labels members[member_ptr[t]..member_ptr[t + 1]].
    """

    coupling: Any
    term_ptr: Any
    weight: Any
    member_ptr: Any
    members: Any


@njit(inline="always", **SUMS)
def _score(links, base, row, i, y):
    """The score g_i of label i given the labels set so far."""
    total = 0.0
    for j in range(i):
        total += links.coupling[i, j] * y[j]
    for t in range(links.term_ptr[i], links.term_ptr[i + 1]):
        product = links.weight[t]
        for m in range(links.member_ptr[t], links.member_ptr[t + 1]):
            product *= y[links.members[m]]
        total += product
    return base[row, i] + total


@njit(**SUMS)
def losses(links, base, first, last, labels, out):
    """out[row] = loss of the labelling labels[row], for rows first..last."""
    K = base.shape[1]
    for row in range(first, last):
        total = 0.0
        for i in range(K):
            total += max(0.0, 1.0 - labels[row, i] * _score(links, base, row, i, labels[row]))
        out[row] = total


@njit(inner=True, **SUMS)
def scores(links, base, labels, first, last, out):
    """out[row, i] = g_i given the labels before i in labels[row]."""
    for row in range(first, last):
        for i in range(base.shape[1]):
            out[row, i] = _score(links, base, row, i, labels[row])


@njit(**SUMS)
def greedy(links, base, first, last, labels, loss):
    """The first descent of the search: every label takes the sign of its score, -1 at zero."""
    for row in range(first, last):
        loss[row] = _descend(links, base, row, labels[row])


@njit(inline="always", **SUMS)
def _descend(links, base, row, y):
    """Greedy signs into y; their loss."""
    total = 0.0
    for i in range(y.size):
        g = _score(links, base, row, i, y)
        y[i] = 1.0 if g > 0.0 else -1.0
        total += max(0.0, 1.0 - y[i] * g)
    return total


@njit(allocates=True, **SUMS)
def branch_and_bound(links, base, first, last, bound, budget, labels, loss, states, optimal):
    """The k = labels.shape[1] best labellings of rows first..last among those of loss below `bound`.

    labels (n, k, K) and loss (n, k) ascend in loss; the first found wins a tie. Where fewer than k are below the
    bound, the rest has loss infinity; where none is, place 0 has the greedy labelling. states (n): partial labellings
    visited, of which at most `budget`. optimal (n): the search was completed and found something below the bound.
    """
    K = base.shape[1]
    y, sums, z, second = np.empty(K), np.zeros(K + 1), np.empty(K), np.empty(K, dtype=np.bool_)
    for row in range(first, last):
        states[row], done = _search(links, base, row, -1, bound, budget, y, sums, z, second, labels[row], loss[row])
        optimal[row] = done and loss[row, 0] < np.inf
        if loss[row, 0] == np.inf:
            loss[row, 0] = _descend(links, base, row, labels[row, 0])


@njit(allocates=True, **SUMS)
def other_losses(links, base, first, last, budget, best, out):
    """out[row, i] = least loss of a labelling that has label i other than best[row, i], an optimum's.

    Where the budget of states (at least K) ends a search, the loss is the least that was seen.
    """
    K = base.shape[1]
    y, sums, z, second = np.empty(K), np.zeros(K + 1), np.empty(K), np.empty(K, dtype=np.bool_)
    labels, loss = np.empty((1, K)), np.empty(1)
    for row in range(first, last):
        for i in range(K):
            y[i] = -best[row, i]
            _search(links, base, row, i, np.inf, budget, y, sums, z, second, labels, loss)
            out[row, i] = loss[0]


@njit(**SUMS)
def _search(links, base, row, fixed, bound, budget, y, sums, z, second, labels, loss):
    """Depth first over the labels other than `fixed` (-1: none); the states visited, and whether nothing was left out.

    sums[i]: loss of labels 0..i-1. z[i]: y_i g_i of the first branch. second[i]: the second branch is under way.
    """
    K, limit, count = y.size, bound, 0
    for b in range(loss.size):
        loss[b] = np.inf
    i, down = 0, True
    while i >= 0:
        if i == K:
            limit = min(bound, _keep(y, sums[K], labels, loss))
            i, down = i - 1, False
            continue
        if down:
            g = _score(links, base, row, i, y)
            if i != fixed:
                y[i] = 1.0 if g > 0.0 else -1.0
            z[i], second[i] = y[i] * g, i == fixed
        elif second[i]:
            i -= 1
            continue
        else:
            y[i], z[i], second[i] = -y[i], -z[i], True
        sums[i + 1] = sums[i] + max(0.0, 1.0 - z[i])
        if sums[i + 1] >= limit:
            # the second branch costs more still, so where the first is too dear both are
            i, down = i - 1, False
            continue
        if count >= budget:
            return count, False
        count += 1
        i, down = i + 1, True
    return count, True


@njit(inline="always", **SUMS)
def _keep(y, total, labels, loss):
    """Put a labelling in its place among the best; the loss that a further one must stay below."""
    k = loss.size
    at = k - 1
    while at > 0 and loss[at - 1] > total:
        loss[at] = loss[at - 1]
        for i in range(y.size):
            labels[at, i] = labels[at - 1, i]
        at -= 1
    loss[at] = total
    for i in range(y.size):
        labels[at, i] = y[i]
    return loss[k - 1]


@njit(allocates=True, **SUMS)
def exact_marginals(links, base, first, last, out):
    """out[row, i] = P(y_i = +1) of the sigmoid network prod_i 1 / (1 + exp(-z_i)), by a walk over all labellings."""
    K = base.shape[1]
    y, mass, up, second = np.empty(K), np.ones(K + 1), np.empty(K), np.empty(K, dtype=np.bool_)
    for row in range(first, last):
        for i in range(K):
            out[row, i] = 0.0
        i, down = 0, True
        while i >= 0:
            if i == K:
                i, down = i - 1, False
            elif down:
                up[i] = _logistic(_score(links, base, row, i, y))
                y[i], second[i] = 1.0, False
                mass[i + 1] = mass[i] * up[i]
                out[row, i] += mass[i + 1]
                i += 1
            elif second[i]:
                i -= 1
            else:
                y[i], second[i] = -1.0, True
                mass[i + 1] = mass[i] * (1.0 - up[i])
                i, down = i + 1, True


@njit(allocates=True, **SUMS)
def sampled_marginals(links, base, first, last, samples, seed, mean, square):
    """Means over ancestral samples of P(y_i = +1 | the sampled labels before i), and of its square.

    Row r draws from its own stream, so results do not depend on how rows are shared out.
    """
    K = base.shape[1]
    y = np.empty(K)
    for row in range(first, last):
        state = np.uint64(seed) + np.uint64(row) * np.uint64(0xD1342543DE82EF95)
        for i in range(K):
            mean[row, i], square[row, i] = 0.0, 0.0
        for _ in range(samples):
            for i in range(K):
                up = _logistic(_score(links, base, row, i, y))
                mean[row, i] += up / samples
                square[row, i] += up * up / samples
                state += np.uint64(0x9E3779B97F4A7C15)
                y[i] = 1.0 if _uniform(state) < up else -1.0


@njit(inline="always", **SUMS)
def _uniform(state):
    """A number in [0, 1) from a counter, its bits mixed [splitmix64]."""
    x = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.float64((x ^ (x >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53


@njit(inline="always", **SUMS)
def _logistic(g):
    """1 / (1 + exp(-g)) without overflow."""
    return 1.0 / (1.0 + exp(min(-g, 700.0)))


#: Losses closer than this are equal; then the larger sum of z decides.
_TIE = 1e-12


@njit(inner=True, **KERNEL)
def start(cliques, v, s, y, z):
    """All scores z (K) of a labelling y."""
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
    """The sum over labels of the hinge losses [1 - y_i z_i]_+."""
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

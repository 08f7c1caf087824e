"""Branch and bound over labellings of a directed network [LMSBN Algorithm 2], and sums over them.

A labelling y of signs has the score of label i given the labels before it
    g_i = base_i + sum_{j < i} coupling_ij y_j + sum over products t of label i: weight_t prod_{j in t} y_j,
z_i = y_i g_i, and the loss sum_i [1 - z_i]_+. Labels are numbered in the network's order. The search is depth first and
takes the sign with z_i > 0 first; a partial labelling is left when its loss reaches the best loss found. (As printed,
line 12 of Algorithm 2 goes back before the second branch is tried, and misses the optimum.)

Constraints are rules on how many of their labels have the sign that counts. A partial labelling is left as soon as no
allowed number can be reached. A label that rules force, given the labels before it, has no loss but for EXCESS. Labels
may be clamped to a sign. The loss of a label is [1 - z]_+ (HINGE), log(1 + exp(-z)) (LOGISTIC: minus the
log-probability of a labelling) or [-z]_+ (EXCESS: half of what a labelling is below the largest sum of y_i g_i).
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from .linear_losses import product
from .machine.jit import njit
from .vecmath import KERNEL, SUMS, exp, log


class NetworkTerms(namedtuple("NetworkTerms", "coupling term_ptr weight member_ptr members")):
    """How labels depend on those before them.

    coupling (K, K): row i, columns j < i. Products of label i are term_ptr[i]..term_ptr[i + 1]; product t has
    weight[t] and the labels members[member_ptr[t]..member_ptr[t + 1]].
    """


#: Losses of labels.
HINGE, LOGISTIC, EXCESS = 0, 1, 2


class Rules(namedtuple("Rules", "label_ptr rule on size reach_ptr reach")):
    """Constraints on the number of a rule's labels whose sign is the one that counts for them.

    Label i is in the rules rule[label_ptr[i]..label_ptr[i + 1]], with the signs `on`. size (R): labels of each rule.
    reach[reach_ptr[r] + c]: the least allowed number that is at least c = 0..size + 1; size + 1 if there is none.
    """


@njit(inner=True, **KERNEL)
def allowed(rules, i, sign, count, left):
    """Whether label i may have a sign, given how many labels of each rule count so far and how many are left."""
    for s in range(rules.label_ptr[i], rules.label_ptr[i + 1]):
        r = rules.rule[s]
        c = count[r] + (1 if rules.on[s] == sign else 0)
        if rules.reach[rules.reach_ptr[r] + c] > c + left[r] - 1:
            return False
    return True


@njit(inner=True, **KERNEL)
def enter(rules, i, sign, step, count, left):
    """Count the sign of label i in its rules (step 1), or take it back (step -1)."""
    for s in range(rules.label_ptr[i], rules.label_ptr[i + 1]):
        r = rules.rule[s]
        left[r] -= step
        if rules.on[s] == sign:
            count[r] += step


@njit(inner=True, **KERNEL)
def logistic_loss(z):
    """log(1 + exp(-z))."""
    return max(0.0, -z) + log(1.0 + exp(-abs(z)))


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
def branch_and_bound(links, rules, base, clamp, first, last, bound, budget, kind, labels, loss, states, optimal):
    """The k = labels.shape[1] best labellings of rows first..last among those of loss below `bound` (n).

    clamp (n, K): signs that labels must have, 0 if free; or no rows. labels (n, k, K) and loss (n, k) ascend in loss;
    the first found wins a tie. Where fewer than k are below the bound, the rest has loss infinity; where none is, place
    0 has the greedy labelling, or with rules or clamps the best of any loss if the budget is enough for one.
    states (n): partial labellings visited, of which at most `budget`. optimal (n): the search was completed and found
    something below the bound.
    """
    K = base.shape[1]
    work = np.zeros((4, K + 1))
    flags, tally, free = np.empty((2, K), dtype=np.bool_), np.empty((2, rules.size.size), dtype=np.int64), np.zeros(K)
    for row in range(first, last):
        fixed = clamp[row] if clamp.shape[0] > 0 else free
        out = labels[row], loss[row]
        count, done = _search(links, rules, base, row, fixed, bound[row], budget, kind, work, flags, tally, out)
        states[row], optimal[row] = count, done and loss[row, 0] < np.inf
        if loss[row, 0] == np.inf:
            if rules.size.size > 0 or clamp.shape[0] > 0:
                _search(links, rules, base, row, fixed, np.inf, budget, kind, work, flags, tally, out)
            else:
                loss[row, 0] = _descend(links, base, row, labels[row, 0])


@njit(allocates=True, **SUMS)
def other_losses(links, rules, base, first, last, budget, best, out):
    """out[row, i] = least loss of a labelling that has label i other than best[row, i], an optimum's.

    Where the budget of states (at least K) ends a search, the loss is the least that was seen.
    """
    K = base.shape[1]
    work = np.zeros((4, K + 1))
    flags, tally, fixed = np.empty((2, K), dtype=np.bool_), np.empty((2, rules.size.size), dtype=np.int64), np.zeros(K)
    labels, loss = np.empty((1, K)), np.empty(1)
    for row in range(first, last):
        for i in range(K):
            fixed[i] = -best[row, i]
            _search(links, rules, base, row, fixed, np.inf, budget, HINGE, work, flags, tally, (labels, loss))
            fixed[i] = 0.0
            out[row, i] = loss[0]


@njit(**SUMS)
def _search(links, rules, base, row, fixed, bound, budget, kind, work, flags, tally, out):
    """Depth first over labels; the states visited, and whether nothing was left out.

    sums[i]: loss of labels 0..i-1. z[i]: y_i g_i of the first branch. second[i]: the second branch is under way, or
    there is none. forced[i]: rules leave one sign.
    """
    y, sums, z = work[0], work[1], work[2]
    second, forced, (count, left), (labels, loss) = flags[0], flags[1], (tally[0], tally[1]), out
    K, limit, states = base.shape[1], bound, 0
    for b in range(loss.size):
        loss[b] = np.inf
    for r in range(count.size):
        count[r], left[r] = 0, rules.size[r]
    i, down = 0, True
    while i >= 0:
        if i == K:
            limit = min(bound, _keep(y, sums[K], labels, loss))
            i, down = i - 1, False
            continue
        if down:
            g = _score(links, base, row, i, y)
            up, low = allowed(rules, i, 1.0, count, left), allowed(rules, i, -1.0, count, left)
            forced[i] = up != low
            up, low = up and fixed[i] >= 0.0, low and fixed[i] <= 0.0
            if not (up or low):
                i, down = i - 1, False
                continue
            y[i] = 1.0 if (up and g > 0.0) or not low else -1.0
            z[i], second[i] = y[i] * g, not (up and low)
        else:
            enter(rules, i, y[i], -1, count, left)
            if second[i]:
                i -= 1
                continue
            y[i], z[i], second[i] = -y[i], -z[i], True
        enter(rules, i, y[i], 1, count, left)
        own = 0.0
        if not forced[i] or kind == EXCESS:
            own = logistic_loss(z[i]) if kind == LOGISTIC else max(0.0, (1.0 if kind == HINGE else 0.0) - z[i])
        sums[i + 1] = sums[i] + own
        if sums[i + 1] >= limit:
            # the second branch costs more still, so where the first is too dear both are
            enter(rules, i, y[i], -1, count, left)
            i, down = i - 1, False
            continue
        if states >= budget:
            return states, False
        states += 1
        i, down = i + 1, True
    return states, True


@njit(inline="always", **SUMS)
def _keep(y, total, labels, loss):
    """Put a labelling in its place among the best; the loss that a further one must stay below."""
    k, K = loss.size, labels.shape[1]
    at = k - 1
    while at > 0 and loss[at - 1] > total:
        loss[at] = loss[at - 1]
        for i in range(K):
            labels[at, i] = labels[at - 1, i]
        at -= 1
    loss[at] = total
    for i in range(K):
        labels[at, i] = y[i]
    return loss[k - 1]


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


@njit(inner=True, **KERNEL)
def broken(rules, clamp, row, i, y, count):
    """How many more rules and clamps are violated once y_i, just turned, is counted in its rules."""
    more = 0
    if clamp.shape[0] > 0 and clamp[row, i] != 0.0:
        more += 1 if y[i] != clamp[row, i] else -1
    for s in range(rules.label_ptr[i], rules.label_ptr[i + 1]):
        r = rules.rule[s]
        before = rules.reach[rules.reach_ptr[r] + count[r]] != count[r]
        count[r] += 1 if rules.on[s] == y[i] else -1
        after = rules.reach[rules.reach_ptr[r] + count[r]] != count[r]
        more += (1 if after else 0) - (1 if before else 0)
    return more


@njit(inner=True, **KERNEL)
def begin(rules, clamp, row, y, count):
    """Count the signs of a labelling in its rules; how many rules and clamps it violates."""
    bad = 0
    count[:] = 0
    for i in range(y.size):
        if clamp.shape[0] > 0 and clamp[row, i] != 0.0 and y[i] != clamp[row, i]:
            bad += 1
        for s in range(rules.label_ptr[i], rules.label_ptr[i + 1]):
            if rules.on[s] == y[i]:
                count[rules.rule[s]] += 1
    for r in range(count.size):
        if rules.reach[rules.reach_ptr[r] + count[r]] != count[r]:
            bad += 1
    return bad


@njit(allocates=True, **KERNEL)
def enumerate_rows(cliques, v, scores, rules, clamp, first, last, labels, loss):
    """The best of all 2^K labellings of rows first .. last - 1, by a walk that flips one label at a time.

    Labellings that violate rules or clamps (n, K; or no rows) do not count; where all do, the loss is infinite.
    """
    K = scores.shape[1]
    y, z, count = np.empty(K), np.empty(K), np.empty(rules.size.size, dtype=np.int64)
    for row in range(first, last):
        y[:] = -1.0
        start(cliques, v, scores[row], y, z)
        bad = begin(rules, clamp, row, y, count)
        best, most = (loss_of(z), z.sum()) if bad == 0 else (np.inf, -np.inf)
        labels[row] = y
        for step in range(1, 1 << K):
            i = 0
            while (step >> i) & 1 == 0:
                i += 1
            flip(cliques, v, scores[row], i, y, z)
            bad += broken(rules, clamp, row, i, y, count)
            if bad > 0:
                continue
            found = loss_of(z)
            if found < best - _TIE or (found <= best + _TIE and z.sum() > most):
                best, most = min(found, best) if found <= best + _TIE else found, z.sum()
                labels[row] = y
        if best == np.inf:
            loss[row] = best
            continue
        start(cliques, v, scores[row], labels[row], z)
        loss[row] = loss_of(z)


@njit(allocates=True, **KERNEL)
def improve_rows(cliques, v, scores, rules, clamp, first, last, labels, loss):
    """Flip the label of rows first .. last - 1 that lowers the loss most until none does; none that breaks a rule."""
    K = scores.shape[1]
    z, count = np.empty(K), np.empty(rules.size.size, dtype=np.int64)
    for row in range(first, last):
        y, s = labels[row], scores[row]
        start(cliques, v, s, y, z)
        begin(rules, clamp, row, y, count)
        best = loss_of(z)
        while True:
            which = -1
            for i in range(K):
                flip(cliques, v, s, i, y, z)
                found, bad = loss_of(z), broken(rules, clamp, row, i, y, count)
                flip(cliques, v, s, i, y, z)
                broken(rules, clamp, row, i, y, count)
                if bad <= 0 and found < best - _TIE:
                    best, which = found, i
            if which < 0:
                break
            flip(cliques, v, s, which, y, z)
            broken(rules, clamp, row, which, y, count)
        loss[row] = best


@njit(allocates=True, **KERNEL)
def flip_costs(cliques, v, scores, first, last, labels, cost):
    """cost (n, K): what turning each label alone adds to the loss."""
    K = scores.shape[1]
    y, z = np.empty(K), np.empty(K)
    for row in range(first, last):
        y[:] = labels[row]
        start(cliques, v, scores[row], y, z)
        now = loss_of(z)
        for i in range(K):
            flip(cliques, v, scores[row], i, y, z)
            cost[row, i] = loss_of(z) - now
            flip(cliques, v, scores[row], i, y, z)

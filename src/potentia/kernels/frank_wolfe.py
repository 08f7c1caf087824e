"""Block-coordinate Frank-Wolfe on the dual of the structural SVM, with the dual kept as marginals.

Examples own consecutive *rows*. Row g has features (CSR) that multiply a table of parameters of width[g] columns;
its scores lie at at[g] : at[g] + width[g] of flat arrays. An example's dual state is not a vector of parameters
but m, a convex combination of labellings' indicators in the layout of the scores, so that

    eta w = 1/n sum_g x_g (t_g - m_g)'        t: indicators of the true labelling
    gap_k = 1/n ( sum_g (s - m)_g . theta_g + Delta(s) - Delta(m) )     s: answer of the oracle

and memory grows with scores, not with examples times parameters. Regions with equal features share a row, whose m
is the sum over them.

`chain_pass` and `chain_answers` are the oracle on chains: loss-augmented Viterbi.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from .forest import Forest, best_labels
from .linear_losses import LANE_SUMS
from .machine.jit import njit
from .vecmath import KERNEL


class Design(namedtuple("Design", "row_ptr feature_ptr base value width at metric truth")):
    """row_ptr (examples + 1), feature_ptr (rows + 1): CSR. base: where the feature's parameters begin, value: the
    feature, both per stored feature. width, at (rows). metric (parameters): 1 / (eta n), which turns sums of
    features into parameters. truth: t, flat.
    """


class MarginDual(namedtuple("MarginDual", "w m loss work")):
    """w (parameters); m flat like the scores; loss (examples): Delta(m). work (parameters): zeros between steps."""


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


@njit(**LANE_SUMS)
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


#: Anonymous weight below this is rounding.
_DUST = 1e-10


class WorkingSet(namedtuple("WorkingSet", "region_ptr entry weight loss")):
    """region_ptr (examples + 1). entry: the flat entry of each region under each labelling, those of slot j of example
    k from slots * region_ptr[k] + j * regions on; the first is -1 in an empty slot. weight, loss (examples, slots): the
    labellings' shares of m, and their Delta.
    """


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
    """A pairwise step towards labelling `best` that takes weight from what no labelling of the set accounts for."""
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


@njit(allocates=True, **KERNEL)
def maximise_on_simplex(linear, quadratic, x, tol, limit):
    """Raise linear . x - x' quadratic x / 2 over x >= 0, sum x = 1, from the feasible x given.

    Each step moves weight between the two entries that violate optimality most, exactly. Stops when the largest
    slope exceeds the smallest slope of a positive entry by at most tol, so that x is within tol of the maximum.
    """
    n = x.size
    slope = linear.copy()
    for i in range(n):
        if x[i] != 0.0:
            for j in range(n):
                slope[j] -= quadratic[i, j] * x[i]
    for _ in range(limit):
        up, down = 0, -1
        for i in range(n):
            if slope[i] > slope[up]:
                up = i
            if x[i] > 0.0 and (down < 0 or slope[i] < slope[down]):
                down = i
        rise = slope[up] - slope[down]
        if rise <= tol:
            break
        curvature = quadratic[up, up] + quadratic[down, down] - 2.0 * quadratic[up, down]
        move = x[down] if rise >= curvature * x[down] else rise / curvature
        x[up] += move
        x[down] = 0.0 if move == x[down] else x[down] - move
        for i in range(n):
            slope[i] -= move * (quadratic[up, i] - quadratic[down, i])


class MarginChains(namedtuple("MarginChains", "variable_ptr node_at pair_at node_delta pair_delta")):
    """Examples that are chains of L states: variable_ptr (examples + 1), node_at (variables), pair_at (variables):
    where scores lie. node_delta (variables, L), pair_delta (variables, L * L): Delta's tables, of no rows if zero.
    """


class _Work(namedtuple("_Work", "theta d node pair message chain labels answer")):
    """Space for the longest example: scores, a direction, augmented scores, a message, labels.

    chain: a forest in which the parent of a variable is the next one, so that the root is the last.
    """


@njit(allocates=True, **KERNEL)
def chain_pass(design, dual, ws, chains, n_states, order):
    """Loss-augmented Viterbi and a pairwise step for every example of `order`, one after another."""
    work = _workspace(design, chains, n_states)
    for k in order:
        fill_scores(design, dual.w, design.row_ptr[k], design.row_ptr[k + 1], work.theta)
        loss = _answer(design, chains, k, work)
        remember(ws, k, work.answer, loss)
        visit(design, dual, ws, k, work.theta, work.d)


@njit(allocates=True, **KERNEL)
def chain_answers(design, w, chains, n_states, s, losses):
    """Indicators s (flat, all examples) of the oracle's answers and their Delta (examples) at fixed parameters."""
    work = _workspace(design, chains, n_states)
    s[:] = 0.0
    for k in range(design.row_ptr.size - 1):
        fill_scores(design, w, design.row_ptr[k], design.row_ptr[k + 1], work.theta)
        losses[k] = _answer(design, chains, k, work)
        for r in range(2 * (chains.variable_ptr[k + 1] - chains.variable_ptr[k]) - 1):
            s[work.answer[r]] += 1.0


@njit(allocates=True, **KERNEL)
def _workspace(design, chains, L):
    """Scratch for the longest chain."""
    most = most_entries(design, 0, design.row_ptr.size - 1)
    longest = 1
    for k in range(chains.variable_ptr.size - 1):
        longest = max(longest, chains.variable_ptr[k + 1] - chains.variable_ptr[k])
    own_pairs = longest if chains.pair_delta.shape[0] > 0 else 0
    theta, pair = np.empty(most), np.empty(own_pairs * L * L)
    chain = Forest(
        order=np.arange(longest)[::-1].copy(), parent=np.empty(longest, dtype=np.int64),
        side=np.zeros(longest, dtype=np.int64), n_states=np.full(longest, L),
        values=pair if own_pairs > 0 else theta, offset=np.empty(longest, dtype=np.int64),
    )  # fmt: skip
    return _Work(
        theta=theta, d=np.empty(most), node=np.empty((longest, L)), pair=pair, message=np.empty(L), chain=chain,
        labels=np.empty(longest, dtype=np.int64), answer=np.empty(2 * longest, dtype=np.int64),
    )  # fmt: skip


@njit(**KERNEL)
def _answer(design, chains, k, work):
    """Entries of example k's best loss-augmented labelling into work.answer, variables first; returns its Delta."""
    first, T = chains.variable_ptr[k], chains.variable_ptr[k + 1] - chains.variable_ptr[k]
    start, L, chain = design.at[design.row_ptr[k]], work.message.size, work.chain
    for i in range(T):
        for c in range(L):
            work.node[i, c] = work.theta[chains.node_at[first + i] - start + c]
            if chains.node_delta.shape[0] > 0:
                work.node[i, c] += chains.node_delta[first + i, c]
        chain.offset[i] = chains.pair_at[first + i] - start
        chain.parent[i] = i + 1 if i + 1 < T else -1
    if work.pair.size > 0:
        for i in range(T - 1):
            for c in range(L * L):
                work.pair[i * L * L + c] = work.theta[chain.offset[i] + c] + chains.pair_delta[first + i, c]
            chain.offset[i] = i * L * L
    order = chain.order[chain.order.size - T :]
    forest = Forest(order, chain.parent, chain.side, chain.n_states, chain.values, chain.offset)
    best_labels(forest, work.node, work.message, work.labels)
    return _write(chains, first, T, L, work.labels, work.answer)


@njit(**KERNEL)
def _write(chains, first, T, L, labels, answer):
    """Write the flat entries of a chain's labels to `answer`; returns their Delta."""
    loss = 0.0
    for i in range(T):
        answer[i] = chains.node_at[first + i] + labels[i]
        if chains.node_delta.shape[0] > 0:
            loss += chains.node_delta[first + i, labels[i]]
    for i in range(T - 1):
        c = labels[i] * L + labels[i + 1]
        answer[T + i] = chains.pair_at[first + i] + c
        if chains.pair_delta.shape[0] > 0:
            loss += chains.pair_delta[first + i, c]
    return loss

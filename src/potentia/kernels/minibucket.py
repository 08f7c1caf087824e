"""Weighted mini-buckets: elimination whose buckets are split, moments of the pieces, and samples from them.

A *node* is a mini-bucket: the clique of one variable (its axis 0) and the sources it adds up. The arrays are those of
`potentia.kernels.elimination` with a row per node instead of one per bucket; nodes of one variable are neighbours,
`node_ptr` (variables + 1) says which they are. Node k of variable x and weight w sends, as in [Liu and Ihler 2011],

    m(rest) = w log sum_x exp(Theta(x, rest) / w),    the maximum over x where w = 0.
"""

from __future__ import annotations

import math

import numpy as np

from .elimination import LEAST, answer, clique_card, keep_scope, n_factors, open_bucket
from .machine.jit import njit
from .tables import next_block, reduce_axes
from .vecmath import KERNEL, exp, log

#: Change of a cost shift at most in one step.
_CHANGE = 4.0


@njit(allocates=True, **KERNEL)
def _beliefs(program, store, node, card, w, peak, table):
    """table = probabilities of the node's clique, from its sources and the answer from above; their mean logarithm."""
    blocks = open_bucket(program, store, node, card, True)
    block, rest, inverse, mean = blocks.rows.shape[1], table.size // card[0], 1.0 / w, 0.0
    for start in range(0, rest, block):
        next_block(store, blocks)
        for s in range(card[0]):
            row = blocks.rows[s]
            out = table[s * rest + start : s * rest + start + block]
            for j in range(block):
                power = min((row[j] - peak) * inverse, 1.0)
                out[j] = exp(power)
                mean += out[j] * max(power, LEAST)
    return mean


@njit(allocates=True, **KERNEL)
def send_moments(program, store, weight, peaks, shift, scratch, moments, above, entropy, singles):
    """Beliefs of all nodes, last first, after `send_up`; messages are overwritten. All weights differ from zero.

    A node's belief is the derivative of the bound by its scores. shift (nodes): the factor that holds a node's cost
    shift, or -1. scratch: twice the largest table. moments: in the layout of the store, the belief's marginals over
    the scopes of the shifts. entropy (nodes): the conditional entropy of the node's variable, the derivative by the
    weight. singles (variables, states): average of the nodes' marginals of their variable. above (nodes): scratch.
    """
    above[:] = 0.0
    singles[:] = 0.0
    for node in range(peaks.size - 1, -1, -1):
        card = clique_card(program, node)
        size = 1
        for axis in range(card.size):
            size *= card[axis]
        mean = _beliefs(program, store, node, card, weight[node], peaks[node], scratch[:size])
        entropy[node] = above[node] - mean
        keep = np.zeros(card.size, dtype=np.bool_)
        keep[0] = True
        at = reduce_axes(scratch, 0, card, keep, size)
        variable = program.clique[program.clique_ptr[node]]
        for s in range(card[0]):
            singles[variable, s] += weight[node] * scratch[at + s]
        if shift[node] >= 0:
            keep[:] = False
            keep_scope(program, node, shift[node], keep)
            at = reduce_axes(scratch, 0, card, keep, size)
            target = moments[program.offset[shift[node]] : program.offset[shift[node] + 1]]
            for j in range(target.size):
                target[j] = scratch[at + j]
        answer(program, store, weight, node, card, scratch, size, above)


@njit(**KERNEL)
def match_moments(program, store, weight, node_ptr, shift, moments, step):
    """Move the cost shifts of a variable's nodes towards equal moments; their sum stays zero."""
    for variable in range(node_ptr.size - 1):
        first, last = node_ptr[variable], node_ptr[variable + 1]
        if shift[first] < 0:
            continue
        size = program.offset[shift[first] + 1] - program.offset[shift[first]]
        for j in range(size):
            mean, least, total = 0.0, 1.0, 0.0
            for node in range(first, last):
                value = moments[program.offset[shift[node]] + j]
                least = min(least, value)
                mean += weight[node] * log(max(value, 1e-300))
                total += weight[node]
            mean /= total
            if least <= 1e-300:
                continue  # such a configuration is impossible, or as good as that
            change, largest = 0.0, 0.0
            for node in range(first, last):
                change = weight[node] * (mean - log(moments[program.offset[shift[node]] + j]))
                largest = max(largest, abs(change))
            scale = step * min(1.0, _CHANGE / max(largest, _CHANGE))
            rest = 0.0
            for node in range(first, last - 1):
                change = weight[node] * (mean - log(moments[program.offset[shift[node]] + j]))
                store[program.offset[shift[node]] + j] += scale * change
            # the last one balances the others exactly, so that rounding does not add up
            for node in range(first, last - 1):
                rest += store[program.offset[shift[node]] + j]
            store[program.offset[shift[last - 1]] + j] = -rest


@njit(**KERNEL)
def move_weights(weight, node_ptr, entropy, step):
    """Exponentiated gradient step on the positive weights of each variable; their sum stays the same."""
    for variable in range(node_ptr.size - 1):
        first, last = node_ptr[variable], node_ptr[variable + 1]
        if last - first < 2 or weight[first] <= 0.0:
            continue
        mean, before, total = 0.0, 0.0, 0.0
        for node in range(first, last):
            mean += weight[node] * entropy[node]
            before += weight[node]
        mean /= before
        for node in range(first, last):
            power = -step * weight[node] * (entropy[node] - mean)
            weight[node] = max(weight[node] * math.exp(min(max(power, -1.0), 1.0)), 1e-3 * before)
            total += weight[node]
        for node in range(first, last):
            weight[node] *= before / total


@njit(inner=True, **KERNEL)
def _entry(program, table, labels, skip):
    """Index in a table of the entry at these labels, without its first `skip` axes, and the step of axis 0."""
    at, step = program.offset[table], 1
    for k in range(program.scope_ptr[table + 1] - 1, program.scope_ptr[table] + skip - 1, -1):
        at += step * labels[program.scope[k]]
        step *= program.card[program.scope[k]]
    return at, step


@njit(allocates=True, **KERNEL)
def draw_labels(program, store, weight, peaks, node_ptr, uniforms, labels, log_weight):
    """Samples of the proposal after `send_up` with positive weights, and the logarithms of psi(y) / (q(y) U).

    Variables are drawn from the last to the first from the mixture of their nodes' conditionals by weight, without
    the states that one of the nodes forbids [Lou, Dechter and Ihler 2017]: importance weights are then at most one.
    uniforms (n, variables). labels (n, variables), log_weight (n): output; -inf where a sample met a dead end.
    """
    widest = program.card.max()
    q, gain, scores = np.empty(widest), np.empty(widest), np.empty(widest)
    factors = n_factors(program)
    for row in range(labels.shape[0]):
        total = 0.0
        label = labels[row]
        for variable in range(node_ptr.size - 2, -1, -1):
            states = program.card[variable]
            q[:states] = 0.0
            gain[:states] = 0.0
            for node in range(node_ptr[variable], node_ptr[variable + 1]):
                scores[:states] = 0.0
                for i in program.source[program.source_ptr[node] : program.source_ptr[node + 1]]:
                    at, step = _entry(program, i, label, 1)
                    for s in range(states):
                        scores[s] += store[at + s * step]
                at, _ = _entry(program, factors + node, label, 0)
                level, w = store[at] + peaks[node], weight[node]
                for s in range(states):
                    less = scores[s] - level if level > -np.inf else -np.inf
                    gain[s] += less
                    q[s] += w * exp(min(less / w, 1.0))
            mass, best = 0.0, -1
            for s in range(states):
                q[s] = q[s] if gain[s] > -np.inf else 0.0
                mass += q[s]
            rest = uniforms[row, variable] * mass
            for s in range(states):
                if q[s] > 0.0:
                    best = s
                    rest -= q[s]
                    if rest < 0.0:
                        break
            label[variable] = max(best, 0)
            if best < 0:
                total = -np.inf
                for other in range(variable):
                    label[other] = 0
                break
            total += gain[best] - log(q[best] / mass)
        log_weight[row] = total

"""The structural SVM's oracle on chains: loss-augmented Viterbi, and passes of steps with it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .forest import Forest, best_labels
from .frank_wolfe import fill_scores, most_entries, remember, visit
from .machine.jit import njit
from .vecmath import KERNEL


class MarginChains(NamedTuple):
    """Examples that are chains of L states: variable_ptr (examples + 1), node_at (variables), pair_at (variables):
    where scores lie. node_delta (variables, L), pair_delta (variables, L * L): Delta's tables, of no rows if zero.
    """

    variable_ptr: Any
    node_at: Any
    pair_at: Any
    node_delta: Any
    pair_delta: Any


class _Work(NamedTuple):
    """Space for the longest example: scores, a direction, augmented scores, a message, labels.

    chain: a forest in which the parent of a variable is the next one, so that the root is the last.
    """

    theta: Any
    d: Any
    node: Any
    pair: Any
    message: Any
    chain: Any
    labels: Any
    answer: Any


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
    """Entries of a chain's labels; returns their Delta."""
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

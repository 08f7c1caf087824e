"""The structural SVM's oracle on chains: loss-augmented Viterbi, and passes of steps with it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .frank_wolfe import fill_scores, most_entries, remember, visit
from .machine.jit import njit
from .sequences import best_path
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
    """Space for the longest example: scores, a direction, augmented scores, and what Viterbi needs."""

    theta: Any
    d: Any
    node: Any
    pair: Any
    value: Any
    back: Any
    node_place: Any
    pair_place: Any
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
    return _Work(
        theta=np.empty(most), d=np.empty(most),
        node=np.empty((longest, L)), pair=np.empty((own_pairs, L * L)),
        value=np.empty((2, L)), back=np.empty((longest, L), dtype=np.int64),
        node_place=np.arange(longest) * L, pair_place=np.empty(longest, dtype=np.int64),
        labels=np.empty(longest, dtype=np.int64), answer=np.empty(2 * longest, dtype=np.int64),
    )  # fmt: skip


@njit(**KERNEL)
def _answer(design, chains, k, work):
    """Entries of example k's best loss-augmented labelling into work.answer, variables first; returns its Delta."""
    first, T = chains.variable_ptr[k], chains.variable_ptr[k + 1] - chains.variable_ptr[k]
    start, L = design.at[design.row_ptr[k]], work.value.shape[1]
    for i in range(T):
        for c in range(L):
            work.node[i, c] = work.theta[chains.node_at[first + i] - start + c]
            if chains.node_delta.shape[0] > 0:
                work.node[i, c] += chains.node_delta[first + i, c]
        work.pair_place[i] = chains.pair_at[first + i] - start
    pair = work.theta
    if work.pair.shape[0] > 0:
        pair = work.pair.reshape(-1)
        for i in range(T - 1):
            for c in range(L * L):
                pair[i * L * L + c] = work.theta[work.pair_place[i] + c] + chains.pair_delta[first + i, c]
            work.pair_place[i] = i * L * L
    best_path(
        work.node.reshape(-1),
        work.node_place,
        pair,
        work.pair_place,
        0,
        T,
        work.value,
        work.back,
        work.labels,
    )
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

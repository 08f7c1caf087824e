"""Labels and marginals of chains over attributes, given their weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._threads import map_items
from .._types import Floats, InfeasibleError, PotentiaError
from ..kernels import attributes as kernels
from ..kernels import chain_batch, chain_labels
from .chain_objective import (
    NO_LABELS,
    NONE,
    Chains,
    Tables,
    add_by_logarithms,
    batches,
    dense_scores,
    one_chain,
    scores_of,
)

#: Tokens that a thread takes at a time.
_PIECE_TOKENS = 20_000


def best_labels(chains: Chains, tables: Tables, threads: int) -> Any:
    """The most likely labels of all tokens [Viterbi]."""
    labels = np.zeros(int(chains.tokens.sequence_ptr[-1]), dtype=np.int32)
    score = np.zeros(chains.n_sequences)

    def piece(ends: tuple[int, int]) -> None:
        for a, b in batches(chains, *ends):
            scores = dense_scores(chains, tables, a, b)[1]
            kernels.best_labels(
                chains.tokens, tables.layout.kernel, tables.flat, tables.lanes, a, b, scores, labels, score
            )

    map_items(piece, _pieces(chains), threads)
    refuse_infeasible(score, chains.first)
    return labels


def marginals(chains: Chains, tables: Tables, threads: int) -> Floats:
    """Probabilities (tokens, L) of all labels."""
    ends, n = chains.tokens.sequence_ptr, tables.layout.n_labels
    found, log_z = np.zeros((int(ends[-1]), n)), np.zeros(chains.n_sequences)
    weight = np.ones(chains.n_sequences)

    def piece(cut: tuple[int, int]) -> None:
        for a, b in batches(chains, *cut):
            scores = dense_scores(chains, tables, a, b)[1]
            if not scores.size:
                scores = np.zeros(int(ends[b] - ends[a]) * tables.layout.kernel.width)
            kernels.sum_up(
                chains.tokens, tables.layout.kernel, tables.flat, tables.lanes, NO_LABELS, weight, a, b, scores,
                NONE, NONE, log_z,
            )  # fmt: skip
            rows = scores.reshape(int(ends[b] - ends[a]), -1)[:, :n]
            found[ends[a] : ends[b]] = rows
            for k in (a + np.flatnonzero(~(log_z[a:b] > -np.inf))).tolist():
                log_z[k], mu, _ = add_by_logarithms(chains, tables, NO_LABELS, 1.0, k, NONE)
                found[ends[k] : ends[k + 1]] = mu[:, :n]

    map_items(piece, _pieces(chains), threads)
    return found


def k_best_labels(chains: Chains, tables: Tables, k: int) -> list[list[tuple[list[int], float]]]:
    """The k most likely labellings of each sequence with their log-probabilities, best first."""
    return [_k_best(chains, tables, number, k) for number in range(chains.n_sequences)]


def _k_best(chains: Chains, tables: Tables, number: int, k: int) -> list[tuple[list[int], float]]:
    begin, end = chains.tokens.sequence_ptr[number : number + 2].tolist()
    if begin == end:
        return [([], 0.0)]
    chain = one_chain(scores_of(chains, tables, begin, end)[:, : tables.layout.n_labels], NO_LABELS, tables)
    chain_batch.upward(chain, 0, 1)
    labels, score = np.empty((1, k, end - begin), dtype=np.int64), np.empty((1, k))
    chain_labels.k_best_labels(chain, labels, score)
    refuse_infeasible(score[:, 0], chains.first + number)
    return [
        (labels[0, j].tolist(), float(score[0, j] - chain.value[0]))
        for j in range(k)
        if score[0, j] > -np.inf
    ]


def refuse_infeasible(score: Floats, first: int = 0) -> None:
    """Refuse sequences of which no labelling is allowed; messages number them from `first` on."""
    if np.isnan(score).any():
        raise PotentiaError(
            f"the scores of sequence {first + int(np.argmax(np.isnan(score)))} are not finite."
        )
    if np.any(score == -np.inf):
        raise InfeasibleError(
            f"sequence {first + int(np.argmin(score))} has no labelling that the scheme allows."
        )


def _pieces(chains: Chains) -> Any:
    return chains.cut(1 + int(chains.tokens.sequence_ptr[-1]) // _PIECE_TOKENS)

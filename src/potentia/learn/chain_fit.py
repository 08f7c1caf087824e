"""Fits of chains over attributes: from sequences in parts to weights, one step of L-BFGS or OWL-QN at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..base.optimise import Search, lbfgs, owlqn
from ..base.threads import map_items
from ..base.types import Bools, Floats, InfeasibleError, PotentiaError
from ..kernels import attributes as kernels
from ..kernels import sequences
from .base import Learner, SavedState, State, failure_of, steps_made
from .chain_data import ChainData
from .chain_layout import ChainLayout
from .chain_objective import (
    NO_LABELS,
    NONE,
    ChainTables,
    ChainWeights,
    TokenBlock,
    add_by_logarithms,
    batches,
    dense_scores,
    one_chain,
    scores_of,
)
from .chain_part import ChainParts

#: Vector pairs that the optimiser remembers, as many as CRFsuite.
_MEMORY = 6
#: Share of the curvature at zero weights that is left, on the whole, near the minimum.
_CURVATURE_SHARE = 0.1


class ChainOptions(NamedTuple):
    """What is minimised, and where it ends; see `ChainCRF`."""

    c1: float
    c2: float
    max_iterations: int
    delta: float
    min_freq: float
    all_possible_states: bool
    all_possible_transitions: bool
    threads: int | None


class ChainObjective:
    """-log-likelihood of the known labels + c2 |w|^2 as a function of the vector of all weights, summed over parts.

    Args:
        parts: of the data, in the layout.
        observed: what the log-likelihood's numerator is linear in.
        free: which entries of the vector are weights; the others stay zero.
        c2: coefficient of the squared weights.
        threads: of each process; None for all.
    """

    def __init__(
        self, parts: ChainParts, observed: Floats, free: Bools, c2: float, threads: int | None
    ) -> None:
        self.parts, self.observed, self.c2, self.threads = parts, observed, c2, threads
        self._padding = np.flatnonzero(~free)
        self.observed[self._padding] = 0.0

    def __call__(self, vector: Floats) -> tuple[float, Floats]:
        """Value and gradient."""
        total, slopes = self.parts.total("log_partition", vector, self.threads)
        gradient = 2.0 * self.c2 * vector
        gradient -= self.observed
        gradient += slopes
        gradient[self._padding] = 0.0
        return self.c2 * float(vector @ vector) - float(self.observed @ vector) + total, gradient


class ChainFit(Learner):
    """Minimises c1 |w|_1 + c2 |w|^2 - log-likelihood; an iteration is a step of the optimiser."""

    limit_name: ClassVar[str] = "max_iterations"

    def __init__(self, data: ChainData, scheme: str | None, options: ChainOptions) -> None:
        self.limit, self.tol = options.max_iterations, options.delta
        allowed, self.features, pairs = data.number(scheme, options.all_possible_states, options.min_freq)
        known = np.ones_like(pairs, dtype=bool) if options.all_possible_transitions else pairs > 0
        known &= (pairs >= options.min_freq) & allowed.transitions
        self.layout = ChainLayout.of(self.features, len(pairs), data.n_dense)
        free = self.layout.free(known)
        observed, curvature = data.parts.total("lay_out", self.layout, allowed)
        self.objective = ChainObjective(data.parts, observed, free, options.c2, options.threads)
        p = 1.0 / len(pairs)
        diagonal = 2.0 * options.c2 + _CURVATURE_SHARE * (p * (1.0 - p) * np.where(free, curvature, 0.0))
        #: Weights are divided by the root of their curvature, which makes steps of L-BFGS count from the first on.
        self.scale = np.where(diagonal > 0.0, 1.0 / np.sqrt(np.maximum(diagonal, 1e-300)), 1.0)
        self.l1 = options.c1 * self.scale if options.c1 > 0 else None
        self.start = np.zeros(self.layout.size)

    def _scaled(self, point: Floats) -> tuple[float, Floats]:
        """The objective as a function of scaled weights."""
        value, gradient = self.objective(point * self.scale)
        gradient *= self.scale
        return value, gradient

    def start_from(self, weights: ChainWeights) -> None:
        """Begin at these weights, whose features are this fit's."""
        self.start = self.layout.join(weights.state, weights.pairs, weights.dense) / self.scale

    def init(self, data: Any = None, potentials: Any = None) -> State:
        """Where the fit begins."""
        return State({}, self.limit, Search(self.start).arrays())

    def step(self, data: Any, state: State) -> State:
        """A step of the optimiser."""
        search = Search.of(state.arrays)
        if self.l1 is None:
            search = lbfgs(search, self._scaled, _MEMORY)
        else:
            search = owlqn(search, self._scaled, self.l1, _MEMORY)
        row, arrays = {"objective": search.value}, search.arrays()
        if not search.stopped:
            return state.after(row, arrays=arrays)
        failure = failure_of(search, False, steps_made(state.history), self.tol)
        return state.at_end(row, arrays=arrays, failure=failure)

    def resume(self, data: Any, state: State, saved: SavedState) -> State:
        """The optimiser's state."""
        return replace(state, arrays=Search.check(saved.arrays, self.layout.size), history=saved.history)

    def weights(self, state: State) -> ChainWeights:
        """Where the fit stands."""
        own, pairs, dense = self.layout.split(state.arrays["point"] * self.scale)
        return ChainWeights(self.features, own[self.layout.place], pairs.copy(), dense.copy())


#: Tokens that a thread takes at a time.
_PIECE_TOKENS = 20_000


def best_labels(chains: TokenBlock, tables: ChainTables, threads: int) -> Any:
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


def marginals(chains: TokenBlock, tables: ChainTables, threads: int) -> Floats:
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


def k_best_labels(chains: TokenBlock, tables: ChainTables, k: int) -> list[list[tuple[list[int], float]]]:
    """The k most likely labellings of each sequence with their log-probabilities, best first."""
    return [_k_best(chains, tables, number, k) for number in range(chains.n_sequences)]


def _k_best(chains: TokenBlock, tables: ChainTables, number: int, k: int) -> list[tuple[list[int], float]]:
    begin, end = chains.tokens.sequence_ptr[number : number + 2].tolist()
    if begin == end:
        return [([], 0.0)]
    chain = one_chain(scores_of(chains, tables, begin, end)[:, : tables.layout.n_labels], NO_LABELS, tables)
    sequences.upward(chain, 0, 1)
    labels, score = np.empty((1, k, end - begin), dtype=np.int64), np.empty((1, k))
    sequences.k_best_labels(chain, labels, score)
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


def _pieces(chains: TokenBlock) -> Any:
    return chains.cut(1 + int(chains.tokens.sequence_ptr[-1]) // _PIECE_TOKENS)

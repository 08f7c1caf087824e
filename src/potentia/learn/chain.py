"""The likelihood of chains over attributes and its gradient, its minimisation, and what trained chains predict."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from ..base.optimise import Search, lbfgs, owlqn
from ..base.threads import iterate_items, map_items
from ..base.types import Bools, Floats, InfeasibleError, Ints, PotentiaError
from ..features.schemes import Allowed
from ..kernels import attributes as kernels
from ..kernels import sequences
from ..kernels.lanes import Lanes, make_lanes
from .base import Learner, State, failure_of, steps_made
from .chain_layout import AttributeLabels, ChainLayout, ChainWeights, forbidden_labels

if TYPE_CHECKING:
    from .chain_data import ChainParts

#: Multiplications that a shard should have, so that handing it to a thread pays.
_SHARD_WORK = 2_000_000
#: Most shards, and most entries of their gradients together.
_MAX_SHARDS, _MAX_ENTRIES = 16, 2**24
#: Tokens whose dense scores are computed at once.
_BATCH_TOKENS = 4096
#: Tokens that a thread labels at a time.
_PIECE_TOKENS = 20_000
#: Vector pairs that the optimiser remembers, as many as CRFsuite.
_MEMORY = 6
#: Share of the curvature at zero weights that is left, on the whole, near the minimum.
_CURVATURE_SHARE = 0.1
_NONE = np.zeros(0)
_NO_LABELS = np.zeros(0, dtype=np.int32)


class TokenBlock(NamedTuple):
    """Sequences of tokens with attributes numbered as a layout says, and dense columns (tokens, D).

    `first`: the number of the first sequence in messages.
    """

    tokens: kernels.TokenAttributes
    dense: Any
    first: int = 0

    @property
    def n_sequences(self) -> int:
        """Number of sequences."""
        return len(self.tokens.sequence_ptr) - 1

    def cut(self, n: int) -> list[tuple[int, int]]:
        """At most n ranges of sequences with about as many tokens each."""
        ends = self.tokens.sequence_ptr
        wanted = int(ends[-1]) * np.arange(1, n) // max(n, 1)
        cuts = [0, *np.searchsorted(ends, wanted).tolist(), self.n_sequences]
        return [(a, b) for a, b in pairwise(cuts) if a < b]

    def batches(self, first: int, last: int) -> list[tuple[int, int]]:
        """Ranges of sequences of bounded size where there are dense columns, else one."""
        if not self.dense.size:
            return [(first, last)]
        ends, a, ranges = self.tokens.sequence_ptr, first, []
        for b in range(first + 1, last + 1):
            if b == last or ends[b + 1] - ends[a] > _BATCH_TOKENS:
                ranges.append((a, b))
                a = b
        return ranges


class ChainTables(NamedTuple):
    """Weights as the kernels want them; `dense` (D, P)."""

    layout: ChainLayout
    flat: Floats
    lanes: Lanes
    dense: Floats

    @classmethod
    def of(cls, layout: ChainLayout, vector: Floats, allowed: Allowed) -> ChainTables:
        """Of a vector of all weights."""
        flat, pairs, dense = layout.split(vector)
        padded = np.zeros((layout.n_dense, layout.kernel.width))
        padded[:, : layout.n_labels] = dense
        pairs = np.where(allowed.transitions, pairs, -np.inf)
        return cls(layout, flat, make_lanes(pairs, allowed.start, allowed.end), padded)

    def dense_scores(self, chains: TokenBlock, first: int, last: int) -> tuple[Any, Floats]:
        """Dense rows of sequences first .. last - 1, and their scores, flat; empty without dense columns."""
        if not chains.dense.size:
            return _NONE, _NONE
        ends = chains.tokens.sequence_ptr
        rows = chains.dense[ends[first] : ends[last]].astype(np.float64)
        return rows, (rows @ self.dense).ravel()


def in_layout(tokens: kernels.TokenAttributes, layout: ChainLayout) -> kernels.TokenAttributes:
    """Tokens with attributes numbered as the layout says; the one after its last goes. Spends the tokens given."""
    item_ptr = np.zeros_like(tokens.item_ptr)
    left = kernels.renumber(tokens, np.append(layout.number, -1), item_ptr)
    value = tokens.value[:left] if tokens.value.size else tokens.value
    return kernels.TokenAttributes(tokens.sequence_ptr, item_ptr, tokens.attribute[:left], value)


# -- training ------------------------------------------------------------------------------------------------


class ChainLikelihood:
    """-log-likelihood of the known labels of sequences as a function of the vector of all weights.

    It is `log_partition` minus the product of the weights with `observed`. Sequences of which some labels are not known
    (-1) count with the sum over these. What is summed in which order depends on the data only, not on the number of
    threads.

    Args:
        chains: the data.
        labels: of all tokens, -1 where not known.
        weight: of each sequence.
        layout: of the vector.
        allowed: which labels may follow which.
    """

    def __init__(
        self, chains: TokenBlock, labels: Any, weight: Floats, layout: ChainLayout, allowed: Allowed
    ) -> None:
        self.chains, self.labels, self.layout, self.allowed = chains, labels, layout, allowed
        ptr = chains.tokens.sequence_ptr
        known = np.diff(np.concatenate([[0], np.cumsum(labels >= 0)])[ptr])
        # without any label a sequence says nothing
        self.weight = np.where(known > 0, weight, 0.0)
        self.partial = np.where(known < np.diff(ptr), self.weight, 0.0)
        work = int(ptr[-1]) * layout.n_labels**2 + len(chains.tokens.attribute)
        most = max(2, min(_MAX_SHARDS, _MAX_ENTRIES // layout.size))
        self.shards = chains.cut(max(1, min(most, work // _SHARD_WORK)))

    def log_partition(self, vector: Floats, threads: int) -> tuple[float, Floats]:
        """The sum of log Z, given what is known of partly labelled sequences, and its gradient."""
        tables = ChainTables.of(self.layout, vector, self.allowed)
        value, gradient = 0.0, np.zeros(self.layout.size)
        for of_shard, slope in iterate_items(partial(self._of_shard, tables), self.shards, threads):
            value += of_shard
            gradient += slope
        return value, gradient

    def _of_shard(self, tables: ChainTables, shard: tuple[int, int]) -> tuple[float, Floats]:
        """Value and gradient of sequences first .. last - 1: log Z, less that given the known labels."""
        (first, last), chains, layout = shard, self.chains, self.layout
        n, width, gradient = layout.n_labels, layout.kernel.width, np.zeros(layout.size)
        d_flat, d_transitions, d_dense = layout.split(gradient)
        d_psi, d_pair, d_padded = np.zeros(n * width), np.zeros(n * width), np.zeros((layout.n_dense, width))
        value, passes = 0.0, [(_NO_LABELS, self.weight)]
        if self.partial[first:last].any():
            passes.append((self.labels, -self.partial))
        for labels, weight in passes:
            log_z = np.zeros(chains.n_sequences)
            for a, b in chains.batches(first, last):
                rows, scores = tables.dense_scores(chains, a, b)
                kernels.sum_up(
                    chains.tokens, layout.kernel, tables.flat, tables.lanes, labels, weight, a, b, scores, d_flat,
                    d_psi, d_pair, log_z,
                )  # fmt: skip
                refuse_infeasible(log_z[a:b], chains.first + a)
                if rows.size:
                    d_padded += rows.T @ scores.reshape(len(rows), -1)
            value += float(weight[first:last] @ log_z[first:last])
        d_transitions[...] = (tables.lanes.psi * d_psi + d_pair).reshape(n, width)[:, :n]
        d_dense[...] = d_padded[:, :n]
        return value, gradient

    def observed(self) -> Floats:
        """What the log-likelihood's numerator is linear in: counts of what labelled sequences have."""
        vector = np.zeros(self.layout.size)
        state, pairs, dense = self.layout.split(vector)
        tokens, whole = self.chains.tokens, self.weight - self.partial
        kernels.observe(
            tokens, self.layout.kernel, self.labels, whole, 0, self.chains.n_sequences, state, pairs
        )
        if self.chains.dense.size:
            per_token = np.repeat(whole, np.diff(tokens.sequence_ptr))
            for y in range(self.layout.n_labels):
                chosen = np.flatnonzero((self.labels == y) & (per_token != 0.0))
                dense[:, y] = per_token[chosen] @ self.chains.dense[chosen]
        return vector

    def curvature(self) -> Floats:
        """Second derivatives at zero weights, divided by p (1 - p) for p = 1 / L, without what labels share."""
        tokens, kernel, ptr = self.chains.tokens, self.layout.kernel, self.chains.tokens.sequence_ptr
        vector = np.zeros(self.layout.size)
        state, pairs, dense = self.layout.split(vector)
        per_token = np.repeat(self.weight, np.diff(ptr))
        sums = np.zeros(len(self.layout.number))
        kernels.add_squares(tokens, per_token, sums)
        in_rows = kernel.n_rows * kernel.width
        state[:in_rows] = np.repeat(sums[: kernel.n_rows], kernel.width)
        state[in_rows:] = np.repeat(sums[kernel.n_rows :], np.diff(kernel.slot_ptr))
        pairs[...] = (1.0 / self.layout.n_labels) * per_token.sum()
        if self.layout.n_dense:
            for a, b in self.chains.batches(0, self.chains.n_sequences):
                rows = slice(ptr[a], ptr[b])
                dense += (per_token[rows] @ self.chains.dense[rows].astype(np.float64) ** 2)[:, None]
        return vector


class ChainFit(Learner):
    """Minimises c1 |w|_1 + c2 |w|^2 - log-likelihood; an iteration is a step of the optimiser.

    Args:
        parts: of the data, numbered alike.
        features: which attributes have weights for which labels.
        transitions: which neighbouring labels have a weight, (L, L).
        n_dense: columns of dense features.
        c1, c2, delta, max_iterations, threads: see `ChainCRF`.
    """

    limit_name: ClassVar[str] = "max_iterations"

    def __init__(
        self,
        parts: ChainParts,
        features: AttributeLabels,
        transitions: Bools,
        n_dense: int,
        *,
        c1: float,
        c2: float,
        delta: float,
        max_iterations: int,
        threads: int | None,
    ) -> None:
        self.limit, self.tol = max_iterations, float(delta)
        self.parts, self.features, self.c2, self.threads = parts, features, float(c2), threads
        self.layout = ChainLayout.of(features, len(transitions), n_dense)
        free: Bools = self.layout.join(True, transitions, True, np.bool_)
        #: Entries of the vector that are no weights; they stay zero.
        self.padding: Ints = np.flatnonzero(~free)
        observed, curvature = parts.total("lay_out", self.layout)
        self.observed: Floats = np.where(free, observed, 0.0)
        p = 1.0 / len(transitions)
        diagonal = 2.0 * self.c2 + _CURVATURE_SHARE * (p * (1.0 - p) * np.where(free, curvature, 0.0))
        #: Weights are divided by the root of their curvature, which makes steps of L-BFGS count from the first on.
        self.scale = np.where(diagonal > 0.0, 1.0 / np.sqrt(np.maximum(diagonal, 1e-300)), 1.0)
        self.l1 = c1 * self.scale if c1 > 0 else None
        self.start = np.zeros(self.layout.size)

    def objective(self, point: Floats) -> tuple[float, Floats]:
        """c2 |w|^2 - log-likelihood as a function of the scaled weights w / scale, and its gradient."""
        vector = point * self.scale
        log_z, d_log_z = self.parts.total("log_partition", vector, self.threads)
        gradient = 2.0 * self.c2 * vector
        gradient -= self.observed
        gradient += d_log_z
        gradient[self.padding] = 0.0
        gradient *= self.scale
        return self.c2 * float(vector @ vector) - float(self.observed @ vector) + log_z, gradient

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
            search = lbfgs(search, self.objective, _MEMORY)
        else:
            search = owlqn(search, self.objective, self.l1, _MEMORY)
        row, arrays = {"objective": search.value}, search.arrays()
        if not search.stopped:
            return state.after(row, arrays=arrays)
        failure = failure_of(search, steps_made(state.history), self.tol)
        return state.at_end(row, arrays=arrays, failure=failure)

    def resume(self, data: Any, state: State, saved: State) -> State:
        """The optimiser's state."""
        return replace(state, arrays=Search.check(saved.arrays, self.layout.size), history=saved.history)

    def weights(self, state: State) -> ChainWeights:
        """The weights of a state."""
        of_attributes, pairs, dense = self.layout.split(state.arrays["point"] * self.scale)
        return ChainWeights(self.features, of_attributes[self.layout.place], pairs.copy(), dense.copy())


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


# -- predicting ----------------------------------------------------------------------------------------------


def best_labels(chains: TokenBlock, tables: ChainTables, threads: int) -> Any:
    """The most likely labels of all tokens [Viterbi]."""
    labels = np.zeros(int(chains.tokens.sequence_ptr[-1]), dtype=np.int32)
    score = np.zeros(chains.n_sequences)

    def piece(ends: tuple[int, int]) -> None:
        for a, b in chains.batches(*ends):
            scores = tables.dense_scores(chains, a, b)[1]
            kernels.best_labels(
                chains.tokens, tables.layout.kernel, tables.flat, tables.lanes, a, b, scores, labels, score
            )

    map_items(piece, _pieces(chains), threads)
    refuse_infeasible(score, chains.first)
    return labels


def marginals(chains: TokenBlock, tables: ChainTables, threads: int) -> tuple[Floats, Floats]:
    """Probabilities of all labels (tokens, L), and log Z of each sequence."""
    ends, n = chains.tokens.sequence_ptr, tables.layout.n_labels
    mu, log_z, weight = (
        np.zeros((int(ends[-1]), n)),
        np.zeros(chains.n_sequences),
        np.ones(chains.n_sequences),
    )

    def piece(cut: tuple[int, int]) -> None:
        for a, b in chains.batches(*cut):
            scores = tables.dense_scores(chains, a, b)[1]
            if not scores.size:
                scores = np.zeros(int(ends[b] - ends[a]) * tables.layout.kernel.width)
            kernels.sum_up(
                chains.tokens, tables.layout.kernel, tables.flat, tables.lanes, _NO_LABELS, weight, a, b, scores,
                _NONE, _NONE, _NONE, log_z,
            )  # fmt: skip
            refuse_infeasible(log_z[a:b], chains.first + a)
            mu[ends[a] : ends[b]] = scores.reshape(int(ends[b] - ends[a]), -1)[:, :n]

    map_items(piece, _pieces(chains), threads)
    return mu, log_z


def _pieces(chains: TokenBlock) -> list[tuple[int, int]]:
    return chains.cut(1 + int(chains.tokens.sequence_ptr[-1]) // _PIECE_TOKENS)


def k_best_labels(
    chains: TokenBlock, tables: ChainTables, k: int, threads: int
) -> list[list[tuple[list[int], float]]]:
    """The k most likely labellings of each sequence with their log-probabilities, best first."""
    log_z, kernel = marginals(chains, tables, threads)[1], tables.layout.kernel
    answers: list[list[tuple[list[int], float]]] = []
    for number, (begin, end) in enumerate(pairwise(chains.tokens.sequence_ptr.tolist())):
        if begin == end:
            answers.append([([], 0.0)])
            continue
        u = np.zeros((end - begin, kernel.width))
        if chains.dense.size:
            u += tables.dense_scores(chains, number, number + 1)[1].reshape(u.shape)
        kernels.score_tokens(chains.tokens, kernel, tables.flat, begin, end, u.ravel())
        labels, score = np.empty((k, end - begin), dtype=np.int64), np.empty(k)
        sequences.k_best_states(tables.lanes, u[:, : tables.layout.n_labels], labels, score)
        log_p = (score - log_z[number]).tolist()
        answers.append([(y.tolist(), p) for y, p in zip(labels, log_p, strict=True) if p > -np.inf])
    return answers


def likeliest_labels(sequence_ptr: Ints, marginals: Floats, allowed: Allowed) -> Ints:
    """The likeliest label of each token or, where those are not allowed together, the allowed labels of a sequence
    whose probabilities have the largest sum, which is the expected number of right ones."""
    labels = marginals.argmax(axis=1) if len(marginals) else np.zeros(0, dtype=np.int64)
    bad = np.flatnonzero(forbidden_labels(sequence_ptr, labels, allowed))
    lanes = make_lanes(np.where(allowed.transitions, 0.0, -np.inf), allowed.start, allowed.end)
    for number in np.unique(np.searchsorted(sequence_ptr, bad, side="right") - 1).tolist():
        begin, end = sequence_ptr[number : number + 2].tolist()
        n, zeros = end - begin, np.zeros(marginals.shape[1])
        chain = sequences.PaddedChains(
            marginals[begin:end].ravel(), 0, len(zeros), n, np.array([n]), zeros, zeros, lanes
        )
        sequences.best_labels(chain, labels[None, begin:end], np.empty(1))
    return labels

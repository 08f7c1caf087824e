"""The log-likelihood of chains over attributes, and its gradient, in shards that threads share out."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from .._threads import iterate_items
from .._types import Floats, InfeasibleError, Ints
from ..kernels import attributes as kernels
from ..kernels import chain_batch
from ..kernels.lanes import Lanes
from .chain_layout import ChainLayout, Constraints, make_lanes

#: Multiplications that a shard should have, so that handing it to a thread pays.
_SHARD_WORK = 2_000_000
#: Most shards, and most entries of their gradients together.
_MAX_SHARDS, _MAX_ENTRIES = 16, 2**24
#: Tokens whose dense scores are computed at once.
_BATCH_TOKENS = 4096
NONE = np.zeros(0)
NO_LABELS = np.zeros(0, dtype=np.int32)


class Chains(NamedTuple):
    """Sequences of tokens with attributes numbered as a layout says, and dense columns (tokens, D).

    `first`: the number of the first sequence in messages.
    """

    tokens: kernels.Tokens
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


class Tables(NamedTuple):
    """Weights as the kernels want them."""

    layout: ChainLayout
    flat: Floats
    lanes: Lanes
    dense: Floats

    @classmethod
    def of(cls, layout: ChainLayout, vector: Floats, allowed: Constraints) -> Tables:
        """Of a vector of all weights."""
        flat, pairs, dense = layout.split(vector)
        width = layout.kernel.width
        padded = np.zeros((layout.n_dense, width))
        padded[:, : layout.n_labels] = dense
        return cls(layout, flat, make_lanes(pairs, allowed), padded)


class _Slopes(NamedTuple):
    """Gradients of a shard: of rows and slots, of psi (L * P,), of transitions (L, L), of dense columns (D, P)."""

    flat: Floats
    psi: Floats
    pair: Floats
    dense: Floats


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
        self,
        chains: Chains,
        labels: Any,
        weight: Floats,
        layout: ChainLayout,
        allowed: Constraints,
    ) -> None:
        self.chains, self.labels, self.layout, self.allowed = chains, labels, layout, allowed
        known = _known(chains.tokens.sequence_ptr, labels)
        # without any label a sequence says nothing
        self.weight = np.where(known > 0, weight, 0.0)
        self.partial = np.where(known < np.diff(chains.tokens.sequence_ptr), self.weight, 0.0)
        work = int(chains.tokens.sequence_ptr[-1]) * layout.n_labels**2 + len(chains.tokens.attribute)
        most = max(2, min(_MAX_SHARDS, _MAX_ENTRIES // layout.size))
        self.shards = chains.cut(max(1, min(most, work // _SHARD_WORK)))

    def log_partition(self, vector: Floats, threads: int) -> tuple[float, Floats]:
        """The sum of log Z, given what is known of partly labelled sequences, and its gradient."""
        tables = Tables.of(self.layout, vector, self.allowed)
        value, gradient = 0.0, np.zeros(self.layout.size)
        state, pairs, dense = self.layout.split(gradient)
        n, width = self.layout.n_labels, self.layout.kernel.width
        psi = tables.lanes.psi.reshape(n, width)
        for own, slopes in iterate_items(lambda shard: self._of_shard(tables, *shard), self.shards, threads):
            value += own
            state += slopes.flat
            pairs += (psi * slopes.psi.reshape(n, width))[:, :n] + slopes.pair
            dense += slopes.dense[:, :n]
        return value, gradient

    def curvature(self) -> Floats:
        """Second derivatives at zero weights, divided by p (1 - p) for p = 1 / L, without what labels share."""
        tokens, kernel, p = self.chains.tokens, self.layout.kernel, 1.0 / self.layout.n_labels
        vector = np.zeros(self.layout.size)
        state, pairs, dense = self.layout.split(vector)
        per_token = np.repeat(self.weight, np.diff(tokens.sequence_ptr))
        sums = np.zeros(len(self.layout.order))
        kernels.add_squares(tokens, per_token, sums)
        state[: kernel.n_rows * kernel.width] = np.repeat(sums[: kernel.n_rows], kernel.width)
        state[kernel.n_rows * kernel.width :] = np.repeat(sums[kernel.n_rows :], np.diff(kernel.slot_ptr))
        pairs[...] = p * per_token.sum()
        if self.layout.n_dense:
            for a, b in batches(self.chains, 0, self.chains.n_sequences):
                mine = slice(tokens.sequence_ptr[a], tokens.sequence_ptr[b])
                dense += (per_token[mine] @ self.chains.dense[mine].astype(np.float64) ** 2)[:, None]
        return vector

    def _of_shard(self, tables: Tables, first: int, last: int) -> tuple[float, _Slopes]:
        """Value and gradients of sequences first .. last - 1."""
        n, width = self.layout.n_labels, self.layout.kernel.width
        slopes = _Slopes(
            np.zeros(self.layout.n_states_weights),
            np.zeros(n * width),
            np.zeros((n, n)),
            np.zeros((self.layout.n_dense, width)),
        )
        value = self._pass(tables, NO_LABELS, self.weight, first, last, slopes)
        if self.partial[first:last].any():
            value += self._pass(tables, self.labels, -self.partial, first, last, slopes)
        return value, slopes

    def _pass(
        self, tables: Tables, labels: Any, weight: Floats, first: int, last: int, slopes: _Slopes
    ) -> float:
        """sum of weight log Z, given labels or not, with gradients added to `slopes`."""
        tokens, log_z = self.chains.tokens, np.zeros(self.chains.n_sequences)
        for a, b in batches(self.chains, first, last):
            rows, scores = dense_scores(self.chains, tables, a, b)
            kernels.sum_up(
                tokens, self.layout.kernel, tables.flat, tables.lanes, labels, weight, a, b, scores, slopes.flat,
                slopes.psi, log_z,
            )  # fmt: skip
            mu = scores.reshape(len(rows), -1) if rows.size else NONE
            for k in (a + np.flatnonzero(~(log_z[a:b] > -np.inf))).tolist():
                log_z[k], own, d_pair = add_by_logarithms(
                    self.chains, tables, labels, weight[k], k, slopes.flat
                )
                slopes.pair[...] += d_pair
                if rows.size:
                    begin = tokens.sequence_ptr[k] - tokens.sequence_ptr[a]
                    mu[begin : begin + len(own)] = own
            if rows.size:
                slopes.dense[...] += rows.T @ mu
        return float(weight[first:last] @ log_z[first:last])

    def observed(self) -> Floats:
        """What the log-likelihood's numerator is linear in: counts of what labelled sequences have."""
        vector = np.zeros(self.layout.size)
        state, pairs, dense = self.layout.split(vector)
        tokens = self.chains.tokens
        whole = self.weight - self.partial
        kernels.observe(
            tokens, self.layout.kernel, self.labels, whole, 0, self.chains.n_sequences, state, pairs
        )
        if self.chains.dense.size:
            per_token = np.repeat(whole, np.diff(tokens.sequence_ptr))
            for y in range(self.layout.n_labels):
                mine = np.flatnonzero((self.labels == y) & (per_token != 0.0))
                dense[:, y] = per_token[mine] @ self.chains.dense[mine]
        return vector


def batches(chains: Chains, first: int, last: int) -> list[tuple[int, int]]:
    """Ranges of sequences of bounded size where there are dense columns, else one."""
    if not chains.dense.size:
        return [(first, last)]
    ends = chains.tokens.sequence_ptr
    found, a = [], first
    for b in range(first + 1, last + 1):
        if b == last or ends[b + 1] - ends[a] > _BATCH_TOKENS:
            found.append((a, b))
            a = b
    return found


def dense_scores(chains: Chains, tables: Tables, first: int, last: int) -> tuple[Any, Floats]:
    """Dense rows of the tokens of sequences first .. last - 1, and their scores, flat; empty without dense columns."""
    if not chains.dense.size:
        return NONE, NONE
    ends = chains.tokens.sequence_ptr
    rows = chains.dense[ends[first] : ends[last]].astype(np.float64)
    return rows, (rows @ tables.dense).ravel()


def scores_of(chains: Chains, tables: Tables, begin: int, end: int) -> Floats:
    """Scores of tokens begin .. end - 1, (tokens, width)."""
    kernel = tables.layout.kernel
    scores = np.zeros((end - begin, kernel.width))
    if chains.dense.size:
        scores += chains.dense[begin:end].astype(np.float64) @ tables.dense
    kernels.score_tokens(chains.tokens, kernel, tables.flat, begin, end, scores.ravel())
    return scores


def add_by_logarithms(
    chains: Chains, tables: Tables, labels: Any, weight: float, k: int, d_flat: Floats
) -> tuple[float, Floats, Floats]:
    """log Z, weighted marginals (tokens, width) and those of pairs (L, L) of a sequence whose scores differ too much
    for products of their exponentials; adds to d_flat.
    """
    n = tables.layout.n_labels
    begin, end = chains.tokens.sequence_ptr[k : k + 2].tolist()
    chain = one_chain(scores_of(chains, tables, begin, end)[:, :n], labels[begin:end], tables)
    chain_batch.upward(chain, 0, 1)
    if not chain.value[0] > -np.inf:
        raise InfeasibleError(f"sequence {chains.first + k} has no labelling that the scheme allows.")
    mu, d_u, d_pair = (
        np.zeros((end - begin, tables.layout.kernel.width)),
        np.zeros((end - begin) * n),
        np.zeros((n, n)),
    )
    chain_batch.downward(chain, np.array([weight]), d_u, np.zeros(n), d_pair, np.zeros(n), 0, 1)
    mu[:, :n] = d_u.reshape(-1, n)
    if d_flat.size:
        kernels.add_tokens(chains.tokens, tables.layout.kernel, d_flat, begin, end, mu.ravel())
    return float(chain.value[0]), mu, d_pair


def one_chain(u: Floats, labels: Any, tables: Tables) -> chain_batch.Chains:
    """A chain for the kernels that compute with logarithms; labels other than known ones are forbidden."""
    steps, n = u.shape
    scores, lanes = np.ascontiguousarray(u), tables.lanes
    for t in np.flatnonzero(labels >= 0) if len(labels) else ():
        scores[t, np.arange(n) != labels[t]] = -np.inf
    table = lanes.pair.reshape(n, -1)[:, :n].copy()
    start, end = (np.where(ends[:n] > 0.0, 0.0, -np.inf) for ends in (lanes.start, lanes.end))
    return chain_batch.Chains(
        scores.ravel(), steps * n, n, np.array([steps]), start, table, end, np.exp(table - lanes.top), lanes.top,
        False, np.empty((1, steps, n)), np.empty((1, steps, n)), np.empty(1), np.empty(1, dtype=np.bool_),
    )  # fmt: skip


def _known(sequence_ptr: Ints, labels: Any) -> Ints:
    """How many labels of each sequence are known."""
    ends = np.concatenate([[0], np.cumsum(labels >= 0)])
    counted: Ints = ends[sequence_ptr[1:]] - ends[sequence_ptr[:-1]]
    return counted

"""Probabilities of pairs of labels and of spans in chains, exact.

Given the sequence, labels are a Markov chain. With J_t(a, b) = p(y_{t-1} = a, y_t = b) and p_t(b | a) = J_t(a, b) /
mu_{t-1}(a), a span s .. e - 1 has the probability of a path: begin_s(b) = sum_a J_s(a, b) [b begins a span after a],
then p_t(b | a) [b continues the span of a] for t < e, and the complement of that at e.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..base.types import Bools, Floats, Ints
from ..features.schemes import span_rules
from ..learn.chain import EncodedSequences, pair_scores, refuse_infeasible, token_scores

#: Entries of the pairs' tables that are held at once.
_MAX_ENTRIES = 2**22


class SpanProbability(NamedTuple):
    """A span of tokens first .. end - 1, its type, and the probability that the sequence has it."""

    first: int
    end: int
    kind: str
    probability: float


class Posterior(NamedTuple):
    """Probabilities of labels (T, L), and of a label and the one before (T, L, L), zero where a sequence begins."""

    sequence_ptr: Ints
    singles: Floats
    pairs: Floats


def posteriors(given: EncodedSequences) -> Iterator[Posterior]:
    """Of consecutive sequences, some at a time."""
    n, ptr = given.tables.layout.n_labels, given.tokens.sequence_ptr
    begin, last = 0, len(ptr) - 1
    for end in range(1, last + 1):
        if end == last or (ptr[end + 1] - ptr[begin]) * n * n > _MAX_ENTRIES:
            yield _posterior(given, begin, end)
            begin = end


def _posterior(given: EncodedSequences, begin: int, end: int) -> Posterior:
    tables, tokens, n = given.tables, given.tokens, given.tables.layout.n_labels
    ptr = tokens.sequence_ptr[begin : end + 1]
    origin, size = int(ptr[0]), int(ptr[-1] - ptr[0])
    node, ptr = token_scores(given, origin, origin + size), ptr - origin
    filled = np.flatnonzero(np.diff(ptr))
    node[ptr[filled]] += np.where(tables.allowed.start, 0.0, -np.inf)
    node[ptr[filled + 1] - 1] += np.where(tables.allowed.end, 0.0, -np.inf)
    after = np.setdiff1d(np.arange(size), ptr)
    theta: dict[str, Any] = {"node": node}
    regions: dict[str, Any] = {"node": np.arange(size)[:, None]}
    if after.size:
        regions["edge"] = np.stack([after - 1, after], axis=1)
        each = (pair_scores(tables, tokens, origin + int(a), origin + int(b)) for a, b in pairwise(ptr))
        shared = not tables.layout.kernel.pair_ptr.size
        theta["edge"] = (
            pair_scores(tables, tokens, origin, origin + 1)[0].reshape(n, n) if shared
            else np.concatenate([scores.reshape(-1, n, n)[1:] for scores, _ in each])
        )  # fmt: skip
    pairs = np.zeros((size, n, n))
    if size:
        from ..graph.structure import Graph  # chains do without graphs elsewhere
        from ..inference.exact import Exact

        result = Exact().infer(Graph([n] * size, regions), theta)
        refuse_infeasible(np.array([result.value]), given.first + begin)
        if after.size:
            pairs[after] = result.marginals["edge"]
        return Posterior(ptr, np.asarray(result.marginals["node"]), pairs)
    return Posterior(ptr, node, pairs)


class SpanTable:
    """How labels make spans: which may begin one after which, continue it, and end it; and the types of labels."""

    def __init__(self, classes: Sequence[Any], scheme: str | None) -> None:
        self.begins, self.continues, self.first, self.closes, kinds = span_rules([*map(str, classes)], scheme)
        self.kinds = sorted(set(kinds))
        self.kind_of = np.array([self.kinds.index(kind) for kind in kinds])
        self.of_kind: Bools = self.kind_of[:, None] == np.arange(len(self.kinds))

    def paths(self, posterior: Posterior) -> tuple[Floats, Floats, Floats]:
        """Of tokens: p(a span begins, label) (T, L), p(it continues, label | label) (T, L, L), p(it ends here | label).

        The last is of the span of the token before, (T + 1, L).
        """
        ptr, singles, pairs = posterior
        begin = np.einsum("tab,ab->tb", pairs, self.begins.astype(np.float64))
        heads = ptr[:-1][np.diff(ptr) > 0]
        begin[heads] = singles[heads] * self.first
        before = np.concatenate([singles[:1], singles[:-1]])[:, :, None] if len(singles) else singles[:, :, None]
        step = np.divide(pairs * self.continues, before, out=np.zeros_like(pairs), where=before > 0.0)
        stays = np.concatenate([step.sum(axis=2), np.zeros((1, len(self.closes)))])
        return begin, step, np.clip(1.0 - stays, 0.0, 1.0) * self.closes

    def above(self, posterior: Posterior, least: float) -> list[list[SpanProbability]]:
        """The spans of each sequence with at least this probability."""
        begin, step, ends = self.paths(posterior)
        token, v = np.arange(len(begin)), begin
        number = np.repeat(np.arange(len(posterior.sequence_ptr) - 1), np.diff(posterior.sequence_ptr))
        head, last = posterior.sequence_ptr[number], posterior.sequence_ptr[number + 1]
        found: list[list[SpanProbability]] = [[] for _ in range(len(posterior.sequence_ptr) - 1)]
        length = 1
        while len(token):
            p = (v * ends[token + length]) @ self.of_kind
            for row, kind in np.argwhere((p >= least) & (p > 0.0)).tolist():
                s = int(token[row])
                first = s - int(head[s])
                span = SpanProbability(first, first + length, self.kinds[kind], float(p[row, kind]))
                found[int(number[s])].append(span)
            left = (token + length < last[token]) & ((v @ self.of_kind).max(axis=1, initial=0.0) >= max(least, 1e-300))
            token, v = token[left], v[left]
            v = np.einsum("ta,tab->tb", v, step[token + length])
            length += 1
        return [sorted(spans) for spans in found]

    def of(self, posterior: Posterior, spans: Sequence[Sequence[tuple[int, int, str]]]) -> list[Floats]:
        """The probabilities of given spans of each sequence."""
        begin, step, ends = self.paths(posterior)
        rows = [
            (int(origin) + s, int(origin) + e, self.kinds.index(kind) if kind in self.kinds else -1)
            for origin, of_sequence in zip(posterior.sequence_ptr, spans, strict=False)
            for s, e, kind in of_sequence
        ]
        p = np.zeros(len(rows))
        first, end, kind = np.array(rows, dtype=np.int64).reshape(-1, 3).T
        v = np.where((self.kind_of == kind[:, None]), begin[first], 0.0)
        length, left = 1, np.arange(len(rows))
        while left.size:
            over = end[left] == first[left] + length
            p[left[over]] = (v[over] * ends[end[left[over]]]).sum(axis=1)
            left, v = left[~over], v[~over]
            v = np.einsum("ta,tab->tb", v, step[first[left] + length])
            length += 1
        return np.split(p, np.cumsum([len(of_sequence) for of_sequence in spans])[:-1])

"""Segments of chains (semi-Markov): tags and their meaning, the likelihood of a part's sequences, and predictions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np

from ..base.resources import map_items
from ..base.types import Bools, Floats, Ints, PotentiaError
from ..features.schemes import spans
from ..kernels import segments as kernels
from ..kernels.attributes import TokenAttributes
from .chain import AttributeLabels, ChainLayout, batches, cut_shards, per_sequence, refuse_infeasible

_NONE = np.zeros(0)
_NO_TABLE = np.zeros((0, 0))
_NO_MARGINALS = np.zeros((0, 0, 0))
_NO_TAGS = np.zeros(0, dtype=np.int32)
#: Whether a mark says that its token is its segment's first, and its last: 1, 0, or -1 where it says nothing.
_MARKS = {"B": (1, 0), "I": (0, 0), "E": (0, 1), "S": (1, 1), "F": (1, -1), "M": (0, -1), "O": (1, 1)}
#: The mark of what is known of a token that begins its segment (0: no, 1: yes) and ends it (0, 1, -1: not known).
_OF_ENDS = {ends: mark for mark, ends in _MARKS.items() if mark != "O"}
#: Scores of a token: of being in a segment, its first, its last.
_ROLES = 3


class Segment(NamedTuple):
    """Tokens start .. end - 1 and their label."""

    start: int
    end: int
    label: str


# -- segments as tags, by which tokens are known -----------------------------------------------------------------


def tags_of_segments(segments: Iterable[Any], n: int, where: str) -> list[str]:
    """A tag per token, such as B-X, I-X, E-X, S-X, and O outside of all segments."""
    tags, free = ["O"] * n, 0
    for given in sorted(segments):
        try:
            start, end, label = given
            good = free <= start < end <= n and isinstance(label, str)
        except (TypeError, ValueError):
            raise PotentiaError(f"{where} must hold segments (start, end, label), not {given!r:.60}.") from None
        if not good:
            raise PotentiaError(
                f"{where} has the segment {tuple(given)!r:.60}: segments must not overlap, lie within the {n} tokens "
                "and have texts as labels."
            )
        for t in range(start, end):
            tags[t] = f"{_OF_ENDS[int(t == start), int(t == end - 1)]}-{label}"
        free = end
    return tags


def tags_of_scheme(tags: Sequence[str | None], scheme: str, where: str) -> list[str | None]:
    """The same from tags of a scheme; None is a token whose segment is not known."""
    if None not in tags:
        found = [*spans([str(tag) for tag in tags], scheme)]
        if sum(end - start for start, end, _ in found) != sum(tag != "O" for tag in tags):
            raise PotentiaError(f"{where} has tags that the scheme {scheme} does not allow: correct them.")
        return [*tags_of_segments(found, len(tags), where)]
    if scheme == "IOB1":
        raise PotentiaError(f"{where} has unknown tags (None), which need the scheme BIO or BIOES.")
    known: list[str | None] = []
    for tag, after in zip(tags, [*tags[1:], "O"], strict=True):
        if tag is None or tag == "O":
            known.append(tag)
            continue
        mark, _, label = tag.partition("-")
        if mark not in ("BI" if scheme == "BIO" else "BIES") or not label:
            raise PotentiaError(f"{where} has the tag {tag!r:.40}, which is not one of the scheme {scheme}.")
        last = _MARKS[mark][1] if scheme == "BIOES" else -1 if after is None else int(after != f"I-{label}")
        known.append(f"{_OF_ENDS[_MARKS[mark][0], last]}-{label}")
    return known


def scheme_tags(segments: Iterable[Segment], n: int, scheme: str) -> list[str]:
    """Tags of a scheme for segments of n tokens."""
    tags, before = ["O"] * n, Segment(-1, -1, "")
    for segment in segments:
        start, end, label = segment
        for t in range(start, end):
            if scheme == "BIOES":
                mark = _OF_ENDS[int(t == start), int(t == end - 1)]
            else:
                separate = scheme == "BIO" or (before.end == start and before.label == label)
                mark = "B" if t == start and separate else "I"
            tags[t] = f"{mark}-{label}"
        before = segment
    return tags


@dataclass(frozen=True)
class SegmentLabels:
    """The labels of segments, and the lengths that each may have.

    Attributes:
        names: of the labels; None is a token outside of all segments.
        longest: (L,) tokens of the longest segment of each label.
    """

    names: Sequence[str | None]
    longest: Ints

    @property
    def n(self) -> int:
        """L."""
        return len(self.names)

    @property
    def allowed(self) -> Bools:
        """Which transitions and lengths there are, (L + D, L)."""
        lengths = np.arange(int(self.longest.max()))[:, None] < self.longest
        return np.concatenate([np.ones((self.n, self.n), dtype=bool), lengths])

    @property
    def free(self) -> Bools:
        """Which of them have a weight: not the length of labels that have one only, so that D = 1 is a chain."""
        found = self.allowed
        found[self.n :] &= self.longest > 1
        return found

    def tags(self, classes: Sequence[Any]) -> tuple[Any, Any, Any]:
        """Of each tag its label, and whether it says that its token is its segment's first, and its last."""
        place = {name: k for k, name in enumerate(self.names)}
        label = [place[None if tag == "O" else tag[2:]] for tag in classes]
        first, last = zip(*(_MARKS[tag[0]] for tag in classes), strict=True)
        return np.array(label, dtype=np.int64), np.array(first, dtype=np.int64), np.array(last, dtype=np.int64)

    def features(self, of_tags: AttributeLabels, classes: Sequence[Any]) -> AttributeLabels:
        """Features of scores of tokens, role * L + label, from those of tags; one role for labels of single tokens."""
        label, first, last = self.tags(classes)
        several = self.longest[label] > 1
        owner = np.repeat(np.arange(len(of_tags.ptr) - 1), np.diff(of_tags.ptr)) * _ROLES * self.n
        chosen = [np.ones(len(label), dtype=bool), several & (first == 1), several & (last == 1)]
        codes = [
            (owner + role * self.n + label[of_tags.label])[of_role[of_tags.label]]
            for role, of_role in enumerate(chosen)
        ]
        return AttributeLabels.of_codes(np.unique(np.concatenate(codes)), len(of_tags.ptr) - 1, _ROLES * self.n)


# -- the likelihood of a part's sequences ------------------------------------------------------------------------


@dataclass
class SegmentLayout(ChainLayout):
    """Where the weights are: labels are roles of tokens, and the table has transitions and then lengths.

    Attributes:
        labels: of segments. tags: what the data set's tags say.
        n_rows: rows of attributes per token for segments that begin there; they follow a sequence's tokens.
    """

    labels: SegmentLabels
    tags: tuple[Any, Any, Any]
    n_rows: int

    @classmethod
    def make(
        cls, features: AttributeLabels, labels: SegmentLabels, tags: tuple[Any, Any, Any], n_dense: int, n_rows: int
    ) -> Self:
        """Of these features and labels."""
        none = AttributeLabels.none(len(features.ptr) - 1)
        base = ChainLayout.of(features, none, _ROLES * labels.n, n_dense, labels.allowed.shape)
        return cls(**vars(base), labels=labels, tags=tags, n_rows=n_rows)

    def token_counts(self, sequence_ptr: Ints) -> Ints:
        """Tokens of each sequence, without the rows of its segments."""
        return np.diff(sequence_ptr) // (1 + self.n_rows)

    def prepared(self, state: Mapping[str, Any], tokens: TokenAttributes) -> tuple[dict[str, Any], Floats]:
        """What the likelihood of a part needs besides its tokens, and what is observed."""
        ptr, labels = tokens.sequence_ptr, state["labels"]
        n = self.token_counts(ptr)
        ends = np.arange(len(labels)) - np.repeat(ptr[:-1], np.diff(ptr)) < np.repeat(n, np.diff(ptr))
        known = np.where(ends, labels, -1).astype(np.int32)
        certain = known >= 0
        certain[certain] = self.tags[2][known[certain]] >= 0
        weight = np.where(per_sequence(known >= 0, ptr) > 0, state["weight"], 0.0)
        partly = np.where(per_sequence(certain, ptr) < n, weight, 0.0)
        most = max(1, len(known) * self.labels.n * len(self.labels.allowed) // 2_000_000)
        own = {"known": known, "weight": weight, "partial": partly, "shards": cut_shards(ptr, min(most, 16))}
        # where all tags are known there is one segmentation, so that its marginals do not depend on the weights
        scores, observed = SegmentScores.of(self, np.zeros(self.size)), np.zeros(self.size)
        scores.sum_up({**state, **tokens._asdict()}, known, weight - partly, (0, len(weight)), observed)
        return own, observed

    def tables(self, state: Mapping[str, Any], vector: Floats) -> Any:
        """The scores that a vector of all weights makes."""
        return SegmentScores.of(self, vector)


class SegmentScores(NamedTuple):
    """Weights as the kernels want them."""

    layout: SegmentLayout
    flat: Floats
    tables: kernels.SegmentTables
    dense: Floats

    @classmethod
    def of(cls, layout: SegmentLayout, vector: Floats) -> SegmentScores:
        """Of a vector of all weights."""
        flat, table, dense = layout.split(vector)
        n, zeros = layout.labels.n, np.zeros(layout.labels.n)
        padded = np.zeros((layout.n_dense, layout.kernel.width))
        padded[:, : layout.n_labels] = dense
        table = np.where(layout.labels.allowed, table, -np.inf)
        tables = kernels.SegmentTables(zeros, zeros, table[:n].copy(), table[n:].copy(), layout.n_rows, *layout.tags)
        return cls(layout, flat, tables, padded)

    def dense_scores(self, rows: Any) -> Floats:
        """Scores of dense rows, flat; empty without dense columns."""
        return (rows.astype(np.float64, copy=False) @ self.dense).ravel() if rows.size else _NONE

    def partition(self, state: Mapping[str, Any], shard: tuple[int, int]) -> tuple[float, Floats]:
        """Value and gradient of sequences first .. last - 1: log Z, less that given what is known."""
        gradient = np.zeros(self.layout.size)
        value = self.sum_up(state, _NO_TAGS, state["weight"], shard, gradient)
        if state["partial"][slice(*shard)].any():
            value += self.sum_up(state, state["known"], -state["partial"], shard, gradient)
        return value, gradient

    def sum_up(
        self, state: Mapping[str, Any], known: Any, weight: Floats, shard: tuple[int, int], gradient: Floats
    ) -> float:
        """The weighted sum of log Z of some sequences, whose gradient is added to `gradient`."""
        layout, tokens, log_z = self.layout, TokenAttributes.of(state), np.zeros(len(weight))
        d_flat, d_table, d_dense = layout.split(gradient)
        n = layout.labels.n
        for a, b, rows in batches(tokens.sequence_ptr, state["dense"], *shard):
            rows = rows.astype(np.float64)
            d_rows = self.dense_scores(rows)
            kernels.sum_up(
                tokens, layout.kernel, self.flat, self.tables, known, weight, a, b, d_rows, d_flat, d_table[n:],
                d_table[:n], log_z, _NO_MARGINALS,
            )  # fmt: skip
            _refuse(log_z[a:b], state["first"] + a)
            if rows.size:
                d_dense += (rows.T @ d_rows.reshape(len(rows), -1))[:, : layout.n_labels]
        return float(weight[slice(*shard)] @ log_z[slice(*shard)])

    def of_sequences(
        self, tokens: TokenAttributes, dense: Any, first: int = 0, with_marginals: bool = False
    ) -> Iterator[tuple[TokenAttributes, int, Floats, float, Floats]]:
        """Each sequence, its number of tokens, dense scores, log Z and marginals (n, D, L).

        Messages number the sequences from `first` on.
        """
        for number, (begin, end) in enumerate(pairwise(tokens.sequence_ptr.tolist()), first):
            rows = self.dense_scores(dense[begin:end]) if dense.size else _NONE
            n, log_z = (end - begin) // (1 + self.layout.n_rows), np.zeros(1)
            p = np.zeros((n, *self.tables.length.shape)) if with_marginals else _NO_MARGINALS
            own = tokens._replace(sequence_ptr=np.array([begin, end]))
            kernels.sum_up(
                own, self.layout.kernel, self.flat, self.tables, _NO_TAGS, np.ones(1), 0, 1, rows.copy(), _NONE,
                _NO_TABLE, _NO_TABLE, log_z, p,
            )  # fmt: skip
            _refuse(log_z, number)
            yield own, n, rows, float(log_z[0]), p


def _refuse(score: Floats, first: int) -> None:
    """Refuse sequences without any segmentation."""
    if len(score) and not score.min() > -np.inf and not np.isnan(score).any():
        number = first + int(np.argmin(score))
        raise PotentiaError(f"sequence {number} cannot be cut into segments of the lengths that the labels may have.")
    refuse_infeasible(score, first)


# -- predicting ----------------------------------------------------------------------------------------------------

#: Tokens that a thread labels at a time.
_PIECE_TOKENS = 5_000


def best_segments(
    scores: SegmentScores, tokens: TokenAttributes, dense: Any, threads: int, first: int = 0
) -> list[list[Segment]]:
    """The most likely segments of each sequence; messages number the sequences from `first` on."""
    ptr = tokens.sequence_ptr
    tags, begins, score = (
        np.zeros(int(ptr[-1]), dtype=np.int64),
        np.zeros(int(ptr[-1]), dtype=bool),
        np.zeros(len(ptr) - 1),
    )

    def piece(ends: tuple[int, int]) -> None:
        """Segments of a range of sequences, batch by batch."""
        for a, b, rows in batches(ptr, dense, *ends):
            kernels.best_labels(
                tokens, scores.layout.kernel, scores.flat, scores.tables, a, b, scores.dense_scores(rows), tags, begins,
                score,
            )  # fmt: skip

    map_items(piece, cut_shards(ptr, 1 + len(tags) // _PIECE_TOKENS), threads)
    _refuse(score, first)
    n = scores.layout.token_counts(ptr).tolist()
    return [
        _listed(tags[a : a + size], begins[a : a + size], scores.layout.labels)
        for a, size in zip(ptr.tolist(), n, strict=False)
    ]


def _listed(tags: Any, begins: Any, labels: SegmentLabels) -> list[Segment]:
    """Segments of a sequence's labels and beginnings, without tokens outside."""
    found = []
    for start, end in pairwise([*np.flatnonzero(begins).tolist(), len(tags)]):
        if (name := labels.names[int(tags[start])]) is not None:
            found.append(Segment(start, end, name))
    return found


def k_best_segments(
    scores: SegmentScores, tokens: TokenAttributes, dense: Any, k: int
) -> Iterator[tuple[int, list[tuple[list[Segment], float]]]]:
    """Of each sequence the number of tokens, and the k most likely segmentations with their log-probabilities."""
    layout = scores.layout
    for own, n, rows, log_z, _ in scores.of_sequences(tokens, dense):
        if n == 0:
            yield 0, [([], 0.0)]
            continue
        tags, begins, score = np.zeros((k, n), dtype=np.int64), np.zeros((k, n), dtype=bool), np.zeros(k)
        kernels.k_best_labels(own, layout.kernel, scores.flat, scores.tables, 0, rows, tags, begins, score)
        ranks = np.flatnonzero(score > -np.inf).tolist()
        yield n, [(_listed(tags[r], begins[r], layout.labels), float(score[r] - log_z)) for r in ranks]

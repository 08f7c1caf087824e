"""`SegmentCRF`: a semi-Markov chain, which labels whole segments of sequences of feature dictionaries."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from ..base.resources import thread_count
from ..base.saving import SavedFunction
from ..base.schema import TEXT, Array, Count, Items, Rule, Schema
from ..base.types import PotentiaError, check_count, check_function, check_number
from ..features.attributes import check_sequences
from ..features.schemes import Allowed
from ..kernels.attributes import TokenAttributes
from ..learn.base import Callback
from ..learn.chain import AttributeLabels, ChainWeights
from ..learn.chain_data import OF_LABELS, ChainData, chain_sources
from ..learn.chain_fit import ChainFit
from ..learn.checkpoint import Checkpoint
from ..learn.segments import (
    Segment,
    SegmentLabels,
    SegmentLayout,
    SegmentScores,
    best_segments,
    k_best_segments,
    scheme_tags,
    tags_of_scheme,
    tags_of_segments,
)
from .attribute_model import ATTRIBUTES, AttributeModel, is_consistent

#: Most tokens of a segment; kernels take time and memory in proportion.
_LONGEST = 10_000


class SegmentPath(NamedTuple):
    """Segments of one sequence, or its tags, and log p of them."""

    segments: list[Any]
    log_probability: float


@dataclass(eq=False, repr=False)
class SegmentCRF(AttributeModel):
    r"""A semi-Markov chain CRF: it labels segments of several tokens at once, with a weight for their length.

    The score of a segment is a sum of weights: of the attributes of its tokens, with additional weights for the first
    and the last token; of its label and length, if the label has several lengths; of its label and that of the segment
    before; and of the features of the whole segment that `features` returns. Minimises
    :math:`-\log p(y \mid x) + c_1 |w|_1 + c_2 |w|^2`. Log Z and marginals are exact, in time
    :math:`O(n (L D + L^2))` for L labels and segments of up to D tokens.

    `X` is as in `ChainCRF`. `y` is a list of lists of segments (start, end, label), of tokens start .. end - 1; with a
    `scheme` it is a list of lists of tags. Tokens in no segment are outside. Where y of a sequence is None or, with the
    schemes BIO and BIOES, a tag is None, the likelihood is summed over what is possible.

    Args:
        c1, c2, max_iterations, delta, threads: see `ChainCRF`.
        scheme: "BIO", "BIOES" or "IOB1": y and predictions are tags; None: they are segments.
        max_length: most tokens of a segment; None for the longest of each label in training.
        features: a function of (tokens of a sequence, start, end) that gives features of the whole segment, as a
            dictionary or a list of names. It is called for every possible segment, and is not saved with the model.

    After `fit`: `labels_` (None stands for tokens outside), `max_lengths_` (of each label), `state_features_`,
    `length_features_` and `transition_features_` (weights by name), `history_`, `n_iter_`, `converged_`. Results do not
    depend on the number of threads.

    Example:
        >>> import potentia as pt
        >>> words = [["in", "New", "York", "today"], ["in", "Paris"]]
        >>> X = [[{"word": word} for word in sentence] for sentence in words]
        >>> y = [[(0, 1, "O"), (1, 3, "PLACE"), (3, 4, "O")], [(0, 1, "O"), (1, 2, "PLACE")]]
        >>> model = pt.SegmentCRF(c2=0.01).fit(X, y)
        >>> [tuple(segment) for segment in model.predict(X[:1])[0]]
        [(0, 1, 'O'), (1, 3, 'PLACE'), (3, 4, 'O')]
    """

    _: KW_ONLY
    max_length: int | None = None
    features: Callable[[Sequence[Any], int, int], Any] | None = None

    kind: ClassVar[str] = "SegmentCRF"
    free_options: ClassVar[tuple[str, ...]] = ("max_iterations", "threads", "features")
    saved: ClassVar[Schema] = {
        "dense": Array("f8", ("D", "R")),
        **ATTRIBUTES,
        "labels": Items(TEXT, "N"),
        "outside": Count(most=1),
        "longest": Items(Count(least=1, most=_LONGEST), "L"),
        "rows": Count(most=_LONGEST),
        "feature_label": Array("u2", ("K",), low=0, below=2**16),
        "table": Array("f8", ("T", "L")),
        "layout": Rule(lambda found: _is_consistent(found), "of labels, lengths and features is inconsistent"),
    }

    # -- fitting -------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Iterable[Iterable[Any]],
        y: Sequence[Any],
        *,
        sample_weight: Any = None,
        callback: Callback | None = None,
        progress: bool = False,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
    ) -> Self:
        """Train on sequences; see `ChainCRF.fit` for the options. A fit that fails leaves the model as it was."""
        self._check()
        check_sequences(X)
        held = [sequence if isinstance(sequence, list) else list(sequence) for sequence in X]
        tags = self._tags(y, [len(tokens) for tokens in held])
        labels = self._labels(tags)
        n_rows = int(labels.longest.max()) if self.features is not None else 0
        rows = (self._with_rows(tokens, n_rows) for tokens in held)
        known = [_with_row_tags(row, n_rows) for row in tags]
        self._train(
            lambda marked: ChainData(*chain_sources(rows, known, sample_weight), marked),
            lambda data: self._begin(data, labels, n_rows), callback, progress, checkpoint,
        )  # fmt: skip
        self._set(labels, n_rows)
        return self

    def _begin(self, data: ChainData, labels: SegmentLabels, n_rows: int) -> ChainFit:
        """The fit before its first step."""
        n = len(data.classes)
        everything = Allowed(np.ones(n, dtype=bool), np.ones((n, n), dtype=bool), np.ones(n, dtype=bool))
        scope = np.full(len(data.index), OF_LABELS, dtype=np.uint8)
        states, of_tags, none, _ = data.number(everything, None, scope, 0.0)
        features = labels.features(of_tags, data.classes)
        layout = SegmentLayout.make(features, labels, labels.tags(data.classes), data.n_dense, n_rows)
        return ChainFit(
            data.parts, states, features, none, labels.free, data.n_dense, c1=self.c1, c2=self.c2, delta=self.delta,
            max_iterations=self.max_iterations, threads=self.threads, layout=layout,
        )  # fmt: skip

    def _tags(self, y: Any, lengths: Sequence[int]) -> list[list[str | None]]:
        """A tag per token, None for unknown ones."""
        if isinstance(y, str) or not isinstance(y, Sequence):
            raise PotentiaError(f"y must be a list of lists of segments or tags, not a {type(y).__name__}.")
        if len(y) != len(lengths):
            raise PotentiaError(f"X has {len(lengths)} sequences, but y has {len(y)}.")
        found: list[list[str | None]] = []
        for k, (row, n) in enumerate(zip(y, lengths, strict=True)):
            if row is None:
                found.append([None] * n)
            elif self.scheme is None:
                if any(isinstance(item, str) for item in row):
                    raise PotentiaError(f"y[{k}] has tags: set scheme, or give segments (start, end, label).")
                found.append([*tags_of_segments(row, n, f"y[{k}]")])
            else:
                if len(row) != n:
                    raise PotentiaError(f"X[{k}] has {n} tokens, but y[{k}] has {len(row)} tags.")
                found.append(tags_of_scheme(row, self.scheme, f"y[{k}]"))
        return found

    def _labels(self, tags: Sequence[Sequence[str | None]]) -> SegmentLabels:
        """The labels of known tokens, and the longest segments that they may have."""
        longest: dict[str | None, int] = {}
        for row in tags:
            size = 0
            for tag in row:
                size = 0 if tag is None else 1 if tag[0] in "BSFO" else size + 1
                if tag is not None:
                    label = None if tag == "O" else tag[2:]
                    longest[label] = max(longest.get(label, 1), size)
        if not longest.keys() - {None}:
            raise PotentiaError("y has no segments to learn from.")
        names = sorted(longest, key=lambda label: label or "")
        if self.max_length is not None:
            found = max(longest.values())
            if found > self.max_length:
                raise PotentiaError(f"y has a segment of {found} tokens, but max_length is {self.max_length}.")
            longest = {label: 1 if label is None else self.max_length for label in names}
        return SegmentLabels(names, np.array([longest[label] for label in names]))

    def _with_rows(self, tokens: list[Any], n_rows: int) -> list[Any]:
        """A sequence's tokens and, after them, the features of its segments, `n_rows` for every first token."""
        if not n_rows:
            return tokens
        if self.features is None or isinstance(self.features, SavedFunction):
            raise PotentiaError("this SegmentCRF was trained with a function `features`: set it first.")
        n, rows = len(tokens), []
        for start in range(n):
            for end in range(start + 1, start + n_rows + 1):
                rows.append(self.features(tokens, start, end) if end <= n else {})
        return [*tokens, *rows]

    def _set(self, labels: SegmentLabels, n_rows: int) -> None:
        self.labels_, self.max_lengths_ = list(labels.names), labels.longest.tolist()
        none = np.zeros(0, dtype=np.int64)
        layout = SegmentLayout.make(
            self.weights_.features, labels, (none, none, none), len(self.weights_.dense), n_rows
        )  # fmt: skip
        vector = layout.join(self.weights_.state, self.weights_.pairs, self.weights_.dense)
        self._scores = SegmentScores.of(layout, vector)

    # -- predicting ----------------------------------------------------------------------------------------

    def predict(self, X: Iterable[Iterable[Any]]) -> list[list[Any]]:
        """The most likely segments of each sequence, or its tags if there is a scheme."""
        tokens, dense = self._encoded(X)
        found = best_segments(self._scores, tokens, dense, thread_count(self.threads))
        n_tokens = self._scores.layout.token_counts(tokens.sequence_ptr).tolist()
        return [self._shown(segments, n) for segments, n in zip(found, n_tokens, strict=True)]

    def predict_marginals(self, X: Iterable[Iterable[Any]], least: float = 1e-3) -> list[dict[Segment, float]]:
        """The probability of every segment of each sequence that has at least probability `least`."""
        check_number("least", least)
        tokens, dense = self._encoded(X)
        found = []
        for *_, p in self._scores.of_sequences(tokens, dense, with_marginals=True):
            places = np.argwhere(p >= max(least, 1e-300)).tolist()
            names = ((t, d, self.labels_[k], float(p[t, d, k])) for t, d, k in places)
            found.append({Segment(t, t + d + 1, name): q for t, d, name, q in names if name is not None})
        return found

    def k_best(self, X: Iterable[Iterable[Any]], k: int) -> list[list[SegmentPath]]:
        """The k most likely segmentations of each sequence, best first; fewer where a sequence has fewer."""
        check_count("k", k, 1)
        tokens, dense = self._encoded(X)
        return [
            [SegmentPath(self._shown(segments, n), log_p) for segments, log_p in paths]
            for n, paths in k_best_segments(self._scores, tokens, dense, k)
        ]

    def score(self, X: Iterable[Iterable[Any]], y: Sequence[Any]) -> float:
        """F1 of whole segments."""
        held = [list(sequence) for sequence in X]
        tokens, dense = self._encoded(held)
        guess = best_segments(self._scores, tokens, dense, thread_count(self.threads))
        right = true = predicted = 0
        for segments, tags in zip(guess, self._tags(y, [*map(len, held)]), strict=True):
            if None in tags:
                raise PotentiaError("y must hold the segments of every sequence to compare with.")
            known = {*_segments_of([str(tag) for tag in tags])}
            right += len(known & {*segments})
            true, predicted = true + len(known), predicted + len(segments)
        return 2 * right / (true + predicted) if true + predicted else 1.0

    def _encoded(self, X: Iterable[Iterable[Any]]) -> tuple[TokenAttributes, Any]:
        """Attributes and dense columns of tokens and segments, as the weights number them."""
        self._check_fitted()
        check_sequences(X)
        layout = self._scores.layout
        given: Iterator[Any] = (self._with_rows(list(tokens), layout.n_rows) for tokens in X)
        tokens, dense = self.index_.encode(given)
        return layout.renumbered(tokens), dense

    def _shown(self, segments: list[Segment], n: int) -> list[Any]:
        """Segments as they are, or as tags."""
        return segments if self.scheme is None else scheme_tags(segments, n, self.scheme)

    # -- weights by name -----------------------------------------------------------------------------------

    @property
    def state_features_(self) -> dict[tuple[str, str, str | None], float]:
        """Weights by attribute, part of the segment ("any", "first" or "last" token) and label."""
        self._check_fitted()
        n, parts = len(self.labels_), ("any", "first", "last")
        roles = ((name, *divmod(k, n)) for name, k in self._named(self.weights_.features))
        weights = zip(roles, self.weights_.state.tolist(), strict=True)
        return {(name, parts[role], self.labels_[y]): w for (name, role, y), w in weights}

    @property
    def transition_features_(self) -> dict[tuple[str | None, str | None], float]:
        """Weights of labels of segments that follow each other."""
        self._check_fitted()
        names = self.labels_
        return {(a, b): float(self.weights_.pairs[i, j]) for i, a in enumerate(names) for j, b in enumerate(names)}

    @property
    def length_features_(self) -> dict[tuple[str | None, int], float]:
        """Weights of labels and numbers of tokens; none of labels of single tokens."""
        self._check_fitted()
        table, sizes = self.weights_.pairs[len(self.labels_) :], zip(self.labels_, self.max_lengths_, strict=True)
        return {
            (y, d + 1): float(table[d, k])
            for k, (y, longest) in enumerate(sizes)
            for d in range(longest if longest > 1 else 0)
        }

    # -- saving --------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The fitted model as JSON and arrays."""
        content, arrays = super().state()
        own = {
            "labels": [label for label in self.labels_ if label is not None],
            "outside": int(None in self.labels_),
            "longest": self.max_lengths_,
            "rows": self._scores.layout.n_rows,
        }
        return content | own, arrays | {"table": self.weights_.pairs}

    @classmethod
    def from_state(cls, content: Mapping[str, Any], arrays: Mapping[str, Any]) -> Self:
        """The model that `state` described."""
        model, found = cls._read(content, arrays)
        features = AttributeLabels(found["feature_ptr"], found["feature_label"])
        none = AttributeLabels.none(len(features.ptr) - 1)
        model.weights_ = ChainWeights(features, none, found["state"], found["table"], found["dense"])
        names = [*([None] * found["outside"]), *found["labels"]]
        model._set(SegmentLabels(names, np.array(found["longest"])), found["rows"])
        return model

    # -- checks --------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Refuse bad options."""
        super()._check()
        check_count("max_length", self.max_length, 1, optional=True)
        check_function("features", self.features)


def _with_row_tags(tags: list[str | None], n_rows: int) -> list[str | None]:
    """Tags of tokens, and of the rows of segments those of true ones."""
    rows: list[str | None] = [None] * (len(tags) * n_rows)
    if n_rows and None not in tags:
        for start, end, label in _segments_of([str(tag) for tag in tags]):
            rows[start * n_rows + end - start - 1] = f"M-{label}"
        for t, tag in enumerate(tags):
            if tag == "O":
                rows[t * n_rows] = "O"
    return [*tags, *rows]


def _segments_of(tags: Sequence[str]) -> Iterator[Segment]:
    """The segments of complete tags."""
    start = 0
    for t, tag in enumerate(tags):
        start = t if tag[0] in "BS" else start
        if tag[0] in "ES":
            yield Segment(start, t + 1, tag[2:])


def _is_consistent(found: Mapping[str, Any]) -> bool:
    """Whether labels ascend within each attribute, and sizes are those of the labels and their lengths."""
    n, label = len(found["longest"]), found["feature_label"]
    sizes = (
        len(found["labels"]) + found["outside"] == n
        and len(found["state"]) == len(label)
        and len(found["table"]) == n + max(found["longest"])
        and found["dense"].shape[1] == 3 * n <= np.iinfo(np.uint16).max
        and found["rows"] in (0, max(found["longest"]))
    )
    return is_consistent(found) and sizes and (not len(label) or label.max() < 3 * n)

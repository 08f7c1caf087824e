"""`ChainPredictor`: what a fitted chain predicts of sequences of feature dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, pairwise
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from ..base.resources import thread_count
from ..base.types import Floats, PotentiaError, check_choice, check_count, check_number, length
from ..conformal import THRESHOLDS, missed_shares, risk_threshold
from ..features.attributes import Choices, Label, check_label_type, check_lengths, check_sequences, encode_choices
from ..features.parts import Parts, Sequences, Source
from ..features.schemes import spans
from ..kernels.attributes import TokenAttributes
from ..learn.backends.connection import current, iterate_anywhere
from ..learn.chain import EncodedSequences, best_labels, k_best_labels, likeliest_labels, marginals
from ..learn.chain_data import HeldSequences, cut_lengths
from .chain_model import ChainCalibration, ChainModel
from .chain_spans import Posterior, SpanProbability, SpanTable, posteriors

#: A token's features by name, or their names.
Token = Mapping[str, Any] | Sequence[str]
#: Labels that are possible, like y.
Allowed = Sequence[Sequence[Any]] | None
DECODERS = ("map", "mpm")


class LabelPath(NamedTuple):
    """A labelling of one sequence and log p of it."""

    labels: list[Any]
    log_probability: float


class ChainPredictor(ChainModel):
    """Labels, probabilities and scores of sequences."""

    decode: Literal["map", "mpm"]

    def predict(self, X: Iterable[Iterable[Token]] | Parts, allowed: Allowed = None) -> list[list[Any]]:
        """A list of labels per sequence, by `decode`; the sequences may be `pt.parts`, as in `fit`, with y None.

        allowed: like y, for each token a label, a set of possible labels, or None if all are.
        """
        return list(chain.from_iterable(self._by_part(X, self._predict, allowed)))

    def _by_part(
        self, X: Iterable[Iterable[Token]] | Parts, method: Callable[..., Any], allowed: Allowed = None
    ) -> Iterable[Any]:
        """What a method gives for each part of the sequences, on the cluster if there is one; else they are one."""
        self._check_fitted()
        check_choice("decode", self.decode, DECODERS)
        if allowed is not None:
            if isinstance(X, Parts):
                raise PotentiaError("allowed needs sequences in memory, not parts.")
            return [method(Sequences(X), allowed)]
        if not isinstance(X, Parts) and current() is None:
            return [method(Sequences(X))]
        sources = X.sources if isinstance(X, Parts) else _held(X)
        return iterate_anywhere(partial(_apply, method), sources)

    def _predict(self, given: Sequences, allowed: Allowed = None) -> list[list[Any]]:
        """Labels of sequences, by `decode`."""
        encoded, threads = self._with_choices(given, allowed), thread_count(self.threads)
        if self.decode == "mpm":
            mu, ptr = marginals(encoded, threads)[0], encoded.tokens.sequence_ptr
            numbers = likeliest_labels(ptr, mu, encoded.tables.allowed)
        else:
            numbers = best_labels(encoded, threads)
        return _split([self.classes_[k] for k in numbers.tolist()], encoded.tokens)

    def _with_choices(self, given: Sequences, allowed: Allowed) -> EncodedSequences:
        """Sequences with the labels that are possible; their own labels, if any, are not looked at."""
        encoded = self._encoded(given)
        return encoded._replace(choices=self._choices(allowed, encoded.tokens))

    def predict_single(self, xseq: Iterable[Token]) -> list[Any]:
        """The labels of one sequence."""
        return self.predict([xseq])[0]

    def predict_marginals(
        self, X: Iterable[Iterable[Token]] | Parts, allowed: Allowed = None
    ) -> list[list[dict[Any, float]]]:
        """The probability of every label of every token, as dictionaries; X and `allowed` are as in `predict`."""
        return list(chain.from_iterable(self._by_part(X, self._predict_marginals, allowed)))

    def _predict_marginals(self, given: Sequences, allowed: Allowed = None) -> list[list[dict[Any, float]]]:
        """Marginals of every token as {label: probability}."""
        encoded = self._with_choices(given, allowed)
        rows = marginals(encoded, thread_count(self.threads))[0].tolist()
        return _split([dict(zip(self.classes_, row, strict=True)) for row in rows], encoded.tokens)

    def predict_marginals_single(self, xseq: Iterable[Token]) -> list[dict[Any, float]]:
        """The probability of every label of every token of one sequence."""
        return self.predict_marginals([xseq])[0]

    def log_probability(
        self, X: Iterable[Iterable[Token]], y: Sequence[Sequence[Any]], allowed: Allowed = None
    ) -> list[float]:
        """log p(y | x) of each sequence, given that labels are `allowed`.

        y may have None for any label and sets of labels, over which it sums; -inf where y is not possible.
        """
        self._check_fitted()
        encoded, threads = self._with_choices(Sequences(X), allowed), thread_count(self.threads)
        joint = _both(self._choices(y, encoded.tokens, "y"), encoded.choices)
        whole = marginals(encoded, threads)[1]
        part = marginals(encoded._replace(choices=joint), threads, feasible=False)[1]
        return (part - whole).tolist()

    def predict_pairs(self, X: Iterable[Iterable[Token]]) -> list[Floats]:
        """The probability of every pair of neighbouring labels, (tokens - 1, L, L) per sequence, by `classes_`."""
        found: list[Floats] = []
        for ptr, _, pairs in self._posteriors(X):
            found += [pairs[a + 1 : max(b, a + 1)] for a, b in pairwise(ptr.tolist())]
        return found

    def predict_spans(
        self, X: Iterable[Iterable[Token]], min_probability: float | None = None
    ) -> list[list[SpanProbability]]:
        """The spans (entities) of each sequence's predicted labels, each with its probability, which is exact.

        Labels are read by `scheme`, or as the CoNLL shared tasks do. min_probability: all spans of at least this
        probability instead, whether or not they are predicted.
        """
        if min_probability is not None:
            check_number("min_probability", min_probability)
        kept = X if isinstance(X, list) else list(X)
        self._check_fitted()
        table, found = SpanTable(self.classes_, self.scheme), list[list[SpanProbability]]()
        if min_probability is not None:
            for posterior in self._posteriors(kept):
                found += table.above(posterior, float(min_probability))
            return found
        predicted = [[*spans([*map(str, row)], self.scheme)] for row in self.predict(kept)]
        for posterior in self._posteriors(kept):
            own = predicted[len(found) : len(found) + len(posterior.sequence_ptr) - 1]
            found += [
                [SpanProbability(*span, float(p)) for span, p in zip(row, of_row, strict=True)]
                for row, of_row in zip(own, table.of(posterior, own), strict=True)
            ]
        return found

    def _posteriors(self, X: Iterable[Iterable[Token]]) -> Iterable[Posterior]:
        self._check_fitted()
        return posteriors(self._encoded(Sequences(X)))

    # -- sets with a stated coverage -------------------------------------------------------------------------

    def calibrate(self, X: Iterable[Iterable[Token]], y: Sequence[Sequence[Label | None]]) -> Self:
        """Find out on held-out sequences, not used in `fit`, what sets of labels and of spans miss.

        `predict_set` and `predict_span_sets` then have a stated coverage for sequences that are exchangeable with
        these: conformal risk control [Angelopoulos et al. 2022] of the share missed per sequence.
        """
        kept = X if isinstance(X, list) else list(X)
        self._check_fitted()
        table, place = SpanTable(self.classes_, self.scheme), {label: k for k, label in enumerate(self.classes_)}
        missed, n, n_spanned = np.zeros((2, len(THRESHOLDS))), 0, 0
        check_lengths(y, [len(sequence) for sequence in kept])  # type: ignore[arg-type]
        done = 0
        for posterior in self._posteriors(kept):
            rows = y[done : (done := done + len(posterior.sequence_ptr) - 1)]
            true_spans = [[*spans([str(label) for label in row], self.scheme)] for row in rows]
            of_spans = table.of(posterior, true_spans)
            for begin, row, p in zip(posterior.sequence_ptr.tolist(), rows, of_spans, strict=False):
                scores = [
                    1.0 - posterior.singles[begin + t, place[label]] if label in place else 1.0
                    for t, label in enumerate(row) if label is not None
                ]  # fmt: skip
                if scores:
                    n, missed[0] = n + 1, missed[0] + missed_shares(scores)
                if len(p) and None not in row:
                    n_spanned, missed[1] = n_spanned + 1, missed[1] + missed_shares(np.minimum(1.0 - p, 1.0))
        if not n:
            raise PotentiaError("y has no label to calibrate with.")
        self.calibration_ = ChainCalibration(n, n_spanned, missed)
        return self

    def predict_set(self, X: Iterable[Iterable[Token]], coverage: float = 0.9) -> list[list[set[Any]]]:
        """Sets of labels of every token that have, in expectation, `coverage` of the right labels of a sequence.

        Needs `calibrate`. The likeliest label is always in its set.
        """
        least, names, found = 1.0 - self._threshold(0, coverage), self.classes_, list[list[set[Any]]]()
        for ptr, singles, _ in self._posteriors(X):
            chosen = (1.0 - singles <= 1.0 - least) | (singles == singles.max(axis=1, initial=0.0, keepdims=True))
            sets = [{names[k] for k in np.flatnonzero(row).tolist()} for row in chosen]
            found += [sets[a:b] for a, b in pairwise(ptr.tolist())]
        return found

    def predict_span_sets(self, X: Iterable[Iterable[Token]], coverage: float = 0.9) -> list[list[SpanProbability]]:
        """Spans of every sequence that have, in expectation, `coverage` of its right spans; needs `calibrate`.

        Where sequences have no spans, nothing is missed. A coverage that needs all spans gives all of them.
        """
        threshold = self._threshold(1, coverage)
        least = max(0.0, 1.0 - threshold)
        table = SpanTable(self.classes_, self.scheme)
        return [row for posterior in self._posteriors(X) for row in table.above(posterior, least)]

    def _threshold(self, which: int, coverage: float) -> float:
        self._check_fitted()
        if self.calibration_ is None:
            raise PotentiaError("sets need calibrate(X, y) with sequences that were not used in fit.")
        n = self.calibration_.n_spanned if which else self.calibration_.n
        if not n:
            raise PotentiaError("the sequences that calibrate was given have no spans.")
        return risk_threshold(self.calibration_.missed[which], n, coverage)

    def _choices(self, y: Any, tokens: TokenAttributes, name: str = "allowed") -> Choices | None:
        """Labels that y says are possible, as sets of tokens."""
        if y is None:
            return None
        check_lengths(y, np.diff(tokens.sequence_ptr).tolist())
        sets = [[v if v is None or isinstance(v, set | frozenset | tuple | list) else (v,) for v in row] for row in y]
        return encode_choices(sets, self.classes_, name=name)[1]

    def k_best(self, X: Iterable[Iterable[Token]], k: int) -> list[list[LabelPath]]:
        """The k most likely labellings of each sequence, best first; fewer where a sequence has fewer."""
        check_count("k", k, 1)
        self._check_fitted()
        return [
            [LabelPath([self.classes_[y] for y in path], log_p) for path, log_p in paths]
            for paths in k_best_labels(self._encoded(Sequences(X)), k, thread_count(self.threads))
        ]

    def score(self, X: Iterable[Iterable[Token]] | Parts, y: Sequence[Sequence[Label | None]] | None = None) -> float:
        """Share of known labels that are predicted correctly; y is None for `pt.parts`, which bring their labels."""
        if isinstance(X, Parts):
            counts = self._by_part(X, self._count)
        else:
            counts = [_compare(self.predict(X), [] if y is None else y, self.classes_)]
        right, known = map(sum, zip(*counts, strict=True))
        if not known:
            raise PotentiaError("y has no label to compare with.")
        return right / known

    def _count(self, given: Sequences) -> tuple[int, int]:
        """How many tokens of sequences are predicted right, and how many there are."""
        return _compare(self._predict(given), [] if given.y is None else given.y, self.classes_)


def _held(X: Iterable[Any]) -> list[Source]:
    """Sequences in memory, cut into parts."""
    check_sequences(X)
    kept = [list(sequence) if isinstance(sequence, Iterator) else sequence for sequence in X]
    cuts = cut_lengths([1 if length(sequence) is None else len(sequence) for sequence in kept])
    return [HeldSequences(Sequences(kept[a:b], first=a)) for a, b in cuts]


def _apply(method: Callable[[Sequences], Any], source: Source) -> Any:
    """What a method of a model gives for a part, wherever it is read."""
    return method(source.sequences())


def _compare(
    found: Sequence[Sequence[Any]], y: Sequence[Sequence[Label | None]], classes: Sequence[Label]
) -> tuple[int, int]:
    """How many labels are right, and how many are known."""
    check_label_type(y, classes)
    check_lengths(y, [len(row) for row in found])
    pairs = [(a, b) for p, q in zip(found, y, strict=True) for a, b in zip(p, q, strict=True) if b is not None]
    return sum(a == b for a, b in pairs), len(pairs)


def _both(one: Choices | None, other: Choices | None) -> Choices | None:
    """What both allow."""
    if one is None or other is None:
        return other if one is None else one
    token = np.union1d(one.token, other.token)
    allowed = np.ones((len(token), one.allowed.shape[1]), dtype=bool)
    for choices in (one, other):
        allowed[np.searchsorted(token, choices.token)] &= choices.allowed
    return Choices(token, allowed)


def _split(values: list[Any], tokens: TokenAttributes) -> list[list[Any]]:
    """What belongs to each sequence."""
    return [values[a:b] for a, b in pairwise(tokens.sequence_ptr.tolist())]

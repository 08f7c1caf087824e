"""`ChainPredictor`: what a fitted chain predicts of sequences of feature dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, pairwise
from typing import Any, Literal, NamedTuple

from ..base.resources import thread_count
from ..base.types import PotentiaError, check_choice, check_count
from ..features.attributes import Label, check_label_type, check_lengths, check_sequences
from ..features.parts import Parts, Sequences, Source
from ..kernels.attributes import TokenAttributes
from ..learn.backends.connection import current, iterate_anywhere
from ..learn.chain import best_labels, k_best_labels, likeliest_labels, marginals
from ..learn.chain_data import HeldSequences, cut_lengths
from .chain_model import ChainModel

#: A token's features by name, or their names.
Token = Mapping[str, Any] | Sequence[str]
DECODERS = ("map", "mpm")


class LabelPath(NamedTuple):
    """A labelling of one sequence and log p of it."""

    labels: list[Any]
    log_probability: float


class ChainPredictor(ChainModel):
    """Labels, probabilities and scores of sequences."""

    decode: Literal["map", "mpm"]

    def predict(self, X: Iterable[Iterable[Token]] | Parts) -> list[list[Any]]:
        """A list of labels per sequence, by `decode`; the sequences may be `pt.parts`, as in `fit`, with y None."""
        return list(chain.from_iterable(self._by_part(X, self._predict)))

    def _by_part(self, X: Iterable[Iterable[Token]] | Parts, method: Callable[[Sequences], Any]) -> Iterable[Any]:
        """What a method gives for each part of the sequences, on the cluster if there is one; else they are one."""
        self._check_fitted()
        check_choice("decode", self.decode, DECODERS)
        if not isinstance(X, Parts) and current() is None:
            return [method(Sequences(X))]
        sources = X.sources if isinstance(X, Parts) else _held(X)
        return iterate_anywhere(partial(_apply, method), sources)

    def _predict(self, given: Sequences) -> list[list[Any]]:
        """Labels of sequences, by `decode`."""
        tables, tokens, dense = self._encoded(given)
        threads, names = thread_count(self.threads), self.classes_
        if self.decode == "mpm":
            mu, _ = marginals(tables, tokens, dense, threads, given.first)
            numbers = likeliest_labels(tokens.sequence_ptr, mu, tables.allowed)
        else:
            numbers = best_labels(tables, tokens, dense, threads, given.first)
        return _split([names[k] for k in numbers.tolist()], tokens)

    def predict_single(self, xseq: Iterable[Token]) -> list[Any]:
        """The labels of one sequence."""
        return self.predict([xseq])[0]

    def predict_marginals(self, X: Iterable[Iterable[Token]] | Parts) -> list[list[dict[Any, float]]]:
        """The probability of every label of every token, as dictionaries; the sequences may be `pt.parts`."""
        return list(chain.from_iterable(self._by_part(X, self._predict_marginals)))

    def _predict_marginals(self, given: Sequences) -> list[list[dict[Any, float]]]:
        """Marginals of every token as {label: probability}."""
        tables, tokens, dense = self._encoded(given)
        rows = marginals(tables, tokens, dense, thread_count(self.threads), given.first)[0].tolist()
        return _split([dict(zip(self.classes_, row, strict=True)) for row in rows], tokens)

    def predict_marginals_single(self, xseq: Iterable[Token]) -> list[dict[Any, float]]:
        """The probability of every label of every token of one sequence."""
        return self.predict_marginals([xseq])[0]

    def k_best(self, X: Iterable[Iterable[Token]], k: int) -> list[list[LabelPath]]:
        """The k most likely labellings of each sequence, best first; fewer where a sequence has fewer."""
        check_count("k", k, 1)
        self._check_fitted()
        return [
            [LabelPath([self.classes_[y] for y in path], log_p) for path, log_p in paths]
            for paths in k_best_labels(*self._encoded(Sequences(X)), k, thread_count(self.threads))
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
    cuts = cut_lengths([len(sequence) if hasattr(sequence, "__len__") else 1 for sequence in kept])
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


def _split(values: list[Any], tokens: TokenAttributes) -> list[list[Any]]:
    """What belongs to each sequence."""
    return [values[a:b] for a, b in pairwise(tokens.sequence_ptr.tolist())]

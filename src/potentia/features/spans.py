"""Spans that labels such as B-NP and I-NP encode, and how well predicted ones agree with the truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..base.options import check_choice, texts_of
from ..base.types import PotentiaError, shown
from .schemes import SCHEMES

#: (first, end, type) of a span.
Span = tuple[int, int, str]
Labels = Sequence[Sequence[str]]


def span_scores(truth: Labels, predicted: Labels, scheme: str | None = None) -> dict[str, float]:
    """Precision, recall and F1 of whole spans, all types together.

    scheme: None counts as the CoNLL shared tasks do (any of B, I, E and S may begin a span of its type, so that labels
    in BIO, IOB1 and BIOES are all read rightly); "BIO", "BIOES" or "IOB1" counts spans only that are complete in the
    scheme, as seqeval's strict mode.
    """
    return count_spans(truth, predicted, scheme).scores()


def span_table(truth: Labels, predicted: Labels, scheme: str | None = None) -> list[dict[str, Any]]:
    """The same for every type of span, with the number of true ones (`support`); types in alphabetical order."""
    return count_spans(truth, predicted, scheme).table()


class SpanCounts(NamedTuple):
    """By type: spans that are right, true and found."""

    right: Counter[str]
    wanted: Counter[str]
    found: Counter[str]

    def plus(self, other: SpanCounts) -> SpanCounts:
        """The counts of both."""
        return SpanCounts(*(a + b for a, b in zip(self, other, strict=True)))

    def scores(self) -> dict[str, float]:
        """Precision, recall and F1 of all types together."""
        return _scores(self.right.total(), self.wanted.total(), self.found.total())

    def table(self) -> list[dict[str, Any]]:
        """The same for every type, with the number of true ones."""
        right, wanted, found = self
        return [
            {"type": kind, **_scores(right[kind], wanted[kind], found[kind]), "support": wanted[kind]}
            for kind in sorted({*wanted, *found})
        ]


def count_spans(truth: Labels, predicted: Labels, scheme: str | None = None) -> SpanCounts:
    """Spans of sequences that are right, true and found."""
    if scheme is not None:
        check_choice("scheme", scheme, SCHEMES, "None")
    for name, given in (("truth", truth), ("predicted", predicted)):
        if not np.iterable(given) or not hasattr(given, "__len__"):
            raise PotentiaError(f"{name} must be a list of sequences of labels, not {shown(given)}.")
    if len(truth) != len(predicted):
        raise PotentiaError(f"truth has {len(truth)} sequences, but predicted has {len(predicted)}.")
    right: Counter[str] = Counter()
    wanted: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for number, (true, guess) in enumerate(zip(truth, predicted, strict=True)):
        a, b = texts_of(f"truth[{number}]", true), texts_of(f"predicted[{number}]", guess)
        if len(a) != len(b):
            raise PotentiaError(f"sequence {number} has {len(a)} true labels, but {len(b)} predicted ones.")
        own, other = set(spans(a, scheme)), set(spans(b, scheme))
        for counter, some in ((right, own & other), (wanted, own), (found, other)):
            counter.update(kind for _, _, kind in some)
    return SpanCounts(right, wanted, found)


def _scores(right: int, wanted: int, found: int) -> dict[str, float]:
    f1 = 2 * right / (wanted + found) if wanted + found else 1.0
    return {"precision": right / max(found, 1), "recall": right / max(wanted, 1), "f1": f1}


def spans(labels: Sequence[str], scheme: str | None = None) -> Iterator[Span]:
    """(first, end, type) of every span; see `span_scores`."""
    begins, closes = _RULES[scheme]
    start, last = -1, ("O", "")
    for t, label in enumerate([*labels, "O"]):
        tag = _parse(label)
        inside = start >= 0 and tag[0] in "IE" and tag[1] == last[1] and last[0] in "BI"
        if start >= 0 and not inside:
            if closes(last[0]):
                yield start, t, last[1]
            start = -1
        if not inside and begins(last, tag):
            start = t
        last = tag


def _parse(label: str) -> tuple[str, str]:
    """The mark and the type of a label; labels without a mark are outside all spans."""
    mark, _, kind = label.partition("-")
    return (mark, kind) if mark in ("B", "I", "E", "S") else ("O", "")


_Tag = tuple[str, str]
_Rules = tuple[Callable[[_Tag, _Tag], bool], Callable[[str], bool]]


def _iob1_begins(before: _Tag, tag: _Tag) -> bool:
    """I begins a span if none is open; B only next to one of its type."""
    return tag[0] == "I" or (tag[0] == "B" and before[0] in "BI" and before[1] == tag[1])


#: Whether a tag that continues no span begins one, after which tag; and with which marks a span may end.
_RULES: dict[str | None, _Rules] = {
    None: (lambda before, tag: tag[0] != "O", lambda mark: True),
    "BIO": (lambda before, tag: tag[0] == "B", lambda mark: mark in "BI"),
    "IOB1": (_iob1_begins, lambda mark: mark in "BI"),
    "BIOES": (lambda before, tag: tag[0] in "BS", lambda mark: mark in "ES"),
}

"""Spans as tags such as B-NP and I-NP: which may follow which, their spans, and how well predictions agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..base.types import Bools, Ints, PotentiaError, check_choice, length, shown, texts_of

#: The mark of a tag, such as B, and the type of its span.
_Tag = tuple[str, str]


class Allowed(NamedTuple):
    """What a scheme allows: first tags (L,), pairs of neighbouring tags (L, L), last tags (L,)."""

    start: Bools
    transitions: Bools
    end: Bools


#: The tag before the first and after the last.
_EDGE = ("O", "")


def _continues(before: _Tag, after: _Tag) -> bool:
    """Whether the tag before is of an open span of the same type."""
    return before[0] in "BI" and before[1] == after[1]


#: The names of all schemes, their marks, and whether one tag may follow another: where every span begins with B; where
#: spans begin with I, and with B after a span of the same type; where spans are B I ... E or a single S.
SCHEMES = ("BIO", "BIOES", "IOB1")
_MARKS = {"BIO": "BI", "IOB1": "BI", "BIOES": "BIES"}
_MAY_FOLLOW: dict[str, Callable[[_Tag, _Tag], bool]] = {
    "BIO": lambda before, after: after[0] != "I" or _continues(before, after),
    "IOB1": lambda before, after: after[0] != "B" or _continues(before, after),
    "BIOES": lambda before, after: _continues(before, after) if after[0] in "IE" else before[0] not in "BI",
}


def allowed_tags(tags: Sequence[str], scheme: str) -> Allowed:
    """What the scheme "BIO", "BIOES" or "IOB1" allows for tags such as "O" and "B-NP"."""
    check_choice("scheme", scheme, SCHEMES, "None")
    rule, parsed = _MAY_FOLLOW[scheme], [_parse(str(tag), scheme) for tag in tags]
    return Allowed(
        np.array([rule(_EDGE, tag) for tag in parsed], dtype=bool),
        np.array([[rule(a, b) for b in parsed] for a in parsed], dtype=bool),
        np.array([rule(tag, _EDGE) for tag in parsed], dtype=bool),
    )


def forbidden_labels(sequence_ptr: Ints, labels: Any, allowed: Allowed) -> Bools:
    """Tokens whose label is not allowed after the one before, or at the beginning or end of its sequence."""
    filled = np.flatnonzero(np.diff(sequence_ptr))
    starts, ends = sequence_ptr[filled], sequence_ptr[filled + 1] - 1
    bad = np.zeros(len(labels), dtype=bool)
    both = (labels[:-1] >= 0) & (labels[1:] >= 0)
    bad[1:] = both & ~allowed.transitions[labels[:-1], labels[1:]]
    bad[starts] = (labels[starts] >= 0) & ~allowed.start[labels[starts]]
    bad[ends] |= (labels[ends] >= 0) & ~allowed.end[labels[ends]]
    return bad


def check_allowed(
    sequence_ptr: Ints, labels: Any, classes: Sequence[Any], allowed: Allowed, scheme: str | None, first: int = 0
) -> None:
    """Refuse labels that the scheme, or constraints if it is None, does not allow.

    Messages number the sequences from `first` on.
    """
    bad = forbidden_labels(sequence_ptr, labels, allowed)
    if bad.any():
        rules = "the constraints" if scheme is None else f"the scheme {scheme}"
        token = int(np.argmax(bad))
        number = int(np.searchsorted(sequence_ptr, token, side="right")) - 1
        raise PotentiaError(
            f"the label {classes[labels[token]]!r} of token {token - int(sequence_ptr[number])} in y[{first + number}] "
            f"is not allowed there in {rules}; correct it, or "
            "leave these out."
        )


def find_scheme(labels: Iterable[Sequence[str | None]]) -> str | None:
    """The first of BIO, BIOES and IOB1 that allows all these sequences; None if none does or no label is a span's.

    None among labels is an unknown label, which is allowed anywhere.
    """
    sequences = list(labels)
    names = {name for row in sequences for name in row if name is not None}
    if names <= {"O"}:
        return None
    return next((scheme for scheme, count in scheme_breaks(sequences).items() if count == 0), None)


def scheme_breaks(sequences: Sequence[Sequence[str | None]]) -> dict[str, int]:
    """How many of these sequences break each scheme that has tags of these names."""
    names = sorted({name for row in sequences for name in row if name is not None})
    if not names:
        return dict.fromkeys(SCHEMES, 0)
    place: dict[str | None, int] = {name: k for k, name in enumerate(names)} | {None: -1}
    labels, ptr = np.array([place[y] for row in sequences for y in row]), np.cumsum([0, *map(len, sequences)])
    found = {}
    for scheme in SCHEMES:
        if all(_is_tag(name, scheme) for name in names):
            bad = np.flatnonzero(forbidden_labels(ptr, labels, allowed_tags(names, scheme)))
            found[scheme] = len(np.unique(np.searchsorted(ptr, bad, side="right")))
    return found


def _is_tag(tag: str, scheme: str) -> bool:
    """Whether a text is "O", or a mark of the scheme with a type."""
    mark, _, kind = tag.partition("-")
    return tag == "O" or (len(mark) == 1 and mark in _MARKS[scheme] and kind != "")


def _parse(tag: str, scheme: str) -> _Tag:
    """Mark and type of a tag; refuses others than the scheme's."""
    if not _is_tag(tag, scheme):
        raise PotentiaError(
            f"tag {tag!r} is not a tag of the scheme {scheme}: expected 'O' or one of {', '.join(_MARKS[scheme])} "
            "followed by '-' and a type."
        )
    mark, _, kind = tag.partition("-")
    return mark, kind


# -- spans ---------------------------------------------------------------------------------------------------

#: (first, end, type) of a span.
Span = tuple[int, int, str]
Labels = Sequence[Sequence[str]]


def span_scores(truth: Labels, predicted: Labels, scheme: str | None = None) -> dict[str, float]:
    """Precision, recall and F1 of whole spans, all types together.

    scheme: None counts as the CoNLL shared tasks do (any of B, I, E and S may begin a span of its type, so that labels
    in BIO, IOB1 and BIOES are all read rightly); "BIO", "BIOES" or "IOB1" counts spans only that are complete in the
    scheme, as seqeval's strict mode.
    """
    return count_tags(truth, predicted, scheme).span_scores()


def span_table(truth: Labels, predicted: Labels, scheme: str | None = None) -> list[dict[str, Any]]:
    """Precision, recall and F1 of every type of span, with the number of true ones (`support`), sorted by type."""
    return count_tags(truth, predicted, scheme).span_table()


class TagCounts(NamedTuple):
    """Sentences, tokens and tokens whose tag is right; by type, spans that are right, true and predicted."""

    sentences: int
    tokens: int
    right_tokens: int
    right: Counter[str]
    true: Counter[str]
    predicted: Counter[str]

    def plus(self, other: TagCounts) -> TagCounts:
        """The counts of both."""
        sums: Iterator[Any] = (a + b for a, b in zip(self, other, strict=True))  # type: ignore[operator]
        return TagCounts(*sums)

    def span_scores(self) -> dict[str, float]:
        """Precision, recall and F1 of all types together."""
        return _scores(self.right.total(), self.true.total(), self.predicted.total())

    def span_table(self) -> list[dict[str, Any]]:
        """Precision, recall and F1 of every type, with the number of true spans."""
        right, true, predicted = self.right, self.true, self.predicted
        return [
            {"type": kind, **_scores(right[kind], true[kind], predicted[kind]), "support": true[kind]}
            for kind in sorted({*true, *predicted})
        ]


def count_tags(truth: Labels, predicted: Labels, scheme: str | None = None) -> TagCounts:
    """Tokens and spans of sequences that are right, true and predicted."""
    check_choice("scheme", scheme, SCHEMES, "None")
    for name, given in (("truth", truth), ("predicted", predicted)):
        if not np.iterable(given) or length(given) is None:
            raise PotentiaError(f"{name} must be a list of sequences of labels, not {shown(given)}.")
    if len(truth) != len(predicted):
        raise PotentiaError(f"truth has {len(truth)} sequences, but predicted has {len(predicted)}.")
    n_tokens, n_right, counters = 0, 0, (Counter[str](), Counter[str](), Counter[str]())
    for number, (true, guess) in enumerate(zip(truth, predicted, strict=True)):
        a, b = texts_of(f"truth[{number}]", true), texts_of(f"predicted[{number}]", guess)
        if len(a) != len(b):
            raise PotentiaError(f"sequence {number} has {len(a)} true labels, but {len(b)} predicted ones.")
        n_tokens, n_right = n_tokens + len(a), n_right + sum(x == y for x, y in zip(a, b, strict=True))
        of_truth, of_guess = set(spans(a, scheme)), set(spans(b, scheme))
        for counter, some in zip(counters, (of_truth & of_guess, of_truth, of_guess), strict=True):
            counter.update(kind for _, _, kind in some)
    return TagCounts(len(truth), n_tokens, n_right, *counters)


def _scores(right: int, true: int, predicted: int) -> dict[str, float]:
    """Precision, recall and F1 from counts of spans."""
    f1 = 2 * right / (true + predicted) if true + predicted else 1.0
    return {"precision": right / max(predicted, 1), "recall": right / max(true, 1), "f1": f1}


def spans(labels: Sequence[str], scheme: str | None = None) -> Iterator[Span]:
    """(first, end, type) of every span; see `span_scores`."""
    begins, closes = _SPAN_RULES[scheme]
    start, last = -1, _EDGE
    for t, label in enumerate([*labels, "O"]):
        tag = _split_tag(label)
        inside = start >= 0 and tag[0] in "IE" and _continues(last, tag)
        if start >= 0 and not inside:
            if closes(last[0]):
                yield start, t, last[1]
            start = -1
        if not inside and begins(last, tag):
            start = t
        last = tag


def span_rules(labels: Sequence[str], scheme: str | None) -> tuple[Bools, Bools, Bools, Bools, list[str]]:
    """What `spans` reads of neighbouring labels that the scheme allows.

    Which label begins a span after which (L, L), which continues the span of which (L, L), which begins one at the
    start of a sequence (L,), with which a span may end (L,), and the types of labels.
    """
    begins, closes = _SPAN_RULES[scheme]
    tags = [_split_tag(label) for label in labels]
    inside = np.array([[b[0] in "IE" and _continues(a, b) for b in tags] for a in tags], dtype=bool)
    starts = np.array([[begins(a, b) for b in tags] for a in tags], dtype=bool) & ~inside
    first = np.array([begins(_EDGE, tag) for tag in tags], dtype=bool)
    return starts, inside, first, np.array([closes(tag[0]) for tag in tags]), [kind for _, kind in tags]


def _split_tag(label: str) -> _Tag:
    """The mark and the type of a label; labels without a mark are outside all spans."""
    mark, _, kind = label.partition("-")
    return (mark, kind) if mark in ("B", "I", "E", "S") else _EDGE


_Rules = tuple[Callable[[_Tag, _Tag], bool], Callable[[str], bool]]


#: Whether a tag that continues no span begins one, after which tag; and with which marks a span may end.
_SPAN_RULES: dict[str | None, _Rules] = {
    None: (lambda before, tag: tag[0] != "O", lambda mark: True),
    "BIO": (lambda before, tag: tag[0] == "B", lambda mark: mark in "BI"),
    "IOB1": (lambda last, tag: tag[0] == "I" or (tag[0] == "B" and _continues(last, tag)), lambda mark: mark in "BI"),
    "BIOES": (lambda before, tag: tag[0] in "BS", lambda mark: mark in "ES"),
}

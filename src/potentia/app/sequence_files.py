"""Token files in parts: where to cut them, what their sentences have, and which are held out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..base.saving import digest_of
from ..base.types import Ints, PotentiaError
from ..features.schemes import SCHEMES, scheme_breaks
from ..features.sequences import TokenSpan, no_tokens, token_spans
from .pipeline import seen_by_workers
from .training import Run

#: Bytes of a file that are read as one part, up to the next sentence. Cuts never depend on the number of workers.
SPAN_BYTES = 1 << 22

#: Share of sentences that may break a scheme for the user to be told, and what breaks it most often.
_ALMOST = 0.25
_BROKEN = {
    "BIO": "an I- that continues no span of its type",
    "BIOES": "a span without its B-, E- or S-",
    "IOB1": "a B- that follows no span of its type",
}

#: A column of numbers has at least this many different ones, and this share of its numbers are different.
_MANY_NUMBERS, _DIFFERENT = 20, 0.2

#: A span and the numbers of the sentences wanted of it; None for all.
Chosen = tuple[TokenSpan, Ints | None]


def spans_by_file(source: Path, encoding: str | None) -> dict[Path, list[TokenSpan]]:
    """The spans of a token file, or of all files of a folder, in the order of their names."""
    place = seen_by_workers(source)
    files = [place]
    if place.is_dir():
        files = sorted(path for path in place.iterdir() if path.is_file() and not path.name.startswith("."))
        if not files:
            raise PotentiaError(f"{source} has no files.")
    return {path: token_spans(path, encoding, SPAN_BYTES) for path in files}


def choose(sentences: list[Any], numbers: Ints | None) -> list[Any]:
    """The sentences of these numbers; None for all."""
    return sentences if numbers is None else [sentences[k] for k in numbers]


class SpanFacts(NamedTuple):
    """What some sentences have.

    Attributes:
        breaks: counts of sentences that break a scheme.
        joined: whether any sentence has two tokens.
        first: the label of the file's first token, if it is among these sentences, and how often it occurs in them.
        numbers: columns before the label that hold many different numbers, and nothing else.
    """

    sentences: int
    tokens: int
    columns: int | None
    digest: str
    labels: Mapping[str, int]
    breaks: Mapping[str, int]
    joined: bool
    first: str | None
    numbers: frozenset[int]


def look(item: Chosen) -> SpanFacts:
    """Read sentences for a first time."""
    sentences = choose(item[0].sentences(labelled=True), item[1])
    labels = [sentence[-1] for sentence in sentences]
    return SpanFacts(
        len(sentences),
        sum(map(len, labels)),
        len(sentences[0]) if sentences else None,
        digest_of("\n".join("\t".join(column) for column in sentence) for sentence in sentences),
        Counter(label for row in labels for label in row),
        scheme_breaks(labels),
        any(len(row) > 1 for row in labels),
        labels[0][0] if labels and item[0].first == 0 else None,
        frozenset(_number_columns(sentences)),
    )


def _number_columns(sentences: Sequence[Any]) -> Iterator[int]:
    """Columns between words and labels that hold many different numbers."""
    for column in range(1, len(sentences[0]) - 1 if sentences else 0):
        values = [value for sentence in sentences for value in sentence[column]]
        different = len(set(values))
        if different >= max(_MANY_NUMBERS, _DIFFERENT * len(values)) and all(map(_is_number, values)):
            yield column


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def doubtful(span_facts: Sequence[SpanFacts]) -> Iterator[str]:
    """What to tell the user of lines that look like headers and of columns of numbers."""
    labels = sum((Counter(facts.labels) for facts in span_facts), Counter[str]())
    firsts = Counter(facts.first for facts in span_facts if facts.first is not None)
    for label, n in firsts.items():
        if labels[label] == n < len(labels) and labels.total() >= _MANY_NUMBERS:
            yield (
                f"the label {label!r} occurs in the first line only, which may be a header; if it is, delete that line."
            )
    for column in sorted(frozenset[int]().union(*(facts.numbers for facts in span_facts))):
        yield (
            f"column {column + 1} holds many different numbers, each of which is a separate feature, however close "
            "they are: round them, or train pt.ChainCRF in Python, which takes numbers."
        )


def split(run: Run, spans: Sequence[TokenSpan], counts: Sequence[int]) -> tuple[list[Chosen], list[Chosen]]:
    """Spans with the sentences to train on, and with those that are held out."""
    if run.validation is None:
        return [(span, None) for span in spans], []
    ends = np.cumsum([0, *counts])
    own, held = (
        [
            (span, part[(part >= a) & (part < b)] - a)
            for span, (a, b) in zip(spans, pairwise(ends), strict=True)
        ]
        for part in run.split(int(ends[-1]))
    )
    return own, [item for item in held if len(item[1])]


def find_scheme(span_facts: Sequence[SpanFacts]) -> str | None:
    """The first scheme that allows all labels; None if there is none or no label is a span's."""
    if all(facts.labels.keys() <= {"O"} for facts in span_facts):
        return None
    return next((name for name in SCHEMES if all(facts.breaks.get(name) == 0 for facts in span_facts)), None)


def scheme_note(span_facts: Sequence[SpanFacts]) -> str | None:
    """What to tell the user if most sentences keep to a scheme and a few break it; None otherwise."""
    total = sum(facts.sentences for facts in span_facts)
    counts = {
        name: sum(facts.breaks[name] for facts in span_facts)
        for name in SCHEMES
        if all(name in facts.breaks for facts in span_facts)
    }
    name = min(counts, key=counts.__getitem__, default=None)
    if name is None or not 0 < counts[name] <= _ALMOST * total:
        return None
    return (
        f"labels look like {name}, but {counts[name]} of {total} sentences break it (such as "
        f"{_BROKEN[name]}), so impossible sequences of labels may be predicted; correct these sentences "
        "to exclude them, or give --scheme none."
    )


def check_columns(source: Path, spans: Sequence[TokenSpan], span_facts: Sequence[SpanFacts]) -> int:
    """The number of columns of all files, which must be one and at least two."""
    numbers = {
        span.path: facts.columns
        for span, facts in zip(spans, span_facts, strict=True)
        if facts.columns is not None
    }
    if not numbers:
        raise no_tokens(source)
    first, wanted = next(iter(numbers.items()))
    other = next((path for path, number in numbers.items() if number != wanted), None)
    if other is not None:
        raise PotentiaError(f"{other} has {numbers[other]} columns, but {first} has {wanted}.")
    if wanted < 2:
        raise PotentiaError(f"{source}: sentences need at least two columns: words, and labels last.")
    return wanted


def check_labels(source: Path, span_facts: Sequence[SpanFacts]) -> None:
    """Refuse files that there is nothing to learn from."""
    values = frozenset[str]().union(*(facts.labels for facts in span_facts))
    if len(values) < 2:
        shown = next(iter(values), "")
        raise PotentiaError(
            f"{source}: the last column, which holds the labels, has only one value, {shown!r}."
        )
    if not any(facts.joined for facts in span_facts):
        raise PotentiaError(f"{source}: no two words to train on are neighbours: each stands alone.")

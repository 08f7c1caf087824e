"""Which tags may follow which in the usual encodings of spans as tags."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ..base.options import check_choice
from ..base.types import Bools, PotentiaError


class Allowed(NamedTuple):
    """What a scheme allows: first tags (L,), pairs of neighbouring tags (L, L), last tags (L,)."""

    start: Bools
    transitions: Bools
    end: Bools


class _Tag(NamedTuple):
    mark: str
    type: str


#: The tag before the first and after the last.
_EDGE = _Tag("O", "")


def _bio(before: _Tag, after: _Tag) -> bool:
    """Every span begins with B: I continues a span of its type."""
    return after.mark != "I" or (before.mark in "BI" and before.type == after.type)


def _iob1(before: _Tag, after: _Tag) -> bool:
    """Spans begin with I; B separates a span from one of the same type that ends just before it."""
    return after.mark != "B" or (before.mark in "BI" and before.type == after.type)


def _bioes(before: _Tag, after: _Tag) -> bool:
    """B I ... E, or S alone: what B or I opened continues as I or E of its type, and nothing else does."""
    opened = before.mark in "BI"
    return opened == (after.mark in "IE") and (not opened or before.type == after.type)


#: The names of all schemes.
SCHEMES = ("BIO", "BIOES", "IOB1")
_MARKS = {"BIO": "BI", "IOB1": "BI", "BIOES": "BIES"}
_RULES: dict[str, Callable[[_Tag, _Tag], bool]] = {"BIO": _bio, "IOB1": _iob1, "BIOES": _bioes}


def allowed_tags(tags: Sequence[str], scheme: str) -> Allowed:
    """What the scheme "BIO", "BIOES" or "IOB1" allows for tags such as "O" and "B-NP"."""
    check_choice("scheme", scheme, SCHEMES)
    rule, parsed = _RULES[scheme], [_parse(tag, scheme) for tag in tags]
    return Allowed(
        np.array([rule(_EDGE, tag) for tag in parsed], dtype=bool),
        np.array([[rule(a, b) for b in parsed] for a in parsed], dtype=bool),
        np.array([rule(tag, _EDGE) for tag in parsed], dtype=bool),
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
    place: dict[str | None, int] = {name: k for k, name in enumerate(names)} | {None: -1}
    found = {}
    for scheme in SCHEMES:
        if all(_is_tag(name, scheme) for name in names):
            allowed = allowed_tags(names, scheme)
            found[scheme] = sum(not _follows(allowed, [place[y] for y in row]) for row in sequences)
    return found


def _follows(allowed: Allowed, row: Sequence[int]) -> bool:
    """Whether a scheme allows these tags; -1 is any."""
    if not row:
        return True
    pairs = all(allowed.transitions[a, b] for a, b in pairwise(row) if a >= 0 and b >= 0)
    ends = (row[0] < 0 or allowed.start[row[0]]) and (row[-1] < 0 or allowed.end[row[-1]])
    return bool(pairs and ends)


def _is_tag(tag: str, scheme: str) -> bool:
    mark, _, kind = tag.partition("-")
    return tag == "O" or (len(mark) == 1 and mark in _MARKS[scheme] and kind != "")


def _parse(tag: str, scheme: str) -> _Tag:
    mark, _, kind = str(tag).partition("-")
    if not _is_tag(str(tag), scheme):
        raise PotentiaError(
            f"tag {tag!r} is not a tag of the scheme {scheme}: expected 'O' or one of {', '.join(_MARKS[scheme])} "
            "followed by '-' and a type."
        )
    return _Tag(mark, kind)

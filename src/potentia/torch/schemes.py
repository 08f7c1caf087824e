"""Which tags may follow which in the usual encodings of spans as tags."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from .._types import Bools, PotentiaError


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
    """B I ... E, or S alone: what B or I opened goes on as I or E of its type, and nothing else does."""
    opened = before.mark in "BI"
    return opened == (after.mark in "IE") and (not opened or before.type == after.type)


_MARKS = {"BIO": "BI", "IOB1": "BI", "BIOES": "BIES"}
_RULES: dict[str, Callable[[_Tag, _Tag], bool]] = {"BIO": _bio, "IOB1": _iob1, "BIOES": _bioes}


def allowed_tags(tags: Sequence[str], scheme: str) -> Allowed:
    """What the scheme "BIO", "BIOES" or "IOB1" allows for tags such as "O" and "B-NP"."""
    if scheme not in _RULES:
        raise PotentiaError(f"scheme must be one of {', '.join(_RULES)}, not {scheme!r}.")
    rule, parsed = _RULES[scheme], [_parse(tag, scheme) for tag in tags]
    return Allowed(
        np.array([rule(_EDGE, tag) for tag in parsed], dtype=bool),
        np.array([[rule(a, b) for b in parsed] for a in parsed], dtype=bool),
        np.array([rule(tag, _EDGE) for tag in parsed], dtype=bool),
    )


def _parse(tag: str, scheme: str) -> _Tag:
    mark, _, kind = str(tag).partition("-")
    if tag != "O" and not (len(mark) == 1 and mark in _MARKS[scheme] and kind):
        raise PotentiaError(
            f"tag {tag!r} is no tag of the scheme {scheme}: expected 'O' or one of {', '.join(_MARKS[scheme])} "
            "followed by '-' and a type."
        )
    return _Tag(mark, kind)

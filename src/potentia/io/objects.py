"""Learners and inference methods as JSON: the class by name, and its options."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from .._types import PotentiaError
from ..inference.exact import Exact
from ..inference.gibbs import Gibbs
from ..inference.linear_program import LinearProgram
from ..inference.mean_field import MeanField
from ..inference.message_passing import TRW, Kikuchi, LoopyBP, MessagePassing, Smoothed
from ..learn.iterated import IteratedLogistic

_KNOWN = (
    Exact,
    Gibbs,
    LinearProgram,
    MeanField,
    TRW,
    Kikuchi,
    LoopyBP,
    MessagePassing,
    Smoothed,
    IteratedLogistic,
)
CLASSES = {kind.__name__: kind for kind in _KNOWN}


def to_json(thing: Any) -> dict[str, Any] | None:
    """{"class": name, "options": {...}}; a function among the options is left out, loading gives the default."""
    if thing is None:
        return None
    if type(thing).__name__ not in CLASSES:
        raise PotentiaError(f"a {type(thing).__name__} cannot be saved; only the library's own methods can")
    options = {f.name: getattr(thing, f.name) for f in fields(thing) if not callable(getattr(thing, f.name))}
    return {"class": type(thing).__name__, "options": options}


def from_json(content: dict[str, Any] | None) -> Any:
    """The object that `to_json` described."""
    if content is None:
        return None
    if content["class"] not in CLASSES:
        raise PotentiaError(f"the file names a method {content['class']!r} that this version does not have")
    return CLASSES[content["class"]](**content["options"])

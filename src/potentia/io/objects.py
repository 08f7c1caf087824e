"""Learners and inference methods as JSON: the class by name, and its options."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from .._types import PotentiaError
from ..adjoint.gradient import GRADIENTS
from ..inference.exact import Exact
from ..inference.gibbs import Gibbs
from ..inference.linear_program import LinearProgram
from ..inference.map import MAP
from ..inference.mean_field import MeanField
from ..inference.message_passing import TRW, Kikuchi, LoopyBP, MessagePassing, Smoothed
from ..learn.iterated import IteratedLogistic
from ..learn.max_margin import MaxMargin
from ..learn.risk import MarginalRisk
from ..losses.base import Loss
from ..losses.names import LOSSES

_KNOWN = (
    Exact,
    Gibbs,
    LinearProgram,
    MAP,
    MeanField,
    TRW,
    Kikuchi,
    LoopyBP,
    MessagePassing,
    Smoothed,
    IteratedLogistic,
    MaxMargin,
    MarginalRisk,
    *GRADIENTS.values(),
    *LOSSES.values(),
)
CLASSES = {kind.__name__: kind for kind in _KNOWN}


def to_json(thing: Any) -> dict[str, Any] | None:
    """{"class": name, "options": {...}}.

    A function or an object of one's own class among the options is left out; loading gives the default.
    """
    if thing is None:
        return None
    if type(thing).__name__ not in CLASSES:
        raise PotentiaError(f"a {type(thing).__name__} cannot be saved; only the library's own methods can")
    values = {f.name: getattr(thing, f.name) for f in fields(thing)}
    options = {
        name: to_json(value) if type(value) in _KNOWN else value
        for name, value in values.items()
        if type(value) in _KNOWN
        or not (callable(value) or isinstance(value, Loss) or hasattr(value, "solve"))
    }
    return {"class": type(thing).__name__, "options": options}


def from_json(content: dict[str, Any] | None) -> Any:
    """The object that `to_json` described."""
    if content is None:
        return None
    if content["class"] not in CLASSES:
        raise PotentiaError(f"the file names a method {content['class']!r} that this version does not have")
    options = {
        name: from_json(value) if isinstance(value, dict) and set(value) == {"class", "options"} else value
        for name, value in content["options"].items()
    }
    return CLASSES[content["class"]](**options)

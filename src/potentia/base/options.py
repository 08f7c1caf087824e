"""Checks of options."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from .types import PotentiaError, real_number, shown, whole_numbers


def check_count(name: str, value: object, least: int = 0) -> None:
    """A whole number of at least `least`, and small enough for kernels."""
    if isinstance(value, int) and abs(value) >= 2**63:
        raise PotentiaError(f"{name} must be a whole number below 2^63.")
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise PotentiaError(f"{name} must be a whole number >= {least}, not {shown(value)}.")


def check_share(name: str, value: object, top: float | None = None) -> None:
    """A number >= 0, and below `top` where given."""
    number = real_number(value, name)
    if not number >= 0 or (top is not None and number >= top):
        limit = ">= 0" if top is None else f"in [0, {top:g})"
        raise PotentiaError(f"{name} must be {limit}, not {shown(value)}.")


def check_number(name: str, value: object, least: float = 0.0, most: float = math.inf) -> None:
    """A finite number within bounds."""
    if not least <= real_number(value, name) <= min(most, sys.float_info.max):
        bounds = f"at least {least:g}" if most == math.inf else f"between {least:g} and {most:g}"
        raise PotentiaError(f"{name} must be a finite number, {bounds}, not {shown(value)}.")


def check_positive(name: str, value: object, most: float = sys.float_info.max) -> None:
    """A number above zero, by default a finite one."""
    if not 0 < real_number(value, name) <= most:
        kind = "number" if most == math.inf else "finite number"
        top = f" and at most {most:g}" if most < sys.float_info.max else ""
        raise PotentiaError(f"{name} must be a {kind} above 0{top}, not {shown(value)}.")


def check_flag(name: str, value: object) -> None:
    """True or False."""
    if not isinstance(value, bool | np.bool_):
        raise PotentiaError(f"{name} must be True or False, not {shown(value)}.")


def check_choice(name: str, value: object, choices: Collection[object], other: str = "") -> None:
    """One of some texts or numbers; `other` names what else the option may be."""
    if not isinstance(value, str | int | np.integer) or isinstance(value, bool) or value not in choices:
        more = f" or {other}" if other else ""
        raise PotentiaError(
            f"{name} must be one of {', '.join(map(repr, choices))}{more}, not {shown(value)}."
        )


def check_type(name: str, value: object, *kinds: type, optional: bool = False) -> None:
    """An object of one of some classes, or None if that is allowed."""
    if not isinstance(value, kinds) and not (optional and value is None):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise PotentiaError(f"{name} must be a {wanted}, not {shown(value)}.")


def check_function(name: str, value: object) -> None:
    """A function, or None."""
    if value is not None and not callable(value):
        raise PotentiaError(f"{name} must be a function, not {shown(value)}.")


def texts_of(name: str, values: Any) -> list[str]:
    """The texts of a list of texts; one text is none."""
    if isinstance(values, str | bytes | Mapping) or not np.iterable(values):
        raise PotentiaError(f"{name} must be a list of texts, not {shown(values)}.")
    found = list(values)
    for number, value in enumerate(found):
        if not isinstance(value, str):
            raise PotentiaError(f"{name}[{number}] must be a text, not {shown(value)}.")
    return found


def check_size(name: str, value: Any) -> tuple[int, int]:
    """A height and a width, as whole numbers of at least 1."""
    sides = whole_numbers(value, name)
    if sides.shape != (2,) or sides.min() < 1:
        raise PotentiaError(f"{name} must be a height and a width of at least 1, not {shown(value)}.")
    return int(sides[0]), int(sides[1])

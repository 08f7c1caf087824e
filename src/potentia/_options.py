"""Checks of options."""

from __future__ import annotations

import math
import sys

import numpy as np

from ._types import PotentiaError, real_number


def check_count(name: str, value: object, least: int = 0) -> None:
    """A whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise PotentiaError(f"{name} must be a whole number >= {least}, not {value!r}")


def check_share(name: str, value: object, top: float | None = None) -> None:
    """A number >= 0, and below `top` where given."""
    number = real_number(value, name)
    if not number >= 0 or (top is not None and number >= top):
        limit = ">= 0" if top is None else f"in [0, {top:g})"
        raise PotentiaError(f"{name} must be {limit}, not {value!r}")


def check_number(name: str, value: object, least: float = 0.0, most: float = math.inf) -> None:
    """A finite number within bounds."""
    if not least <= real_number(value, name) <= min(most, sys.float_info.max):
        bounds = f"at least {least:g}" if most == math.inf else f"between {least:g} and {most:g}"
        raise PotentiaError(f"{name} must be a finite number, {bounds}, not {value!r}")

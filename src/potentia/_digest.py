"""Digests by which data and options are known again."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any

import numpy as np


def digest_of(parts: Iterable[str | bytes | np.ndarray[Any, Any]]) -> str:
    """A digest of texts, bytes and arrays."""
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, np.ndarray):
            head, data = (
                f"{part.dtype} {part.shape} ".encode(),
                np.ascontiguousarray(part).data.cast("B") if part.size else b"",
            )
        else:
            head, data = b"", part.encode() if isinstance(part, str) else part
        found.update(head + len(data).to_bytes(8, "little"))
        found.update(data)
    return found.hexdigest()


def stable_repr(value: Any) -> str:
    """How a value prints; objects that print as their address are known by their class or name."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))

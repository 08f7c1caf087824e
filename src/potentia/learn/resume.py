"""Taking up a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._types import PotentiaError
from ..potentials.base import Potential


def take_up(potentials: Mapping[str, Potential], saved: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Make the potentials those of a checkpoint's state; the history so far."""
    if set(saved["potentials"]) != set(potentials):
        raise PotentiaError(f"the checkpoint has potentials for {sorted(saved['potentials'])}")
    for kind, (meta, arrays) in saved["potentials"].items():
        loaded = Potential.from_state(meta, arrays)
        potentials[kind].reset().__dict__.update(loaded.__dict__)
    return list(saved["history"])

"""What the curves of a fit are, whoever draws them: errors by iteration, and learned scores by feature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ._types import ArrayLike

#: Curves of a history where errors were tracked: key, name, number of the colour, whether dashed.
_ERRORS = (("train_error", "training", 1, True), ("validation_error", "validation", 0, False))
_OBJECTIVE = (("objective", "objective", 2, False),)


class Line(NamedTuple):
    """A named line: points, the number of its colour, and whether it is dashed."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int = 0
    dashed: bool = False


def history_lines(history: Sequence[Mapping[str, Any]], *, objective: bool = False) -> list[Line]:
    """Tracked errors by learning iteration, without those never tracked; or the objective."""
    found = []
    for key, name, colour, dashed in _OBJECTIVE if objective else _ERRORS:
        points = [row for row in history if key in row]
        if points:
            x, y = ([row[k] for row in points] for k in ("iteration", key))
            found.append(Line(name, x, y, colour, dashed))
    return found


def score_lines(x: Sequence[float], scores: ArrayLike, kind: str) -> list[Line]:
    """Scores (points, configurations) of a kind's regions as functions of x; only their differences matter."""
    f = np.asarray(scores, dtype=float)
    f = f - f.mean(axis=1, keepdims=True)
    n = f.shape[1]
    side = round(n**0.5)
    names = [f"{k // side}{k % side}" if kind == "edge" and side * side == n else str(k) for k in range(n)]
    return [Line(f"y = {name}", x, f[:, k].tolist(), k) for k, name in enumerate(names)]

"""How much memory training on images needs, said before it begins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._available import check_memory
from ..learn.dataset import PART_ENTRIES
from ..learn.joint import MAX_KEPT_SCORES
from .pixel_context import n_context
from .pixel_rows import TILE_SIDES, PixelRows
from .training import Run

#: Bytes of the program itself, and features of a pair.
_PROGRAM, _PAIR_FEATURES = 3e8, 11
#: Copies of the tables of pairs while messages are passed: scores, theta, both directions of the engine, a temporary.
_COPIES = 5


def estimate_bytes(
    sizes: Sequence[tuple[int, ...]],
    rows: PixelRows | None,
    n_rows: int,
    windows: Sequence[int],
    n_states: int,
) -> float:
    """Bytes that training takes at its peak, of images of these sizes.

    n_rows: pixels drawn for the classifier. windows: pixels in each window that pairs are trained on.
    """
    axes = len(sizes[0])
    labels = sum(float(np.prod(size)) for size in sizes) * 8
    paired = _paired_bytes(windows, n_states, axes)
    if rows is None:
        return _PROGRAM + labels + paired
    largest = max(float(np.prod([min(side, TILE_SIDES[axes] + 128) for side in size])) for size in sizes)
    n_features = rows.n_features + n_context(n_states, axes)
    features = 2.5 * largest * n_features * 4
    drawn = n_rows * n_features * (4 + 4 + 8 + 1)
    return _PROGRAM + labels + max(features + n_rows * n_features * 4, drawn, paired + features)


def _paired_bytes(windows: Sequence[int], n_states: int, axes: int) -> float:
    """Features and messages of all windows, and tables of pairs of one part at a time, which has a window at least.

    Potts pairs have no tables in the model, but learners write out those of the part that they pass messages on.
    """
    edge = axes * (_PAIR_FEATURES * 4 + n_states * 8 * 4)
    held = sum(windows) * (edge + n_states * (4 + 8 * 4))
    entries = axes * n_states**2
    part = max(entries * max(windows), min(entries * sum(windows), PART_ENTRIES))
    kept = entries * sum(windows)
    return held + 8.0 * (_COPIES * part + (kept if kept <= MAX_KEPT_SCORES else 0))


def say_estimate(
    run: Run,
    sizes: Sequence[tuple[int, ...]],
    rows: PixelRows | None,
    windows: Sequence[int],
    n_states: int,
    n_rows: int,
    reduce: float,
) -> None:
    """Tell the user how much memory is needed, and what would halve it; refuse more than there is."""
    needed = estimate_bytes(sizes, rows, n_rows, windows, n_states)
    largest = max(sizes, key=lambda size: float(np.prod(size)))
    shown = " x ".join(map(str, largest[::-1]))
    fewer = f"--pixels {max(1, sum(windows) // 2)} trains pairs on half as many pixels"
    if len(largest) == 2:
        fewer += f", --reduce {0.7 * reduce:.2g} on half-size images"
    images = f"{len(sizes)} images of up to {shown}" if len(sizes) > 1 else f"one image of {shown}"
    check_memory(needed, f"training on {images}", fewer)
    run.say(f"{images}, {n_states} classes: about {needed / 1e9:.1f} GB of memory. {fewer}.")

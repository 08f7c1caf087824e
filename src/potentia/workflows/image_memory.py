"""How much memory training on images needs, said before it begins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._available import check_memory
from .pixel_context import n_context
from .pixel_rows import TILE_SIDES, PixelRows
from .training import Run

#: Bytes of the program itself, and features of a pair.
_PROGRAM, _PAIR_FEATURES = 3e8, 11


def estimate_bytes(
    sizes: Sequence[tuple[int, ...]], rows: PixelRows | None, n_rows: int, n_paired: int, n_states: int
) -> float:
    """Bytes that training takes at its peak, of images of these sizes.

    n_rows: pixels drawn for the classifier. n_paired: pixels in the windows that pairs are trained on.
    """
    axes = len(sizes[0])
    labels = sum(float(np.prod(size)) for size in sizes) * 8
    edge = axes * (_PAIR_FEATURES * 4 + n_states**2 * 8 * 3 + n_states * 8 * 4)
    paired = n_paired * (edge + n_states * (4 + 8 * 4))
    if rows is None:
        return _PROGRAM + labels + paired
    largest = max(float(np.prod([min(side, TILE_SIDES[axes] + 128) for side in size])) for size in sizes)
    n_features = rows.n_features + n_context(n_states, axes)
    features = 2.5 * largest * n_features * 4
    drawn = n_rows * n_features * (4 + 4 + 8 + 1)
    return _PROGRAM + labels + max(features + n_rows * n_features * 4, drawn, paired + features)


def say_estimate(
    run: Run,
    sizes: Sequence[tuple[int, ...]],
    rows: PixelRows | None,
    n_paired: int,
    n_states: int,
    n_rows: int,
    reduce: float,
) -> None:
    """Tell the user how much memory is needed, and what would halve it; refuse more than there is."""
    needed = estimate_bytes(sizes, rows, n_rows, n_paired, n_states)
    largest = max(sizes, key=lambda size: float(np.prod(size)))
    shown = " x ".join(map(str, largest[::-1]))
    fewer = f"--pixels {max(1, n_paired // 2)} trains pairs on half as many pixels"
    if len(largest) == 2:
        fewer += f", --reduce {0.7 * reduce:.2g} on half-size images"
    images = f"{len(sizes)} images of up to {shown}" if len(sizes) > 1 else f"one image of {shown}"
    check_memory(needed, f"training on {images}", fewer)
    run.say(f"{images}, {n_states} classes: about {needed / 1e9:.1f} GB of memory. {fewer}.")

"""Predicted marginals of a few pictures, small enough to stay in rows, and figures of them [MBL-tpami fig. 4-6]."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

#: Grey levels a marginal is kept with: nobody sees more, and they compress.
_LEVELS = 31


def pack(marginals: np.ndarray) -> dict[str, Any]:
    """Numbers in [0, 1] of any shape as text."""
    levels = np.rint(np.clip(marginals, 0.0, 1.0) * _LEVELS).astype(np.uint8)
    text = base64.b64encode(zlib.compress(levels.tobytes(), 9)).decode()
    return {"shape": list(marginals.shape), "levels": text}


def unpack(packed: Mapping[str, Any]) -> np.ndarray:
    """The array that `pack` packed, rounded."""
    levels = np.frombuffer(zlib.decompress(base64.b64decode(packed["levels"])), dtype=np.uint8)
    return levels.reshape(packed["shape"]) / _LEVELS


def draw_pictures(
    grid: Sequence[Sequence[tuple[str, np.ndarray | None]]], path: Path, width: float = 1.5
) -> None:
    """Rows of titled pictures, (h, w) grey in [0, 1] or (h, w, 3); None leaves a gap."""
    from matplotlib.figure import Figure

    shapes = [picture.shape for line in grid for _, picture in line if picture is not None]
    columns = max(len(line) for line in grid)
    height = width * max(shape[0] / shape[1] for shape in shapes) + 0.25
    figure = Figure(figsize=(width * columns, height * len(grid)), layout="constrained")
    panels = figure.subplots(len(grid), columns, squeeze=False)
    for line, row in zip(panels, grid, strict=True):
        for panel in line:
            panel.set_axis_off()
        for panel, (title, picture) in zip(line, row, strict=False):
            if picture is not None:
                panel.imshow(picture, cmap="gray", vmin=0.0, vmax=1.0, interpolation="nearest")
                panel.set_title(title, fontsize=7, pad=2)
    figure.savefig(path, dpi=150)


#: One colour per class of the backgrounds, in the order of BACKGROUND_CLASSES.
_COLOURS = np.array(
    [
        [0.55, 0.80, 0.98], [0.10, 0.45, 0.15], [0.50, 0.50, 0.52], [0.55, 0.85, 0.30],
        [0.10, 0.30, 0.80], [0.70, 0.30, 0.20], [0.55, 0.40, 0.65], [0.98, 0.80, 0.15],
    ]
)  # fmt: skip


def class_colours(marginals: np.ndarray) -> np.ndarray:
    """Marginals (h, w, 8) as colours (h, w, 3), mixed by probability."""
    mixed: np.ndarray = marginals @ _COLOURS
    return mixed

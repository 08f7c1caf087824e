"""Figures from rows: panels side by side, and images beside what was seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

import potentia as pt

from .row_images import Original, Panels, panels_of
from .study import Rows

#: A row of a figure: titled images, (h, w, 3) in [0, 1].
Strip = list[tuple[str, Any]]


def panels(lines: int, columns: int, size: tuple[float, float], **options: Any) -> tuple[Figure, Any]:
    """A figure of lines x columns axes, each of the given size in inches, and the axes (lines, columns)."""
    figure = Figure(figsize=(size[0] * columns, size[1] * lines), layout="constrained")
    return figure, figure.subplots(lines, columns, squeeze=False, **options)


def share_legend(figure: Figure, axes: Any, right: bool = False) -> None:
    """One legend outside the axes for the lines of all of them: below, or on the right."""
    named = [ax.get_legend_handles_labels() for ax in axes.ravel()]
    handles = {text: handle for found in named for handle, text in zip(*found, strict=True)}
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="outside right center" if right else "outside lower center",
        ncols=1 if right else max(len(handles), 1),
        fontsize=8,
        frameon=False,
    )


def name_axes(ax: Any, title: str, x: str, y: str) -> None:
    """A title and names in small type; names of inner axes are left out."""
    ax.set_title(title, fontsize=9)
    ax.set_xlabel(x, fontsize=8)
    ax.set_ylabel(y, fontsize=8)
    ax.label_outer()


def strips(named: Sequence[tuple[str, Any]], originals: Sequence[Original], panel: str) -> list[Strip]:
    """A strip per image: what was seen, the truth, and the panel of every named row."""
    found = []
    for number, original in enumerate(originals):
        shown: list[tuple[str, Panels]] = [
            (name, panels_of(row["pictures"][number], original)[0]) for name, row in named
        ]
        first = [(title, shown[0][1][title]) for title in ("input", "truth")] if shown else []
        found.append(first + [(name, images[panel]) for name, images in shown])
    return found


#: Images side by side; longer strips are wrapped.
_COLUMNS = 8


def image_figure(strips: Sequence[Strip], width: float = 1.5) -> Figure | None:
    """Strips of titled images one below another."""
    if not any(strips):
        return None
    found = [line for strip in strips for line in _wrapped(strip)]
    shares = [strip[0][1].shape[0] / strip[0][1].shape[1] for strip in found]
    columns = max(map(len, found))
    figure, axes = panels(len(found), columns, (width, width * sum(shares) / len(shares) + 0.25), height_ratios=shares)
    for line, strip in zip(axes, found, strict=True):
        for ax in line:
            ax.set_axis_off()
        for ax, (title, image) in zip(line, strip, strict=False):
            ax.imshow(image, vmin=0.0, vmax=1.0, interpolation="nearest")
            ax.set_title(title, fontsize=7, pad=2)
    return figure


def _wrapped(strip: Strip) -> list[Strip]:
    """A strip as lines of nearly equal length."""
    lines = -(-len(strip) // _COLUMNS)
    length = -(-len(strip) // lines)
    return [strip[a : a + length] for a in range(0, len(strip), length)]


def grid_size(example: pt.Example) -> tuple[int, int]:
    """Height and width of a grid in raster order: the second edge of pixel 0 leads to the next row."""
    first = example.graph.scopes["edge"]
    step = int((first[:, 1] - first[:, 0]).max())
    return example.graph.n_variables // step, step


def values_of(rows: Rows, key: str) -> list[Any]:
    """The values that rows' cells have, in order of appearance."""
    return list(dict.fromkeys(row["cell"][key] for row in rows))

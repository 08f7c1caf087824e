"""Drawings that results of several layers share; Matplotlib is imported where it is used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .types import Floats, PotentiaError, check_count, check_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def new_axes(n: int = 1) -> list[Axes]:
    """A new figure with n axes in a row."""
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(4.2 * n, 3.4), layout="constrained")
    return list(figure.subplots(1, n, squeeze=False)[0])


def draw_marginals(table: Floats, shape: Sequence[int] | None, state: int, ax: Axes | None) -> Axes:
    """Marginals (n_variables, states) as a map, or P(state) as an image of the given shape."""
    if table.ndim != 2:
        raise PotentiaError(f"marginals must have shape (n_variables, states), not {table.shape}.")
    axes = ax or new_axes()[0]
    if shape is None:
        image, labels = table.T, {"xlabel": "variable", "ylabel": "state"}
        axes.set_yticks(range(table.shape[1]))
        text = "probability"
    else:
        size = check_size("shape", shape)
        if math.prod(size) != len(table):
            raise PotentiaError(f"{len(table)} variables do not fill an image of shape {size}.")
        check_count("state", state)
        if not 0 <= state < table.shape[1]:
            raise PotentiaError(f"state must be one of the {table.shape[1]} states, not {state}.")
        image, labels, text = table[:, state].reshape(size), {}, f"P(state {state})"
    options: dict[str, Any] = {"vmin": 0.0, "vmax": 1.0, "cmap": "viridis", "interpolation": "nearest"}
    shown = axes.imshow(image, aspect="equal" if shape is not None else "auto", **options)
    axes.figure.colorbar(shown, ax=axes, label=text)
    axes.set(**labels)
    return axes

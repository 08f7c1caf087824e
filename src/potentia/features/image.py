"""Examples from pictures: a grid with a variable per pixel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np

from .._options import check_choice, check_count, check_positive, check_type
from .._types import ArrayLike, PotentiaError
from ..data.example import Example
from ..data.pictures import LabelledImage
from ..graph.structure import Graph
from .colour import as_rgb
from .edges import edge_features
from .pixels import pixel_features
from .resize import check_label_map, reduce_labels, resize


def image_example(
    image: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    n_states: int,
    node: str | Sequence[str] = "ilr",
    edge: str | Sequence[str] = "ilr",
    reduce: float = 1.0,
    when: Literal["before", "after"] = "before",
    cell: int = 8,
    graph: Graph | None = None,
    dtype: Any = np.float32,
    name: str | None = None,
) -> Example:
    """An image as an Example on a grid, variables in raster order.

    Args:
        image: (h, w, 3) or grey, see `as_rgb`.
        labels: (h, w) classes, -1 unknown; reduced with the image by majority.
        n_states: number of classes.
        node, edge: feature sets or lists of blocks, see `pixel_features` and `edge_features`. The sets of ILR-nips
            are "ilr" and "ilr", of MBL-tpami "mbl" and "mbl" (horses) or "mbl-backgrounds".
        reduce: share of the sides to keep, in (0, 1].
        when: "before": the image is reduced and features are those of the small image [ILR-chapter sec. 1.10];
            "after": pixel features are computed at full size, then averaged [MBL-tpami sec. 8.4]. Pairs are pairs
            of the small image either way.
        cell: side of a HOG cell, in pixels of the image that HOG sees.
        graph: the grid to use, to share one between images of a size; by default one with four neighbours.
        dtype: precision of the features, float32 or float64.
        name: the example's name.
    """
    check_choice("when", when, ("before", "after"))
    check_count("n_states", n_states, 1)
    check_count("cell", cell, 1)
    check_type("graph", graph, Graph, optional=True)
    check_type("name", name, str, optional=True)
    rgb = as_rgb(image, dtype)
    full = rgb.shape[0], rgb.shape[1]
    small = reduced_size(full, reduce)
    if labels is not None and np.shape(labels) != full:
        raise PotentiaError(f"labels has shape {np.shape(labels)}, but the image is {full}")
    picture = rgb if small == full else resize(rgb, small)
    grid = Graph.grid(small, n_states=n_states) if graph is None else _checked_grid(graph, small, n_states)
    if when == "before":
        nodes = pixel_features(picture, node, cell=cell, dtype=dtype)
    else:
        nodes = pixel_features(rgb, node, size=small, cell=cell, dtype=dtype)
    features = {"node": nodes, "edge": edge_features(picture, grid.scopes["edge"], edge, dtype=dtype)}
    return Example(grid, features, _small_labels(labels, small, n_states), name=name)


def image_examples(pictures: Iterable[LabelledImage], *, n_states: int, **options: Any) -> list[Example]:
    """`image_example` of every picture with the same options; pictures of one size share one graph."""
    grids: dict[tuple[int, int], Graph] = {}
    examples = []
    for picture in pictures:
        small = reduced_size(picture.labels.shape, options.get("reduce", 1.0))
        if small not in grids:
            grids[small] = Graph.grid(small, n_states=n_states)
        options |= {"graph": grids[small], "name": picture.name}
        examples.append(image_example(picture.image, picture.labels, n_states=n_states, **options))
    return examples


def reduced_size(size: Sequence[int], reduce: float) -> tuple[int, int]:
    """Height and width times `reduce`, rounded, at least one pixel."""
    check_positive("reduce", reduce, 1.0)
    height, width = (max(1, round(side * reduce)) for side in size)
    return height, width


def _checked_grid(graph: Graph, size: tuple[int, int], n_states: int) -> Graph:
    """A user's graph, where its variables are the pixels and its pairs are neighbours."""
    rows, columns = np.divmod(graph.scopes.get("edge", np.zeros((0, 2), dtype=np.int64)), size[1])
    apart = max(np.ptp(rows, axis=1).max(initial=0), np.ptp(columns, axis=1).max(initial=0))
    if graph.n_variables != size[0] * size[1] or "edge" not in graph.scopes or apart > 1:
        raise PotentiaError(f"graph must be a grid of {size[0]} x {size[1]} pixels, not {graph!r}")
    if np.any(graph.n_states != n_states):
        raise PotentiaError(f"graph must have {n_states} states everywhere, not {graph!r}")
    return graph


def _small_labels(labels: ArrayLike | None, small: tuple[int, int], n_states: int) -> np.ndarray | None:
    if labels is None:
        return None
    return reduce_labels(check_label_map(labels, n_states), small, n_states).ravel()

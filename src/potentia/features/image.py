"""Probabilities that any other model gives pixels, as features of pixels and of pairs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np

from ..base.options import check_choice, check_count, check_positive, check_type
from ..base.types import ArrayLike, Ints, PotentiaError, real_numbers, shown, whole_numbers
from ..graph.structure import Graph
from .colour import Stack, as_channels, check_label_map, reduce_labels, resize
from .datasets import LabelledImage
from .edges import edge_features
from .example import Example
from .pixels import pixel_features

#: Probabilities below this count as this much: a model's certainty stays finite.
_LEAST = 1e-4
# how far sums of probabilities may be from one
_ROUNDING = 1e-3


def log_probabilities(given: ArrayLike, n_states: int, size: tuple[int, ...]) -> Stack:
    """Log-probabilities (*size, n_states) in float32, at least log 1e-4, of probabilities or logits.

    Args:
        given: (*size, n_states) probabilities, which are at least 0 and sum to one, or else logits; of two states also
            (*size) probabilities of the second.
        n_states: number of classes.
        size: of the image.
    """
    values = real_numbers(given, "probabilities")
    if n_states == 2 and values.shape == size:
        if values.min() < 0.0 or values.max() > 1.0:
            raise PotentiaError(f"probabilities of shape {size} must lie in [0, 1].")
        values = np.stack([1.0 - values, values], axis=-1)
    if values.shape != (*size, n_states):
        raise PotentiaError(
            f"probabilities has shape {values.shape}, but the image needs {(*size, n_states)}."
        )
    if not np.isfinite(values).all():
        raise PotentiaError("probabilities holds a value that is not finite.")
    total = values.sum(axis=-1)
    if values.min() < 0.0 or np.abs(total - 1.0).max() > _ROUNDING:
        values = np.exp(values - values.max(axis=-1, keepdims=True))
        total = values.sum(axis=-1)
    return np.log(np.maximum(values / total[..., None], _LEAST)).astype(np.float32)


def probability_pairs(logarithms: Stack, pairs: Ints) -> Stack:
    """Features (m, 2) of pairs: how much the probabilities of both sides agree, and how certain both are.

    The first is sum_k sqrt(p_k q_k), the second the product of the largest ones.
    """
    flat = logarithms.reshape(-1, logarithms.shape[-1])
    agreement = np.zeros(len(pairs), dtype=np.float32)
    for column in flat.T:
        agreement += np.exp(0.5 * (column[pairs[:, 0]] + column[pairs[:, 1]]))
    certain = np.exp(flat.max(axis=1))
    return np.stack([agreement, certain[pairs[:, 0]] * certain[pairs[:, 1]]], axis=1)


def image_example(
    image: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    n_states: int,
    node: str | Sequence[str] | None = None,
    edge: str | Sequence[str] = "boundary",
    probabilities: ArrayLike | None = None,
    reduce: float = 1.0,
    when: Literal["before", "after"] = "before",
    cell: int = 8,
    axes: int = 2,
    graph: Graph | None = None,
    dtype: Any = np.float32,
    name: str | None = None,
) -> Example:
    """An image as an Example on a grid, variables in raster order.

    Args:
        image: (h, w) or (h, w, channels), or with axes=3 a volume (d, h, w) or (d, h, w, channels); unsigned integers
            are divided by the largest of their type. Features of colours ("rgb", "hog") need grey or RGB.
        labels: (h, w) classes, -1 unknown; reduced with the image by majority.
        n_states: number of classes.
        node, edge: feature sets or lists of blocks, see `pixel_features` and `edge_features`. The sets of ILR-nips
            are "ilr" and "ilr", of MBL-tpami "mbl" and "mbl" (horses) or "mbl-backgrounds". node None is "filters", or
            with `probabilities` no other features.
        probabilities: (h, w, n_states) probabilities or logits of any model, or (h, w) probabilities of the second of
            two classes. Their logarithms are the first node features, and pairs have two more features: how much the
            two sides agree, and how certain they are.
        reduce: share of the sides to keep, in (0, 1].
        when: "before": the image is reduced and features are those of the small image [ILR-chapter sec. 1.10];
            "after": pixel features are computed at full size, then averaged [MBL-tpami sec. 8.4]. Pairs are pairs
            of the small image either way.
        cell: side of a HOG cell, in pixels of the image that HOG sees.
        axes: 2 for images, 3 for volumes, which are not reduced.
        graph: the grid to use, to share one between images of a size; by default one with four neighbours (six in
            volumes).
        dtype: precision of the features, float32 or float64.
        name: the example's name.
    """
    check_choice("when", when, ("before", "after"))
    check_count("n_states", n_states, 1)
    check_count("cell", cell, 1)
    check_type("graph", graph, Graph, optional=True)
    check_type("name", name, str, optional=True)
    values = as_channels(image, axes, dtype)
    full = values.shape[:-1]
    small = _small_size(full, reduce)
    if labels is not None and np.shape(labels) != full:
        raise PotentiaError(f"labels has shape {np.shape(labels)}, but the image is {full}.")
    grid = (
        Graph.grid(small, n_states=n_states, neighbours=2 * axes)
        if graph is None
        else _checked_grid(graph, small, n_states)
    )
    reduced, soft = _reduced(values, small), None
    if probabilities is not None:
        soft = _reduced(log_probabilities(probabilities, n_states, full), small)
    seen, size = (reduced, None) if when == "before" or axes == 3 else (values, small)
    features = {
        "node": _node_features(seen, soft, node, size=size, cell=cell, axes=axes, dtype=dtype),
        "edge": _pair_features(reduced, soft, grid.scopes["edge"], edge, dtype),
    }
    return Example(grid, features, _small_labels(labels, small, n_states), name=name)


def image_examples(images: Iterable[LabelledImage], *, n_states: int, **options: Any) -> list[Example]:
    """`image_example` of every image with the same options; images of one size share one graph."""
    grids: dict[tuple[int, int], Graph] = {}
    examples = []
    if not np.iterable(images):
        raise PotentiaError(f"images must be a list of LabelledImage, not a {type(images).__name__}.")
    for number, labelled in enumerate(images):
        check_type(f"images[{number}]", labelled, LabelledImage)
        small = reduced_size(labelled.labels.shape, options.get("reduce", 1.0))
        if small not in grids:
            grids[small] = Graph.grid(small, n_states=n_states)
        options |= {"graph": grids[small], "name": labelled.name}
        examples.append(image_example(labelled.image, labelled.labels, n_states=n_states, **options))
    return examples


def reduced_size(size: Sequence[int], reduce: float) -> tuple[int, int]:
    """Height and width times `reduce`, rounded, at least one pixel."""
    check_positive("reduce", reduce, 1.0)
    height, width = (max(1, round(side * reduce)) for side in size)
    return height, width


def _small_size(full: tuple[int, ...], reduce: float) -> tuple[int, ...]:
    if len(full) == 2:
        return reduced_size(full, reduce)
    if reduce != 1.0:
        raise PotentiaError("volumes are not reduced: reduce must be 1 with axes=3.")
    return full


def _reduced(values: Stack, size: tuple[int, ...]) -> Stack:
    return values if values.shape[:-1] == size else resize(values, size)


def _node_features(
    values: Stack, soft: Stack | None, node: str | Sequence[str] | None, *, dtype: Any, **options: Any
) -> Stack:
    """Log-probabilities if there are any, and `pixel_features`, "filters" by default without the former."""
    if soft is None:
        return pixel_features(values, "filters" if node is None else node, dtype=dtype, **options)
    given = soft.reshape(-1, soft.shape[-1]).astype(dtype, copy=False)
    return given if node is None else np.hstack([given, pixel_features(values, node, dtype=dtype, **options)])


def _pair_features(
    values: Stack, soft: Stack | None, pairs: Ints, edge: str | Sequence[str], dtype: Any
) -> Stack:
    """`edge_features`, and those of log-probabilities if there are any."""
    found = edge_features(values, pairs, edge, axes=values.ndim - 1, dtype=dtype)
    return found if soft is None else np.hstack([found, probability_pairs(soft, pairs).astype(dtype)])


def _checked_grid(graph: Graph, size: tuple[int, ...], n_states: int) -> Graph:
    """A user's graph, where its variables are the pixels and its pairs are neighbours."""
    sides = " x ".join(map(str, size))
    fits = graph.n_variables == int(np.prod(size)) and "edge" in graph.scopes
    if fits:
        places = np.unravel_index(graph.scopes["edge"], size)
        fits = all(np.ptp(place, axis=1).max(initial=0) <= 1 for place in places)
    if not fits:
        raise PotentiaError(f"graph must be a grid of {sides} pixels, not {shown(graph)}.")
    if np.any(graph.n_states != n_states):
        raise PotentiaError(f"graph must have {n_states} states everywhere, not {shown(graph)}.")
    return graph


def _small_labels(labels: ArrayLike | None, small: tuple[int, ...], n_states: int) -> np.ndarray | None:
    if labels is None:
        return None
    if len(small) == 3:
        flat = whole_numbers(labels, "labels").reshape(small[0], -1)
        return check_label_map(flat, n_states).ravel()
    return reduce_labels(check_label_map(labels, n_states), (small[0], small[1]), n_states).ravel()

"""Images as examples: a variable per pixel of a grid, or per superpixel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from ..base.types import (
    ArrayLike,
    Floats,
    Ints,
    PotentiaError,
    check_choice,
    check_count,
    check_flag,
    check_positive,
    check_type,
    plain_array,
    real_numbers,
    shown,
    whole_numbers,
)
from ..graph.structure import Graph
from .colour import Stack, as_channels, as_rgb, check_label_map, reduce_labels, resize
from .example import Example
from .pixels import edge_features, filter_planes, hog, n_filters, pixel_features

#: Probabilities below this count as this much: a model's certainty stays finite.
_LEAST = 1e-4
# how far sums of probabilities may be from one
_ROUNDING = 1e-3


def log_probabilities(scores: ArrayLike, n_states: int, size: tuple[int, ...]) -> Stack:
    """Log-probabilities (*size, n_states) in float32, at least log 1e-4, of probabilities or logits.

    Args:
        scores: (*size, n_states) probabilities, which are at least 0 and sum to one, or else logits; of two states also
            (*size) probabilities of the second.
        n_states: number of classes.
        size: of the image.
    """
    values = real_numbers(scores, "probabilities")
    if n_states == 2 and values.shape == size:
        if values.min() < 0.0 or values.max() > 1.0:
            raise PotentiaError(f"probabilities of shape {size} must lie in [0, 1].")
        values = np.stack([1.0 - values, values], axis=-1)
    if values.shape != (*size, n_states):
        raise PotentiaError(f"probabilities has shape {values.shape}, but the image needs {(*size, n_states)}.")
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
    if axes == 3 and reduce != 1.0:
        raise PotentiaError("volumes are not reduced: reduce must be 1 with axes=3.")
    small = full if axes == 3 else reduced_size(full, reduce)
    if labels is not None and np.shape(labels) != full:
        raise PotentiaError(f"labels has shape {np.shape(labels)}, but the image is {full}.")
    grid = (
        Graph.grid(small, n_states=n_states, neighbours=2 * axes)
        if graph is None
        else _checked_grid(graph, small, n_states)
    )
    reduced = values if axes == 3 else resize(values, small)
    seen, size = (reduced, None) if when == "before" or axes == 3 else (values, small)
    nodes, pairs = [], [edge_features(reduced, grid.scopes["edge"], edge, axes=axes, dtype=dtype)]
    if probabilities is not None:
        soft = log_probabilities(probabilities, n_states, full)
        soft = soft if axes == 3 else resize(soft, small)
        nodes.append(soft.reshape(-1, n_states).astype(dtype, copy=False))
        pairs.append(probability_pairs(soft, grid.scopes["edge"]).astype(dtype))
    if node is not None or probabilities is None:
        blocks = "filters" if node is None else node
        nodes.append(pixel_features(seen, blocks, size=size, cell=cell, axes=axes, dtype=dtype))
    features = {
        kind: parts[0] if len(parts) == 1 else np.hstack(parts) for kind, parts in (("node", nodes), ("edge", pairs))
    }
    return Example(grid, features, _small_labels(labels, small, n_states), name=name)


def reduced_size(size: Sequence[int], reduce: float) -> tuple[int, int]:
    """Height and width times `reduce`, rounded, at least one pixel."""
    check_positive("reduce", reduce, 1.0)
    height, width = (max(1, round(side * reduce)) for side in size)
    return height, width


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
    """A label map at a smaller size, flat; of a volume, which is not reduced, as it is."""
    if labels is None:
        return None
    if len(small) == 3:
        flat = whole_numbers(labels, "labels").reshape(small[0], -1)
        return check_label_map(flat, n_states).ravel()
    return reduce_labels(check_label_map(labels, n_states), (small[0], small[1]), n_states).ravel()


# -- superpixels: regions of similar colour as variables, regions that touch as pairs ----------------------------


def superpixels(image: ArrayLike, n_segments: int = 200, compactness: float = 10.0) -> Ints:
    """SLIC superpixels of an image: (h, w) region numbers 0..n-1, every region connected; n is near n_segments.

    Needs scikit-image. The same image and options give the same regions.
    """
    try:
        from skimage.segmentation import slic
    except ImportError:
        raise PotentiaError("superpixels need scikit-image: pip install potentia[images].") from None
    check_count("n_segments", n_segments, 1)
    rgb = np.ascontiguousarray(as_rgb(image))
    check_positive("compactness", compactness)
    regions = slic(rgb, n_segments=n_segments, compactness=compactness, start_label=0, channel_axis=-1)
    return np.unique(regions, return_inverse=True)[1].reshape(regions.shape).astype(np.int64)


def superpixel_edges(segments: ArrayLike) -> tuple[Ints, Ints, Ints]:
    """Regions that touch, and where: pairs (m, 2) with first < second, ascending; pixel pairs (k, 2) across borders in
    raster numbers; and which pair each belongs to (k,), so `bincount` of it is each pair's boundary length.
    """
    regions = _check_segments(segments)
    number = np.arange(regions.size).reshape(regions.shape)
    first = np.concatenate([number[:, :-1].ravel(), number[:-1].ravel()])
    second = np.concatenate([number[:, 1:].ravel(), number[1:].ravel()])
    flat = regions.ravel()
    border = flat[first] != flat[second]
    pixels = np.stack([first[border], second[border]], axis=1)
    low, high = np.sort(flat[pixels], axis=1).T
    n = int(flat.max()) + 1
    code, which = np.unique(low * n + high, return_inverse=True)
    return np.stack([code // n, code % n], axis=1), pixels, which


def superpixel_labels(segments: ArrayLike, labels: ArrayLike, n_states: int) -> Ints:
    """The class most of a region's known pixels have, (n,); -1 where none is known, the lowest of equal classes."""
    regions, known = _check_segments(segments), check_label_map(labels, n_states)
    if known.shape != regions.shape:
        raise PotentiaError(f"labels has shape {known.shape}, but segments has {regions.shape}.")
    seen = known >= 0
    count = np.bincount(regions[seen] * n_states + known[seen], minlength=(int(regions.max()) + 1) * n_states).reshape(
        -1, n_states
    )
    return np.where(count.max(axis=1) > 0, count.argmax(axis=1), -1)


def superpixel_features(
    image: ArrayLike, segments: ArrayLike, *, pixel: Sequence[str] = ("rgb", "hog"), cell: int = 8
) -> tuple[Floats, Floats]:
    """Features of regions and of pairs of regions that touch, in the order of `superpixel_edges`.

    Regions (n, 4 + 2 k): a constant, size as a share of the image, x and y of the centre in (0, 1), then mean and
    standard deviation of the k pixel features. Pairs (m, 5): a constant, boundary length (pixel sides) over the root
    of the smaller region's size, mean l2 distance of RGB across the boundary, and the l2 distances of the two
    regions' mean RGB and mean pixel features.
    """
    from scipy import sparse

    regions = _check_segments(segments)
    rgb = as_rgb(image)
    if rgb.shape[:2] != regions.shape:
        raise PotentiaError(f"segments has shape {regions.shape}, but the image is {rgb.shape[:2]}.")
    flat, size = regions.ravel(), np.bincount(regions.ravel())
    # averages over regions, (n_regions, n_pixels)
    average = sparse.csr_array((1.0 / size[flat], (flat, np.arange(flat.size))), shape=(len(size), flat.size))
    place = average @ pixel_features(rgb, ("position",), dtype=np.float64)
    described = pixel_features(rgb, pixel, cell=cell, dtype=np.float64)
    mean = average @ described
    spread = np.sqrt(average @ (described - mean[flat]) ** 2)
    head = np.stack([np.ones(len(size)), size / flat.size], axis=1)
    node = np.concatenate([head, place, mean, spread], axis=1)
    colours = rgb.reshape(-1, 3)
    return node, _region_pairs(regions, colours, average @ colours, mean)


def superpixel_example(
    image: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    n_states: int,
    n_segments: int = 200,
    compactness: float = 10.0,
    pixel: Sequence[str] = ("rgb", "hog"),
    cell: int = 8,
    pixel_weights: bool = False,
    name: str | None = None,
) -> tuple[Example, Ints]:
    """An image as an Example with a variable per superpixel, and its segments (h, w).

    `values[segments]` takes anything per variable (predicted labels, marginals) back to the pixels. With
    `pixel_weights` a variable weighs as many as its known pixels (all, without labels), so that weighted errors
    count pixels. For the other arguments see `superpixels`, `superpixel_labels` and `superpixel_features`.
    """
    check_count("n_states", n_states, 1)
    check_flag("pixel_weights", pixel_weights)
    check_type("name", name, str, optional=True)
    segments = superpixels(image, n_segments, compactness)
    node, edge = superpixel_features(image, segments, pixel=pixel, cell=cell)
    n = len(node)
    regions = {"node": np.arange(n)[:, None], "edge": superpixel_edges(segments)[0]}
    states = None if labels is None else superpixel_labels(segments, labels, n_states)
    weights = None
    if pixel_weights:
        seen = np.ones(segments.shape, dtype=bool) if labels is None else np.asarray(labels) >= 0
        weights = np.bincount(segments[seen], minlength=n)
    graph = Graph(np.full(n, n_states), regions)
    return Example(graph, {"node": node, "edge": edge}, states, weights, name), segments


#: Regions around pixels: how many an image has, pixels that they are found in at most, and scales of their filters.
_N_AROUND, _AROUND_PIXELS, _AROUND_SCALES = 150, 80_000, (1.0, 4.0)
_N_HOG = 36


class RegionMeans(NamedTuple):
    """What the regions of an image say of their pixels.

    Attributes:
        segments: (h, w) the region of every pixel of a copy of the image, which is smaller if the image is large.
        features: (n, `n_around`) of every region: the means of filters and of HOG, the standard deviations of channels,
            and the means once more over the regions that touch it.
    """

    segments: Ints
    features: Stack

    @classmethod
    def of(cls, values: Stack) -> RegionMeans:
        """The regions of an image (h, w, channels); memory does not grow with the image."""
        share = min(1.0, (_AROUND_PIXELS / (values.shape[0] * values.shape[1])) ** 0.5)
        small = resize(values, reduced_size(values.shape[:2], share))
        shown = np.clip(small if small.shape[-1] == 3 else small.mean(axis=-1, keepdims=True), 0.0, 1.0)
        segments = superpixels(shown, _N_AROUND)
        flat, size = segments.ravel(), np.bincount(segments.ravel())
        planes = [*filter_planes(small, _AROUND_SCALES), *np.moveaxis(hog(shown), -1, 0)]
        means = np.stack([np.bincount(flat, plane.ravel()) for plane in planes], axis=1) / size[:, None]
        squares = [np.bincount(flat, plane.ravel() ** 2) / size for plane in planes[: small.shape[-1]]]
        spread = np.sqrt(np.maximum(np.stack(squares, axis=1) - means[:, : len(squares)] ** 2, 0.0))
        pairs = superpixel_edges(segments)[0]
        first, second = np.concatenate([pairs, pairs[:, ::-1]]).T
        weights = np.zeros((len(size), len(size)))
        weights[first, second] = size[second]
        around = weights @ means / np.maximum(weights.sum(axis=1), 1.0)[:, None]
        return cls(segments, np.hstack([means, spread, around]).astype(np.float32))

    def at(self, window: tuple[slice, ...], size: tuple[int, ...]) -> Stack:
        """Features (*window, `n_around`) of the pixels in a window of the image of this size."""
        rows, columns = (
            (2 * np.arange(part.start, part.stop) + 1) * side // (2 * full)
            for part, side, full in zip(window, self.segments.shape, size, strict=True)
        )
        return np.asarray(self.features[self.segments[rows[:, None], columns]])


def n_around(n_channels: int) -> int:
    """The number of features that `RegionMeans` have."""
    return 2 * (n_filters(n_channels, _AROUND_SCALES) + _N_HOG) + n_channels


def _region_pairs(regions: Ints, colours: Floats, colour_mean: Floats, mean: Floats) -> Floats:
    """Features of neighbouring regions: 1, length and contrast of their border, distances of their means."""
    pairs, pixels, which = superpixel_edges(regions)
    size = np.bincount(regions.ravel())
    length = np.bincount(which, minlength=len(pairs))
    contrast = np.linalg.norm(colours[pixels[:, 0]] - colours[pixels[:, 1]], axis=1)
    across = np.bincount(which, weights=contrast, minlength=len(pairs)) / np.maximum(length, 1)
    relative = length / np.sqrt(size[pairs].min(axis=1, initial=regions.size))
    gaps = [np.linalg.norm(m[pairs[:, 0]] - m[pairs[:, 1]], axis=1) for m in (colour_mean, mean)]
    return np.stack([np.ones(len(pairs)), relative, across, *gaps], axis=1)


def _check_segments(segments: ArrayLike) -> Ints:
    """A map of region numbers 0..n-1 without gaps."""
    regions = plain_array(segments, "segments")
    if regions.ndim != 2 or regions.size == 0 or regions.dtype.kind not in "iu":
        raise PotentiaError(f"segments must be a map (h, w) of region numbers, not {regions.dtype} of {regions.shape}.")
    regions = regions.astype(np.int64, copy=False)
    if regions.min() != 0 or np.any(np.bincount(regions.ravel()) == 0):
        raise PotentiaError("segments must number its regions 0..n-1 without gaps.")
    return regions

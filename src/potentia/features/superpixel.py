"""Superpixels: regions of similar colour as variables, regions that touch as pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base.options import check_count, check_flag, check_positive, check_type
from ..base.types import ArrayLike, Floats, Ints, PotentiaError, plain_array
from ..graph.structure import Graph
from .colour import as_rgb, check_label_map
from .example import Example
from .pixels import pixel_features


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
    found = slic(rgb, n_segments=n_segments, compactness=compactness, start_label=0, channel_axis=-1)
    return np.unique(found, return_inverse=True)[1].reshape(found.shape).astype(np.int64)


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
    count = np.bincount(
        regions[seen] * n_states + known[seen], minlength=(int(regions.max()) + 1) * n_states
    ).reshape(-1, n_states)
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
    regions = _check_segments(segments)
    rgb = as_rgb(image)
    if rgb.shape[:2] != regions.shape:
        raise PotentiaError(f"segments has shape {regions.shape}, but the image is {rgb.shape[:2]}.")
    flat, size = regions.ravel(), np.bincount(regions.ravel())
    average = _averaging(flat, size)
    place = average @ pixel_features(rgb, ("position",), dtype=np.float64)
    described = pixel_features(rgb, pixel, cell=cell, dtype=np.float64)
    mean = average @ described
    spread = np.sqrt(average @ (described - mean[flat]) ** 2)
    head = np.stack([np.ones(len(size)), size / flat.size], axis=1)
    node = np.concatenate([head, place, mean, spread], axis=1)
    colours = rgb.reshape(-1, 3)
    return node, _pair_features(regions, colours, average @ colours, mean)


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


def _pair_features(regions: Ints, colours: Floats, colour_mean: Floats, mean: Floats) -> Floats:
    pairs, pixels, which = superpixel_edges(regions)
    size = np.bincount(regions.ravel())
    length = np.bincount(which, minlength=len(pairs))
    contrast = np.linalg.norm(colours[pixels[:, 0]] - colours[pixels[:, 1]], axis=1)
    across = np.bincount(which, weights=contrast, minlength=len(pairs)) / np.maximum(length, 1)
    relative = length / np.sqrt(size[pairs].min(axis=1, initial=regions.size))
    gaps = [np.linalg.norm(m[pairs[:, 0]] - m[pairs[:, 1]], axis=1) for m in (colour_mean, mean)]
    return np.stack([np.ones(len(pairs)), relative, across, *gaps], axis=1)


def _averaging(flat: Ints, size: Ints) -> Any:
    """The sparse (n_regions, n_pixels) matrix that averages over regions."""
    from scipy import sparse

    return sparse.csr_array((1.0 / size[flat], (flat, np.arange(flat.size))), shape=(len(size), flat.size))


def _check_segments(segments: ArrayLike) -> Ints:
    regions = plain_array(segments, "segments")
    if regions.ndim != 2 or regions.size == 0 or regions.dtype.kind not in "iu":
        raise PotentiaError(
            f"segments must be a map (h, w) of region numbers, not {regions.dtype} of {regions.shape}."
        )
    regions = regions.astype(np.int64, copy=False)
    if regions.min() != 0 or np.any(np.bincount(regions.ravel()) == 0):
        raise PotentiaError("segments must number its regions 0..n-1 without gaps.")
    return regions

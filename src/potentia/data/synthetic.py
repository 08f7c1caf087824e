"""Synthetic data whose truth is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.ndimage import gaussian_filter

from .._options import check_count, check_size
from .._types import Floats, Ints
from ..graph.structure import Graph
from .example import Example

#: Standard deviation of the blur that makes the truth [ILR-nips sec. 8].
_BLUR = 10.0


def denoising(n_images: int = 16, size: Sequence[int] = (100, 100), seed: int = 0) -> list[Example]:
    """Binary images to be recovered from noisy pixels and noisy pairs [ILR-nips sec. 8].

    The truth y is uniform noise in [0, 1], blurred by a Gaussian of standard deviation 10 (mirrored at the border)
    and rounded to {0, 1}. A pixel sees phi_i, uniform in [0, .9] where y_i = 0 and in [.1, 1] where y_i = 1; a pair
    sees phi_ij, uniform in [0, .8] where y_i = y_j and in [.2, 1] elsewhere. Features are (1, phi_i) per pixel and
    (1, phi_ij) per pair. The paper has 16 images to train and 16 to test: take another seed for the test.
    All images share one graph; the first k of n images are those of n_images = k.
    """
    check_count("n_images", n_images, 1)
    check_count("seed", seed)
    sides = check_size("size", size)
    rng = np.random.default_rng(seed)
    graph = Graph.grid(sides, n_states=2)
    return [_noisy(graph, sides, rng, f"denoising-{seed}-{k}") for k in range(n_images)]


def _noisy(graph: Graph, sides: tuple[int, ...], rng: np.random.Generator, name: str) -> Example:
    y: Ints = np.rint(gaussian_filter(rng.random(sides), _BLUR, mode="reflect")).astype(np.int64).ravel()
    first, second = graph.scopes["edge"].T
    node = _overlapping(rng, y == 1, 0.1)
    edge = _overlapping(rng, y[first] != y[second], 0.2)
    return Example(graph, {"node": node, "edge": edge}, y, name=name)


def _overlapping(rng: np.random.Generator, upper: np.ndarray, gap: float) -> Floats:
    """(1, phi) with phi uniform in [gap, 1] where `upper` holds and in [0, 1 - gap] elsewhere."""
    phi = (1.0 - gap) * rng.random(len(upper)) + gap * upper
    return np.stack([np.ones_like(phi), phi], axis=1)

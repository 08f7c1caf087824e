"""Small noisy images with labels that vary at the scale of a few pixels."""

import numpy as np
from scipy.ndimage import gaussian_filter

import potentia as pt


def noisy(n_images=3, size=(9, 10), seed=0):
    """Like the denoising data, with blobs small enough for images of ten pixels."""
    rng = np.random.default_rng(seed)
    graph = pt.Graph.grid(size, n_states=2)
    first, second = graph.scopes["edge"].T
    examples = []
    for _ in range(n_images):
        y = (gaussian_filter(rng.normal(size=size), 1.5) > 0).astype(int).ravel()
        node = rng.uniform(0.0, 0.8, size=y.size) + 0.2 * y
        edge = rng.uniform(0.0, 0.8, size=len(first)) + 0.2 * (y[first] != y[second])
        features = {"node": np.stack([node, np.ones_like(node)], 1), "edge": np.stack([edge, np.ones_like(edge)], 1)}
        examples.append(pt.Example(graph, features, y))
    return examples

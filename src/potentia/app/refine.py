"""`refine`: a dense CRF on the probabilities of any model, in one call."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..base.types import ArrayLike, Floats, Ints, PotentiaError, check_count, entropies, finite_array, real_numbers
from ..features.colour import bilateral
from ..features.image import log_probabilities
from ..graph.structure import Graph
from ..inference.mean_field import MeanField
from ..potentials.dense import DenseGaussian
from .image_files import read_image


@dataclass(frozen=True, eq=False)
class Refinement:
    """What `refine` finds: labels (h, w), and probabilities (h, w, n_classes)."""

    labels: Ints
    probabilities: Floats

    def entropy(self) -> Floats:
        """How uncertain each pixel is (h, w), in nats."""
        return entropies(self.probabilities)


def refine(
    image: ArrayLike | str | os.PathLike[str],
    probabilities: ArrayLike,
    *,
    smooth: float = 0.5,
    appearance: float = 2.0,
    sd_position: float | None = None,
    sd_colour: float = 0.05,
    iterations: int = 5,
) -> Refinement:
    """Labels and probabilities of all pixels by a dense CRF, from those of any model [Kraehenbuehl and Koltun 2011].

    Every two pixels attract each other: near ones, and ones of similar colour. The weights are fixed; `pt.CRF` learns
    them from masks, see `pt.DenseGaussian`.

    Args:
        image: (h, w) or (h, w, channels), or a file; its range counts as one.
        probabilities: (h, w, n_classes) probabilities or logits, or (h, w) probabilities of the second of two classes.
        smooth: weight of pairs whose distance has a standard deviation of 3 pixels.
        appearance: weight of pairs whose distance has one of `sd_position` pixels, None for a tenth of the longer side,
            and whose colours have one of `sd_colour` of the image's range, in every channel.
        iterations: of mean field, which starts at the given probabilities.

    Example:
        >>> import potentia as pt
        >>> import numpy as np
        >>> image = np.zeros((6, 8, 3), dtype=np.uint8)
        >>> image[:, 4:] = 200
        >>> noisy = np.full((6, 8), 0.5)  # probabilities of the second class
        >>> noisy[0, 0], noisy[5, 7] = 0.01, 0.99
        >>> pt.refine(image, noisy).labels[2].tolist()
        [0, 0, 0, 0, 1, 1, 1, 1]
    """
    check_count("iterations", iterations)
    pixels = real_numbers(image if not isinstance(image, str | os.PathLike) else read_image(Path(image)), "image")
    if pixels.ndim not in (2, 3) or not pixels.size:
        raise PotentiaError(f"image must have shape (h, w) or (h, w, channels), not {pixels.shape}.")
    size, given = pixels.shape[:2], finite_array(probabilities, "probabilities")
    n_classes = given.shape[2] if given.ndim == 3 else 2
    node = np.asarray(log_probabilities(given, n_classes, size), dtype=float).reshape(-1, n_classes)
    span = float(np.ptp(finite_array(pixels, "image"))) or 1.0
    far = max(size) / 10 if sd_position is None else sd_position
    theta = {
        "node": node,
        "smooth": DenseGaussian(bilateral(pixels, 3.0), smooth),
        "appearance": DenseGaussian(bilateral(pixels / span, far, sd_colour), appearance),
    }
    graph = Graph(np.full(len(node), n_classes), {"node": np.arange(len(node))[:, None]})
    q = MeanField(iterations=iterations, tol=0.0).infer(graph, theta).variable_marginals.reshape(*size, n_classes)
    return Refinement(q.argmax(axis=2), q)

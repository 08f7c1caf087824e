"""Generated data, files of columns, and the folder that public sets lie in; their readers come with the studies."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..base.types import Floats, Ints, PotentiaError, check_count, check_size
from ..graph.structure import Graph
from .example import Example
from .tokens import conll

#: A file's or folder's path, as text or as a path object.
FilePath = str | os.PathLike[str]

_VARIABLE = "POTENTIA_DATA"


def data_folder(option: FilePath | None = None) -> Path:
    """The folder of the public data sets: `option` if given, else the environment variable POTENTIA_DATA."""
    for given, source in ((option, "the folder given"), (os.environ.get(_VARIABLE), _VARIABLE)):
        if given:
            if not Path(given).is_dir():
                raise PotentiaError(f"{source} names {os.fspath(given)}, which is not a folder.")
            return Path(given)
    raise PotentiaError(f"No folder of data sets is known; pass folder= or set {_VARIABLE} to it.")


def open_image(path: Path) -> Any:
    """An image file as a Pillow image, decoded."""
    from PIL import Image

    try:
        with Image.open(path) as loaded:
            loaded.load()
            return loaded.copy()
    except FileNotFoundError:
        raise PotentiaError(f"{path}: there is no such file.") from None
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PotentiaError(f"{path}: this is not a readable image ({reason}).") from None


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
    """A noisy binary image as an example, drawn from `rng`."""
    from scipy.ndimage import gaussian_filter  # a tenth of a second that importing the commands does without

    y: Ints = np.rint(gaussian_filter(rng.random(sides), _BLUR, mode="reflect")).astype(np.int64).ravel()
    first, second = graph.scopes["edge"].T
    node = _overlapping(rng, y == 1, 0.1)
    edge = _overlapping(rng, y[first] != y[second], 0.2)
    return Example(graph, {"node": node, "edge": edge}, y, name=name)


def _overlapping(rng: np.random.Generator, upper: np.ndarray, gap: float) -> Floats:
    """(1, phi) with phi uniform in [gap, 1] where `upper` holds and in [0, 1 - gap] elsewhere."""
    phi = (1.0 - gap) * rng.random(len(upper)) + gap * upper
    return np.stack([np.ones_like(phi), phi], axis=1)


__all__ = ["conll", "data_folder", "denoising"]

"""Binary denoising of Berkeley images."""

from __future__ import annotations

import numpy as np

from .._types import PotentiaError
from ..graph.structure import Graph
from .example import Example
from .loaders import FilePath, check_choice, data_folder, read_arrays

_N_TRAIN = 32


def berkeley_denoising(
    folder: FilePath | None = None, split: str = "train", *, noise: float = 1.25, seed: int = 0
) -> list[Example]:
    """132 binarised Berkeley images of 200 x 300 with noise added [MBL-tpami sec. 8.2].

    The input is x_i (1 - t_i^n) + (1 - x_i) t_i^n with x_i the true label, t_i uniform in [0, 1] and n = `noise`:
    the lower, the noisier (the paper: 1.25, 1.5, 5). Features are (1, input) per pixel and (horizontal, vertical)
    indicators per pair. 32 images to train and 100 to test: the paper does not name them, here a permutation
    drawn with `seed`, which also draws the noise; an image's noise depends on no other choice.
    """
    check_choice("split", split, ("train", "test", "all"))
    if not noise > 0 or not np.isfinite(noise):
        raise PotentiaError(f"noise must be a positive number, not {noise}.")
    path = data_folder(folder) / "bsds_denoise" / "denoise132.npz"
    arrays = read_arrays(path, ("binary", "names"))
    truth, names = arrays["binary"], arrays["names"]
    if truth.ndim != 3 or len(truth) != len(names):
        raise PotentiaError(f"{path}: 'binary' has shape {truth.shape} for {len(names)} names.")
    order = np.random.default_rng(seed).permutation(len(truth))
    parts = {"train": order[:_N_TRAIN], "test": order[_N_TRAIN:], "all": order}
    graph = Graph.grid(truth.shape[1:], n_states=2)
    first, second = graph.scopes["edge"].T
    # one array for all images: the directions are the same
    edge = np.stack([second - first == 1, second - first != 1], axis=1).astype(np.float64)
    examples = []
    for i in np.sort(parts[split]):
        t = np.random.default_rng([seed, int(i)]).random(graph.n_variables) ** noise
        x = truth[i].ravel()
        node = np.stack([np.ones(len(x)), np.where(x, 1.0 - t, t)], axis=1)
        examples.append(Example(graph, {"node": node, "edge": edge}, x.astype(np.int64), name=str(names[i])))
    return examples

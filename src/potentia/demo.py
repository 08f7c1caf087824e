"""The demo: a noisy picture, and what each inference method makes of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from ._types import Floats, Ints
from .graph.structure import Graph
from .inference.base import Inference, Result
from .inference.exact import Exact
from .inference.gibbs import Gibbs
from .inference.linear_program import LinearProgram
from .inference.mean_field import MeanField
from .inference.message_passing import TRW, LoopyBP, Smoothed

# A 3 x 5 font for the word in the picture, one string of rows per letter.
_LETTERS = {
    "P": "### #.# ### #.. #..",
    "O": "### #.# #.# #.# ###",
    "T": "### .#. .#. .#. .#.",
    "E": "### #.. ##. #.. ###",
    "N": "##. #.# #.# #.# #.#",
    "I": "### .#. .#. .#. ###",
    "A": ".#. #.# ### #.# #.#",
}
_NOISE = 0.7
_COUPLING = 0.8

METHODS: dict[str, Inference] = {
    "exact": Exact(),
    "TRW": TRW(iterations=400),
    "loopy BP": LoopyBP(iterations=400, damping=0.2),
    "mean field": MeanField(),
    "smoothed LP, ε = 0.1": Smoothed(0.1, iterations=400),
    "linear program": LinearProgram(),
    "Gibbs sampling": Gibbs(),
}


def picture() -> Ints:
    """The truth: a word in letters two pixels thick, (12, 66) of 0 and 1; narrow enough for exact inference."""
    rows = [".".join(_LETTERS[letter].split()[y] for letter in "POTENTIA") for y in range(5)]
    small = np.array([[mark == "#" for mark in row] for row in rows], dtype=np.int64)
    return np.pad(np.kron(small, np.ones((2, 2), dtype=np.int64)), ((1, 1), (2, 2)))


def problem(truth: Ints, seed: int) -> tuple[Graph, dict[str, Floats], Floats]:
    """Grid, scores and noisy picture: node scores are Gaussian log-likelihoods, pairs prefer to be equal."""
    noisy = truth + np.random.default_rng(seed).normal(scale=_NOISE, size=truth.shape)
    nodes = -((noisy.reshape(-1, 1) - np.array([0.0, 1.0])) ** 2) / (2 * _NOISE**2)
    graph = Graph.grid(truth.shape, n_states=2)
    return graph, {"node": nodes, "edge": _COUPLING * np.eye(2)}, noisy


def run(seed: int = 0) -> tuple[list[dict[str, Any]], dict[str, Floats]]:
    """Rows of facts per method, and the pictures: truth, noisy, and the probability of ink by each method."""
    truth = picture()
    graph, theta, noisy = problem(truth, seed)
    pictures = {"truth": truth.astype(float), "noisy input": noisy}
    rows: list[dict[str, Any]] = []
    reference: Result | None = None
    for name, method in METHODS.items():
        begun = time.perf_counter()
        result = method.infer(graph, theta)
        seconds = time.perf_counter() - begun
        reference = reference or result
        difference = np.abs(result.variable_marginals - reference.variable_marginals)
        pictures[name] = result.variable_marginals[:, 1].reshape(truth.shape)
        rows.append(
            {
                "method": name,
                "target": result.target,
                "value": result.value,
                "bound": result.bound,
                "pixels_wrong": float((result.mpm() != truth.ravel()).mean()),
                "marginal_difference": float(difference.mean()),
                "best_score": result.score(result.argmax()),
                "iterations": result.iterations,
                "converged": result.converged,
                "seconds": seconds,
            }
        )
    return rows, pictures


def draw(pictures: dict[str, Floats], path: Path) -> None:
    """All pictures below each other in one PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.02 * ((len(pictures) + 1) // 2) + 0.5), layout="constrained")
    axes = figure.subplots((len(pictures) + 1) // 2, 2).ravel()
    for panel in axes[len(pictures) :]:
        panel.set_axis_off()
    for axis, (name, image) in zip(axes, pictures.items(), strict=False):
        limits = {} if name == "noisy input" else {"vmin": 0.0, "vmax": 1.0}
        shown = axis.imshow(image, cmap="gray_r", **limits)
        axis.set_title(name if name in ("truth", "noisy input") else f"P(ink), {name}", fontsize=9)
        axis.set_xticks([])
        axis.set_yticks([])
    figure.colorbar(shown, ax=axes, shrink=0.6, label="P(ink)")
    figure.savefig(path, dpi=150)

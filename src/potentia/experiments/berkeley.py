"""`denoising-berkeley`: table 1 and figure 4 of MBL-tpami, three noise levels by ten losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..adjoint import BackPropagation
from ..data.berkeley import berkeley_denoising
from ..data.example import Example
from ..estimators import CRF
from ..features.resize import resize
from ..inference.message_passing import TRW
from ..learn.risk import MarginalRisk
from ..potentials import Potential
from ..report.pictures import Original
from ..report.tables import Column
from .experiment import Table
from .figures import grid_size
from .marginal_cells import NAMES, loss_named, train, training_facts
from .marginal_pictures import draw_pictures, pack, unpack
from .rows import Cell, Row

#: The paper's (training, test) errors by loss, at noise 1.25, 1.5 and 5.
PAPER = {
    "surrogate_likelihood": ((0.149, 0.143), (0.103, 0.097), (0.031, 0.030)),
    "univariate_logistic": ((0.133, 0.126), (0.102, 0.096), (0.031, 0.030)),
    "clique_logistic": ((0.132, 0.126), (0.102, 0.096), (0.031, 0.030)),
    "univariate_quadratic": ((0.132, 0.126), (0.102, 0.096), (0.031, 0.030)),
    "smoothed_error_5": ((0.136, 0.129), (0.105, 0.099), (0.032, 0.030)),
    "smoothed_error_15": ((0.132, 0.126), (0.102, 0.096), (0.031, 0.030)),
    "smoothed_error_50": ((0.132, 0.125), (0.102, 0.096), (0.030, 0.030)),
    "pseudolikelihood": ((0.207, 0.204), (0.117, 0.112), (0.032, 0.030)),
    "piecewise": ((0.466, 0.481), (0.466, 0.481), (0.063, 0.058)),
    "independent": ((0.421, 0.424), (0.367, 0.368), (0.129, 0.129)),
}
NOISE = (1.25, 1.5, 5.0)

#: The threshold of inference and of back-propagation.
_THRESHOLD = 1e-4
#: Iterations after which either is cut off: a line search that tries strong pairs would wait for thousands.
_MOST = 200


def cells(quick: bool, full: bool) -> list[Cell]:
    """The noisiest pictures first, then the least noisy; the losses that differ most first."""
    first = ("univariate_logistic", "surrogate_likelihood", "independent")
    losses = first if quick else (*first, "pseudolikelihood", "piecewise", *PAPER)
    noises = (1.25,) if quick else (1.25, 5.0, 1.5)
    base = {"study": "denoising-berkeley", "quick": quick, "seed": 0}
    return [base | {"noise": noise, "loss": loss} for noise in noises for loss in dict.fromkeys(losses)]


def learner_of(loss: str, quick: bool) -> MarginalRisk:
    """TRW to the threshold, gradients by back-propagation to it; no ridge: there are twelve parameters.

    So few are nearly found with four pictures: the steps halve as the pictures double.
    """
    most = 20 if quick else _MOST
    return MarginalRisk(
        loss_named(loss), TRW(iterations=most, tol=_THRESHOLD), BackPropagation(_THRESHOLD, most),
        ridge=0.0, iterations=3 if quick else 40, tol=1e-4, incremental=4, track_error=False,
    )  # fmt: skip


def prepare(quick: bool) -> Callable[[Cell], Row]:
    """What runs one cell."""

    @cache
    def load(noise: float, seed: int) -> tuple[list[Example], list[Example]]:
        return load_examples(noise, seed, quick)

    @cache
    def surrogate(noise: float, seed: int) -> Mapping[str, Potential]:
        """Where the smoothed errors begin, because of their local minima."""
        return train(learner_of("surrogate_likelihood", quick), load(noise, seed)[0]).potentials_

    def run(cell: Cell) -> Row:
        at = cell["noise"], cell["seed"]
        learn, test = load(*at)
        start = surrogate(*at) if cell["loss"].startswith("smoothed") else None
        model = train(
            learner_of(cell["loss"], quick), learn, pairs=cell["loss"] != "independent", start=start
        )
        return {
            "train_error": 1.0 - model.score(learn),
            "test_error": 1.0 - model.score(test),
            **training_facts(model),
            "pictures": [pack(_half(model, test[0]))],
        }

    return run


def load_examples(noise: float, seed: int, quick: bool) -> tuple[list[Example], list[Example]]:
    """Training and test pictures; quick: a few."""
    learn, test = (berkeley_denoising(split=split, noise=noise, seed=seed) for split in ("train", "test"))
    return (learn[:1], test[:1]) if quick else (learn, test)


def _half(model: CRF, example: Example) -> np.ndarray:
    """Predicted probabilities of state 1 at half the size, to keep rows small."""
    height, width = grid_size(example)
    return resize(
        model.predict_marginals([example])[0][:, 1].reshape(height, width), (height // 2, width // 2)
    )


def originals(cell: Cell) -> list[Original]:
    """The noisy picture whose marginals rows keep, and the truth."""
    return [_original(cell["noise"], cell["seed"], cell["quick"])]


@cache
def _original(noise: float, seed: int, quick: bool) -> Original:
    example = load_examples(noise, seed, quick)[1][0]
    assert example.labels is not None
    size = grid_size(example)
    return np.asarray(example.features["node"][:, 1]).reshape(size), example.labels.reshape(size)


def tables(rows: Sequence[Row]) -> list[Table]:
    """Test and training errors by loss and noise level, ours / the paper's."""
    found = []
    for place, part in ((1, "test"), (0, "train")):
        columns = [Column("loss", "loss"), *(Column(f"n = {n:g}", str(n), str) for n in NOISE)]
        lines: list[dict[str, Any]] = []
        for loss, paper in PAPER.items():
            line = {"loss": NAMES[loss]}
            for row in (r for r in rows if r["cell"]["loss"] == loss):
                noise = row["cell"]["noise"]
                line[str(noise)] = f"{row[f'{part}_error']:.3f} / {paper[NOISE.index(noise)][place]:.3f}"
            lines.append(line)
        found.append((f"Berkeley denoising, {part} error (ours / paper)", columns, lines))
    return found


def draw(rows: Sequence[Row], quick: bool, out: Path) -> None:
    """Figure 4: marginals of one test picture, a row per noise level."""
    lines = []
    for noise in sorted({row["cell"]["noise"] for row in rows}):
        ((seen, truth),) = originals({"noise": noise, "seed": rows[0]["cell"]["seed"], "quick": quick})
        line = [("truth", truth.astype(float)), (f"input, n = {noise:g}", seen)]
        by_loss = {r["cell"]["loss"]: r for r in rows if r["cell"]["noise"] == noise}
        line += [(NAMES[loss], unpack(by_loss[loss]["pictures"][0])) for loss in PAPER if loss in by_loss]
        lines.append(line)
    draw_pictures(lines, out / "marginals.png")

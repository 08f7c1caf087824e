"""`denoising-berkeley`: table 1 and figure 4 of MBL-tpami, three noise levels by ten losses."""

from __future__ import annotations

import numpy as np

import potentia as pt
from potentia.app.report.rows import Cell, Row, Table, grid
from potentia.features.colour import resize

from . import public_sets
from .figures import Figure, grid_size, image_figure, strips
from .marginal import NAMES, CellData, ExamplesOfImages, loss_named, run_loss
from .marginal_images import share_wrong
from .row_images import Original, pack
from .study import Originals, Rows, Study, matrix

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
#: The losses that differ most.
_FIRST = ("univariate_logistic", "surrogate_likelihood", "independent")


def learner_of(loss: str, quick: bool) -> pt.MarginalRisk:
    """TRW to the threshold, gradients by back-propagation to it; no ridge: there are twelve parameters.

    So few are nearly found with four images: the steps halve as the images double.
    """
    most = 20 if quick else _MOST
    return pt.MarginalRisk(
        loss_named(loss), pt.TRW(iterations=most, tol=_THRESHOLD), pt.gradients.BackPropagation(_THRESHOLD, most),
        ridge=0.0, iterations=3 if quick else 40, tol=1e-4, incremental=4, track_error=False,
    )  # fmt: skip


def load(quick: bool, noise: float, seed: int) -> CellData:
    """Training and test images; quick: one of each."""
    train, test = (
        ExamplesOfImages(_examples(split, noise, seed)[: 1 if quick else None]) for split in ("train", "test")
    )
    return CellData(train, test, learner_of("surrogate_likelihood", quick))


def _examples(split: str, noise: float, seed: int) -> list[pt.Example]:
    return public_sets.berkeley_denoising(split=split, noise=noise, seed=seed)


def run(cell: Cell, data: CellData) -> Row:
    """Train and measure; of one test image the marginals are kept, at half its size to keep rows small."""
    model, row = run_loss(cell, data, learner_of(cell["loss"], cell["quick"]), share_wrong)
    example = data.test.examples[0]
    height, width = grid_size(example)
    marginals = model.predict_marginals([example])[0][:, 1].reshape(height, width)
    return row | {"pictures": [pack(resize(marginals, (height // 2, width // 2)))]}


def originals(quick: bool, noise: float, seed: int) -> list[Original]:
    """The noisy image whose marginals rows keep, and the truth."""
    example = _examples("test", noise, seed)[0]
    size = grid_size(example)
    return [(np.asarray(example.features["node"][:, 1]).reshape(size), np.asarray(example.labels).reshape(size))]


def tables(rows: Rows) -> list[Table]:
    """Test and training errors by loss and noise level, ours / the paper's."""
    found = []
    lines, columns = {loss: (NAMES[loss],) for loss in PAPER}, {n: f"n = {n:g}" for n in NOISE}
    for place, part in ((1, "test"), (0, "train")):
        entries = {}
        for row in rows:
            loss, noise = row["cell"]["loss"], row["cell"]["noise"]
            entries[loss, noise] = f"{row[f'{part}_error']:.3f} / {PAPER[loss][NOISE.index(noise)][place]:.3f}"
        found.append(matrix(f"Berkeley denoising, {part} error (ours / paper)", ["loss"], lines, columns, entries))
    return found


def draw(rows: Rows, originals: Originals) -> Figure | None:
    """Figure 4: marginals of one test image, a line per noise level."""
    found = []
    for noise in sorted({row["cell"]["noise"] for row in rows}):
        by_loss = {row["cell"]["loss"]: row for row in rows if row["cell"]["noise"] == noise}
        named = [(NAMES[loss], by_loss[loss]) for loss in PAPER if loss in by_loss]
        (seen, *others), *_ = strips(named, originals(named[0][1]["cell"]), "marginals")
        found.append([(f"input, n = {noise:g}", seen[1]), *others])
    return image_figure(found)


STUDY = Study(
    "denoising-berkeley",
    # the noisiest images first, then the least noisy
    grid(noise=(1.25, 5.0, 1.5), loss=dict.fromkeys((*_FIRST, "pseudolikelihood", "piecewise", *PAPER))),
    grid(noise=(1.25,), loss=_FIRST),
    run,
    tables,
    {"marginals": draw},
    load,
    needs=("noise", "seed"),
    originals=originals,
)

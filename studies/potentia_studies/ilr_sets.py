"""The sets of iterated logistic regression, with the errors that the papers print, and their studies.

Errors are in the order zero, constant, linear, boosting, MLP of nodes (lines) and pairs (columns).
"""

from __future__ import annotations

from . import public_sets
from .ilr import IlrSet
from .ilr_results import FIGURES, epsilon_curve, tables
from .study import Study

DENOISING_TEST = [  # ILR-nips table 1; the training errors are from ILR-slides
    [0.502, 0.502, 0.502, 0.511, 0.502],
    [0.502, 0.502, 0.502, 0.510, 0.502],
    [0.444, 0.077, 0.059, 0.049, 0.034],
    [0.444, 0.034, 0.015, 0.009, 0.007],
    [0.445, 0.032, 0.015, 0.009, 0.008],
]
DENOISING_TRAIN = [
    [0.490, 0.490, 0.490, 0.465, 0.490],
    [0.490, 0.490, 0.490, 0.465, 0.490],
    [0.443, 0.077, 0.059, 0.056, 0.033],
    [0.429, 0.032, 0.014, 0.012, 0.008],
    [0.435, 0.031, 0.014, 0.011, 0.008],
]
HORSES_TEST = [
    [0.246, 0.246, 0.247, 0.244, 0.245],
    [0.246, 0.246, 0.247, 0.244, 0.245],
    [0.185, 0.185, 0.168, 0.154, 0.156],
    [0.103, 0.098, 0.092, 0.084, 0.086],
    [0.096, 0.094, 0.087, 0.080, 0.081],
]
HORSES_TRAIN = [
    [0.211, 0.211, 0.212, 0.211, 0.210],
    [0.211, 0.211, 0.212, 0.211, 0.210],
    [0.141, 0.139, 0.126, 0.111, 0.113],
    [0.087, 0.079, 0.074, 0.069, 0.068],
    [0.054, 0.051, 0.046, 0.043, 0.041],
]
BACKGROUNDS_TRAIN = [
    [0.853, 0.641, 0.553, 0.470, 0.497],
    [0.769, 0.640, 0.553, 0.470, 0.497],
    [0.322, 0.304, 0.283, 0.272, 0.272],
    [0.289, 0.259, 0.249, 0.239, 0.239],
    [0.262, 0.226, 0.216, 0.210, 0.209],
]
BACKGROUNDS_TEST = [
    [0.863, 0.673, 0.593, 0.483, 0.518],
    [0.793, 0.673, 0.593, 0.485, 0.518],
    [0.345, 0.329, 0.304, 0.296, 0.296],
    [0.331, 0.304, 0.296, 0.287, 0.284],
    [0.310, 0.281, 0.280, 0.271, 0.272],
]

SETS = (
    IlrSet(
        "denoising",
        "Denoising: univariate error",
        "synthetic, 16 training and 16 test images of 100 x 100 [ILR-nips sec. 8]",
        DENOISING_TRAIN,
        DENOISING_TEST,
        ("modes", "epsilon", "refit"),
    ),
    IlrSet(
        "horses-ilr",
        "Horses: univariate error",
        "Weizmann horses, 200 training and 128 test images reduced to a quarter of their sides (about 66 x 53); "
        "features of single pixels are computed at full size, then averaged",
        HORSES_TRAIN,
        HORSES_TEST,
        images=lambda split: public_sets.horses(split=split),
        options={"n_states": 2, "node": "ilr", "edge": "ilr", "reduce": 0.25, "when": "after"},
        epochs=1,
        schedule="coloured",
        message_tol=1e-3,
    ),
    IlrSet(
        "backgrounds-ilr",
        "Stanford backgrounds: univariate error",
        "Stanford backgrounds, 572 training and 143 test images reduced to 20 % before features",
        BACKGROUNDS_TRAIN,
        BACKGROUNDS_TEST,
        ("drawn",),
        images=lambda split: public_sets.stanford_backgrounds(split=split),
        options={"n_states": 8, "node": "ilr", "edge": "ilr", "reduce": 0.2},
        epochs=1,
        tracked=(1, 5, 12, 25, 100),
        schedule="coloured",
        message_tol=1e-2,
    ),
)


def _study(own: IlrSet) -> Study:
    return Study(
        own.name,
        own.cells(quick=False),
        own.cells(quick=True),
        own.run,
        lambda rows: tables(own, rows),
        FIGURES | ({"epsilon": epsilon_curve} if "epsilon" in own.parts else {}),
        own.load,
        originals=own.originals,
    )


STUDIES = [_study(own) for own in SETS]

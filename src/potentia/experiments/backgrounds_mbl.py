"""`backgrounds`: table 3 and figure 6 of MBL-tpami."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..data.example import Example
from ..data.pictures import BACKGROUND_CLASSES, LabelledImage, stanford_backgrounds
from ..estimators import CRF
from ..features.image import image_examples
from ..features.resize import upsample_marginals
from .figures import grid_size
from .marginal_cells import LOCAL
from .marginal_pictures import class_colours
from .picture_cells import PictureSet, Printed
from .rows import Cell

_ROUNDS = (5, 10, 20)
_PAPER: Printed = {
    (loss, "trw"): dict(zip(_ROUNDS if len(errors) == 3 else (0,), errors, strict=True))
    for loss, *errors in (
        ("truncated_em", (0.876, 0.877), (0.239, 0.249), (0.238, 0.248)),
        ("univariate_logistic", (0.210, 0.228), (0.202, 0.224), (0.201, 0.223)),
        ("clique_logistic", (0.206, 0.226), (0.198, 0.223), (0.195, 0.221)),
        ("pseudolikelihood", (0.516, 0.519)),
        ("piecewise", (0.335, 0.341)),
        ("independent", (0.293, 0.299)),
    )
}
_N_FOLDS = 5


def cells(quick: bool, full: bool) -> list[Cell]:
    """One fold, or all five one after another; fewer iterations first."""
    base = {"study": "backgrounds", "quick": quick, "seed": 0}
    main = ("univariate_logistic", "truncated_em", "clique_logistic")
    order = [(loss, 5) for loss in main[:2]] + [("independent", 0), (main[2], 5)]
    order += [(loss, 10) for loss in main] + [(loss, 0) for loss in LOCAL[:2]] + [(loss, 20) for loss in main]
    order = [("truncated_em", 5), ("independent", 0)] if quick else order
    return [
        base | {"loss": loss, "inference": "trw", "rounds": r, "fold": fold}
        for fold in range(_N_FOLDS if full else 1)
        for loss, r in order
    ]


def _pictures(split: str, fold: int) -> list[LabelledImage]:
    return stanford_backgrounds(split=split, fold=fold)


def examples_of(pictures: Sequence[LabelledImage]) -> list[Example]:
    """20 % of the sides after features were computed."""
    return image_examples(
        pictures,
        n_states=len(BACKGROUND_CLASSES),
        node="mbl",
        edge="mbl-backgrounds",
        reduce=0.2,
        when="after",
    )


def full_size_error(model: CRF, pictures: Sequence[LabelledImage], examples: Sequence[Example]) -> float:
    """Share of known pixels wrong at full size, where marginals are interpolated before the best class is taken."""
    wrong = known = 0
    for first in range(0, len(examples), 64):
        part = slice(first, first + 64)
        for picture, example, marginals in zip(
            pictures[part], examples[part], model.predict_marginals(examples[part]), strict=True
        ):
            labels = upsample_marginals(marginals, grid_size(example), picture.labels.shape).argmax(axis=2)
            seen = picture.labels >= 0
            wrong += int(np.count_nonzero(labels[seen] != picture.labels[seen]))
            known += int(np.count_nonzero(seen))
    return wrong / known


BACKGROUNDS = PictureSet(
    "Stanford backgrounds", _pictures, examples_of, _PAPER, steps=100, incremental=32, shown=(0, 70),
    colours=class_colours, error=full_size_error,
)  # fmt: skip

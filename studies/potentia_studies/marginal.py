"""Training and scoring a cell of marginal-based learning's tables [MBL-tpami sec. 8]."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import potentia as pt
from potentia.app.report.rows import Cell, Row
from potentia.gradients.losses import loss_of

from .public_sets import LabelledImage

#: Losses as the tables print them.
NAMES = {
    "surrogate_likelihood": "surrogate likelihood",
    "truncated_likelihood": "surrogate likelihood",
    "truncated_em": "surrogate EM",
    "univariate_logistic": "univariate logistic",
    "clique_logistic": "clique logistic",
    "univariate_quadratic": "univariate quad",
    "smoothed_error_5": "smooth class. 5",
    "smoothed_error_15": "smooth class. 15",
    "smoothed_error_50": "smooth class. 50",
    "pseudolikelihood": "pseudolikelihood",
    "piecewise": "piecewise",
    "independent": "independent",
}

#: Losses that need no inference to train.
LOCAL = ("pseudolikelihood", "piecewise", "independent")

#: Points of a learning curve that a row keeps.
_POINTS = 40


class ExamplesOfImages(NamedTuple):
    """Examples, and the images that they are of where those are needed."""

    examples: list[pt.Example]
    images: Sequence[LabelledImage] = ()


def loss_named(name: str) -> str | pt.gradients.losses.Loss:
    """A loss by its name in a cell; the number after smoothed_error_ is alpha."""
    if name.startswith("smoothed_error_"):
        return pt.gradients.losses.SmoothedError(float(name.removeprefix("smoothed_error_")))
    # without scores of pairs the piecewise loss is logistic regression
    return loss_of("piecewise" if name == "independent" else name)


def truncated_inference(name: str, rounds: int) -> pt.extend.Inference:
    """Coloured iterations; for "trw_raster" forward and backward in raster order, which counts as two each.

    The paper does not print its order of updates. What it says of likelihoods with few iterations holds by colours,
    where messages travel two pixels per iteration, and not in raster order, where they cross the image in one.
    """
    options: dict[str, Any] = {"iterations": rounds, "tol": 0.0}
    if name == "trw_raster":
        return pt.TRW(**options | {"iterations": 2 * rounds, "schedule": "sequential"})
    return pt.TRW(**options) if name == "trw" else pt.MeanField(**options)


def train(
    learner: pt.MarginalRisk,
    examples: Sequence[pt.Example],
    *,
    pairs: bool = True,
    start: Mapping[str, pt.extend.Potential] | None = None,
    callback: Callable[..., Any] | None = None,
) -> pt.CRF:
    """A CRF with linear nodes and pairs; the features hold the constants, so that the ridge is on all parameters.

    pairs: whether pairs have scores. start: fitted potentials to begin from.
    """
    edge = pt.Linear(intercept=False) if pairs else pt.Zero()
    model = pt.CRF({"node": pt.Linear(intercept=False), "edge": edge}, learner)
    if start is not None:
        model.potentials_ = dict(copy.deepcopy(start))
    with warnings.catch_warnings(action="ignore", category=pt.ConvergenceWarning):  # the row says it
        return model.fit(examples, warm_start=start is not None, callback=callback)


@dataclass(frozen=True)
class CellData:
    """What a cell learns from and is tested on.

    Attributes:
        train, test: examples, and the images that they are of.
        surrogate: the learner whose solution smoothed errors begin from, because of their local minima.
    """

    train: ExamplesOfImages
    test: ExamplesOfImages
    surrogate: pt.MarginalRisk | None = None

    @cached_property
    def start(self) -> Mapping[str, pt.extend.Potential]:
        """The solution of the surrogate likelihood."""
        assert self.surrogate is not None
        return train(self.surrogate, self.train.examples).potentials_


def run_loss(
    cell: Cell, data: CellData, learner: pt.MarginalRisk, error: Callable[[pt.CRF, ExamplesOfImages], float]
) -> tuple[pt.CRF, Row]:
    """Train with the cell's loss; the model, and errors and facts of the training for its row."""
    start = data.start if cell["loss"].startswith("smoothed") else None
    model = train(learner, data.train.examples, pairs=cell["loss"] != "independent", start=start)
    return model, {
        "train_error": error(model, data.train),
        "test_error": error(model, data.test),
        **training_facts(model),
    }


def training_facts(model: pt.CRF) -> Row:
    """What a row says about how a model was trained."""
    learner, history = model.learner, model.history_
    assert isinstance(learner, pt.MarginalRisk)
    kept = sorted({*range(0, len(history), -(-len(history) // _POINTS) or 1), len(history) - 1} - {-1})
    curve = [{k: history[i][k] for k in ("iteration", "objective", "seconds")} for i in kept]
    options = ("ridge", "iterations", "tol", "incremental", "seed")
    return {
        "iterations": len(history),
        "objective": history[-1]["objective"] if history else None,
        "history": [{k: float(f"{v:.5g}") for k, v in point.items()} for point in curve],
        "learner": {name: getattr(learner, name) for name in options},
        "inference": repr(learner.inference),
        "gradient": repr(learner.gradient),
    }

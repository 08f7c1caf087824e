"""Choosing how pairs of pixels are trained, by cross-validation over images within a budget of time."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .._types import ConvergenceWarning, Floats, PotentiaError
from ..data.example import Example
from ..estimators import CRF
from .training import Run, make_learner, make_potential, probability_node

#: What is tried, the default first.
CANDIDATES: tuple[Mapping[str, Any], ...] = (
    {"learner": "ilr", "edge": "potts", "epsilon": 1.0},
    {"learner": "ilr", "edge": "linear", "epsilon": 1.0},
    {"learner": "ilr", "edge": "potts", "epsilon": 0.3},
    {"learner": "ilr", "edge": "potts", "epsilon": 3.0},
    {"learner": "marginal", "edge": "potts"},
    {"learner": "ilr", "edge": "mlp", "epsilon": 1.0},
)
#: Functions of pixels that are tried.
NODES = ("boosting", "linear")
_FOLDS = 3
#: Steps of a fit while searching; the chosen one is fitted in full.
_ITERATIONS = 30


def search_pairs(
    examples: Sequence[Example],
    run: Run,
    budget: float,
    iterations: int | None = None,
    class_weight: Floats | None = None,
) -> tuple[CRF, dict[str, Any]]:
    """The model with the lowest cross-validated error of those tried before the budget (seconds) was used up."""
    if budget <= 0:
        raise PotentiaError(f"--budget is a number of seconds above zero, not {budget:g}.")
    begun = time.perf_counter()
    errors: list[float] = []
    for candidate in CANDIDATES:
        if errors and (time.perf_counter() - begun) * (len(errors) + 1) / len(errors) > budget:
            break
        errors.append(_error(candidate, examples, run, class_weight))
        run.say(f"{_shown(candidate)}: cross-validated error {errors[-1]:.4f}")
    best = int(np.argmin(errors))
    left_out = len(CANDIDATES) - len(errors)
    more = f"; {left_out} others did not fit in the budget of {budget:g} s" if left_out else ""
    run.say(
        f"chosen: {_shown(CANDIDATES[best])}, with the lowest cross-validated error of {len(errors)} choices{more}."
    )
    model = _model(CANDIDATES[best], run, iterations, class_weight)
    return model, {"chosen": _shown(CANDIDATES[best]), "search_error": errors[best]}


def _error(
    candidate: Mapping[str, Any], examples: Sequence[Example], run: Run, class_weight: Floats | None
) -> float:
    """The share of wrong pixels of held-out examples."""
    folds = np.random.default_rng(run.seed).permutation(np.arange(len(examples)) % min(_FOLDS, len(examples)))
    wrong = known = 0.0
    for fold in range(int(folds.max()) + 1 if folds.max() else 0):
        own = [e for e, f in zip(examples, folds, strict=True) if f != fold]
        held = [e for e, f in zip(examples, folds, strict=True) if f == fold]
        model = _model(candidate, replace(run, validation=None), _ITERATIONS, class_weight)
        with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
            model.fit(own)
        size = sum(int(np.count_nonzero(e.labels >= 0)) for e in held if e.labels is not None)
        if size:
            wrong += (1.0 - model.score(held)) * size
            known += size
    return wrong / known if known else float("nan")


def _model(
    candidate: Mapping[str, Any], run: Run, iterations: int | None, class_weight: Floats | None
) -> CRF:
    options = dict(candidate)
    edge, learner = options.pop("edge"), options.pop("learner")
    potentials = {"node": probability_node(learner), "edge": make_potential(edge, run.seed)}
    return CRF(
        potentials, make_learner(learner, potentials, iterations, run, class_weight=class_weight, **options)
    )


def _shown(candidate: Mapping[str, Any]) -> str:
    return ", ".join(f"--{name} {value}" for name, value in candidate.items())

"""Gradients by inference at perturbed scores [MBL-tpami sec. 6]."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from ..base.types import Floats, Ints, PotentiaError, check_choice, check_positive
from ..graph.cotangents import MarginalCotangent, Tables, flat_marginals, own_tables, zero_tables
from ..graph.scores import Scores
from ..inference.base import Inference, Result, add_marginals
from .base import Gradient, Pull

#: Weights of inference at theta + k r dQ/dmu, over r.
_STENCILS = {1: {1: 1.0, 0: -1.0}, 2: {1: 0.5, -1: -0.5}, 4: {2: -1 / 12, 1: 8 / 12, -1: -8 / 12, -2: 1 / 12}}
#: Tolerance of perturbed runs, relative to the change of marginals that they are to measure.
_SHARP = 1e-5
#: Errors of marginals, relative to the same, that are worth a warning.
_INACCURATE = 1e-3


@dataclass(frozen=True)
class Perturbation(Gradient):
    """dL/dtheta = lim (mu(theta + r dQ/dmu) - mu(theta)) / r [MBL-tpami Eq. 24], by 1-, 2- or 4-sided differences.

    The step is r = multiplier eps^(1/3) (1 + |theta|) / |dQ/dmu| with largest absolute values over finite entries.
    Works with any inference whose marginals are the gradient of its value, so as well as inference has converged.
    Perturbed runs start from the result and have a tolerance far below the step, with up to ten times the iterations.
    """

    sides: int = 2
    multiplier: float = 1.0

    def __post_init__(self) -> None:
        check_choice("sides", self.sides, tuple(_STENCILS))
        check_positive("multiplier", self.multiplier)

    def solve(
        self, inference: Inference, scores: Scores, start: Result | None = None, cliques: bool = True
    ) -> tuple[Result, Pull]:
        """Inference and the function that pulls cotangents of its marginals back."""
        if not inference.smooth:
            raise PotentiaError(
                f"gradient='perturbation' does not apply to {type(inference).__name__}: its marginals are not a "
                "smooth function of the scores."
            )
        result = inference.run(scores, start)

        def pull(cotangent: MarginalCotangent) -> Tables:
            """d_theta as a difference quotient of marginals at scores shifted along d_mu."""
            size = _largest(cotangent)
            if size == 0.0:
                return zero_tables(scores)
            r = self.multiplier * np.finfo(float).eps ** (1 / 3) * (1 + scores.largest()) / size
            change = r * _scale(result, cotangent)
            sharp, residual = _sharpened(inference, change), 0.0
            tables = zero_tables(scores)
            for k, weight in _STENCILS[self.sides].items():
                moved = sharp.run(shifted(scores, cotangent, k * r) if k else scores, result)
                residual = max(residual, moved.residual)
                add_marginals(scores, moved, weight / r, tables)
            if np.finfo(float).eps > _INACCURATE * change:
                result.memo["doubt"] = (
                    "Some marginals are too small for finite differences to resolve the gradient: use another "
                    "gradient, or a larger `multiplier`."
                )
            elif residual > _INACCURATE * change:
                result.memo["doubt"] = (
                    "The gradient is inaccurate, because inference at perturbed scores did not converge: raise the "
                    "`iterations` of inference, or use gradient='truncated'."
                )
            return tables

        return result, pull


def _sharpened(inference: Inference, change: float) -> Inference:
    """The inference run until marginals move by far less than the `change` that is to be measured."""
    method: Any = inference
    tol = max(_SHARP * change, 1e-15)
    if not inference.iterative or method.tol <= tol:
        return inference
    return cast(Inference, replace(method, tol=tol, iterations=10 * method.iterations))


def _scale(result: Result, cotangent: MarginalCotangent) -> float:
    """The largest cotangent times marginal: the size of derivatives with respect to scores."""
    parts = [d * flat_marginals(result.marginals[kind]) for kind, d in cotangent.cliques.items()]
    if cotangent.singles is not None:
        parts.append(cotangent.singles * result.variable_marginals)
    return max(float(np.abs(part).max(initial=0.0)) for part in parts)


def _largest(cotangent: MarginalCotangent) -> float:
    """The largest entry of a cotangent by size."""
    parts = [*cotangent.cliques.values(), *([] if cotangent.singles is None else [cotangent.singles])]
    return max((float(np.abs(p).max(initial=0.0)) for p in parts), default=0.0)


def shifted(scores: Scores, direction: MarginalCotangent, step: float) -> Scores:
    """Scores plus `step` times a direction in the layout of marginals; what is forbidden stays so."""
    moved = copy.copy(scores)
    values: dict[str, Floats] = {}
    offsets: dict[str, Ints] = {}
    for kind in scores.graph.kinds:
        if kind in direction.cliques:
            size = scores.graph.table_sizes(kind)
            values[kind] = own_tables(scores, kind) + step * direction.cliques[kind]
            offsets[kind] = np.cumsum(size) - size
    moved.replace(values, offsets)
    if direction.singles is not None:
        moved.singles = scores.singles + step * direction.singles
    return moved

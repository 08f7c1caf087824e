"""The oracle protocol: a potential is a function x -> scores that can lower a biased logistic loss.

    sum_n w_n [ log sum_k exp(f(x_n)_k + b_nk) - sum_k y_nk (f(x_n)_k + b_nk) ] + penalty(f)

[ILR-chapter Eq. 1.19] for N rows x (N, d) of one kind of region with K configurations, labels y (N,) or
target distributions (N, K), bias b (N, K) and weight w (N,). A potential knows no graph, no messages and no
temperature.

**Your own class** derives from `Potential`, stores its hyper-parameters unchanged in `__init__`, and defines

    _start(x, n_outputs)    become the zero function, sized for rows like x
    _fit(problem)           lower the loss from where it stands; return the penalised loss reached, or None
    _scores(x)              f(x) as an (n, K) array, for a piece of the rows

and `penalty()` if it has one. `problem.x` are all rows and `problem.take(rows)` some, with their targets.
What a fit learns goes in attributes that end in an underscore: arrays, plain numbers and strings, or lists of
plain ones. `problem.bias` may be something that makes its rows on demand: take rows of it by slicing. The base
class checks input, keeps the old function when a fit came out worse, works piece by piece, saves and loads.
`potentia.potentials.contract.check_potential(YourClass)` tests all of it.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import numpy as np

from potentia._registry import Registered
from potentia._schema import Count, Number, Schema
from potentia._types import ArrayLike, Floats, PotentiaError
from potentia.kernels.logistic import loss_rows
from potentia.potentials.chunks import map_chunks
from potentia.potentials.params import Params
from potentia.potentials.problem import NO_ROWS, Problem, check_features, make_problem
from potentia.potentials.state import Arrays, pack, restore


class Potential(Params, Registered, ABC):
    """A function from features to log-scores, fitted by lowering the biased logistic loss.

    Fitting again continues: the fitted function is where a fit starts, or at least what it has to beat, and
    the penalised loss never rises. Unfitted means the zero function. `sklearn.base.clone` or `reset` start
    anew.
    """

    #: x may be a SciPy sparse matrix.
    accepts_sparse: ClassVar[bool] = False
    #: `_scores` and `_vjp` may be called by several threads at once; otherwise calls wait for each other.
    threaded: ClassVar[bool] = False
    #: A row of weight 2 gives the same function as the row twice.
    weights_are_copies: ClassVar[bool] = True
    #: What a file holds: hyper-parameters and learned attributes, checked on loading. Those not named are not checked.
    saved: ClassVar[Schema] = {
        "n_features_": Count("d"),
        "n_outputs_": Count("K"),
        "n_fits_": Count(),
        "objective_": Number(finite=False, optional=True),
    }

    n_features_: int
    n_outputs_: int
    n_fits_: int
    objective_: float

    @abstractmethod
    def _start(self, x: Any, n_outputs: int) -> None: ...

    @abstractmethod
    def _scores(self, x: Any) -> Floats: ...

    def _fit(self, problem: Problem) -> float | None:
        raise NotImplementedError(f"{type(self).__name__} must define _fit.")

    def penalty(self) -> float:
        """What the fit adds to the summed loss."""
        return 0.0

    @property
    def is_fitted(self) -> bool:
        """Whether `fit` or `start` was called."""
        return hasattr(self, "n_outputs_")

    def reset(self) -> Self:
        """Forget everything learned."""
        for name in self._fitted():
            delattr(self, name)
        return self

    def start(self, x: ArrayLike | None, n_outputs: int) -> Self:
        """Become the zero function for rows like x (N, d), which also settle any scaling of the features."""
        features = check_features(x, self.accepts_sparse, 0)
        self.reset()
        self._start(features, int(n_outputs))
        self.n_features_, self.n_outputs_, self.n_fits_ = int(features.shape[1]), int(n_outputs), 0
        return self

    def fit(
        self,
        x: ArrayLike | None,
        y: ArrayLike,
        bias: Any = None,
        weight: ArrayLike | None = None,
        *,
        n_outputs: int | None = None,
        scores: Floats | None = None,
    ) -> Self:
        """Lower the loss of rows x (N, d); `objective_` is then the penalised loss reached.

        y (N,) integers or (N, K) distributions; bias (N, K), an array or anything with a shape that returns
        rows when sliced; weight (N,). K is taken from n_outputs, bias, y (N, K), an earlier fit, or else the
        largest label. scores (N, K): f(x) before the fit where it is at hand; what it is after the fit is
        written there.
        """
        if n_outputs is None and bias is None and self.is_fitted:
            n_outputs = self.n_outputs_
        problem = make_problem(x, y, bias, weight, n_outputs, self.accepts_sparse)
        if not self.is_fitted:
            self.start(problem.x, problem.n_outputs)
        self._check_sizes(problem.x.shape[1], problem.n_outputs)
        if scores is not None:
            _check_scores(scores, (len(np.asarray(y)), problem.n_outputs))
        kept = copy.deepcopy(self._fitted())
        known = scores if scores is not None and len(scores) == problem.n_rows else None
        before, reached = self._improve(problem, known)
        # written so that a loss of NaN counts as worse
        if not reached <= before:
            self.reset().__dict__.update(kept)
            reached = before
            known = None
        if scores is not None and known is None:
            self.scores(x, scores)
        self.n_fits_ += 1
        self.objective_ = float(reached)
        return self

    def scores(self, x: Any, out: Floats | None = None, *, trusted: bool = False) -> Floats:
        """f(x) as (N, K) log-scores, written to `out` if given; works in pieces of bounded size.

        `trusted`: x is a matrix, dense or CSR, known to be finite, and is not looked at again.
        """
        self._check_fitted()
        features = x if trusted else check_features(x, self.accepts_sparse, None if out is None else len(out))
        shape = int(features.shape[0]), self.n_outputs_
        self._check_sizes(features.shape[1], self.n_outputs_)
        found = np.empty(shape) if out is None else out
        if found.shape != shape:
            raise PotentiaError(f"out must have shape {shape}, got {found.shape}.")

        def fill(rows: slice) -> None:
            found[rows] = self._scores(features[rows])

        self.ready(shape[0])
        width = self._width()
        if hasattr(features, "tocsr"):  # what counts is what is stored
            width = features.nnz // max(shape[0], 1) + 3 * self.n_outputs_
        map_chunks(fill, shape[0], width, self.threaded)
        return found

    def loss(
        self, x: ArrayLike | None, y: ArrayLike, bias: Any = None, weight: ArrayLike | None = None
    ) -> float:
        """The summed biased logistic loss of these rows, without penalty."""
        self._check_fitted()
        n_outputs = self.n_outputs_ if bias is None else None
        problem = make_problem(x, y, bias, weight, n_outputs, self.accepts_sparse)
        self._check_sizes(problem.x.shape[1], problem.n_outputs)
        return self._loss(problem)

    def state(self) -> tuple[dict[str, Any], Arrays]:
        """(JSON-able dictionary, arrays) from which `Potential.from_state` makes exactly the same function."""
        return pack(self, self._fitted())

    @staticmethod
    def from_state(meta: dict[str, Any], arrays: Arrays) -> Potential:
        """The potential saved by `state`; a class of your own must be imported before."""
        potential: Potential = restore(meta, arrays, Potential)
        return potential

    def _improve(self, problem: Problem, scores: Floats | None) -> tuple[float, float]:
        """Fit, and return the penalised loss before and after; `scores`, if given, are brought up to date."""
        before = self._objective(problem, scores)
        reached = self._fit(problem)
        if scores is not None:
            self.scores(problem.x, scores, trusted=True)
        return before, self._objective(problem, scores) if reached is None else reached

    def _loss(self, problem: Problem, scores: Floats | None = None) -> float:
        def of(rows: slice) -> float:
            batch = problem.take(rows)
            found = self._scores(batch.x) if scores is None else scores[rows]
            return float(loss_rows(np.ascontiguousarray(found, dtype=np.float64), *batch.targets, NO_ROWS))

        self.ready(problem.n_rows)
        return float(sum(map_chunks(of, problem.n_rows, self._width(), self.threaded)))

    def _objective(self, problem: Problem, scores: Floats | None = None) -> float:
        return self._loss(problem, scores) + self.penalty()

    def ready(self, n_rows: int) -> None:
        """Called before so many rows are scored piece by piece."""

    def _width(self) -> int:
        """Numbers a row needs while it is scored; sets the size of pieces."""
        return self.n_features_ + 3 * self.n_outputs_

    def _fitted(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name.endswith("_")}

    def _check_fitted(self) -> None:
        if not self.is_fitted:
            raise PotentiaError(f"{type(self).__name__} is not fitted: call fit or start first.")

    def _check_sizes(self, n_features: int, n_outputs: int) -> None:
        name = type(self).__name__
        if n_features != self.n_features_:
            raise PotentiaError(f"x has {n_features} features but {name} was fitted on {self.n_features_}.")
        if n_outputs != self.n_outputs_:
            raise PotentiaError(
                f"The rows have {n_outputs} configurations but {name} was fitted on {self.n_outputs_}."
            )


def _check_scores(scores: Any, shape: tuple[int, int]) -> None:
    """Scores to be brought up to date must be able to hold them."""
    if not isinstance(scores, np.ndarray) or scores.dtype != np.float64 or not scores.flags.writeable:
        raise PotentiaError("scores must be a writeable array of float64.")
    if scores.shape != shape:
        raise PotentiaError(f"scores must have shape {shape}, got {scores.shape}.")

"""The oracle protocol: a potential is a function x -> scores that can lower a biased logistic loss.

    sum_n w_n [ log sum_k exp(f(x_n)_k + b_nk) - sum_k y_nk (f(x_n)_k + b_nk) ] + penalty(f)

[ILR-chapter Eq. 1.19] for N rows x (N, d) of one kind of region with K configurations, labels y (N,) or
target distributions (N, K), bias b (N, K) and weight w (N,). A potential knows no graph, no messages and no
temperature.

**A custom class** derives from `Potential`, stores its hyper-parameters unchanged in `__init__`, and defines

    _start(x, n_outputs)    become the zero function, sized for rows like x
    _fit(problem)           lower the loss from where it stands; return the penalised loss reached, or None
    _scores(x)              f(x) as an (n, K) array, for a piece of the rows

and `penalty()` if it has one. `problem.x` are all rows and `problem.take(rows)` some, with their targets. Large data
sets are in several parts, where no one has all rows: `problem.sum(function)` adds up function(batch) over pieces,
`problem.draw(rows)` gathers some rows, and `_begin(problem)` takes the place of `_start`. What a fit learns goes in
attributes that end in an underscore: arrays, plain numbers and strings, or lists of plain ones. `problem.bias` may be
something that makes its rows on demand: take rows of it by slicing. The base class checks input, keeps the old
function when a fit came out worse, works piece by piece, saves and loads.
`potentia.potentials.contract.check_potential(YourClass)` tests all of it.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

import numpy as np

from potentia._registry import Registered
from potentia._schema import Count, Number, Schema
from potentia._types import ArrayLike, Floats, PotentiaError
from potentia.kernels.logistic import loss_rows
from potentia.potentials.chunks import map_chunks
from potentia.potentials.inputs import example_ptr
from potentia.potentials.params import Params
from potentia.potentials.problem import (
    NO_LABELS,
    NO_ROWS,
    NO_WEIGHT,
    Batch,
    Problem,
    Rows,
    is_sparse,
    stored_per_row,
)
from potentia.potentials.state import Arrays, pack, restore
from potentia.potentials.validation import check_features, make_problem


class Potential(Params, Registered, ABC):
    """A function from features to log-scores, fitted by lowering the biased logistic loss.

    Further fits continue from the fitted function, or keep it if they find no better one, so that the penalised loss
    never rises. An unfitted potential is the zero function. `sklearn.base.clone` and `reset` start from zero.
    """

    #: What it reads: the features of each region, "row", or `Inputs` of whole examples, "example".
    unit: ClassVar[Literal["row", "example"]] = "row"
    #: x may be a SciPy sparse matrix.
    accepts_sparse: ClassVar[bool] = False
    #: `_scores` and `_vjp` may be called by several threads at once; otherwise calls wait for each other.
    threaded: ClassVar[bool] = False
    #: A row of weight 2 gives the same function as the row twice.
    weights_are_copies: ClassVar[bool] = True
    #: f(x) does not depend on x: one table for all rows.
    shared: ClassVar[bool] = False
    #: f(x) = [x, 1] T with one table T of parameters; also defines what `Affine` names.
    affine: ClassVar[bool] = False
    #: Starts as the zero function.
    starts_at_zero: ClassVar[bool] = True
    #: Relative precision of scores, below which those of a row may depend on other rows.
    precision: ClassVar[float] = 1e-9
    #: Has a flat vector of `parameters` and derivatives by them; the loss is convex in them.
    differentiable: ClassVar[bool] = False
    convex: ClassVar[bool] = False
    #: Scores and derivatives are precise enough for line searches.
    full_precision: ClassVar[bool] = True
    #: Fits its parameters with its own optimiser, which learners use unless their options say otherwise.
    own_optimiser: ClassVar[bool] = False
    #: Every fit adds to the function, so that the number of fits limits how complex it becomes.
    grows: ClassVar[bool] = False
    #: f(x) is a weight per row times one table, which theta need not write out; see `theta_values`.
    by_weight: ClassVar[bool] = False
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

    def _start(self, x: Any, n_outputs: int) -> None:
        raise NotImplementedError(f"{type(self).__name__} must define _start or _begin.")

    def _begin(self, problem: Problem) -> None:
        """Become the zero function, sized for the problem's rows."""
        self._start(problem.x, problem.n_outputs)

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
        features = check_features(x, self.accepts_sparse, 0, self.unit)
        return self.begin(Problem.of(Rows(features, NO_LABELS, NO_ROWS, None, NO_WEIGHT), int(n_outputs)))

    def begin(self, problem: Problem) -> Self:
        """Become the zero function for a problem's rows, which also settle any scaling of the features."""
        self.reset()
        self._begin(problem)
        self.n_features_, self.n_outputs_, self.n_fits_ = problem.n_features, problem.n_outputs, 0
        return self

    def fit(
        self,
        x: ArrayLike | None,
        y: ArrayLike,
        bias: Any = None,
        weight: ArrayLike | None = None,
        *,
        n_outputs: int | None = None,
    ) -> Self:
        """Lower the loss of rows x (N, d); `objective_` is then the penalised loss reached.

        y (N,) integers or (N, K) distributions; bias (N, K), an array or anything with a shape that returns
        rows when sliced; weight (N,). K is taken from n_outputs, bias, y (N, K), an earlier fit, or else the
        largest label.
        """
        if n_outputs is None and bias is None and self.is_fitted:
            n_outputs = self.n_outputs_
        return self.fit_problem(make_problem(x, y, bias, weight, n_outputs, self.accepts_sparse, self.unit))

    def fit_problem(self, problem: Problem) -> Self:
        """Lower the loss of a problem's rows, wherever they are."""
        if not self.is_fitted:
            self.begin(problem)
        self._check_sizes(problem.n_features, problem.n_outputs)
        kept = copy.deepcopy(self._fitted())
        before, reached = self._improve(problem)
        # written so that a loss of NaN counts as worse
        if not reached <= before:
            self.reset().__dict__.update(kept)
            reached = before
        self.n_fits_ += 1
        self.objective_ = float(reached)
        return self

    def scores(self, x: Any, out: Floats | None = None, *, trusted: bool = False) -> Floats:
        """f(x) as (N, K) log-scores, written to `out` if given; works in pieces of bounded size.

        `trusted`: x is a matrix, dense or CSR, known to be finite, and is not looked at again.
        """
        self._check_fitted()
        features = (
            x
            if trusted
            else check_features(x, self.accepts_sparse, None if out is None else len(out), self.unit)
        )
        shape = int(features.shape[0]), self.n_outputs_
        self._check_sizes(features.shape[1], self.n_outputs_)
        found = np.empty(shape) if out is None else out
        if found.shape != shape:
            raise PotentiaError(f"out must have shape {shape}, got {found.shape}.")

        def fill(rows: slice) -> None:
            found[rows] = self._scores(features[rows])

        self.ready(shape[0])
        width = self._width()
        if is_sparse(features):  # what counts is what is stored
            width = stored_per_row(features) + 3 * self.n_outputs_
        map_chunks(fill, shape[0], width, self.threaded, example_ptr(features))
        return found

    def loss(
        self, x: ArrayLike | None, y: ArrayLike, bias: Any = None, weight: ArrayLike | None = None
    ) -> float:
        """The summed biased logistic loss of these rows, without penalty."""
        self._check_fitted()
        n_outputs = self.n_outputs_ if bias is None else None
        problem = make_problem(x, y, bias, weight, n_outputs, self.accepts_sparse, self.unit)
        self._check_sizes(problem.n_features, problem.n_outputs)
        return self._summed(problem, self._loss_of)

    def state(self) -> tuple[dict[str, Any], Arrays]:
        """(JSON-able dictionary, arrays) from which `Potential.from_state` makes exactly the same function."""
        return pack(self, self._fitted())

    @staticmethod
    def from_state(meta: dict[str, Any], arrays: Arrays) -> Potential:
        """The potential saved by `state`; a custom class must be imported before."""
        potential: Potential = restore(meta, arrays, Potential)
        return potential

    def check_shape(self, kind: str, shape: tuple[int, ...]) -> None:
        """Refuse a kind of regions with tables of this shape."""
        return

    def check_options(self) -> None:
        """Refuse options with which a fitted function cannot be fitted further."""
        return

    def _improve(self, problem: Problem) -> tuple[float, float]:
        """Fit, and return the penalised loss before and after."""
        before = self._summed(problem, self._kept_loss) + self.penalty()
        reached = self._fit(problem)
        return before, self._objective(problem) if reached is None else reached

    def _objective(self, problem: Problem) -> float:
        """The penalised loss."""
        return self._summed(problem, self._loss_of) + self.penalty()

    def _summed(self, problem: Problem, loss: Callable[[Batch], float]) -> float:
        """The loss of all rows, piece by piece."""
        self.ready(problem.n_rows)
        return float(problem.sum(loss, width=self._width(), threaded=self.threaded))

    def _loss_of(self, batch: Batch) -> float:
        return _loss(np.ascontiguousarray(self._scores(batch.x), dtype=np.float64), batch)

    def _kept_loss(self, batch: Batch) -> float:
        """The loss of some rows before a fit, from their scores if those are available."""
        return self._loss_of(batch) if batch.scores is None else _loss(batch.scores, batch)

    def theta_values(self, x: Any) -> Floats:
        """What `as_theta` makes theta from, one row per row of x, which is known to be finite: f(x)."""
        return self.scores(x, trusted=True)

    def as_theta(self, values: Floats, shape: tuple[int, ...], shared: bool) -> Any:
        """theta of regions with tables of this shape, or of all regions at once if `shared`, from `theta_values`."""
        return values.reshape(shape if shared else (len(values), *shape))

    def scores_mark(self) -> Any:
        """What `update_scores` needs to know about the function that scores were computed with."""
        return None

    def update_scores(self, x: Any, scores: Floats, mark: Any) -> None:
        """Bring f(x) of some rows, computed when `scores_mark` was `mark`, up to date in place."""
        scores[:] = self._scores(x)

    def ready(self, n_rows: int) -> None:
        """Called before `n_rows` rows are scored piece by piece."""

    def _width(self) -> int:
        """Numbers a row needs while it is scored; sets the size of pieces."""
        return self.n_features_ + 3 * self.n_outputs_

    def _fitted(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name.endswith("_")}

    def _check_fitted(self) -> None:
        if not self.is_fitted:
            raise PotentiaError(f"{type(self).__name__} is not fitted: call fit or start first.")

    def check_features(self, n_features: int) -> None:
        """Refuse rows with another number of features."""
        self._check_sizes(n_features, self.n_outputs_)

    def _check_sizes(self, n_features: int, n_outputs: int) -> None:
        name = type(self).__name__
        if n_features != self.n_features_:
            raise PotentiaError(f"x has {n_features} features but {name} was fitted on {self.n_features_}.")
        if n_outputs != self.n_outputs_:
            raise PotentiaError(
                f"The rows have {n_outputs} configurations but {name} was fitted on {self.n_outputs_}."
            )


def _loss(scores: Floats, batch: Batch) -> float:
    return float(loss_rows(scores, *batch.targets, NO_ROWS))

"""`Potential`: a function from features to log-scores that learners fit; `Differentiable`: one with parameters."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

import numpy as np

from ..base.optimise import Search, begin, lbfgs
from ..base.params import Params
from ..base.saving import Registered
from ..base.schema import Count, Number, Schema
from ..base.types import ArrayLike, Floats, PotentiaError, check_count, check_number
from .inputs import example_ptr, is_sparse, map_chunks, stored_per_row, sum_chunks
from .problem import NO_LABELS, NO_ROWS, NO_WEIGHT, Batch, Problem, Rows, check_features, make_problem
from .saving import Arrays, pack, restore

#: Steps of a fit that continues an earlier one: learners that alternate come back after the biases have moved.
MORE_STEPS = 20


class Potential(Params, Registered, ABC):
    """A function from features to log-scores, fitted by lowering the biased logistic loss.

    Further fits continue from the fitted function, or keep it if they find no better one, so that the penalised loss
    never rises. An unfitted potential is the zero function. `sklearn.base.clone` and `reset` start from zero.

    Example:
        >>> import potentia as pt
        >>> import numpy as np
        >>> class Step(pt.extend.Potential):
        ...     def _begin(self, problem):
        ...         self.table_ = np.zeros((2, problem.n_outputs))
        ...     def _scores(self, x):
        ...         return self.table_[(x[:, 0] > 0).astype(int)]
        ...     def _fit(self, problem):
        ...         def slope(batch):
        ...             d = batch.loss_and_slope(self._scores(batch.x))[1]
        ...             return np.stack([d[batch.x[:, 0] <= 0].sum(0), d[batch.x[:, 0] > 0].sum(0)])
        ...         for _ in range(20):
        ...             self.table_ = self.table_ - problem.sum(slope) / problem.total_weight
        >>> crf = pt.CRF({"node": Step(), "edge": pt.Linear()}, pt.IteratedLogistic(iterations=2))
        >>> crf.fit(pt.datasets.denoising(2, (8, 8), seed=0)).predict(pt.datasets.denoising(1, (8, 8), seed=1))[0].shape
        (64,)
    """

    #: Reads features of each region, "row", which may also be a SciPy sparse matrix, "sparse row", or `Inputs` of whole
    #: examples, "example".
    unit: ClassVar[Literal["row", "sparse row", "example"]] = "row"
    #: `_scores` and `_vjp` may be called by several threads at once; otherwise calls wait for each other.
    threaded: ClassVar[bool] = False
    #: f(x) does not depend on x: one table for all rows.
    shared: ClassVar[bool] = False
    #: Has a flat vector of `parameters` and derivatives by them (`Differentiable`); the loss is convex in them.
    differentiable: ClassVar[bool] = False
    convex: ClassVar[bool] = False
    #: f(x) is a weight per row times one table, which theta need not write out; see `theta_values`.
    by_weight: ClassVar[bool] = False
    #: Hyper-parameters and learned attributes in a file, checked on loading. Those not named are not checked.
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
    def _begin(self, problem: Problem) -> None:
        """Become the zero function, sized for the problem's rows."""

    @abstractmethod
    def _scores(self, x: Any) -> Floats: ...

    def _fit(self, problem: Problem) -> float | None:
        """Lower the loss of a problem's rows; the penalised loss reached, or None to have it computed."""
        raise NotImplementedError(f"{type(self).__name__} must define _fit.")

    def penalty(self) -> float:
        """The penalty that is added to the summed loss."""
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
        features = check_features(x, 0, self.unit)
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
        return self.fit_problem(make_problem(x, y, bias, weight, n_outputs, self.unit))

    def fit_problem(self, problem: Problem) -> Self:
        """Lower the loss of a problem's rows, wherever they are."""
        if not self.is_fitted:
            self.begin(problem)
        self._check_sizes(problem.n_features, problem.n_outputs)
        state = copy.deepcopy(self._fitted())
        before, reached = self._improve(problem)
        # written so that a loss of NaN counts as worse
        if not reached <= before:
            self.reset().__dict__.update(state)
            reached = before
        self.n_fits_ += 1
        self.objective_ = float(reached)
        return self

    def scores(self, x: Any, out: Floats | None = None, *, trusted: bool = False) -> Floats:
        """f(x) as (N, K) log-scores, written to `out` if given; works in pieces of bounded size.

        `trusted`: x is a finite matrix, dense or CSR, of the right width, and is not checked again.
        """
        if not trusted:
            self._check_fitted()
            x = check_features(x, None if out is None else len(out), self.unit)
            self._check_sizes(x.shape[1], self.n_outputs_)
        shape = int(x.shape[0]), self.n_outputs_
        scores = np.empty(shape) if out is None else out
        if scores.shape != shape:
            raise PotentiaError(f"out must have shape {shape}, got {scores.shape}.")

        def fill(rows: slice) -> None:
            """Compute the scores of some rows."""
            scores[rows] = self._scores(x[rows])

        self.ready(shape[0])
        width = self._width()
        if is_sparse(x):  # a sparse row takes as many numbers as it stores
            width = stored_per_row(x) + 3 * self.n_outputs_
        map_chunks(fill, shape[0], width, self.threaded, example_ptr(x))
        return scores

    def loss(self, x: ArrayLike | None, y: ArrayLike, bias: Any = None, weight: ArrayLike | None = None) -> float:
        """The summed biased logistic loss of these rows, without penalty."""
        self._check_fitted()
        n_outputs = self.n_outputs_ if bias is None else None
        problem = make_problem(x, y, bias, weight, n_outputs, self.unit)
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
        """The summed loss of some rows."""
        return batch.loss(self._scores(batch.x))

    def _kept_loss(self, batch: Batch) -> float:
        """The loss of some rows before a fit, from their scores if those are available."""
        return self._loss_of(batch) if batch.scores is None else batch.loss(batch.scores)

    def theta_values(self, x: Any) -> Floats:
        """The numbers that `as_theta` makes theta from, one row per row of x, which is known to be finite: f(x)."""
        return self.scores(x, trusted=True)

    def as_theta(self, values: Floats, shape: tuple[int, ...], shared: bool) -> Any:
        """theta of regions with tables of this shape, or of all regions at once if `shared`, from `theta_values`."""
        return values.reshape(shape if shared else (len(values), *shape))

    def scores_mark(self) -> Any:
        """A mark of the function that scores were computed with, for `update_scores`."""
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
        """What fits have learned, by name: attributes that end with an underscore."""
        return {name: value for name, value in vars(self).items() if name.endswith("_")}

    def _check_fitted(self) -> None:
        """Refuse a potential that was never fitted."""
        if not self.is_fitted:
            raise PotentiaError(f"{type(self).__name__} is not fitted: call fit or start first.")

    def check_features(self, n_features: int) -> None:
        """Refuse rows with another number of features."""
        self._check_sizes(n_features, self.n_outputs_)

    def _check_sizes(self, n_features: int, n_outputs: int) -> None:
        """Refuse other numbers of features or configurations than it was fitted on."""
        name = type(self).__name__
        if n_features != self.n_features_:
            raise PotentiaError(f"x has {n_features} features but {name} was fitted on {self.n_features_}.")
        if n_outputs != self.n_outputs_:
            raise PotentiaError(f"The rows have {n_outputs} configurations but {name} was fitted on {self.n_outputs_}.")


class Differentiable(Potential):
    """A potential with parameters, for learners that follow gradients through all kinds at once.

    Use: `start`, then set `parameters`, read `scores`, and pull d loss / d scores back with `vjp`.
    """

    differentiable: ClassVar[bool] = True
    #: Scores and derivatives are precise enough for line searches.
    full_precision: ClassVar[bool] = True
    #: Fits its parameters with its own optimiser, which learners use unless their options say otherwise.
    own_optimiser: ClassVar[bool] = False

    #: The attribute with all parameters, where there is one; otherwise `parameters` is overridden.
    flat: ClassVar[str]

    @property
    def parameters(self) -> Floats:
        """All parameters as one vector (a copy)."""
        vector: Floats = getattr(self, self.flat).copy()
        return vector

    @parameters.setter
    def parameters(self, vector: Floats) -> None:
        setattr(self, self.flat, self._checked(vector).copy())

    @abstractmethod
    def penalty_and_gradient(self, ridge: float | None = None) -> tuple[float, Floats]:
        """The penalty and its gradient with respect to `parameters`; `ridge` takes the place of the own one."""

    @abstractmethod
    def _vjp(self, x: Any, d_scores: Floats) -> Floats: ...

    @property
    def n_parameters(self) -> int:
        """Length of `parameters`."""
        return int(self.parameters.size)

    def step_size(self, rate: float) -> float:
        """Size of a stochastic learner's steps in these parameters; `rate` is the learner's."""
        return rate

    def penalty(self) -> float:
        """The penalty that is added to the summed loss."""
        return self.penalty_and_gradient()[0]

    def vjp(self, x: Any, d_scores: Floats, *, trusted: bool = False) -> Floats:
        """sum_n J_n' d_scores_n, the gradient with respect to `parameters`; x (N, d), d_scores (N, K).

        `trusted`: x is a finite matrix, dense or CSR, of the right width, and is not checked again.
        """
        n_rows = len(d_scores)
        if not trusted:
            self._check_fitted()
            x = check_features(x, n_rows, self.unit)
            self._check_sizes(x.shape[1], d_scores.shape[1])
        if x.shape[0] != n_rows:
            raise PotentiaError(f"x has {x.shape[0]} rows but d_scores has {n_rows}.")
        if is_sparse(x):  # in pieces, sparse rows would each make a dense gradient
            return self._vjp(x[:], d_scores)

        def of(rows: slice) -> Floats:
            """The gradient that some rows contribute."""
            return self._vjp(x[rows], d_scores[rows])

        gradient = sum_chunks(of, n_rows, self._width(), self.threaded, ptr=example_ptr(x))
        return np.zeros(self.n_parameters) if gradient is None else np.asarray(gradient, dtype=np.float64)

    def theta_vjp(self, x: Any, d_values: Floats) -> Floats:
        """The gradient with respect to `parameters` from that with respect to `theta_values`."""
        return self.vjp(x, d_values, trusted=True)

    def loss_and_gradient(self, problem: Problem) -> tuple[float, Floats]:
        """The summed loss, without penalty, and its gradient with respect to `parameters`."""
        loss, slope = problem.sum(self._slope, width=self._width(), threaded=self.threaded)
        return float(loss), slope

    def minimise(self, problem: Problem, max_iter: int, tol: float) -> tuple[float, float]:
        """L-BFGS until no component of the mean gradient exceeds tol; the penalised loss before and after.

        A first fit takes at most `max_iter` steps, a further one MORE_STEPS.
        """
        check_count("max_iter", max_iter)
        check_number("tol", tol)

        def objective(vector: Floats) -> tuple[float, Floats]:
            """Mean penalised loss and its gradient at a vector of parameters."""
            self.parameters = vector
            value, gradient = self.loss_and_gradient(problem)
            penalty, d_penalty = self.penalty_and_gradient()
            return (value + penalty) / scale, (gradient + d_penalty) / scale

        scale = problem.total_weight
        search = begin(Search(self.parameters), objective)
        before = latest = search.value
        for _ in range(max_iter if self.n_fits_ == 0 else min(max_iter, MORE_STEPS)):
            if np.abs(search.gradient).max(initial=0.0) <= tol:
                break
            search = lbfgs(search, objective, 20)
            if latest - search.value <= 1e-15 * max(abs(latest), 1.0):
                break
            latest = search.value
        self.parameters = search.point
        return before * scale, search.value * scale

    def _slope(self, batch: Batch) -> tuple[float, Floats]:
        """Loss and gradient of some rows."""
        loss, slope = batch.loss_and_slope(self._scores(batch.x))
        return loss, self._vjp(batch.x, slope)

    def _checked(self, vector: Floats) -> Floats:
        """A vector of parameters as floats of the right length."""
        values = np.asarray(vector, dtype=np.float64)
        if values.shape != (self.n_parameters,):
            raise PotentiaError(f"parameters must have shape ({self.n_parameters},), got {values.shape}.")
        return values


def as_affine(kind: str, potential: Potential) -> Any:
    """The potential, refused where it is not f(x) = [x, 1] T with one table T (D, K) of parameters.

    Such a potential has `design(x)`, the features that multiply the table: [x, 1] (N, D), dense or CSR, x perhaps
    expanded or left out; `own_ridge(n_columns)`, its ridge on each row of the table, (D,); and `set_table(table)`.
    """
    if not hasattr(potential, "set_table") or potential.by_weight:
        raise PotentiaError(
            f"the potential of {kind!r} must be linear in its parameters (Linear, Constant or Zero), "
            f"not {type(potential).__name__}."
        )
    if potential.unit == "example":
        raise PotentiaError(
            f"the {type(potential).__name__} of {kind!r} reads whole examples; this learner needs features of rows."
        )
    return potential

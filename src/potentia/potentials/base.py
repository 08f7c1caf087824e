"""Potentials as JSON and arrays, without pickle."""

from __future__ import annotations

import copy
import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Protocol, Self, cast

import numpy as np
from numpy.typing import NDArray

from ..base.saving import Registered, build, decode, encode, find_class, saved_name
from ..base.schema import Count, Number, Schema, check
from ..base.types import ArrayLike, Floats, PotentiaError
from ..kernels.logistic import loss_rows
from .inputs import example_ptr
from .problem import (
    NO_LABELS,
    NO_ROWS,
    NO_WEIGHT,
    Batch,
    Problem,
    Rows,
    check_features,
    is_sparse,
    make_problem,
    map_chunks,
    stored_per_row,
)
from .transformers import is_transformer, pack_transformer, unpack_transformer

Arrays = dict[str, NDArray[Any]]
#: Names of what a fit learns.
_LEARNED = re.compile(r"[A-Za-z]\w*_")


class _Once(dict[str, NDArray[Any]]):
    """Arrays of a file, each of which may be taken once: a few bytes could otherwise name a large one many times."""

    def __init__(self, arrays: Arrays) -> None:
        super().__init__(arrays)
        self._taken: set[str] = set()

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name in self._taken:
            raise PotentiaError(f"the saved potential is damaged: it names the array {name} twice.")
        self._taken.add(name)
        return super().__getitem__(name)


def pack(potential: Any, fitted: dict[str, Any]) -> tuple[dict[str, Any], Arrays]:
    """(JSON-able dictionary, arrays) of the hyper-parameters and the fitted attributes."""
    arrays: Arrays = {}
    params = {
        key: _pack_value(f"params.{key}", value, arrays)
        for key, value in potential.get_params(deep=False).items()
    }
    learned = {key: _pack_value(f"fitted.{key}", value, arrays) for key, value in fitted.items()}
    return {"class": saved_name(type(potential)), "params": params, "fitted": learned}, arrays


def restore(meta: Any, arrays: Arrays, base: type) -> Any:
    """The potential of a subclass of `base` that `pack` described, checked by its declared schema."""
    potential, fitted = _unpack(meta, arrays, base)
    if fitted:
        found = check(potential.saved, potential.get_params(deep=False) | fitted, "potential")
        strange = [name for name in fitted if not _LEARNED.fullmatch(name) or hasattr(type(potential), name)]
        if strange:
            raise PotentiaError(f"the saved potential is damaged: {strange[0]!r} is not a learned attribute.")
        potential.__dict__.update(fitted | {name: found[name] for name in found.keys() & fitted.keys()})
        potential.check_options()
    return potential


def _unpack(meta: Any, arrays: Arrays, base: type) -> tuple[Any, dict[str, Any]]:
    """The unfitted potential and its fitted attributes."""
    try:
        name, params, fitted = meta["class"], dict(meta["params"]), dict(meta["fitted"])
    except (KeyError, TypeError, ValueError):
        raise PotentiaError("the saved potential is damaged: it lacks class, params or fitted.") from None
    found, arrays = find_class(name, base), _Once(arrays)
    potential = build(found, {key: _unpack_value(value, arrays) for key, value in params.items()})
    return potential, {key: _unpack_value(value, arrays) for key, value in fitted.items()}


def _pack_value(path: str, value: Any, arrays: Arrays) -> Any:
    if isinstance(value, np.ndarray):
        arrays[path] = value
        return {"array": path}
    if isinstance(value, dict) and value and all(isinstance(item, np.ndarray) for item in value.values()):
        return {"arrays": {key: _pack_value(f"{path}/{key}", item, arrays) for key, item in value.items()}}
    if is_transformer(value):
        return {"transformer": pack_transformer(path, value, arrays)}
    return {"value": encode(value, path)}


def _unpack_value(packed: Any, arrays: Arrays) -> Any:
    if isinstance(packed, dict) and "transformer" in packed:
        return unpack_transformer(packed["transformer"], arrays)
    if isinstance(packed, dict) and isinstance(packed.get("arrays"), dict):
        return {key: _unpack_value(item, arrays) for key, item in packed["arrays"].items()}
    if not isinstance(packed, dict) or len(packed) != 1 or not packed.keys() & {"array", "value"}:
        raise PotentiaError("the saved potential is damaged: it holds an object that is not a value.")
    if "value" in packed:
        return decode(packed["value"])
    if not isinstance(packed["array"], str) or packed["array"] not in arrays:
        raise PotentiaError(f"the saved potential is damaged: it lacks the array {packed['array']}.")
    return np.array(arrays[packed["array"]])


class Params:
    """Hyper-parameters are the constructor's keywords, stored unchanged; works with `sklearn.base.clone`."""

    @classmethod
    def _names(cls) -> list[str]:
        named = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
        return [parameter.name for parameter in parameters if parameter.kind in named]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All hyper-parameters by name; with `deep` also those of nested objects as outer__inner."""
        found: dict[str, Any] = {}
        for name in self._names():
            value = found[name] = getattr(self, name)
            if deep and hasattr(value, "get_params") and not isinstance(value, type):
                found.update({f"{name}__{key}": inner for key, inner in value.get_params().items()})
        return found

    def set_params(self, **params: Any) -> Self:
        """Set hyper-parameters by name (outer__inner for nested objects) and return self."""
        names = self._names()
        for key, value in params.items():
            outer, _, inner = key.partition("__")
            if outer not in names:
                has = ", ".join(names) or "none"
                raise PotentiaError(f"{type(self).__name__} has no parameter {outer!r}; it has: {has}.")
            if inner:
                getattr(self, outer).set_params(**{inner: value})
            else:
                setattr(self, outer, value)
        return self

    def __repr__(self) -> str:
        """The constructor call, with the arguments that differ from their defaults."""
        defaults = inspect.signature(type(self).__init__).parameters
        values = {name: repr(getattr(self, name)) for name in self._names()}
        shown = [f"{name}={text}" for name, text in values.items() if text != repr(defaults[name].default)]
        return f"{type(self).__name__}({', '.join(shown)})"


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


class Affine(Protocol):
    """What a potential that declares `affine` also defines."""

    def design(self, x: Any) -> Any:
        """The features that multiply the table: [x, 1] (N, D), dense or CSR, x perhaps expanded or left out."""

    def own_ridge(self, n_columns: int) -> Floats:
        """The ridge that the potential itself puts on each row of its table, (D,)."""

    def set_table(self, table: Floats) -> None:
        """Take T (D, K); the potential must have been started."""


def as_affine(kind: str, potential: Potential) -> Affine:
    """The potential, refused where it is not linear in its parameters."""
    if not potential.affine:
        raise PotentiaError(
            f"the potential of {kind!r} must be linear in its parameters (Linear, Constant or Zero), "
            f"not {type(potential).__name__}."
        )
    if potential.unit != "row":
        raise PotentiaError(
            f"the {type(potential).__name__} of {kind!r} reads whole examples; this learner needs features of rows."
        )
    return cast(Affine, potential)

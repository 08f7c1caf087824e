"""Potentials that score with one table: the same for all rows, a scaled copy of the features, or a weight times it.

`pt.Potts(weight)` is a value of `theta`. `pt.Potts()` is a potential: its weight is a linear function of the features
of a pair, w(x) = x v + b, so that it has a few parameters instead of a table of them.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

import numpy as np

from ..base.schema import Array, Rule, Schema
from ..base.types import Floats, PotentiaError, check_number, real_numbers, shown
from ..graph.tables import Cost, WeightedTable, check_cut
from ..kernels.linear_losses import linear_loss_rows
from .base import Differentiable, Potential
from .inputs import map_chunks
from .linear import Linear
from .problem import Batch, Problem


@dataclass(eq=False, repr=False)
class Constant(Differentiable):
    r"""A table :math:`f(x) = v` that does not depend on x [ILR-chapter sec. 1.9.2].

    The penalty is :math:`\frac{1}{2} \text{ridge} |v|^2`. `parameters` is v, also in `table_` (K,). L-BFGS stops
    when no component of the mean gradient exceeds `tol`, or after `max_iter` steps.

    Example:
        >>> import potentia as pt
        >>> crf = pt.CRF({"node": pt.Linear(), "edge": pt.Constant()}).fit(pt.datasets.denoising(2, (8, 8), seed=0))
        >>> crf.potentials_["edge"].table_.shape
        (4,)
    """

    threaded: ClassVar[bool] = True
    shared: ClassVar[bool] = True
    convex: ClassVar[bool] = True
    saved: ClassVar[Schema] = {**Differentiable.saved, "table_": Array("f8", ("K",))}

    flat: ClassVar[str] = "table_"

    ridge: float = 0.0
    max_iter: int = 200
    tol: float = 1e-8

    def _begin(self, problem: Problem) -> None:
        """A table of zeros."""
        check_number("ridge", self.ridge)
        self.table_: Floats = np.zeros(problem.n_outputs)

    def _improve(self, problem: Problem) -> tuple[float, float]:
        """L-BFGS over the table."""
        return self.minimise(problem, self.max_iter, self.tol)

    def _slope(self, batch: Batch) -> tuple[float, Floats]:
        """Loss of some rows and its gradient by the table, without writing scores out."""
        d_table = np.zeros((1, self.n_outputs_))
        nothing = np.zeros((batch.n_rows, 0))
        return float(linear_loss_rows(nothing, self.table_[None], *batch.targets, d_table)), d_table[0]

    def _loss_of(self, batch: Batch) -> float:
        """The summed loss of some rows."""
        return self._slope(batch)[0]

    def _scores(self, x: Any) -> Floats:
        """The table, once per row."""
        return np.tile(self.table_, (x.shape[0], 1))

    def design(self, x: Any) -> Floats:
        """One column of ones, (N, 1)."""
        return np.ones((x.shape[0], 1))

    def own_ridge(self, n_columns: int) -> Floats:
        """The ridge on v, (1,)."""
        return np.full(n_columns, float(self.ridge))

    def set_table(self, table: Floats) -> None:
        """Take v as a row, (1, K)."""
        self.parameters = table[0]

    def penalty_and_gradient(self, ridge: float | None = None) -> tuple[float, Floats]:
        r""":math:`\frac{1}{2} \text{ridge} |v|^2` and its gradient."""
        ridge = self.ridge if ridge is None else ridge
        return 0.5 * ridge * float(self.table_ @ self.table_), ridge * self.table_

    def _vjp(self, x: Any, d_scores: Floats) -> Floats:
        """The sum over rows."""
        return d_scores.sum(0)


class Zero(Potential):
    """f(x) = 0 [ILR-chapter sec. 1.9.1]: nothing to learn.

    Example:
        >>> import potentia as pt
        >>> crf = pt.CRF({"node": pt.Linear(), "edge": pt.Zero()})  # every pixel by itself
        >>> len(crf.fit(pt.datasets.denoising(2, (8, 8), seed=0)).history_) > 0
        True
    """

    threaded: ClassVar[bool] = True
    shared: ClassVar[bool] = True

    def _begin(self, problem: Problem) -> None:
        """Nothing to prepare."""
        pass

    def _fit(self, problem: Problem) -> None:
        """Nothing to fit."""
        pass

    def _scores(self, x: Any) -> Floats:
        """Zeros, (N, K)."""
        return np.zeros((x.shape[0], self.n_outputs_))

    def design(self, x: Any) -> Floats:
        """No columns, (N, 0)."""
        return np.zeros((x.shape[0], 0))

    def own_ridge(self, n_columns: int) -> Floats:
        """Nothing, (0,)."""
        return np.zeros(n_columns)

    def set_table(self, table: Floats) -> None:
        """There is nothing to set."""


@dataclass(eq=False, repr=False)
class Temperature(Differentiable):
    r"""Features that are scores already, times one weight: :math:`f(x) = w x`, with one feature per state.

    For log-probabilities or logits of another model as features of variables. `Linear` would learn a matrix of weights
    and an intercept for every state, which a few labelled images cannot determine. w, an inverse temperature, is
    `parameters`, also in `weight_` (1,), and is not penalised. `max_iter` and `tol` are those of `Linear`.

    Example:
        >>> import potentia as pt
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> truth = np.arange(64) // 32
        >>> logits = 5.0 * np.eye(2)[truth] + 4 * rng.normal(size=(64, 2))  # of another model
        >>> example = pt.Example(pt.Graph.grid((8, 8), n_states=2), {"node": logits, "edge": np.ones((112, 1))}, truth)
        >>> crf = pt.CRF({"node": pt.Temperature(), "edge": pt.Potts()}).fit([example])
        >>> crf.potentials_["node"].weight_.shape
        (1,)
    """

    threaded: ClassVar[bool] = True
    convex: ClassVar[bool] = True
    saved: ClassVar[Schema] = {
        **Differentiable.saved,
        "weight_": Array("f8", (1,)),
        "columns": Rule(lambda values: values["n_features_"] == values["n_outputs_"], "must be one feature per state"),
    }

    flat: ClassVar[str] = "weight_"

    max_iter: int = 200
    tol: float = 1e-6

    def _begin(self, problem: Problem) -> None:
        """A weight of zero."""
        if problem.n_features != problem.n_outputs:
            raise PotentiaError(
                f"Temperature needs one feature per state: {problem.n_outputs} columns, not {problem.n_features}."
            )
        self.weight_ = np.zeros(1)

    def _improve(self, problem: Problem) -> tuple[float, float]:
        """L-BFGS over the weight."""
        return self.minimise(problem, self.max_iter, self.tol)

    def _scores(self, x: Any) -> Floats:
        """w x."""
        return np.multiply(x, self.weight_, dtype=np.float64)

    def penalty_and_gradient(self, ridge: float | None = None) -> tuple[float, Floats]:
        """Nothing."""
        return 0.0, np.zeros(1)

    def _vjp(self, x: Any, d_scores: Floats) -> Floats:
        """The sum of x times d_scores."""
        return np.array([np.einsum("ij,ij->", x, d_scores)])


@dataclass(eq=False, repr=False)
class WeightPotential(WeightedTable, Linear):
    r"""Scores :math:`f(x) = w(x) T` with one fixed table T and a learned weight :math:`w(x) = x v + b`.

    The penalty is :math:`\frac{1}{2} \text{ridge} |v|^2`; b is not penalised. With `weight` it is a value of theta and
    cannot be fitted. `coef_` (d, 1) and the last row of `table_` are v and b.
    """

    by_weight: ClassVar[bool] = True
    saved: ClassVar[Schema] = {
        **Linear.saved,
        "coordinates_": Array("f8", ("r", 1), order="K"),
        "table_": Array("f8", ("D", 1), order="K"),
    }

    weight: Any = None
    _: KW_ONLY
    ridge: float = 1e-3
    max_iter: int = 200
    tol: float = 1e-6
    intercept: bool = True
    transformer: Any = field(default=None, init=False)

    def _begin(self, problem: Problem) -> None:
        """Zero weights, in the basis that `Linear` makes of the features."""
        if self.weight is not None:
            raise PotentiaError(
                f"{type(self).__name__} with a weight is a value of theta; a potential learns its weight: leave it out."
            )
        self._unit_row(problem.n_outputs)
        super()._begin(problem)
        # products with one column depend on the memory order, which files do not keep
        self.basis_ = np.ascontiguousarray(self.basis_)
        self.coordinates_ = np.zeros((self.basis_.shape[-1], 1))
        self.table_ = np.zeros((len(self.basis_), 1))

    def check_shape(self, kind: str, shape: tuple[int, ...]) -> None:
        """Refuse anything but pairs of equal numbers of states."""
        if len(shape) != 2 or shape[0] != shape[1]:
            raise PotentiaError(
                f"the potential of {kind!r} is {type(self).__name__}, which needs pairs of variables that all have one "
                f"number of states, not tables of shape {shape}."
            )
        self._unit_row(math.prod(shape))

    def theta_values(self, x: Any) -> Floats:
        """w(x) of rows that are known to be finite, (N, 1)."""
        weights = np.empty((int(x.shape[0]), 1))

        def fill(rows: slice) -> None:
            """Compute the weights of some rows."""
            weights[rows] = self._weights(x[rows])

        map_chunks(fill, len(weights), self.n_features_ + 3, self.threaded)
        return weights

    def as_theta(self, values: Floats, shape: tuple[int, ...], shared: bool) -> Any:
        """The fixed table with these weights, which is not written out."""
        return self.with_weight(float(values[0, 0]) if shared else values[:, 0])

    def theta_vjp(self, x: Any, d_values: Floats) -> Floats:
        """The gradient with respect to `parameters` from that with respect to w(x), (N, 1)."""
        return super()._vjp(x[:], d_values)

    def _unit_row(self, n_outputs: int) -> Floats:
        """T as a row, (n_outputs,)."""
        states = math.isqrt(n_outputs)
        table = self.base_table(states)
        if states**2 != n_outputs or table.shape != (states, states):
            raise PotentiaError(
                f"{type(self).__name__} needs pairs of equal numbers of states"
                + (f" with tables of shape {table.shape}" if table.shape != (states, states) else "")
                + f", not rows of {n_outputs} configurations."
            )
        return table.ravel()

    def _weights(self, x: Any) -> Floats:
        """w(x) of some rows, (n, 1)."""
        weights: Floats = np.asarray(x @ self.coef_)
        return weights + self.table_[-1] if self.intercept else weights

    def _scores(self, x: Any) -> Floats:
        """w(x) times the table as a row, (n, K)."""
        return self._weights(x) * self._unit_row(self.n_outputs_)

    def _slope(self, batch: Batch) -> tuple[float, Floats]:
        """Loss and gradient of some rows."""
        loss, slope = batch.loss_and_slope(self._scores(batch.x))
        return loss, self._d_table(batch.x, (slope @ self._unit_row(self.n_outputs_))[:, None])

    def _vjp(self, x: Any, d_scores: Floats) -> Floats:
        """The gradient by the parameters of w, from that by the scores."""
        return super()._vjp(x, (d_scores @ self._unit_row(self.n_outputs_))[:, None])


class Potts(WeightPotential):
    """The score -weight [a != b] of a pair of labels; see `WeightPotential`.

    weight: a number or one per pair, (m,); None learns it. Other options are those of `Linear`.

    Example:
        >>> import potentia as pt
        >>> import numpy as np
        >>> graph = pt.Graph.chain(3, n_states=4)
        >>> node = np.array([[2.0, 0, 0, 0], [0, 0.5, 0, 0], [2.0, 0, 0, 0]])
        >>> pt.TRW().infer(graph, {"node": node, "edge": pt.Potts(1.0)}).mpm().tolist()
        [0, 0, 0]
        >>> crf = pt.CRF({"node": pt.Linear(), "edge": pt.Potts()})  # learns the weight
    """

    @property
    def cost(self) -> Cost:
        r""":math:`[d \ne 0]` of a difference d of labels."""
        return Cost(0, 1.0)


@dataclass(eq=False, repr=False)
class TruncatedLinear(WeightPotential):
    r"""The score :math:`-\text{weight} \min(|a - b|, \text{cut})` of a pair of labels; see `WeightPotential`.

    weight: a number or one per pair, (m,); None learns it. cut: in labels, infinity for none. Other options are those
    of `Linear`.

    Example:
        >>> import potentia as pt
        >>> import numpy as np
        >>> graph = pt.Graph.chain(3, n_states=4)
        >>> node = np.array([[3.0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 3.0, 0]])
        >>> pt.TRW().infer(graph, {"node": node, "edge": pt.TruncatedLinear(1.0, cut=2)}).mpm().tolist()
        [0, 2, 2]
    """

    cut: float = math.inf

    @property
    def cost(self) -> Cost:
        r""":math:`\min(d, \text{cut})` of a difference d of labels."""
        return Cost(1, check_cut(self.cut))


class TruncatedQuadratic(TruncatedLinear):
    r"""The score :math:`-\text{weight} \min((a - b)^2, \text{cut})` of a pair of labels; see `WeightPotential`.

    weight: a number or one per pair, (m,); None learns it. cut: the largest squared distance that counts, infinity for
    none. Other options are those of `Linear`.

    Example:
        >>> import potentia as pt
        >>> import numpy as np
        >>> graph = pt.Graph.chain(3, n_states=5)
        >>> node = np.array([[9.0, 0, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 9.0]])
        >>> pt.TRW().infer(graph, {"node": node, "edge": pt.TruncatedQuadratic(1.0, cut=9)}).mpm().tolist()
        [0, 2, 4]
    """

    @property
    def cost(self) -> Cost:
        r""":math:`\min(d^2, \text{cut})` of a difference d of labels."""
        return Cost(2, check_cut(self.cut))


class Scaled(WeightPotential):
    r"""The score :math:`\text{weight} \cdot \text{table}(a, b)` of a pair of labels; see `WeightPotential`.

    table: (L, L), finite. weight: a number or one per pair, (m,); None learns it. Other options are those of `Linear`.

    Example:
        >>> import potentia as pt
        >>> graph = pt.Graph.chain(3, n_states=2)
        >>> agree = [[1.0, 0.0], [0.0, 1.0]]
        >>> pt.Exact().infer(graph, {"node": [[0, 2], [0, 0], [0, 0]], "edge": pt.Scaled(agree, 3.0)}).mpm().tolist()
        [1, 1, 1]
    """

    def __init__(self, table: Any, weight: Any = None, **options: Any) -> None:
        super().__init__(weight, **options)
        self.table = table

    @property
    def cost(self) -> None:
        """No function of the distance of labels."""
        return None

    def base_table(self, n_states: int) -> Floats:
        """The table."""
        table = real_numbers(self.table, "the table of Scaled")
        if table.ndim != 2 or not np.all(np.isfinite(table)):
            raise PotentiaError(f"the table of Scaled must hold finite numbers, (L, L), not {shown(self.table)}.")
        return table

    def same_table(self, other: Any) -> bool:
        """Whether another value differs by its weight only."""
        return type(other) is Scaled and np.array_equal(self.base_table(0), other.base_table(0))

"""`MaxMargin`: the structural SVM, by block-coordinate Frank-Wolfe or by cutting planes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast

import numpy as np

from ..base.backend import CLUSTER, Local
from ..base.options import check_count, check_number
from ..base.types import ArrayLike, PotentiaError, WidthError, real_number, shown
from ..features.example import Example
from ..features.parts import Examples, Parts
from ..inference.base import Inference
from ..inference.exact import Exact
from ..potentials.base import Potential, as_affine
from .base import Learner, Row, SavedState, State, Stop, share
from .data import Dataset
from .margin_problem import (
    MarginProblem,
    MarginSettings,
    Oracle,
    begin_margin,
    problem_of,
    write_parameters,
)
from .margin_solvers import (
    check_frank_wolfe,
    check_planes,
    frank_wolfe,
    one_slack,
    start_frank_wolfe,
    start_planes,
)

SOLVERS = ("frank_wolfe", "one_slack")


@dataclass(repr=False)
class MaxMargin(Learner):
    r"""Trains potentials that are linear in their parameters as a structural SVM (margin rescaling).

    .. math:: \min_w \; & \tfrac{1}{2} \text{ridge} |w|^2 \\
        & + \tfrac{1}{n} \Bigl( \sum_k \max_y [\Delta_k(y) + F_k(y) - F_k(y^k)] + \text{penalties} \Bigr)

    over n examples k with labels :math:`y^k`. w holds the tables of all kinds in the features' own units, intercepts
    included. Penalties are those of the potentials (`Linear(ridge)`: without intercept), added to the summed loss as
    in every learner. In terms of a cost C of the summed loss, :math:`\text{ridge} = 1 / (C n)`. A fit always starts at
    zero.

    The gap between this objective and the dual bounds the distance to the optimum: of the problem itself if
    `inference` is exact, of its relaxation with `LinearProgram()`. With other methods it is an estimate.

    Attributes:
        ridge: above 0; see the formula.
        iterations: limit of passes over the examples.
        tol: stop when the gap is at most this share of the objective (0: run all iterations).
        solver: "frank_wolfe" (block-coordinate, a step after every example or batch) or "one_slack" (cutting
            planes: all examples make one constraint per iteration; also on clusters and out of core). The second is
            faster for few large examples, and where a relaxation has many fractional optima. Both end with the
            parameters of the lowest objective after an iteration.
        inference: what finds the best labelling, in training and in predictions; None for `Exact()`. With `Exact()`, a
            Viterbi kernel decodes chains whose variables have equal numbers of states; all other examples are decoded
            in batches.
        batch: examples per batch of "frank_wolfe" if the kernel for chains does not apply; None for a fiftieth of them,
            at least one. A number decodes chains in batches, too.
        delta: "hamming" (the weights of wrong variables), or a function of an example that returns
            {kind: table (n_regions, *states)}. Variables without label or of weight 0 are left out.
        track_error: predict the training examples after every iteration (and the validation examples, if given).
        seed: of the order of examples.
    """

    ridge: float = 1e-2
    iterations: int = 100
    tol: float = 1e-3
    solver: Literal["frank_wolfe", "one_slack"] = "frank_wolfe"
    inference: Inference | None = None
    batch: int | None = None
    delta: str | Callable[[Example], Mapping[str, ArrayLike]] = "hamming"
    track_error: bool | Sequence[int] = False
    seed: int = 0

    decode: ClassVar[str] = "map"

    def predictor(self, kinds: Sequence[str]) -> Inference:
        """The inference that predictions of the trained model use."""
        return self.inference or Exact()

    # -- fitting -----------------------------------------------------------------------------------------------

    def gather(self, examples: Examples, potentials: Mapping[str, Potential]) -> Dataset:
        """The labelled variables and the regions between them, in one part for Frank-Wolfe."""
        entries = None
        if self.solver == "frank_wolfe":
            if isinstance(examples, Parts) or CLUSTER.get() is not None:
                raise PotentiaError(
                    "MaxMargin(solver='frank_wolfe') needs a list of examples in one process, since its dual is one "
                    "vector of all of them; take solver='one_slack'."
                )
            entries = 2**62
        data = Dataset.of(examples, potentials, entries, drop_hidden=True, labels=True)
        data.require(potentials)
        return data

    def init(self, data: Dataset, potentials: Mapping[str, Potential]) -> State:
        """Zero parameters."""
        zeros = {kind: copy.deepcopy(p).begin(data.problem(kind)) for kind, p in potentials.items()}
        settings = MarginSettings(zeros, self.delta, self.ridge, sum(data.n_examples), self.predictor([]))
        parts = data.parts.map(begin_margin, None, replace(settings, batch=self.batch))[0]
        if self.solver == "frank_wolfe":
            arrays = start_frank_wolfe(*self._whole(data, parts))
        else:
            arrays = start_planes(data.parts, parts, settings.n_examples)
        return State(zeros, self.iterations, arrays, parts)

    def _whole(self, data: Dataset, parts: Any) -> tuple[MarginProblem, Oracle]:
        """The problem and the oracle of the only part."""
        return problem_of(cast(Local, data.parts).parts[0], parts[0])

    def step(self, data: Dataset, state: State) -> State:
        """A pass over the examples, or a cutting plane: objective, dual and gap, their difference."""
        try:
            if self.solver == "frank_wolfe":
                rng = np.random.default_rng([self.seed, len(state.history)])
                problem, oracle = self._whole(data, state.parts)
                arrays, row = frank_wolfe(problem, oracle, state.arrays, rng)
            else:
                arrays, row = one_slack(data.parts, state.parts, state.arrays)
        except WidthError as error:
            sentence = str(error).removesuffix(".")
            raise WidthError(
                f"{sentence}; give MaxMargin an approximate method: solver='one_slack' with "
                "inference=pt.LinearProgram(), or with inference=pt.MAP(time_limit=1), which is faster on large graphs."
            ) from None
        potentials = write_parameters(state.potentials, arrays["parameters"])
        return state.after(row, potentials=potentials, arrays=arrays)

    def done(self, state: State) -> Stop | None:
        """Whether the gap is at most `tol` of the objective; one below zero shows that inference misses labellings."""
        gap = _gap(state.history[-1]) if state.history else np.inf
        settled = self.tol > 0 and abs(gap) <= self.tol
        if not (settled or len(state.history) >= state.limit):
            return None
        if settled or self.tol == 0 or not state.history:
            return Stop(settled or len(state.history) < state.limit)
        if gap < 0:
            return Stop(
                False,
                "The objective is below the dual, so the inference misses labellings that cost more; take an exact "
                "one, or inference=pt.LinearProgram().",
            )
        remedies = "more iterations or a larger ridge"
        if self.solver == "frank_wolfe":
            remedies = "more iterations, a larger ridge, or solver='one_slack' for few large examples"
        return Stop(
            False,
            f"The gap was still {gap:.2g} of the objective after {len(state.history)} iterations; take {remedies}.",
        )

    def resume(self, data: Dataset, state: State, saved: SavedState) -> State:
        """The solver's state."""
        if not np.array_equal(saved.arrays.get("size", ()), state.arrays["size"]):
            raise PotentiaError("the checkpoint belongs to other examples or another learner.")
        if self.solver == "frank_wolfe":
            problem, _ = self._whole(data, state.parts)
            arrays = check_frank_wolfe(problem, state.arrays, saved.arrays)
        else:
            arrays = check_planes(state.arrays, saved.arrays)
        potentials = write_parameters(state.potentials, arrays["parameters"])
        return replace(state, potentials=potentials, arrays=arrays, history=saved.history)

    # -- options -----------------------------------------------------------------------------------------------

    def check(self, potentials: Mapping[str, Potential]) -> None:
        """Refuse options and potentials that cannot be used."""
        for kind, potential in potentials.items():
            as_affine(kind, potential)
        self.check_choices({"solver": SOLVERS})
        if not 0 < real_number(self.ridge, "ridge") < np.inf:
            raise PotentiaError(f"ridge must be positive and finite, not {self.ridge}.")
        check_count("iterations", self.iterations)
        check_count("seed", self.seed)
        check_number("tol", self.tol)
        if self.batch is not None:
            check_count("batch", self.batch, 1)
        self.check_inference("inference")
        if self.delta != "hamming" and not callable(self.delta):
            raise PotentiaError(
                f"delta must be 'hamming' or a function of an example, not {shown(self.delta)}."
            )


def _gap(row: Row) -> float:
    """The gap as a share of the objective."""
    return share(row["gap"], row["objective"])

"""The structural SVM: potentials linear in their parameters, trained so that the truth wins by a margin."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from .._options import check_count, check_number
from .._types import ArrayLike, Floats, PotentiaError, WidthError, real_number
from ..data.example import Example
from ..data.parts import Examples, Parts
from ..inference.base import Inference
from ..inference.exact import Exact
from ..potentials.affine import require_affine
from ..potentials.base import Potential
from .dataset import Dataset
from .learner import Fit, Learner, SavedFit
from .margin_oracle import make_oracle
from .margin_problem import MarginProblem, make_delta
from .margin_solvers import SOLVERS
from .part import Part
from .recipe import Preparation


@dataclass(repr=False)
class MaxMargin(Learner):
    """Trains potentials that are linear in their parameters as a structural SVM (margin rescaling):

        min over w of  ridge / 2 |w|^2 + 1/n ( sum_k max_y [Delta_k(y) + F_k(y) - F_k(y^k)] + penalties )

    over n examples; w are all tables of all kinds in the features' own units, intercepts included, and penalties are
    the potentials' own (`Linear(ridge)`: ridge / 2 |W|^2 without intercept), added to the summed loss as everywhere
    else. In terms of a cost C of the summed loss, ridge = 1 / (C n). A fit always starts at w = 0.

    The gap between this objective and the dual is a proof of how far from optimal w is: true of the problem where
    `inference` is exact, of its relaxation where it is `LinearProgram()`, an estimate with other methods.

    Attributes:
        ridge: above 0; see the formula.
        iterations: limit of passes over the examples.
        tol: stop when the gap is at most this share of the objective (0: run all iterations).
        solver: "frank_wolfe" (block-coordinate, a step after every example or batch) or "one_slack" (cutting
            planes: all examples make one constraint per iteration).
        inference: what finds the best labelling, in training and in predictions; None for `Exact()`. Chains of one
            number of states take Viterbi in one kernel with `Exact()`, everything else batches of examples.
        batch: examples whose answers "frank_wolfe" seeks together where the kernel for chains does not apply; None for
            a fiftieth of them, at least one. A number takes this way on chains too.
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

    def begin(self, potentials: Mapping[str, Potential], examples: Examples) -> Fit:
        """Zero parameters."""
        if isinstance(examples, Parts):
            raise PotentiaError(
                "MaxMargin needs a list of examples, since its dual is one vector of all of them."
            )
        # the dual of all examples is one vector: they are one part
        data = Dataset.of(
            examples,
            list(potentials),
            drop_hidden=True,
            part_entries=2**62,
            preparation=Preparation(labels=True),
        )
        data.require(list(potentials))
        return _MarginFit(self, potentials, data)

    def check(self, potentials: Mapping[str, Potential]) -> None:
        """Refuse options and potentials that cannot be used."""
        for kind, potential in potentials.items():
            require_affine(kind, potential)
        self.check_choices({"solver": tuple(SOLVERS)})
        if not 0 < real_number(self.ridge, "ridge") < np.inf:
            raise PotentiaError(f"ridge must be positive and finite, not {self.ridge}.")
        check_count("iterations", self.iterations)
        check_count("seed", self.seed)
        check_number("tol", self.tol)
        if self.batch is not None:
            check_count("batch", self.batch, 1)
        self.check_inference("inference")
        if self.delta != "hamming" and not callable(self.delta):
            raise PotentiaError(f"delta must be 'hamming' or a function of an example, not {self.delta!r}.")


class _MarginFit(Fit):
    """A solver of the structural SVM; an iteration is a pass or a cutting plane."""

    def __init__(self, learner: MaxMargin, potentials: Mapping[str, Potential], data: Dataset) -> None:
        self.learner, self.data, self.limit, self.tol = learner, data, learner.iterations, learner.tol
        for kind, potential in potentials.items():
            potential.begin(data.problem(kind))
        part: Part = data.parts.each("itself")[0]
        self.problem = MarginProblem(potentials, part, make_delta(part, learner.delta), learner.ridge)
        oracle = make_oracle(self.problem, learner.predictor([]), learner.batch)
        self.solver = SOLVERS[learner.solver](self.problem, oracle, learner)

    def step(self, history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """One iteration: objective, dual and gap, their difference."""
        try:
            found = self.solver.advance(len(history))
        except WidthError as error:
            raise WidthError(
                f"{error}; give MaxMargin an approximate method, such as inference=pt.LinearProgram()."
            ) from None
        self.problem.write(self.solver.parameters)
        return dict(found)

    def settled(self, history: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the gap is at most `tol` of the objective."""
        return bool(history) and self.tol > 0 and _share(history) <= self.tol

    def complaint(self, history: Sequence[Mapping[str, Any]]) -> str | None:
        """What to warn of when the fit was cut off at its limit."""
        if self.tol == 0 or not history or self.settled(history):
            return None
        return f"The gap was still {_share(history):.2g} of the objective after {len(history)} iterations."

    def arrays(self) -> dict[str, Floats]:
        """The solver's state, and numbers of examples and scores, by which it is known to fit."""
        size = np.array([self.problem.n_examples, len(self.problem.design.truth)], dtype=float)
        return self.solver.arrays() | {"size": size}

    def restore(self, saved: SavedFit) -> None:
        """Take back the solver's state."""
        if not np.array_equal(saved.arrays.get("size", ()), self.arrays()["size"]):
            raise PotentiaError("the checkpoint belongs to other examples or another learner.")
        self.solver.restore({name: value for name, value in saved.arrays.items() if name != "size"})
        self.problem.write(self.solver.parameters)


def _share(history: Sequence[Mapping[str, Any]]) -> float:
    """The gap as a share of the objective."""
    return float(history[-1]["gap"] / abs(history[-1]["objective"]))

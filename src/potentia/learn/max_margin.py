"""`MarginPart`: what cutting planes of the structural SVM ask of some examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from ..base.options import check_count, check_number
from ..base.types import ArrayLike, Floats, PotentiaError, WidthError, real_number, shown
from ..features.example import Example
from ..features.parts import Examples, Parts
from ..inference.base import Inference
from ..inference.exact import Exact
from ..kernels.frank_wolfe import assemble
from ..potentials.base import Potential, as_affine
from .backends.connection import current
from .base import Fit, Learner, SavedFit, share
from .data import Dataset
from .margin_problem import Block, MarginProblem, make_delta, make_oracle, write_parameters
from .margin_solvers import FrankWolfe, MarginSolver, OneSlack, Plane, answers
from .part import Part, Preparation


@dataclass(frozen=True)
class MarginSettings:
    """What every part needs to know: begun potentials, Delta, the ridge, the number of all examples, the method."""

    potentials: Mapping[str, Potential]
    delta: Any
    ridge: float
    n_examples: int
    method: Inference


class MarginPart(Part):
    """A part with its flat arrays and its oracle."""

    def begin(self, settings: MarginSettings) -> None:
        """Make the flat arrays."""
        self.settings = settings
        delta = make_delta(self, settings.delta)
        self.problem = MarginProblem(settings.potentials, self, delta, settings.ridge, settings.n_examples)
        self.oracle = make_oracle(self.problem, settings.method, None)

    def layout(self) -> tuple[Floats, dict[str, Block]]:
        """eta of all parameters, and where each kind's parameters are; the same for all parts."""
        nowhere = np.zeros(0, np.int64)
        return self.problem.eta, {k: b._replace(at=nowhere) for k, b in self.problem.blocks.items()}

    def sizes(self) -> tuple[float, float]:
        """Number of scores, and the summed Delta of the examples' own labels."""
        return float(len(self.problem.design.truth)), float(self.problem.true_loss.sum())

    def plane(self, w: Floats) -> tuple[Floats, float, float]:
        """The slope that the examples' answers at w make, their summed loss and their summed Delta."""
        s, delta, losses = answers(self.problem, self.oracle, w)
        slope = np.empty_like(w)
        assemble(self.problem.design, s, slope)
        return slope, float(losses.sum()), float(delta.sum())

    def suspend(self) -> tuple[dict[str, Any], dict[str, Floats]]:
        """The settings: all else follows from them."""
        small, arrays = super().suspend()
        return small | ({"settings": self.settings} if hasattr(self, "settings") else {}), arrays

    def resume(self, small: Mapping[str, Any], arrays: Mapping[str, Floats]) -> None:
        """Take back what `suspend` gave."""
        super().resume(small, arrays)
        if "settings" in small:
            self.begin(small["settings"])


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

    def begin(self, potentials: Mapping[str, Potential], examples: Examples) -> Fit:
        """Zero parameters."""
        wanted = Preparation(labels=True)
        if self.solver == "one_slack":
            data = Dataset.of(examples, list(potentials), MarginPart, drop_hidden=True, preparation=wanted)
            data.require(list(potentials))
            return _PlanesFit(self, potentials, data)
        if isinstance(examples, Parts) or current() is not None:
            raise PotentiaError(
                "MaxMargin(solver='frank_wolfe') needs a list of examples in one process, since its dual is one vector "
                "of all of them; take solver='one_slack'."
            )
        data = Dataset.of(
            examples, list(potentials), drop_hidden=True, part_entries=2**62, preparation=wanted
        )
        data.require(list(potentials))
        return _FrankWolfeFit(self, potentials, data)

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


class _MarginFit(Fit):
    """A solver of the structural SVM; an iteration is a pass or a cutting plane."""

    solver: MarginSolver
    #: Numbers of examples and of scores, by which a checkpoint is known to fit.
    size: tuple[float, float]

    def __init__(self, learner: MaxMargin, potentials: Mapping[str, Potential], data: Dataset) -> None:
        self.learner, self.potentials, self.data = learner, potentials, data
        self.limit, self.tol = learner.iterations, learner.tol
        for kind, potential in potentials.items():
            potential.begin(data.problem(kind))
        self.blocks: Mapping[str, Block] = {}

    def step(self, history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """One iteration: objective, dual and gap, their difference."""
        try:
            found = self.solver.advance(len(history))
        except WidthError as error:
            sentence = str(error).removesuffix(".")
            raise WidthError(
                f"{sentence}; give MaxMargin an approximate method: solver='one_slack' with "
                "inference=pt.LinearProgram(), or with inference=pt.MAP(time_limit=1), which is faster on large graphs."
            ) from None
        write_parameters(self.potentials, self.blocks, self.solver.parameters)
        return dict(found)

    def settled(self, history: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the gap is at most `tol` of the objective; one below zero shows that inference misses labellings."""
        return bool(history) and self.tol > 0 and abs(_share(history)) <= self.tol

    def complaint(self, history: Sequence[Mapping[str, Any]]) -> str | None:
        """What to warn of when the fit was cut off at its limit."""
        if self.tol == 0 or not history or self.settled(history):
            return None
        if _share(history) < 0:
            return (
                "The objective is below the dual, so the inference misses labellings that cost more; take an exact "
                "one, or inference=pt.LinearProgram()."
            )
        remedies = "more iterations or a larger ridge"
        if self.learner.solver == "frank_wolfe":
            remedies = "more iterations, a larger ridge, or solver='one_slack' for few large examples"
        return (
            f"The gap was still {_share(history):.2g} of the objective after {len(history)} iterations; "
            f"take {remedies}."
        )

    def arrays(self) -> dict[str, Floats]:
        """The solver's state, and `size`."""
        return self.solver.arrays() | {"size": np.array(self.size, dtype=float)}

    def restore(self, saved: SavedFit) -> None:
        """Take back the solver's state."""
        if not np.array_equal(saved.arrays.get("size", ()), self.arrays()["size"]):
            raise PotentiaError("the checkpoint belongs to other examples or another learner.")
        self.solver.restore({name: value for name, value in saved.arrays.items() if name != "size"})
        write_parameters(self.potentials, self.blocks, self.solver.parameters)


class _FrankWolfeFit(_MarginFit):
    """All examples in one part, whose dual is one vector."""

    def __init__(self, learner: MaxMargin, potentials: Mapping[str, Potential], data: Dataset) -> None:
        super().__init__(learner, potentials, data)
        part: Part = data.parts.each("itself")[0]
        problem = MarginProblem(potentials, part, make_delta(part, learner.delta), learner.ridge)
        oracle = make_oracle(problem, learner.predictor([]), learner.batch)
        self.blocks, self.size = problem.blocks, (problem.n_examples, len(problem.design.truth))
        self.solver = FrankWolfe(problem, oracle, learner)


class _PlanesFit(_MarginFit):
    """Parts anywhere, each of which adds its share to a plane."""

    def __init__(self, learner: MaxMargin, potentials: Mapping[str, Potential], data: Dataset) -> None:
        super().__init__(learner, potentials, data)
        self.parts, self.n_examples = data.parts, sum(data.n_examples)
        method = learner.predictor([])
        settings = MarginSettings(potentials, learner.delta, learner.ridge, self.n_examples, method)
        self.parts.each("begin", settings, changes=True)
        eta, self.blocks = self.parts.at(0, "layout")
        n_scores, true_loss = self.parts.total("sizes")
        self.size = self.n_examples, n_scores
        self.solver = OneSlack(eta, true_loss / self.n_examples, self._plane, learner)

    def _plane(self, w: Floats) -> Plane:
        slope, loss, delta = self.parts.total("plane", w)
        return Plane(slope, loss / self.n_examples, delta / self.n_examples)


def _share(history: Sequence[Mapping[str, Any]]) -> float:
    """The gap as a share of the objective."""
    return share(history[-1]["gap"], history[-1]["objective"])

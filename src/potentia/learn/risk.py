"""Empirical risk of what inference predicts, minimised over all parameters [MBL-tpami]."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from ..base.optimise import Adam
from ..base.options import check_count, check_number
from ..base.types import Floats, PotentiaError, real_number, shown
from ..features.parts import Examples
from ..gradients.entry import Gradient, gradient_of
from ..gradients.loss import Loss
from ..gradients.losses import loss_of
from ..inference.base import Inference
from ..inference.messages import TRW
from ..potentials.base import Potential
from ..potentials.mlp import Differentiable
from .base import Fit, Learner, SavedFit, has_settled, steps_made
from .data import Dataset
from .descent import Descent, join_parameters, set_parameters
from .examples import whole_kinds
from .part import Preparation
from .risk_objective import Risk, RiskPart

STARTS = ("independent", "surrogate_likelihood", "zero")


@dataclass(repr=False)
class MarginalRisk(Learner):
    r"""Trains differentiable potentials (Linear, Constant, MLP, networks) so that inference predicts well.

    .. math:: \min_w \frac{\text{sum of losses}}{\text{weight of labelled variables}} + \tfrac{1}{2} \text{ridge} |w|^2

    The loss is a function of the marginals after the iterations of `inference`, so that training compensates for its
    approximations. Losses with hidden labels (-1) work on all variables.

    Attributes:
        loss: a name (see `pt.losses`) or a loss object.
        inference: what the loss is computed through, and what predictions use unless the CRF has its own.
        gradient: "truncated", "backpropagation", "perturbation", "implicit" or an object of `pt.gradients`; for
            losses of marginals. With all but the first, inference starts from the messages it had for the parameters
            before, and must converge: a fit at whose end it does not warns with `pt.ConvergenceWarning`.
        ridge: relative to the risk per variable; replaces the ridge of the potentials. None keeps theirs, added to the
            summed loss.
        iterations: limit of L-BFGS steps, or passes with `batch`.
        tol: stop when the objective falls by less than this share in ten steps (0: run all).
        start: "independent" fits the kinds of single variables by logistic regression and leaves the others at
            zero; "surrogate_likelihood" then minimises that loss first (which helps against the local minima of the
            smoothed error); "zero"; None is the second for smoothed errors and the first otherwise.
        incremental: train on this many examples first, then on twice as many in half the steps, and so on
            [MBL-tpami sec. 8.4]; None for all at once.
        batch: examples per step of stochastic descent (Adam); None for L-BFGS on all.
        rate: step size of stochastic descent, relative to parameters of size one.
        clamped: inference given the labels, for losses that need it; None for the same.
        class_weight: weight of each state of every variable, or None; multiplies the variables' own weights.
        track_error: predict the training examples after every iteration (and the validation examples, if given); None
            does so if there are validation examples or the data are small (one part, 4 million table entries).
        seed: of the order of batches.
        threads: None for all cores (or POTENTIA_THREADS); examples are divided among them.
    """

    loss: str | Loss = "univariate_logistic"
    inference: Inference | None = None
    gradient: str | Gradient = "truncated"
    ridge: float | None = 1e-3
    iterations: int = 1000
    tol: float = 1e-5
    start: Literal["independent", "surrogate_likelihood", "zero"] | None = None
    incremental: int | None = None
    batch: int | None = None
    rate: float = 0.05
    clamped: Inference | None = None
    class_weight: Sequence[float] | None = None
    track_error: bool | Sequence[int] | None = None
    seed: int = 0
    threads: int | None = None

    def predictor(self, kinds: Sequence[str]) -> Inference:
        """The inference that predictions of the trained model use."""
        return self.inference or TRW(iterations=20)

    def begin(self, potentials: Mapping[str, Potential], examples: Examples) -> Fit:
        """The fit; nothing is computed before its first step."""
        wanted = Preparation(labels=True, class_weight=self.class_weight)
        data = Dataset.of(
            examples, list(potentials), RiskPart, whole=whole_kinds(potentials), preparation=wanted
        )
        data.require(list(potentials))
        return (_RiskFit if self.batch is None else _StochasticFit)(self, potentials, data)

    def check(self, potentials: Mapping[str, Potential]) -> None:
        """Refuse options and potentials that cannot be used."""
        loss_of(self.loss)
        gradient_of(self.gradient)
        for kind, potential in potentials.items():
            if not (potential.differentiable or potential.shared):
                raise PotentiaError(
                    f"MarginalRisk follows gradients, which the {type(potential).__name__} of {kind!r} does not have."
                )
            if self.batch is None and isinstance(potential, Differentiable) and not potential.full_precision:
                raise PotentiaError(
                    f"MarginalRisk without batch= makes line searches, for which the {type(potential).__name__} of "
                    f"{kind!r} is too imprecise: give batch=, or a module in float64."
                )
        self.check_inference("inference", "clamped")
        if self.start is not None:
            self.check_choices({"start": STARTS})
        if self.ridge is not None:
            check_number("ridge", self.ridge)
        check_count("iterations", self.iterations)
        check_count("seed", self.seed)
        check_number("tol", self.tol)
        for name in ("incremental", "batch"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), 1)
        if not 0 < real_number(self.rate, "rate") < np.inf:
            raise PotentiaError(f"rate must be positive and finite, not {shown(self.rate)}.")


class _RiskFit(Fit):
    """L-BFGS on the risk, in stages of more and more examples; an iteration is a step."""

    data: Dataset

    def __init__(self, learner: MarginalRisk, potentials: Mapping[str, Potential], data: Dataset) -> None:
        self.learner, self.potentials, self.data = learner, potentials, data
        self.n_examples = sum(data.n_given)
        self.tol, self.stages = learner.tol, self._stages(_fewest(data))
        self.limit = sum(steps for _, steps in self.stages)
        self.stage, self.value = 0, np.inf
        #: What makes the gradient at the current parameters inaccurate, if anything.
        self.doubts: dict[str, int] = {}
        self._open()

    def _stages(self, fewest: int) -> list[tuple[int, int]]:
        """Numbers of examples, from `fewest` on, and the steps to be made on them."""
        n, first = self.n_examples, self.learner.incremental
        stages = [(n if first is None else min(max(first, fewest), n), self.learner.iterations)]
        while stages[-1][0] < n:
            number, steps = stages[-1]
            stages.append((min(2 * number, n), max(steps // 2, 1)))
        return stages

    def _open(self) -> None:
        """The risk of this stage's examples."""
        number = self.stages[self.stage][0]
        size = self.learner.batch or number
        self.risk = Risk(self.potentials, self.data, self.learner, number, -(-number // size))
        self.descent: Descent | None = None

    def step(self, history: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
        """A step of L-BFGS; a stage that is done makes way for the next."""
        while not self._advance(history):
            if self.stage + 1 == len(self.stages) or (self.descent is not None and self.descent.diverged):
                return None
            self.stage += 1
            self._open()
        return self.standing()

    def standing(self) -> dict[str, Any]:
        """The objective at the current parameters."""
        return {"objective": self.value, "examples": self.stages[self.stage][0]}

    def _advance(self, history: Sequence[Mapping[str, Any]]) -> bool:
        """A step on this stage's examples, unless it is done."""
        done = self._own(history)
        if len(done) >= self.stages[self.stage][1] or has_settled(done, self.tol):
            return False
        if self.descent is None:
            self.descent = self._begin()
        gained = self.descent.step()
        if gained:
            self.value, self.doubts = self.descent.value, self.risk.doubts
        return gained

    def _begin(self) -> Descent:
        """A descent from the current parameters."""
        descent = Descent(self.risk.functions, self.risk)
        try:
            descent.begin()
        except PotentiaError:
            for doubt in self.risk.doubts:
                raise PotentiaError(f"The fit cannot begin here: {doubt}") from None
            raise
        self.value, self.doubts = descent.value, self.risk.doubts
        return descent

    def _own(self, history: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """What this stage has done."""
        return [row for row in history if row["examples"] == self.stages[self.stage][0]]

    def settled(self, history: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the last stage is."""
        last = bool(history) and history[-1]["examples"] == self.n_examples
        return last and self.stage + 1 == len(self.stages) and has_settled(self._own(history), self.tol)

    def failure(self, history: Sequence[Mapping[str, Any]]) -> str | None:
        """Parameters that ran away, or a search that found no step, with the doubts of its last trial."""
        found = None if self.descent is None else self.descent.failure(steps_made(history), self.tol)
        return found and " ".join([found, *self.risk.doubts])

    def complaint(self, history: Sequence[Mapping[str, Any]]) -> str | None:
        """What to warn of when the fit failed, or its gradient is inaccurate, or it was cut off at its limit."""
        found = self.failure(history) or next(iter(self.doubts), None)
        own = self._own(history)
        cut = len(own) >= self.stages[self.stage][1] and self.stage + 1 == len(self.stages)
        return found or (super().complaint(own) if cut else None)

    def prepare(self) -> None:
        """Where the fit starts, for potentials that were not fitted before."""
        learner = self.learner
        fresh = self.risk.begin()
        start = learner.start or (
            "surrogate_likelihood" if "smoothed_error" in loss_of(learner.loss).name else "independent"
        )
        if start == "zero" or not fresh:
            return
        self.risk.fit_independently(fresh)
        if start == "surrogate_likelihood":
            first = replace(learner, loss="surrogate_likelihood", incremental=None)
            other = Risk(self.potentials, self.data, first, self.stages[0][0])
            _minimise(Descent(other.functions, other), learner.iterations, 1e-4)
            self._open()

    def arrays(self) -> dict[str, Floats]:
        """The optimiser's state."""
        return {} if self.descent is None else self.descent.state()

    def part_arrays(self) -> Iterable[dict[str, Floats]]:
        """Where the parts' inference starts next."""
        return self.data.part_states()

    def restore(self, saved: SavedFit) -> None:
        """Take up the stage that the history ended in."""
        if not saved.history:
            return
        numbers = [number for number, _ in self.stages]
        if saved.history[-1]["examples"] not in numbers:
            raise PotentiaError("The checkpoint belongs to a fit in other stages.")
        self.stage = numbers.index(saved.history[-1]["examples"])
        self._open()
        self._restore_optimiser(saved.arrays)
        self.data.restore_parts(saved.parts)

    def _restore_optimiser(self, arrays: Mapping[str, Floats]) -> None:
        self.descent = Descent(self.risk.functions, self.risk)
        self.descent.restore(arrays)


class _StochasticFit(_RiskFit):
    """Adam over batches of examples in random order; an iteration is a pass, steps fall as 1 / sqrt(pass).

    Batch b of n has every n-th example, so that all parts of the data have some of each. The objective noted is the
    mean over a pass of the batches' values, each at the parameters of its turn.
    """

    def _open(self) -> None:
        super()._open()
        self.batches = [batch for batch, total in enumerate(self.risk.totals) if total > 0]
        self.adam: Adam | None = None

    def _advance(self, history: Sequence[Mapping[str, Any]]) -> bool:
        done = len(self._own(history))
        if done >= self.stages[self.stage][1]:
            return False
        functions = self.risk.functions
        if self.adam is None:
            self.adam = Adam(join_parameters(functions))
        rates = [np.full(f.n_parameters, f.step_size(self.learner.rate)) for f in functions]
        rate = np.concatenate([np.zeros(0), *rates]) / np.sqrt(done + 1)
        values, self.doubts = np.zeros(len(self.batches)), {}
        for number in np.random.default_rng([self.learner.seed, done]).permutation(len(self.batches)):
            values[number], slopes = self.risk(self.batches[number])
            self.doubts |= self.risk.doubts
            if np.isfinite(values[number]):
                self.adam.step(np.concatenate(slopes), rate)
                set_parameters(functions, self.adam.point)
        finite = np.isfinite(values)
        if not finite.any():
            raise PotentiaError(" ".join(["The loss of no batch is a finite number.", *self.doubts]))
        totals = np.array([self.risk.totals[batch] for batch in self.batches])[finite]
        self.value = float(totals / totals.sum() @ values[finite])
        return True

    def settled(self, history: Sequence[Mapping[str, Any]]) -> bool:
        """Nothing is said about convergence."""
        return False

    def complaint(self, history: Sequence[Mapping[str, Any]]) -> str | None:
        """Nothing is said about convergence, only about gradients of the last pass."""
        return next(iter(self.doubts), None)

    def arrays(self) -> dict[str, Floats]:
        """The optimiser's state."""
        return {} if self.adam is None else self.adam.state()

    def _restore_optimiser(self, arrays: Mapping[str, Floats]) -> None:
        self.adam = Adam(join_parameters(self.risk.functions))
        self.adam.restore(arrays)


def _minimise(descent: Descent, steps: int, tol: float) -> None:
    """Steps until the objective falls by at most `tol` of itself in ten, or as many as given."""
    values: list[Mapping[str, Any]] = []
    while len(values) < steps and not has_settled(values, tol) and descent.step():
        values.append({"objective": descent.value})


def _fewest(data: Dataset) -> int:
    """How many examples it takes until every kind and a labelled variable are among them."""
    kinds: dict[str, int] = {}
    labelled: int | None = None
    first = 0
    for (own, seen), size in zip(data.parts.each("firsts"), data.n_given, strict=True):
        for kind, number in own.items():
            kinds.setdefault(kind, first + number)
        if labelled is None and seen is not None:
            labelled = first + seen
        first += size
    if labelled is None:
        raise PotentiaError("no variable of the examples has a label and a positive weight.")
    return 1 + max(labelled, *kinds.values())

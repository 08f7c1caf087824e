"""Empirical risk of what inference predicts, minimised over all parameters [MBL-tpami]."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from ..base.optimise import Search, adam, adam_start, check_adam, lbfgs
from ..base.types import PotentiaError, by_name, check_count, check_number, check_positive
from ..features.parts import Examples
from ..gradients.base import Gradient, Loss
from ..gradients.entry import GRADIENTS, check_dense_loss
from ..gradients.losses import SmoothedError, loss_of
from ..inference.base import Inference
from ..inference.messages import TRW
from ..potentials.base import Differentiable, Potential
from .base import Learner, Row, State, failure_of, has_settled, join_parameters, movable, set_parameters, steps_made
from .data import Dataset
from .part import dense_kinds
from .risk_objective import Risk, begin_potentials, first_examples, open_parts, restored_starts, saved_starts

#: What a state's arrays say of its stage.
_OF_STAGES = ("stages", "stage", "totals")
STARTS = ("independent", "surrogate_likelihood", "zero")


@dataclass(repr=False)
class MarginalRisk(Learner):
    r"""Trains differentiable potentials (Linear, Constant, MLP, networks) so that inference predicts well.

    .. math:: \min_w \frac{\text{sum of losses}}{\text{weight of labelled variables}} + \tfrac{1}{2} \text{ridge} |w|^2

    The loss is a function of the marginals after the iterations of `inference`, so that training compensates for its
    approximations. Losses with hidden labels (-1) work on all variables.

    Attributes:
        loss: a name (see `pt.gradients.losses`) or a loss object.
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

    Example:
        >>> import potentia as pt
        >>> learner = pt.MarginalRisk("univariate_logistic", inference=pt.TRW(iterations=5, tol=0), iterations=20)
        >>> train = pt.datasets.denoising(2, (12, 12), seed=0)
        >>> crf = pt.CRF({"node": pt.Linear(), "edge": pt.Linear()}, learner).fit(train)
        >>> crf.history_[-1]["objective"] < crf.history_[0]["objective"]
        True
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

    # -- fitting -----------------------------------------------------------------------------------------------

    def gather(self, examples: Examples, potentials: Mapping[str, Potential]) -> Dataset:
        """All variables."""
        data = Dataset.of(examples, potentials, labels=True, class_weight=self.class_weight)
        data.require(potentials)
        return data

    def init(self, data: Dataset, potentials: Mapping[str, Potential]) -> State:
        """Parameters as they are, or as `start` says."""
        stages = self._stages(data)
        number = stages[0][0]
        fresh = any(not potential.is_fitted for potential in potentials.values())
        smoothed = isinstance(loss_of(self.loss), SmoothedError)
        smoothed = smoothed and not dense_kinds(potentials)
        start = self.start or ("surrogate_likelihood" if smoothed else "independent")
        if fresh:
            totals, parts = open_parts(data, self, number, self._n_batches(number))
            ridge = None if self.ridge is None else self.ridge * float(sum(totals.tolist()))
            potentials = begin_potentials(data, ridge, parts, potentials, start != "zero")
        if fresh and start == "surrogate_likelihood":
            first = replace(self, loss="surrogate_likelihood", incremental=None)
            totals, parts = open_parts(data, first, number)
            potentials = _minimised(Risk(data, self.ridge, totals, potentials, parts), self.iterations)
        limit = sum(steps for _, steps in stages)
        return self._open(data, State(potentials, limit, {"stages": np.array(stages, dtype=float)}), 0)

    def step(self, data: Dataset, state: State) -> State:
        """A step of L-BFGS, or a pass of Adam over batches; a stage that is done makes way for the next."""
        while True:
            number, steps, last = self._stage(state)
            rows = _rows_of(state, number)
            risk = Risk(data, self.ridge, state.arrays["totals"], state.potentials, state.parts)
            if self.batch is not None and len(rows) < steps:
                return self._pass(risk, state, number, len(rows))
            diverged = False
            if self.batch is None and len(rows) < steps and not has_settled(rows, self.tol):
                try:
                    search = lbfgs(Search.of(state.arrays), risk)
                except PotentiaError:
                    for doubt in risk.doubts if len(state.arrays) == len(_OF_STAGES) + 1 else ():
                        raise PotentiaError(f"The fit cannot begin here: {doubt}") from None
                    raise
                state, diverged = self._after(state, risk, search, number), search.diverged
                if not state.ended:
                    return state
            if last or diverged:
                return replace(state, ended=True)
            state = self._open(data, state, int(state.arrays["stage"][0]) + 1)

    def judged(self, state: State) -> Sequence[Row]:
        """The rows of the last stage; none with batches, which say nothing about convergence."""
        number, _, last = self._stage(state)
        return _rows_of(state, number) if last and self.batch is None else ()

    def saved_parts(self, data: Dataset, state: State) -> Iterable[Mapping[str, Any]]:
        """Where the parts' inference starts next."""
        return data.fetch(saved_starts, state.parts)

    def resume(self, data: Dataset, state: State, saved: State) -> State:
        """The optimiser's state in the stage that the history ended in."""
        numbers = state.arrays["stages"][:, 0].tolist()
        if saved.history[-1]["examples"] not in numbers:
            raise PotentiaError("The checkpoint belongs to a fit in other stages.")
        state = self._open(data, state, numbers.index(saved.history[-1]["examples"]))
        n, checked = len(state.arrays["point"]), Search.check if self.batch is None else check_adam
        held = {name: array for name, array in saved.arrays.items() if name not in _OF_STAGES}
        known = {name: state.arrays[name] for name in _OF_STAGES}
        parts = data.restore(restored_starts, state.parts, saved.parts)
        return replace(state, arrays={**known, **checked(held, n)}, parts=parts, history=saved.history)

    def _stages(self, data: Dataset) -> list[tuple[int, int]]:
        """Numbers of examples, and the steps to be made on them."""
        n, fewest = sum(data.n_given), _fewest(data)
        stages = [(n if self.incremental is None else min(max(self.incremental, fewest), n), self.iterations)]
        while stages[-1][0] < n:
            number, steps = stages[-1]
            stages.append((min(2 * number, n), max(steps // 2, 1)))
        return stages

    def _stage(self, state: State) -> tuple[int, int, bool]:
        """How many examples take part now, how many steps are made on them, and whether no stage follows."""
        stages, stage = state.arrays["stages"], int(state.arrays["stage"][0])
        return int(stages[stage, 0]), int(stages[stage, 1]), stage + 1 == len(stages)

    def _n_batches(self, number: int) -> int:
        """Batches of a pass over `number` examples."""
        return -(-number // (self.batch or number))

    def _open(self, data: Dataset, state: State, stage: int) -> State:
        """The beginning of a stage, at the current parameters."""
        number = int(state.arrays["stages"][stage, 0])
        totals, parts = open_parts(data, self, number, self._n_batches(number))
        point = join_parameters(movable(state.potentials, state.potentials))
        arrays = Search(point).arrays() if self.batch is None else adam_start(point)
        of_stage = {"stages": state.arrays["stages"], "stage": np.array([float(stage)]), "totals": totals}
        return replace(state, arrays={**of_stage, **arrays}, parts=parts, ended=False, failure=None)

    def _after(self, state: State, risk: Risk, search: Search, number: int) -> State:
        """The state after a step of L-BFGS on the first `number` examples, or at the end if it gained nothing."""
        set_parameters(risk.moving, search.point)
        row = {"objective": search.value, "examples": number}
        changes = {
            "potentials": risk.potentials,
            "arrays": {name: state.arrays[name] for name in _OF_STAGES} | search.arrays(),
            "parts": risk.parts,
            "doubt": state.doubt if search.aux is None else next(iter(search.aux), None),
        }
        if not search.stopped:
            return state.after(row, **changes)
        failure = failure_of(search, steps_made(state.history), self.tol)
        failure = failure and " ".join([failure, *risk.doubts])
        return state.at_end(row, **changes, failure=failure)

    def _pass(self, risk: Risk, state: State, number: int, done: int) -> State:
        """Adam over batches of examples in random order; steps fall as 1 / sqrt(pass).

        Batch b of n has every n-th example, so that all parts of the data have some of each. The objective noted is the
        mean over a pass of the batches' values, each at the parameters of its turn.
        """
        rates = [np.full(f.n_parameters, f.step_size(self.rate)) for f in risk.moving.values()]
        rate = np.concatenate([np.zeros(0), *rates]) / np.sqrt(done + 1)
        batches = np.flatnonzero(risk.totals > 0)
        values, all_doubts, optimiser = np.zeros(len(batches)), dict[str, int](), dict(state.arrays)
        for at in np.random.default_rng([self.seed, done]).permutation(len(batches)):
            values[at], gradient, doubts = risk(optimiser["point"], int(batches[at]))
            all_doubts |= doubts
            if np.isfinite(values[at]):
                optimiser |= adam(optimiser, gradient, rate)
        set_parameters(risk.moving, optimiser["point"])
        finite = np.isfinite(values)
        if not finite.any():
            raise PotentiaError(" ".join(["The loss of no batch is a finite number.", *all_doubts]))
        totals = risk.totals[batches][finite]
        row = {"objective": float(totals / totals.sum() @ values[finite]), "examples": number}
        doubt = next(iter(all_doubts), None)
        changes = {"potentials": risk.potentials, "arrays": optimiser, "parts": risk.parts, "doubt": doubt}
        return state.after(row, **changes)

    # -- options -----------------------------------------------------------------------------------------------

    def check(self, potentials: Mapping[str, Potential]) -> None:
        """Refuse options and potentials that cannot be used."""
        loss, gradient = loss_of(self.loss), by_name("gradient", self.gradient, GRADIENTS, Gradient)
        if dense := dense_kinds(potentials):
            check_dense_loss(loss, gradient)
            if not self.predictor([]).dense_pairs or self.start == "surrogate_likelihood":
                raise PotentiaError(
                    f"the DenseGaussian of {min(dense)!r} needs inference=pt.MeanField(), and no such start."
                )
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
            check_count(name, getattr(self, name), 1, optional=True)
        check_positive("rate", self.rate)


def _rows_of(state: State, number: int) -> list[Row]:
    """History rows of the stage that trains on the first `number` examples."""
    return [row for row in state.history if row["examples"] == number]


def _minimised(risk: Risk, steps: int) -> dict[str, Potential]:
    """The potentials after L-BFGS until the risk falls by at most 1e-4 of itself in ten steps, or some steps."""
    search, values = Search(join_parameters(risk.moving)), list[Row]()
    while len(values) < steps and not has_settled(values, 1e-4) and not search.stopped:
        search = lbfgs(search, risk)
        values.append({"objective": search.value})
    set_parameters(risk.moving, search.point)
    return risk.potentials


def _fewest(data: Dataset) -> int:
    """How many examples it takes until every kind and a labelled variable are among them."""
    kinds: dict[str, int] = {}
    labelled: int | None = None
    first = 0
    for (of_part, seen), size in zip(data.parts.map(first_examples, None)[1], data.n_given, strict=True):
        for kind, number in of_part.items():
            kinds.setdefault(kind, first + number)
        if labelled is None and seen is not None:
            labelled = first + seen
        first += size
    if labelled is None:
        raise PotentiaError("no variable of the examples has a label and a positive weight.")
    return 1 + max(labelled, *kinds.values())

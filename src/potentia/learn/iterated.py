"""Iterated logistic regression: alternate message passing with biased logistic regressions [ILR-chapter Alg. 1.1].

The joint objective over functions f and messages lam,

    sum_k -F(y^k) + A(lam^k, theta^k) + penalties,    theta = w (epsilon f + Delta),

is a sum over kinds of epsilon times a logistic loss biased by messages, so any class of functions that can lower
such a loss can be trained, and the objective never rises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from ..base.optimise import Search, lbfgs
from ..base.types import ArrayLike, Floats, PotentiaError, check_count, check_number, real_number, shown
from ..features.example import Example
from ..features.parts import Examples
from ..inference.base import Inference
from ..inference.messages import Schedule, Smoothed
from ..potentials.base import Differentiable, Potential
from .base import Learner, State, Stop, failure_of, join_parameters, movable, set_parameters, steps_made
from .data import Dataset
from .joint import Joint, pass_messages, restored_part, saved_part
from .part import dense_kinds

#: `message_tol` between fits by default: the next fit moves marginals more.
_BETWEEN_FITS = 1e-3

#: L-BFGS steps per iteration of the mixed solver; together they have the sweeps that follow one fit.
_MIXED_STEPS = 5

Solver = Literal["auto", "alternating", "direct", "mixed", "univariate_fixed", "piecewise"]


@dataclass(repr=False)
class IteratedLogistic(Learner):
    """Trains potentials of any class jointly on the entropy-smoothed margin loss.

    Attributes:
        epsilon: smoothing, one number or {kind: number}.
        iterations: limit of learning iterations; one fits every kind once, with message passing after each fit, or is
            one step of the direct solver. None for 25, or 500 with the direct solver.
        sweeps: message-passing sweeps after each fit, each twice over all variables (forward and backward, if
            sequential).
        message_tol: message passing stops earlier for a group of examples once none of its marginals changes by more
            than this in half a sweep. None is 1e-3, or 0 in the direct solver, whose line searches need converged
            messages; 1e-2 is much faster with many states, where messages converge early.
        tol: stop when the objective falls by less than this share of itself in ten iterations (0: run all).
        solver: "direct": L-BFGS on the joint objective over all parameters at once, for differentiable potentials;
            "alternating": message passing and logistic regressions in turn, for any; "mixed": per iteration fits of the
            other kinds and then five steps of L-BFGS over those that are convex, which converge slowly under
            alternation; "auto": direct if all potentials are differentiable, mixed if some are convex, else
            alternating. For comparison, not joint: "univariate_fixed" (single-variable kinds are fitted once with zero
            messages, then only the others alternate) and "piecewise" (every kind is fitted once with zero messages).
        delta: "hamming", None, or a function of an example that returns {kind: table (n_regions, *states)}.
        hidden: labels of -1: "drop" trains on the labelled variables and the regions between them; "soft" keeps them
            and takes marginals given the labels as targets, lowering A(theta) - A(theta | labels) by alternation.
        class_weight: weight of each state of every variable, or None; multiplies the variables' own weights.
        schedule: order of message passing.
        track_error: predict the training examples (and the validation examples, if given) after every iteration, or
            after those listed.
        threads: None for all cores (or POTENTIA_THREADS).

    Example:
        >>> import potentia as pt
        >>> train = pt.datasets.denoising(2, (12, 12), seed=0)
        >>> learner = pt.IteratedLogistic(epsilon=0.1, iterations=3)
        >>> crf = pt.CRF({"node": pt.Boosting(rounds=10), "edge": pt.Linear()}, learner).fit(train)
        >>> [row["iteration"] for row in crf.history_]
        [1, 2, 3]
    """

    epsilon: float | Mapping[str, float] = 0.1
    iterations: int | None = None
    sweeps: int = 25
    message_tol: float | None = None
    tol: float = 1e-2
    solver: Solver = "auto"
    delta: str | Callable[[Example], Mapping[str, ArrayLike]] | None = "hamming"
    hidden: Literal["drop", "soft"] = "drop"
    class_weight: Sequence[float] | None = None
    schedule: Schedule = "sequential"
    track_error: bool | Sequence[int] = True
    threads: int | None = None

    def epsilons(self, kinds: Sequence[str]) -> dict[str, float]:
        """epsilon of each kind."""
        by_kind = self.epsilon if isinstance(self.epsilon, Mapping) else dict.fromkeys(kinds, self.epsilon)
        if set(by_kind) != set(kinds):
            raise PotentiaError(f"epsilon must name the kinds {list(kinds)}, not {list(by_kind)}.")
        epsilons = {kind: real_number(by_kind[kind], "epsilon") for kind in kinds}
        if not all(np.isfinite(e) and e > 0 for e in epsilons.values()):
            raise PotentiaError(f"epsilon must be positive and finite, not {self.epsilon}.")
        return epsilons

    def scales(self, kinds: Sequence[str]) -> dict[str, float]:
        """Factors between f and theta at prediction: 1, or epsilon relative to the largest where kinds differ.

        Smoothing by epsilon has the same marginals at theta = epsilon f as smoothing by 1 at theta = f, and only f is
        a log-score that other methods can read.
        """
        epsilons = self.epsilons(kinds)
        largest = max(epsilons.values())
        return {kind: epsilon / largest for kind, epsilon in epsilons.items()}

    def predictor(self, kinds: Sequence[str]) -> Inference:
        """The inference that predictions of the trained model use."""
        return Smoothed(self.scales(kinds), iterations=4 * self.sweeps, tol=1e-4, schedule=self.schedule)

    # -- fitting -----------------------------------------------------------------------------------------------

    def gather(self, examples: Examples, potentials: Mapping[str, Potential]) -> Dataset:
        """The labelled variables and the regions between them, or all variables."""
        soft = self.hidden == "soft"
        data = Dataset.of(
            examples,
            potentials,
            drop_hidden=not soft,
            labels=True,
            positive=soft,
            class_weight=self.class_weight,
            singles=True,
        )
        data.require(potentials)
        return data

    def init(self, data: Dataset, potentials: Mapping[str, Potential]) -> State:
        """Zero messages, and potentials as they are or zero."""
        potentials, solver = data.begin(potentials), self.solver_for(potentials)
        joint = Joint(data, potentials, self)
        limit = self.limit_for(solver)
        if solver != "direct":
            return State(potentials, limit, parts=joint.begin(potentials, list(potentials)))
        search = Search(join_parameters(movable(potentials, joint.named)))
        return State(potentials, limit, search.arrays(), joint.begin(potentials, ()))

    def step(self, data: Dataset, state: State) -> State:
        """A step of L-BFGS, or a fit of every kind with message passing after each."""
        joint = Joint(data, state.potentials, self)
        solver = self.solver_for(state.potentials)
        if solver != "direct":
            return self._alternate(joint, state, solver)
        moving = movable(state.potentials, joint.named)
        passing = 2 * self.sweeps, self.message_tol or 0.0
        objective = _objective(joint, state.potentials, moving, state.parts, (), passing)
        search = lbfgs(Search.of(state.arrays), objective)
        arrays = search.arrays()
        if search.stopped:
            failure = failure_of(search, steps_made(state.history), self.tol)
            return state.at_end({"objective": search.value}, arrays=arrays, failure=failure)
        set_parameters(moving, search.point)
        parts, losses = search.aux
        potentials = {**state.potentials, **moving}
        return state.after(_row(search.value, losses, potentials), potentials=potentials, arrays=arrays, parts=parts)

    def done(self, state: State) -> Stop | None:
        """Why the fit ends here; solvers that fit some kinds once are never unfinished."""
        stop = super().done(state)
        once = self.solver in ("univariate_fixed", "piecewise")
        return stop._replace(warning=None) if stop is not None and once else stop

    def saved_parts(self, data: Dataset, state: State) -> Iterable[Mapping[str, Any]]:
        """The messages of every part."""
        return data.fetch(saved_part, state.parts)

    def resume(self, data: Dataset, state: State, saved: State) -> State:
        """The saved messages and the optimiser's state."""
        arrays = state.arrays and Search.check(saved.arrays, len(state.arrays["point"]))
        parts = data.restore(restored_part, state.parts, saved.parts)
        return replace(state, arrays=arrays, parts=parts, history=saved.history)

    def _alternate(self, joint: Joint, state: State, solver: str) -> State:
        """Algorithm 1.1 with kinds updated one after another, messages after each."""
        potentials, parts = {**state.potentials, **joint.zeros}, state.parts
        before = state.history[-1] if state.history else {}
        losses = {kind: before[f"loss_{kind}"] for kind in potentials if f"loss_{kind}" in before}
        stepping = [kind for kind in joint.kinds if solver == "mixed" and _is_convex(potentials[kind])]
        measured: Mapping[str, float] = {}
        tol = _BETWEEN_FITS if self.message_tol is None else self.message_tol
        kinds = [kind for kind in joint.kinds if kind not in stepping]
        groups = [[kind] for kind in kinds]
        if solver == "piecewise":
            groups = [kinds]
        elif solver == "univariate_fixed":
            single = [kind for kind in kinds if len(joint.data.shapes[kind]) == 1]
            others = [[kind] for kind in kinds if kind not in single]
            groups = others if state.history else [single, *others]
        for number, group in enumerate(groups):
            fits = {kind: joint.fit(parts, potentials[kind], kind) for kind in group}
            for kind, (fitted, loss) in fits.items():
                potentials[kind], losses[kind] = fitted, loss
            parts, measured = joint.moved(parts, potentials, group), {}
            if solver != "piecewise":
                # the objective is asked for after the last one
                measure = () if joint.soft or stepping or number < len(groups) - 1 else joint.kinds
                unscored = joint.unscored(potentials, joint.kinds)
                parts, measured = joint.parts.total(pass_messages, parts, unscored, 2 * self.sweeps, tol, measure)
        if stepping:
            parts, measured = self._steps(joint, stepping, potentials, parts, losses)
        objective = joint.objective(parts, potentials, measured)
        potentials = {kind: potentials[kind] for kind in state.potentials}
        return state.after(_row(objective, losses, potentials), potentials=potentials, parts=parts)

    def _steps(
        self, joint: Joint, kinds: Sequence[str], potentials: dict[str, Potential], parts: Any, losses: dict[str, float]
    ) -> tuple[Any, Mapping[str, float]]:
        """Some steps of L-BFGS over some kinds; the parts' states and what was measured, if the last step gained."""
        moving = movable(potentials, kinds)
        scored = [kind for kind in joint.kinds if kind not in moving]
        passing = -(-2 * self.sweeps // _MIXED_STEPS), self.message_tol or 0.0
        search, measured = Search(join_parameters(moving)), dict[str, float]()
        for _ in range(_MIXED_STEPS):
            search = lbfgs(search, _objective(joint, potentials, moving, parts, scored, passing))
            if search.stopped:
                measured = {}
                break
            parts, now = search.aux
            losses |= now
            measured = {kind: now[kind] for kind in scored}
        set_parameters(moving, search.point)
        potentials |= moving
        return joint.moved(parts, potentials, moving), measured

    # -- options -----------------------------------------------------------------------------------------------

    def solver_for(self, potentials: Mapping[str, Potential]) -> str:
        """The solver that "auto" stands for with these potentials."""
        if self.solver != "auto":
            return self.solver
        if self.hidden == "soft":
            return "alternating"
        if all((isinstance(p, Differentiable) and not p.own_optimiser) or p.shared for p in potentials.values()):
            return "direct"
        return "mixed" if any(map(_is_convex, potentials.values())) else "alternating"

    def limit_for(self, solver: str) -> int:
        """The limit of iterations, where None that of the solver."""
        limit = self.iterations
        if limit is None:
            limit = 500 if solver == "direct" else 25
        return min(limit, 1) if solver == "piecewise" else limit

    def check(self, potentials: Mapping[str, Potential]) -> None:
        """Refuse options and potentials that cannot be used."""
        self.check_choices({"solver": get_args(Solver), "hidden": ("drop", "soft")})
        if self.delta is not None and self.delta != "hamming" and not callable(self.delta):
            raise PotentiaError(f"delta must be 'hamming', None or a function of an example, not {shown(self.delta)}.")
        check_count("iterations", self.iterations, optional=True)
        check_count("sweeps", self.sweeps)
        check_number("tol", self.tol)
        if self.message_tol is not None:
            check_number("message_tol", self.message_tol)
        if not isinstance(self.track_error, bool | Sequence) or isinstance(self.track_error, str):
            raise PotentiaError(
                f"track_error must be True, False or a list of iterations, not {shown(self.track_error)}."
            )
        for kind in dense_kinds(potentials):
            raise PotentiaError(f"the DenseGaussian of {kind!r} needs pt.MarginalRisk(inference=pt.MeanField()).")
        if self.solver == "direct":
            others = [k for k, p in potentials.items() if not (p.differentiable or p.shared)]
            if others:
                raise PotentiaError(f"solver='direct' needs differentiable potentials; that of {others[0]!r} is not.")
            others = [k for k, p in potentials.items() if isinstance(p, Differentiable) and not p.full_precision]
            if others:
                raise PotentiaError(
                    f"solver='direct' makes line searches, for which the potential of {others[0]!r} is too imprecise: "
                    "give a module in float64, or another solver."
                )
        if self.hidden == "soft" and self.solver not in ("auto", "alternating"):
            raise PotentiaError(f"hidden='soft' needs solver='alternating' (or 'auto'), not {self.solver!r}.")


def _is_convex(potential: Potential) -> bool:
    """Whether the mixed solver moves it by L-BFGS."""
    return potential.convex and potential.differentiable


def _row(objective: float, losses: Mapping[str, float], potentials: Mapping[str, Potential]) -> dict[str, float]:
    """A row of the history; kinds without a potential of the model are not shown."""
    return {"objective": objective, **{f"loss_{k}": loss for k, loss in losses.items() if k in potentials}}


def _objective(
    joint: Joint,
    potentials: Mapping[str, Potential],
    moving: Mapping[str, Differentiable],
    parts: Any,
    scored: Sequence[str],
    passing: tuple[int, float],
) -> Callable[[Floats], tuple[float, Floats, Any]]:
    """The joint objective of the parameters of the moving kinds, its gradient, and the new states and losses.

    Messages always start from those of the last step: a line search that went too far must find its way back.
    """
    functions = {**potentials, **joint.zeros, **moving}
    still = [kind for kind in joint.kinds if kind not in moving]

    def objective(vector: Floats) -> tuple[float, Floats, Any]:
        """Value, gradient, and (states, losses) at a vector of parameters."""
        set_parameters(moving, vector)
        unscored = joint.unscored(functions, scored)
        states, losses = joint.parts.total(pass_messages, parts, unscored, *passing, still)
        value, slopes = 0.0, {}
        for kind in joint.kinds:
            epsilon, function = joint.epsilons[kind], functions[kind]
            if kind in moving:
                loss, slope = moving[kind].loss_and_gradient(joint.problem(states, kind))
                penalty, d_penalty = moving[kind].penalty_and_gradient()
                slopes[kind] = epsilon * (slope + d_penalty)
            else:
                loss, penalty = losses[kind], function.penalty()
            losses[kind] = loss
            value += epsilon * (loss + penalty)
        ordered = {kind: losses[kind] for kind in joint.kinds}
        return value, np.concatenate([np.zeros(0), *(slopes[kind] for kind in moving)]), (states, ordered)

    return objective

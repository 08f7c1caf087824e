"""Iterated logistic regression: alternate message passing with biased logistic regressions [ILR-chapter Alg. 1.1].

The joint objective over functions f and messages lam,

    sum_k -F(y^k) + A(lam^k, theta^k) + penalties,    theta = w (epsilon f + Delta),

is a sum over kinds of epsilon times a logistic loss biased by messages, so any class of functions that can lower
such a loss can be trained, and the objective never rises.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from ..base.options import check_count, check_number
from ..base.types import ArrayLike, Floats, PotentiaError, real_number, shown, warn_caller
from ..features.example import Example
from ..features.parts import Examples
from ..inference.base import Inference
from ..inference.messages import Schedule, Smoothed
from ..potentials.base import Potential
from ..potentials.mlp import Differentiable
from ..potentials.tables import Zero
from .base import Fit, Learner, SavedFit, steps_made
from .data import Dataset
from .descent import Direct
from .examples import whole_kinds
from .joint import Joint, JointPart
from .part import Preparation

#: `message_tol` between fits by default: the next fit moves marginals more.
_BETWEEN_FITS = 1e-3

#: L-BFGS steps per iteration of the mixed solver; together they have the sweeps that follow one fit.
_MIXED_STEPS = 5

Solver = Literal["auto", "alternating", "direct", "mixed"]
MODES = ("joint", "univariate_fixed", "piecewise")
SOLVERS = ("auto", "alternating", "direct", "mixed")


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
        mode: "joint"; "univariate_fixed" (single-variable kinds are fitted once with zero messages, then only the
            others); "piecewise" (every kind is fitted once with zero messages).
        solver: "direct": L-BFGS on the joint objective over all parameters at once, for differentiable potentials;
            "alternating": message passing and logistic regressions in turn, for any; "mixed": per iteration fits of the
            other kinds and then five steps of L-BFGS over those that are convex, which converge slowly under
            alternation; "auto": direct if all potentials are differentiable, mixed if some are convex, else
            alternating.
        delta: "hamming", None, or a function of an example that returns {kind: table (n_regions, *states)}.
        hidden: labels of -1: "drop" trains on the labelled variables and the regions between them; "soft" keeps them
            and takes marginals given the labels as targets, lowering A(theta) - A(theta | labels), in mode "joint".
        class_weight: weight of each state of every variable, or None; multiplies the variables' own weights.
        schedule: order of message passing.
        track_error: predict the training examples (and the validation examples, if given) after every iteration, or
            after those listed.
        threads: None for all cores (or POTENTIA_THREADS).
        rest: deprecated name of `message_tol`.
    """

    epsilon: float | Mapping[str, float] = 0.1
    iterations: int | None = None
    sweeps: int = 25
    message_tol: float | None = None
    tol: float = 1e-2
    mode: Literal["joint", "univariate_fixed", "piecewise"] = "joint"
    solver: Solver = "auto"
    delta: str | Callable[[Example], Mapping[str, ArrayLike]] | None = "hamming"
    hidden: Literal["drop", "soft"] = "drop"
    class_weight: Sequence[float] | None = None
    schedule: Schedule = "sequential"
    track_error: bool | Sequence[int] = True
    threads: int | None = None
    rest: InitVar[float | None] = None

    renamed_options: ClassVar[Mapping[str, str | None]] = {"rest": "message_tol"}

    def __post_init__(self, rest: float | None) -> None:
        if rest is not None:
            warn_caller("`rest` is now called `message_tol`.", DeprecationWarning)
            self.message_tol = rest

    def epsilons(self, kinds: Sequence[str]) -> dict[str, float]:
        """epsilon of each kind."""
        given = self.epsilon if isinstance(self.epsilon, Mapping) else dict.fromkeys(kinds, self.epsilon)
        if set(given) != set(kinds):
            raise PotentiaError(f"epsilon must name the kinds {list(kinds)}, not {list(given)}.")
        epsilons = {kind: real_number(given[kind], "epsilon") for kind in kinds}
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

    def begin(self, potentials: Mapping[str, Potential], examples: Examples) -> Fit:
        """Zero messages, and potentials as they are or zero."""
        soft = self.hidden == "soft"
        wanted = Preparation(labels=True, positive=soft, class_weight=self.class_weight, singles=True)
        data = Dataset.of(
            examples,
            list(potentials),
            JointPart,
            drop_hidden=not soft,
            whole=whole_kinds(potentials),
            preparation=wanted,
        )
        data.require(list(potentials))
        bare = sorted(set(data.shapes) - set(potentials))
        epsilons = self.epsilons(list(potentials))
        epsilons |= dict.fromkeys(bare, max(epsilons.values()))
        functions = {**potentials, **{kind: Zero() for kind in bare}}
        joint = Joint(functions, data, self.delta, epsilons, self)
        solver = self.solver_for(potentials)
        return (_DirectFit if solver == "direct" else _AlternatingFit)(self, joint, solver, potentials)

    def solver_for(self, potentials: Mapping[str, Potential]) -> str:
        """The solver that "auto" stands for with these potentials."""
        if self.solver != "auto":
            return self.solver
        if self.mode != "joint" or self.hidden != "drop":
            return "alternating"
        if all(
            (isinstance(p, Differentiable) and not p.own_optimiser) or p.shared for p in potentials.values()
        ):
            return "direct"
        return "mixed" if any(p.convex and p.differentiable for p in potentials.values()) else "alternating"

    def limit_for(self, solver: str) -> int:
        """The number of iterations that None stands for."""
        if self.iterations is not None:
            return self.iterations
        return 500 if solver == "direct" else 25

    def check(self, potentials: Mapping[str, Potential]) -> None:
        """Refuse options and potentials that cannot be used."""
        self.check_choices({"mode": MODES, "solver": SOLVERS, "hidden": ("drop", "soft")})
        if self.delta is not None and self.delta != "hamming" and not callable(self.delta):
            raise PotentiaError(
                f"delta must be 'hamming', None or a function of an example, not {shown(self.delta)}."
            )
        if self.iterations is not None:
            check_count("iterations", self.iterations)
        check_count("sweeps", self.sweeps)
        check_number("tol", self.tol)
        if self.message_tol is not None:
            check_number("message_tol", self.message_tol)
        if not isinstance(self.track_error, bool | Sequence) or isinstance(self.track_error, str):
            raise PotentiaError(
                f"track_error must be True, False or a list of iterations, not {shown(self.track_error)}."
            )
        if self.solver == "direct":
            others = [k for k, p in potentials.items() if not (p.differentiable or p.shared)]
            if others:
                raise PotentiaError(
                    f"solver='direct' needs differentiable potentials; that of {others[0]!r} is not."
                )
            others = [
                k for k, p in potentials.items() if isinstance(p, Differentiable) and not p.full_precision
            ]
            if others:
                raise PotentiaError(
                    f"solver='direct' makes line searches, for which the potential of {others[0]!r} is too imprecise: "
                    "give a module in float64, or another solver."
                )
        if self.solver in ("direct", "mixed") and (self.mode != "joint" or self.hidden != "drop"):
            raise PotentiaError(f"solver={self.solver!r} trains in mode 'joint' with hidden='drop' only.")
        if self.hidden == "soft" and self.mode != "joint":
            raise PotentiaError(
                f"hidden='soft' needs mode='joint', not {self.mode!r}, which never looks at its targets again."
            )


class _JointFit(Fit):
    """What fits of the joint objective share."""

    data: Dataset

    def __init__(self, learner: IteratedLogistic, joint: Joint, solver: str, shown: Collection[str]) -> None:
        self.learner, self.joint, self.shown = learner, joint, shown
        self.data, self.tol, self.limit = joint.data, learner.tol, learner.limit_for(solver)
        self.stepping: list[str] = []
        if solver == "mixed":
            steps = {kind for kind, p in joint.potentials.items() if p.convex and p.differentiable}
            self.stepping = [kind for kind in joint.kinds if kind in steps]

    def complaint(self, history: Sequence[Mapping[str, Any]]) -> str | None:
        """What to warn of when the fit was cut off at its limit."""
        return super().complaint(history) if self.learner.mode == "joint" else None

    def _row(self, objective: float) -> dict[str, Any]:
        losses = {f"loss_{kind}": loss for kind, loss in self.joint.losses.items() if kind in self.shown}
        return {"objective": objective, **losses}

    def part_arrays(self) -> Iterable[dict[str, Floats]]:
        """The messages of every part."""
        return self.data.part_states()

    def restore(self, saved: SavedFit) -> None:
        """Take back the messages."""
        self.joint.restore(saved.parts)


class _AlternatingFit(_JointFit):
    """Algorithm 1.1 with kinds updated one after another, messages after each."""

    def __init__(self, learner: IteratedLogistic, joint: Joint, solver: str, shown: Collection[str]) -> None:
        super().__init__(learner, joint, solver, shown)
        self.passing = learner.mode != "piecewise"
        if not self.passing:
            self.limit = min(self.limit, 1)

    def step(self, history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """A fit of every kind, with message passing after each."""
        joint, learner = self.joint, self.learner
        groups = self._groups(bool(history))
        for number, group in enumerate(groups):
            for kind in group:
                joint.fit(kind)
            if self.passing:
                tol = _BETWEEN_FITS if learner.message_tol is None else learner.message_tol
                last = not self.stepping and number == len(groups) - 1  # the objective is asked for next
                joint.pass_messages(2 * learner.sweeps, tol, joint.kinds if last else ())
        if self.stepping:
            passes = -(-2 * learner.sweeps // _MIXED_STEPS), learner.message_tol or 0.0
            direct = Direct(joint, self.stepping, passes)
            for _ in range(_MIXED_STEPS):
                if not direct.step():
                    break
            direct.close()
        return self._row(joint.objective())

    def _groups(self, begun: bool) -> list[list[str]]:
        """The kinds to fit in an iteration, those of a group with the same messages."""
        kinds = [kind for kind in self.joint.kinds if kind not in self.stepping]
        if self.learner.mode == "piecewise":
            return [kinds]
        if self.learner.mode == "joint":
            return [[kind] for kind in kinds]
        single = [kind for kind in kinds if len(self.joint.data.shapes[kind]) == 1]
        others = [[kind] for kind in kinds if kind not in single]
        return others if begun else [single, *others]


class _DirectFit(_JointFit):
    """L-BFGS over all parameters; an iteration is a step."""

    def __init__(self, learner: IteratedLogistic, joint: Joint, solver: str, shown: Collection[str]) -> None:
        super().__init__(learner, joint, solver, shown)
        self.direct = Direct(joint, joint.kinds, (2 * learner.sweeps, learner.message_tol or 0.0))

    def step(self, history: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
        """A step of L-BFGS."""
        if not self.direct.moving:  # nothing to move: the objective is what it is
            self.joint.pass_messages(*self.direct.passing)
            return None if history else self._row(self.joint.objective())
        return self._row(self.direct.value) if self.direct.step() else None

    def standing(self) -> dict[str, Any]:
        """The objective at the start."""
        return self._row(self.direct.value)

    def failure(self, history: Sequence[Mapping[str, Any]]) -> str | None:
        """Parameters that ran away, or a search that found no step."""
        return self.direct.descent.failure(steps_made(history), self.tol)

    def arrays(self) -> dict[str, Floats]:
        """The optimiser's state."""
        return self.direct.state()

    def restore(self, saved: SavedFit) -> None:
        """Take back messages and the optimiser's state."""
        super().restore(saved)
        self.direct.restore(saved.arrays)

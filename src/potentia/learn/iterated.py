"""Iterated logistic regression: alternate message passing with biased logistic regressions [ILR-chapter Alg. 1.1].

The joint objective over functions f and messages lam,

    sum_k -F(y^k) + A(lam^k, theta^k) + penalties,    theta = w (epsilon f + Delta),

is a sum over kinds of epsilon times a logistic loss biased by messages, so any class of functions that can lower
such a loss can be trained, and the objective never rises.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._options import check_count, check_number
from .._registry import Registered
from .._types import ArrayLike, Floats, PotentiaError, real_number
from ..data.example import Example
from ..inference.base import Inference
from ..inference.message_passing import Schedule, Smoothed
from ..potentials.base import Potential
from ..potentials.differentiable import Differentiable, is_convex
from ..potentials.zero import Zero
from .descent import warn_unsettled
from .direct import minimise_directly
from .joint import Joint
from .reprs import call_repr
from .singles import with_singles
from .training_set import gather, list_examples

#: What `rest` is between fits by default: the next fit moves marginals more.
_STILL = 1e-3

#: L-BFGS steps per iteration of the mixed solver; together they have the sweeps that follow one fit.
_STEPS = 5

MODES = ("joint", "univariate_fixed", "piecewise")
SOLVERS = ("alternating", "direct", "mixed")
#: Called after every iteration with the history so far; returning True stops the fit.
Callback = Callable[[list[dict[str, Any]]], bool | None]


@dataclass
class IteratedLogistic(Registered):
    """Trains potentials of any sort jointly on the entropy-smoothed margin loss.

    Attributes:
        epsilon: smoothing, one number or {kind: number}.
        iterations: learning iterations; one fits every kind once, with message passing after each fit.
        sweeps: message-passing sweeps after each fit, each twice over all variables (there and back, if sequential).
        rest: an example's messages rest before that once none of its marginals moves by more than this in half a
            sweep. None for 1e-3, and for 0 in the direct solver, whose line searches want messages that have settled;
            1e-2 is much faster with many states, where they settle soon.
        tol: stop when the objective falls by less than this share in an iteration, or in ten steps of the direct
            solver (0: run all iterations).
        mode: "joint"; "univariate_fixed" (single-variable kinds are fitted once with zero messages, then only the
            others); "piecewise" (every kind is fitted once with zero messages).
        solver: "alternating"; "direct": L-BFGS on the same objective over all parameters at once, for
            differentiable potentials; "mixed": per iteration fits of the other kinds and then five steps of L-BFGS
            over those that are linear in their parameters, which alternating alone moves slowly.
        delta: "hamming", None, or a function of an example that returns {kind: table (n_regions, *states)}.
        hidden: labels of -1: "drop" trains on the labelled variables and the regions between them; "soft" keeps them
            and takes marginals given the labels as targets, lowering A(theta) - A(theta | labels), in mode "joint".
        class_weight: weight of each state of every variable, or None; multiplies the variables' own weights.
        schedule: order of message passing.
        track_error: predict the training examples (and the validation examples, if given) after every iteration, or
            after those listed.
        threads: None for all cores (or POTENTIA_THREADS).
    """

    epsilon: float | Mapping[str, float] = 0.1
    iterations: int = 25
    sweeps: int = 25
    rest: float | None = None
    tol: float = 0.0
    mode: str = "joint"
    solver: str = "alternating"
    delta: str | Callable[[Example], Mapping[str, ArrayLike]] | None = "hamming"
    hidden: str = "drop"
    class_weight: Sequence[float] | None = None
    schedule: Schedule = "sequential"
    track_error: bool | Sequence[int] = True
    threads: int | None = None

    __repr__ = call_repr

    def scales(self, kinds: Sequence[str]) -> dict[str, float]:
        """theta = scale * f at prediction: epsilon of each kind."""
        given = self.epsilon if isinstance(self.epsilon, Mapping) else dict.fromkeys(kinds, self.epsilon)
        if set(given) != set(kinds):
            raise PotentiaError(f"epsilon must name the kinds {list(kinds)}, not {list(given)}")
        scales = {kind: real_number(given[kind], "epsilon") for kind in kinds}
        if not all(np.isfinite(e) and e > 0 for e in scales.values()):
            raise PotentiaError(f"epsilon must be positive and finite, not {self.epsilon}")
        return scales

    def predictor(self, kinds: Sequence[str]) -> Inference:
        """The inference that predictions of the trained model use."""
        return Smoothed(self.scales(kinds), iterations=4 * self.sweeps, tol=1e-4, schedule=self.schedule)

    def fit(
        self,
        potentials: Mapping[str, Potential],
        examples: Sequence[Example],
        *,
        evaluate: Callable[[], dict[str, float]] | None = None,
        callback: Callback | None = None,
        checkpoint: Any = None,
    ) -> list[dict[str, Any]]:
        """Train the potentials in place; returns the history, one dict per iteration.

        evaluate: errors to add to each iteration. checkpoint: has `load() -> state or None` and `save(state)`.
        """
        self._check(potentials)
        joint = self._joint(potentials, examples)
        history = joint.resume(checkpoint)
        record = _Record(self, joint, history, potentials, evaluate, callback, checkpoint)
        if self.solver == "direct":
            passing, past = (2 * self.sweeps, self.rest or 0.0), [row["objective"] for row in history]
            settled = minimise_directly(joint, joint.kinds, passing, self.iterations, self.tol, record, past)
        else:
            self._alternate(joint, history, record)
            settled = _settled(history, self.tol)
        judged = self.mode == "joint" and not record.stopped
        warn_unsettled(settled, self.tol if judged else 0.0, len(history))
        return history

    def _joint(self, potentials: Mapping[str, Potential], examples: Sequence[Example]) -> Joint:
        weighted = class_weighted(examples, self.class_weight)
        if self.hidden == "soft" and any(e.weights is not None and not np.all(e.weights) for e in weighted):
            raise PotentiaError("hidden='soft' keeps every variable, so weights must be positive; one is 0")
        completed, bare = with_singles(weighted)
        scales = self.scales(list(potentials))
        scales |= dict.fromkeys(bare, max(scales.values()))
        functions = {**potentials, **{kind: Zero() for kind in bare}}
        data = gather(completed, list(functions), drop_hidden=self.hidden == "drop")
        return Joint(functions, data, self.delta, scales, self)

    def _alternate(self, joint: Joint, history: list[Any], record: Callable[[float], bool]) -> None:
        """Algorithm 1.1 with kinds updated one after another, messages after each."""
        passing = self.mode != "piecewise"
        rounds = self.iterations if passing else min(self.iterations, 1)
        stepping = [k for k in joint.kinds if self.solver == "mixed" and is_convex(joint.potentials[k])]
        while len(history) < rounds and not (self.tol > 0 and _settled(history, self.tol)):
            groups = self._groups(joint, stepping, bool(history))
            for number, group in enumerate(groups):
                for kind in group:
                    joint.fit(kind)
                if passing:
                    rest = _STILL if self.rest is None else self.rest
                    last = not stepping and number == len(groups) - 1  # the objective is asked for next
                    joint.pass_messages(2 * self.sweeps, rest, joint.kinds if last else ())
            if stepping:
                passes = -(-2 * self.sweeps // _STEPS), self.rest or 0.0
                minimise_directly(joint, stepping, passes, _STEPS, 0.0, lambda objective: False)
            if record(joint.objective()):
                break

    def _groups(self, joint: Joint, stepping: Sequence[str], begun: bool) -> list[list[str]]:
        """The kinds to fit in an iteration, those of a group with the same messages."""
        kinds = [kind for kind in joint.kinds if kind not in stepping]
        if self.mode == "piecewise":
            return [kinds]
        if self.mode == "joint":
            return [[kind] for kind in kinds]
        single = [kind for kind in kinds if len(joint.data.shapes[kind]) == 1]
        others = [[kind] for kind in kinds if kind not in single]
        return others if begun else [single, *others]

    def _check(self, potentials: Mapping[str, Potential]) -> None:
        choices = {"mode": MODES, "solver": SOLVERS, "hidden": ("drop", "soft")}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise PotentiaError(
                    f"{name} must be one of {', '.join(allowed)}, not {getattr(self, name)!r}"
                )
        if self.delta is not None and self.delta != "hamming" and not callable(self.delta):
            raise PotentiaError(
                f"delta must be 'hamming', None or a function of an example, not {self.delta!r}"
            )
        for name in ("iterations", "sweeps"):
            check_count(name, getattr(self, name))
        check_number("tol", self.tol)
        if self.rest is not None:
            check_number("rest", self.rest)
        if not isinstance(self.track_error, bool | Sequence):
            raise PotentiaError(
                f"track_error must be True, False or a list of iterations, not {self.track_error!r}"
            )
        if self.solver == "direct":
            stiff = [kind for kind, p in potentials.items() if not isinstance(p, Differentiable | Zero)]
            if stiff:
                raise PotentiaError(
                    f"solver='direct' needs differentiable potentials; that of {stiff[0]!r} is not"
                )
        if self.solver != "alternating" and (self.mode != "joint" or self.hidden != "drop"):
            raise PotentiaError(f"solver={self.solver!r} trains in mode 'joint' with hidden='drop' only")
        if self.hidden == "soft" and self.mode != "joint":
            raise PotentiaError(
                f"hidden='soft' needs mode='joint', not {self.mode!r}, which never looks at its targets again"
            )


class _Record:
    """Adds an iteration to the history and the checkpoint; returns whether the callback wants to stop."""

    def __init__(
        self,
        learner: IteratedLogistic,
        joint: Joint,
        history: list[dict[str, Any]],
        shown: Collection[str],
        evaluate: Callable[[], dict[str, float]] | None,
        callback: Callback | None,
        checkpoint: Any,
    ) -> None:
        self.tracked, self.joint, self.history, self.shown = learner.track_error, joint, history, shown
        self.evaluate, self.callback, self.checkpoint = evaluate, callback, checkpoint
        self.begun = time.perf_counter() - (history[-1]["seconds"] if history else 0.0)
        self.stopped = False

    def __call__(self, objective: float) -> bool:
        row: dict[str, Any] = {"iteration": len(self.history) + 1, "objective": objective}
        row |= {f"loss_{kind}": loss for kind, loss in self.joint.losses.items() if kind in self.shown}
        row["seconds"] = time.perf_counter() - self.begun
        due = self.tracked if isinstance(self.tracked, bool) else row["iteration"] in self.tracked
        if due and self.evaluate is not None:
            row |= self.evaluate()
        self.history.append(row)
        self.stopped = bool(self.callback(self.history)) if self.callback is not None else False
        if self.checkpoint is not None:
            self.checkpoint.save(self.joint.state(self.history))
        return self.stopped


def _settled(history: Sequence[Mapping[str, Any]], tol: float) -> bool:
    if len(history) < 2:
        return False
    before, after = history[-2]["objective"], history[-1]["objective"]
    return bool(before - after <= tol * abs(before))


def class_weighted(examples: Sequence[Example], class_weight: Sequence[float] | None) -> Sequence[Example]:
    """The examples with every variable's weight multiplied by that of its label."""
    if class_weight is None:
        return examples
    states = max(int(e.graph.n_states.max()) for e in list_examples(examples))
    try:
        table: Floats = np.asarray(class_weight, dtype=float)
    except (TypeError, ValueError):
        table = np.zeros(0)
    if table.shape != (states,) or not np.all(np.isfinite(table) & (table >= 0)):
        raise PotentiaError(
            f"class_weight must hold {states} finite numbers >= 0, one per state, not {class_weight!r}"
        )
    weighted = []
    for e in examples:
        own = np.ones(e.graph.n_variables) if e.weights is None else e.weights
        factor = 1.0 if e.labels is None else np.where(e.labels >= 0, table[np.maximum(e.labels, 0)], 1.0)
        weighted.append(Example(e.graph, e.features, e.labels, own * factor, e.name))
    return weighted

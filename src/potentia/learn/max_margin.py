"""The structural SVM: potentials linear in their parameters, trained so that the truth wins by a margin."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .._options import check_count, check_number
from .._registry import Registered
from .._types import ArrayLike, ConvergenceWarning, Ints, PotentiaError, real_number
from ..data.example import Example
from ..inference.base import Inference
from ..inference.exact import Exact
from ..potentials.affine import require_affine
from ..potentials.base import Potential
from .iterated import Callback
from .margin_oracle import make_oracle
from .margin_problem import MarginProblem, make_delta
from .margin_solvers import SOLVERS, MarginSolver
from .reprs import call_repr
from .training_set import gather


@dataclass
class MaxMargin(Registered):
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
    solver: str = "frank_wolfe"
    inference: Inference | None = None
    batch: int | None = None
    delta: str | Callable[[Example], Mapping[str, ArrayLike]] = "hamming"
    track_error: bool = False
    seed: int = 0

    #: What predictions take of inference's result where a CRF is not told.
    decode: ClassVar[str] = "map"

    __repr__ = call_repr

    def scales(self, kinds: Sequence[str]) -> dict[str, float]:
        """theta = f at prediction."""
        return dict.fromkeys(kinds, 1.0)

    def predictor(self, kinds: Sequence[str]) -> Inference:
        """The inference that predictions of the trained model use."""
        return self.inference or Exact()

    def fit(
        self,
        potentials: Mapping[str, Potential],
        examples: Sequence[Example],
        *,
        evaluate: Callable[[], dict[str, float]] | None = None,
        callback: Callback | None = None,
        checkpoint: Any = None,
    ) -> list[dict[str, Any]]:
        """Train the potentials in place; returns the history: per iteration objective, dual, gap (their difference).

        evaluate: errors to add to each iteration. checkpoint: has `load() -> state or None` and `save(state)`.
        """
        self._check(potentials)
        data = gather(examples, list(potentials), drop_hidden=True)
        problem = MarginProblem(potentials, data, make_delta(data, self.delta), self.ridge)
        solver = SOLVERS[self.solver](problem, make_oracle(problem, self.predictor([]), self.batch), self)
        history = _resume(solver, checkpoint)
        begun = time.perf_counter() - (history[-1]["seconds"] if history else 0.0)
        while len(history) < self.iterations and not self._settled(history):
            row = {"iteration": len(history) + 1, **solver.advance(len(history))}
            row["seconds"] = time.perf_counter() - begun
            problem.write(solver.parameters)
            if self.track_error and evaluate is not None:
                row |= evaluate()
            history.append(row)
            if checkpoint is not None:
                checkpoint.save(_state(solver, history))
            if callback is not None and callback(history):
                return history
        self._warn(history)
        return history

    def _settled(self, history: Sequence[Mapping[str, Any]]) -> bool:
        return (
            bool(history) and self.tol > 0 and history[-1]["gap"] <= self.tol * abs(history[-1]["objective"])
        )

    def _warn(self, history: Sequence[Mapping[str, Any]]) -> None:
        if self.tol > 0 and history and not self._settled(history):
            share = history[-1]["gap"] / abs(history[-1]["objective"])
            warnings.warn(
                f"the gap was still {share:.2g} of the objective after {len(history)} iterations",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _check(self, potentials: Mapping[str, Potential]) -> None:
        for kind, potential in potentials.items():
            require_affine(kind, potential)
        if self.solver not in SOLVERS:
            raise PotentiaError(f"solver must be one of {', '.join(SOLVERS)}, not {self.solver!r}")
        if not 0 < real_number(self.ridge, "ridge") < np.inf:
            raise PotentiaError(f"ridge must be positive and finite, not {self.ridge}")
        check_count("iterations", self.iterations)
        check_number("tol", self.tol)
        if self.batch is not None:
            check_count("batch", self.batch, 1)
        if self.inference is not None and not isinstance(self.inference, Inference):
            name = type(self.inference).__name__
            raise PotentiaError(f"inference must be an inference method, not a {name}")
        if self.delta != "hamming" and not callable(self.delta):
            raise PotentiaError(f"delta must be 'hamming' or a function of an example, not {self.delta!r}")


def _state(solver: MarginSolver, history: list[dict[str, Any]]) -> dict[str, Any]:
    """Everything a resumed fit needs."""
    potentials = {kind: p.state() for kind, p in solver.problem.potentials.items()}
    arrays = solver.arrays() | {"size": _size(solver)}
    return {"history": history, "potentials": potentials, "arrays": arrays}


def _size(solver: MarginSolver) -> Ints:
    """Numbers of examples and scores, by which a checkpoint is known to fit."""
    return np.array([solver.problem.n_examples, len(solver.problem.design.truth)])


def _resume(solver: MarginSolver, checkpoint: Any) -> list[dict[str, Any]]:
    """Take up a checkpoint's state; the history so far."""
    saved = None if checkpoint is None else checkpoint.load()
    if saved is None:
        return []
    arrays = dict(saved["arrays"])
    if not np.array_equal(arrays.pop("size", None), _size(solver)):
        raise PotentiaError("the checkpoint belongs to other examples or another learner")
    solver.restore(arrays)
    solver.problem.write(solver.parameters)
    return list(saved["history"])

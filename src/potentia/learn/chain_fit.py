"""`ChainFit`: minimises the negative log-likelihood of chains by L-BFGS, OWL-QN, RPROP or stochastic gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..base.backend import Backend
from ..base.optimise import Search, lbfgs, least_subgradient, owlqn
from ..base.types import Bools, Floats, Ints
from .base import WINDOW, Learner, State, Stop, failure_of, steps_made
from .chain import AttributeLabels, ChainLayout, ChainWeights, batch_gradient, batches_of, lay_out, log_partition

#: Share of the curvature at zero weights that is left, on the whole, near the minimum.
_CURVATURE_SHARE = 0.1
#: RPROP [Riedmiller and Braun 1993]: first, least and largest step, and the factors of a step.
_FIRST_STEP, _LEAST_STEP, _LARGEST_STEP, _SHORTER, _LONGER = 0.1, 1e-8, 1e4, 0.5, 1.2
#: Length of the first stochastic step of each weight [AdaGrad, Duchi et al. 2011].
_RATE = 0.3


class Solver(NamedTuple):
    """How `ChainFit` minimises.

    Attributes:
        algorithm: "lbfgs" (OWL-QN with L1), "rprop", or "l2sgd": AdaGrad over batches of sequences in random order,
            with the mean of the weights of the best pass.
        memory: vector pairs that L-BFGS remembers. trials: evaluations of a line search.
        epsilon: stop when the norm of the gradient is below this share of that of the weights, or of 1.
        window: iterations over which the fall of the objective is compared with `delta`.
        error_window, error_change: stop when the error of the last iterations differs by less; 0 for never.
        seed: of the order of batches.
    """

    algorithm: str = "lbfgs"
    memory: int = 6
    trials: int = 20
    epsilon: float = 0.0
    window: int = WINDOW
    error_window: int = 0
    error_change: float = 0.0
    seed: int = 0


class ChainFit(Learner):
    """Minimises c1 |w|_1 + c2 |w|^2 - log-likelihood; an iteration is a step of the optimiser.

    Args:
        parts, states: of the data, numbered alike.
        features, pair_features: which attributes have weights for which labels, and for which pairs of labels.
        transitions: which neighbouring labels have a weight, (L, L).
        n_dense: columns of dense features.
        c1, c2, delta, max_iterations, threads: see `ChainCRF`.
        frozen: features whose weights keep their first values, of labels and then of pairs of labels.
        solver: how to minimise. layout: of the weights, where it is not that of a chain.
    """

    limit_name: ClassVar[str] = "max_iterations"

    def __init__(
        self,
        parts: Backend,
        states: Any,
        features: AttributeLabels,
        pair_features: AttributeLabels,
        transitions: Bools,
        n_dense: int,
        *,
        c1: float,
        c2: float,
        delta: float,
        max_iterations: int,
        threads: int | None,
        frozen: Bools | None = None,
        solver: Solver | None = None,
        layout: ChainLayout | None = None,
    ) -> None:
        self.limit, self.tol, self.c2, self.threads = max_iterations, float(delta), float(c2), threads
        self.solver = Solver() if solver is None else solver
        self.window = self.solver.window
        self.parts = parts
        self.layout = layout or ChainLayout.of(features, pair_features, len(transitions), n_dense)
        free: Bools = self.layout.join(frozen is None or ~frozen, transitions, True, np.bool_)
        #: Entries of the vector that are no weights, which stay zero, or frozen.
        self.padding: Ints = np.flatnonzero(~free)
        self.states, (observed, curvature) = parts.total(lay_out, states, self.layout)
        self.observed: Floats = observed
        # in place: vectors may be what most of the memory is for
        observed[self.padding] = curvature[self.padding] = 0.0
        p = 1.0 / self.layout.n_labels
        curvature *= p * (1.0 - p)
        curvature *= _CURVATURE_SHARE
        curvature += 2.0 * self.c2
        curvature[curvature <= 0.0] = 1.0
        #: Weights are divided by the root of their curvature, which makes steps of L-BFGS count from the first on.
        self.scale: Floats = np.divide(1.0, np.sqrt(curvature, out=curvature), out=curvature)
        self.l1 = np.where(free, c1 * self.scale, 0.0) if c1 > 0 else None
        self.start = np.zeros(self.layout.size)

    def objective(self, point: Floats) -> tuple[float, Floats]:
        """c2 |w|^2 - log-likelihood as a function of the scaled weights w / scale, and its gradient."""
        vector = point * self.scale
        _, (log_z, d_log_z) = self.parts.total(log_partition, self.states, vector, self.threads)
        value = self.c2 * float(vector @ vector) - float(self.observed @ vector) + log_z
        vector *= 2.0 * self.c2
        vector -= self.observed
        vector += d_log_z
        vector[self.padding] = 0.0
        vector *= self.scale
        return value, vector

    def start_from(self, weights: ChainWeights) -> None:
        """Begin at these weights, whose features are this fit's."""
        self.start = self.layout.join(weights.state, weights.pairs, weights.dense) / self.scale

    def init(self, data: Any = None, potentials: Any = None) -> State:
        """Where the fit begins."""
        if self.solver.algorithm == "lbfgs":
            return State({}, self.limit, Search(self.start).arrays())
        arrays = {"point": self.start, "best": self.start, "least": np.array([np.inf])}
        if self.solver.algorithm == "l2sgd":
            return State({}, self.limit, arrays | {"squares": np.zeros(self.layout.size)})
        steps = np.full(self.layout.size, _FIRST_STEP)
        return State({}, self.limit, arrays | {"slope": np.zeros(self.layout.size), "steps": steps})

    def step(self, data: Any, state: State) -> State:
        """A step of the optimiser, or a pass over the data."""
        if self.solver.algorithm == "rprop":
            return self._rprop(state)
        if self.solver.algorithm == "l2sgd":
            return self._stochastic(state)
        search, memory, trials = Search.of(state.arrays), self.solver.memory, self.solver.trials
        if self.l1 is None:
            search = lbfgs(search, self.objective, memory, trials)
        else:
            search = owlqn(search, self.objective, self.l1, memory, trials)
        row, arrays = {"objective": search.value}, search.arrays()
        if not search.stopped:
            flat = self.solver.epsilon > 0 and self.slope_norm(arrays) < self.solver.epsilon * max(
                1.0, float(np.linalg.norm(search.point * self.scale))
            )
            return state.after(row, arrays=arrays, ended=flat)
        failure = failure_of(search, steps_made(state.history), self.tol)
        return state.at_end(row, arrays=arrays, failure=failure)

    def slope_norm(self, arrays: Mapping[str, Floats]) -> float:
        """The norm of the gradient by the weights, with L1 of the least subgradient."""
        slope = arrays["gradient"]
        if self.l1 is not None:
            slope = least_subgradient(arrays["point"], slope, self.l1)
        return float(np.linalg.norm(slope / self.scale))

    def _penalised(self, point: Floats) -> tuple[float, Floats]:
        value, gradient = self.objective(point)
        if self.l1 is None:
            return value, gradient
        return value + float(self.l1 @ np.abs(point)), least_subgradient(point, gradient, self.l1)

    def _rprop(self, state: State) -> State:
        """A step of RPROP; with L1 it stays in the orthant that the point and the slope point to."""
        found = state.arrays
        point = found["point"]
        value, slope = self._penalised(point)
        agree = found["slope"] * slope
        steps = found["steps"] * np.where(agree > 0.0, _LONGER, np.where(agree < 0.0, _SHORTER, 1.0))
        steps = np.clip(steps, _LEAST_STEP, _LARGEST_STEP)
        slope = np.where(agree < 0.0, 0.0, slope)
        after = point - np.sign(slope) * steps
        if self.l1 is not None:
            after = np.where((self.l1 > 0.0) & (after * point < 0.0), 0.0, after)
        arrays = {"point": after, "slope": slope, "steps": steps, **_best(found, point, value)}
        return state.after({"objective": value}, arrays=arrays)

    def _stochastic(self, state: State) -> State:
        """A pass over the data in batches, in a random order that depends on the iteration only."""
        found, number = state.arrays, steps_made(state.history)
        vector, squares = found["point"] * self.scale, found["squares"].copy()
        random = np.random.default_rng([self.solver.seed, number])
        batches = [(k, ends) for k in range(self.parts.n_parts) for ends in self.parts.at(k, batches_of, self.states)]
        total = sum(count for _, (_, _, count) in batches)
        l1, mean = None if self.l1 is None else self.l1 / self.scale, np.zeros(self.layout.size)
        for k in random.permutation(len(batches)).tolist():
            part, (first, last, count) = batches[k]
            gradient = self.parts.at(part, batch_gradient, self.states, vector, first, last)
            share = count / total
            gradient += 2.0 * self.c2 * share * vector
            gradient[self.padding] = 0.0
            squares += gradient * gradient
            rate = _RATE / np.sqrt(np.maximum(squares, 1e-12))
            vector -= rate * gradient
            if l1 is not None:
                vector = np.sign(vector) * np.maximum(np.abs(vector) - rate * l1 * share, 0.0)
            mean += vector / len(batches)
        mean /= self.scale
        arrays = {"point": vector / self.scale, "squares": squares, **_best(found, mean, self._penalised(mean)[0])}
        return state.after({"objective": float(arrays["least"][0])}, arrays=arrays)

    def done(self, state: State) -> Stop | None:
        """As any learner; also when the error of the last iterations hardly changed."""
        n, errors = (
            self.solver.error_window,
            [row["validation_error"] for row in state.history if "validation_error" in row],
        )
        if n > 0 and len(errors) >= n and max(errors[-n:]) - min(errors[-n:]) < self.solver.error_change:
            return Stop(True)
        return super().done(state)

    def resume(self, data: Any, state: State, saved: State) -> State:
        """The optimiser's state."""
        return replace(state, arrays=Search.check(saved.arrays, self.layout.size), history=saved.history)

    def vector(self, state: State) -> Floats:
        """The vector of all weights of a state, the best one met if the objective may rise."""
        best: Floats = state.arrays.get("best", state.arrays["point"])
        return best * self.scale

    def weights(self, state: State) -> ChainWeights:
        """The weights of a state."""
        return self.named(self.vector(state))

    def named(self, vector: Floats) -> ChainWeights:
        """A vector of all weights, taken apart."""
        layout, (state, pairs, dense) = self.layout, self.layout.split(vector)
        return ChainWeights(layout.features, layout.pair_features, state[layout.place], pairs.copy(), dense.copy())


def _best(found: Mapping[str, Floats], point: Floats, value: float) -> dict[str, Floats]:
    """The best point met so far, and its value."""
    if value < float(found["least"][0]):
        return {"best": point, "least": np.array([value])}
    return {"best": found["best"], "least": found["least"]}

"""Two solvers of the structural SVM: block-coordinate Frank-Wolfe and one-slack cutting planes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..base.schema import Array, Rule, Schema, check_state, like
from ..base.types import Floats
from ..kernels.frank_wolfe import (
    MarginDual,
    WorkingSet,
    assemble,
    entries_of,
    margins,
    maximise_on_simplex,
    revisit,
)
from .margin_problem import MarginProblem, Oracle

#: Labellings remembered per example.
_SLOTS = 24
#: Fewer examples than this are revisited as often as would make up for it.
_FEW = 500
#: Share of the objective to which the planes' program is solved, below any sensible gap; what is below is rounding.
_PRECISE = 1e-7
#: How far shares that sum to one may be from it.
_ROUNDING = 1e-6


class MarginSolver(ABC):
    """Lowers the gap one iteration at a time; `parameters` are where it stands."""

    parameters: Floats

    def __init__(self, eta: Floats, options: Any) -> None:
        self.eta, self.options = eta, options
        self.parameters = np.zeros(len(eta))

    @abstractmethod
    def advance(self, iteration: int) -> dict[str, float]:
        """One iteration; objective, dual and gap after it."""

    @abstractmethod
    def arrays(self) -> dict[str, Floats]:
        """The state as named arrays, for a checkpoint."""

    @abstractmethod
    def restore(self, arrays: Mapping[str, Floats]) -> None:
        """Take back what `arrays` gave."""

    def square(self, w: Floats) -> float:
        """sum_j eta_j w_j^2 / 2."""
        return 0.5 * float(self.eta @ (w * w))


def answers(problem: MarginProblem, oracle: Oracle, w: Floats) -> tuple[Floats, Floats, Floats]:
    """The oracle's answers at w, their Delta and the losses of all examples.

    Where an approximate oracle misses that an example's own labels are better than what it found, they are the answer.
    """
    design, (s, delta) = problem.design, oracle.answers(w)
    found = np.empty(problem.n_examples)
    margins(design, w, s, delta, found)
    for k in np.flatnonzero(found < problem.true_loss):
        first, last = design.row_ptr[k], design.row_ptr[k + 1]
        own = slice(design.at[first], design.at[first] + entries_of(design, first, last))
        s[own], delta[k], found[k] = design.truth[own], problem.true_loss[k], problem.true_loss[k]
    return s, delta, found


class FrankWolfe(MarginSolver):
    """Block-coordinate Frank-Wolfe with exact line search [Lacoste-Julien, Jaggi, Schmidt, Pletscher 2013].

    Steps are pairwise, within a working set of labellings per example; a pass with the oracle is followed by passes
    without. Fractional answers of a relaxation, which no set can hold, make plain steps.

    `parameters` are those of the lowest objective after a pass, since the last ones may be far worse. An objective
    below a later dual was underestimated by an approximate oracle and does not count.
    """

    def __init__(self, problem: MarginProblem, oracle: Oracle, options: Any) -> None:
        super().__init__(problem.eta, options)
        self.problem, self.oracle = problem, oracle
        size = len(problem.eta)
        self.dual = MarginDual(
            np.zeros(size), problem.design.truth.copy(), problem.true_loss.copy(), np.zeros(size)
        )
        self.working = _start(problem, _SLOTS)
        self.best = np.array([np.inf])
        # few examples are cheap to visit
        self.revisits = oracle.revisits * max(1, _FEW // problem.n_examples)

    def advance(self, iteration: int) -> dict[str, float]:
        rng = np.random.default_rng([self.options.seed, iteration])
        design, dual = self.problem.design, self.dual
        self.oracle.descend(dual, self.working, rng)
        for _ in range(self.revisits):
            revisit(design, dual, self.working, rng.permutation(self.problem.n_examples))
        # what rounding has added up in a pass goes
        assemble(design, dual.m, dual.w)
        objective = self.square(dual.w) + float(answers(self.problem, self.oracle, dual.w)[2].mean())
        value = float(dual.loss.mean()) - self.square(dual.w)
        if objective < self.best[0] or self.best[0] < value - _PRECISE * abs(value):
            self.best[0], self.parameters = objective, dual.w.copy()
        lowest = float(self.best[0])
        return {"objective": lowest, "dual": value, "gap": lowest - value}

    def arrays(self) -> dict[str, Any]:
        own = {"m": self.dual.m, "loss": self.dual.loss, "best": self.best, "parameters": self.parameters}
        return own | {f"set_{name}": getattr(self.working, name) for name in ("entry", "weight", "loss")}

    def restore(self, arrays: Mapping[str, Any]) -> None:
        own = self.arrays()
        schema: Schema = {
            **like(own),
            "best": Array("f8", (1,), finite=False),
            "set_entry": Array("i8", own["set_entry"].shape, low=-1, below=len(self.dual.m)),
            "set_weight": Array("f8", own["set_weight"].shape, low=0.0),
            "labellings": Rule(self._are_labellings, "are not those of the examples"),
        }
        for name, value in check_state(schema, arrays).items():
            own[name][:] = value
        assemble(self.problem.design, self.dual.m, self.dual.w)

    def _are_labellings(self, found: Mapping[str, Any]) -> bool:
        """Whether every slot holds an entry of each of its regions, or -1 throughout and no weight.

        The first slot of an example is never empty.
        """
        entry, weight, ptr = found["set_entry"], found["set_weight"], self.problem.region_ptr
        sizes = np.repeat(np.diff(ptr), _SLOTS)
        slot = np.repeat(np.arange(len(sizes)), sizes)
        region = np.arange(len(entry)) - (np.cumsum(sizes) - sizes)[slot] + ptr[slot // _SLOTS]
        first, width = self.problem.region_entries()
        empty = entry < 0
        inside = (entry >= first[region]) & (entry < (first + width)[region])
        n_empty = np.bincount(slot, empty, minlength=len(sizes))
        gaps = (n_empty > 0).reshape(weight.shape)
        whole = (n_empty == 0) | (n_empty == sizes)
        return bool(
            (inside | empty).all() and whole.all() and not gaps[:, 0].any() and not weight[gaps].any()
        )


def _start(problem: MarginProblem, slots: int) -> WorkingSet:
    """Sets that hold the truth with all weight."""
    n, ptr = problem.n_examples, problem.region_ptr
    entry = np.full(slots * ptr[-1], -1)
    place = np.arange(ptr[-1]) + np.repeat((slots - 1) * ptr[:-1], np.diff(ptr))
    entry[place] = problem.truth_entries()
    weight, loss = np.zeros((n, slots)), np.zeros((n, slots))
    weight[:, 0], loss[:, 0] = 1.0, problem.true_loss
    return WorkingSet(ptr, entry, weight, loss)


class Plane(NamedTuple):
    """A plane that touches the mean loss: its slope, the mean loss itself and the mean Delta there."""

    slope: Floats
    loss: float
    delta: float


class OneSlack(MarginSolver):
    """Cutting planes with one slack [Joachims, Finley, Yu 2009, Alg. 3]: mean loss >= b_t - <u_t, w>_eta.

    All that it asks of the examples is the plane at a point, which is a sum over them.
    `parameters` are those of the lowest objective so far. A plane without weight for 50 iterations is dropped.
    """

    _PATIENCE = 50

    def __init__(self, eta: Floats, true_loss: float, plane: Callable[[Floats], Plane], options: Any) -> None:
        super().__init__(eta, options)
        self.plane = plane
        # the first plane is the truth itself, which says that the mean loss is not below 0
        self.planes = np.zeros((1, len(eta)))
        self.offset = np.array([true_loss])
        self.weight, self.idle = np.ones(1), np.zeros(1)
        self.best = np.array([np.inf])

    def advance(self, iteration: int) -> dict[str, float]:
        w = self.weight @ self.planes
        self._add(w, self.plane(w))
        gram = (self.planes * self.eta) @ self.planes.T
        tol = _PRECISE * max(float(self.best[0]), 1e-300)
        maximise_on_simplex(self.offset, gram, self.weight, tol, 100_000)
        dual = float(self.offset @ self.weight - 0.5 * self.weight @ gram @ self.weight)
        self._drop()
        objective = float(self.best[0])
        return {"objective": objective, "dual": dual, "gap": objective - dual}

    def _add(self, w: Floats, plane: Plane) -> None:
        """The plane that touches the loss at w; keep w if it is the best so far."""
        objective = self.square(w) + plane.loss
        if objective < self.best[0]:
            self.best[0], self.parameters = objective, w
        self.planes = np.vstack([self.planes, plane.slope])
        self.offset = np.append(self.offset, plane.delta)
        self.weight, self.idle = np.append(self.weight, 0.0), np.append(self.idle, 0.0)

    def _drop(self) -> None:
        self.idle = np.where(self.weight > 0, 0.0, self.idle + 1)
        kept = self.idle < self._PATIENCE
        self.planes, self.offset = self.planes[kept], self.offset[kept]
        self.weight, self.idle = self.weight[kept], self.idle[kept]

    def arrays(self) -> dict[str, Floats]:
        names = ("planes", "offset", "weight", "idle", "best", "parameters")
        return {name: getattr(self, name) for name in names}

    def restore(self, arrays: Mapping[str, Floats]) -> None:
        schema: Schema = {
            "planes": Array("f8", ("planes", len(self.parameters))),
            "offset": Array("f8", ("planes",)),
            "weight": Array("f8", ("planes",), low=0.0),
            "shares": Rule(lambda found: abs(found["weight"].sum() - 1.0) < _ROUNDING, "do not sum to one"),
            "idle": Array("f8", ("planes",), low=0.0),
            "best": Array("f8", (1,)),
            "parameters": Array("f8", self.parameters.shape),
        }
        for name, value in check_state(schema, arrays).items():
            setattr(self, name, value)

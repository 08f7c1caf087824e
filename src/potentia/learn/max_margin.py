"""`MaxMargin`: the structural SVM, by block-coordinate Frank-Wolfe or by cutting planes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, cast

import numpy as np

from ..base.backend import CLUSTER, Backend, Local
from ..base.schema import Array, Rule, Schema, check_state, like
from ..base.types import ArrayLike, Floats, PotentiaError, WidthError, check_count, check_number, check_positive, shown
from ..features.example import Example
from ..features.parts import Examples, Parts
from ..inference.base import Inference
from ..inference.exact import Exact
from ..kernels.frank_wolfe import MarginDual, WorkingSet, assemble, entries_of, margins, maximise_on_simplex, revisit
from ..potentials.base import Potential, as_affine
from .base import Learner, State, Stop, share
from .data import Dataset
from .margin_problem import MarginProblem, Oracle, begin_margin, problem_of, write_parameters
from .part import Part

SOLVERS = ("frank_wolfe", "one_slack")
#: Labellings remembered per example.
_SLOTS = 24
#: Fewer examples than this are revisited as often as would make up for it.
_FEW = 500
#: Share of the objective to which the planes' program is solved, below any sensible gap; what is below is rounding.
_PRECISE = 1e-7
#: How far shares that sum to one may be from it.
_ROUNDING = 1e-6
#: A plane without weight for this many iterations is dropped.
_PATIENCE = 50

#: A solver's state.
Arrays = Mapping[str, Any]


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

    Example:
        >>> import potentia as pt
        >>> learner = pt.MaxMargin(iterations=20, inference=pt.Smoothed(0.0))
        >>> train = pt.datasets.denoising(1, (8, 8), seed=0)
        >>> crf = pt.CRF({"node": pt.Linear(), "edge": pt.Linear()}, learner).fit(train)
        >>> crf.history_[-1]["gap"] < crf.history_[0]["gap"]
        True
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

    # -- fitting -----------------------------------------------------------------------------------------------

    def gather(self, examples: Examples, potentials: Mapping[str, Potential]) -> Dataset:
        """The labelled variables and the regions between them, in one part for Frank-Wolfe."""
        entries = None
        if self.solver == "frank_wolfe":
            if isinstance(examples, Parts) or CLUSTER.get() is not None:
                raise PotentiaError(
                    "MaxMargin(solver='frank_wolfe') needs a list of examples in one process, since its dual is one "
                    "vector of all of them; take solver='one_slack'."
                )
            entries = 2**62
        data = Dataset.of(examples, potentials, entries, drop_hidden=True, labels=True)
        data.require(potentials)
        return data

    def init(self, data: Dataset, potentials: Mapping[str, Potential]) -> State:
        """Zero parameters."""
        zeros = {kind: copy.deepcopy(p).begin(data.problem(kind)) for kind, p in potentials.items()}
        n_examples, options = sum(data.n_examples), {"delta": self.delta, "ridge": self.ridge, "batch": self.batch}
        settings = {"potentials": zeros, "n_examples": n_examples, "method": self.predictor([]), **options}
        parts = data.parts.map(begin_margin, None, settings)[0]
        if self.solver == "frank_wolfe":
            arrays = start_frank_wolfe(self._whole(data, parts)[0])
        else:
            arrays = start_planes(data.parts, parts, n_examples)
        return State(zeros, self.iterations, arrays, parts)

    def _whole(self, data: Dataset, parts: Any) -> tuple[MarginProblem, Oracle]:
        """The problem and the oracle of the only part."""
        return problem_of(cast(Local, data.parts).parts[0], parts[0])

    def step(self, data: Dataset, state: State) -> State:
        """A pass over the examples, or a cutting plane: objective, dual and gap, their difference."""
        try:
            if self.solver == "frank_wolfe":
                rng = np.random.default_rng([self.seed, len(state.history)])
                problem, oracle = self._whole(data, state.parts)
                arrays, row = frank_wolfe(problem, oracle, state.arrays, rng)
            else:
                arrays, row = one_slack(data.parts, state.parts, state.arrays)
        except WidthError as error:
            sentence = str(error).removesuffix(".")
            raise WidthError(
                f"{sentence}; give MaxMargin an approximate method: solver='one_slack' with "
                "inference=pt.LinearProgram(), or with inference=pt.MAP(time_limit=1), which is faster on large graphs."
            ) from None
        potentials = write_parameters(state.potentials, arrays["parameters"])
        return state.after(row, potentials=potentials, arrays=arrays)

    def done(self, state: State) -> Stop | None:
        """Whether the gap is at most `tol` of the objective; one below zero shows that inference misses labellings."""
        row = state.history[-1] if state.history else {"gap": np.inf, "objective": 1.0}
        gap = share(row["gap"], row["objective"])
        settled = self.tol > 0 and abs(gap) <= self.tol
        if not (settled or len(state.history) >= state.limit):
            return None
        if settled or self.tol == 0 or not state.history:
            return Stop(settled or len(state.history) < state.limit)
        if gap < 0:
            return Stop(
                False,
                "The objective is below the dual, so the inference misses labellings that cost more; take an exact "
                "one, or inference=pt.LinearProgram().",
            )
        remedies = "more iterations or a larger ridge"
        if self.solver == "frank_wolfe":
            remedies = "more iterations, a larger ridge, or solver='one_slack' for few large examples"
        return Stop(
            False,
            f"The gap was still {gap:.2g} of the objective after {len(state.history)} iterations; take {remedies}.",
        )

    def resume(self, data: Dataset, state: State, saved: State) -> State:
        """The solver's state."""
        if not np.array_equal(saved.arrays.get("size", ()), state.arrays["size"]):
            raise PotentiaError("the checkpoint belongs to other examples or another learner.")
        if self.solver == "frank_wolfe":
            problem, _ = self._whole(data, state.parts)
            arrays = check_frank_wolfe(problem, state.arrays, saved.arrays)
        else:
            arrays = check_planes(state.arrays, saved.arrays)
        potentials = write_parameters(state.potentials, arrays["parameters"])
        return replace(state, potentials=potentials, arrays=arrays, history=saved.history)

    # -- options -----------------------------------------------------------------------------------------------

    def check(self, potentials: Mapping[str, Potential]) -> None:
        """Refuse options and potentials that cannot be used."""
        for kind, potential in potentials.items():
            as_affine(kind, potential)
        self.check_choices({"solver": SOLVERS})
        check_positive("ridge", self.ridge)
        check_count("iterations", self.iterations)
        check_count("seed", self.seed)
        check_number("tol", self.tol)
        check_count("batch", self.batch, 1, optional=True)
        self.check_inference("inference")
        if self.delta != "hamming" and not callable(self.delta):
            raise PotentiaError(f"delta must be 'hamming' or a function of an example, not {shown(self.delta)}.")


def _square(eta: Floats, w: Floats) -> float:
    """sum_j eta_j w_j^2 / 2."""
    return 0.5 * float(eta @ (w * w))


def answers(problem: MarginProblem, oracle: Oracle, w: Floats) -> tuple[Floats, Floats, Floats]:
    """The oracle's answers at w, their Delta and the losses of all examples.

    Where an approximate oracle misses that an example's own labels are better than what it found, they are the answer.
    """
    design, (s, delta) = problem.design, oracle.answers(w)
    losses = np.empty(problem.n_examples)
    margins(design, w, s, delta, losses)
    for k in np.flatnonzero(losses < problem.true_loss):
        first, last = design.row_ptr[k], design.row_ptr[k + 1]
        entries = slice(design.at[first], design.at[first] + entries_of(design, first, last))
        s[entries], delta[k], losses[k] = design.truth[entries], problem.true_loss[k], problem.true_loss[k]
    return s, delta, losses


# -- Frank-Wolfe -----------------------------------------------------------------------------------------------


def start_frank_wolfe(problem: MarginProblem) -> Arrays:
    """The dual of zero parameters: every working set holds the truth with all weight."""
    working = _start(problem, _SLOTS)
    return {
        "m": problem.design.truth,
        "loss": problem.true_loss,
        "best": np.array([np.inf]),
        "parameters": np.zeros(len(problem.eta)),
        "set_entry": working.entry,
        "set_weight": working.weight,
        "set_loss": working.loss,
        "size": np.array([problem.n_examples, len(problem.design.truth)], dtype=float),
    }


def frank_wolfe(
    problem: MarginProblem, oracle: Oracle, state: Arrays, rng: np.random.Generator
) -> tuple[Arrays, dict[str, float]]:
    """A pass of block-coordinate Frank-Wolfe with exact line search [Lacoste-Julien, Jaggi, Schmidt, Pletscher 2013].

    Steps are pairwise, within a working set of labellings per example; a pass with the oracle is followed by passes
    without. Fractional answers of a relaxation, which no set can hold, make plain steps.

    `parameters` are those of the lowest objective after a pass, since the last ones may be far worse. An objective
    below a later dual was underestimated by an approximate oracle and does not count.
    """
    design, size = problem.design, len(problem.eta)
    dual = MarginDual(np.zeros(size), state["m"].copy(), state["loss"].copy(), np.zeros(size))
    assemble(design, dual.m, dual.w)
    sets = (state[f"set_{name}"].copy() for name in ("entry", "weight", "loss"))
    working = WorkingSet(problem.region_ptr, *sets)
    oracle.descend(dual, working, rng)
    # few examples are cheap to visit
    for _ in range(oracle.revisits * max(1, _FEW // problem.n_examples)):
        revisit(design, dual, working, rng.permutation(problem.n_examples))
    # what rounding has added up in a pass goes
    assemble(design, dual.m, dual.w)
    objective = _square(problem.eta, dual.w) + float(answers(problem, oracle, dual.w)[2].mean())
    value = float(dual.loss.mean()) - _square(problem.eta, dual.w)
    best, parameters = float(state["best"][0]), state["parameters"]
    if objective < best or best < value - _PRECISE * abs(value):
        best, parameters = objective, dual.w.copy()
    new = {
        **state, "m": dual.m, "loss": dual.loss, "best": np.array([best]), "parameters": parameters,
        "set_entry": working.entry, "set_weight": working.weight, "set_loss": working.loss,
    }  # fmt: skip
    return new, {"objective": best, "dual": value, "gap": best - value}


def check_frank_wolfe(problem: MarginProblem, state: Arrays, saved: Arrays) -> Arrays:
    """What a checkpoint holds, in the place of a state of these examples."""
    schema: Schema = {
        **like(state),
        "best": Array("f8", (1,), finite=False),
        "set_entry": Array("i8", state["set_entry"].shape, low=-1, below=len(state["m"])),
        "set_weight": Array("f8", state["set_weight"].shape, low=0.0),
        "labellings": Rule(partial(_are_labellings, problem), "are not those of the examples"),
    }
    return check_state(schema, saved)


def _are_labellings(problem: MarginProblem, saved: Mapping[str, Any]) -> bool:
    """Whether every slot holds an entry of each of its regions, or -1 throughout and no weight.

    The first slot of an example is never empty.
    """
    entry, weight, ptr = saved["set_entry"], saved["set_weight"], problem.region_ptr
    sizes = np.repeat(np.diff(ptr), _SLOTS)
    slot = np.repeat(np.arange(len(sizes)), sizes)
    region = np.arange(len(entry)) - (np.cumsum(sizes) - sizes)[slot] + ptr[slot // _SLOTS]
    first, width = problem.region_entries()
    empty = entry < 0
    inside = (entry >= first[region]) & (entry < (first + width)[region])
    n_empty = np.bincount(slot, empty, minlength=len(sizes))
    gaps = (n_empty > 0).reshape(weight.shape)
    whole = (n_empty == 0) | (n_empty == sizes)
    return bool((inside | empty).all() and whole.all() and not gaps[:, 0].any() and not weight[gaps].any())


def _start(problem: MarginProblem, slots: int) -> WorkingSet:
    """Sets that hold the truth with all weight."""
    n, ptr = problem.n_examples, problem.region_ptr
    entry = np.full(slots * ptr[-1], -1)
    place = np.arange(ptr[-1]) + np.repeat((slots - 1) * ptr[:-1], np.diff(ptr))
    entry[place] = problem.truth_entries()
    weight, loss = np.zeros((n, slots)), np.zeros((n, slots))
    weight[:, 0], loss[:, 0] = 1.0, problem.true_loss
    return WorkingSet(ptr, entry, weight, loss)


# -- cutting planes --------------------------------------------------------------------------------------------


def part_sizes(part: Part, state: Mapping[str, Any]) -> tuple[Any, tuple[float, float]]:
    """Number of scores, and the summed Delta of the examples' own labels."""
    problem, _ = problem_of(part, state)
    return state, (float(len(problem.design.truth)), float(problem.true_loss.sum()))


def part_eta(part: Part, state: Mapping[str, Any]) -> tuple[Any, Floats]:
    """eta of all parameters, the same for all parts."""
    return state, problem_of(part, state)[0].eta


def part_plane(part: Part, state: Mapping[str, Any], w: Floats) -> tuple[Any, tuple[Floats, float, float]]:
    """The slope that the examples' answers at w make, their summed loss and their summed Delta."""
    problem, oracle = problem_of(part, state)
    s, delta, losses = answers(problem, oracle, w)
    slope = np.empty_like(w)
    assemble(problem.design, s, slope)
    return state, (slope, float(losses.sum()), float(delta.sum()))


def start_planes(parts: Backend, states: Any, n_examples: int) -> Arrays:
    """Zero parameters, and the truth itself as the first plane, which says that the mean loss is not below 0."""
    eta = parts.at(0, part_eta, states)
    n_scores, true_loss = parts.total(part_sizes, states)[1]
    return {
        "planes": np.zeros((1, len(eta))),
        "offset": np.array([true_loss / n_examples]),
        "weight": np.ones(1),
        "idle": np.zeros(1),
        "best": np.array([np.inf]),
        "parameters": np.zeros(len(eta)),
        "eta": eta,
        "size": np.array([n_examples, n_scores], dtype=float),
    }


def one_slack(parts: Backend, states: Any, state: Arrays) -> tuple[Arrays, dict[str, float]]:
    """A cutting plane with one slack [Joachims, Finley, Yu 2009, Alg. 3]: mean loss >= b_t - <u_t, w>_eta.

    All that it asks of the examples is the plane at a point, which is a sum over them.
    `parameters` are those of the lowest objective so far. A plane without weight for 50 iterations is dropped.
    """
    eta, n, w = state["eta"], float(state["size"][0]), state["weight"] @ state["planes"]
    slope, loss, delta = parts.total(part_plane, states, w)[1]
    best, parameters = float(state["best"][0]), state["parameters"]
    objective = _square(eta, w) + loss / n
    if objective < best:
        best, parameters = objective, w
    planes, offset = np.vstack([state["planes"], slope]), np.append(state["offset"], delta / n)
    weight, idle = np.append(state["weight"], 0.0), np.append(state["idle"], 0.0)
    gram = (planes * eta) @ planes.T
    maximise_on_simplex(offset, gram, weight, _PRECISE * max(best, 1e-300), 100_000)
    dual = float(offset @ weight - 0.5 * weight @ gram @ weight)
    idle = np.where(weight > 0, 0.0, idle + 1)
    used = idle < _PATIENCE
    new = {
        **state, "planes": planes[used], "offset": offset[used], "weight": weight[used], "idle": idle[used],
        "best": np.array([best]), "parameters": parameters,
    }  # fmt: skip
    return new, {"objective": best, "dual": dual, "gap": best - dual}


def check_planes(state: Arrays, saved: Arrays) -> Arrays:
    """What a checkpoint holds, in the place of a state of these examples."""
    n = len(state["parameters"])
    schema: Schema = {
        "planes": Array("f8", ("planes", n)),
        "offset": Array("f8", ("planes",)),
        "weight": Array("f8", ("planes",), low=0.0),
        "shares": Rule(lambda saved: abs(saved["weight"].sum() - 1.0) < _ROUNDING, "do not sum to one"),
        "idle": Array("f8", ("planes",), low=0.0),
        "best": Array("f8", (1,)),
        "parameters": Array("f8", (n,)),
    }
    return {**state, **check_state(schema, saved)}

"""Two solvers of the structural SVM: block-coordinate Frank-Wolfe and one-slack cutting planes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from ..base.backend import Backend
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
from .margin_problem import MarginProblem, Oracle, problem_of
from .part import Part

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


def _square(eta: Floats, w: Floats) -> float:
    """sum_j eta_j w_j^2 / 2."""
    return 0.5 * float(eta @ (w * w))


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


# -- Frank-Wolfe -----------------------------------------------------------------------------------------------


def start_frank_wolfe(problem: MarginProblem, oracle: Oracle) -> Arrays:
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
    found = {
        **state, "m": dual.m, "loss": dual.loss, "best": np.array([best]), "parameters": parameters,
        "set_entry": working.entry, "set_weight": working.weight, "set_loss": working.loss,
    }  # fmt: skip
    return found, {"objective": best, "dual": value, "gap": best - value}


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


def _are_labellings(problem: MarginProblem, found: Mapping[str, Any]) -> bool:
    """Whether every slot holds an entry of each of its regions, or -1 throughout and no weight.

    The first slot of an example is never empty.
    """
    entry, weight, ptr = found["set_entry"], found["set_weight"], problem.region_ptr
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
    found = {
        **state, "planes": planes[used], "offset": offset[used], "weight": weight[used], "idle": idle[used],
        "best": np.array([best]), "parameters": parameters,
    }  # fmt: skip
    return found, {"objective": best, "dual": dual, "gap": best - dual}


def check_planes(state: Arrays, saved: Arrays) -> Arrays:
    """What a checkpoint holds, in the place of a state of these examples."""
    n = len(state["parameters"])
    schema: Schema = {
        "planes": Array("f8", ("planes", n)),
        "offset": Array("f8", ("planes",)),
        "weight": Array("f8", ("planes",), low=0.0),
        "shares": Rule(lambda found: abs(found["weight"].sum() - 1.0) < _ROUNDING, "do not sum to one"),
        "idle": Array("f8", ("planes",), low=0.0),
        "best": Array("f8", (1,)),
        "parameters": Array("f8", (n,)),
    }
    return {**state, **check_state(schema, saved)}

"""Exact inference on any graph of small width by bucket elimination (a junction tree) in the log domain."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import numpy as np

from .._types import Floats, InfeasibleError, Ints
from ..graph.scores import Scores
from ..kernels.elimination import send_labels, send_up
from ..kernels.elimination_down import send_down
from .base import Result
from .elimination_plan import MAX_TABLE, Plan, plan
from .readout import all_singles, marginals_by_kind


class _Upward(NamedTuple):
    """What the upward pass leaves: the plan, its store of tables and messages, the peaks and the value."""

    plan: Plan
    store: Floats
    peaks: Floats
    value: float


def log_partition(scores: Scores, max_table: int = MAX_TABLE) -> float:
    """log Z = log sum_y exp F(y); time is linear in all tables' entries, memory in the messages'."""
    return _upward(scores, max_table, maximise=False).value


def best_labelling(scores: Scores, max_table: int = MAX_TABLE) -> Ints:
    """argmax_y F(y), (n_variables,): the upward pass with max, then states back from the last variable."""
    up = _upward(scores, max_table, maximise=True)
    return _labels(up.plan, up.store, np.zeros((1, 0)))[0]


def best_states(made: Plan, values: Floats, where: Ints) -> Ints:
    """The best labels of a plan's variables, of tables in one flat array that begin at `where`."""
    store, _ = _filled(made, values, where, maximise=True)
    return _labels(made, store, np.zeros((1, 0)))[0]


def sample(scores: Scores, n: int, rng: np.random.Generator, max_table: int = MAX_TABLE) -> Ints:
    """n independent samples of p(y) = exp F(y) / Z, (n, n_variables): one upward pass, then n times back."""
    up = _upward(scores, max_table, maximise=False)
    return _labels(up.plan, up.store, rng.random((n, len(up.plan.order))))


def marginals(scores: Scores, max_table: int = MAX_TABLE) -> tuple[float, Floats, Ints]:
    """log Z and the exact marginal of every region.

    Returns log Z, all marginals in one flat array (each region its own C-ordered table, numbered as in
    `Regions`), and the start of each region's table, (n_regions + 1,). About three times `log_partition`.
    """
    up = _upward(scores, max_table, maximise=False)
    scratch = np.empty(2 * int(up.plan.found.largest))
    if len(up.plan.order):
        send_down(up.plan.program, up.store, up.peaks, scratch)
    start = np.concatenate([[0], np.cumsum(scores.regions.size)]).astype(np.int64)
    flat = np.zeros(start[-1])
    flat[up.plan.entries(start[:-1])] = up.store[: len(up.plan.entry)]
    flat[start[up.plan.fixed_region] + up.plan.fixed_entry] = 1.0
    return up.value, flat, start


def eliminate(scores: Scores, max_table: int = MAX_TABLE) -> Result:
    """Exact log Z and marginals as a `Result`; the best labelling is computed on first access.

    Raises `WidthError` before allocating where a table would have more than `max_table` entries.
    """
    value, flat, start = marginals(scores, max_table)
    return Result(
        graph=scores.graph,
        marginals=marginals_by_kind(scores, flat, start),
        variable_marginals=all_singles(scores, flat, start),
        value=value,
        bound="exact",
        target="log_partition",
        iterations=0,
        residual=0.0,
        converged=True,
        scores=scores,
        best=partial(_best_of, max_table=max_table),
    )


def _best_of(result: Result, max_table: int) -> Ints:
    return best_labelling(result.scores, max_table)


def _upward(scores: Scores, max_table: int, maximise: bool) -> _Upward:
    """Messages from the first variable to the last and the value: log Z, or the best score."""
    made = plan(scores, max_table)
    values, where = scores.flat()
    store, peaks = _filled(made, values, where, maximise)
    constants = values[where[made.fixed_region] + made.fixed_entry]
    if np.any(peaks == -np.inf):
        raise InfeasibleError("every labelling is forbidden: the -inf scores contradict each other.")
    return _Upward(made, store, peaks, math.fsum(peaks) + math.fsum(constants))


def _filled(made: Plan, values: Floats, where: Ints, maximise: bool) -> tuple[Floats, Floats]:
    """The store of a plan's tables and messages after the upward pass, and the peaks."""
    store, peaks = np.empty(made.program.offset[-1]), np.zeros(len(made.order))
    store[: len(made.entry)] = values[made.entries(where)]
    if len(made.order):
        send_up(made.program, store, maximise, peaks)
    return store, peaks


def _labels(made: Plan, store: Floats, uniforms: Floats) -> Ints:
    """Labels of all variables from the last eliminated to the first, best or drawn, (n, n_variables)."""
    found = np.zeros((len(uniforms), len(made.order)), dtype=np.int64)
    if len(made.order):
        send_labels(made.program, store, uniforms, found)
    labels = np.tile(made.kept[:, 0], (len(uniforms), 1))
    labels[:, made.order] = made.kept[made.order, found]
    return labels

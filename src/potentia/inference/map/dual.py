"""Dual ascent for the best score: the tables that TRW-S runs on, and its driver."""

from __future__ import annotations

import math

import numpy as np

from ...base.types import Floats, Ints
from ...graph.regions import Regions, distinct
from ...graph.scores import Scores
from ...kernels.trw_s import ReparametrisedScores, sweep
from ..decode import search
from .task import SearchTask

#: Iterations at most, and between two roundings.
_ITERATIONS, _ROUNDING = 2000, 8
#: Ascent ends where this many iterations close less than this share of the gap.
_PATIENCE, _PROGRESS = 16, 0.01


def ascend(task: SearchTask, share: float) -> None:
    """Lower the bound by TRW-S for at most a share of the time left, rounding between sweeps.

    Then drops every state that the bound shows to be in no better labelling.
    """
    scores = task.undecided
    d, labels, stop = (dual(scores), np.zeros(scores.graph.n_variables, dtype=np.int64), (1 - share) * task.left)
    bounds: list[float] = []
    for k in range(_ITERATIONS):
        before = sweep(d, True, k % _ROUNDING == 0, labels)
        bounds.append(sweep(d, False, False, labels) if before > -math.inf else before)
        if bounds[-1] == -math.inf:
            task.exhaust("dual ascent")
            return
        task.iterations += 1
        task.tighten(bounds[-1], "dual ascent")
        if k % _ROUNDING == 0:
            task.offer(search(scores, [labels], pairs=False), "rounding")
        if task.over or task.left < stop or _stalled(task, bounds):
            break
    if not task.proven and task.labels is not None:
        # a state's deficit was measured on the way back, when the bound was already below `before`
        allowed = scores.singles > -np.inf
        allowed &= before + task.problem.constant - d.deficit >= task.score - task.slack
        task.restrict(allowed, "dual ascent")


def _stalled(task: SearchTask, bounds: list[float]) -> bool:
    """Whether the last iterations have closed too little of the gap."""
    if len(bounds) <= _PATIENCE:
        return False
    gap = bounds[-1] + task.problem.constant - task.score
    return bounds[-1 - _PATIENCE] - bounds[-1] <= max(_PROGRESS * min(gap, abs(bounds[-1])), task.slack)


def dual(scores: Scores) -> ReparametrisedScores:
    """Zero messages for these scores, visited in the order of the variables.

    Each distinct pair table is stored twice, once per direction; tables shared by pairs stay shared.
    """
    graph, regions = scores.graph, scores.regions
    values, where = scores.flat()
    n, width = scores.singles.shape
    tables, first, second = _both_ways(regions, values, where)
    star = graph.stars
    centre = np.repeat(np.arange(n), np.diff(star.pair_ptr))
    order = np.lexsort((star.other, centre))
    pair, other = star.pair[order], star.other[order]
    pairs = np.flatnonzero(regions.order == 2)
    number = np.searchsorted(pairs, pair)
    # a pair's own first variable has the larger stride
    is_first = regions.scope[regions.scope_ptr[pair]] == centre
    wide = np.flatnonzero(regions.order > 2)
    inside = np.repeat(regions.order > 2, regions.order)
    position = np.cumsum(inside) - 1
    return ReparametrisedScores(
        node=scores.singles, n_states=graph.n_states, link_ptr=star.pair_ptr, link=number.astype(np.int32),
        other=other, send=np.where(is_first, first[number], second[number]),
        receive=np.where(is_first, second[number], first[number]), tables=tables,
        message=np.zeros((len(pairs), width)), wide_ptr=star.wide_ptr,
        wide=np.searchsorted(wide, star.wide).astype(np.int32), wide_at=position[star.wide_at].astype(np.int32),
        scope_ptr=np.concatenate([[0], np.cumsum(regions.order[wide])]), scope=regions.scope[inside],
        start=where[wide], values=values if len(wide) else np.zeros(0), share=_shares(regions, n),
        lam=np.zeros((int(inside.sum()), width)), deficit=np.zeros((n, width)),
    )  # fmt: skip


def _both_ways(regions: Regions, values: Floats, where: Ints) -> tuple[Floats, Ints, Ints]:
    """Distinct pair tables and their transposes, and where each pair's begin, (tables, first, second)."""
    pairs = np.flatnonzero(regions.order == 2)
    states = regions.n_states[regions.scope[regions.scope_ptr[pairs][:, None] + np.arange(2)]]
    # a kind without scores has one table of zeros for pairs of all shapes
    base = int(states.max(initial=0)) + 1
    key = (where[pairs] * base + states[:, 0]) * base + states[:, 1]
    keys = distinct(key)
    at, rows, columns = keys // base**2, keys // base % base, keys % base
    which = np.searchsorted(keys, key)
    parts, start, total = [], np.zeros((2, len(at)), dtype=np.int64), 0
    for shape in distinct(keys % base**2):
        height, breadth = divmod(int(shape), base)
        these = np.flatnonzero((rows == height) & (columns == breadth))
        block = values[at[these][:, None] + np.arange(height * breadth)].reshape(-1, height, breadth)
        for way, table in enumerate((block, block.transpose(0, 2, 1))):
            start[way, these] = total + np.arange(len(these)) * height * breadth
            parts.append(table.ravel())
            total += block.size
    return np.concatenate([np.zeros(0), *parts]), start[0, which], start[1, which]


def _shares(regions: Regions, n: int) -> Floats:
    """1 / max(regions that end at a variable or later, regions that begin at it or earlier), (n,)."""
    counts = np.zeros((2, n), dtype=np.int64)
    many = regions.order > 1
    ptr = regions.scope_ptr[:-1][many]
    if len(ptr):
        # kernels' order is the variables'; rows of a CSR that skips single regions
        inside = np.repeat(many, regions.order)
        scope, begin = regions.scope[inside], np.concatenate([[0], np.cumsum(regions.order[many])[:-1]])
        all_counts = np.bincount(scope, minlength=n)
        counts[0] = all_counts - np.bincount(np.minimum.reduceat(scope, begin), minlength=n)
        counts[1] = all_counts - np.bincount(np.maximum.reduceat(scope, begin), minlength=n)
    return 1.0 / np.maximum(counts.max(axis=0), 1)

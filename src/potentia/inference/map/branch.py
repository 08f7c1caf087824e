"""Branch and bound with the bounds of dual ascent: proofs where they are nearly tight, good labellings elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...base.types import Floats, Ints
from ...kernels.trw_s import ReparametrisedScores, sweep
from ..decode import search
from .dual import dual
from .task import SearchTask

#: Iterations of dual ascent at the root, and at every other node.
_ROOT, _NODE = 100, 4
#: Share of the undecided variables that a node fixes at most, and of the largest regret that each of them must have.
_BATCH, _SURE = 0.1, 0.5
#: Share of the time, or nodes without a limit, after which the first node must have been returned to.
_FIRST, _FIRST_NODES = 0.4, 200
#: Nodes of a search without a time limit, and bytes of the messages kept to return to.
_NODES, _BYTES = 2000, 1e9
_PART = "branch and bound"


@dataclass
class _Open:
    """A node whose alternatives are left to try: alternative k keeps the first k fixed variables and refuses the next.

    Attributes:
        arrays: scores and messages before the variables were fixed. left: alternatives that are left, the last first.
    """

    arrays: tuple[Floats, ...]
    variables: Ints
    states: Ints
    left: int


def branch(task: SearchTask, share: float) -> None:
    """Fix the surest variables and tighten the bound until all are fixed, then try what was left out.

    A variable's regret is what the bound loses if it is not in its best state. States that the bound excludes are
    dropped at every node, which propagates hard constraints, too. Ends after a share of the time left, or with a proof.
    """
    scores, stop, early = task.undecided, (1 - share) * task.left, (1 - _FIRST * share) * task.left
    d = dual(scores)._replace(node=scores.singles.copy())
    arrays = (d.node, d.message, d.lam)
    size = sum(array.nbytes for array in arrays)
    nodes: list[_Open] = []
    complete, visited = True, 0
    while not task.over and task.left >= stop and (task.timed or visited < _NODES):
        late = task.left < early if task.timed else visited > _FIRST_NODES
        if late and nodes and nodes[0].left == len(nodes[0].variables):
            return  # far from a proof: the first variables that were fixed have not been questioned yet
        visited += 1
        if _tighten(task, d, _ROOT if visited == 1 else _NODE):
            variables, states = _surest(d)
            if len(variables):
                if size * len(nodes) < _BYTES:
                    nodes.append(_Open(tuple(array.copy() for array in arrays), variables, states, len(variables)))
                else:
                    complete = False
                _hold(d, variables, states)
                continue
            task.offer(search(scores, [d.node.argmax(axis=1)], pairs=False), _PART)
        if not nodes:
            if complete:
                task.exhaust(_PART)
            return
        last = nodes[-1]
        last.left -= 1
        if not last.left:
            nodes.pop()
        for array, before in zip(arrays, last.arrays, strict=True):
            array[...] = before
        _hold(d, last.variables[: last.left], last.states[: last.left])
        d.node[last.variables[last.left], last.states[last.left]] = -np.inf


def _tighten(task: SearchTask, d: ReparametrisedScores, iterations: int) -> bool:
    """Lower the bound, dropping states that are in no better labelling; False if there is none."""
    least = -np.inf if task.labels is None else task.score + task.slack - task.problem.constant
    labels = np.zeros(len(d.n_states), dtype=np.int64)
    for _ in range(iterations):
        before = sweep(d, True, False, labels)
        if before <= least or sweep(d, False, False, labels) <= least:
            return False
        d.node[before - d.deficit <= least] = -np.inf
        if not (d.node > -np.inf).any(axis=1).all():
            return False
    return True


def _surest(d: ReparametrisedScores) -> tuple[Ints, Ints]:
    """The undecided variables of largest regret, largest first, and their best states."""
    allowed = d.node > -np.inf
    free = np.flatnonzero(allowed.sum(axis=1) > 1)
    if not len(free):
        return free, free
    deficit = np.where(allowed, d.deficit, np.inf)[free]
    least, second = np.partition(deficit, 1, axis=1)[:, :2].T
    order = np.argsort(least - second, kind="stable")[: max(1, int(_BATCH * len(free)))]
    regret = (second - least)[order]
    order = order[regret >= _SURE * regret[0]]
    return free[order], deficit[order].argmin(axis=1)


def _hold(d: ReparametrisedScores, variables: Ints, states: Ints) -> None:
    """Fix variables at states."""
    kept = d.node[variables, states]
    d.node[variables] = -np.inf
    d.node[variables, states] = kept

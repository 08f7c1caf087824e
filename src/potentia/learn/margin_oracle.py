"""Loss-augmented inference for the structural SVM: max over y of Delta(y) + F(y), for some examples or all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from .._types import ArrayLike, Floats, Ints
from ..graph.scores import Scores, table_index
from ..graph.structure import Graph
from ..graph.union import Union
from ..inference.base import Inference
from ..kernels.frank_wolfe import Dual, entries_of, fill_scores
from ..kernels.margin_chain import Chains, chain_answers, chain_pass
from ..kernels.working_set import WorkingSet, step_batch
from .margin_problem import MarginProblem

#: Marginals of a relaxation this close to 0 or 1 are 0 or 1; its solver is no more precise.
_WHOLE = 1e-7


class Oracle(ABC):
    """Finds answers: labellings, or marginals of a relaxation."""

    #: Passes with remembered labellings that are worth their time after each pass with new ones.
    revisits = 2

    @abstractmethod
    def answers(self, w: Floats) -> tuple[Floats, Floats]:
        """Indicators (flat, in the layout of the scores) of all examples' answers at w, and their Delta (n,)."""

    @abstractmethod
    def descend(self, dual: Dual, ws: WorkingSet, rng: np.random.Generator) -> None:
        """One pass over all examples in random order: each is answered and makes a step."""


class ChainOracle(Oracle):
    """Viterbi; a whole pass is one call of a kernel."""

    def __init__(self, problem: MarginProblem, chains: Chains) -> None:
        self.problem, self.chains = problem, chains
        self.n_states = int(problem.data.shards[0].graph.n_states[0])

    def answers(self, w: Floats) -> tuple[Floats, Floats]:
        s, losses = np.empty(len(self.problem.design.truth)), np.empty(self.problem.n_examples)
        chain_answers(self.problem.design, w, self.chains, self.n_states, s, losses)
        return s, losses

    def descend(self, dual: Dual, ws: WorkingSet, rng: np.random.Generator) -> None:
        order = rng.permutation(self.problem.n_examples)
        chain_pass(self.problem.design, dual, ws, self.chains, self.n_states, order)


class _Answer(NamedTuple):
    """Flat entries and their shares, in the order of the examples' regions; where each example's begin; their Delta."""

    ptr: Ints
    entry: Ints
    share: Floats
    losses: Floats


class AnyOracle(Oracle):
    """Any graph by any method: consecutive examples are joined and inferred together, then take their steps in turn.

    Marginals of the linear program are used as they are: that trains on the relaxed problem. Other methods give
    their best labelling.
    """

    revisits = 5

    def __init__(self, problem: MarginProblem, method: Inference, batch: int) -> None:
        self.problem, self.method = problem, method
        graphs = [graph for shard in problem.data.shards for graph in shard.union.parts]
        cuts = [*range(0, len(graphs), batch), len(graphs)]
        self.batches = [(a, b, Union(graphs[a:b]).graph) for a, b in pairwise(cuts)]
        sizes = np.cumsum([0, *(len(shard.union.parts) for shard in problem.data.shards)])
        self.shards = [
            (int(a), int(b), shard.graph)
            for a, b, shard in zip(sizes[:-1], sizes[1:], problem.data.shards, strict=True)
        ]
        self.region_ptr = {k: np.concatenate([[0], np.cumsum(c)]) for k, c in problem.counts.items()}
        self.owner = {k: np.repeat(np.arange(problem.n_examples), c) for k, c in problem.counts.items()}

    def answers(self, w: Floats) -> tuple[Floats, Floats]:
        found = [self._answer(w, a, b, graph) for a, b, graph in self.shards]
        s = np.zeros(len(self.problem.design.truth))
        for answer in found:
            np.add.at(s, answer.entry, answer.share)
        return s, np.concatenate([answer.losses for answer in found])

    def descend(self, dual: Dual, ws: WorkingSet, rng: np.random.Generator) -> None:
        design = self.problem.design
        for number in rng.permutation(len(self.batches)):
            a, b, graph = self.batches[number]
            answer = self._answer(dual.w, a, b, graph)
            step_batch(design, dual, ws, a, b, *answer)

    def _answer(self, w: Floats, a: int, b: int, graph: Graph) -> _Answer:
        """Answers of examples a .. b - 1, whose union is `graph`."""
        problem = self.problem
        first, last = int(problem.design.row_ptr[a]), int(problem.design.row_ptr[b])
        scores = np.empty(entries_of(problem.design, first, last))
        fill_scores(problem.design, w, first, last, scores)
        begin = int(problem.design.at[first])
        rows = {kind: slice(*self.region_ptr[kind][[a, b]]) for kind in graph.kinds}
        theta = {kind: self._theta(kind, scores, begin, r) for kind, r in rows.items() if r.start < r.stop}
        places, entries, shares, losses, counts = [], [], [], np.zeros(b - a), np.zeros(b - a, dtype=np.int64)
        for kind, (region, entry, share) in self._solve(graph, theta).items():
            number = rows[kind].start + region
            places.append(problem.region_place[kind][number])
            entries.append(problem.blocks[kind].at[number] + entry)
            shares.append(share)
            delta, owner = problem.delta[kind], self.owner[kind][number] - a
            counts += np.bincount(owner, minlength=b - a)
            if delta is not None:
                losses += np.bincount(owner, delta[number, entry] * share, minlength=b - a)
        order = np.argsort(np.concatenate(places), kind="stable")
        ptr = np.concatenate([[0], np.cumsum(counts)])
        return _Answer(ptr, np.concatenate(entries)[order], np.concatenate(shares)[order], losses)

    def _theta(self, kind: str, scores: Floats, begin: int, rows: slice) -> Floats:
        """F + Delta of a kind's regions."""
        block, delta = self.problem.blocks[kind], self.problem.delta[kind]
        table = scores[block.at[rows, None] - begin + np.arange(block.outputs)]
        if delta is not None:
            table += delta[rows]
        return table.reshape(-1, *self.problem.data.shapes[kind])

    def _solve(self, graph: Graph, theta: dict[str, Floats]) -> dict[str, tuple[Ints, Ints, Floats]]:
        """Per kind (region, entry of its table, share) of the best labelling, or of the program's marginals."""
        scores = Scores(graph, theta)
        if self.method.relaxed:
            marginals = self.method.run(scores, None).marginals
            tables = {kind: _snapped(marginals[kind]).reshape(len(t), -1) for kind, t in theta.items()}
            return {kind: (*np.nonzero(mu), mu[mu != 0]) for kind, mu in tables.items()}
        labels = self.method.maximise(scores)
        return {
            kind: (np.arange(len(table)), table_index(graph, kind, labels), np.ones(len(table)))
            for kind, table in theta.items()
        }


def _snapped(marginals: ArrayLike) -> Floats:
    """Marginals of which those near 0 and 1 are 0 and 1."""
    mu = np.asarray(marginals, dtype=np.float64)
    near = np.rint(mu)
    return np.where(np.abs(mu - near) <= _WHOLE, near, mu)


def make_oracle(problem: MarginProblem, method: Inference, batch: int | None) -> Oracle:
    """The kernel for chains where it applies and gives what the method would, the method itself elsewhere."""
    chains = problem.chains() if method.exact else None
    if chains is not None and batch is None:
        return ChainOracle(problem, chains)
    return AnyOracle(problem, method, batch or max(1, problem.n_examples // 50))

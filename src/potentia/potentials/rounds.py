"""Boosting rounds: one vector-leaf tree each [ILR-chapter sec. 1.9.4]."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from potentia._types import Floats, Ints
from potentia.kernels.leaves import fit_leaves
from potentia.kernels.logistic import loss_rows
from potentia.kernels.trees import PAD, add_trees, fill_statistics, grow
from potentia.potentials.binning import Binned, Codes
from potentia.potentials.chunks import map_chunks
from potentia.potentials.problem import NO_ROWS, Batch, Problem

#: Scores of all rows are kept up to date between rounds up to this many numbers, and never beyond.
_MAX_KEPT = 1 << 26
#: Mean gradient at which a leaf counts as fitted.
_LEAF_TOL = 1e-4


@dataclass
class Forest:
    """Trees one after another: packed nodes (m,), leaf vectors (m, K), first nodes (T + 1,), depths (T,)."""

    nodes: Ints
    values: Floats
    node_ptr: Ints
    depths: Ints

    @classmethod
    def empty(cls, n_outputs: int) -> Forest:
        """No trees: the zero function."""
        none = np.zeros(0, np.int64)
        return cls(none, np.zeros((0, n_outputs)), np.zeros(1, np.int64), none)

    def copy(self) -> Forest:
        """The same trees in arrays of their own."""
        return Forest(self.nodes.copy(), self.values.copy(), self.node_ptr.copy(), self.depths.copy())

    def add_to(self, scores: Floats, codes: Codes, first: int = 0) -> None:
        """scores (n, K) += the trees from number `first` on."""
        arrays = self.nodes, self.values, self.node_ptr[first:], self.depths[first:]

        def add(rows: slice) -> None:
            add_trees(codes[rows], *arrays, scores[rows])

        map_chunks(add, len(scores), codes.shape[1] + 4 * scores.shape[1])


class GrowingForest:
    """A forest with room for more trees, so that adding one copies nothing."""

    def __init__(self, forest: Forest, n_trees: int, max_nodes: int):
        self.n_trees = len(forest.depths)
        size = len(forest.nodes) + n_trees * max_nodes
        self._room = Forest(
            np.empty(size, np.int64),
            np.empty((size, forest.values.shape[1])),
            np.zeros(self.n_trees + n_trees + 1, np.int64),
            np.zeros(self.n_trees + n_trees, np.int64),
        )
        for name, array in vars(forest).items():
            getattr(self._room, name)[: len(array)] = array

    def append(self, nodes: Ints, values: Floats, depth: int) -> None:
        """Add one tree."""
        room, t = self._room, self.n_trees
        start = room.node_ptr[t]
        stop = room.node_ptr[t + 1] = start + len(nodes)
        room.nodes[start:stop], room.values[start:stop], room.depths[t] = nodes, values, depth
        self.n_trees += 1

    def forest(self) -> Forest:
        """The trees so far, as views."""
        room, t = self._room, self.n_trees
        stop = room.node_ptr[t]
        return Forest(room.nodes[:stop], room.values[:stop], room.node_ptr[: t + 1], room.depths[:t])


@dataclass(frozen=True)
class Rules:
    """How a round grows and fits its tree; shares are of the weight of the rows the round sees."""

    shrinkage: float
    subsample: int | None
    min_leaf: float
    min_split: float
    max_leaves: int
    refit: bool


class Rounds:
    """A boosting run on one problem: `step` adds one tree.

    A round costs a pass over the rows drawn for every level of the tree, and a walk down the tree for every
    row, or every combination of codes where those are few. With very many rows, or scores too large to keep,
    the scores of the rows drawn are instead computed anew; the result is the same.
    """

    def __init__(self, problem: Problem, binned: Binned, rules: Rules, forest: Forest, n_rounds: int):
        self.problem = problem
        self.binned = binned
        self.rules = rules
        self.n_rounds = n_rounds
        self.trees = GrowingForest(forest, n_rounds, 2 * rules.max_leaves - 1)
        self.size = min(problem.n_rows, rules.subsample or problem.n_rows)
        self._bin_ptr = np.append(0, np.cumsum(binned.n_bins))
        width = -(-problem.n_outputs // PAD) * PAD
        # a leaf below min_split needs no histogram, so only 1 / min_split of them are ever kept
        open_leaves = min(rules.max_leaves, int(1 / max(rules.min_split, 2 * rules.min_leaf))) + 2
        self._pool = np.empty((open_leaves, self._bin_ptr[-1], width))
        self._statistics = np.empty((self.size, width))
        self._scores = self._kept_scores(forest, n_rounds)

    def _kept_scores(self, forest: Forest, n_rounds: int) -> Floats | None:
        """Scores of all codes, if keeping them current costs less than scoring each round's rows anew."""
        n, n_trees = len(self.binned.codes), len(forest.depths)
        walks_kept = n * (n_trees + n_rounds)
        walks_anew = self.size * n_rounds * (n_trees + n_rounds / 2)
        if n * self.problem.n_outputs > _MAX_KEPT or (self.size < n and walks_anew < walks_kept):
            return None
        scores = np.zeros((n, self.problem.n_outputs))
        forest.add_to(scores, self.binned.codes)
        return scores

    def step(self, rng: np.random.Generator) -> None:
        """Draw rows, grow a tree on the gradient, fit its leaves on the loss, shrink it and add it."""
        batch, codes, scores = self._draw(rng)
        residual = np.empty_like(scores)
        loss_rows(scores, *batch.targets, residual)
        order, nodes, spans, depth = self._grow(codes, residual, batch.weight)
        if len(batch.bias):
            scores = scores + batch.bias
        values = np.zeros((len(nodes), self.problem.n_outputs))
        targets = batch.labels, batch.soft, batch.weight
        fit_leaves(scores, *targets, order, spans, self.rules.refit, _LEAF_TOL, values)
        self.trees.append(nodes, self.rules.shrinkage * values, depth)
        if self._scores is not None:
            self.trees.forest().add_to(self._scores, self.binned.codes, self.trees.n_trees - 1)

    def loss(self) -> float | None:
        """The summed loss of all rows, if their scores are at hand."""
        scores = self._scores
        if scores is None:
            return None

        def of(rows: slice) -> float:
            place = self.binned.place(rows)
            return float(loss_rows(scores[place], *self.problem.take(rows).targets, NO_ROWS))

        return sum(map_chunks(of, self.problem.n_rows, 4 * self.problem.n_outputs))

    def _draw(self, rng: np.random.Generator) -> tuple[Batch, Codes, Floats]:
        """The rows of this round, their codes and their scores."""
        if self.size == self.problem.n_rows:
            rows: slice | Ints = slice(None)
        else:
            rows = np.sort(rng.choice(self.problem.n_rows, self.size, replace=False))
        place = self.binned.place(rows)
        codes = self.binned.codes[place]
        if self._scores is not None:
            return self.problem.take(rows), codes, self._scores[place]
        scores = np.zeros((self.size, self.problem.n_outputs))
        self.trees.forest().add_to(scores, codes)
        return self.problem.take(rows), codes, scores

    def _grow(self, codes: Codes, residual: Floats, weight: Floats) -> tuple[Ints, Ints, Ints, int]:
        """(rows grouped by leaf, nodes, leaf spans, depth) of a tree on the residuals w (p - y)."""
        rules = self.rules
        fill_statistics(residual, weight, self._statistics)
        total = float(weight.sum()) if len(weight) else float(self.size)
        noise = 1e-14 * float(np.vdot(residual, residual)) * self.size / total
        # the slack keeps a share such as 1 % of 100 rows from failing by rounding
        shares = np.array([rules.min_leaf, rules.min_split]) * total * (1 - 1e-9)
        order = np.arange(self.size)
        nodes = np.empty(2 * rules.max_leaves - 1, np.int64)
        spans = np.zeros((rules.max_leaves, 3), np.int64)
        limits = np.append(shares, noise)
        rows = codes, self._statistics, self.problem.n_outputs, self._bin_ptr
        n_leaves, depth = grow(*rows, limits, self._pool, order, nodes, spans)
        return order, nodes[: 2 * n_leaves - 1], spans[:n_leaves], depth

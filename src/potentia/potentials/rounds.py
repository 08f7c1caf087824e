"""Boosting rounds: one vector-leaf tree each [ILR-chapter sec. 1.9.4]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from potentia._types import Floats, Ints
from potentia.kernels.decision_trees import fill_statistics
from potentia.kernels.leaves import fit_leaves
from potentia.kernels.logistic import loss_rows
from potentia.potentials.binning import Binned, Codes, count_bins, encode
from potentia.potentials.chunks import map_chunks, map_parts, sum_chunks
from potentia.potentials.growth import Growth, Tree
from potentia.potentials.problem import NO_ROWS, Batch, Problem
from potentia.potentials.tree_ensemble import GrowingEnsemble, TreeEnsemble

#: Scores of all rows that are not at hand are computed and kept between rounds up to this many numbers.
_MAX_KEPT_SCORES = 1 << 26
#: Mean gradient at which a leaf counts as fitted.
_LEAF_TOL = 1e-4
#: From this many rows on, leaves are fitted by several threads.
_MANY_ROWS = 50_000


@dataclass(frozen=True)
class Rules:
    """How a round grows and fits its tree; shares are of the weight of the rows the round sees."""

    shrinkage: float
    subsample: int | None
    min_leaf: float
    min_split: float
    max_leaves: int
    refit: bool

    @property
    def max_open(self) -> int:
        """How many leaves can at once be heavy enough to be split."""
        return min(self.max_leaves, int(1 / max(self.min_split, 2 * self.min_leaf) + 1e-6))


class Rounds:
    """A boosting run on one problem: `step` adds one tree.

    A round costs a pass over the rows drawn for every level of the tree, and a walk down the tree for every
    row, or every combination of codes where those are few. With very many rows, or scores too large to keep,
    the scores of the rows drawn are instead computed from the trees; the result is the same.
    """

    def __init__(self, problem: Problem, edges: Floats, rules: Rules, forest: TreeEnsemble, n_rounds: int):
        self.problem = problem
        self.edges = edges
        self.rules = rules
        self.n_rounds = n_rounds
        self.binned = Binned.of(problem, edges)
        self.trees = GrowingEnsemble(forest, n_rounds, 2 * rules.max_leaves - 1)
        self.size = min(problem.n_rows, rules.subsample or problem.n_rows)
        self._growth = Growth(count_bins(edges), problem.n_outputs, rules.max_leaves, rules.max_open + 2)
        self._statistics = np.empty((self.size, self._growth.width))
        self._forest = forest
        #: Trees there were before.
        self.n_before = len(forest.depths)
        self._start = self._kept_scores()
        self._scores = None if self._start is None else self._start.copy()

    def _kept_scores(self) -> Floats | None:
        """Scores of all codes, if keeping them current costs less than scoring each round's rows."""
        if self.binned is None:
            return None
        n = len(self.binned.codes)
        walks_kept = n * (self.n_before + self.n_rounds)
        walks_drawn = self.size * self.n_rounds * (self.n_before + self.n_rounds / 2)
        if n * self.problem.n_outputs > _MAX_KEPT_SCORES or (self.size < n and walks_drawn < walks_kept):
            return None
        scores = np.zeros((n, self.problem.n_outputs))
        self._forest.add_to(scores, self.binned.codes)
        return scores

    def step(self, rng: np.random.Generator) -> None:
        """Draw rows, grow a tree on the gradient, fit its leaves on the loss, shrink it and add it."""
        batch, codes, scores = self._draw(rng)
        residual = self._residual(batch, scores)
        fill_statistics(residual, batch.weight, self._statistics)
        tree = self._growth.tree(codes, self._statistics, self._limits(residual, batch.weight))
        values = self._leaf_values(tree, batch, scores)
        self.trees.append(tree.nodes, self.rules.shrinkage * values, tree.depth)
        if self._scores is not None and self.binned is not None:
            self.trees.forest().add_to(self._scores, self.binned.codes, self.trees.n_trees - 1)

    def losses(self, shares: Sequence[float]) -> Floats:
        """The summed loss of all rows when the trees added by `step` are multiplied by each of the shares."""
        if self._scores is None or self.binned is None or self._start is None:
            added = self.trees.forest(), self.n_before
            return np.array(self.problem.sum(_share_losses, self.edges, self._forest, added, shares))
        place, start, scores = self.binned.place, self._start, self._scores

        def of(rows: slice) -> Floats:
            before: Floats = start[place(rows)]
            return _losses(self.problem.draw(rows), before, scores[place(rows)] - before, shares)

        found = sum_chunks(of, self.problem.n_rows, 6 * self.problem.n_outputs)
        return np.asarray(found, dtype=np.float64)

    def _draw(self, rng: np.random.Generator) -> tuple[Batch, Codes, Floats]:
        """The rows of this round, their codes and their scores."""
        if self.size == self.problem.n_rows:
            rows: slice | Ints = slice(None)
        else:
            rows = np.sort(rng.choice(self.problem.n_rows, self.size, replace=False))
        batch = self.problem.draw(rows)
        if self.binned is None:
            codes = encode(batch.x, self.edges)
        else:
            place = self.binned.place(rows)
            codes = self.binned.codes[place]
            if self._scores is not None:
                return batch, codes, self._scores[place]
        scores = np.zeros((self.size, self.problem.n_outputs))
        self.trees.forest().add_to(scores, codes)
        return batch, codes, scores

    def _residual(self, batch: Batch, scores: Floats) -> Floats:
        residual = np.empty_like(scores)

        def fill(rows: slice) -> None:
            parts = [array[rows] if len(array) else array for array in batch.targets]
            loss_rows(scores[rows], *parts, residual[rows])

        map_chunks(fill, len(scores), 4 * scores.shape[1])
        return residual

    def _limits(self, residual: Floats, weight: Floats) -> Floats:
        """Least weight of a leaf and of a node to be split, and the gain below which differences are rounding."""
        total = float(weight.sum()) if len(weight) else float(self.size)
        noise = 1e-14 * float(np.vdot(residual, residual)) * self.size / total
        # the slack keeps a share such as 1 % of 100 rows from failing by rounding
        shares = np.array([self.rules.min_leaf, self.rules.min_split]) * total * (1 - 1e-9)
        return np.append(shares, noise)

    def _leaf_values(self, tree: Tree, batch: Batch, scores: Floats) -> Floats:
        """Leaf vectors (nodes, K) of the tree, not yet shrunk."""
        values = np.zeros((len(tree.nodes), self.problem.n_outputs))
        rows = scores + batch.bias if len(batch.bias) else scores
        how = self.rules.refit, _LEAF_TOL, values

        def fit(first: int, last: int) -> None:
            targets = batch.labels, batch.soft, batch.weight
            fit_leaves(rows, *targets, tree.order, tree.spans[first:last], *how)

        n_leaves = len(tree.spans)
        map_parts(fit, n_leaves) if len(rows) >= _MANY_ROWS else fit(0, n_leaves)
        return values


def _share_losses(
    batch: Batch,
    edges: Floats,
    before: TreeEnsemble,
    added: tuple[TreeEnsemble, int],
    shares: Sequence[float],
) -> Floats:
    """Losses of some rows by the trees there were, and the shares of those added since."""
    codes = encode(batch.x, edges)
    start, more = (np.zeros((len(codes), before.values.shape[1])) for _ in range(2))
    if batch.scores is not None and len(before.depths):
        start = batch.scores
    else:
        before.add_to(start, codes)
    added[0].add_to(more, codes, added[1])
    return _losses(batch, start, more, shares)


def _losses(batch: Batch, start: Floats, added: Floats, shares: Sequence[float]) -> Floats:
    return np.array([loss_rows(start + share * added, *batch.targets, NO_ROWS) for share in shares])

"""Boosting rounds: one vector-leaf tree each [ILR-chapter sec. 1.9.4]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from potentia._types import Floats, Ints
from potentia.kernels.decision_trees import fill_statistics
from potentia.kernels.leaves import fit_leaves
from potentia.kernels.logistic import loss_rows
from potentia.potentials.binning import Binned, Codes
from potentia.potentials.chunks import map_chunks, map_parts
from potentia.potentials.growth import Growth, Tree
from potentia.potentials.problem import NO_ROWS, Batch, Problem
from potentia.potentials.tree_ensemble import GrowingEnsemble, TreeEnsemble

#: Scores of all rows that are not at hand are computed and kept between rounds up to this many numbers.
_MAX_KEPT = 1 << 26
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
    the scores of the rows drawn are instead computed anew; the result is the same. `scores`: those of the forest
    of all rows, where they are at hand.
    """

    def __init__(
        self,
        problem: Problem,
        binned: Binned,
        rules: Rules,
        forest: TreeEnsemble,
        n_rounds: int,
        scores: Floats | None = None,
    ):
        self.problem = problem
        self.binned = binned
        self.rules = rules
        self.n_rounds = n_rounds
        self.trees = GrowingEnsemble(forest, n_rounds, 2 * rules.max_leaves - 1)
        self.size = min(problem.n_rows, rules.subsample or problem.n_rows)
        self._growth = Growth(binned.n_bins, problem.n_outputs, rules.max_leaves, rules.max_open + 2)
        self._statistics = np.empty((self.size, self._growth.width))
        self._forest = forest
        #: Trees there were before.
        self.n_before = len(forest.depths)
        self._start = scores if scores is not None and binned.cell is None else self._kept_scores(forest)
        self._scores = None if self._start is None else self._start.copy()

    def _kept_scores(self, forest: TreeEnsemble) -> Floats | None:
        """Scores of all codes, if keeping them current costs less than scoring each round's rows anew."""
        n, n_trees = len(self.binned.codes), len(forest.depths)
        walks_kept = n * (n_trees + self.n_rounds)
        walks_anew = self.size * self.n_rounds * (n_trees + self.n_rounds / 2)
        if n * self.problem.n_outputs > _MAX_KEPT or (self.size < n and walks_anew < walks_kept):
            return None
        scores = np.zeros((n, self.problem.n_outputs))
        forest.add_to(scores, self.binned.codes)
        return scores

    def step(self, rng: np.random.Generator) -> None:
        """Draw rows, grow a tree on the gradient, fit its leaves on the loss, shrink it and add it."""
        batch, codes, scores = self._draw(rng)
        residual = self._residual(batch, scores)
        fill_statistics(residual, batch.weight, self._statistics)
        tree = self._growth.tree(codes, self._statistics, self._limits(residual, batch.weight))
        values = self._leaf_values(tree, batch, scores)
        self.trees.append(tree.nodes, self.rules.shrinkage * values, tree.depth)
        if self._scores is not None:
            self.trees.forest().add_to(self._scores, self.binned.codes, self.trees.n_trees - 1)

    def losses(self, shares: Sequence[float]) -> Floats:
        """The summed loss of all rows when the trees added by `step` are multiplied by each of the shares."""

        def of(rows: slice) -> list[float]:
            start, added = self._parts(rows)
            targets = self.problem.take(rows).targets
            return [float(loss_rows(start + share * added, *targets, NO_ROWS)) for share in shares]

        parts = map_chunks(of, self.problem.n_rows, 6 * self.problem.n_outputs)
        return np.asarray(np.sum(parts, axis=0), dtype=np.float64)

    def _parts(self, rows: slice) -> tuple[Floats, Floats]:
        """Scores of rows by the trees there were at first, and by those added since."""
        place = self.binned.place(rows)
        if self._scores is not None and self._start is not None:
            start: Floats = self._start[place]
            return start, self._scores[place] - start
        codes = self.binned.codes[place]
        start, added = (np.zeros((len(codes), self.problem.n_outputs)) for _ in range(2))
        self._forest.add_to(start, codes)
        self.trees.forest().add_to(added, codes, self.n_before)
        return start, added

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

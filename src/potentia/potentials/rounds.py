"""Boosting rounds: one vector-leaf tree each [ILR-chapter sec. 1.9.4]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from potentia._types import Floats, Ints
from potentia.kernels.decision_trees import fill_statistics
from potentia.kernels.leaves import fit_leaves
from potentia.kernels.logistic import loss_rows
from potentia.potentials.binning import Binned, Codes, cell_of, count_bins, encode
from potentia.potentials.chunks import map_chunks, map_parts
from potentia.potentials.growth import Growth, Tree
from potentia.potentials.problem import NO_ROWS, Batch, Problem, Rows
from potentia.potentials.tree_ensemble import GrowingEnsemble, TreeEnsemble

#: Scores of all rows that are not available are computed and kept between rounds up to this many numbers.
_MAX_KEPT_SCORES = 1 << 26
#: Rows that are gathered at once from other places, for several rounds.
_MAX_FETCHED = 500_000
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
    the scores of the rows drawn are instead computed from the trees; the result is the same. Rows that are not in this
    process are drawn for many rounds at once.
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
        #: Scores of all codes by the trees there were, and by those added since.
        self._start = self._kept_scores()
        self._added = None if self._start is None else np.zeros_like(self._start)
        self._drawn = Drawn(problem, self.size, n_rounds)

    def _kept_scores(self) -> Floats | None:
        """Scores of all codes, if keeping them current costs less than scoring each round's rows."""
        if self.binned is None:
            return None
        n = len(self.binned.codes)
        walks_kept = n * (self.n_before + self.n_rounds)
        walks_drawn = self.size * self.n_rounds * (self.n_before + self.n_rounds / 2)
        if n * self.problem.n_outputs > _MAX_KEPT_SCORES or (self.size < n and walks_drawn < walks_kept):
            return None
        return self._forest.scores(self.binned.codes)

    def step(self, rng: np.random.Generator) -> None:
        """Draw rows, grow a tree on the gradient, fit its leaves on the loss, shrink it and add it."""
        batch, codes, scores = self._draw(rng)
        residual = self._residual(batch, scores)
        fill_statistics(residual, batch.weight, self._statistics)
        tree = self._growth.tree(codes, self._statistics, self._limits(residual, batch.weight))
        values = self._leaf_values(tree, batch, scores)
        self.trees.append(tree.nodes, self.rules.shrinkage * values, tree.depth)
        if self._added is not None and self.binned is not None:
            self.trees.forest().add_to(self._added, self.binned.codes, self.trees.n_trees - 1)

    def losses(self, shares: Sequence[float]) -> Floats:
        """The summed loss of all rows when the trees added by `step` are multiplied by each of the shares."""
        added = self.trees.forest(), self.n_before
        listed = None
        if self.binned is not None and self.binned.listed:
            codes = self.binned.codes
            listed = self.binned.n_bins, self._forest.scores(codes), added[0].scores(codes, self.n_before)
        return np.array(self.problem.sum(_share_losses, self.edges, self._forest, added, shares, listed))

    def _draw(self, rng: np.random.Generator) -> tuple[Batch, Codes, Floats]:
        """The rows of this round, their codes and their scores."""
        rows, batch = self._drawn.next(rng)
        held = self.binned is not None and not self.binned.listed
        codes = self.binned.codes[rows] if held and self.binned is not None else encode(batch.x, self.edges)
        if self._start is not None and self._added is not None and self.binned is not None:
            place = self.binned.place(rows, codes)
            return batch, codes, self._start[place] + self._added[place]
        before = _before(batch, codes, self._forest)
        return batch, codes, before + self.trees.forest().scores(codes, self.n_before)

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


class Drawn:
    """The rows of round after round: those of one where they are in this process, of many at once elsewhere."""

    def __init__(self, problem: Problem, size: int, n_rounds: int) -> None:
        self.problem, self.size, self.left = problem, size, n_rounds
        self._waiting: list[Ints] = []
        self._numbers: Ints = np.zeros(0, np.int64)
        self._table: Rows | None = None

    def next(self, rng: np.random.Generator) -> tuple[slice | Ints, Batch]:
        """Row numbers, ascending, and the rows."""
        if self.size == self.problem.n_rows:
            if self._table is None and not self.problem.local:
                self._table = self.problem.draw(slice(None)).table()
            every = slice(None)
            return every, self.problem.draw(every) if self._table is None else self._table.take(every)
        if self.problem.local:
            rows = self._choose(rng)
            return rows, self.problem.draw(rows)
        if not self._waiting:
            self._fetch(rng)
        assert self._table is not None
        rows = self._waiting.pop(0)
        return rows, self._table.take(np.searchsorted(self._numbers, rows))

    def _choose(self, rng: np.random.Generator) -> Ints:
        return np.sort(rng.choice(self.problem.n_rows, self.size, replace=False))

    def _fetch(self, rng: np.random.Generator) -> None:
        """Choose the rows of the next rounds and gather all of them."""
        n_rounds = max(1, min(self.left, _MAX_FETCHED // self.size))
        self.left -= n_rounds
        self._waiting = [self._choose(rng) for _ in range(n_rounds)]
        self._numbers = np.unique(np.concatenate(self._waiting))
        self._table = self.problem.draw(self._numbers).table()


def _before(batch: Batch, codes: Codes, forest: TreeEnsemble) -> Floats:
    """Scores of some rows by the earlier trees, which may be available already."""
    if batch.scores is not None and len(forest.depths):
        return batch.scores
    return forest.scores(codes)


def _share_losses(
    batch: Batch,
    edges: Floats,
    before: TreeEnsemble,
    added: tuple[TreeEnsemble, int],
    shares: Sequence[float],
    listed: tuple[Ints, Floats, Floats] | None,
) -> Floats:
    """Losses of some rows by the trees there were, and the shares of those added since.

    listed: where combinations of codes are few, the numbers of bins and both scores of all of them.
    """
    codes = encode(batch.x, edges)
    if listed is not None:
        cell = cell_of(codes, listed[0])
        start, more = listed[1][cell], listed[2][cell]
    else:
        start = _before(batch, codes, before)
        more = added[0].scores(codes, added[1])
    return np.array([loss_rows(start + share * more, *batch.targets, NO_ROWS) for share in shares])

"""Stochastic gradient boosting of the biased logistic loss [ILR-chapter sec. 1.9.4]."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np

from ..base.schema import Array, Rule, Schema
from ..base.types import Floats, Ints, PotentiaError, check_count, check_number, check_positive, real_number, shown
from ..kernels.decision_trees import MAX_BINS, PAD, fill_statistics, fit_leaves, measure, measure_rest, pack, partition
from ..kernels.linear_losses import loss_rows
from .base import Potential
from .inputs import map_chunks
from .problem import Batch, Problem, map_parts
from .tree_ensemble import Binned, Codes, TreeEnsemble, all_cells, cell_of, count_bins, draw_edges, encode

#: A node of at least this many codes is worth the hand-over to other threads.
_MANY = 1 << 20


@dataclass(frozen=True)
class Tree:
    """Packed nodes (2 leaves - 1,), rows grouped by leaf (n,), per leaf its node, start and stop (leaves, 3)."""

    nodes: Ints
    order: Ints
    spans: Ints
    depth: int


@dataclass
class _Leaf:
    """A leaf of the growing tree: its rows order[start:stop], its sums' slot in the pool, and its best split."""

    node: int
    start: int
    stop: int
    level: int
    slot: int
    gain: float = 0.0
    feature: int = 0
    cut: int = 0


class Growth:
    """Grows trees for K outputs on binned features, always splitting the leaf that gains most.

    A leaf keeps its sums of statistics per bin in a slot of the pool while it may still be split, so n_slots
    must exceed the number of such leaves. Threads share the features of large nodes; the result does not
    depend on them.
    """

    def __init__(self, n_bins: Ints, n_outputs: int, max_leaves: int, n_slots: int):
        self.n_outputs = n_outputs
        self.max_leaves = max_leaves
        self._n_bins = n_bins
        self.width = -(-n_outputs // PAD) * PAD
        self._pool = np.empty((n_slots, int(n_bins.sum()), self.width))

    def tree(self, codes: Codes, statistics: Floats, limits: Floats, columns: Ints | None = None) -> Tree:
        """A tree on the rows codes (n, d) with `fill_statistics` (n, width) and limits as in `best_cut`.

        columns: the features that it sees, ascending; None for all.
        """
        self._statistics, self._limits = statistics, limits
        self._columns = np.arange(codes.shape[1]) if columns is None else columns
        self._codes = codes if columns is None else np.ascontiguousarray(codes[:, columns])
        self._bin_ptr = np.append(0, np.cumsum(self._n_bins[self._columns]))
        self._gains, self._cuts = np.zeros(len(self._columns)), np.zeros(len(self._columns), np.int64)
        self._order, self._spare = np.arange(len(codes)), np.empty(len(codes), np.int64)
        self._nodes = [pack(0, 0, MAX_BINS - 1)]
        self._free = list(range(1, len(self._pool)))
        leaves = [_Leaf(0, 0, len(codes), 0, 0)]
        self._measure(leaves[0])
        while len(leaves) < self.max_leaves:
            leaf = max(leaves, key=attrgetter("gain"))
            if leaf.gain <= 0.0:
                break
            leaves.append(self._split(leaf))
        spans = np.array([(leaf.node, leaf.start, leaf.stop) for leaf in leaves])
        return Tree(np.array(self._nodes), self._order, spans, max(leaf.level for leaf in leaves))

    def _split(self, leaf: _Leaf) -> _Leaf:
        """Make the leaf its left child and return the right one, both measured."""
        rows = self._order[leaf.start : leaf.stop]
        middle = leaf.start + partition(self._codes, leaf.feature, leaf.cut, rows, self._spare)
        child = len(self._nodes)
        self._nodes[leaf.node] = pack(child, int(self._columns[leaf.feature]), leaf.cut)
        self._nodes += [pack(child, 0, MAX_BINS - 1), pack(child + 1, 0, MAX_BINS - 1)]
        right = _Leaf(child + 1, middle, leaf.stop, leaf.level + 1, self._free.pop())
        leaf.node, leaf.stop, leaf.level = child, middle, leaf.level + 1
        # the child with fewer rows is counted, the other one is what remains of the parent
        small, large = right, leaf
        if middle - leaf.start < right.stop - middle:
            small, large = leaf, right
            leaf.slot, right.slot = right.slot, leaf.slot
        self._measure(small)
        self._measure(large, small)
        self._free += [child.slot for child in (small, large) if child.gain <= 0.0]
        return right

    def _measure(self, leaf: _Leaf, counted: _Leaf | None = None) -> None:
        """Fill the leaf's sums, from its rows or from its parent's less its counted sibling's; find its best split."""
        sums = self._pool[leaf.slot, : self._bin_ptr[-1]]
        outputs = self._limits, sums, self._gains, self._cuts

        def count(first: int, last: int) -> None:
            """Sum the statistics of the leaf's rows per bin of features first .. last - 1, and find their best cuts."""
            rows = self._order[leaf.start : leaf.stop]
            where = self.n_outputs, self._bin_ptr, first, last
            measure(self._codes, self._statistics, *where, rows, *outputs)

        def subtract(first: int, last: int) -> None:
            """The same sums as those of the parent less those of the sibling."""
            assert counted is not None
            measure_rest(
                self._pool[counted.slot, : self._bin_ptr[-1]], self.n_outputs, self._bin_ptr, first, last, *outputs
            )

        work = count if counted is None else subtract
        size = (leaf.stop - leaf.start) * len(self._gains) if counted is None else sums.size
        map_parts(work, len(self._gains)) if size >= _MANY else work(0, len(self._gains))
        # the same rows split off by two features gain the same up to rounding: the first one wins
        best = self._gains.max()
        leaf.feature = int(np.argmax(self._gains >= best - self._limits[2]))
        leaf.gain, leaf.cut = float(self._gains[leaf.feature]), int(self._cuts[leaf.feature])


#: Scores of all rows that are not available are computed and kept between rounds up to this many numbers.
_MAX_KEPT_SCORES = 1 << 26
#: Rows that are gathered at once from other places, for several rounds.
_MAX_FETCHED = 500_000
#: Mean gradient at which a leaf counts as fitted.
_LEAF_TOL = 1e-4
#: From this many rows on, leaves are fitted by several threads.
_MANY_ROWS = 50_000


class Rounds:
    """A boosting run on one problem: `step` adds one tree.

    A round costs a pass over the rows drawn for every level of the tree, and a walk down the tree for every
    row, or every combination of codes where those are few. With very many rows, or scores too large to keep,
    the scores of the rows drawn are instead computed from the trees; the result is the same. Rows that are not in this
    process are drawn for many rounds at once.
    """

    def __init__(self, problem: Problem, options: Boosting, n_rounds: int, rng: np.random.Generator):
        self.problem, self.options, self.n_rounds = problem, options, n_rounds
        self.edges, self.before = options.edges_, options.forest
        #: Trees added by `step`, each as an ensemble.
        self.grown: list[TreeEnsemble] = []
        self.binned = Binned.of(problem, self.edges)
        self.size = min(problem.n_rows, options.subsample or problem.n_rows)
        # the slack makes 1 / 0.01 come to 100
        max_leaves = int(1 / options.min_leaf + 1e-6)
        if options.max_leaves is not None:
            max_leaves = min(max_leaves, options.max_leaves)
        # how many leaves can at once be heavy enough to be split
        max_open = min(max_leaves, int(1 / max(options.min_split, 2 * options.min_leaf) + 1e-6))
        self._growth = Growth(count_bins(self.edges), problem.n_outputs, max_leaves, max_open + 2)
        self._statistics = np.empty((self.size, self._growth.width))
        #: Scores of all codes by the trees there were, and by those added since; None if they are not stored.
        self._start = self._kept_scores()
        self._more = None if self._start is None else np.zeros_like(self._start)
        self._drawn = _draw_rows(problem, self.size, n_rounds, rng)
        self._rng = rng.spawn(1)[0]

    def _kept_scores(self) -> Floats | None:
        """Scores of all codes, if keeping them current costs less than scoring each round's rows."""
        if self.binned is None:
            return None
        n, n_before = len(self.binned.codes), len(self.before.depths)
        walks_kept = n * (n_before + self.n_rounds)
        walks_drawn = self.size * self.n_rounds * (n_before + self.n_rounds / 2)
        if n * self.problem.n_outputs > _MAX_KEPT_SCORES or (self.size < n and walks_drawn < walks_kept):
            return None
        return self.before.scores(self.binned.codes)

    def step(self) -> None:
        """Draw rows, grow a tree on the gradient, fit its leaves on the loss, shrink it and add it."""
        batch, codes, scores = self._score(*next(self._drawn))
        residual = self._residual(batch, scores)
        fill_statistics(residual, batch.weight, self._statistics)
        n, share = self.problem.n_features, self.options.features
        columns = None if share == 1.0 else np.sort(self._rng.choice(n, max(1, round(share * n)), replace=False))
        tree = self._growth.tree(codes, self._statistics, self._limits(residual, batch.weight), columns)
        values = self.options.shrinkage * self._leaf_values(tree, batch, scores)
        self.grown.append(TreeEnsemble(tree.nodes, values, np.array([0, len(tree.nodes)]), np.array([tree.depth])))
        if self._more is not None and self.binned is not None:
            self.grown[-1].add_to(self._more, self.binned.codes)

    def added(self) -> TreeEnsemble:
        """The trees added by `step`."""
        return TreeEnsemble.join([TreeEnsemble.empty(self.problem.n_outputs), *self.grown])

    def losses(self, shares: Sequence[float]) -> Floats:
        """The summed loss of all rows when the trees added by `step` are multiplied by each of the shares."""
        added, listed = self.added(), None
        if self.binned is not None and self.binned.listed:
            codes = self.binned.codes
            listed = self.binned.n_bins, self.before.scores(codes), added.scores(codes)
        return np.array(self.problem.sum(_share_losses, self.edges, self.before, added, shares, listed))

    def _score(self, rows: slice | Ints, batch: Batch) -> tuple[Batch, Codes, Floats]:
        """The rows of this round with their codes and their scores."""
        binned = self.binned
        codes = encode(batch.x, self.edges) if binned is None or binned.listed else binned.codes[rows]
        if self._start is not None and self._more is not None and binned is not None:
            place = binned.place(rows, codes)
            return batch, codes, self._start[place] + self._more[place]
        return batch, codes, _before(batch, codes, self.before) + self.added().scores(codes)

    def _residual(self, batch: Batch, scores: Floats) -> Floats:
        """Minus the gradient of the loss at these scores, (n, K)."""
        residual = np.empty_like(scores)

        def fill(rows: slice) -> None:
            """Compute it for some rows."""
            parts = [array[rows] if len(array) else array for array in batch.targets]
            loss_rows(scores[rows], *parts, residual[rows])

        map_chunks(fill, len(scores), 4 * scores.shape[1])
        return residual

    def _limits(self, residual: Floats, weight: Floats) -> Floats:
        """Least weight of a leaf and of a node to be split, and the gain below which differences are rounding."""
        total = float(weight.sum()) if len(weight) else float(self.size)
        # not by BLAS, whose threads cost more than the sum
        noise = 1e-14 * float(np.einsum("ij,ij->", residual, residual)) * self.size / total
        # the slack keeps a share such as 1 % of 100 rows from failing by rounding
        shares = np.array([self.options.min_leaf, self.options.min_split]) * total * (1 - 1e-9)
        return np.append(shares, noise)

    def _leaf_values(self, tree: Tree, batch: Batch, scores: Floats) -> Floats:
        """Leaf vectors (nodes, K) of the tree, not yet shrunk."""
        values = np.zeros((len(tree.nodes), self.problem.n_outputs))
        rows = scores + batch.bias if len(batch.bias) else scores
        how = self.options.refit, _LEAF_TOL, values

        def fit(first: int, last: int) -> None:
            """Fit the vectors of leaves first .. last - 1."""
            targets = batch.labels, batch.soft, batch.weight
            fit_leaves(rows, *targets, tree.order, tree.spans[first:last], *how)

        n_leaves = len(tree.spans)
        map_parts(fit, n_leaves) if len(rows) >= _MANY_ROWS else fit(0, n_leaves)
        return values


def _draw_rows(
    problem: Problem, size: int, n_rounds: int, rng: np.random.Generator
) -> Iterator[tuple[slice | Ints, Batch]]:
    """Row numbers, ascending, and the rows of round after round; elsewhere those of many rounds are fetched at once."""
    if size == problem.n_rows:
        every = slice(None)
        rows = problem.draw(every) if problem.local else problem.draw(every).table().take(every)
        yield from repeat((every, rows))
    while True:
        together = 1 if problem.local else max(1, min(n_rounds, _MAX_FETCHED // size))
        n_rounds -= together
        chosen = [np.sort(rng.choice(problem.n_rows, size, replace=False)) for _ in range(together)]
        if problem.local:
            yield chosen[0], problem.draw(chosen[0])
            continue
        fetched = np.unique(np.concatenate(chosen))
        table = problem.draw(fetched).table()
        for numbers in chosen:
            yield numbers, table.take(np.searchsorted(fetched, numbers))


def _before(batch: Batch, codes: Codes, forest: TreeEnsemble) -> Floats:
    """Scores of some rows by the earlier trees, which may be available already."""
    if batch.scores is not None and len(forest.depths):
        return batch.scores
    return forest.scores(codes)


def _share_losses(
    batch: Batch,
    edges: Floats,
    before: TreeEnsemble,
    added: TreeEnsemble,
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
        start, more = _before(batch, codes, before), added.scores(codes)
    return np.array([batch.loss(start + share * more) for share in shares])


#: A node keeps its feature's number in 16 bits.
_MAX_FEATURES = 1 << 16
#: Factors that a fit may multiply its new trees by: those that fit the noise of the rows drawn help when taken in part.
_SHARES = (0.0, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)


class TreePotential(Potential):
    """Scores that are sums of trees on binned features."""

    threaded: ClassVar[bool] = True
    saved: ClassVar[Schema] = {
        **Potential.saved,
        "edges_": Array("f8", ("d", MAX_BINS), low=-sys.float_info.max, finite=False),
        "node_ptr_": Array("i8", ("T+1",), ends="m"),
        "depths_": Array("i8", ("T",), low=0, below="m+1"),
        "nodes_": Array("i8", ("m",), low=0, below=2**56),
        "values_": Array("f8", ("m", "K")),
        "bins": Rule(lambda values: np.all(values["edges_"][:, 1:] >= values["edges_"][:, :-1]), "are not sorted"),
        "trees": Rule(
            lambda values: TreeEnsemble(
                *(values[name] for name in ("nodes_", "values_", "node_ptr_", "depths_"))
            ).is_sound(values["n_features_"]),
            "are inconsistent",
        ),
    }

    @property
    def forest(self) -> TreeEnsemble:
        """All trees, as views of `nodes_`, `values_`, `node_ptr_` and `depths_`."""
        return TreeEnsemble(self.nodes_, self.values_, self.node_ptr_, self.depths_)

    @forest.setter
    def forest(self, forest: TreeEnsemble) -> None:
        """Take other trees."""
        self.nodes_, self.values_ = forest.nodes, forest.values
        self.node_ptr_, self.depths_ = forest.node_ptr, forest.depths


@dataclass(eq=False, repr=False)
class Boosting(TreePotential):
    """Stochastic gradient boosting of the biased logistic loss [ILR-chapter sec. 1.9.4].

    Each round draws `subsample` rows (None: all), grows one tree for all configurations on the gradient by
    least squares, fits its leaf vectors on the loss itself (`refit=False`: leaves the mean gradient), and
    adds it times `shrinkage`. Leaves hold at least `min_leaf` of the drawn weight, nodes lighter than
    `min_split` are not split, features are cut into `bins` quantile bins, and each tree sees a share `features` of
    them, drawn at random. The first fit grows `rounds`
    trees. Together they are then multiplied by the factor (1, 1/2, ..., 1/16 or 0) with the lowest loss of all
    rows: once the loss is low, trees fitted to the drawn rows mostly fit their noise. Draw more rows if there are
    many configurations, so that a leaf has some for each.

    A further fit adds `more_rounds` trees by default. The chapter instead grows `rounds` new
    trees from the zero function; `restart=True` does that and keeps the new trees if their loss is lower.
    It rarely is, because by then the biases are adapted to the old trees, and learning stops early. Each fit
    draws different rows; equal values of `seed` give equal sequences of fits. `max_leaves` limits the leaves of a tree
    (None: as many as `min_leaf` and `min_split` allow).

    Example:
        >>> import potentia as pt
        >>> crf = pt.CRF({"node": pt.Boosting(rounds=10), "edge": pt.Potts()}, "joint")
        >>> crf.fit(pt.datasets.denoising(2, (8, 8), seed=0)).predict(pt.datasets.denoising(1, (8, 8), seed=1))[0].shape
        (64,)
    """

    rounds: int = 200
    shrinkage: float = 0.25
    subsample: int | None = 10_000
    min_leaf: float = 0.01
    min_split: float = 0.025
    max_leaves: int | None = None
    bins: int = 256
    features: float = 1.0
    refit: bool = True
    restart: bool = False
    more_rounds: int = 20
    seed: int = 0

    @property
    def n_trees(self) -> int:
        """Trees grown so far."""
        return len(self.depths_)

    def _begin(self, problem: Problem) -> None:
        """No trees, and no edges of bins yet."""
        if not 1 <= problem.n_features <= _MAX_FEATURES:
            raise PotentiaError(
                f"Boosting needs 1 to {_MAX_FEATURES} features, x has shape {(problem.n_rows, problem.n_features)}."
            )
        self.edges_ = np.full((problem.n_features, MAX_BINS), np.inf)
        self.forest = TreeEnsemble.empty(problem.n_outputs)

    def _improve(self, problem: Problem) -> tuple[float, float]:
        """Add rounds of trees, times the share of them that has the lowest loss on all rows."""
        check_count("seed", self.seed)
        rng = np.random.default_rng([self.seed, self.n_fits_])
        before = problem.sum(self._kept_loss, width=self._width()) if self.restart else None
        rounds = self.begin_rounds(problem, rng)
        first = len(self.values_)
        for _ in range(rounds.n_rounds):
            rounds.step()
        losses = rounds.losses(_SHARES)
        best = int(np.nanargmin(losses))
        if best:
            self.forest = TreeEnsemble.join([rounds.before, *rounds.grown])
            self.values_[first:] *= _SHARES[best]
        return float(losses[0] if before is None else before), float(losses[best])

    def begin_rounds(self, problem: Problem, rng: np.random.Generator) -> Rounds:
        """Settle the bins and get ready for rounds, whose `step` can then be timed or watched one by one."""
        self._check_rules()
        if self.subsample is None and not problem.local:
            raise PotentiaError(
                "Boosting(subsample=None) reads all rows in every round, but they are not all in memory: give a number."
            )
        from_zero = self.restart or self.n_trees == 0
        if from_zero:
            self.edges_ = draw_edges(problem, self.bins, rng)
            self.forest = TreeEnsemble.empty(problem.n_outputs)
        return Rounds(problem, self, self.rounds if from_zero else self.more_rounds, rng)

    def scores_mark(self) -> Any:
        """The bins and the number of trees: further trees only add to scores."""
        return self.edges_, self.n_trees

    def update_scores(self, x: Any, scores: Floats, mark: Any) -> None:
        """Add the trees grown since, to the last bit what `scores` would compute."""
        edges, n_trees = mark
        # the function may have come from another process: equal bins and more trees are more trees of the same run
        same = not self.restart and n_trees <= self.n_trees and np.array_equal(edges, self.edges_)
        if not same or self._tabulated() is not None:
            scores[:] = self._scores(x)
        elif n_trees < self.n_trees:
            self.forest.add_to(scores, encode(x, self.edges_), n_trees)

    def _check_rules(self) -> None:
        """Refuse options of growth that are out of bounds."""
        for name in ("shrinkage", "min_split"):
            check_number(name, getattr(self, name), 0.0, 1.0)
        for name, least in (("rounds", 0), ("more_rounds", 0), ("bins", 2)):
            check_count(name, getattr(self, name), least)
        for name in ("subsample", "max_leaves"):
            check_count(name, getattr(self, name), 1, optional=True)
        if not 0 < real_number(self.min_leaf, "min_leaf") <= 0.5:
            raise PotentiaError(f"min_leaf must be a share in (0, 0.5], not {shown(self.min_leaf)}.")
        check_positive("features", self.features, 1.0)
        if self.bins > MAX_BINS:
            raise PotentiaError(f"bins must be at most {MAX_BINS}, not {self.bins}.")

    def ready(self, n_rows: int) -> None:
        """Tabulate the function, once per fit, if it has far fewer different values than there are rows."""
        if self._tabulated() is None:
            cells = all_cells(count_bins(self.edges_), n_rows)
            if cells is not None:
                self._table = self.values_, self.forest.scores(cells)

    def _tabulated(self) -> Floats | None:
        """The table made of the current trees, if there is one."""
        values, table = getattr(self, "_table", (None, None))
        return table if values is self.values_ else None

    def _scores(self, x: Any) -> Floats:
        """The sum of the trees' leaf vectors, looked up where combinations of codes are few."""
        codes = encode(x, self.edges_)
        table = self._tabulated()
        return self.forest.scores(codes) if table is None else table[cell_of(codes, count_bins(self.edges_))]

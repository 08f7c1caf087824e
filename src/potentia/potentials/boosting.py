"""Boosted regression trees with vector leaves."""

from __future__ import annotations

import sys
from typing import Any, ClassVar

import numpy as np

from potentia._options import check_count, check_number
from potentia._schema import Array, Rule, Schema
from potentia._types import Floats, Ints, PotentiaError, real_number, shown
from potentia.kernels.decision_trees import MAX_BINS
from potentia.potentials.base import Potential
from potentia.potentials.binning import all_cells, cell_of, count_bins, draw_edges, encode
from potentia.potentials.problem import Problem
from potentia.potentials.rounds import Rounds, Rules
from potentia.potentials.tree_ensemble import TreeEnsemble

#: A node keeps its feature's number in 16 bits.
_MAX_FEATURES = 1 << 16
#: What a fit may multiply its new trees by: those that fit the noise of the rows drawn help when taken in part.
_SHARES = (0.0, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)


class Boosting(Potential):
    """Stochastic gradient boosting of the biased logistic loss [ILR-chapter sec. 1.9.4].

    Each round draws `subsample` rows (None: all), grows one tree for all configurations on the gradient by
    least squares, fits its leaf vectors on the loss itself (`refit=False`: leaves the mean gradient), and
    adds it times `shrinkage`. Leaves hold at least `min_leaf` of the drawn weight, nodes lighter than
    `min_split` are not split, and features are cut into `bins` quantile bins. The first fit grows `rounds`
    trees. Together they are then multiplied by the factor (1, 1/2, ..., 1/16 or 0) with the lowest loss of all
    rows: once the loss is low, trees fitted to the drawn rows mostly fit their noise. Draw more rows if there are
    many configurations, so that a leaf has some for each.

    A further fit adds `more_rounds` trees by default. The chapter instead grows `rounds` new
    trees from the zero function; `restart=True` does that and keeps the new trees if their loss is lower.
    It rarely is, because by then the biases are adapted to the old trees, and learning stops early. Each fit
    draws different rows; equal seeds give equal sequences of fits.
    """

    threaded: ClassVar[bool] = True
    grows: ClassVar[bool] = True
    weights_are_copies: ClassVar[bool] = False  # but where all rows are taken
    saved: ClassVar[Schema] = {
        **Potential.saved,
        "edges_": Array("f8", ("d", MAX_BINS), low=-sys.float_info.max, finite=False),
        "node_ptr_": Array("i8", ("T+1",), ends="m"),
        "depths_": Array("i8", ("T",), low=0, below="m+1"),
        "nodes_": Array("i8", ("m",), low=0, below=2**56),
        "values_": Array("f8", ("m", "K")),
        "bins": Rule(
            lambda found: np.all(found["edges_"][:, 1:] >= found["edges_"][:, :-1]), "are not sorted"
        ),
        "trees": Rule(
            lambda found: TreeEnsemble(
                *(found[name] for name in ("nodes_", "values_", "node_ptr_", "depths_"))
            ).is_sound(found["n_features_"]),
            "are inconsistent",
        ),
    }

    edges_: Floats
    nodes_: Ints
    values_: Floats
    node_ptr_: Ints
    depths_: Ints

    def __init__(
        self,
        rounds: int = 200,
        shrinkage: float = 0.25,
        subsample: int | None = 10_000,
        min_leaf: float = 0.01,
        min_split: float = 0.025,
        max_leaves: int | None = None,
        bins: int = 256,
        refit: bool = True,
        restart: bool = False,
        more_rounds: int = 20,
        seed: int = 0,
    ):
        self.rounds = rounds
        self.shrinkage = shrinkage
        self.subsample = subsample
        self.min_leaf = min_leaf
        self.min_split = min_split
        self.max_leaves = max_leaves
        self.bins = bins
        self.refit = refit
        self.restart = restart
        self.more_rounds = more_rounds
        self.seed = seed

    @property
    def n_trees(self) -> int:
        """Trees grown so far."""
        return len(self.depths_)

    @property
    def _forest(self) -> TreeEnsemble:
        return TreeEnsemble(self.nodes_, self.values_, self.node_ptr_, self.depths_)

    @_forest.setter
    def _forest(self, forest: TreeEnsemble) -> None:
        self.nodes_, self.values_ = forest.nodes, forest.values
        self.node_ptr_, self.depths_ = forest.node_ptr, forest.depths

    def _begin(self, problem: Problem) -> None:
        if not 1 <= problem.n_features <= _MAX_FEATURES:
            raise PotentiaError(
                f"Boosting needs 1 to {_MAX_FEATURES} features, x has shape {(problem.n_rows, problem.n_features)}."
            )
        self.edges_ = np.full((problem.n_features, MAX_BINS), np.inf)
        self._forest = TreeEnsemble.empty(problem.n_outputs)

    def _improve(self, problem: Problem) -> tuple[float, float]:
        check_count("seed", self.seed)
        rng = np.random.default_rng([self.seed, self.n_fits_])
        before = problem.sum(self._kept_loss, width=self._width()) if self.restart else None
        rounds = self.begin_rounds(problem, rng)
        first = len(self.values_)
        for _ in range(rounds.n_rounds):
            rounds.step(rng)
        losses = rounds.losses(_SHARES)
        best = int(np.nanargmin(losses))
        if best:
            self._forest = rounds.trees.forest().copy()
            self.values_[first:] *= _SHARES[best]
        return float(losses[0] if before is None else before), float(losses[best])

    def begin_rounds(self, problem: Problem, rng: np.random.Generator) -> Rounds:
        """Settle the bins and get ready for rounds, whose `step` can then be timed or watched one by one."""
        rules = self._rules()
        if self.subsample is None and not problem.local:
            raise PotentiaError(
                "Boosting(subsample=None) reads all rows in every round, but they are not all in memory: give a number."
            )
        from_zero = self.restart or self.n_trees == 0
        if from_zero:
            self.edges_ = draw_edges(problem, self.bins, rng)
            self._forest = TreeEnsemble.empty(problem.n_outputs)
        n_rounds = self.rounds if from_zero else self.more_rounds
        return Rounds(problem, self.edges_, rules, self._forest, n_rounds)

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
            self._forest.add_to(scores, encode(x, self.edges_), n_trees)

    def _rules(self) -> Rules:
        for name in ("shrinkage", "min_split"):
            check_number(name, getattr(self, name), 0.0, 1.0)
        for name, least in (("rounds", 0), ("more_rounds", 0), ("bins", 2)):
            check_count(name, getattr(self, name), least)
        for name in ("subsample", "max_leaves"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), 1)
        if not 0 < real_number(self.min_leaf, "min_leaf") <= 0.5:
            raise PotentiaError(f"min_leaf must be a share in (0, 0.5], not {shown(self.min_leaf)}.")
        if self.bins > MAX_BINS:
            raise PotentiaError(f"bins must be at most {MAX_BINS}, not {self.bins}.")
        # the slack makes 1 / 0.01 come to 100
        most = int(1 / self.min_leaf + 1e-6)
        leaves = most if self.max_leaves is None else min(most, self.max_leaves)
        return Rules(self.shrinkage, self.subsample, self.min_leaf, self.min_split, leaves, self.refit)

    def ready(self, n_rows: int) -> None:
        """Tabulate the function, once per fit, if it has far fewer different values than there are rows."""
        if self._tabulated() is None:
            cells = all_cells(count_bins(self.edges_), n_rows)
            if cells is not None:
                self._table = self.values_, self._forest.scores(cells)

    def _tabulated(self) -> Floats | None:
        """The table made of the current trees, if there is one."""
        values, table = getattr(self, "_table", (None, None))
        return table if values is self.values_ else None

    def _scores(self, x: Any) -> Floats:
        codes = encode(x, self.edges_)
        table = self._tabulated()
        return self._forest.scores(codes) if table is None else table[cell_of(codes, count_bins(self.edges_))]

"""Exact inference: linear time on forests, elimination (junction tree) elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from ..base.types import ArrayLike, Floats, InfeasibleError, Ints, PotentiaError, check_count
from ..graph.scores import Scores, score_labels
from ..graph.structure import Graph
from ..kernels.forest import descend
from . import elimination
from .base import Expectations, Inference, Result
from .engine import Entropy, Tape, bethe, drive
from .forest import best_labels, k_best, log_partition, parent_pairs
from .pair_engine import PairEngine, suits_pairs
from .structured import Expansion

_NONE = "no labelling has a finite score."


@dataclass
class Exact(Inference):
    """Exact log Z, marginals, best labelling and samples; on forests the k best labellings, too.

    Forests of pairs take two passes of belief propagation, linear in their size. Other graphs are eliminated
    variable by variable. If that needs a table of more than `max_table` entries, it is refused with the width.

    Example:
        >>> import potentia as pt
        >>> import numpy as np
        >>> graph = pt.Graph.chain(3, n_states=2)
        >>> theta = {"node": [[0, 1], [0, 0], [0, 0]], "edge": np.eye(2)}
        >>> result = pt.Exact().infer(graph, theta, observed={2: 0})
        >>> round(result.value, 4), result.marginals["node"].round(3).tolist()
        (3.1427, [[0.362, 0.638], [0.638, 0.362], [1.0, 0.0]])
        >>> pt.Exact().sample(graph, theta, 5, seed=0).shape
        (5, 3)
    """

    threaded: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    max_table: int = 2**26

    def run(self, scores: Scores, start: Result | None) -> Result:
        """Exact inference; `start` is ignored."""
        check_count("max_table", self.max_table, 1)
        if scores.graph.structures:
            tables = Expansion(scores)
            return tables.fold(elimination.eliminate(tables.scores, self.max_table))
        engine = self.engine(scores)
        return elimination.eliminate(scores, self.max_table) if engine is None else self.solve(engine)

    def engine(self, scores: Scores, start: Result | None = None) -> PairEngine | None:
        """Belief propagation whose two passes, from the leaves to the roots and back, are exact; forests only."""
        return PairEngine(scores, bethe(scores.graph), "tree") if _by_tree(scores.graph) else None

    def solve(self, engine: PairEngine, tape: Tape | None = None, cliques: bool = True) -> Result:
        """The two passes and what they give."""
        outcome = drive(engine, 2, 0.0, tape)._replace(residual=0.0, converged=True)
        if tape is not None:
            engine.record(tape.slots, 0)
        facts = {"bound": "exact", "target": "log_partition", "best": _best_of}
        return Result.of(engine.scores, outcome, engine.read(cliques), **facts)

    def maximise(self, scores: Scores) -> Ints:
        """The best labelling without marginals: one pass of maxima and one back."""
        check_count("max_table", self.max_table, 1)
        if scores.graph.structures:
            return self.maximise(Expansion(scores).scores)[: scores.graph.n_variables]
        if scores.graph.is_forest:
            return _forest_best(scores)
        return elimination.best_labelling(scores, self.max_table)

    def entropy_on(self, graph: Graph) -> Entropy | None:
        """Bethe's on forests, where it is exact."""
        return bethe(graph) if _by_tree(graph) else None

    def expectations(self, scores: Scores, start: Result | None = None) -> Expectations:
        """log Z and its gradient; on forests, two passes compute nothing else."""
        if _by_tree(scores.graph):
            value_and_tables = log_partition(scores)
            if value_and_tables is not None:
                return Expectations(*value_and_tables, "exact", "log_partition")
        return super().expectations(scores)

    def sample(
        self,
        graph: Graph,
        theta: Mapping[str, ArrayLike],
        n: int,
        *,
        observed: ArrayLike | None = None,
        seed: int | np.random.Generator = 0,
    ) -> Ints:
        """n independent labellings drawn from p(y) proportional to exp F(y), (n, n_variables)."""
        check_count("the number of samples", n)
        scores = Scores(graph, theta, observed)
        rng = np.random.default_rng(seed)
        if scores.graph.structures:
            return elimination.sample(Expansion(scores).scores, n, rng, self.max_table)[:, : graph.n_variables]
        if _by_tree(graph):
            return _tree_samples(scores, rng, n)
        return elimination.sample(scores, n, rng, self.max_table)

    def k_best(
        self, graph: Graph, theta: Mapping[str, ArrayLike], k: int, *, observed: ArrayLike | None = None
    ) -> Ranking:
        """The k labellings of highest score of a chain or forest; fewer if no more are allowed.

        Raises `InfeasibleError` if none is allowed. Labellings with equal scores are listed in any order. The cost is
        linear in the variables, at worst :math:`O(n L^2 k^2)`.
        """
        check_count("k", k, 1)
        if not graph.is_forest:
            raise PotentiaError("k_best needs a graph of variables and pairs without loops.")
        ranking = Ranking(*k_best(Scores(graph, theta, observed), k))
        if not len(ranking.scores):
            raise InfeasibleError(_NONE)
        return ranking


class Ranking(NamedTuple):
    """The best labellings, (m, n_variables), and their scores, (m,), best first."""

    labels: Ints
    scores: Floats


def _best_of(result: Result) -> Ints:
    """The best labelling of a forest."""
    return _forest_best(result.scores)


def _forest_best(scores: Scores) -> Ints:
    """The best labelling of a forest; refuses where all are forbidden."""
    labels = best_labels(scores)
    if score_labels(scores, labels) == -np.inf:
        raise InfeasibleError(_NONE)
    return labels


def _by_tree(graph: Graph) -> bool:
    """Whether two passes over a forest of pairs suffice."""
    return graph.is_forest and suits_pairs(graph)


def _tree_samples(scores: Scores, rng: np.random.Generator, n: int) -> Ints:
    """Samples, top-down from messages."""
    graph = scores.graph
    engine = PairEngine(scores, bethe(graph), "tree")
    drive(engine, 2, 0.0)
    read = engine.read()
    order, parent, pair, side, *_ = parent_pairs(graph)
    with np.errstate(divide="ignore"):
        root = np.log(read.singles)
    labels = np.zeros((n, graph.n_variables), dtype=np.int64)
    for row in labels:
        noise = rng.gumbel(size=root.shape)
        descend(order, parent, pair, side, engine.pair_scores, read.messages, root, noise, row)
    return labels

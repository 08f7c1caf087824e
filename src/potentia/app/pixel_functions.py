"""Functions of single pixels that generalise to other images, by their names on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from ..base.resources import thread_count
from ..base.types import Floats, PotentiaError
from ..kernels.decision_trees import MAX_BINS
from ..potentials import Boosting, LightGBM, Potential
from ..potentials.boosting import TreePotential
from ..potentials.problem import Problem
from ..potentials.tree_ensemble import TreeEnsemble, draw_edges, encode
from .training import CRF_FUNCTIONS, make_potential

#: Functions of pixels: those that a CRF can train, too, and others; "auto" chooses.
PIXEL_FUNCTIONS = (*CRF_FUNCTIONS, "forest", "lightgbm", "network", "auto")
#: A mean of trees below this is not told from it.
_LEAST = 1e-4


def pixel_function(name: str, seed: int, n_states: int, leaves: int = 32) -> Potential:
    """An unfitted classifier of pixels, or of superpixels, of which there are fewer: `leaves` of boosted trees."""
    if name == "boosting":  # trees of some features each, in small steps, whose leaves may be far smaller than usual
        drawn = max(10_000, min(30_000, 240_000 // n_states))  # a row costs as much as there are classes
        return Boosting(
            50, 0.1, drawn, 0.002, 0.005, max_leaves=leaves, bins=64, features=0.3, more_rounds=50, seed=seed
        )  # fmt: skip
    if name == "lightgbm":
        return LightGBM(50, 0.1, more_rounds=50, params={"feature_fraction": 0.3}, seed=seed)
    return PixelForest(seed=seed) if name == "forest" else make_potential(name, seed)


def tried_functions() -> tuple[str, ...]:
    """The functions that "auto" cross-validates."""
    return "boosting", "forest", "linear", *(["lightgbm"] if find_spec("lightgbm") else [])


def check_torch() -> None:
    """Refuse networks where PyTorch is missing."""
    if find_spec("torch") is None:
        raise PotentiaError("networks of pixels need PyTorch: pip install potentia[torch].")


@dataclass(eq=False, repr=False)
class PixelForest(TreePotential):
    """scikit-learn's extremely randomised trees, whose mean's logarithm is the score; fitted once, without biases.

    Features are cut into 256 bins before. Trees are kept as those of `Boosting`, without scikit-learn's objects.
    """

    trees: int = 100
    min_samples_leaf: int = 5
    seed: int = 0

    def _begin(self, problem: Problem) -> None:
        """No trees."""
        self.edges_ = np.full((problem.n_features, MAX_BINS), np.inf)
        self.forest = TreeEnsemble.empty(problem.n_outputs)

    def _fit(self, problem: Problem) -> None:
        """Grow trees on all rows; they stay if there are some."""
        from sklearn.ensemble import ExtraTreesClassifier

        if len(self.depths_):
            return
        rows = problem.draw(slice(None))
        self.edges_ = draw_edges(problem, MAX_BINS, np.random.default_rng(self.seed))
        grown = ExtraTreesClassifier(
            self.trees, min_samples_leaf=self.min_samples_leaf, random_state=self.seed, n_jobs=thread_count(None)
        )
        weight = rows.weight if len(rows.weight) else None
        grown.fit(encode(rows.x, self.edges_).astype(np.float32), rows.labels, weight)
        parts = [_packed(tree.tree_, grown.classes_, problem.n_outputs) for tree in grown.estimators_]
        forest = TreeEnsemble.join(parts)
        forest.values /= len(parts)
        self.forest = forest

    def _scores(self, x: Any) -> Floats:
        """The logarithm of the mean of the trees' probabilities."""
        if not len(self.depths_):
            return np.zeros((len(x), self.n_outputs_))
        return np.log(np.maximum(self.forest.scores(encode(x, self.edges_)), _LEAST))


def _packed(tree: Any, classes: Any, n_outputs: int) -> TreeEnsemble:
    """A tree of scikit-learn's on codes as nodes of ours, in which the children of a node follow one another."""
    split = np.flatnonzero(tree.children_left >= 0)
    place = np.zeros(tree.node_count, dtype=np.int64)
    place[tree.children_left[split]] = 1 + 2 * np.arange(len(split))
    place[tree.children_right[split]] = 2 + 2 * np.arange(len(split))
    nodes = place << 24 | MAX_BINS - 1
    # a code is at most a threshold where it is at most its whole part
    cuts = np.floor(tree.threshold[split]).astype(np.int64)
    nodes[split] = place[tree.children_left[split]] << 24 | tree.feature[split].astype(np.int64) << 8 | cuts
    found = tree.value[:, 0]
    values = np.zeros((tree.node_count, n_outputs))
    values[:, classes.astype(np.int64)] = found / found.sum(axis=1, keepdims=True)
    order = np.argsort(place)
    return TreeEnsemble(nodes[order], values[order], np.array([0, tree.node_count]), np.array([tree.max_depth]))

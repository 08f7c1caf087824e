"""Units of label networks: classifiers of single labels, and a random forest over whole labellings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.base import clone

from ...base.resources import map_items, thread_count
from ...base.saving import SavedFunction
from ...base.schema import Array, Choice, Items, Kind, Number, Rule, Schema, check
from ...base.types import Bools, Floats, Ints, PotentiaError
from ...learn.backends.connection import current, map_anywhere
from ...potentials.adapters import import_lightgbm
from .base import FitTask
from .hinge import HingeSolver, LabelRows, kernel_matrix, median_width
from .network import APART, alpha_path, held_out_scores, learn_networks
from .posterior import Seen, packed

#: Values that are tried: of alpha as in `network`, and of the kernel's width in units of the median rule's.
_ALPHAS, _WIDTHS = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4), (1.0, 3.0)
#: Tolerance and passes of fits that only compare options.
_LOOSE, _PASSES = 0.1, 30
#: Held-out rows that options are compared on: as many folds as that takes, of this many rows to learn from at most.
_COMPARED, _LEARNED = 600, 5000
#: Slopes at which a margin is tried as log-odds.
_SLOPES = (1.0, 2.0, 4.0, 8.0)
#: The score of a label that is constant in the rows learned from, and what probabilities are kept away from 0 and 1 by.
_CERTAIN, _LEAST = 5.0, 1e-3


#: Rows to learn from and rows to score, of each fold.
Folds = Sequence[tuple[Ints, Ints]]


class MarginUnit:
    """A support vector machine per label, linear or with an RBF kernel, of the least loss of held-out rows."""

    gamma: float
    _coef: Floats
    _bias: Floats
    _X: Floats | None = None
    saved: ClassVar[Schema] = {
        "kind": Choice(("linear", "rbf")),
        "gamma": Number(),
        "coef": Array("f8", ("V", "m")),
        "bias": Array("f8", ("V",)),
        "X": Array("f8", ("m", "d"), optional=True),
    }

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def learn(self, task: FitTask, held: FitTask, solver: HingeSolver, folds: Folds) -> Floats:
        """Learn from all rows; the scores (m, V) that each of the rows held has from the other folds of these."""
        X, signs, weight, least, widths = held.X, held.signs, held.weight, np.inf, [1.0]
        if self.kind == "rbf":
            self._X = _dense(task.X)
            widths = [factor * median_width(X, task.seed) for factor in _WIDTHS]
        loose = replace(solver, tol=max(solver.tol, _LOOSE), passes=min(solver.passes, _PASSES))
        compared = _first_folds(folds)
        rows = np.concatenate([test for _, test in compared])
        for gamma in widths:
            features = self._features(X, weight, gamma)
            solvers = [replace(loose, alpha=alpha) for alpha in alpha_path(features, _ALPHAS)]
            held_out = held_out_scores(features, signs, solvers, compared, task.solved)
            for candidate, scores in zip(solvers, held_out, strict=True):
                loss = _log_loss(scores[rows], signs[rows], weight[rows])
                if loss < least:
                    least, self.gamma, alpha, best = loss, gamma, candidate.alpha, scores
        features, labels = self._features(X, weight, self.gamma), np.arange(signs.shape[1])
        for train, test in folds if len(rows) < len(signs) else ():
            chosen = [replace(loose, alpha=alpha)]
            best[test] = held_out_scores(features, signs, chosen, [(train, test)], task.solved)[0, test]
        if held is not task:
            features = self._features(task.X, task.weight, self.gamma)
        solvers = [replace(solver, alpha=alpha)]
        (network,) = learn_networks(features, task.signs, solvers, labels, APART, task.solved)
        self._coef, self._bias = network.coef, network.bias
        return best

    def _features(self, X: Any, weight: Floats, gamma: float) -> LabelRows:
        """The rows, or their kernel matrix, as the labels' problems see them."""
        gram = kernel_matrix(X, _dense(X), "rbf", gamma=gamma) if self.kind == "rbf" else None
        return LabelRows(X, gram, weight)

    def scores(self, X: Any) -> Floats:
        """Scores (n, V): products with the weights, and intercepts."""
        matrix = kernel_matrix(X, self._X, "rbf", gamma=self.gamma) if self.kind == "rbf" else X
        return np.asarray(matrix @ self._coef.T) + self._bias

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Kernel width and weights."""
        arrays = {"coef": self._coef, "bias": self._bias} | ({} if self._X is None else {"X": self._X})
        return {"kind": self.kind, "gamma": self.gamma}, arrays

    @classmethod
    def restored(cls, saved: dict[str, Any]) -> MarginUnit:
        """The unit that a file described."""
        unit = cls(saved["kind"])
        unit.gamma, unit._coef, unit._bias, unit._X = (saved[k] for k in ("gamma", "coef", "bias", "X"))
        if (unit._X is None) == (unit.kind == "rbf"):
            raise PotentiaError("the saved unit is damaged: its rows do not go with its kernel.")
        return unit


def _dense(X: Any) -> Floats:
    """Rows as an array."""
    return np.asarray(X.toarray() if sparse.issparse(X) else X)


def _first_folds(folds: Folds) -> Folds:
    """The first folds that hold out enough rows to compare options, with fewer rows where there are very many."""
    chosen: list[tuple[Ints, Ints]] = []
    for train, test in folds:
        chosen.append((train[:: -(-len(train) // _LEARNED)], test[:: -(-len(test) // _LEARNED)]))
        if sum(len(part) for _, part in chosen) >= _COMPARED:
            break
    return chosen


def _log_loss(scores: Floats, signs: Floats, weight: Floats) -> float:
    """The least mean logistic loss of margins over a few slopes."""
    return min(float(np.mean(weight * np.logaddexp(0.0, -slope * signs * scores))) for slope in _SLOPES)


class ClassifierUnit:
    """Copies of a scikit-learn or LightGBM classifier, one per label, of the rows whose label is known."""

    saved: ClassVar[Schema] = {"kind": Choice(("classifier",)), "models": Items(Kind((dict,)), "V")}

    def __init__(self, estimator: Any) -> None:
        self._estimator = estimator

    def learn(self, task: FitTask, held: FitTask, solver: HingeSolver, folds: Folds) -> Floats:
        """Learn from all rows; the scores (m, V) that each of the rows held has from the other folds of these."""
        scores, X, rows = np.empty(held.signs.shape), _as_csr(task.X), _as_csr(held.X)

        def solve(k: int) -> Any:
            for train, test in folds:
                own = self._fitted(rows, held.signs[:, k], held.weight[:, k], train)
                scores[test, k] = _score(own, rows[test])
            return self._fitted(X, task.signs[:, k], task.weight[:, k], np.arange(len(task.signs)))

        self._models = map_items(solve, range(task.signs.shape[1]), thread_count(None))
        return scores

    def _fitted(self, X: Any, signs: Floats, weight: Floats, rows: Ints) -> Any:
        rows = rows[weight[rows] > 0]
        signs, weight = signs[rows], weight[rows]
        if not rows.size or np.all(signs == signs[0]):
            return float(signs[0]) * _CERTAIN if rows.size else 0.0
        model = clone(self._estimator)
        weighted = {} if np.all(weight == 1.0) else {"sample_weight": weight}
        return model.fit(X[rows], (signs > 0).astype(np.int64), **weighted)

    def scores(self, X: Any) -> Floats:
        """Scores (n, V) by label of other rows."""
        rows = _as_csr(X)
        return np.column_stack([_score(model, rows) for model in self._models])

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The fitted classifiers as JSON; refuses those of unknown classes."""
        states = [_state_of(model) for model in self._models]
        strange = next((s["unknown"] for s in states if "unknown" in s), None)
        if strange is not None:
            raise PotentiaError(
                f"a LabelNetwork with units of class {strange} cannot be saved: linear models and LightGBM can."
            )
        return {"kind": "classifier", "models": states}, {}

    @classmethod
    def restored(cls, saved: dict[str, Any]) -> ClassifierUnit:
        """The unit that a file described."""
        unit = cls(None)
        unit._models = [_restored(state) for state in saved["models"]]
        return unit


def _as_csr(X: Any) -> Any:
    """Sparse rows as the kind of matrix that LightGBM asks for."""
    return sparse.csr_matrix(X) if sparse.issparse(X) else X


def _score(model: Any, rows: Any) -> Floats:
    """Scores (m) of rows: a decision function, or log-odds of probabilities; a number for a constant label.

    model: a fitted classifier, or of a restored one the booster, or weights and intercept.
    """
    if isinstance(model, float):
        return np.full(rows.shape[0], model)
    if isinstance(model, tuple):
        return np.asarray(rows @ model[0]) + model[1]
    if hasattr(model, "booster_") or hasattr(model, "model_to_string"):
        booster = getattr(model, "booster_", model)
        return np.asarray(booster.predict(rows, raw_score=True, num_threads=1))
    if hasattr(model, "decision_function"):
        return np.asarray(model.decision_function(rows))
    return log_odds(model.predict_proba(rows)[:, 1])


def log_odds(p: Floats, least: float = _LEAST) -> Floats:
    """log p / (1 - p), p kept away from 0 and 1."""
    p = np.clip(p, least, 1.0 - least)
    return np.log(p / (1.0 - p))


def _state_of(model: Any) -> dict[str, Any]:
    """A fitted classifier as JSON, or its class's name where it cannot be that."""
    if isinstance(model, float):
        return {"constant": model}
    if hasattr(model, "booster_") or hasattr(model, "model_to_string"):
        return {"lightgbm": getattr(model, "booster_", model).model_to_string()}
    if isinstance(model, tuple):
        return {"coef": model[0].tolist(), "intercept": model[1]}
    coef = getattr(model, "coef_", None)
    if coef is not None and np.shape(coef)[0] == 1 and hasattr(model, "decision_function"):
        return {"coef": np.ravel(coef).tolist(), "intercept": float(np.ravel(model.intercept_)[0])}
    return {"unknown": type(model).__name__}


def _restored(state: dict[str, Any]) -> Any:
    """The classifier whose state a file had, as `_score` takes it."""
    if isinstance(state.get("constant"), float):
        return state["constant"]
    if isinstance(state.get("lightgbm"), str):
        return import_lightgbm().Booster(model_str=state["lightgbm"])
    if isinstance(state.get("coef"), list) and isinstance(state.get("intercept"), float):
        return np.asarray(state["coef"], dtype=float), state["intercept"]
    raise PotentiaError("the saved unit is damaged: it holds a classifier of an unknown kind.")


#: Scores of labels, each by a separate classifier.
Unit = MarginUnit | ClassifierUnit


def make_unit(unit: Any, seed: int) -> Unit:
    """A unit by its name, or of a classifier."""
    if unit in ("linear", "rbf"):
        return MarginUnit(unit)
    if isinstance(unit, SavedFunction):
        unit()  # refuses, because a file has only the name
    if unit == "boosting":
        options = {"n_estimators": 100, "min_child_samples": 10, "num_threads": 1, "verbose": -1}
        unit = import_lightgbm().LGBMClassifier(**options, random_state=seed, deterministic=True, force_row_wise=True)
    elif "random_state" in unit.get_params():
        unit = clone(unit).set_params(random_state=seed)
    return ClassifierUnit(unit)


def restore_unit(content: Any, arrays: dict[str, Any], sizes: dict[str, int]) -> Unit:
    """The unit whose state a file had."""
    kind = content.get("kind") if isinstance(content, dict) else None
    if kind in ("linear", "rbf"):
        known = sizes | {"m": sizes["d"]} if kind == "linear" else dict(sizes)
        return MarginUnit.restored(check(MarginUnit.saved, {**content, **arrays}, "unit", known))
    return ClassifierUnit.restored(check(ClassifierUnit.saved, content, "unit", dict(sizes)))


# -- a forest over labellings --------------------------------------------------------------------------------

#: Rows whose features are spread out at once, and numbers of them.
_CHUNK, _ENTRIES = 1000, 1 << 23
#: Rows that a tree is grown from at most, and labels, or sums of them, that its splits look at.
_TREE_ROWS, _TREE_LABELS = 10_000, 30

#: Arrays of a file: the trees one after another, a leaf's left child being -1.
FOREST: Schema = {
    "labellings": Array("f8", ("L", "V"), low=-1),
    "left": Array("i8", ("m",), low=-1, below="m"),
    "right": Array("i8", ("m",), low=-1, below="m"),
    "feature": Array("i8", ("m",), low=0, below="d"),
    "threshold": Array("f8", ("m",)),
    "roots": Array("i8", ("T",), low=0, below="m"),
    "data": Array("f8", ("nnz",), low=0),
    "indices": Array("i8", ("nnz",), low=0, below="L"),
    "indptr": Array("i8", ("m+1",), ends="nnz"),
    "trees": Rule(
        lambda saved: (
            len(saved["roots"]) > 0
            and all(
                bool(np.all((side == -1) == (saved["left"] == -1)))
                and bool(np.all((side == -1) | (side > np.arange(len(side)))))
                for side in (saved["left"], saved["right"])
            )
        ),
        "are inconsistent",
    ),
}


class LabellingForest(NamedTuple):
    """Trees as flat arrays over their nodes, and the shares (nodes, L) of the labellings (L, V) in the leaves."""

    left: Ints
    right: Ints
    feature: Ints
    threshold: Floats
    roots: Ints
    shares: Any
    labellings: Floats

    def seen(self, X: Any) -> Seen:
        """P(labelling) of every row: the mean over trees of the shares in the leaf that is reached."""
        parts = [self._leaves(X[a : a + _CHUNK]) for a in range(0, X.shape[0], _CHUNK)]
        leaves = np.concatenate(parts) if parts else np.empty((0, len(self.roots)), dtype=np.int64)
        return self.seen_in(leaves, np.ones(leaves.shape, dtype=bool))

    def seen_in(self, leaves: Ints, counted: Bools) -> Seen:
        """The same of rows by the leaf (n, T) that each tree sends them to, over the trees that are counted (n, T)."""
        number = counted.sum(axis=1)
        weight = np.repeat(1.0 / np.maximum(number, 1), number)
        reached = sparse.csr_array(
            (weight, leaves[counted], np.append(0, np.cumsum(number))), shape=(len(leaves), len(self.left))
        )
        return Seen(self.labellings, sparse.csr_array(reached @ self.shares))

    def scores(self, seen: Seen) -> Floats:
        """Log-odds (n, V) of the labels, kept finite by half a tree."""
        return log_odds(seen.marginals(), 0.5 / len(self.roots))

    def _leaves(self, X: Any) -> Ints:
        """The leaf that each row reaches in each tree, (n, trees)."""
        # scikit-learn compares features in single precision
        values = (X.toarray() if sparse.issparse(X) else X).astype(np.float32)
        rows = np.arange(len(values))
        leaves = np.empty((len(values), len(self.roots)), dtype=np.int64)
        for t, root in enumerate(self.roots):
            node = np.full(len(values), root)
            inner = rows[self.left[node] >= 0]
            while inner.size:
                at = node[inner]
                less = values[inner, self.feature[at]] <= self.threshold[at]
                node[inner] = np.where(less, self.left[at], self.right[at])
                inner = inner[self.left[node[inner]] >= 0]
            leaves[:, t] = node
        return leaves

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays of a file."""
        indices, indptr = (part.astype(np.int64) for part in (self.shares.indices, self.shares.indptr))
        parts = {name: getattr(self, name) for name in FOREST if name in self._fields}
        return parts | {"data": self.shares.data, "indices": indices, "indptr": indptr}

    @staticmethod
    def from_arrays(saved: dict[str, Any]) -> LabellingForest:
        """The forest whose arrays a file had."""
        shape = (len(saved["left"]), len(saved["labellings"]))
        shares = sparse.csr_array((saved["data"], saved["indices"], saved["indptr"]), shape=shape)
        parts = {name: saved[name] for name in LabellingForest._fields if name != "shares"}
        return LabellingForest(shares=shares, **parts)


def learn_forest(X: Any, completed: Floats, weight: Floats, n_trees: int, seed: int) -> tuple[LabellingForest, Any]:
    """A forest, and `held_out(rows)`: probabilities of training rows' labellings by trees that did not see them.

    Trees learn the labellings completed[0], completed[1], ... (n, V) in turn. Each splits a bootstrap sample until its
    leaves are pure, by square roots of all features at a time. It is of `_TREE_ROWS` rows at most, and looks at random
    sums of labels where there are very many.
    """
    every = completed.reshape(-1, completed.shape[2])
    _, first, number = np.unique(packed(every), return_index=True, return_inverse=True)
    labellings = every[first]
    seeds = list(enumerate(np.random.default_rng(seed).integers(2**31 - 1, size=n_trees).tolist()))
    grow = partial(_grow, X.astype(np.float32), completed, labellings, number.reshape(completed.shape[:2]), weight)
    grown = map_items(grow, seeds, thread_count(None)) if current() is None else map_anywhere(grow, seeds)
    trees, leaves, unseen = zip(*grown, strict=True)
    roots = np.concatenate([[0], np.cumsum([len(tree.left) for tree in trees])])
    moves = list(zip(trees, roots, strict=False))
    forest = LabellingForest(
        np.concatenate([np.where(tree.left >= 0, tree.left + root, -1) for tree, root in moves]),
        np.concatenate([np.where(tree.right >= 0, tree.right + root, -1) for tree, root in moves]),
        np.concatenate([tree.feature for tree in trees]),
        np.concatenate([tree.threshold for tree in trees]),
        roots[:-1],
        sparse.csr_array(sparse.vstack([tree.shares for tree in trees])),
        labellings,
    )
    reached = np.stack(leaves, axis=1)
    aside = np.stack(unseen, axis=1)

    def held_out(rows: Ints) -> Seen:
        return forest.seen_in(reached[rows].astype(np.int64) + forest.roots, aside[rows])

    return forest, held_out


def _grow(
    X: Any, completed: Floats, labellings: Floats, numbers: Ints, weight: Floats, which: tuple[int, int]
) -> tuple[LabellingForest, Ints, Bools]:
    """A forest of one tree, by its number and seed, the leaf of every row, and which rows it did not see."""
    from sklearn.tree import DecisionTreeRegressor

    t, seed = which
    signs, number = completed[t % len(completed)], numbers[t % len(completed)]
    n, V = signs.shape
    rng = np.random.default_rng(seed)
    drawn = np.bincount(rng.integers(n, size=min(n, _TREE_ROWS)), minlength=n) * weight
    rows = np.arange(n) if n <= _TREE_ROWS else np.flatnonzero(drawn)
    targets = signs[rows]
    if V > _TREE_LABELS:  # which keep distances between labellings [Joly et al. 2014]
        targets = targets @ rng.normal(size=(V, _TREE_LABELS))
    own = X[rows]
    model = DecisionTreeRegressor(max_features="sqrt", random_state=seed)
    model.fit(own.toarray() if sparse.issparse(X) else own, targets, sample_weight=drawn[rows], check_input=True)
    tree = model.tree_
    step = max(1, _ENTRIES // X.shape[1])
    blocks = (X[a : a + step] for a in range(0, n, step))
    leaves = np.concatenate([tree.apply(block.toarray() if sparse.issparse(X) else block) for block in blocks])
    counts = sparse.coo_array((drawn, (leaves, number)), shape=(tree.node_count, len(labellings))).tocsr()
    counts.eliminate_zeros()
    sums = np.asarray(counts.sum(axis=1)).ravel()
    shares = sparse.csr_array(sparse.diags_array(1.0 / np.where(sums > 0, sums, 1.0)) @ counts)
    left, right, feature = (
        side.astype(np.int64) for side in (tree.children_left, tree.children_right, np.maximum(tree.feature, 0))
    )
    root = np.zeros(1, dtype=np.int64)
    grown = LabellingForest(left, right, feature, tree.threshold.copy(), root, shares, labellings)
    return grown, leaves.astype(np.int32), drawn == 0

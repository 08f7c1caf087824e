"""What label networks are built on: classifiers of single labels, and a random forest over whole labellings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.base import clone

from ...base.saving import SavedFunction
from ...base.schema import Array, Choice, Items, Kind, Number, Rule, Schema, check
from ...base.threads import map_items, thread_count
from ...base.types import Bools, Floats, Ints, PotentiaError
from .base import Solved
from .hinge import HingeSolver, LabelRows
from .network import APART, learn_networks
from .rows import kernel_matrix, median_width
from .selection import alpha_path, splits

#: Values that are tried: of alpha as in `selection`, and of the kernel's width in units of the median rule's.
_ALPHAS, _WIDTHS = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4), (1.0, 3.0)
#: Tolerance and passes of fits that only compare options.
_LOOSE, _PASSES = 0.1, 30
#: Slopes at which a margin is tried as log-odds.
_SLOPES = (1.0, 2.0, 4.0, 8.0)
#: The score of a label that is constant in the rows learned from, and what probabilities are kept away from 0 and 1 by.
_CERTAIN, _LEAST = 5.0, 1e-3


class UnitTask(NamedTuple):
    """What units learn from: rows, signs (n, V), weights (n, V), the order of labels, and how to hold out rows."""

    X: Any
    signs: Floats
    weight: Floats
    order: Ints
    solver: HingeSolver
    folds: int
    solved: Solved

    def splits(self) -> list[tuple[Ints, Ints]]:
        """Rows to learn from and to score; all and all where there are fewer than two per fold."""
        n = len(self.signs)
        if n < 2 * self.folds:
            return [(np.arange(n), np.arange(n))]
        return list(splits(n, self.folds, self.solver.seed))


class Unit(ABC):
    """Scores of labels, each by a separate classifier."""

    #: Whether scores depend on earlier labels.
    sees_labels: ClassVar[bool] = False

    @abstractmethod
    def learn(self, task: UnitTask) -> Floats:
        """Learn from all rows; the scores (n, V) that each row has from the other folds."""

    @abstractmethod
    def scores(self, X: Any) -> Floats:
        """Scores (n, V) by label of other rows, whatever earlier labels are."""

    def scores_after(self, place: int, X: Any, signs: Floats) -> Floats:
        """Scores (m) of the label at a place for rows (m, d), given the signs (m, place) of the labels before it."""
        raise NotImplementedError

    @abstractmethod
    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """JSON and arrays of a file."""


class MarginUnit(Unit):
    """A support vector machine per label, linear or with an RBF kernel, of the least loss of held-out rows."""

    gamma: float
    _coef: Floats
    _bias: Floats
    _X: Floats | None = None
    saved: ClassVar[Schema] = {
        "kind": Choice(("linear", "rbf")),
        "gamma": Number(),
        "own": Array("f8", ("V", "m")),
        "bias": Array("f8", ("V",)),
        "X": Array("f8", ("m", "d"), optional=True),
    }

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def learn(self, task: UnitTask) -> Floats:
        X, signs, weight, least, widths = task.X, task.signs, task.weight, np.inf, [1.0]
        if self.kind == "rbf":
            self._X = np.asarray(X.toarray() if sparse.issparse(X) else X)
            widths = [factor * median_width(X, task.solver.seed) for factor in _WIDTHS]
        for gamma in widths:
            features = self._features(X, weight, gamma)
            alphas = alpha_path(features, _ALPHAS)
            for alpha, scores in zip(alphas, _held_out(features, alphas, task), strict=True):
                loss = _log_loss(scores, signs, weight)
                if loss < least:
                    least, self.gamma, best_alpha, best = loss, gamma, alpha, scores
        solver, features = replace(task.solver, alpha=best_alpha), self._features(X, weight, self.gamma)
        labels = np.arange(signs.shape[1])
        (network,) = learn_networks(features, signs, [solver], labels, APART, task.solved)
        self._coef, self._bias = network.coef, network.bias
        return best

    def _features(self, X: Any, weight: Floats, gamma: float) -> LabelRows:
        gram = kernel_matrix(X, self._X, "rbf", gamma=gamma) if self.kind == "rbf" else None
        return LabelRows(X, gram, weight)

    def scores(self, X: Any) -> Floats:
        matrix = kernel_matrix(X, self._X, "rbf", gamma=self.gamma) if self.kind == "rbf" else X
        return np.asarray(matrix @ self._coef.T) + self._bias

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays = {"own": self._coef, "bias": self._bias} | ({} if self._X is None else {"X": self._X})
        return {"kind": self.kind, "gamma": self.gamma}, arrays

    @classmethod
    def restored(cls, saved: dict[str, Any]) -> MarginUnit:
        """The unit that a file described."""
        unit = cls(saved["kind"])
        unit.gamma, unit._coef, unit._bias, unit._X = (saved[k] for k in ("gamma", "own", "bias", "X"))
        if (unit._X is None) == (unit.kind == "rbf"):
            raise PotentiaError("the saved unit is damaged: its rows do not go with its kernel.")
        return unit


def _held_out(features: LabelRows, alphas: list[float], task: UnitTask) -> Floats:
    """Scores (alphas, n, V) of rows by machines of the other folds."""
    solver = replace(task.solver, tol=max(task.solver.tol, _LOOSE), passes=min(task.solver.passes, _PASSES))
    solvers = [replace(solver, alpha=alpha) for alpha in alphas]
    scores, labels = np.empty((len(alphas), *task.signs.shape)), np.arange(task.signs.shape[1])
    for train, test in task.splits():
        part, matrix = features.split(train, test)
        signs = np.ascontiguousarray(task.signs[train])
        for a, network in enumerate(learn_networks(part, signs, solvers, labels, APART, task.solved)):
            scores[a, test] = network.base(matrix)
    return scores


def _log_loss(scores: Floats, signs: Floats, weight: Floats) -> float:
    """The least mean logistic loss of margins over a few slopes."""
    return min(float(np.mean(weight * np.logaddexp(0.0, -slope * signs * scores))) for slope in _SLOPES)


#: Scores (m) of rows.
Scorer = Callable[[Any], Floats]


class ClassifierUnit(Unit):
    """Copies of a scikit-learn or LightGBM classifier, one per label; `sees_labels`: earlier labels are features."""

    saved: ClassVar[Schema] = {
        "kind": Choice(("classifier", "classifier given labels")),
        "models": Items(Kind((dict,)), "V"),
    }

    def __init__(self, estimator: Any, sees_labels: bool = False) -> None:
        self._estimator = estimator
        self.sees_labels = sees_labels  # type: ignore[misc]

    def learn(self, task: UnitTask) -> Floats:
        scores, parts = np.empty(task.signs.shape), task.splits()

        def solve(place: int) -> Any:
            k = task.order[place]
            rows = self._rows(task.X, task.signs[:, task.order[:place]])
            for train, test in parts:
                model = self._fitted(rows[train], task.signs[train, k], task.weight[train, k])
                scores[test, k] = _scorer(model)(rows[test])
            return self._fitted(rows, task.signs[:, k], task.weight[:, k])

        models = map_items(solve, range(len(task.order)), thread_count(None))
        self._use([_state_of(model) for model in models], models, task.order)
        return scores

    def _use(self, states: list[dict[str, Any]], models: list[Any], order: Ints) -> None:
        self._states, self._scorers, self._order = states, [_scorer(model) for model in models], order

    def _rows(self, X: Any, signs: Floats) -> Any:
        if sparse.issparse(X):
            parts = [X, sparse.csr_array(signs)] if self.sees_labels else [X]
            return sparse.csr_matrix(sparse.hstack(parts))  # which LightGBM asks for
        return np.hstack([X, signs]) if self.sees_labels else X

    def _fitted(self, rows: Any, signs: Floats, weight: Floats) -> Any:
        if np.all(signs == signs[0]):
            return float(signs[0]) * _CERTAIN
        model = clone(self._estimator)
        weighted = {} if np.all(weight == 1.0) else {"sample_weight": weight}
        return model.fit(rows, (signs > 0).astype(np.int64), **weighted)

    def scores(self, X: Any) -> Floats:
        rows, scores = self._rows(X, np.empty((X.shape[0], 0))), np.empty((X.shape[0], len(self._order)))
        for place, k in enumerate(self._order):
            scores[:, k] = self._scorers[place](rows)
        return scores

    def scores_after(self, place: int, X: Any, signs: Floats) -> Floats:
        return self._scorers[place](self._rows(X, signs))

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        strange = next((s["unknown"] for s in self._states if "unknown" in s), None)
        if strange is not None:
            raise PotentiaError(
                f"a LabelNetwork with units of class {strange} cannot be saved: linear models and LightGBM can."
            )
        kind = "classifier given labels" if self.sees_labels else "classifier"
        return {"kind": kind, "models": self._states}, {}

    @classmethod
    def restored(cls, saved: dict[str, Any], order: Ints) -> ClassifierUnit:
        """The unit that a file described, with labels in this order."""
        unit = cls(None, saved["kind"] == "classifier given labels")
        unit._use(saved["models"], [_model_of(state) for state in saved["models"]], order)
        return unit


class _Weights:
    """A linear classifier by its weights."""

    def __init__(self, coef: Any, intercept: float) -> None:
        self.coef, self.intercept = np.asarray(coef, dtype=float), float(intercept)

    def decision_function(self, rows: Any) -> Floats:
        return np.asarray(rows @ self.coef) + self.intercept


def _scorer(model: Any) -> Scorer:
    """How a fitted classifier scores rows: its decision function, or log-odds of its probabilities."""
    if isinstance(model, float):
        return lambda rows: np.full(rows.shape[0], model)
    if hasattr(model, "booster_") or hasattr(model, "model_to_string"):
        booster = getattr(model, "booster_", model)
        return lambda rows: np.asarray(booster.predict(rows, raw_score=True, num_threads=1))
    if hasattr(model, "decision_function"):
        return lambda rows: np.asarray(model.decision_function(rows))
    return lambda rows: log_odds(model.predict_proba(rows)[:, 1])


def log_odds(p: Floats, least: float = _LEAST) -> Floats:
    """log p / (1 - p), p kept away from 0 and 1."""
    p = np.clip(p, least, 1.0 - least)
    return np.log(p / (1.0 - p))


def _state_of(model: Any) -> dict[str, Any]:
    """A fitted classifier as JSON, or its class's name where it cannot be that."""
    if isinstance(model, float):
        return {"constant": model}
    if hasattr(model, "booster_"):
        return {"lightgbm": model.booster_.model_to_string()}
    coef = getattr(model, "coef_", None)
    if coef is not None and np.shape(coef)[0] == 1 and hasattr(model, "decision_function"):
        return {"coef": np.ravel(coef).tolist(), "intercept": float(np.ravel(model.intercept_)[0])}
    return {"unknown": type(model).__name__}


def _model_of(state: dict[str, Any]) -> Any:
    if isinstance(state.get("constant"), float):
        return state["constant"]
    if isinstance(state.get("lightgbm"), str):
        return _lightgbm().Booster(model_str=state["lightgbm"])
    if isinstance(state.get("coef"), list) and isinstance(state.get("intercept"), float):
        return _Weights(state["coef"], state["intercept"])
    raise PotentiaError("the saved unit is damaged: it holds a classifier of an unknown kind.")


def _lightgbm() -> Any:
    try:
        import lightgbm
    except ImportError:
        raise PotentiaError("boosted units need LightGBM (pip install potentia[lightgbm]).") from None
    return lightgbm


def make_unit(unit: Any, sees_labels: bool, seed: int) -> Unit:
    """A unit by its name, or of a classifier."""
    if unit in ("linear", "rbf"):
        return MarginUnit(unit)
    if isinstance(unit, SavedFunction):
        unit()  # refuses, because a file has only the name
    if unit == "boosting":
        options = {"n_estimators": 100, "min_child_samples": 10, "num_threads": 1, "verbose": -1}
        unit = _lightgbm().LGBMClassifier(
            **options, random_state=seed, deterministic=True, force_row_wise=True
        )
    elif "random_state" in unit.get_params():
        unit = clone(unit).set_params(random_state=seed)
    return ClassifierUnit(unit, sees_labels)


def restore_unit(content: Any, arrays: dict[str, Any], sizes: dict[str, int], order: Ints) -> Unit:
    """The unit whose state a file had."""
    kind = content.get("kind") if isinstance(content, dict) else None
    if kind in ("linear", "rbf"):
        known = sizes | {"m": sizes["d"]} if kind == "linear" else dict(sizes)
        return MarginUnit.restored(check(MarginUnit.saved, {**content, **arrays}, "unit", known))
    return ClassifierUnit.restored(check(ClassifierUnit.saved, content, "unit", dict(sizes)), order)


# -- a forest over labellings --------------------------------------------------------------------------------

#: Rows whose features are spread out at once.
_CHUNK = 1000

#: What a file holds: the trees one after another, a leaf's left child being -1.
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

    def probabilities(self, X: Any) -> Any:
        """P(labelling) of every row, sparse (n, L): the mean over trees of the shares in the leaf that is reached."""
        parts = [self._leaves(X[a : a + _CHUNK]) for a in range(0, X.shape[0], _CHUNK)]
        leaves = np.concatenate(parts) if parts else np.empty((0, len(self.roots)), dtype=np.int64)
        n, T = leaves.shape
        reached = sparse.csr_array(
            (np.full(n * T, 1.0 / T), leaves.ravel(), np.arange(0, n * T + 1, T)), shape=(n, len(self.left))
        )
        return sparse.csr_array(reached @ self.shares)

    def marginals(self, probabilities: Any) -> Floats:
        """P(label = +1) (n, V), from sparse probabilities of labellings."""
        return np.asarray(probabilities @ (self.labellings > 0).astype(float))

    def _leaves(self, X: Any) -> Ints:
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
        arrays = {name: getattr(self, name) for name in FOREST if name in self._fields}
        parts = {name: getattr(self.shares, name) for name in ("data", "indices", "indptr")}
        return arrays | {name: v.astype(np.int64) if v.dtype.kind == "i" else v for name, v in parts.items()}

    @staticmethod
    def from_arrays(saved: dict[str, Any]) -> LabellingForest:
        """The forest whose arrays a file had."""
        shape = (len(saved["left"]), len(saved["labellings"]))
        shares = sparse.csr_array((saved["data"], saved["indices"], saved["indptr"]), shape=shape)
        parts = {name: saved[name] for name in LabellingForest._fields if name != "shares"}
        return LabellingForest(shares=shares, **parts)


def learn_forest(
    X: Any, signs: Floats, weight: Floats, n_trees: int, seed: int
) -> tuple[LabellingForest, Any, Bools]:
    """A forest, the probabilities (n, L) of each training row by trees that did not see it, and rows that have them.

    Each tree splits a bootstrap sample until its leaves are pure, by square roots of all features at a time.
    """
    labellings, number = np.unique(signs, axis=0, return_inverse=True)
    number = number.ravel()
    seeds = np.random.default_rng(seed).integers(2**31 - 1, size=n_trees)
    X32 = X.astype(np.float32)
    grown = map_items(
        lambda s: _grow(X32, signs, number, len(labellings), weight, s), seeds.tolist(), thread_count(None)
    )
    sizes = np.concatenate([[0], np.cumsum([len(tree.left) for tree in grown])])
    forest = LabellingForest(
        np.concatenate([_moved(t.left, by) for t, by in zip(grown, sizes, strict=False)]),
        np.concatenate([_moved(t.right, by) for t, by in zip(grown, sizes, strict=False)]),
        np.concatenate([t.feature for t in grown]),
        np.concatenate([t.threshold for t in grown]),
        sizes[:-1],
        sparse.csr_array(sparse.vstack([t.shares for t in grown])),
        labellings,
    )
    total = sum(t.unseen for t in grown)
    count = np.sum([np.diff(t.unseen.indptr) > 0 for t in grown], axis=0)
    held_out = sparse.csr_array(sparse.diags_array(1.0 / np.maximum(count, 1)) @ total)
    return forest, held_out, count > 0


def _moved(nodes: Ints, by: int) -> Ints:
    return np.where(nodes >= 0, nodes + by, -1)


class _Tree(NamedTuple):
    """One tree, with the shares of its leaves (nodes, L), and of the rows that it did not see (n, L)."""

    left: Ints
    right: Ints
    feature: Ints
    threshold: Floats
    shares: Any
    unseen: Any


def _grow(X: Any, signs: Floats, number: Ints, n_labellings: int, weight: Floats, seed: int) -> _Tree:
    from sklearn.tree import DecisionTreeRegressor

    n = len(number)
    drawn = np.bincount(np.random.default_rng(seed).integers(n, size=n), minlength=n) * weight
    model = DecisionTreeRegressor(max_features="sqrt", random_state=seed)
    model.fit(X, signs, sample_weight=drawn, check_input=True)
    tree = model.tree_
    leaves = model.apply(X)
    counts = sparse.coo_array((drawn, (leaves, number)), shape=(tree.node_count, n_labellings)).tocsr()
    counts.eliminate_zeros()
    sums = np.asarray(counts.sum(axis=1)).ravel()
    shares = sparse.csr_array(sparse.diags_array(1.0 / np.where(sums > 0, sums, 1.0)) @ counts)
    aside = sparse.diags_array((drawn == 0).astype(float))
    unseen = sparse.csr_array(aside @ shares[leaves])
    unseen.eliminate_zeros()
    feature = np.maximum(tree.feature, 0).astype(np.int64)
    left, right = (side.astype(np.int64) for side in (tree.children_left, tree.children_right))
    return _Tree(left, right, feature, tree.threshold.copy(), shares, unseen)

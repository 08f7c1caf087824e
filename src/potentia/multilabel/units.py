"""Units of label networks: classifiers of single labels, learned with scores of held-out rows beside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from scipy import sparse
from sklearn.base import clone

from .._registry import SavedFunction
from .._schema import Array, Choice, Items, Kind, Number, Schema, check
from .._threads import map_items, thread_count
from .._types import Floats, Ints, PotentiaError
from .features import Features, GramFeatures, HingeSolver, RowFeatures, kernel_matrix, median_width
from .network import learn_apart
from .orders import splits
from .selection import alpha_path

#: Values that are tried: of alpha as in `selection`, and of the kernel's width in units of the median rule's.
_ALPHAS, _WIDTHS = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4), (1.0, 3.0)
#: Tolerance and passes of fits that only compare options.
_LOOSE, _PASSES = 0.1, 30
#: Slopes at which a margin is tried as log-odds.
_SLOPES = (1.0, 2.0, 4.0, 8.0)
#: The score of a label that is constant in the rows learned from, and what probabilities are kept away from 0 and 1 by.
_CERTAIN, _LEAST = 5.0, 1e-3


@dataclass
class Task:
    """What units learn from: rows, signs (n, V), weights (n, V), the order of labels, and how to hold out rows."""

    X: Any
    signs: Floats
    weight: Floats
    order: Ints
    solver: HingeSolver
    folds: int

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
    def learn(self, task: Task) -> Floats:
        """Learn from all rows; the scores (n, V) that each row has from the other folds."""

    @abstractmethod
    def scores(self, X: Any) -> Floats:
        """Scores (n, V) by label of other rows, whatever earlier labels are."""

    def given(self, place: int, X: Any, signs: Floats) -> Floats:
        """Scores (m) of the label at a place for rows (m, d), given the signs (m, place) of the labels before it."""
        raise NotImplementedError

    @abstractmethod
    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """JSON and arrays of a file."""


class MarginUnit(Unit):
    """A support vector machine per label, linear or with an RBF kernel, of the least loss of held-out rows."""

    saved: ClassVar[Schema] = {
        "kind": Choice(("linear", "rbf")),
        "gamma": Number(),
        "own": Array("f8", ("V", "m")),
        "bias": Array("f8", ("V",)),
        "X": Array("f8", ("m", "d"), optional=True),
    }

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def learn(self, task: Task) -> Floats:
        rbf = self.kind == "rbf"
        self._weight = task.weight
        self._X = np.asarray(task.X.toarray() if sparse.issparse(task.X) else task.X) if rbf else None
        width = median_width(task.X, task.solver.seed) if rbf else 1.0
        least = np.inf
        for gamma in [factor * width for factor in _WIDTHS] if rbf else [1.0]:
            features = self._features(task.X, gamma)
            alphas = alpha_path(features, _ALPHAS)
            for alpha, scores in zip(alphas, _held_out(features, alphas, task), strict=True):
                loss = _log_loss(scores, task.signs, task.weight)
                if loss < least:
                    least, chosen, best = loss, (gamma, alpha), scores
        self.gamma, self.alpha = chosen
        solver = replace(task.solver, alpha=self.alpha)
        (network,) = learn_apart(self._features(task.X, self.gamma), task.signs, [solver])
        self._own, self._bias = network.own, network.bias
        return best

    def _features(self, X: Any, gamma: float) -> Features:
        made = GramFeatures(self._kernel(X, gamma)) if self.kind == "rbf" else RowFeatures(X)
        made.weight = self._weight
        return made

    def _kernel(self, X: Any, gamma: float) -> Floats:
        return kernel_matrix(X, self._X, "rbf", {"gamma": gamma})

    def scores(self, X: Any) -> Floats:
        matrix = self._kernel(X, self.gamma) if self.kind == "rbf" else X
        return np.asarray(matrix @ self._own.T) + self._bias

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays = {"own": self._own, "bias": self._bias} | ({} if self._X is None else {"X": self._X})
        return {"kind": self.kind, "gamma": self.gamma}, arrays

    @classmethod
    def restored(cls, found: dict[str, Any]) -> MarginUnit:
        """The unit that a file described."""
        unit = cls(found["kind"])
        unit.gamma, unit._own, unit._bias, unit._X = (found[k] for k in ("gamma", "own", "bias", "X"))
        if (unit._X is None) == (unit.kind == "rbf"):
            raise PotentiaError("the saved unit is damaged: its rows do not go with its kernel.")
        return unit


def _held_out(features: Features, alphas: list[float], task: Task) -> Floats:
    """Scores (alphas, n, V) of rows by machines of the other folds."""
    solver = replace(task.solver, tol=max(task.solver.tol, _LOOSE), passes=min(task.solver.passes, _PASSES))
    solvers = [replace(solver, alpha=alpha) for alpha in alphas]
    found = np.empty((len(alphas), *task.signs.shape))
    for train, test in task.splits():
        part, matrix = features.split(train, test)
        signs = np.ascontiguousarray(task.signs[train])
        for a, network in enumerate(learn_apart(part, signs, solvers)):
            found[a, test] = network.base(matrix)
    return found


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

    def learn(self, task: Task) -> Floats:
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
        rows, found = self._rows(X, np.empty((X.shape[0], 0))), np.empty((X.shape[0], len(self._order)))
        for place, k in enumerate(self._order):
            found[:, k] = self._scorers[place](rows)
        return found

    def given(self, place: int, X: Any, signs: Floats) -> Floats:
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
    def restored(cls, found: dict[str, Any], order: Ints) -> ClassifierUnit:
        """The unit that a file described, with labels in this order."""
        unit = cls(None, found["kind"] == "classifier given labels")
        unit._use(found["models"], [_model_of(state) for state in found["models"]], order)
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


def make_unit(given: Any, sees_labels: bool, seed: int) -> Unit:
    """A unit by its name, or of a classifier."""
    if given in ("linear", "rbf"):
        return MarginUnit(given)
    if isinstance(given, SavedFunction):
        given()  # refuses, because a file has only the name
    if given == "boosting":
        options = {"n_estimators": 100, "min_child_samples": 10, "num_threads": 1, "verbose": -1}
        given = _lightgbm().LGBMClassifier(
            **options, random_state=seed, deterministic=True, force_row_wise=True
        )
    elif "random_state" in given.get_params():
        given = clone(given).set_params(random_state=seed)
    return ClassifierUnit(given, sees_labels)


def restore_unit(content: Any, arrays: dict[str, Any], sizes: dict[str, int], order: Ints) -> Unit:
    """The unit whose state a file had."""
    kind = content.get("kind") if isinstance(content, dict) else None
    if kind in ("linear", "rbf"):
        own = dict(sizes)
        if kind == "linear":
            own["m"] = sizes["d"]
        return MarginUnit.restored(check(MarginUnit.saved, {**content, **arrays}, "unit", own))
    return ClassifierUnit.restored(check(ClassifierUnit.saved, content, "unit", dict(sizes)), order)

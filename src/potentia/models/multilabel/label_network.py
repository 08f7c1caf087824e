"""Units of label networks: classifiers of single labels, learned with scores of held-out rows beside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Literal, cast

import numpy as np
from scipy import sparse
from sklearn.base import clone

from ...base.options import check_choice, check_count, check_flag, check_positive
from ...base.saving import SavedFunction
from ...base.schema import FLAG, Array, Choice, Items, Kind, Number, Rule, Schema, check, prefixed
from ...base.threads import map_items, thread_count
from ...base.types import Floats, Ints, PotentiaError, shown
from .base import ClassWeight, WeightedClassifier, check_seed
from .decoding import FOREST, LabellingForest, learn_forest
from .features import GramFeatures, HingeSolver, LabelRows, RowFeatures, kernel_matrix, median_width
from .lmsbn import Search
from .network import given_order, learn_apart
from .posterior import Conditionals, Labelled, Member, Seen, best_labellings, learn_conditionals, marginals
from .selection import alpha_path, splits

#: Values that are tried: of alpha as in `selection`, and of the kernel's width in units of the median rule's.
_ALPHAS, _WIDTHS = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4), (1.0, 3.0)
#: Tolerance and passes of fits that only compare options.
_LOOSE, _PASSES = 0.1, 30
#: Slopes at which a margin is tried as log-odds.
_SLOPES = (1.0, 2.0, 4.0, 8.0)
#: The score of a label that is constant in the rows learned from, and what probabilities are kept away from 0 and 1 by.
_CERTAIN, _LEAST = 5.0, 1e-3


@dataclass
class UnitTask:
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
    def learn(self, task: UnitTask) -> Floats:
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

    def learn(self, task: UnitTask) -> Floats:
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

    def _features(self, X: Any, gamma: float) -> LabelRows:
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


def _held_out(features: LabelRows, alphas: list[float], task: UnitTask) -> Floats:
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


Loss = Literal["exact_match", "hamming_loss"]
LOSSES = ("exact_match", "hamming_loss")
ORDERS = ("frequency", "index")
UNITS = ("linear", "rbf", "boosting")
#: "auto" leaves out the kernel beyond this many rows.
_MOST_KERNEL_ROWS = 3000
#: How strongly labels' conditionals are drawn to what is common, and the forest's exponents, that are compared.
_RIDGES, _POWERS = (1.0, 10.0, 100.0), (0.0, 0.5, 1.0, 2.0, 4.0)
#: What is taken where rows are too few to compare.
_RIDGE, _POWER = 10.0, 1.0
#: Rows labelled at once.
_CHUNK = 512


@dataclass(eq=False, repr=False)
class LabelNetwork(WeightedClassifier):
    r"""A directed network of labels whose conditionals are built on any classifiers.

    Every unit is a classifier per label; its scores of a row come from folds that the row is not in. The label at
    place i of the order has log-odds that are linear in its units' scores and in the signs of the labels before it. A
    random forest over whole labellings adds what it has seen near a row:

    .. math:: \log P(y \mid x) &= \sum_i \log P(y_i \mid s_i(x), y_1, \dots, y_{i - 1}) \\
        &+ \text{power} \cdot \log(F(y \mid x) + 10^{-3}) + \text{constant},

    where :math:`s_i` are the units' scores and F is the forest's probability.

    `predict` returns the most probable labelling, or with loss="hamming_loss" the labels that are each more probable
    than not. It returns the latter with "exact_match", too, if they matched as many held-out rows and had less Hamming
    loss. The search keeps `width` partial labellings per row. It is exact if no more of them are as probable as the
    labelling found, which `search(X).optimal` says.

    Args:
        units: "auto" ("linear", and "rbf" up to 3000 rows), or a list of "linear" and "rbf" (support vector machines
            whose alpha and kernel width are chosen on held-out rows), "boosting" (LightGBM), and scikit-learn
            classifiers with `decision_function` or `predict_proba`.
        n_trees: of the forest; 0 for none.
        sees_labels: units other than "linear" and "rbf" get the labels before theirs as further features.
        order: "frequency" (frequent labels first), "index", or the labels' numbers in order.
        n_orders: networks in the ensemble, those after the first in random orders; their log P are averaged.
        parents: maximum number of earlier labels in a conditional, those with the largest correlations.
        loss: the measure that predictions optimise, "exact_match" or "hamming_loss".
        width: partial labellings kept per row.
        cv: folds of held-out scores, and of the choice of `power_` and `ridge_`.
        class_weight: None, "balanced" (both values of a label have equal total weight), or {0: weight of a label's
            smaller value, 1: of its larger}.
        tol, passes: of "linear" and "rbf", as in `LMSBN`.
        random_state: seed of folds, trees, orders and units.

    After `fit`: `units_` (names), `power_`, `ridge_`, `order_`, `whole_` (whether predictions are the most probable
    labellings), `cv_results_` (held-out measures by power and whole; not saved).
    """

    units: Literal["auto"] | Sequence[Any] = "auto"
    _: KW_ONLY
    n_trees: int = 200
    sees_labels: bool = False
    order: Literal["frequency", "index"] | Sequence[int] | Ints = "frequency"
    n_orders: int = 1
    parents: int = 20
    loss: Loss = "exact_match"
    width: int = 64
    cv: int = 3
    class_weight: ClassWeight = None
    tol: float = 1e-3
    passes: int = 300
    random_state: Any = 0

    saved: ClassVar[Schema] = {
        **WeightedClassifier.saved,
        "units": Items(Kind((dict,)), "N"),
        "names": Items(Kind((str,)), "N"),
        "power": Number(),
        "ridge": Number(),
        "whole": FLAG,
        "orders": Array("i8", ("O", "V"), low=0, below="V"),
        "weight": Array("f8", ("O", "V", "U")),
        "bias": Array("f8", ("O", "V")),
        "coupling": Array("f8", ("O", "V", "V")),
        "scale": Array("f8", ("U",)),
        "order": Rule(
            lambda found: np.array_equal(
                np.sort(found["orders"], axis=1), np.tile(np.arange(found["V"]), (len(found["orders"]), 1))
            ),
            "does not hold every label once",
        ),
    }

    def _check_options(self) -> None:
        super()._check_options()
        if isinstance(self.units, str):
            check_choice("units", self.units, ("auto",), "a list")
        for unit in [] if isinstance(self.units, str) else self.units:
            if isinstance(unit, str):
                check_choice("units", unit, UNITS, "classifiers")
            elif not isinstance(unit, SavedFunction) and not all(
                hasattr(unit, method) for method in ("fit", "predict", "get_params")
            ):
                raise PotentiaError(f"units must be names or classifiers, not {shown(unit)}.")
        if not isinstance(self.units, str) and len(self.units) == 0 and self.n_trees == 0:
            raise PotentiaError("units is empty and n_trees is 0: there is nothing to learn with.")
        if isinstance(self.order, str):
            check_choice("order", self.order, ORDERS, "the labels' numbers")
        check_choice("loss", self.loss, LOSSES)
        check_flag("sees_labels", self.sees_labels)
        for name, least in (
            ("n_trees", 0),
            ("n_orders", 1),
            ("parents", 0),
            ("width", 1),
            ("cv", 2),
            ("passes", 1),
        ):
            check_count(name, getattr(self, name), least)
        if self.sees_labels and self.n_orders > 1:
            raise PotentiaError(
                "n_orders must be 1 where sees_labels is True: units learn with labels in one order."
            )
        check_positive("tol", self.tol)
        check_seed("random_state", self.random_state)

    # -- fitting -------------------------------------------------------------------------------------------

    def _fit_nothing(self) -> None:
        self._units: list[Unit] = []
        self._forest: LabellingForest | None = None
        self._conditionals: list[Conditionals] = []
        self.units_: list[str] = []
        self.cv_results_: list[dict[str, float]] = []
        self.power_, self.ridge_, self._scale = 0.0, _RIDGE, np.ones(0)
        self.order_ = np.zeros(0, dtype=np.int64)
        self.whole_ = self.loss == "exact_match"

    def _fit(self, X: Any, signs: Floats, weight: Floats) -> None:
        self._fit_nothing()
        seed = self._seed(X, signs, weight)
        orders = self._orders(signs, seed)
        solver = HingeSolver(1.0, float(self.tol), int(self.passes), seed, self._solved)
        task = UnitTask(X, signs, weight, orders[0], solver, self.cv)
        wanted = self._wanted(len(signs))
        self.units_ = [unit if isinstance(unit, str) else type(unit).__name__ for unit in wanted]
        self._units = [make_unit(unit, self.sees_labels, seed) for unit in wanted]
        parts, seen = [unit.learn(task) for unit in self._units], None
        if self.n_trees:
            self._forest, probabilities, _ = learn_forest(X, signs, weight.mean(axis=1), self.n_trees, seed)
            seen = Seen(self._forest.labellings, probabilities)
            parts.append(self._forest_scores(probabilities))
        scores = np.stack(parts, axis=2)
        self._scale = scores.std(axis=(0, 1)) + 1e-12
        scores /= self._scale
        self._choose(scores, signs, weight, orders[0], seen, seed)
        self._conditionals = [
            learn_conditionals(scores, signs, order, self.ridge_, weight, self.parents) for order in orders
        ]
        self.order_ = np.flatnonzero(self._coding.varying)[orders[0]]

    def _wanted(self, n: int) -> list[Any]:
        if isinstance(self.units, str):
            return ["linear", "rbf"] if n <= _MOST_KERNEL_ROWS else ["linear"]
        return list(self.units)

    def _orders(self, signs: Floats, seed: int) -> list[Ints]:
        """Orders of the labels that vary, numbered among themselves."""
        V = signs.shape[1]
        if isinstance(self.order, str):
            first = np.arange(V) if self.order == "index" else np.argsort(-signs.sum(axis=0), kind="stable")
        else:
            varying = np.flatnonzero(self._coding.varying)
            given = given_order(self.order, self.n_labels_, None)
            first = np.searchsorted(varying, given[np.isin(given, varying)])
        rng = np.random.default_rng(seed)
        return [first, *(rng.permutation(V) for _ in range(self.n_orders - 1))]

    def _choose(
        self, scores: Floats, signs: Floats, weight: Floats, order: Ints, seen: Seen | None, seed: int
    ) -> None:
        """`ridge_` of the largest held-out log P, then `power_` and `whole_` by held-out measures."""
        self.ridge_, self.power_, self.cv_results_ = _RIDGE, _POWER if seen is not None else 0.0, []
        n = len(signs)
        if n < 2 * self.cv:
            return
        parts = list(splits(n, self.cv, seed))
        gains: dict[float, float] = {}
        held: dict[float, list[Member]] = {}
        for ridge in _RIDGES:
            held[ridge] = []
            for train, test in parts:
                found = learn_conditionals(
                    scores[train], signs[train], order, ridge, weight[train], self.parents
                )
                member = _member(found, scores[test])
                held[ridge].append(member)
                gains[ridge] = (
                    gains.get(ridge, 0.0) + member.log_probabilities(np.arange(len(test)), signs[test]).sum()
                )
        self.ridge_ = max(gains, key=lambda ridge: gains[ridge])
        members = list(zip(held[self.ridge_], (test for _, test in parts), strict=True))

        def measure(power: float, whole: bool) -> dict[str, float]:
            right = np.zeros(2)
            for member, test in members:
                near = None if seen is None else Seen(seen.labellings, seen.probabilities[test])
                wrong = self._signs_by([member], near, power, whole) != signs[test]
                right += [np.sum(~wrong.any(axis=1)) / n, np.sum(wrong) / signs.size]
            return {"power": power, "whole": whole, "exact_match": right[0], "hamming_loss": right[1]}

        self.cv_results_ = [
            measure(power, self.whole_) for power in (_POWERS if seen is not None else (0.0,))
        ]
        self.power_ = self._better(n)["power"]
        if self.whole_:
            self.cv_results_.append(measure(self.power_, False))
            self.whole_ = bool(self._better(n, self.power_)["whole"])

    def _better(self, n: int, power: float | None = None) -> dict[str, float]:
        """The result of the least Hamming loss; for exact match, of those within half a standard error of the best."""
        fair = [r for r in self.cv_results_ if power in (None, r["power"])]
        if self.loss == "exact_match":
            best = max(r["exact_match"] for r in fair)
            noise = 0.5 * np.sqrt(best * (1.0 - best) / n)
            fair = [r for r in fair if r["exact_match"] >= best - noise]
        return min(fair, key=lambda r: r["hamming_loss"])

    # -- predicting ----------------------------------------------------------------------------------------

    def _forest_scores(self, probabilities: Any) -> Floats:
        forest = cast(LabellingForest, self._forest)
        return log_odds(forest.marginals(probabilities), 0.5 / len(forest.roots))

    def _members(self, X: Any) -> tuple[list[Member], Seen | None]:
        """Every order's network at rows X, and what the forest has seen near them."""
        n, V = X.shape[0], len(self._conditionals[0].order)
        parts = [np.zeros((n, V)) if unit.sees_labels else unit.scores(X) for unit in self._units]
        seen = None
        if self._forest is not None:
            probabilities = self._forest.probabilities(X)
            seen = Seen(self._forest.labellings, probabilities)
            parts.append(self._forest_scores(probabilities))
        scores = np.stack(parts, axis=2) / self._scale
        given = [u for u, unit in enumerate(self._units) if unit.sees_labels]
        if not given:
            return [_member(c, scores) for c in self._conditionals], seen
        return [self._given_member(c, scores, X, given) for c in self._conditionals], seen

    def _given_member(self, conditionals: Conditionals, scores: Floats, X: Any, given: list[int]) -> Member:
        """A network some of whose units see the labels before theirs."""
        plain = _member(conditionals, scores)

        def scores_at(i: int, rows: Ints, signs: Floats) -> Floats:
            total = plain.scores_at(i, rows, signs)
            for u in given:
                found = self._units[u].given(i, X[rows], signs)
                total = total + conditionals.weight[i, u] * found / self._scale[u]
            return total

        return Member(conditionals, plain.base, scores_at, False)

    def _signs_by(self, members: list[Member], seen: Seen | None, power: float, whole: bool) -> Floats:
        if whole:
            return best_labellings(members, seen, power, self.width).signs
        return np.where(marginals(members, seen, power, self.width) > 0.5, 1.0, -1.0)

    def _predict_signs(self, X: Any) -> np.ndarray:
        return self._labelled(X).signs if self.whole_ else np.where(self._probabilities(X) > 0.5, 1, -1)

    def _labelled(self, X: Any) -> Labelled:
        parts = self._by_chunks(best_labellings, X)
        return Labelled(*(np.concatenate(values) for values in zip(*parts, strict=True)))

    def _probabilities(self, X: Any) -> Floats:
        return np.concatenate(self._by_chunks(marginals, X))

    def _by_chunks(self, decode: Callable[..., Any], X: Any) -> list[Any]:
        chunks = (X[a : a + _CHUNK] for a in range(0, X.shape[0], _CHUNK))
        return [decode(*self._members(chunk), self.power_, self.width) for chunk in chunks]

    def _decide(self, X: Any) -> Floats:
        return log_odds(self._probabilities(X), np.finfo(float).eps)

    def decision_function(self, X: Any) -> Floats:
        """Log-odds (n, K), or (n,) after a flat y, of `predict_proba`; a label's sign may not be the prediction's.

        The most probable labelling may have labels that are, each alone, less probable than not.
        """
        return super().decision_function(X)

    def search(self, X: Any) -> Search:
        """The most probable labellings: `loss` is -log P up to a constant, `states` counts the prefixes visited."""
        X = self._checked(X)
        found = self._labelled(X)
        return Search(self._coding.decode(found.signs), -found.score, found.states, found.optimal)

    # -- files ---------------------------------------------------------------------------------------------

    def _state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        V, U = len(self.order_), len(self._scale)
        units = [unit.state() for unit in self._units]
        content = {
            "units": [c for c, _ in units],
            "names": self.units_,
            "power": self.power_,
            "ridge": self.ridge_,
            "whole": self.whole_,
        }
        arrays = {f"unit{u}/{name}": array for u, (_, own) in enumerate(units) for name, array in own.items()}
        parts = self._conditionals
        arrays |= {
            "orders": np.array([c.order for c in parts], dtype=np.int64).reshape(len(parts), V),
            "weight": np.array([c.weight for c in parts]).reshape(len(parts), V, U),
            "bias": np.array([c.bias for c in parts]).reshape(len(parts), V),
            "coupling": np.array([c.coupling for c in parts]).reshape(len(parts), V, V),
            "scale": self._scale,
        }
        forest = {} if self._forest is None else self._forest.arrays()
        return content, arrays | {f"forest/{name}": array for name, array in forest.items()}

    def _restore(self, found: dict[str, Any], arrays: dict[str, Any]) -> None:
        self._fit_nothing()
        self.units_, self.power_, self.ridge_ = found["names"], found["power"], found["ridge"]
        self._scale, self.whole_ = found["scale"], found["whole"]
        parts = (found[name] for name in ("orders", "weight", "bias", "coupling"))
        self._conditionals = [Conditionals(*part) for part in zip(*parts, strict=True)]
        if not found["V"]:
            return
        sizes = {"V": found["V"], "d": found["n_features"]}
        first = self._conditionals[0].order
        self._units = [
            restore_unit(content, prefixed(arrays, f"unit{u}/"), sizes, first)
            for u, content in enumerate(found["units"])
        ]
        forest = prefixed(arrays, "forest/")
        if forest:
            self._forest = LabellingForest.from_arrays(check(FOREST, forest, "forest", dict(sizes)))
        if len(self._scale) != len(self._units) + bool(forest):
            raise PotentiaError("the saved LabelNetwork is damaged: its scales are not those of its units.")
        self.order_ = np.flatnonzero(self._coding.varying)[first]


def _member(conditionals: Conditionals, scores: Floats) -> Member:
    base = conditionals.base(scores)
    return Member(conditionals, base, conditionals.linear(base), True)

"""`LabelNetwork`: a directed network of labels on the scores of any classifiers, with a forest over labellings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from ...base.saving import SavedFunction
from ...base.schema import FLAG, Array, Items, Kind, Number, Rule, Schema, check
from ...base.types import (
    Floats,
    Ints,
    PotentiaError,
    check_choice,
    check_count,
    check_flag,
    check_positive,
    prefixed,
    shown,
)
from .base import FitTask, MultiLabelClassifier
from .hinge import HingeSolver
from .inputs import ClassWeight, check_class_weight, check_seed
from .network import LabelSearch, among, check_order, splits
from .posterior import Conditionals, Member, Seen, best_labellings, learn_conditionals, marginals
from .units import FOREST, LabellingForest, Unit, learn_forest, log_odds, make_unit, restore_unit

Loss = Literal["exact_match", "hamming_loss"]
LOSSES = ("exact_match", "hamming_loss")
ORDERS = ("frequency", "index")
UNITS = ("linear", "rbf", "boosting")
#: "auto" leaves out the kernel beyond this many rows.
_MOST_KERNEL_ROWS = 3000
#: How strongly labels' conditionals are drawn to what is common, and the forest's exponents, that are compared.
_RIDGES, _POWERS = (1.0, 10.0, 100.0), (0.0, 0.5, 1.0, 2.0, 4.0)
#: Values taken where rows are too few to compare.
_RIDGE, _POWER = 10.0, 1.0
#: Rows labelled at once.
_CHUNK = 512


@dataclass(eq=False, repr=False)
class LabelNetwork(MultiLabelClassifier):
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
        **MultiLabelClassifier.saved,
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
            lambda saved: np.array_equal(
                np.sort(saved["orders"], axis=1), np.tile(np.arange(saved["V"]), (len(saved["orders"]), 1))
            ),
            "does not hold every label once",
        ),
    }

    fit = MultiLabelClassifier.fit_weighted

    def _check_options(self) -> None:
        """Refuse bad options."""
        check_class_weight(self.class_weight)
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
        for name, least in {"n_trees": 0, "n_orders": 1, "parents": 0, "width": 1, "cv": 2, "passes": 1}.items():
            check_count(name, getattr(self, name), least)
        if self.sees_labels and self.n_orders > 1:
            raise PotentiaError("n_orders must be 1 where sees_labels is True: units learn with labels in one order.")
        check_positive("tol", self.tol)
        check_seed(self.random_state)

    # -- fitting -------------------------------------------------------------------------------------------

    def _fit_nothing(self) -> None:
        """A network of no labels, which files and later fits begin with."""
        self._units: list[Unit] = []
        self._forest: LabellingForest | None = None
        self._conditionals: list[Conditionals] = []
        self.units_: list[str] = []
        self.cv_results_: list[dict[str, float]] = []
        self.power_, self.ridge_, self._scale = 0.0, _RIDGE, np.ones(0)
        self.order_ = np.zeros(0, dtype=np.int64)
        self.whole_ = self.loss == "exact_match"

    def _fit(self, task: FitTask) -> None:
        """Learn units and forest, choose options by their held-out scores, then learn the conditionals."""
        self._fit_nothing()
        X, signs, weight, seed, _ = task
        orders = self._orders(signs, seed)
        solver = HingeSolver(1.0, float(self.tol), int(self.passes), seed)
        n = len(signs)
        # too few rows for every fold to have two are not held out
        folds = list(splits(n, self.cv, seed)) if n >= 2 * self.cv else [(np.arange(n), np.arange(n))]
        units = list(self.units)
        if isinstance(self.units, str):
            units = ["linear", "rbf"] if n <= _MOST_KERNEL_ROWS else ["linear"]
        self.units_ = [unit if isinstance(unit, str) else type(unit).__name__ for unit in units]
        self._units = [make_unit(unit, self.sees_labels, seed) for unit in units]
        parts, seen = [unit.learn(task, solver, orders[0], folds) for unit in self._units], None
        if self.n_trees:
            self._forest, seen = learn_forest(X, signs, weight.mean(axis=1), self.n_trees, seed)
            parts.append(self._forest.scores(seen))
        scores = np.stack(parts, axis=2)
        self._scale = scores.std(axis=(0, 1)) + 1e-12
        scores /= self._scale
        self._choose(scores, signs, weight, orders[0], seen, seed)
        self._conditionals = [
            learn_conditionals(scores, signs, order, self.ridge_, weight, self.parents) for order in orders
        ]
        self.order_ = np.flatnonzero(self._coding.varying)[orders[0]]

    def _orders(self, signs: Floats, seed: int) -> list[Ints]:
        """Orders of the labels that vary, numbered among themselves."""
        V = signs.shape[1]
        if isinstance(self.order, str):
            first = np.arange(V) if self.order == "index" else np.argsort(-signs.sum(axis=0), kind="stable")
        else:
            varying = np.flatnonzero(self._coding.varying)
            first = among(varying, check_order(self.order, self.n_labels_))
        rng = np.random.default_rng(seed)
        return [first, *(rng.permutation(V) for _ in range(self.n_orders - 1))]

    def _choose(self, scores: Floats, signs: Floats, weight: Floats, order: Ints, seen: Seen | None, seed: int) -> None:
        """`ridge_` of the largest held-out log P, then `power_` and `whole_` by held-out measures."""
        self.ridge_, self.power_, self.cv_results_ = _RIDGE, _POWER if seen is not None else 0.0, []
        n = len(signs)
        if n < 2 * self.cv:
            return
        parts = list(splits(n, self.cv, seed))
        gains: dict[float, float] = {}
        members_by_ridge: dict[float, list[Member]] = {}
        for ridge in _RIDGES:
            members_by_ridge[ridge] = []
            for train, test in parts:
                conditionals = learn_conditionals(
                    scores[train], signs[train], order, ridge, weight[train], self.parents
                )
                member = Member(conditionals, conditionals.base(scores[test]))
                members_by_ridge[ridge].append(member)
                gains[ridge] = gains.get(ridge, 0.0) + member.log_probabilities(np.arange(len(test)), signs[test]).sum()
        self.ridge_ = max(gains, key=lambda ridge: gains[ridge])
        members = list(zip(members_by_ridge[self.ridge_], (test for _, test in parts), strict=True))

        def measure(power: float, whole: bool) -> dict[str, float]:
            """Held-out measures with this power of the forest, decoding whole labellings or label by label."""
            right = np.zeros(2)
            for member, test in members:
                near = None if seen is None else Seen(seen.labellings, seen.probabilities[test])
                wrong = self._signs_by([member], near, power, whole) != signs[test]
                right += [np.sum(~wrong.any(axis=1)) / n, np.sum(wrong) / signs.size]
            return {"power": power, "whole": whole, "exact_match": right[0], "hamming_loss": right[1]}

        self.cv_results_ = [measure(power, self.whole_) for power in (_POWERS if seen is not None else (0.0,))]
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

    def _members(self, X: Any) -> tuple[list[Member], Seen | None]:
        """Every order's network at rows X, and what the forest has seen near them."""
        n, V = X.shape[0], len(self._conditionals[0].order)
        parts = [np.zeros((n, V)) if unit.sees_labels else unit.scores(X) for unit in self._units]
        seen = None
        if self._forest is not None:
            seen = self._forest.seen(X)
            parts.append(self._forest.scores(seen))
        scores = np.stack(parts, axis=2) / self._scale
        seeing = [u for u, unit in enumerate(self._units) if unit.sees_labels]
        return [
            Member(c, c.base(scores), [partial(self._unit_scores, c, u, X) for u in seeing]) for c in self._conditionals
        ], seen

    def _unit_scores(self, conditionals: Conditionals, u: int, X: Any, i: int, rows: Ints, signs: Floats) -> Floats:
        """The part (m) of a unit that sees earlier labels in the log-odds of the label at place i."""
        return conditionals.weight[i, u] * self._units[u].scores_after(i, X[rows], signs) / self._scale[u]

    def _signs_by(self, members: list[Member], seen: Seen | None, power: float, whole: bool) -> Floats:
        """Predicted signs (n, V): of the best labellings if `whole`, else of each label's marginal."""
        if whole:
            return best_labellings(members, seen, power, self.width).labels
        return np.where(marginals(members, seen, power, self.width) > 0.5, 1.0, -1.0)

    def _predict_signs(self, X: Any) -> np.ndarray:
        """Signs (n, V) of the best labellings, or of each label's marginal."""
        return self._labelled(X).labels if self.whole_ else np.where(self._probabilities(X) > 0.5, 1, -1)

    def _labelled(self, X: Any) -> LabelSearch:
        """The most probable labellings of all rows, chunk by chunk."""
        parts = self._by_chunks(best_labellings, X)
        return LabelSearch(*(np.concatenate(values) for values in zip(*parts, strict=True)))

    def _probabilities(self, X: Any) -> Floats:
        """P(+1) (n, V) of all rows, chunk by chunk."""
        return np.concatenate(self._by_chunks(marginals, X))

    def _by_chunks(self, decode: Callable[..., Any], X: Any) -> list[Any]:
        """decode(members, seen, power, width) of one chunk of rows after another."""
        chunks = (X[a : a + _CHUNK] for a in range(0, X.shape[0], _CHUNK))
        return [decode(*self._members(chunk), self.power_, self.width) for chunk in chunks]

    def _decide(self, X: Any) -> Floats:
        """Log-odds (n, V) of the labels' marginals."""
        return log_odds(self._probabilities(X), np.finfo(float).eps)

    def decision_function(self, X: Any) -> Floats:
        """Log-odds (n, K), or (n,) after a flat y, of `predict_proba`; a label's sign may not be the prediction's.

        The most probable labelling may have labels that are, each alone, less probable than not.
        """
        return super().decision_function(X)

    def search(self, X: Any) -> LabelSearch:
        """The most probable labellings: `loss` is -log P up to a constant, `states` counts the prefixes visited."""
        X = self._checked(X)
        if not self._conditionals:  # no label varies
            n = X.shape[0]
            labels = self._coding.decode(np.empty((n, 0)))
            return LabelSearch(labels, np.zeros(n), np.zeros(n, dtype=np.int64), np.ones(n, dtype=bool))
        best = self._labelled(X)
        return best._replace(labels=self._coding.decode(best.labels))

    # -- files ---------------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        """Units, forest and conditionals as JSON values and arrays."""
        (V, U), parts = (len(self.order_), len(self._scale)), self._conditionals
        units = [unit.state() for unit in self._units]
        forest = {} if self._forest is None else self._forest.arrays()
        return {
            "units": [content for content, _ in units],
            "names": self.units_,
            "power": self.power_,
            "ridge": self.ridge_,
            "whole": self.whole_,
            "orders": np.array([c.order for c in parts], dtype=np.int64).reshape(len(parts), V),
            "weight": np.array([c.weight for c in parts]).reshape(len(parts), V, U),
            "bias": np.array([c.bias for c in parts]).reshape(len(parts), V),
            "coupling": np.array([c.coupling for c in parts]).reshape(len(parts), V, V),
            "scale": self._scale,
            **{f"unit{u}/{name}": array for u, (_, arrays) in enumerate(units) for name, array in arrays.items()},
            **{f"forest/{name}": array for name, array in forest.items()},
        }

    def _restore(self, saved: dict[str, Any], arrays: dict[str, Any]) -> None:
        """Take units, forest and conditionals of a file."""
        self._fit_nothing()
        self.units_, self.power_, self.ridge_ = saved["names"], saved["power"], saved["ridge"]
        self._scale, self.whole_ = saved["scale"], saved["whole"]
        parts = (saved[name] for name in ("orders", "weight", "bias", "coupling"))
        self._conditionals = [Conditionals(*part) for part in zip(*parts, strict=True)]
        if not saved["V"]:
            return
        sizes = {"V": saved["V"], "d": saved["n_features"]}
        first = self._conditionals[0].order
        self._units = [
            restore_unit(content, prefixed(arrays, f"unit{u}/"), sizes, first)
            for u, content in enumerate(saved["units"])
        ]
        forest = prefixed(arrays, "forest/")
        if forest:
            self._forest = LabellingForest.from_arrays(check(FOREST, forest, "forest", dict(sizes)))
        if len(self._scale) != len(self._units) + bool(forest):
            raise PotentiaError("the saved LabelNetwork is damaged: its scales are not those of its units.")
        self.order_ = np.flatnonzero(self._coding.varying)[first]

"""`LabelNetwork`: a directed network of labels on the scores of any classifiers, with a forest over labellings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from ...base.resources import check_memory
from ...base.saving import SavedFunction
from ...base.schema import FLAG, Array, Items, Kind, Number, Rule, Schema, check
from ...base.types import Bools, Floats, Ints, PotentiaError, check_choice, check_count, check_positive, prefixed, shown
from .base import FitTask, MultiLabelClassifier
from .constraints import Constraints, forced, make_rules
from .hinge import HingeSolver, RemoteRows
from .inputs import ClassWeight, check_class_weight, check_seed
from .network import LabelSearch, among, check_order, project, splits
from .posterior import Conditionals, Member, Seen, candidates, learn_conditionals, losses_of, ranked
from .sets import Ranked
from .units import FOREST, LabellingForest, Unit, learn_forest, log_odds, make_unit, restore_unit

Target = Literal["exact", "hamming", "f1"]
TARGETS = get_args(Target)
ORDERS = ("frequency", "index")
UNITS = ("linear", "rbf", "boosting")
#: "auto" leaves out the kernel beyond this many rows.
_MOST_KERNEL_ROWS = 3000
#: How strongly labels' conditionals are drawn to what is common, and the forest's exponents, that are compared.
_RIDGES, _POWERS = (1.0, 10.0, 100.0, 1000.0), (0.0, 0.5, 1.0, 2.0, 4.0)
#: Values taken where rows are too few to compare.
_RIDGE, _POWER = 10.0, 1.0
#: Held-out rows predicted without an error below which labellings are not compared as wholes.
_FEW_ROWS = 5
#: Labellings that stand for a row with missing labels in the forest.
_COMPLETIONS = 8
#: Rows that are labelled at once, that options are compared on, and that conditionals are learned from at most.
_CHUNK, _COMPARED, _LEARNED = 512, 3000, 30_000


@dataclass(eq=False, repr=False)
class LabelNetwork(MultiLabelClassifier):
    r"""A directed network of labels whose conditionals are built on any classifiers.

    Every unit is a classifier per label; its scores of a row come from folds that the row is not in. The label at
    place i of the order has log-odds that are linear in its units' scores and in the signs of the labels before it. A
    random forest over whole labellings adds what it has seen near a row:

    .. math:: \log P(y \mid x) &= \sum_i \log P(y_i \mid s_i(x), y_1, \dots, y_{i - 1}) \\
        &+ \text{power} \cdot \log(F(y \mid x) + 10^{-3}) + \text{constant},

    where :math:`s_i` are the units' scores and F is the forest's probability. `predict_proba` is calibrated on held-out
    rows: each label's logistic regression on its units' scores and the forest's, without other labels.
    `decision_function` has the log-odds of these; a label's sign may not be the prediction's, because the most probable
    labelling may have labels that are, each alone, less probable than not.

    `predict` returns the labelling that is best for its target. "exact" (all labels right): the most probable
    labelling, or the labels that are each more probable than not, if these matched as many held-out rows and had
    clearly less Hamming loss, or hardly any row was matched. "hamming" (fewest wrong labels): the labels that are each
    more probable than not. "f1" (macro F1): the labels whose probability exceeds a threshold of the largest expected F1
    on held-out rows. The search for the most probable labelling keeps `width` partial labellings per row. It is exact
    for up to 14 labels, and if no more of them are as probable as the labelling found, which `search(X).optimal` says.

    Labels that are missing in training are left out of their classifiers; what the units make most probable given the
    labels that are known stands for them in the forest, and their expectation in other labels' conditionals.

    Args:
        units: "auto" ("linear", and "rbf" up to 3000 rows), or a list of "linear" and "rbf" (support vector machines
            whose alpha and kernel width are chosen on held-out rows), "boosting" (LightGBM), and scikit-learn
            classifiers with `decision_function` or `predict_proba`.
        n_trees: of the forest; 0 for none. Trees learn from up to 10,000 rows each.
        order: "frequency" (frequent labels first), "index", or the labels' numbers in order.
        parents: maximum number of earlier labels in a conditional, those with the largest correlations.
        target: the measure that predictions optimise, "exact", "hamming" or "f1".
        width: partial labellings kept per row.
        cv: folds of held-out scores, and of the choice of `power_` and `ridge_`.
        class_weight: None, "balanced" (both values of a label have equal total weight), or {0: weight of a label's
            smaller value, 1: of its larger}.
        constraints: that labellings must satisfy, as in `LMSBN`.
        tol, passes: of "linear" and "rbf", as in `LMSBN`.
        random_state: seed of folds, trees, orders and units.

    After `fit`: `units_` (names), `power_`, `ridge_`, `order_`, `thresholds_` (of the labels that vary, for "f1"),
    `whole_` (whether "exact" is the most probable labelling), `cv_results_` (held-out measures by power and whole) and
    `held_out_` (measures of "exact" predictions, "joint", and of labels each on its own, "alone", with 95 % intervals);
    the last two are not saved.

    Example:
        >>> import potentia as pt
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(60, 3))
        >>> Y = np.column_stack([X[:, 0] > 0, X[:, 0] > 0.5, X[:, 1] > 0]).astype(int)
        >>> model = pt.LabelNetwork(["linear"], n_trees=20, constraints={1: 0}).fit(X, Y)  # label 1 only with label 0
        >>> model.predict(X).shape, model.predict_proba(X).shape
        ((60, 3), (60, 3))
    """

    units: Literal["auto"] | Sequence[Any] = "auto"
    _: KW_ONLY
    n_trees: int = 200
    order: Literal["frequency", "index"] | Sequence[int] | Ints = "frequency"
    parents: int = 20
    target: Target = "exact"
    width: int = 64
    cv: int = 3
    class_weight: ClassWeight = None
    constraints: Constraints = None
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
        "order": Array("i8", ("V",), low=0, below="V"),
        "weight": Array("f8", ("V", "U")),
        "bias": Array("f8", ("V",)),
        "coupling": Array("f8", ("V", "V")),
        "own/weight": Array("f8", ("V", "U")),
        "own/bias": Array("f8", ("V",)),
        "thresholds": Array("f8", ("V",)),
        "scale": Array("f8", ("U",)),
        "places": Rule(
            lambda saved: np.array_equal(np.sort(saved["order"]), np.arange(saved["V"])), "do not hold every label once"
        ),
        "couplings": Rule(
            lambda saved: not np.triu(saved["coupling"]).any(), "make labels depend on themselves or later ones"
        ),
    }

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
        check_choice("target", self.target, TARGETS)
        for name, least in {"n_trees": 0, "parents": 0, "width": 1, "cv": 2, "passes": 1}.items():
            check_count(name, getattr(self, name), least)
        check_positive("tol", self.tol)
        check_seed(self.random_state)

    # -- fitting -------------------------------------------------------------------------------------------

    def _fit_nothing(self) -> None:
        none = np.zeros(0)
        self._units: list[Unit] = []
        self._forest: LabellingForest | None = None
        self._own = self._conditionals = Conditionals(none.astype(np.int64), np.zeros((0, 0)), none, np.zeros((0, 0)))
        self.units_: list[str] = []
        self.cv_results_: list[dict[str, float]] = []
        self.held_out_: dict[str, dict[str, tuple[float, float, float]]] = {}
        self.power_, self.ridge_, self._scale, self.thresholds_ = 0.0, _RIDGE, np.ones(0), none
        self.order_, self.whole_ = np.zeros(0, dtype=np.int64), True

    def _fit(self, task: FitTask) -> None:
        """Learn units and forest, choose options by their held-out scores, then learn the conditionals."""
        self._fit_nothing()
        n, seed = len(task.signs), task.seed
        units = list(self.units)
        if isinstance(self.units, str):
            units = ["linear", "rbf"] if n <= _MOST_KERNEL_ROWS else ["linear"]
        self._check_memory(task, units)
        order, rng = self._order(task.signs), np.random.default_rng(seed)
        solver = HingeSolver(1.0, float(self.tol), int(self.passes), seed)
        task, held = _some_rows(task, rng)
        n = len(held.signs)
        # too few rows for every fold to have two are not held out
        folds = list(splits(n, self.cv, seed)) if n >= 2 * self.cv else [(np.arange(n), np.arange(n))]
        self.units_ = [unit if isinstance(unit, str) else type(unit).__name__ for unit in units]
        self._units = [make_unit(unit, seed) for unit in units]
        parts = [unit.learn(task, held, solver, folds) for unit in self._units]
        compared = np.sort(rng.permutation(n)[:_COMPARED]) if n > _COMPARED else np.arange(n)
        held_out: Any = None
        if self.n_trees:
            rows = held.weight.sum(axis=1) / held.known.sum(axis=1)
            blocks = [np.arange(a, min(a + _COMPARED, n)) for a in range(0, n, _COMPARED)]
            near: list[Floats] = []
            for _ in range(1 if held.known.all() else 2):  # again, completed by what the first forest has seen
                completed = self._completed(held, parts + near, order, held_out)
                self._forest, held_out = learn_forest(held.X, completed, rows, self.n_trees, seed)
                near = [np.concatenate([self._forest.scores(held_out(block)) for block in blocks])]
            parts += near
        scores = np.stack(parts, axis=2)
        del parts
        self._scale = scores.std(axis=(0, 1)) + 1e-12
        scores /= self._scale
        signs, weight, known = held.signs, held.weight, held.known
        ridge, aside = self._calibrate(scores[compared], signs[compared], weight[compared], seed)
        self._own = self._alone(scores, signs, weight, ridge)
        beliefs = signs if known.all() else np.where(known, signs, 2.0 * self._own.probabilities(scores) - 1.0)
        seen = None if held_out is None else held_out(compared)
        data = scores, signs, beliefs, weight
        self._choose(tuple(part[compared] for part in data), order, seen, aside, seed)
        self._conditionals = self._together(data, order, self.ridge_)
        self.order_ = np.flatnonzero(self._coding.varying)[order]

    def _check_memory(self, task: FitTask, units: Sequence[Any]) -> None:
        """Refuse a fit that needs more memory than there is."""
        (n, d), V = task.X.shape, task.signs.shape[1]
        m = min(n, _LEARNED)
        needed = 8.0 * m * V * (3 * (len(units) + 1) + 4) + 16.0 * m * d * isinstance(task.X, np.ndarray)
        needed += 24.0 * n * n * ("rbf" in units) + 16.0 * self.n_trees * (m + 4 * min(m, 10_000))
        check_memory(needed, "fitting this LabelNetwork", "use fewer rows, labels or trees")

    def _completed(self, held: FitTask, parts: list[Floats], order: Ints, held_out: Any) -> Floats:
        """Labellings (c, n, V) of the rows: the signs, those of missing labels drawn given the others.

        Half of a row's labellings are the most probable one by units and forest, if there is one yet.
        """
        signs, weight, known = held.signs, held.weight, held.known
        if known.all():
            return signs[None]
        scores = np.stack(parts, axis=2) if parts else np.zeros((*signs.shape, 0))
        scores = scores / (scores.std(axis=(0, 1)) + 1e-12)
        beliefs = np.where(known, signs, 2.0 * self._alone(scores, signs, weight, _RIDGE).probabilities(scores) - 1.0)
        network = self._together((scores, signs, beliefs, weight), order, _RIDGE)
        rules, rng, n = make_rules(self._varying_constraints, order), np.random.default_rng(held.seed), len(signs)
        completed = np.empty((_COMPLETIONS, *signs.shape))
        for rows in (np.arange(a, min(a + _CHUNK, n)) for a in range(0, n, _CHUNK)):
            member = Member(network, network.base(scores[rows]), rules)
            seen = None if held_out is None else held_out(rows)
            listed = ranked(member, seen, _POWER, self.width, np.where(known, signs, 0.0)[rows])
            completed[:, rows] = listed.signs[listed.drawn(_COMPLETIONS, rng)]
        return completed

    def _alone(self, scores: Floats, signs: Floats, weight: Floats, ridge: float) -> Conditionals:
        """Every label's regression on its scores alone."""
        return learn_conditionals(scores, signs, signs, np.arange(signs.shape[1]), ridge, weight, 0)

    def _together(self, data: tuple[Floats, ...], order: Ints, ridge: float) -> Conditionals:
        """Every label's regression on its scores and the labels before it, where constraints leave it a choice."""
        scores, signs, beliefs, weight = data
        weight = np.where(self._has_choice(signs, beliefs, weight, order), weight, 0.0)
        return learn_conditionals(scores, signs, beliefs, order, ridge, weight, self.parents)

    def _has_choice(self, signs: Floats, beliefs: Floats, weight: Floats, order: Ints) -> Bools:
        """Which labels (n, V) are known and not forced by constraints, given the labels before them."""
        rules, free = make_rules(self._varying_constraints, order), weight > 0
        if len(rules.size):
            free[:, order] &= ~forced(rules, np.where(free, signs, beliefs)[:, order])
        return free

    def _calibrate(self, scores: Floats, signs: Floats, weight: Floats, seed: int) -> tuple[float, Floats]:
        """The ridge of the regressions of labels alone, of the least held-out log-loss, with the probabilities; the
        thresholds for F1.
        """
        n, least, best = len(signs), np.inf, (_RIDGE, np.full(signs.shape, 0.5))
        self.thresholds_ = np.full(signs.shape[1], 0.5)
        if n < 2 * self.cv:
            return best
        for ridge in _RIDGES:
            p = np.empty(signs.shape)
            for train, test in splits(n, self.cv, seed):
                p[test] = self._alone(scores[train], signs[train], weight[train], ridge).probabilities(scores[test])
            right = np.where(signs > 0, p, 1.0 - p)
            loss = float(-(weight * np.log(np.maximum(right, 1e-12))).sum())
            if loss < least:
                least, best = loss, (ridge, p)
        pairs = zip(best[1].T, (weight > 0).T, strict=True)
        self.thresholds_ = np.array([best_threshold(p[known]) if known.any() else 0.5 for p, known in pairs])
        return best

    def _order(self, signs: Floats) -> Ints:
        """The order of the labels that vary, numbered among themselves."""
        if not isinstance(self.order, str):
            return among(np.flatnonzero(self._coding.varying), check_order(self.order, self.n_labels_))
        return np.arange(signs.shape[1]) if self.order == "index" else np.argsort(-signs.sum(axis=0), kind="stable")

    def _choose(self, data: tuple[Floats, ...], order: Ints, seen: Seen | None, aside: Floats, seed: int) -> None:
        """`ridge_` of the largest held-out log P of known labels, then `power_` and `whole_` by held-out measures."""
        scores, signs, beliefs, weight = data
        self.ridge_, self.power_, self.cv_results_ = _RIDGE, _POWER if seen is not None else 0.0, []
        n, known, most = len(signs), weight > 0, -np.inf
        self.whole_ = signs.shape[1] > 1  # a lone label's score is its prediction's
        if n < 2 * self.cv:
            return
        parts, rules = list(splits(n, self.cv, seed)), make_rules(self._varying_constraints, order)
        free = self._has_choice(signs, beliefs, weight, order)
        for ridge in _RIDGES:
            networks = [self._together(tuple(part[train] for part in data), order, ridge) for train, _ in parts]
            members = [Member(c, c.base(scores[test]), rules) for c, (_, test) in zip(networks, parts, strict=True)]
            gain = 0.0
            for member, (_, test) in zip(members, parts, strict=True):
                odds = member.unplaced(member.base + beliefs[test][:, order] @ member.conditionals.coupling.T)
                gain -= np.logaddexp(0.0, -signs[test] * odds)[free[test]].sum()
            if gain > most:
                most, self.ridge_, best = gain, ridge, members
        wrong = {power: np.zeros(signs.shape, dtype=bool) for power in (_POWERS if seen is not None else (0.0,))}
        for member, (_, test) in zip(best, parts, strict=True):
            near = None if seen is None else Seen(seen.labellings, seen.probabilities[test])
            listed = candidates(member, near, max(wrong), self.width)
            for power, errors in wrong.items():
                errors[test] = listed.best(power).labels != signs[test]
        self.cv_results_ = [_measured(power, True, errors, known) for power, errors in wrong.items()]
        # the least Hamming loss of those of exact matches within half a standard error of the best
        exact = max(r["exact_match"] for r in self.cv_results_)
        exact -= 0.5 * np.sqrt(exact * (1.0 - exact) / n)
        whole = min((r for r in self.cv_results_ if r["exact_match"] >= exact), key=lambda r: r["hamming_loss"])
        self.power_ = whole["power"]
        apart = project(aside - 0.5, self._rules) != signs
        self.cv_results_.append(_measured(self.power_, False, apart, known))
        alone, wrong_share = self.cv_results_[-1], whole["hamming_loss"]
        fewer = wrong_share - 0.5 * np.sqrt(wrong_share * (1.0 - wrong_share) / known.sum())
        # or where hardly any row is predicted without an error
        hopeless = n * max(whole["exact_match"], alone["exact_match"]) < _FEW_ROWS
        self.whole_ &= not (hopeless or (alone["exact_match"] >= exact and alone["hamming_loss"] < fewer))
        errors_of = {"joint": wrong[self.power_] if self.whole_ else apart, "alone": apart}
        self.held_out_ = {name: intervals(signs > 0, found, known, seed) for name, found in errors_of.items()}

    # -- predicting ----------------------------------------------------------------------------------------

    def predict(self, X: Any, target: Target | None = None) -> np.ndarray:
        """Labels (n, K), or (n,) after a flat y, that are best for a target; None is the estimator's own."""
        target = self.target if target is None else target
        check_choice("target", target, TARGETS)
        signs = self._if_any_varies(partial(self._signs_for, target), X)
        return self._coding.decode(signs)

    def _signs_for(self, target: str, X: Any) -> np.ndarray:
        if target == "exact" and self.whole_:
            return self._labelled(X).labels
        return project(self._probabilities(X) - (self.thresholds_ if target == "f1" else 0.5), self._rules)

    def _chunks(self, X: Any) -> Iterator[tuple[Floats, Seen | None]]:
        """The scores (m, V, U) of some rows at a time, and what the forest has seen near them."""
        for start in range(0, X.shape[0], _CHUNK):
            rows = X[start : start + _CHUNK]
            parts, seen = [unit.scores(rows) for unit in self._units], None
            if self._forest is not None:
                seen = self._forest.seen(rows)
                parts.append(self._forest.scores(seen))
            yield np.stack(parts, axis=2) / self._scale, seen

    def _member(self, scores: Floats) -> Member:
        """The network at rows of these scores."""
        learned = self._conditionals
        return Member(learned, learned.base(scores), make_rules(self._varying_constraints, learned.order))

    def _labelled(self, X: Any) -> LabelSearch:
        chunks, power = self._chunks(X), self.power_
        parts = [candidates(self._member(s), seen, power, self.width).best(power) for s, seen in chunks]
        return LabelSearch(*map(np.concatenate, zip(*parts, strict=True)))

    def _probabilities(self, X: Any) -> Floats:
        return np.concatenate([self._own.probabilities(scores) for scores, _ in self._chunks(X)])

    def _decide(self, X: Any) -> Floats:
        """Log-odds (n, V) of the labels' marginals."""
        return log_odds(self._probabilities(X), np.finfo(float).eps)

    _ranks = True

    def _ranked(self, X: Any, k: int) -> Ranked:
        parts = [ranked(self._member(scores), seen, self.power_, k) for scores, seen in self._chunks(X)]
        starts = np.cumsum([0, *(len(part.rest) for part in parts)])
        parts = [part._replace(rows=part.rows + start) for part, start in zip(parts, starts, strict=False)]
        return Ranked(*map(np.concatenate, zip(*parts, strict=True)))

    def _losses_of(self, X: Any, signs: Floats) -> Floats:
        losses, first = [], 0
        for scores, seen in self._chunks(X):
            rows, own = np.arange(len(scores)), signs[first : first + len(scores)]
            losses.append(losses_of(self._member(scores), seen, self.power_, rows, own))
            first += len(scores)
        return np.concatenate(losses)

    def dependences(self, least: float = 0.1) -> list[tuple[str, str, float]]:
        """(label, other label, change of its log-odds where the other is present), strongest first, of some size."""
        names, change = [self.label_names_[k] for k in self.order_], 2.0 * self._conditionals.coupling
        pairs = np.argwhere(np.abs(change) >= least)
        found = [(names[i], names[j], float(change[i, j])) for i, j in pairs]
        return sorted(found, key=lambda entry: -abs(entry[2]))

    def search(self, X: Any) -> LabelSearch:
        """The most probable labellings: `loss` is -log P up to a constant, `states` counts the prefixes visited."""
        X = self._checked(X)
        if not len(self.order_):  # no label varies
            n = X.shape[0]
            labels = self._coding.decode(np.empty((n, 0)))
            return LabelSearch(labels, np.zeros(n), np.zeros(n, dtype=np.int64), np.ones(n, dtype=bool))
        best = self._labelled(X)
        return best._replace(labels=self._coding.decode(best.labels))

    # -- files ---------------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        """Units, forest and conditionals as JSON values and arrays."""
        V, U = len(self.order_), len(self._scale)
        units = [unit.state() for unit in self._units]
        forest = {} if self._forest is None else self._forest.arrays()
        return {
            "units": [content for content, _ in units],
            "names": self.units_,
            "power": self.power_,
            "ridge": self.ridge_,
            "whole": self.whole_,
            **self._conditionals._asdict(),
            "own/weight": self._own.weight.reshape(V, U),
            "own/bias": self._own.bias,
            "thresholds": self.thresholds_,
            "scale": self._scale,
            **{f"unit{u}/{name}": array for u, (_, arrays) in enumerate(units) for name, array in arrays.items()},
            **{f"forest/{name}": array for name, array in forest.items()},
        }

    def _restore(self, saved: dict[str, Any], arrays: dict[str, Any]) -> None:
        """Take units, forest and conditionals of a file."""
        self._fit_nothing()
        self.units_, self.power_, self.ridge_ = saved["names"], saved["power"], saved["ridge"]
        self._scale, self.whole_ = saved["scale"], saved["whole"]
        self._conditionals = Conditionals(*(saved[name] for name in Conditionals._fields))
        self.thresholds_, V = saved["thresholds"], saved["V"]
        self._own = Conditionals(np.arange(V), saved["own/weight"], saved["own/bias"], np.zeros((V, V)))
        if not V:
            return
        sizes = {"V": saved["V"], "d": saved["n_features"]}
        self._units = [
            restore_unit(content, prefixed(arrays, f"unit{u}/"), sizes) for u, content in enumerate(saved["units"])
        ]
        forest = prefixed(arrays, "forest/")
        if forest:
            self._forest = LabellingForest.from_arrays(check(FOREST, forest, "forest", dict(sizes)))
        if len(self._scale) != len(self._units) + bool(forest):
            raise PotentiaError("the saved LabelNetwork is damaged: its scales are not those of its units.")
        self.order_ = np.flatnonzero(self._coding.varying)[self._conditionals.order]


def _some_rows(task: FitTask, rng: np.random.Generator) -> tuple[FitTask, FitTask]:
    """The task, and that of some rows, in memory here, that all but the final units learn from; few are all rows."""
    n, X = len(task.signs), task.X
    if n > _LEARNED:
        some = np.sort(rng.permutation(n)[:_LEARNED])
        X = X[some]
    if isinstance(X, RemoteRows):
        X = X.ask(copy)
    if n > _LEARNED:
        return task, task._replace(X=X, signs=task.signs[some], weight=task.weight[some])
    task = task._replace(X=X)
    return task, task


def _measured(power: float, whole: bool, wrong: Bools, known: Bools) -> dict[str, float]:
    """Measures of labels (n, V) that are wrong or not, as far as they are known."""
    exact = float(np.clip(np.mean(_all_right(wrong, known)), 0.0, 1.0))
    hamming = float(np.sum(wrong & known) / np.sum(known))
    return {"power": power, "whole": whole, "exact_match": exact, "hamming_loss": hamming}


def _all_right(wrong: Bools, known: Bools) -> Floats:
    """Whether all labels (n, V) of each row are right; where some are missing, numbers of the same expectation.

    A wrong label that is known with probability q counts as a factor of (q - 1) / q, which with q, and the factor 1
    otherwise, is 0 on average; for q below a half, -1. Labels must be missing independently of errors.
    """
    factor = 1.0 - 1.0 / np.maximum(known.mean(axis=0), 0.5)
    return np.where(wrong & known, factor, 1.0).prod(axis=1)


def intervals(truth: Bools, wrong: Bools, known: Bools, seed: int) -> dict[str, tuple[float, float, float]]:
    """Exact match, Hamming loss and macro F1 of labels (n, V), with 95 % bootstrap intervals over rows."""
    n = len(truth)
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1.0 / n), size=200)
    counts = np.concatenate([np.ones((1, n)), counts])
    exact = np.clip(counts @ _all_right(wrong, known) / n, 0.0, 1.0)
    hamming = (counts @ (wrong & known).sum(axis=1)) / np.maximum(counts @ known.sum(axis=1), 1)
    both, total = counts @ (truth & known & ~wrong), counts @ ((truth & known).astype(int) + (known & (truth != wrong)))
    f1 = np.where(total > 0, 2.0 * both / np.maximum(total, 1), 0.0).mean(axis=1)
    values = {"exact_match": exact, "hamming_loss": hamming, "f_macro": f1}
    return {name: (v[0], *np.quantile(v[1:], [0.025, 0.975])) for name, v in values.items()}


def best_threshold(p: Floats) -> float:
    """The threshold on probabilities p (n) of the largest expected F1: 2 sum of those above / (number + sum of all)."""
    falling = np.sort(p)[::-1]
    f1 = 2.0 * np.cumsum(falling) / (np.arange(1, len(p) + 1) + falling.sum())
    best = int(f1.argmax())
    return float(falling[best] + falling[min(best + 1, len(p) - 1)]) / 2.0

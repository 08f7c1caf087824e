"""`LMSBN`: large-margin sigmoid belief networks [LMSBN], learned label by label and searched exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import lru_cache, partial
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from ...base.schema import Array, Number, Rule, Schema
from ...base.types import Floats, Ints, PotentiaError, check_choice, check_count, check_positive
from ...kernels.search import LOGISTIC, NetworkTerms
from .base import FitTask
from .constraints import make_rules
from .hinge import HingeSolver, Kernel, kernel_width, lone_score
from .margins import MarginClassifier
from .network import (
    CV,
    LABEL_SCALES,
    ORDER_RULES,
    WIDTHS,
    DirectedNetwork,
    LabelDependence,
    LabelSearch,
    Parents,
    alpha_path,
    among,
    check_order,
    choose,
    guessed,
    label_order,
    learn_networks,
    pair_terms,
    parent_sets,
    restrict,
)
from .sets import Ranked

#: `budget=None`: as many states as a 64-bit count holds.
UNLIMITED = 2**62

Order = Literal["f-score", "index", "learned", "cv"]
ORDERS = get_args(Order)


@dataclass(eq=False, repr=False)
class LMSBN(MarginClassifier):
    r"""Large-margin sigmoid belief network: a directed network of labels with hinge losses.

    Labels :math:`y_i \in \{-1, +1\}` have an order, and :math:`g_i = w_i \cdot [1, x, y_{\text{parents}}, \dots]` is
    the score of label i given its parents (and products of them). With :math:`z_i = y_i g_i` the loss of a labelling is
    :math:`\sum_i [1 - z_i]_+`. Learning minimises
    :math:`\frac{1}{2} |w|^2 + \frac{1}{\alpha n} \sum \text{losses}` [LMSBN Eq. 6], one linear support vector machine
    per label; prediction minimises the loss over all labellings [LMSBN Eq. 5] by
    branch and bound [LMSBN Algorithm 2].

    `decision_function` says how much a label's other value would add to the least loss: the least loss with the label
    at its smaller value minus that at its larger, on the scale of a support vector machine's scores, and equal to them
    for one label. Its sign is that of the best labelling, whatever `bound` is. A row takes one search per label, and
    one more.

    Args:
        alpha: the paper's lambda, common to all labels; C of a support vector machine is :math:`1 / (\alpha n)`. "cv":
            chosen by cross-validation along a path of falling values, each solution started from the one before.
        order: "f-score" (labels that independent classifiers predict best come first), "index", "learned" (the best of
            `n_orders` by loss on held-out rows), "cv" ("f-score" or "index"), or the labels' numbers in order.
        kernel: None (linear), a name that scikit-learn knows ("rbf", "poly", ...), or a function of two matrices of
            rows. It replaces x only: labels act linearly in every case, so that search stays the same.
        gamma, degree, coef0: the kernel's options; gamma "scale" is as in scikit-learn's SVC, "median" is 1 / median
            squared distance of rows, and "cv" is chosen around that.
        parents: "all" earlier labels, or the parents of each label, by number; an order that is not given explicitly is
            changed so that parents come first.
        interactions: maximum number of parents that are multiplied in a feature.
        label_scale: factor of labels as features; below 1, couplings are regularised more than the features' weights,
            by :math:`1 / \text{label_scale}^2`. "cv": 1 or 1/4.
        bound: predictions are sought among labellings of loss below it (the paper's S); if there is none, the greedy
            labelling is predicted.
        budget: maximum number of states visited per row; None for no limit. A search that reaches it returns the best
            labelling found.
        n_orders: orders tried by "learned".
        cv: folds of cross-validation over rows, which chooses the options "cv" together, by exact match and then by
            Hamming loss. With fewer than two rows per fold, it takes the middle of its candidates.
        class_weight: None, "balanced" (both values of a label have equal total weight), or {0: weight of a label's
            smaller value, 1: of its larger}.
        constraints: that labellings must satisfy: a list of `pt.factors` with names of labels, such as
            ``[pt.factors.Implies("a", "b"), pt.factors.AtMostOne("c", "d")]``, or of a hierarchy the parent of each
            label, ``{"a": "b"}``. Predictions satisfy them; labels that they force are not learned.
        tol, passes: a label's problem is solved when projected gradients of its dual differ by at most `tol`, and
            given up with a warning after this many passes over the rows.
        random_state: seed of the solver's order of rows, of folds and of tried orders.

    After `fit`: `order_` (labels by place; labels constant in training have none), `couplings_` (K, K: weight of label
    j in the score of label i), `intercept_` (K), and `coef_` (K, d), or with a kernel `dual_coef_` (K, n);
    `network_`, the same by place, with the searches; `alpha_` and `label_scale_`, with a kernel `gamma_`, as chosen or
    given; `cv_results_`, measures of all options that were compared (not saved).

    Example:
        >>> import potentia as pt
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(60, 3))
        >>> Y = np.column_stack([X[:, 0] > 0, X[:, 0] > 0.5, X[:, 1] > 0]).astype(int)
        >>> model = pt.LMSBN(alpha=0.01).fit(X, Y)
        >>> model.predict(X[:5]).shape, model.score(X, Y) > 0.8
        ((5, 3), True)
    """

    alpha: float | CV = "cv"
    order: Order | Sequence[int] | Ints = "f-score"
    kernel: Kernel = None
    _: KW_ONLY
    parents: Parents = "all"
    interactions: int = 1
    label_scale: float | CV = 1.0
    bound: float = np.inf
    budget: int | None = None
    n_orders: int = 10
    cv: int = 3

    saved: ClassVar[Schema] = {
        **MarginClassifier.saved,
        "alpha": Number(),
        "label_scale": Number(),
        "network/order": Array("i8", ("V",), low=0, below="V"),
        "order": Rule(
            lambda saved: np.array_equal(np.sort(saved["network/order"]), np.arange(saved["V"])),
            "does not hold every label once",
        ),
        "network/coupling": Array("f8", ("V", "V")),
        "network/term_ptr": Array("i8", ("V+1",), ends="T"),
        "network/weight": Array("f8", ("T",)),
        "network/member_ptr": Array("i8", ("T+1",), ends="M"),
        "network/members": Array("i8", ("M",), low=0, below="V"),
    }

    # -- fitting -------------------------------------------------------------------------------------------

    _chosen = ("alpha", "gamma")

    def _check_options(self) -> None:
        """Refuse bad options."""
        super()._check_options()
        if isinstance(self.order, str):
            check_choice("order", self.order, ORDERS, "the labels' numbers")
        check_count("interactions", self.interactions, 1)
        if self.label_scale != "cv":
            check_positive("label_scale", self.label_scale)
        check_count("cv", self.cv, 2)
        check_count("n_orders", self.n_orders, 1)
        self._check_limits(self.bound, self.budget)

    def _fit_nothing(self) -> None:
        """A network of no labels."""
        coef, bias, none = np.zeros((0, self.n_features_in_)), np.zeros(0), np.zeros(0, dtype=np.int64)
        self._set_network(DirectedNetwork(coef, bias, none, pair_terms(np.zeros((0, 0))), make_rules([], none)))
        self.alpha_, self.label_scale_ = 1.0, 1.0
        self.cv_results_: list[dict[str, Any]] = []

    def _fit(self, task: FitTask) -> None:
        """Choose options by cross-validation where they are "cv", then learn the network on all rows."""
        X, signs, weight, seed, solved = task
        varying, parents = np.flatnonzero(self._coding.varying), parent_sets(self.parents, self.n_labels_)
        scale = 1.0 if self.label_scale == "cv" else float(self.label_scale)
        among_them = restrict(parents, varying)
        structure = LabelDependence(among_them, self.interactions, scale, self.n_orders, self._varying_constraints)
        features = lru_cache(1)(partial(self._label_rows, X, weight))
        width = 1.0 if self.kernel is None else kernel_width(X, self.gamma)
        gammas = [factor * width for factor in WIDTHS] if self.gamma == "cv" and self.kernel else [width]
        order: Any = self.order
        if not isinstance(order, str):
            order = tuple(among(varying, check_order(order, self.n_labels_, parents)).tolist())
        grid: dict[str, Any] = {
            "alpha": alpha_path(features(gammas[0])) if self.alpha == "cv" else [float(self.alpha)],
            "gamma": gammas,
            "order": ORDER_RULES if order == "cv" else [order],
            "label_scale": LABEL_SCALES if self.label_scale == "cv" else [scale],
        }
        solver = HingeSolver(1.0, float(self.tol), int(self.passes), seed)
        if not task.known.all():
            middle = replace(solver, alpha=grid["alpha"][len(grid["alpha"]) // 2])
            signs = guessed(task, features(gammas[len(gammas) // 2]), middle, self._rules)
        best, self.cv_results_ = choose(grid, features, signs, solver, structure, self.cv, solved)
        self.alpha_, self.label_scale_ = best.alpha, best.label_scale
        solver, rows = replace(solver, alpha=best.alpha), features(best.gamma)
        placed = label_order(best.order, rows, signs, solver, structure, solved)
        structure = structure._replace(label_scale=best.label_scale)
        (network,) = learn_networks(rows, signs, [solver], placed, structure, solved)
        if not task.known.all():  # what is missing is searched for, given what is known, and learned from
            base = network.base(X if rows.gram is None else rows.gram)
            signs = network.search(base, np.inf, self._budget(), 1, np.where(task.known, task.signs, 0.0)).labels[:, 0]
            (network,) = learn_networks(rows, np.ascontiguousarray(signs), [solver], placed, structure, solved)
        if self.kernel is not None:
            self._X, self.gamma_ = X, best.gamma
        self._set_network(network)

    def _set_network(self, network: DirectedNetwork) -> None:
        """The fitted attributes, over all labels."""
        varying, self.network_ = np.flatnonzero(self._coding.varying), network
        self._set_weights(network.coef, network.bias)
        self.couplings_ = np.zeros((self.n_labels_, self.n_labels_))
        self.couplings_[np.ix_(varying, varying)] = network.couplings()
        self.order_ = varying[network.order]

    # -- predicting ----------------------------------------------------------------------------------------

    def _predict_signs(self, X: Any) -> np.ndarray:
        """Signs (n, V) of the labellings of least loss."""
        return self.network_.search(self._base(X), float(self.bound), self._budget()).labels[:, 0]

    def _decide(self, X: Any) -> Floats:
        """Scores (n, V): what the other value of each label would cost."""
        return lone_score(self.network_.margins(self._base(X), self._budget()))

    def search(self, X: Any, bound: float | None = None, budget: int | None = None) -> LabelSearch:
        """Labellings by branch and bound, with losses, states visited and proofs; None is the estimator's own option.

        If no labelling has a loss below the bound, the greedy one is returned and not marked as optimal.
        """
        bound, budget = self.bound if bound is None else bound, self.budget if budget is None else budget
        self._check_limits(bound, budget)
        limits = float(bound), UNLIMITED if budget is None else int(budget)
        best = self.network_.search(self._base(self._checked(X)), *limits)
        return best._replace(labels=self._coding.decode(best.labels[:, 0]), loss=best.loss[:, 0])

    def best_labellings(self, X: Any, k: int) -> LabelSearch:
        """The k labellings of least loss, by one search per row."""
        check_count("k", k, 1)
        best = self.network_.search(self._base(self._checked(X)), np.inf, self._budget(), int(k))
        n, _, width = best.labels.shape
        labels = self._coding.decode(best.labels.reshape(n * k, width))
        return best._replace(labels=labels.reshape(n, k, *labels.shape[1:]))

    def predict_greedy(self, X: Any) -> np.ndarray:
        """Labels decided one after another without going back: the first descent of the search."""
        base = self._base(self._checked(X))
        if len(self.network_.rules.size):
            raise PotentiaError("the greedy labelling does not satisfy constraints: use predict.")
        return self._coding.decode(self.network_.search(base, 0.0, 1).labels[:, 0])  # no labelling has less loss than 0

    def _hinge_sums(self, X: Any, signs: Floats) -> Floats:
        return self.network_.losses(self._base(X), signs)

    def log_loss(self, X: Any, y: Any) -> Floats:
        r"""Minus the log-likelihood (n) of each row's labelling in the sigmoid network [LMSBN Eq. 2].

        The likelihood is :math:`\prod_i 1 / (1 + \exp(-z_i))`. Labels that are constant in training are left out.
        """
        X, signs, _ = self._with_labels(X, y)
        return self.network_.losses(self._base(X), signs, LOGISTIC)

    def _base(self, X: Any) -> Floats:
        """Scores (n, V) of the labels without other labels' part."""
        return self.network_.base(self._matrix(X))

    def _budget(self) -> int:
        """The limit on partial labellings of a search, as a number."""
        return UNLIMITED if self.budget is None else int(self.budget)

    @staticmethod
    def _check_limits(bound: float, budget: int | None) -> None:
        """Refuse limits of searches that are not positive."""
        check_positive("bound", bound, np.inf)
        check_count("budget", budget, 1, optional=True)

    _ranks = True

    def _ranked(self, X: Any, k: int) -> Ranked:
        best = self.network_.search(self._base(X), np.inf, self._budget(), k)
        n = len(best.labels)
        listed = np.isfinite(best.loss)
        rest = np.where(best.optimal, np.where(listed[:, -1], best.loss[:, -1], np.inf), -np.inf)
        return Ranked(np.repeat(np.arange(n), listed.sum(axis=1)), best.labels[listed], best.loss[listed], rest)

    def _losses_of(self, X: Any, signs: Floats) -> Floats:
        return self.network_.search(self._base(X), np.inf, self._budget(), 1, signs).loss[:, 0]

    # -- files -----------------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        parts = {"order": self.network_.order, **self.network_.links._asdict()}
        arrays = {f"network/{name}": value for name, value in parts.items()}
        return super()._state() | {"alpha": self.alpha_, "label_scale": self.label_scale_, **arrays}

    def _restore(self, saved: dict[str, Any], arrays: dict[str, Any]) -> None:
        """Take the network of a file."""
        super()._restore(saved, arrays)
        self.alpha_, self.label_scale_ = saved["alpha"], saved["label_scale"]
        links = NetworkTerms(*(saved[f"network/{name}"] for name in NetworkTerms._fields))
        order = saved["network/order"]
        rules = make_rules(self._varying_constraints, order)
        self._set_network(DirectedNetwork(saved["coef"], saved["bias"], order, links, rules))

"""`LMSBN`: large-margin sigmoid belief networks [LMSBN], learned label by label and searched exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np

from .._options import check_choice, check_count, check_positive
from .._schema import Array, Rule, Schema
from .._types import Bools, Floats, Ints, PotentiaError
from ..kernels.search import NetworkTerms
from .features import Features, Gamma, HingeSolver, Kernel
from .margin import UNLIMITED, MarginClassifier
from .network import Network, learn_network
from .orders import by_f_score, by_validation
from .structure import Parents, given_order, parent_sets, restrict, topological

Order = Literal["f-score", "index", "learned"]
ORDERS = get_args(Order)


class Search(NamedTuple):
    """Labellings of n rows found by branch and bound.

    labels (n, K) in training's values; loss (n): hinge sums; states (n): partial labellings visited; optimal (n): no
    labelling has less loss, for certain.
    """

    labels: np.ndarray
    loss: Floats
    states: Ints
    optimal: Bools


class Best(NamedTuple):
    """The k best labellings: labels (n, k, K), loss (n, k) ascending, infinite where there are fewer; optimal (n)."""

    labels: np.ndarray
    loss: Floats
    optimal: Bools


class Probabilities(NamedTuple):
    """P(label is the larger of its values) (n, K): exact, or means over `samples` draws with their standard errors."""

    values: Floats
    exact: bool
    samples: int
    error: Floats


class LMSBN(MarginClassifier):
    """Large-margin sigmoid belief network: a directed network of labels with hinge losses.

    With labels y in {-1, +1} in an order, g_i = w_i . [1, x, y_parents, products of them], z_i = y_i g_i, the loss of a
    labelling is sum_i [1 - z_i]_+. Learning minimises 1/2 |w|^2 + 1 / (alpha n) sum of losses [LMSBN Eq. 6], one
    linear support vector machine per label; prediction minimises the loss over all labellings [LMSBN Eq. 5] by
    branch and bound [LMSBN Algorithm 2].

    Args:
        alpha: the paper's lambda, common to all labels; C of a support vector machine is 1 / (alpha n).
        order: "f-score" (labels that independent classifiers know best come first), "index", "learned" (the best of
            `n_orders` by loss on held-out rows), or the labels' numbers in order.
        kernel: None (linear), a name that scikit-learn knows ("rbf", "poly", ...), or a function of two matrices of
            rows. It replaces x only: labels act linearly in every case, so that search stays the same.
        gamma, degree, coef0: the kernel's options; gamma "scale" is as in scikit-learn's SVC.
        parents: "all" earlier labels, or the parents of each label, by number; an order that is not given outright
            is bent to have parents first.
        interactions: how many parents are multiplied in a feature at most.
        label_scale: what labels are multiplied by as features; below 1 couplings are regularised more than the
            features' weights, by 1 / label_scale^2.
        bound: predictions are sought among labellings of loss below it (the paper's S); where there is none the
            greedy labelling is predicted.
        budget: states visited per row at most; None for no limit. A search cut short gives the best it has seen.
        n_orders: orders tried by "learned".
        tol, passes: a label's problem is solved when projected gradients of its dual differ by at most `tol`, and
            given up with a warning after so many passes over the rows.
        random_state: seed of the solver's order of rows, of folds and of tried orders.

    After `fit`: `order_` (labels by place; labels constant in training have none), `couplings_` (K, K: weight of label
    j in the score of label i), `intercept_` (K), and `coef_` (K, d), or with a kernel `dual_coef_` (K, n);
    `network_`, the same by place, with the searches.
    """

    saved: ClassVar[Schema] = {
        **MarginClassifier.saved,
        "network/own": Array("f8", ("V", "m")),
        "network/bias": Array("f8", ("V",)),
        "network/order": Array("i8", ("V",)),
        "order": Rule(
            lambda found: np.array_equal(np.sort(found["network/order"]), np.arange(found["V"])),
            "does not hold every label once",
        ),
        "network/coupling": Array("f8", ("V", "V")),
        "network/term_ptr": Array("i8", ("V+1",), ends="T"),
        "network/weight": Array("f8", ("T",)),
        "network/member_ptr": Array("i8", ("T+1",), ends="M"),
        "network/members": Array("i8", ("M",), low=0, below="V"),
    }

    def __init__(
        self,
        alpha: float = 1e-3,
        order: Order | Sequence[int] | Ints = "f-score",
        kernel: Kernel = None,
        *,
        gamma: Gamma = "scale",
        degree: int = 3,
        coef0: float = 1.0,
        parents: Parents = "all",
        interactions: int = 1,
        label_scale: float = 1.0,
        bound: float = np.inf,
        budget: int | None = None,
        n_orders: int = 10,
        tol: float = 1e-4,
        passes: int = 1000,
        random_state: Any = 0,
    ) -> None:
        self.alpha = alpha
        self.order = order
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.parents = parents
        self.interactions = interactions
        self.label_scale = label_scale
        self.bound = bound
        self.budget = budget
        self.n_orders = n_orders
        self.tol = tol
        self.passes = passes
        self.random_state = random_state

    # -- fitting -------------------------------------------------------------------------------------------

    def _check_options(self) -> None:
        super()._check_options()
        if isinstance(self.order, str):
            check_choice("order", self.order, ORDERS, "the labels' numbers")
        check_count("interactions", self.interactions, 1)
        check_positive("label_scale", self.label_scale)
        check_count("n_orders", self.n_orders, 1)
        self._limits(None, None)

    def _fit_nothing(self) -> None:
        self.network_ = _empty(self.n_features_in_)
        self._publish()

    def _fit(self, X: Any, signs: Floats) -> None:
        solver, features, varying = (
            self._solver(X, signs),
            self._features(X),
            np.flatnonzero(self._coding.varying),
        )
        all_parents = parent_sets(self.parents, self.n_labels_)
        order = self._order(features, signs, solver, varying, all_parents)
        self.network_ = learn_network(
            features,
            signs,
            solver,
            order,
            restrict(all_parents, varying),
            self.interactions,
            self.label_scale,
        )
        self._publish()

    def _order(
        self,
        features: Features,
        signs: Floats,
        solver: HingeSolver,
        varying: Ints,
        all_parents: list[set[int]] | None,
    ) -> Ints:
        """The order of the labels that vary, numbered among themselves."""
        parents = restrict(all_parents, varying)
        if not isinstance(self.order, str):
            given = given_order(self.order, self.n_labels_, all_parents)
            return np.argsort(varying)[np.searchsorted(varying, given[np.isin(given, varying)])]
        if self.order == "learned":
            return by_validation(
                features, signs, solver, parents, self.interactions, self.label_scale, self.n_orders
            )
        wish = by_f_score(features, signs, solver) if self.order == "f-score" else np.arange(signs.shape[1])
        return wish if parents is None else topological(parents, wish)

    def _publish(self) -> None:
        """The fitted attributes, over all labels; a constant label has its sign as intercept and nothing else."""
        network, varying = self.network_, np.flatnonzero(self._coding.varying)
        K = self.n_labels_
        own, self.couplings_ = np.zeros((K, network.own.shape[1])), np.zeros((K, K))
        own[varying], self.intercept_ = network.own, self._coding.signs.copy()
        self.intercept_[varying] = network.bias
        self.couplings_[np.ix_(varying, varying)] = network.couplings()
        self.order_ = varying[network.order]
        if self.kernel is None:
            self.coef_ = own
        else:
            self.dual_coef_ = own

    # -- predicting ----------------------------------------------------------------------------------------

    def _predict_signs(self, X: Any) -> np.ndarray:
        return self.network_.search(self._base(X), *self._limits(None, None)).signs[:, 0]

    def _decide(self, X: Any) -> Floats:
        """Loss differences as the score at which a lone label would have them: [1 + g]_+ - [1 - g]_+ solved for g."""
        difference = self.network_.margins(self._base(X), self._limits(None, None)[1])
        size = np.abs(difference)
        return np.where(size <= 2.0, difference / 2.0, np.sign(difference) * (size - 1.0))

    def decision_function(self, X: Any) -> Floats:
        """Scores (n, K), or (n,) after a flat y: how much a label's other value would cost the best labelling.

        The least loss with label i at its smaller value minus that at its larger, on the scale of a lone support
        vector machine's score, which it is for K = 1. The sign is that of the best labelling of all, whatever
        `bound` is. Costs K + 1 searches per row.
        """
        return super().decision_function(X)

    def search(self, X: Any, bound: float | None = None, budget: int | None = None) -> Search:
        """Branch and bound with its facts; None takes the estimator's own `bound` and `budget`.

        Where no labelling's loss is below the bound, the greedy one is given and is not called optimal.
        """
        X = self._checked(X)
        found = self.network_.search(self._base(X), *self._limits(bound, budget))
        labels = self._coding.decode(self._filled(found.signs[:, 0]))
        return Search(labels, found.loss[:, 0], found.states, found.optimal)

    def best_labellings(self, X: Any, k: int) -> Best:
        """The k labellings of least loss, by one search per row."""
        check_count("k", k, 1)
        X = self._checked(X)
        found = self.network_.search(self._base(X), np.inf, self._limits(None, None)[1], int(k))
        n, _, width = found.signs.shape
        flat = self._coding.decode(self._filled(found.signs.reshape(n * k, width)))
        return Best(flat.reshape(n, k, *flat.shape[1:]), found.loss, found.optimal)

    def predict_greedy(self, X: Any) -> np.ndarray:
        """Labels decided one after another without going back: the first descent of the search."""
        X = self._checked(X)
        return self._coding.decode(self._filled(self.network_.greedy(self._base(X))[0]))

    def labelling_loss(self, X: Any, y: Any) -> Floats:
        """The hinge sum (n) of each row's labelling; a label constant in training adds 2 where y differs from it."""
        X, signs = self._checked(X), self._signs(y)
        if len(signs) != X.shape[0]:
            raise PotentiaError(f"X has {X.shape[0]} rows but y {len(signs)}")
        constant = self._coding.signs
        surprises = np.sum((constant != 0) & (signs != constant), axis=1)
        varying = np.ascontiguousarray(signs[:, self._coding.varying])
        return self.network_.losses(self._base(X), varying) + 2.0 * surprises

    def label_probabilities(
        self, X: Any, samples: int = 1000, exact_up_to: int = 12, random_state: int = 0
    ) -> Probabilities:
        """Probabilities of labels in the sigmoid network prod_i 1 / (1 + exp(-z_i)) [LMSBN Eq. 2].

        Exact for up to `exact_up_to` labels, by a walk over all 2^K labellings of each row; otherwise means over
        `samples` ancestral samples of each label's probability given the sampled labels before it.
        """
        check_count("samples", samples, 1)
        check_count("exact_up_to", exact_up_to)
        check_count("random_state", random_state)
        X = self._checked(X)
        exact = self.network_.own.shape[0] <= exact_up_to
        values, error = self.network_.marginals(self._base(X), 0 if exact else samples, random_state)
        constant = (self._coding.signs + 1.0) / 2.0
        found = np.tile(np.where(self._coding.varying, 0.0, constant), (X.shape[0], 1))
        errors = np.zeros(found.shape)
        found[:, self._coding.varying], errors[:, self._coding.varying] = values, error
        return Probabilities(found, exact, 0 if exact else samples, errors)

    # -- parts ---------------------------------------------------------------------------------------------

    def _base(self, X: Any) -> Floats:
        return self.network_.base(self._matrix(X))

    def _filled(self, signs: Floats) -> Floats:
        return self._spread(signs, lambda given: given)

    def _limits(self, bound: float | None, budget: int | None) -> tuple[float, int]:
        bound = self.bound if bound is None else bound
        budget = self.budget if budget is None else budget
        check_positive("bound", bound, np.inf)
        if budget is not None:
            check_count("budget", budget, 1)
        return float(bound), UNLIMITED if budget is None else int(budget)

    def _state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        content, arrays = super()._state()
        network = self.network_
        parts = {"own": network.own, "bias": network.bias, "order": network.order, **network.links._asdict()}
        return content, arrays | {f"network/{name}": value for name, value in parts.items()}

    def _restore(self, found: dict[str, Any], arrays: dict[str, Any]) -> None:
        super()._restore(found, arrays)
        own, bias, order = (found[f"network/{name}"] for name in ("own", "bias", "order"))
        links = NetworkTerms(*(found[f"network/{name}"] for name in NetworkTerms._fields))
        self.network_ = Network(own, bias, order, links)
        self._publish()


def _empty(n_features: int) -> Network:
    """A network without labels: all were constant in training."""
    none = np.zeros(0, dtype=np.int64)
    links = NetworkTerms(
        np.zeros((0, 0)), np.zeros(1, dtype=np.int64), np.zeros(0), np.zeros(1, dtype=np.int64), none
    )
    return Network(np.zeros((0, n_features)), np.zeros(0), none, links)

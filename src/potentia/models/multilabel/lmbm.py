"""`LMBM`: large-margin Boltzmann machines [LMSBN], learned as one problem and decoded by search or relaxation."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ...base.options import check_choice, check_number
from ...base.schema import Array, Rule, Schema, Size, prefixed
from ...base.types import Bools, Floats
from .decoding import DECODES, Decode, costs_of_flips, find_labelling, is_optimal
from .features import Gamma, Kernel
from .joint import CliqueOption, Machine, as_cliques, clique_sets, learn_machine
from .margin import MarginClassifier, lone_score


class Decoded(NamedTuple):
    """Labellings of n rows.

    labels (n, K) in training's values; loss (n): hinge sums; bound (n): no labelling has less; optimal (n): this one
    has no more, for certain.
    """

    labels: np.ndarray
    loss: Floats
    bound: Floats
    optimal: Bools


@dataclass(eq=False, repr=False)
class LMBM(MarginClassifier):
    r"""Large-margin Boltzmann machine: an undirected network of labels with hinge losses.

    With labels :math:`y_i \in \{-1, +1\}` and margins

    .. math:: z_i = y_i (w_i \cdot x + b_i) + \sum_{C \ni i} v_C \prod_{j \in C} y_j,

    where C are the cliques, the loss of a labelling is :math:`\sum_i [1 - z_i]_+`. Learning minimises

    .. math:: \tfrac{1}{2} (|w|^2 + |b|^2 + (1 + \text{eta0}) |v|^2) + \tfrac{1}{\alpha n} \sum \text{losses}

    by dual coordinate descent [LMSBN Algorithm 1]; prediction minimises the loss over labellings [LMSBN Eq. 5].

    Args:
        alpha: the paper's lambda; C of a support vector machine is :math:`1 / (\alpha n)`.
        cliques: the largest size of cliques, of which all are used (1: independent labels), or the sets of labels.
        eta0: how much more the cliques' weights are regularised.
        kernel: None (linear), a name that scikit-learn knows ("rbf", "poly", ...), or a function of two matrices of
            rows; it replaces x only.
        gamma, degree, coef0: the kernel's options; gamma "scale" is as in scikit-learn's SVC, "median" is 1 / median
            squared distance of rows.
        decode: "exact" (all labellings, up to 20 labels), "lp" (linear programming over local marginals, then
            rounding and flips; a labelling that meets the program's bound is certainly optimal), "branch" (the same
            with branch and bound where it is not; exponential in the worst case, at most 1,000 linear programs per
            row), "auto" ("exact" up to 14 labels, else "lp"), or "map": the labelling with the largest
            :math:`\sum_i z_i / 2`, which may be a different one.
        tol, passes: learning stops when the duality gap is at most `tol` of the objective, and gives up with a
            warning after this many passes over rows and labels.
        random_state: seed of the order of descent.

    After `fit`: `coef_` (K, d), or with a kernel `dual_coef_` (K, n), `intercept_` (K), `cliques_` (sets of labels),
    `clique_weights_`, `objective_` and `gap_` (in units of the mean loss). Cliques with a label that is constant in
    training are left out.
    """

    alpha: float = 1e-2
    cliques: CliqueOption = 2
    eta0: float = 10.0
    kernel: Kernel = None
    _: KW_ONLY
    gamma: Gamma = "scale"
    degree: int = 3
    coef0: float = 1.0
    decode: Decode = "auto"
    tol: float = 1e-6
    passes: int = 1000
    random_state: Any = 0

    saved: ClassVar[Schema] = {
        **MarginClassifier.saved,
        "machine/own": Array("f8", ("V", "m")),
        "machine/bias": Array("f8", ("V",)),
        "machine/weight": Array("f8", ("C",)),
        "machine/facts": Array("f8", (2,)),
        "machine/sizes": Array("i8", ("C",), low=2, below="K+1"),
        "M": Size(lambda found: found["machine/sizes"].sum()),
        "machine/members": Array("i8", ("M",), low=0, below="K"),
        "cliques": Rule(
            lambda found: not np.any(found["signs"][found["machine/members"]]),
            "name labels that do not vary",
        ),
    }

    # -- fitting -------------------------------------------------------------------------------------------

    def _fit_nothing(self) -> None:
        none = np.zeros(0)
        width = self.n_features_in_
        self._machine = Machine(np.zeros((0, width)), none, none, as_cliques([], 0), 0.0, 0.0)
        self._publish_machine([])

    def _fit(self, X: Any, signs: Floats, weight: Floats) -> None:
        varying = np.flatnonzero(self._coding.varying)
        place = {int(k): i for i, k in enumerate(varying)}
        sets = [c for c in clique_sets(self.cliques, self.n_labels_) if all(j in place for j in c)]
        cliques = as_cliques([tuple(place[j] for j in c) for c in sets], len(varying))
        width = self._width(X)
        self._keep(X, width)
        gram = None if self.kernel is None else self._kernel(X, X, width)
        self._machine = learn_machine(
            X, gram, signs, cliques, self._solver(X, signs, weight), 1.0 + float(self.eta0)
        )
        self._publish_machine(sets)

    def _publish_machine(self, sets: list[tuple[int, ...]]) -> None:
        """The fitted attributes, over all labels."""
        machine = self._machine
        self._publish(machine.own, machine.bias)
        self.cliques_, self.clique_weights_ = sets, machine.weight
        self.objective_, self.gap_ = machine.objective, machine.gap

    # -- predicting ----------------------------------------------------------------------------------------

    def _predict_signs(self, X: Any) -> np.ndarray:
        return find_labelling(self._machine, self._scores(X), self.decode).signs

    def _decide(self, X: Any) -> Floats:
        scores, hinge = self._scores(X), self.decode != "map"
        signs = find_labelling(self._machine, scores, self.decode).signs
        # a tie keeps the sign of the labelling found
        cost = np.maximum(costs_of_flips(self._machine, scores, signs, hinge), np.finfo(float).tiny)
        return lone_score(signs * cost) if hinge else signs * cost

    def decision_function(self, X: Any) -> Floats:
        """Scores (n, K), or (n,) after a flat y: what flipping a label would add to the loss of the prediction.

        They are on the scale of a support vector machine's scores, and equal to them for one label.
        """
        return super().decision_function(X)

    def search(self, X: Any, decode: Decode | None = None) -> Decoded:
        """Labellings with losses, bounds and proofs; None is the estimator's own `decode`."""
        X, decode = self._checked(X), self.decode if decode is None else decode
        check_choice("decode", decode, DECODES)
        signs, loss, bound = find_labelling(self._machine, self._scores(X), decode)
        return Decoded(self._coding.decode(signs), loss, bound, is_optimal(loss, bound))

    def _losses(self, X: Any, signs: Floats) -> Floats:
        return self._machine.losses(self._scores(X), signs)

    def _scores(self, X: Any) -> Floats:
        return self._machine.scores(self._matrix(X))

    # -- parts ---------------------------------------------------------------------------------------------

    def _check_options(self) -> None:
        super()._check_options()
        check_choice("decode", self.decode, DECODES)
        check_number("eta0", self.eta0)

    def _state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        content, arrays = super()._state()
        machine = self._machine
        parts = {"own": machine.own, "bias": machine.bias, "weight": machine.weight}
        facts = {"facts": np.array([machine.objective, machine.gap])}
        sets = {
            "sizes": np.array([len(c) for c in self.cliques_], dtype=np.int64),
            "members": np.array([j for c in self.cliques_ for j in c], dtype=np.int64),
        }
        return content, arrays | {f"machine/{k}": v for k, v in (parts | facts | sets).items()}

    def _restore(self, found: dict[str, Any], arrays: dict[str, Any]) -> None:
        super()._restore(found, arrays)
        part = prefixed(found, "machine/")
        cuts = np.cumsum(part["sizes"])[:-1]
        sets = [tuple(c.tolist()) for c in np.split(part["members"], cuts)] if len(part["sizes"]) else []
        place = {int(k): i for i, k in enumerate(np.flatnonzero(self._coding.varying))}
        cliques = as_cliques([tuple(place[j] for j in c) for c in sets], len(place))
        objective, gap = (float(v) for v in part["facts"])
        self._machine = Machine(part["own"], part["bias"], part["weight"], cliques, objective, gap)
        self._publish_machine(sets)

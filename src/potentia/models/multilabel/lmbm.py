"""`LMBM`: large-margin Boltzmann machines [LMSBN], learned as one problem and decoded by search or relaxation."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np

from ...base.schema import Array, Rule, Schema, Size
from ...base.types import Floats, check_choice, check_number, prefixed
from ...kernels.search import flip_costs
from .base import FitTask, Solved
from .hinge import HingeSolver, Kernel, LabelRows, kernel_width, lone_score
from .machine import (
    DECODES,
    CliqueOption,
    Decode,
    Decoded,
    Machine,
    MachineProblem,
    as_cliques,
    clique_sets,
    find_labelling,
    learn_machine,
    over_rows,
)
from .margins import MarginClassifier
from .network import guessed


@dataclass(eq=False, repr=False)
class LMBM(MarginClassifier):
    r"""Large-margin Boltzmann machine: an undirected network of labels with hinge losses.

    With labels :math:`y_i \in \{-1, +1\}` and margins

    .. math:: z_i = y_i (w_i \cdot x + b_i) + \sum_{C \ni i} v_C \prod_{j \in C} y_j,

    where C are the cliques, the loss of a labelling is :math:`\sum_i [1 - z_i]_+`. Learning minimises

    .. math:: \tfrac{1}{2} (|w|^2 + |b|^2 + (1 + \text{eta0}) |v|^2) + \tfrac{1}{\alpha n} \sum \text{losses}

    by dual coordinate descent [LMSBN Algorithm 1]; prediction minimises the loss over labellings [LMSBN Eq. 5].
    `decision_function` says what flipping a label would add to the loss of the prediction, on the scale of a support
    vector machine's scores, and equal to them for one label.

    Args:
        alpha: the paper's lambda; C of a support vector machine is :math:`1 / (\alpha n)`.
        cliques: the largest size of cliques, of which all are used (1: independent labels), or the sets of labels.
        eta0: how much more the cliques' weights are regularised.
        kernel, gamma, degree, coef0: as in `LMSBN`, without a choice by cross-validation.
        decode: "exact" (all labellings, up to 20 labels), "lp" (linear programming over local marginals, then
            rounding and flips; a labelling that meets the program's bound is certainly optimal), "branch" (the same
            with branch and bound where it is not; exponential in the worst case, at most 1,000 linear programs per
            row), or "auto" ("exact" up to 14 labels, else "lp").
        class_weight, constraints: as in `LMSBN`. Losses of labels whose other value violates a constraint, given the
            other labels, are left out.
        tol, passes: learning stops when the duality gap is at most `tol` of the objective, and gives up with a
            warning after this many passes over rows and labels.
        random_state: seed of the order of descent.

    After `fit`: `coef_` (K, d), or with a kernel `dual_coef_` (K, n), `intercept_` (K), `cliques_` (sets of labels),
    `clique_weights_`, `objective_` and `gap_` (in units of the mean loss). Cliques with a label that is constant in
    training are left out.

    Example:
        >>> import potentia as pt
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(60, 3))
        >>> Y = np.column_stack([X[:, 0] > 0, X[:, 0] > 0.5, X[:, 1] > 0]).astype(int)
        >>> pt.LMBM(alpha=0.01).fit(X, Y).score(X, Y) > 0.8
        True
    """

    alpha: float = 1e-2
    cliques: CliqueOption = 2
    eta0: float = 10.0
    kernel: Kernel = None
    _: KW_ONLY
    decode: Decode = "auto"
    tol: float = 1e-6
    passes: int = 5000

    saved: ClassVar[Schema] = {
        **MarginClassifier.saved,
        "machine/weight": Array("f8", ("C",)),
        "machine/facts": Array("f8", (2,)),
        "machine/sizes": Array("i8", ("C",), low=2, below="K+1"),
        "M": Size(lambda saved: saved["machine/sizes"].sum()),
        "machine/members": Array("i8", ("M",), low=0, below="K"),
        "cliques": Rule(
            lambda saved: not np.any(saved["signs"][saved["machine/members"]]), "name labels that do not vary"
        ),
    }

    # -- fitting -------------------------------------------------------------------------------------------

    def _check_options(self) -> None:
        """Refuse bad options."""
        super()._check_options()
        check_choice("decode", self.decode, DECODES)
        check_number("eta0", self.eta0)

    def _fit_nothing(self) -> None:
        """A machine of no labels."""
        none = np.zeros(0)
        machine = Machine(np.zeros((0, self.n_features_in_)), none, none, as_cliques([], 0), 0.0, 0.0, self._rules)
        self._set_machine(machine, [])

    def _fit(self, task: FitTask) -> None:
        X, signs, known = task.X, task.signs, task.known
        place, rules = self._places(), self._rules
        sets = [c for c in clique_sets(self.cliques, self.n_labels_) if all(j in place for j in c)]
        cliques = as_cliques([tuple(place[j] for j in c) for c in sets], len(place))
        gram = None
        if self.kernel is not None:
            self._X, self.gamma_ = X, kernel_width(X, self.gamma)
            gram = self._gram(X, X, self.gamma_)
        limits = float(self.tol), int(self.passes), task.seed
        if not known.all():
            rows = LabelRows(X, gram, task.weight)
            signs = guessed(task, rows, HingeSolver(float(self.alpha), *limits), rules)
        cost = task.weight / (float(self.alpha) * len(signs))
        problem = MachineProblem(X, gram, signs, cliques, 1.0 + float(self.eta0), cost, rules)
        machine = learn_machine(problem.chosen(), *limits, task.solved)
        if not known.all():  # what is missing is searched for, given what is known, and learned from
            scores = machine.scores(X if gram is None else gram)
            signs = find_labelling(machine, scores, self.decode, np.where(known, task.signs, 0.0)).labels
            problem = problem._replace(signs=np.ascontiguousarray(signs))
            machine = learn_machine(problem.chosen(), *limits, Solved())
        self._set_machine(machine, sets)

    def _places(self) -> dict[int, int]:
        """Labels that vary, and their numbers among themselves."""
        return {int(k): i for i, k in enumerate(np.flatnonzero(self._coding.varying))}

    def _set_machine(self, machine: Machine, sets: list[tuple[int, ...]]) -> None:
        """The fitted attributes, over all labels."""
        self._machine = machine
        self._set_weights(machine.coef, machine.bias)
        self.cliques_, self.clique_weights_ = sets, machine.weight
        self.objective_, self.gap_ = machine.objective, machine.gap

    # -- predicting ----------------------------------------------------------------------------------------

    def _predict_signs(self, X: Any) -> np.ndarray:
        """Signs (n, V) of the labellings that `decode` finds."""
        return find_labelling(self._machine, self._scores(X), self.decode).labels

    def _decide(self, X: Any) -> Floats:
        """Scores (n, V): what the other value of each label would cost."""
        scores = self._scores(X)
        signs = find_labelling(self._machine, scores, self.decode).labels
        # a tie keeps the sign of the labelling found
        cost = np.empty(scores.shape)
        over_rows(flip_costs, self._machine, scores, signs, cost)
        return lone_score(signs * np.maximum(cost, np.finfo(float).tiny))

    def search(self, X: Any, decode: Decode | None = None) -> Decoded:
        """Labellings with losses, bounds and proofs; None is the estimator's own `decode`."""
        decode = self.decode if decode is None else decode
        check_choice("decode", decode, DECODES)
        best = find_labelling(self._machine, self._scores(self._checked(X)), decode)
        return best._replace(labels=self._coding.decode(best.labels))

    def _hinge_sums(self, X: Any, signs: Floats) -> Floats:
        return self._machine.losses(self._scores(X), signs)

    def _scores(self, X: Any) -> Floats:
        """Scores (n, V) of the labels without their cliques."""
        return self._machine.scores(self._matrix(X))

    # -- files -----------------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        """The machine's weights and cliques."""
        machine, sets = self._machine, self.cliques_
        parts = {
            "weight": machine.weight,
            "facts": np.array([machine.objective, machine.gap]),
            "sizes": np.array([len(c) for c in sets], dtype=np.int64),
            "members": np.array([j for c in sets for j in c], dtype=np.int64),
        }
        return super()._state() | {f"machine/{name}": array for name, array in parts.items()}

    def _restore(self, saved: dict[str, Any], arrays: dict[str, Any]) -> None:
        """Take the machine of a file."""
        super()._restore(saved, arrays)
        part, place = prefixed(saved, "machine/"), self._places()
        cuts = np.cumsum(part["sizes"])[:-1]
        sets = [tuple(c.tolist()) for c in np.split(part["members"], cuts)] if len(part["sizes"]) else []
        cliques = as_cliques([tuple(place[j] for j in c) for c in sets], len(place))
        objective, gap = (float(v) for v in part["facts"])
        machine = Machine(saved["coef"], saved["bias"], part["weight"], cliques, objective, gap, self._rules)
        self._set_machine(machine, sets)

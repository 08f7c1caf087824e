"""`IndependentClassifiers`: one margin classifier per label."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Self

import numpy as np

from ...base.schema import Array, Rule, Schema
from ...base.types import Floats
from ...learn.checkpoint import Checkpoint
from .base import FitTask, MultiLabelClassifier
from .hinge import HingeSolver
from .inputs import ClassWeight, check_class_weight, check_margin_options
from .network import APART, learn_networks
from .rows import Gamma, Kernel, kernel_width


@dataclass(eq=False, repr=False)
class IndependentClassifiers(MultiLabelClassifier):
    r"""One support vector machine per label, independent of the others.

    Args: as in `LMSBN`, without choices by cross-validation; alpha is common to all labels,
    :math:`C = 1 / (\alpha n)`.

    After `fit`: `intercept_` (K), and `coef_` (K, d), or with a kernel `dual_coef_` (K, n).
    """

    alpha: float = 1e-3
    kernel: Kernel = None
    _: KW_ONLY
    gamma: Gamma = "scale"
    degree: int = 3
    coef0: float = 1.0
    class_weight: ClassWeight = None
    tol: float = 1e-4
    passes: int = 1000
    random_state: Any = 0

    saved: ClassVar[Schema] = {
        **MultiLabelClassifier.saved,
        "own": Array("f8", ("V", "m"), optional=True),
        "bias": Array("f8", ("V",), optional=True),
        "weights": Rule(
            lambda saved: (saved["own"] is None) == (saved["bias"] is None) == (not saved["V"]), "are missing"
        ),
    }

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        progress: bool = False,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
    ) -> Self:
        """Learn from rows X (n, d), their labels y (n, K) or (n,), and weights (n) of the rows; see `LMSBN.fit`."""
        return self._learn(X, y, sample_weight, progress, checkpoint)

    def _check_options(self) -> None:
        check_margin_options(self)
        check_class_weight(self.class_weight)

    def _fit(self, task: FitTask) -> None:
        X, signs, weight, seed, solved = task
        width = 1.0 if self.kernel is None else kernel_width(X, self.gamma)
        if self.kernel is not None:
            self._X, self.gamma_ = X, width
        solver = HingeSolver(float(self.alpha), float(self.tol), int(self.passes), seed)
        features, order = self._label_rows(X, weight, width), np.arange(signs.shape[1])
        (network,) = learn_networks(features, signs, [solver], order, APART, solved)
        self._set_weights(network.coef, network.bias)

    def _fit_nothing(self) -> None:
        self._set_weights(np.zeros((0, self.n_features_in_)), np.zeros(0))

    def _decide(self, X: Any) -> Floats:
        coef, bias = self._weights()
        return np.asarray(self._matrix(X) @ coef.T) + bias

    def labelling_loss(self, X: Any, y: Any) -> Floats:
        """The hinge sum (n) of each row's labelling; a label constant in training adds 2 where y differs from it."""
        X, signs, surprises = self._with_labels(X, y)
        hinges: Floats = np.maximum(0.0, 1.0 - signs * self._decide(X))
        return hinges.sum(axis=1) + surprises

    def _weights(self) -> tuple[Floats, Floats]:
        """Weights and constants of the labels that vary."""
        varying = self._coding.varying
        weights = self.coef_ if self.kernel is None else self.dual_coef_
        return weights[varying], self.intercept_[varying]

    def _state(self) -> dict[str, Any]:
        coef, bias = self._weights()
        return {"own": coef, "bias": bias} if len(bias) else {}

    def _restore(self, saved: dict[str, Any], arrays: dict[str, Any]) -> None:
        if saved["own"] is None:
            self._fit_nothing()
        else:
            self._set_weights(saved["own"], saved["bias"])

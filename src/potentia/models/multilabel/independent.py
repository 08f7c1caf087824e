"""`IndependentClassifiers`: one margin classifier per label."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np

from ...base.schema import Array, Rule, Schema
from ...base.types import Floats
from .base import ClassWeight, WeightedClassifier
from .features import Gamma, Kernel
from .margin import MarginClassifier
from .network import learn_apart


@dataclass(eq=False, repr=False)
class IndependentClassifiers(WeightedClassifier, MarginClassifier):
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
        **MarginClassifier.saved,
        "own": Array("f8", ("V", "m"), optional=True),
        "bias": Array("f8", ("V",), optional=True),
        "weights": Rule(
            lambda found: (found["own"] is None) == (found["bias"] is None) == (not found["V"]), "are missing"
        ),
    }

    def _fit(self, X: Any, signs: Floats, weight: Floats) -> None:
        width = self._width(X)
        self._keep(X, width)
        solver = self._solver(X, signs, weight)
        (network,) = learn_apart(self._features(X, weight, width), signs, [solver])
        self._publish(network.own, network.bias)

    def _fit_nothing(self) -> None:
        self._publish(np.zeros((0, self.n_features_in_)), np.zeros(0))

    def _decide(self, X: Any) -> Floats:
        own, bias = self._weights()
        return np.asarray(self._matrix(X) @ own.T) + bias

    def _losses(self, X: Any, signs: Floats) -> Floats:
        hinges: Floats = np.maximum(0.0, 1.0 - signs * self._decide(X))
        return hinges.sum(axis=1)

    def _weights(self) -> tuple[Floats, Floats]:
        """Weights and constants of the labels that vary."""
        varying = self._coding.varying
        weights = self.coef_ if self.kernel is None else self.dual_coef_
        return weights[varying], self.intercept_[varying]

    def _state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        content, arrays = super()._state()
        own, bias = self._weights()
        return content, arrays | ({"own": own, "bias": bias} if len(bias) else {})

    def _restore(self, found: dict[str, Any], arrays: dict[str, Any]) -> None:
        super()._restore(found, arrays)
        if found["own"] is not None:
            self._publish(found["own"], found["bias"])
        else:
            self._fit_nothing()

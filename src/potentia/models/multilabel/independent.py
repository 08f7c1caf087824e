"""`IndependentClassifiers`: one support vector machine per label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...base.types import Floats
from .base import FitTask
from .hinge import HingeSolver, Kernel, kernel_width
from .margins import MarginClassifier
from .network import APART, learn_networks


@dataclass(eq=False, repr=False)
class IndependentClassifiers(MarginClassifier):
    r"""One support vector machine per label, independent of the others.

    Args: alpha is common to all labels, :math:`C = 1 / (\alpha n)`. kernel, gamma, degree, coef0, class_weight,
    constraints, tol, passes and random_state are as in `LMSBN`, without choices by cross-validation.

    After `fit`: `intercept_` (K), and `coef_` (K, d), or with a kernel `dual_coef_` (K, n).

    Example:
        >>> import potentia as pt
        >>> import numpy as np
        >>> X = np.random.default_rng(0).normal(size=(40, 3))
        >>> Y = (X > 0).astype(int)
        >>> pt.multilabel.IndependentClassifiers(alpha=0.01).fit(X, Y).score(X, Y) > 0.8
        True
    """

    alpha: float = 1e-3
    kernel: Kernel = None

    def _fit(self, task: FitTask) -> None:
        """One support vector machine per label: a network in which labels do not see each other."""
        X, signs, weight, seed, solved = task
        width = 1.0 if self.kernel is None else kernel_width(X, self.gamma)
        if self.kernel is not None:
            self._X, self.gamma_ = X, width
        solver = HingeSolver(float(self.alpha), float(self.tol), int(self.passes), seed)
        features, order = self._label_rows(X, weight, width), np.arange(signs.shape[1])
        (network,) = learn_networks(features, signs, [solver], order, APART, solved)
        self._set_weights(network.coef, network.bias)

    def _decide(self, X: Any) -> Floats:
        """Scores (n, V): products with the weights, and intercepts."""
        coef, bias = self._weights()
        return np.asarray(self._matrix(X) @ coef.T) + bias

    def _hinge_sums(self, X: Any, signs: Floats) -> Floats:
        hinges: Floats = np.maximum(0.0, 1.0 - signs * self._decide(X))
        return hinges.sum(axis=1)

"""The zero function."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from potentia._types import Floats
from potentia.potentials.base import Potential
from potentia.potentials.problem import Problem


class Zero(Potential):
    """f(x) = 0 [ILR-chapter sec. 1.9.1]: nothing to learn."""

    threaded: ClassVar[bool] = True
    affine: ClassVar[bool] = True
    shared: ClassVar[bool] = True

    def _begin(self, problem: Problem) -> None:
        pass

    def _fit(self, problem: Problem) -> None:
        pass

    def _scores(self, x: Any) -> Floats:
        return np.zeros((x.shape[0], self.n_outputs_))

    def design(self, x: Any) -> Floats:
        """No columns, (N, 0)."""
        return np.zeros((x.shape[0], 0))

    def own_ridge(self, n_columns: int) -> Floats:
        """Nothing, (0,)."""
        return np.zeros(n_columns)

    def set_table(self, table: Floats) -> None:
        """There is nothing to set."""

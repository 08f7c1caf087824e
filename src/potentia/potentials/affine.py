"""Potentials that are linear in their parameters, all seen as f(x) = [x, 1] T with one table T.

`Linear` is that with its features, `Constant` with none, `Zero` with neither features nor intercept.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from potentia._types import Floats, PotentiaError
from potentia.potentials.base import Potential
from potentia.potentials.constant import Constant
from potentia.potentials.linear import Linear
from potentia.potentials.validation import check_features
from potentia.potentials.zero import Zero


def require_affine(kind: str, potential: Potential) -> None:
    """Refuse a potential that is not linear in its parameters."""
    if not potential.affine:
        raise PotentiaError(
            f"the potential of {kind!r} must be linear in its parameters (Linear, Constant or Zero), "
            f"not {type(potential).__name__}"
        )
    if potential.unit != "row":
        raise PotentiaError(
            f"the {type(potential).__name__} of {kind!r} reads whole examples; this learner needs features of rows."
        )


def design(potential: Potential, x: Any) -> Any:
    """The features that multiply the table: [x, 1] (N, D), expanded, dense or CSR; x without columns for Constant."""
    n_rows = x.shape[0]
    if isinstance(potential, Zero):
        return np.zeros((n_rows, 0))
    if isinstance(potential, Constant):
        return np.ones((n_rows, 1))
    assert isinstance(potential, Linear)
    features = potential._expand(check_features(x, True))
    if not potential.intercept:
        return features
    if hasattr(features, "tocsr"):
        from scipy import sparse

        return sparse.hstack([features, np.ones((n_rows, 1))], format="csr")
    return np.hstack([features, np.ones((n_rows, 1))])


def own_ridge(potential: Potential, n_columns: int) -> Floats:
    """The ridge that the potential itself puts on each row of its table, (D,); 0 on Linear's intercept."""
    ridge = np.full(n_columns, float(getattr(potential, "ridge", 0.0)))
    if isinstance(potential, Linear) and potential.intercept:
        ridge[-1] = 0.0
    return ridge


def write_table(potential: Potential, table: Floats) -> None:
    """Set the function to [x, 1] T for T (D, K); the potential must have been started."""
    if isinstance(potential, Linear):
        potential.set_table(table)
    elif isinstance(potential, Constant):
        potential.parameters = table[0]

"""Potentials that are linear in their parameters: f(x) = [x, 1] T with one table T."""

from __future__ import annotations

from typing import Any, Protocol, cast

from potentia._types import Floats, PotentiaError
from potentia.potentials.base import Potential


class Affine(Protocol):
    """What a potential that declares `affine` also defines."""

    def design(self, x: Any) -> Any:
        """The features that multiply the table: [x, 1] (N, D), dense or CSR, x perhaps expanded or left out."""

    def own_ridge(self, n_columns: int) -> Floats:
        """The ridge that the potential itself puts on each row of its table, (D,)."""

    def set_table(self, table: Floats) -> None:
        """Take T (D, K); the potential must have been started."""


def as_affine(kind: str, potential: Potential) -> Affine:
    """The potential, refused where it is not linear in its parameters."""
    if not potential.affine:
        raise PotentiaError(
            f"the potential of {kind!r} must be linear in its parameters (Linear, Constant or Zero), "
            f"not {type(potential).__name__}."
        )
    if potential.unit != "row":
        raise PotentiaError(
            f"the {type(potential).__name__} of {kind!r} reads whole examples; this learner needs features of rows."
        )
    return cast(Affine, potential)

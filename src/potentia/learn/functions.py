"""The potentials' scores of a training set's rows."""

from __future__ import annotations

from collections.abc import Mapping

from .._types import Floats
from ..potentials.base import Potential
from ..potentials.constant import Constant
from ..potentials.zero import Zero
from .training_set import TrainingSet

#: A kind's scores are kept between calls up to this many numbers, and made piece by piece beyond.
_MAX_KEPT = 1 << 25


def one_table(data: TrainingSet, kind: str, potential: Potential) -> bool:
    """Whether all regions of a kind have one table, which need not be written out."""
    return data.features[kind] is None or type(potential) in (Constant, Zero)


class Functions:
    """f(x) of any rows of a kind; computed once per change of the potential where keeping all rows is cheap."""

    def __init__(self, potentials: Mapping[str, Potential], data: TrainingSet) -> None:
        self.potentials, self.data = potentials, data
        self._kept: dict[str, Floats] = {}

    def moved(self, kind: str) -> None:
        """Forget scores: the potential has changed."""
        self._kept.pop(kind, None)

    def is_kept(self, kind: str) -> bool:
        """Whether scores of all rows are at hand."""
        return kind in self._kept

    def is_shared(self, kind: str) -> bool:
        """Whether all rows have the same scores."""
        return one_table(self.data, kind, self.potentials[kind])

    def kept(self, kind: str) -> Floats | None:
        """Scores of all rows where they are kept; a fit that is given them brings them up to date."""
        self.prepare()
        return self._kept.get(kind)

    def prepare(self) -> None:
        """To be called before several threads ask for rows."""
        for kind, potential in self.potentials.items():
            n = self.data.n_rows(kind)
            if kind in self._kept:
                continue
            if n * self.data.n_outputs(kind) <= _MAX_KEPT:
                self._kept[kind] = potential.scores(self.data.matrix(kind))
            else:
                potential.ready(n)

    def scores(self, kind: str, rows: slice) -> Floats:
        """f of some rows, (n, K); to be read only."""
        if kind in self._kept:
            return self._kept[kind][rows]
        return self.potentials[kind].scores(self.data.matrix(kind)[rows])

"""Mean field with fully connected Gaussian pair terms: they act through a filter, on all variables at once."""

from __future__ import annotations

import numpy as np

from .._types import Floats, Ints
from ..graph.scores import Scores
from ..kernels.weighted_links import spread_all
from .engine import Readout
from .mean_field_engine import MeanFieldEngine


class DenseMeanFieldEngine(MeanFieldEngine):
    """Iterations begin with the fields of all Gaussian terms at the current distribution, which then stay as they are.

    Without other pairs that is the parallel update of dense CRFs, starting at the softmax of single scores.
    """

    def __init__(self, scores: Scores, order: str, threads: int) -> None:
        super().__init__(scores, order, threads)
        states = np.arange(self.q.shape[1])
        #: Where single scores lie in `theta`, (n, states), and what they are.
        self.singles_at: Ints = self.at[scores.regions.single][:, None] + states
        self.base: Floats = self.theta[self.singles_at]
        #: Whether the first distribution is the softmax of single scores; else it is a feasible labelling.
        self.soft_start = not self._forbids()
        if self.soft_start:
            self.q = softmax(self.base)
        spread_all(self.links, self.q)

    def _forbids(self) -> bool:
        """Whether explicit regions of several variables forbid configurations."""
        scores = self.scores
        kinds = [k for k, s in scores.graph.scopes.items() if s.shape[1] > 1 and k not in scores.weighted]
        return any(not np.isfinite(scores.kind(k)[0]).all() for k in kinds)

    @property
    def group_threads(self) -> int:
        """One: an iteration is one call."""
        return 1

    def dense_field(self, q: Floats) -> Floats:
        """Expected scores of every variable's labels under all Gaussian terms, (n, states)."""
        field = np.zeros_like(q)
        for term in self.scores.dense.values():
            field += term.weight * term.field(term.kernel.multiply(q))
        return field

    def sweep(self, units: Ints, write: bool = True, watch: bool = True) -> float:
        """One iteration over the variables at these positions."""
        self.theta[self.singles_at] = self.base + self.dense_field(self.q)
        return super().sweep(units, write, watch)

    def read(self, cliques: bool = True) -> Readout:
        """Product marginals and E[theta] + H(q)."""
        self.theta[self.singles_at] = self.base
        read = super().read(cliques)
        return read._replace(value=read.value + 0.5 * float((self.q * self.dense_field(self.q)).sum()))


def softmax(scores: Floats) -> Floats:
    """exp(scores) over their sum along the last axis."""
    found = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return found / found.sum(axis=-1, keepdims=True)

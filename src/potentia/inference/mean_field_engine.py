"""The engine of mean field: variables in groups, and the current product distribution."""

from __future__ import annotations

import numpy as np

from .._memory import borrow
from .._threads import map_ranges
from .._types import Bools, Floats, InfeasibleError, Ints
from ..graph.flat import Stars, stars
from ..graph.schedule import variable_groups
from ..graph.scores import Scores
from ..kernels import mean_field as kernels
from ..kernels.weighted_links import expected_links, spread_all
from .decode import feasible_labelling
from .engine import Readout, WholeStates
from .readout import ProductMarginals
from .weighted_links import weighted_links

#: Variables a group must hold before a second thread pays.
_PARALLEL_WORK = 20_000


class MeanFieldEngine(WholeStates):
    """Variables in groups of which no two share a region, and the current product distribution."""

    def __init__(self, scores: Scores, order: str, threads: int) -> None:
        self.scores, self.threads = scores, threads
        self.theta, self.at = scores.flat(leave=scores.weighted)
        np.maximum(self.theta, kernels.FORBIDDEN, out=self.theta)
        #: Regions with separate tables.
        self.written = _written(scores)
        self.stars = _stars_of(scores, self.written)
        self.pair_at = self.at[self.stars.pair]
        self.links = weighted_links(scores)
        self.variables, self._group_ptr = variable_groups(scores.graph, order)
        self.q = self._first_guess()
        spread_all(self.links, self.q)

    def _first_guess(self) -> Floats:
        """Uniform over allowed states; a feasible labelling where larger regions forbid configurations."""
        allowed = self.scores.singles > -np.inf
        weighted = self.scores.weighted
        kinds = [k for k, s in self.scores.graph.scopes.items() if s.shape[1] > 1 and k not in weighted]
        if all(np.isfinite(self.scores.kind(k)[0]).all() for k in kinds):
            return allowed / allowed.sum(axis=1, keepdims=True)
        labels = feasible_labelling(self.scores)
        if labels is None:
            raise InfeasibleError(
                "mean field needs a labelling with a finite score to start from, and found none."
            )
        return (np.arange(allowed.shape[1]) == labels[:, None]).astype(float)

    @property
    def group_ptr(self) -> Ints:
        """Ranges of variables that share no region."""
        return self._group_ptr

    @property
    def group_threads(self) -> int:
        """Threads that pay for a group of average size."""
        return self.threads if len(self.variables) >= _PARALLEL_WORK * (len(self._group_ptr) - 1) else 1

    @property
    def state(self) -> Floats:
        """The product distribution itself."""
        return self.q

    def messages(self) -> Floats:
        """The product distribution, (n, states)."""
        return self.q.copy()

    def set_messages(self, messages: Floats) -> None:
        """Start from the product distribution of an earlier run."""
        start = np.where(self.q > 0, messages, 0.0)
        total = start.sum(axis=1, keepdims=True)
        self.q = np.where(total > 0, start / np.where(total > 0, total, 1.0), self.q)
        spread_all(self.links, self.q)

    def sweep(self, units: Ints, write: bool = True, watch: bool = True) -> float:
        """Coordinate ascent over the variables at these positions, in this order."""
        return float(
            kernels.sweep_variables(
                self.scores.regions,
                self.stars,
                self.links,
                self.theta,
                self.at,
                self.pair_at,
                self.variables[units],
                self.q,
            )
        )

    def read(self, cliques: bool = True) -> Readout:
        """Product marginals and E[theta] + H(q)."""
        regions = self.scores.regions
        # summed here, so that the order does not depend on threads
        own = borrow((len(regions.size),))
        map_ranges(
            lambda a, b: kernels.expected_scores(
                regions, self.theta, self.at, self.q, self.written, a, b, own
            ),
            0,
            len(own),
            self.group_threads,
        )
        positive = self.q[self.q > 0]
        value = float(own.sum()) + float(expected_links(self.links, self.q))
        value -= float((positive * np.log(positive)).sum())
        q = self.q.copy()
        return Readout(ProductMarginals(self.scores.graph, q, self.group_threads), q, value, self.q.copy())


def _written(scores: Scores) -> Bools:
    """Regions whose tables are written out, in the `Regions` numbering."""
    taken, ptr = np.ones(len(scores.regions.size), dtype=np.bool_), scores.regions.kind_ptr
    for number, kind in enumerate(scores.graph.kinds):
        taken[ptr[number] : ptr[number + 1]] = kind not in scores.weighted
    return taken


def _stars_of(scores: Scores, written: Bools) -> Stars:
    """The graph's `Stars` without pairs given by weights."""
    every = stars(scores.graph)
    if not scores.weighted:
        return every
    keep = written[every.pair]
    ptr = np.concatenate([[0], np.cumsum(keep)])[every.pair_ptr]
    return every._replace(
        pair_ptr=ptr,
        pair=every.pair[keep],
        other=every.other[keep],
        own=every.own[keep],
        step=every.step[keep],
    )
